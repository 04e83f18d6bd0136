//! The provider `codex`: the real Codex program, driven over the JSON-RPC of its app server.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use futures::StreamExt;
use futures::future::{BoxFuture, ready};
use inspan_protocol::{
    AgentError, Environment, ErrorCode, ExecutionContext, Handshake, InputProblem, Probe, ProgramVariables,
    Provider, ProviderCapabilities, ProviderDescriptor, ProviderItem, ProviderSessionId, ProviderStream,
    Setup, StreamEvent, Supervisor,
};
use serde_json::Value;

use crate::program::info::{ProgramInfo, folder, key_in, login_in};
use crate::program::pool::Pool;
use crate::program::session::Session;
use crate::program::{self, Call};
use crate::prompt::{self, Assistant};
use crate::transport::stall;

mod agent;
mod config;
mod consent;
mod decode;
mod error;
mod launch;
mod options;
mod output;
#[cfg(test)]
mod tests;
mod thread;
mod wire;

pub use options::{ApprovalPolicy, CodexInput, CodexOptions, SandboxMode};
pub use output::CodexOutput;

use agent::{CodexAgent, Prompt};
use launch::Launch;

/// The program.
const PROGRAM: ProgramInfo = ProgramInfo {
    provider: "codex",
    name: "Codex",
    command: "codex",
    variable: "INSPAN_CODEX",
    option: "executable",
    install: "npm install -g @openai/codex",
    tested_version: "0.169.0",
    variables: ProgramVariables {
        own: &["OPENAI_*", "AZURE_OPENAI_*", "CODEX_*"],
        // A program that sees these believes that it runs inside another session.
        hidden: &["CODEX_THREAD_ID", "CODEX_SANDBOX*", "CODEX_MANAGED_*"],
    },
    keys: &["CODEX_API_KEY", "OPENAI_API_KEY"],
    // It prints `codex-cli` first.
    version_word: 1,
    login,
    log_in: Some("log in by `codex login`, or set CODEX_API_KEY or OPENAI_API_KEY"),
};

/// Where a login or key is found.
fn login(environment: &Environment) -> Option<String> {
    key_in(environment, &["CODEX_API_KEY"])
        .or_else(|| configured_login(environment))
        .or_else(|| key_in(environment, &["OPENAI_API_KEY"]))
}

/// What the program's own folder holds: a login, or a provider of models that has a key of its own.
fn configured_login(environment: &Environment) -> Option<String> {
    let folder = folder(environment, "CODEX_HOME", ".codex")?;
    if let Some(login) = login_in(&folder.join("auth.json")) {
        return Some(login);
    }
    let config = folder.join("config.toml");
    let text = std::fs::read_to_string(&config).ok()?;
    let sets = |key: &str| {
        text.lines().any(|line| {
            line.trim_start().strip_prefix(key).is_some_and(|rest| rest.trim_start().starts_with('='))
        })
    };
    (sets("model_provider") || sets("cli_auth_credentials_store"))
        .then(|| format!("as {} says", config.display()))
}

/// Drives Codex. One call is one turn of one conversation; the process of a conversation is kept warm for a minute
/// between its turns, four at once at most.
#[derive(Debug)]
pub struct CodexProvider {
    pool: Arc<Pool<Session<CodexAgent>>>,
    shown: Arc<ShownWarnings>,
}

/// Warnings about the user's machine and settings that were passed on. Every process repeats them, and once is enough.
#[derive(Debug, Default)]
struct ShownWarnings(Mutex<BTreeSet<String>>);

/// How many different ones are remembered.
const SHOWN_LIMIT: usize = 256;

impl ShownWarnings {
    /// Whether an event is to be passed on.
    fn is_new(&self, event: &StreamEvent) -> bool {
        let StreamEvent::Warning { code, message } = event else { return true };
        if code != "configWarning" {
            return true;
        }
        let mut shown = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        !shown.contains(message) && (shown.len() >= SHOWN_LIMIT || shown.insert(message.clone()))
    }
}

impl CodexProvider {
    /// A provider without any process yet.
    pub fn new() -> Self {
        Self { pool: program::pool(), shown: Arc::default() }
    }
}

impl Default for CodexProvider {
    fn default() -> Self {
        Self::new()
    }
}

impl Provider for CodexProvider {
    type Input = CodexInput;
    type Output = CodexOutput;

    fn descriptor(&self) -> ProviderDescriptor {
        ProviderDescriptor {
            provider_type: PROGRAM.provider.to_owned(),
            display_name: PROGRAM.name.to_owned(),
            capabilities: ProviderCapabilities {
                streaming: true,
                structured_output: true,
                permissions: true,
                tools: false,
                host_tools: false,
                thinking: true,
                images: true,
                cost: false,
                native_steer: true,
            },
        }
    }

    fn check_input(&self, input: &Value) -> Vec<InputProblem> {
        prompt::check(input, Assistant::Refused)
    }

    fn setup(&self) -> Setup {
        PROGRAM.setup()
    }

    fn check_setup(&self, environment: &Environment) -> Result<(), AgentError> {
        PROGRAM.find(None, environment, None).map(drop)
    }

    fn probe(&self, environment: &Environment, supervisor: Option<Supervisor>) -> BoxFuture<'static, Probe> {
        let environment = environment.clone();
        Box::pin(async move { Probe::Program(PROGRAM.probe(&environment, supervisor).await) })
    }

    fn execute(&self, input: CodexInput, context: ExecutionContext) -> ProviderStream<CodexOutput> {
        let shown = Arc::clone(&self.shown);
        let stream =
            program::execute(&self.pool, PROGRAM.provider, context, move |context| call(input, context));
        let own = move |item| {
            ready(match item {
                Ok(ProviderItem::Event(event)) => {
                    shown.is_new(&event).then_some(Ok(ProviderItem::Event(event)))
                }
                Ok(ProviderItem::Output(output)) => Some(Ok(ProviderItem::Output(CodexOutput::new(output)))),
                Err(error) => Some(Err(error)),
            })
        };
        stream.filter_map(own).boxed()
    }

    fn handshake(&self, context: ExecutionContext) -> BoxFuture<'static, Result<Handshake, AgentError>> {
        program::handshake::<CodexAgent>(context, |context| Launch::new(&CodexOptions::default(), context))
    }

    fn shutdown(&self) -> BoxFuture<'static, ()> {
        program::shut_down(&self.pool)
    }
}

fn call(input: CodexInput, context: &ExecutionContext) -> Result<Call<CodexAgent>, AgentError> {
    let resume = earlier(&input)?;
    let options = input.options.unwrap_or_default();
    let blocks = prompt::blocks(input.prompt.as_deref(), input.messages.as_deref())?;
    Ok(Call {
        prompt: Prompt::new(wire::user_input(&blocks)?, &options),
        launch: Launch::new(&options, context)?,
        stall: stall(options.stall_timeout_ms),
        resume,
    })
}

/// The conversation to continue.
fn earlier(input: &CodexInput) -> Result<Option<ProviderSessionId>, AgentError> {
    let resume = input.options.as_ref().and_then(|options| options.resume.clone());
    match (input.session_token.clone(), resume) {
        (Some(token), Some(resume)) if token != resume => {
            let message = "`sessionToken` and `options.resume` name two conversations; give one of them";
            Err(AgentError::new(ErrorCode::ConfigInvalid, message))
        }
        (token, resume) => Ok(token.or(resume)),
    }
}
