//! The providers `acp`, `droid`, `gemini` and `qwen`: agents driven over the Agent Client Protocol, version 1, by the
//! stdin and stdout of their programs.

use inspan_protocol::{
    AgentError, Environment, ExecutionContext, Handshake, InputProblem, Probe, Provider,
    ProviderCapabilities, ProviderDescriptor, ProviderStream, Setup, Supervisor,
};
use serde_json::Value;

use crate::input::stall;
use crate::input::{self, Assistant};
use crate::output::TurnOutput;
use crate::program::{Call, ProgramProvider};

mod agent;
mod choices;
mod decode;
mod error;
mod files;
mod launch;
mod options;
mod permission;
mod preset;
mod prompt;
mod service;
mod session;
mod terminals;
#[cfg(test)]
mod tests;
mod wire;

pub use options::{AcpInput, AcpOptions};

use agent::{AcpAgent, AcpPrompt};
use launch::AcpLaunch;
use preset::Preset;

/// Drives an agent over the Agent Client Protocol. One call is one turn of one conversation; the process of a
/// conversation stays warm for a minute between its turns, four at once at most.
#[derive(Debug)]
pub struct AcpProvider {
    preset: &'static Preset,
    programs: ProgramProvider<AcpAgent>,
}

impl AcpProvider {
    /// The provider `acp`: any agent, whose program each call names. It has no process yet.
    pub fn new() -> Self {
        Self::of(&preset::ANY)
    }

    /// The provider `droid`: Factory's Droid.
    pub fn droid() -> Self {
        Self::of(&preset::DROID)
    }

    /// The provider `gemini`: Google's Gemini CLI.
    pub fn gemini() -> Self {
        Self::of(&preset::GEMINI)
    }

    /// The provider `qwen`: Qwen Code.
    pub fn qwen() -> Self {
        Self::of(&preset::QWEN)
    }

    fn of(preset: &'static Preset) -> Self {
        Self { preset, programs: ProgramProvider::new() }
    }
}

impl Default for AcpProvider {
    fn default() -> Self {
        Self::new()
    }
}

impl Provider for AcpProvider {
    type Input = AcpInput;
    type Output = TurnOutput;

    fn descriptor(&self) -> ProviderDescriptor {
        ProviderDescriptor {
            provider_type: self.preset.provider.to_owned(),
            display_name: self.preset.name.to_owned(),
            capabilities: ProviderCapabilities {
                streaming: true,
                structured_output: true,
                permissions: true,
                tools: true,
                host_tools: false,
                thinking: true,
                images: true,
                // The two agents that were tested report it; nothing is known of the others.
                cost: self.preset.program.is_none(),
                // Of the three that have their own provider none offers it; an agent of `acp` may.
                fork: self.preset.program.is_none(),
                forgets_cut_turns: self.preset.forgets_cut_turns,
                native_steer: false,
            },
        }
    }

    fn check_input(&self, input: &Value) -> Vec<InputProblem> {
        input::check(input, Assistant::Refused)
    }

    fn setup(&self) -> Setup {
        self.preset.setup()
    }

    fn check_setup(&self, environment: &Environment) -> Result<(), AgentError> {
        self.preset.program.map_or(Ok(()), |program| program.find(None, environment, None).map(drop))
    }

    async fn probe(&self, environment: &Environment, supervisor: Option<Supervisor>) -> Probe {
        match self.preset.program {
            Some(program) => Probe::Program(program.probe(environment, supervisor).await),
            None => Probe::BuiltIn,
        }
    }

    fn execute(&self, input: AcpInput, context: ExecutionContext) -> ProviderStream<TurnOutput> {
        let preset = self.preset;
        self.programs.execute(preset.provider, context, move |context| {
            let options = input.options.unwrap_or_default();
            let blocks = input::blocks(input.prompt.as_deref(), input.messages.as_deref())?;
            Ok(Call {
                launch: AcpLaunch::new(preset, &options, context)?,
                stall: stall(options.stall_timeout_ms),
                prompt: AcpPrompt::new(blocks, &options),
                resume: options.resume,
                fork: options.fork == Some(true),
                fork_at: None,
            })
        })
    }

    async fn handshake(&self, context: ExecutionContext) -> Result<Handshake, AgentError> {
        let preset = self.preset;
        // Each call of `acp` names its own agent.
        if preset.program.is_none() {
            return Ok(Handshake::Nobody);
        }
        self.programs
            .handshake(context, |context| AcpLaunch::new(preset, &AcpOptions::default(), context))
            .await
    }

    async fn shutdown(&self) {
        self.programs.shut_down().await;
    }
}
