//! The provider `codex`: the real Codex program, driven over the JSON-RPC of its app server.

use inspan_protocol::{
    AgentError, Environment, ExecutionContext, ModelServerAddress, ModelSettings, ProgramVariables,
    ProviderCapabilities, ProviderSessionId,
};

use crate::error::invalid;
use crate::input;
use crate::input::stall;
use crate::output::vendor_output;
use crate::program::info::{ProgramInfo, folder, key_in, login_in};
use crate::program::{Call, program_provider};

mod agent;
mod config;
mod consent;
mod decode;
mod error;
mod launch;
mod options;
#[cfg(test)]
mod tests;
mod thread;
mod wire;

pub use options::{ApprovalPolicy, CodexInput, CodexOptions, SandboxMode};

use agent::{CodexAgent, CodexPrompt};
use launch::CodexLaunch;

/// The program.
const PROGRAM: ProgramInfo = ProgramInfo {
    provider: "codex",
    name: "Codex",
    command: "codex",
    variable: "INSPAN_CODEX",
    option: "executable",
    install: "npm install -g @openai/codex",
    tested_version: "0.171.0",
    variables: ProgramVariables {
        own: &["OPENAI_*", "AZURE_OPENAI_*", "CODEX_*"],
        // A program that sees these assumes that it runs inside another session.
        hidden: &["CODEX_THREAD_ID", "CODEX_SANDBOX*", "CODEX_MANAGED_*"],
    },
    keys: &["CODEX_API_KEY", "OPENAI_API_KEY"],
    // It prints `codex-cli` first.
    version_word: 1,
    login,
    log_in: Some("log in by `codex login`, or set CODEX_API_KEY or OPENAI_API_KEY"),
    vendor: Some("openai"),
    model_settings: Some(model_settings),
};

/// Where a login or key is found.
fn login(environment: &Environment) -> Option<String> {
    key_in(environment, &["CODEX_API_KEY"])
        .or_else(|| configured_login(environment))
        .or_else(|| key_in(environment, &["OPENAI_API_KEY"]))
}

/// What the program's own folder holds: a login, or a provider of models with its own key.
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

/// Its key comes from `OPENAI_API_KEY`. It does not retry by itself.
fn model_settings(server: &ModelServerAddress<'_>) -> ModelSettings {
    let config = format!(
        r#"model = "scripted-model"
model_provider = "scripted"
check_for_update_on_startup = false

[analytics]
enabled = false

[feedback]
enabled = false

[otel]
exporter = "none"

[features]
unbounded_connection_retries = false

[model_providers.scripted]
name = "scripted"
base_url = "{}/v1"
env_key = "OPENAI_API_KEY"
wire_api = "responses"
requires_openai_auth = false
supports_websockets = false
request_max_retries = 0
stream_max_retries = 0
"#,
        server.base
    );
    ModelSettings {
        folder: "CODEX_HOME",
        file: "config.toml",
        content: config.into(),
        variable: None,
        is_needed: true,
    }
}

vendor_output! {
    /// The end of one turn: what every provider gives, and the same again under the names that belong to Codex.
    CodexOutput {
        /// The answer; the same as `text`.
        code,
        /// The conversation, to continue; the same as `sessionId`.
        session_token
    }
}

program_provider! {
    /// Drives Codex. One call is one turn of one conversation; the process of a conversation stays warm for a minute
    /// between its turns, four at once at most.
    CodexProvider for CodexAgent, CodexInput => CodexOutput, PROGRAM, ProviderCapabilities {
        streaming: true,
        structured_output: true,
        permissions: true,
        tools: false,
        host_tools: false,
        thinking: true,
        images: true,
        cost: false,
        fork: true,
        forgets_cut_turns: false,
        native_steer: true,
    }, call
}

fn call(input: CodexInput, context: &ExecutionContext) -> Result<Call<CodexAgent>, AgentError> {
    let resume = earlier(&input)?;
    let options = input.options.unwrap_or_default();
    let blocks = input::blocks(input.prompt.as_deref(), input.messages.as_deref())?;
    Ok(Call {
        prompt: CodexPrompt::new(wire::user_input(&blocks)?, &options),
        launch: CodexLaunch::new(&options, context)?,
        stall: stall(options.stall_timeout_ms),
        resume,
        fork: options.fork == Some(true),
        fork_at: options.fork_at,
    })
}

/// The conversation to continue.
fn earlier(input: &CodexInput) -> Result<Option<ProviderSessionId>, AgentError> {
    let resume = input.options.as_ref().and_then(|options| options.resume.clone());
    match (input.session_token.clone(), resume) {
        (Some(token), Some(resume)) if token != resume => {
            Err(invalid("`sessionToken` and `options.resume` name two conversations; give one of them"))
        }
        (token, resume) => Ok(token.or(resume)),
    }
}
