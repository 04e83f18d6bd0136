//! The providers `acp`, `droid`, `gemini` and `qwen`: agents driven over the Agent Client Protocol, version 1, by the stdin and
//! stdout of their programs. Retries, validation of structured output and the turns of a run are left to those who
//! call them.

use std::sync::Arc;

use futures::future::BoxFuture;
use futures::{StreamExt, pin_mut};
use inspan_protocol::{
    AgentError, ErrorCode, ExecutionContext, Handshake, InputProblem, Provider, ProviderCapabilities,
    ProviderDescriptor, ProviderItem, ProviderStream, StopReason, StreamEvent,
};
use serde_json::Value;
use tokio::time::Instant;

use crate::instructed;
use crate::output::TurnOutput;
use crate::pool::{Lease, Limits, Pool, within};
use crate::prompt::{self, Assistant};
use crate::transport::stall;

mod decode;
mod error;
mod files;
mod launch;
mod link;
mod options;
mod outcome;
mod permission;
mod preset;
mod probe;
mod session;
mod terminals;
#[cfg(test)]
mod tests;
mod turn;
mod wire;

pub use options::{AcpInput, AcpOptions};
pub use probe::{find as find_acp, probe as probe_acp};

use launch::Launch;
use link::Link;
use outcome::Form;
use permission::Policy;
use preset::Preset;
use session::{AcpSession, Commands};
use turn::Manner;

/// Drives an agent over the Agent Client Protocol. One call is one turn of one conversation; the process of a
/// conversation is kept warm for a minute between its turns, four at once at most.
#[derive(Debug)]
pub struct AcpProvider {
    preset: &'static Preset,
    pool: Arc<Pool<AcpSession>>,
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
        Self { preset, pool: Pool::new(Limits::default()) }
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
                // The two agents that were seen say it; nobody knows of the others.
                cost: self.preset.program.is_none(),
                native_steer: false,
            },
        }
    }

    fn check_input(&self, input: &Value) -> Vec<InputProblem> {
        prompt::check(input, Assistant::Refused)
    }

    fn execute(&self, input: AcpInput, context: ExecutionContext) -> ProviderStream<TurnOutput> {
        let pool = Arc::clone(&self.pool);
        let preset = self.preset;
        let stream = async_stream::try_stream! {
            let began = Instant::now();
            let options = input.options.unwrap_or_default();
            let blocks = prompt::blocks(input.prompt.as_deref(), input.messages.as_deref())?;
            let (mut context, _listening) = pool.listen(context);
            let limit = context.deadline;
            let launch = Launch::new(preset, &options, &context)?;
            let ready = within(limit, lease(&pool, &launch, &options, &context));
            let cancel = context.cancel.clone();
            let Some(ready) = cancel.run_until_cancelled(ready).await else {
                yield ProviderItem::Output(TurnOutput {
                    session_id: options.resume,
                    duration_ms: began.elapsed().as_millis().try_into().unwrap_or(u64::MAX),
                    ..TurnOutput::new(StopReason::Aborted)
                });
                return;
            };
            let mut lease = ready?;
            let missing = || AgentError::new(ErrorCode::Process, "no process");
            let session_id = lease.session().ok_or_else(missing)?.id().clone();
            yield ProviderItem::Event(StreamEvent::Session { session_id });
            context.deadline = limit.map(|limit| limit.saturating_sub(began.elapsed()));
            let last = {
                let session = lease.session().ok_or_else(missing)?;
                let commands = if options.expand_prompt == Some(true) { Commands::Wanted } else { Commands::No };
                let instruction = options.output_schema.as_ref().map(instructed::instruction);
                let manner = Manner {
                    stall: stall(options.stall_timeout_ms),
                    form: if instruction.is_some() { Form::Json } else { Form::Text },
                    policy: Policy::new(&options),
                };
                session.send(&blocks, commands, instruction).await?;
                let turn = session.receive(context, manner);
                pin_mut!(turn);
                loop {
                    match turn.next().await {
                        Some(Ok(ProviderItem::Event(event))) => yield ProviderItem::Event(event),
                        Some(last) => break last,
                        None => break Err(AgentError::new(ErrorCode::Protocol, "the turn ended without its end")),
                    }
                }
            };
            // Before the last item: whoever reads it may not read on.
            lease.give_back(launch);
            yield last?;
        };
        stream
            .map(|item: Result<_, AgentError>| item.map_err(|error| error.from_provider(preset.provider)))
            .boxed()
    }

    fn handshake(&self, context: ExecutionContext) -> BoxFuture<'static, Result<Handshake, AgentError>> {
        let preset = self.preset;
        Box::pin(async move {
            // Which agent it would be, each call says.
            if preset.program.is_none() {
                return Ok(Handshake::Nobody);
            }
            let launch = Launch::new(preset, &AcpOptions::default(), &context)?;
            Link::meet(&launch, &context).await?;
            Ok(Handshake::Vendor)
        })
    }

    fn shutdown(&self) -> BoxFuture<'static, ()> {
        let pool = Arc::clone(&self.pool);
        Box::pin(async move { pool.shut_down().await })
    }
}

/// A session of the conversation that is ready for a turn: the warm one, or a new process.
async fn lease(
    pool: &Arc<Pool<AcpSession>>,
    launch: &Launch,
    options: &AcpOptions,
    context: &ExecutionContext,
) -> Result<Lease<AcpSession>, AgentError> {
    match &options.resume {
        Some(id) => {
            let mut lease = pool.lease(id, launch).await?;
            if lease.session().is_none() {
                lease.hold(AcpSession::open(launch, Some(id), context).await?);
            }
            Ok(lease)
        }
        None => {
            let mut lease = pool.lease_unnamed(launch).await?;
            let session = AcpSession::open(launch, None, context).await?;
            lease.name(session.id().clone());
            lease.hold(session);
            Ok(lease)
        }
    }
}
