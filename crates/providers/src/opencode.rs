//! The provider `opencode`: the real OpenCode program, driven as a server on loopback with its stream of events.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use inspan_protocol::{
    AgentError, Environment, ExecutionContext, Handshake, InputProblem, Probe, ProgramVariables, Provider,
    ProviderCapabilities, ProviderDescriptor, ProviderStream, Setup, Supervisor,
};
use serde_json::Value;

use crate::output::TurnOutput;
use crate::program::info::{ProgramInfo, key_in, login_in};
use crate::program::pool::{Limits, Pool};
use crate::program::session::Session;
use crate::program::{self, Call};
use crate::prompt::{self, Assistant};
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
    option: "executable",
    install: "npm install -g opencode-ai",
    tested_version: "1.18.33",
    variables: ProgramVariables {
        // It calls the models of many vendors, and so may see their keys.
        own: &[
            "OPENCODE_*",
            "ANTHROPIC_*",
            "OPENAI_*",
            "AZURE_OPENAI_*",
            "GEMINI_*",
            "GOOGLE_API_KEY",
            "GOOGLE_GENERATIVE_AI_API_KEY",
            "OPENROUTER_API_KEY",
            "MISTRAL_API_KEY",
            "GROQ_API_KEY",
            "XAI_API_KEY",
            "DEEPSEEK_API_KEY",
            "COHERE_API_KEY",
            "TOGETHER_API_KEY",
            "FIREWORKS_API_KEY",
            "PERPLEXITY_API_KEY",
            "HF_TOKEN",
        ],
        // They are about another server, or would loosen the rules that this one is given.
        hidden: &["OPENCODE_SERVER_*", "OPENCODE_PERMISSION", "OPENCODE_PID"],
    },
    keys: &[],
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
