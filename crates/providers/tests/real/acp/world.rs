//! What the tests of real agents of the Agent Client Protocol need around them beside what all need.

use std::collections::BTreeMap;
use std::time::Duration;

use inspan_model_server::Scenario;
use inspan_protocol::{ExecutionContext, Provider};
use inspan_providers::{AcpInput, AcpOptions, AcpProvider};
use serde_json::{Value, json};

use crate::world::{Answers, Home, PLANTED, asking, named};

/// One server and one home.
pub(crate) struct AcpSandbox {
    home: Home,
}

/// An agent under test.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum TestedAgent {
    Claude,
    OpenCode,
}

pub(crate) const AGENTS: [TestedAgent; 2] = [TestedAgent::Claude, TestedAgent::OpenCode];

impl std::ops::Deref for AcpSandbox {
    type Target = Home;

    fn deref(&self) -> &Home {
        &self.home
    }
}

impl AcpSandbox {
    pub(crate) fn new(scenario: Scenario) -> Self {
        Self { home: Home::new(scenario, &["proj"], ("ACP_TEST_MARK", "")) }
    }

    /// With a person who says yes.
    pub(crate) fn context(&self) -> ExecutionContext {
        let context = self.home.context([
            ("TMPDIR", self.text("")),
            ("XDG_DATA_HOME", self.text("xdg")),
            ("CLAUDE_CONFIG_DIR", self.text("config")),
            ("CLAUDE_CODE_EXECUTABLE", named("INSPAN_E2E_CLAUDE")),
            ("ANTHROPIC_BASE_URL", self.server.base_url()),
            ("ANTHROPIC_API_KEY", PLANTED.to_owned()),
            ("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1".to_owned()),
            ("OPENAI_API_KEY", PLANTED.to_owned()),
        ]);
        asking(context, Answers::Allow)
    }

    /// The options by which an agent is run.
    pub(crate) fn options(&self, agent: TestedAgent) -> AcpOptions {
        let words = |words: &[&str]| Some(words.iter().map(|&word| word.to_owned()).collect());
        match agent {
            TestedAgent::Claude => AcpOptions {
                command: Some(named("INSPAN_E2E_CLAUDE_ACP")),
                pass_env: words(&["ANTHROPIC_*", "CLAUDE_*"]),
                ..AcpOptions::default()
            },
            TestedAgent::OpenCode => {
                let quiet =
                    ["MODELS_FETCH", "AUTOUPDATE", "LSP_DOWNLOAD", "DEFAULT_PLUGINS", "SHARE", "CLAUDE_CODE"];
                let mut env: BTreeMap<String, String> =
                    quiet.map(|what| (format!("OPENCODE_DISABLE_{what}"), "1".to_owned())).into();
                env.insert("OPENCODE_CONFIG_CONTENT".to_owned(), self.opencode().to_string());
                AcpOptions {
                    command: Some(named("INSPAN_E2E_OPENCODE")),
                    args: words(&["acp"]),
                    pass_env: words(&["OPENAI_API_KEY"]),
                    env: Some(env),
                    ..AcpOptions::default()
                }
            }
        }
    }

    fn opencode(&self) -> Value {
        let model = json!({
            "name": "Scripted",
            "limit": { "context": 200_000, "output": 8192 },
            "cost": { "input": 3, "output": 15 },
            "tool_call": true,
            "reasoning": true,
        });
        json!({
            "model": "scripted/one", "small_model": "scripted/one", "autoupdate": false, "share": "disabled",
            "snapshot": false, "compaction": { "auto": false }, "enabled_providers": ["scripted"],
            "permission": { "bash": "ask", "edit": "ask" },
            "provider": { "scripted": {
                "npm": "@ai-sdk/openai-compatible", "name": "scripted",
                "options": { "baseURL": format!("{}/v1", self.server.base_url()), "apiKey": "{env:OPENAI_API_KEY}" },
                "models": { "one": model.clone(), "two": model },
            } },
        })
    }

    /// Ends the provider, and sees that nothing is left.
    pub(crate) async fn end(&self, provider: &AcpProvider) {
        provider.shutdown().await;
        self.wait_until_nothing_runs(Duration::from_secs(5)).await;
    }
}

pub(crate) fn prompt(text: &str, options: AcpOptions) -> AcpInput {
    AcpInput { prompt: Some(text.to_owned()), options: Some(options), ..AcpInput::default() }
}

/// A turn in which the model runs a command by whichever tool the agent has for it.
pub(crate) fn shell(command: &str) -> inspan_model_server::Turn {
    serde_json::from_value(json!({ "blocks": [{ "type": "shell", "command": command }] })).unwrap()
}
