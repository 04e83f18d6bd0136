//! What the tests of the real Codex need around it beside what all need.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use futures::FutureExt;
use futures::future::BoxFuture;
use inspan_model_server::{Scenario, Turn};
use inspan_protocol::{ExecutionContext, Steering};
use inspan_providers::{CodexInput, CodexOptions, CodexProvider};
use serde_json::Value;

use crate::{Answers, PLANTED, RealSandbox, asking, named};

/// One server and one home for the program.
pub(crate) struct CodexSandbox {
    shared: RealSandbox,
    program: String,
}

impl std::ops::Deref for CodexSandbox {
    type Target = RealSandbox;

    fn deref(&self) -> &RealSandbox {
        &self.shared
    }
}

impl CodexSandbox {
    /// One in which the program's configuration names the scripted server.
    pub(crate) fn new(scenario: Scenario) -> Self {
        let sandbox = Self::unconfigured(scenario);
        let config = format!(
            "model = \"scripted-model\"\nmodel_provider = \"loop\"\n[model_providers.loop]\nname = \"loop\"\n\
             base_url = \"{}/v1\"\nenv_key = \"LOOP_KEY\"\nwire_api = \"responses\"\n",
            sandbox.server.base_url()
        );
        std::fs::write(sandbox.folder("codex/config.toml"), config).unwrap();
        sandbox
    }

    pub(crate) fn unconfigured(scenario: Scenario) -> Self {
        let program = named("INSPAN_E2E_CODEX");
        Self {
            shared: RealSandbox::new(scenario, &["proj", "codex", "tmp"], ("CODEX_HOME", "codex")),
            program,
        }
    }

    /// The script that npm puts on the path, which starts the native program.
    pub(crate) fn wrapper(&self) -> PathBuf {
        let modules = Path::new(&self.program).ancestors().find(|folder| folder.ends_with("node_modules"));
        modules.expect("INSPAN_E2E_CODEX lies in a folder of npm").join("@openai/codex/bin/codex.js")
    }

    pub(crate) fn context(&self) -> ExecutionContext {
        self.shared.context([
            ("TMPDIR", self.text("tmp")),
            ("INSPAN_CODEX", self.program.clone()),
            ("LOOP_KEY", PLANTED.to_owned()),
        ])
    }

    pub(crate) fn context_asking(&self, answers: Answers) -> ExecutionContext {
        asking(self.context(), answers)
    }

    /// The numbers of the running programs, without what they run themselves.
    pub(crate) fn processes(&self) -> Vec<u32> {
        self.running_with("app-server")
    }
}

pub(crate) fn prompt(text: &str, options: CodexOptions) -> CodexInput {
    CodexInput { prompt: Some(text.to_owned()), options: Some(options), ..CodexInput::default() }
}

pub(crate) fn options(value: Value) -> CodexOptions {
    serde_json::from_value(value).unwrap()
}

/// A sandbox whose model answers so, and a provider.
pub(crate) fn start<const N: usize>(turns: [Turn; N]) -> (CodexSandbox, CodexProvider) {
    (CodexSandbox::new(Scenario::of(turns)), CodexProvider::new())
}

/// The texts of the user and the model in a request, without what the program adds about its surroundings.
pub(crate) fn said(request: &Value) -> Vec<&str> {
    let items = request["input"].as_array().into_iter().flatten();
    let texts = items
        .filter(|item| matches!(item["role"].as_str(), Some("user" | "assistant")))
        .flat_map(|item| item["content"].as_array().into_iter().flatten())
        .filter_map(|part| part["text"].as_str());
    texts.filter(|text| !text.starts_with('<') && !text.starts_with("# AGENTS.md")).collect()
}

/// Sends one message, once it is released.
pub(crate) struct OneMessage(
    pub(crate) Mutex<Option<String>>,
    pub(crate) tokio_util::sync::CancellationToken,
);

impl Steering for OneMessage {
    fn next(&self) -> BoxFuture<'static, String> {
        let message = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        let now = self.1.clone();
        async move {
            now.cancelled().await;
            match message {
                Some(message) => message,
                None => std::future::pending().await,
            }
        }
        .boxed()
    }
}
