//! What the tests of the real Codex need around it beside what all need.

use std::path::{Path, PathBuf};

use inspan_model_server::Scenario;
use inspan_protocol::ExecutionContext;
use inspan_providers::{CodexInput, CodexOptions, CodexProvider};
use serde_json::{Value, json};

use crate::cases::RealProgram;
use crate::world::{Home, PLANTED, named};

/// One server and one home.
pub(crate) struct CodexSandbox {
    home: Home,
    program: String,
}

impl std::ops::Deref for CodexSandbox {
    type Target = Home;

    fn deref(&self) -> &Home {
        &self.home
    }
}

impl RealProgram for CodexSandbox {
    type Provider = CodexProvider;

    /// A world in which the program's configuration names the scripted server.
    fn new(scenario: Scenario) -> Self {
        let world = Self::unconfigured(scenario);
        let config = format!(
            "model = \"scripted-model\"\nmodel_provider = \"loop\"\n[model_providers.loop]\nname = \"loop\"\n\
             base_url = \"{}/v1\"\nenv_key = \"LOOP_KEY\"\nwire_api = \"responses\"\n",
            world.server.base_url()
        );
        std::fs::write(world.folder("codex/config.toml"), config).unwrap();
        world
    }

    fn context(&self) -> ExecutionContext {
        self.home.context([
            ("TMPDIR", self.text("tmp")),
            ("INSPAN_CODEX", self.program.clone()),
            ("LOOP_KEY", PLANTED.to_owned()),
        ])
    }

    fn processes(&self) -> Vec<u32> {
        self.running_with("app-server")
    }

    fn options() -> Value {
        json!({ "approvalPolicy": "never", "sandbox": "danger-full-access" })
    }
}

impl CodexSandbox {
    pub(crate) fn unconfigured(scenario: Scenario) -> Self {
        let program = named("INSPAN_E2E_CODEX");
        Self { home: Home::new(scenario, &["proj", "codex", "tmp"], ("CODEX_HOME", "codex")), program }
    }

    /// The script that npm puts on the path, which starts the native program.
    pub(crate) fn wrapper(&self) -> PathBuf {
        let modules = Path::new(&self.program).ancestors().find(|folder| folder.ends_with("node_modules"));
        modules.expect("INSPAN_E2E_CODEX lies in a folder of npm").join("@openai/codex/bin/codex.js")
    }
}

pub(crate) fn prompt(text: &str, options: CodexOptions) -> CodexInput {
    CodexInput { prompt: Some(text.to_owned()), options: Some(options), ..CodexInput::default() }
}

pub(crate) fn options(value: Value) -> CodexOptions {
    serde_json::from_value(value).unwrap()
}
