//! What the tests of the real Claude Code need around it beside what all need.

use inspan_model_server::Scenario;
use inspan_protocol::ExecutionContext;
use inspan_providers::{ClaudeInput, ClaudeOptions};

use crate::world::{Answers, Home, PLANTED, asking, named};

/// One server and one home.
pub(crate) struct ClaudeSandbox {
    home: Home,
    program: String,
}

impl std::ops::Deref for ClaudeSandbox {
    type Target = Home;

    fn deref(&self) -> &Home {
        &self.home
    }
}

impl ClaudeSandbox {
    pub(crate) fn new(scenario: Scenario) -> Self {
        let program = named("INSPAN_E2E_CLAUDE");
        Self { home: Home::new(scenario, &["proj"], ("CLAUDE_CONFIG_DIR", "config")), program }
    }

    pub(crate) fn context(&self) -> ExecutionContext {
        self.home.context([
            ("INSPAN_CLAUDE", self.program.clone()),
            ("ANTHROPIC_BASE_URL", self.server.base_url()),
            ("ANTHROPIC_API_KEY", PLANTED.to_owned()),
            ("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1".to_owned()),
            ("CLAUDECODE", "1".to_owned()),
        ])
    }

    pub(crate) fn context_asking(&self, answers: Answers) -> ExecutionContext {
        asking(self.context(), answers)
    }

    /// The numbers of the running programs, without what they run themselves.
    pub(crate) fn processes(&self) -> Vec<u32> {
        self.running_with("--input-format=stream-json")
    }
}

pub(crate) fn prompt(text: &str, options: ClaudeOptions) -> ClaudeInput {
    ClaudeInput { prompt: Some(text.to_owned()), options: Some(options), ..ClaudeInput::default() }
}
