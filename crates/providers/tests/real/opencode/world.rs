//! What the tests of the real OpenCode need around it beside what all need.

use inspan_model_server::Scenario;
use inspan_protocol::ExecutionContext;
use inspan_providers::{OpenCodeInput, OpenCodeOptions, OpenCodeProvider};
use serde_json::json;

use crate::cases::RealProgram;
use crate::world::{Home, PLANTED, named};

/// One server and one home.
pub(crate) struct OpenCodeSandbox {
    home: Home,
    program: String,
}

/// The formats of the scripted server.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Format {
    Messages,
    Responses,
    Chat,
}

impl std::ops::Deref for OpenCodeSandbox {
    type Target = Home;

    fn deref(&self) -> &Home {
        &self.home
    }
}

impl RealProgram for OpenCodeSandbox {
    type Provider = OpenCodeProvider;

    fn new(scenario: Scenario) -> Self {
        let program = named("INSPAN_E2E_OPENCODE");
        let home = Home::new(scenario, &["proj", "tmp", ".config/opencode"], ("HOME", ""));
        let world = Self { home, program };
        world.settings(Format::Messages);
        world
    }

    fn context(&self) -> ExecutionContext {
        self.home.context([
            ("TMPDIR", self.text("tmp")),
            ("INSPAN_OPENCODE", self.program.clone()),
            ("PLANTED_API_KEY", PLANTED.to_owned()),
            // The list of models and the language servers would come from the net.
            ("OPENCODE_DISABLE_MODELS_FETCH", "1".to_owned()),
            ("OPENCODE_DISABLE_LSP_DOWNLOAD", "1".to_owned()),
            ("OPENCODE_DISABLE_DEFAULT_PLUGINS", "1".to_owned()),
        ])
    }

    fn processes(&self) -> Vec<u32> {
        self.running_with(" serve ")
    }
}

impl OpenCodeSandbox {
    /// Writes the user's settings file: one provider, which is the scripted server in one of its formats.
    pub(crate) fn settings(&self, format: Format) {
        let address = self.server.base_url();
        let npm = match format {
            Format::Messages => "@ai-sdk/anthropic",
            Format::Responses => "@ai-sdk/openai",
            Format::Chat => "@ai-sdk/openai-compatible",
        };
        let model = json!({
            "name": "Scripted", "limit": { "context": 200_000, "output": 8192 },
            "cost": { "input": 3, "output": 15 }, "tool_call": true, "reasoning": true, "attachment": true,
            "modalities": { "input": ["text", "image"], "output": ["text"] },
        });
        let settings = json!({
            "model": "loop/scripted-model", "small_model": "loop/scripted-model", "enabled_providers": ["loop"],
            // What a settings file allows is asked about anyway.
            "permission": { "*": "allow", "bash": "allow" },
            "provider": { "loop": {
                "npm": npm, "name": "loop", "models": { "scripted-model": model },
                "options": { "baseURL": format!("{address}/v1"), "apiKey": "{env:PLANTED_API_KEY}" },
            } },
        });
        std::fs::write(self.folder(".config/opencode/opencode.json"), settings.to_string()).unwrap();
    }

    /// Starts another script.
    pub(crate) fn script(&self, scenario: Scenario) {
        self.server.replace(scenario).unwrap();
    }

    /// Kills the running servers as the system would.
    pub(crate) fn kill(&self) {
        for pid in self.processes() {
            let killed = std::process::Command::new("kill").args(["-9", &pid.to_string()]).status();
            assert!(killed.unwrap().success());
        }
    }
}

pub(crate) fn prompt(text: &str, options: OpenCodeOptions) -> OpenCodeInput {
    OpenCodeInput { prompt: Some(text.to_owned()), options: Some(options), ..OpenCodeInput::default() }
}
