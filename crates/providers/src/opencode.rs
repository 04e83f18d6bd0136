//! The provider `opencode`: the real OpenCode program, driven as a server on loopback with its stream of events.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use inspan_protocol::{
    AgentError, Environment, ExecutionContext, Handshake, InputProblem, Provider, ProviderCapabilities,
    ProviderDescriptor, ProviderStream, Supervisor,
};
use serde_json::Value;

use crate::output::TurnOutput;
use crate::program::info::{ProgramInfo, key_in, login_in};
use crate::program::pool::{Limits, Pool};
use crate::program::session::Session;
use crate::program::{self, Call};
use crate::prompt::{self, Assistant};
use crate::status::ProgramStatus;
use crate::transport::environment::Vendor;
use crate::transport::stall;

mod agent;
mod consent;
mod decode;
mod error;
mod launch;
mod options;
mod request;
mod rules;
mod server;
#[cfg(test)]
mod tests;
mod wire;

pub use options::{OpenCodeInput, OpenCodeOptions};

use agent::{OpenCodeAgent, Prompt};
use launch::Launch;

/// How long a server is kept after a turn. An idle one holds some 600 MB and saves the next turn three seconds.
const WARM_FOR: Duration = Duration::from_secs(30);
/// Servers kept at once.
const WARM_LIMIT: usize = 2;

/// The program.
const PROGRAM: ProgramInfo = ProgramInfo {
    provider: "opencode",
    name: "OpenCode",
    command: "opencode",
    variable: "INSPAN_OPENCODE",
    hint: "install it with `npm install -g opencode-ai`, or name it by the option `executable` or the environment \
           variable INSPAN_OPENCODE",
    tested_version: "1.18.33",
    vendor: Vendor::OpenCode,
    version_word: 0,
    login,
    // It has models that need no key, and its settings may name others.
    log_in: None,
};

/// Where a login or key is found.
fn login(environment: &Environment) -> Option<String> {
    let home = || Some(Path::new(environment.get("HOME")?).join(".local/share"));
    let data = || environment.get("XDG_DATA_HOME").map(PathBuf::from).or_else(home);
    let keys =
        ["ANTHROPIC_API_KEY", "OPENAI_API_KEY", "OPENROUTER_API_KEY", "GEMINI_API_KEY", "OPENCODE_API_KEY"];
    key_in(environment, &["OPENCODE_AUTH_CONTENT"])
        .or_else(|| login_in(&data()?.join("opencode/auth.json")))
        .or_else(|| key_in(environment, &keys))
}

/// Looks for the program as a call would, asks for its version, and looks for a login. Nothing is sent anywhere.
pub async fn probe_opencode(environment: &Environment, supervisor: Option<Supervisor>) -> ProgramStatus {
    PROGRAM.probe(environment, supervisor).await
}

/// Where the program is, found as a call without options would find it; it is not started.
pub fn find_opencode(environment: &Environment) -> Result<PathBuf, AgentError> {
    PROGRAM.find(None, environment, None)
}

/// Drives OpenCode. One call is one turn of one conversation; the server of a conversation is kept warm for half a
/// minute between its turns, two at once at most.
#[derive(Debug)]
pub struct OpenCodeProvider {
    pool: Arc<Pool<Session<OpenCodeAgent>>>,
}

impl OpenCodeProvider {
    /// A provider without any server yet.
    pub fn new() -> Self {
        Self { pool: Pool::new(Limits { warm_for: WARM_FOR, warm: WARM_LIMIT, ..Limits::default() }) }
    }
}

impl Default for OpenCodeProvider {
    fn default() -> Self {
        Self::new()
    }
}

impl Provider for OpenCodeProvider {
    type Input = OpenCodeInput;
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
                thinking: false,
                images: true,
                cost: true,
                native_steer: false,
            },
        }
    }

    fn check_input(&self, input: &Value) -> Vec<InputProblem> {
        prompt::check(input, Assistant::Refused)
    }

    fn execute(&self, input: OpenCodeInput, context: ExecutionContext) -> ProviderStream<TurnOutput> {
        program::execute(&self.pool, PROGRAM.provider, context, move |context| {
            let options = input.options.unwrap_or_default();
            let blocks = prompt::blocks(input.prompt.as_deref(), input.messages.as_deref())?;
            Ok(Call {
                prompt: Prompt {
                    message: request::prompt(&blocks, &options)?,
                    title: request::title(&blocks),
                    max_turns: options.max_turns,
                },
                launch: Launch::new(&options, context)?,
                stall: stall(options.stall_timeout_ms),
                resume: options.resume,
            })
        })
    }

    fn handshake(&self, context: ExecutionContext) -> BoxFuture<'static, Result<Handshake, AgentError>> {
        program::handshake::<OpenCodeAgent>(context, |context| {
            Launch::new(&OpenCodeOptions::default(), context)
        })
    }

    fn shutdown(&self) -> BoxFuture<'static, ()> {
        program::shut_down(&self.pool)
    }
}
