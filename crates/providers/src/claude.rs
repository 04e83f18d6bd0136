//! The provider `claude`: the real Claude Code program, driven over its stream of JSON lines.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures::future::BoxFuture;
use inspan_protocol::{
    AgentError, ContentBlock, Environment, ExecutionContext, Handshake, InputProblem, Provider,
    ProviderCapabilities, ProviderDescriptor, ProviderStream, Supervisor,
};
use serde_json::Value;

use crate::output::TurnOutput;
use crate::program::info::{ProgramInfo, folder, key_in, login_in};
use crate::program::pool::Pool;
use crate::program::session::Session;
use crate::program::{self, Call};
use crate::prompt::{self, Assistant};
use crate::status::ProgramStatus;
use crate::transport::environment::Vendor;
use crate::transport::stall;

mod agent;
mod decode;
mod error;
mod launch;
mod options;
mod session;
#[cfg(test)]
mod tests;
mod wire;

pub use decode::{Decoded as ClaudeDecoded, Decoder as ClaudeDecoder, TurnEnd as ClaudeTurnEnd};
pub use options::{ClaudeInput, ClaudeOptions, PermissionMode, SettingSource};
pub use session::ClaudeSession;

use agent::{ClaudeAgent, Prompt};
use launch::Launch;

/// The program.
const PROGRAM: ProgramInfo = ProgramInfo {
    provider: "claude",
    name: "Claude Code",
    command: "claude",
    variable: "INSPAN_CLAUDE",
    hint: "install it with `npm install -g @anthropic-ai/claude-code`, or name it by the option `executable` or the \
           environment variable INSPAN_CLAUDE",
    tested_version: "2.1.197",
    vendor: Vendor::Claude,
    version_word: 0,
    login,
    log_in: Some("log in by running `claude`, or set ANTHROPIC_API_KEY"),
};

/// Where a login or key is found.
fn login(environment: &Environment) -> Option<String> {
    let keys = ["ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_OAUTH_TOKEN"];
    let clouds = ["CLAUDE_CODE_USE_BEDROCK", "CLAUDE_CODE_USE_VERTEX", "CLAUDE_CODE_USE_FOUNDRY"];
    let cloud = || clouds.into_iter().find(|name| environment.get(name).is_some());
    key_in(environment, &keys)
        .or_else(|| cloud().map(|name| format!("a cloud's own login, by {name}")))
        .or_else(|| login_in(&folder(environment, "CLAUDE_CONFIG_DIR", ".claude")?.join(".credentials.json")))
}

/// Looks for the program as a call would, asks for its version, and looks for a login. Nothing is sent anywhere.
pub async fn probe_claude(environment: &Environment, supervisor: Option<Supervisor>) -> ProgramStatus {
    PROGRAM.probe(environment, supervisor).await
}

/// Where the program is, found as a call without options would find it; it is not started.
pub fn find_claude(environment: &Environment) -> Result<PathBuf, AgentError> {
    PROGRAM.find(None, environment, None::<&Path>)
}

/// Drives Claude Code. One call is one turn of one conversation; the process of a conversation is kept warm for a
/// minute between its turns, four at once at most.
#[derive(Debug)]
pub struct ClaudeProvider {
    pool: Arc<Pool<Session<ClaudeAgent>>>,
}

impl ClaudeProvider {
    /// A provider without any process yet.
    pub fn new() -> Self {
        Self { pool: program::pool() }
    }
}

impl Default for ClaudeProvider {
    fn default() -> Self {
        Self::new()
    }
}

impl Provider for ClaudeProvider {
    type Input = ClaudeInput;
    type Output = TurnOutput;

    fn descriptor(&self) -> ProviderDescriptor {
        ProviderDescriptor {
            provider_type: PROGRAM.provider.to_owned(),
            display_name: PROGRAM.name.to_owned(),
            capabilities: ProviderCapabilities {
                streaming: true,
                structured_output: true,
                permissions: true,
                tools: true,
                host_tools: false,
                thinking: true,
                images: true,
                cost: true,
                native_steer: false,
            },
        }
    }

    fn check_input(&self, input: &Value) -> Vec<InputProblem> {
        prompt::check(input, Assistant::Refused)
    }

    fn execute(&self, input: ClaudeInput, context: ExecutionContext) -> ProviderStream<TurnOutput> {
        program::execute(&self.pool, PROGRAM.provider, context, move |context| {
            let blocks = prompt::blocks(input.prompt.as_deref(), input.messages.as_deref())?;
            call(blocks, &input.options.unwrap_or_default(), context)
        })
    }

    fn handshake(&self, context: ExecutionContext) -> BoxFuture<'static, Result<Handshake, AgentError>> {
        // The program answers `initialize` before it would ask a model.
        program::handshake::<ClaudeAgent>(context, |context| Launch::new(&ClaudeOptions::default(), context))
    }

    fn shutdown(&self) -> BoxFuture<'static, ()> {
        program::shut_down(&self.pool)
    }
}

fn call(
    blocks: Vec<ContentBlock>,
    options: &ClaudeOptions,
    context: &ExecutionContext,
) -> Result<Call<ClaudeAgent>, AgentError> {
    Ok(Call {
        launch: Launch::new(options, context)?,
        resume: options.resume.clone(),
        stall: stall(options.stall_timeout_ms),
        prompt: Prompt::new(blocks, options),
    })
}
