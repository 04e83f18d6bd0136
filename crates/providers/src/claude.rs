//! The provider `claude`: the real Claude Code program, driven over its stream of JSON lines.
//! Retries, validation of structured output and the turns of a run are left to those who call it.

use std::sync::Arc;

use futures::future::BoxFuture;
use futures::{StreamExt, pin_mut};
use inspan_protocol::{
    AgentError, ErrorCode, ExecutionContext, Handshake, InputProblem, Provider, ProviderCapabilities,
    ProviderDescriptor, ProviderItem, ProviderSessionId, ProviderStream, StopReason, StreamEvent,
};
use serde_json::Value;
use tokio::time::Instant;

use crate::output::TurnOutput;
use crate::pool::{Lease, Limits, Pool, within};
use crate::prompt::{self, Assistant};

mod decode;
mod error;
mod launch;
mod options;
mod outcome;
mod probe;
mod session;
#[cfg(test)]
mod tests;
mod turn;
mod wire;

pub use decode::{Decoded as ClaudeDecoded, Decoder as ClaudeDecoder, TurnEnd as ClaudeTurnEnd};
pub use options::{ClaudeInput, ClaudeOptions, PermissionMode, SettingSource};
pub use probe::{find as find_claude, probe as probe_claude};
pub use session::ClaudeSession;

use launch::{Conversation, Launch};

/// The provider's type.
const TYPE: &str = "claude";

/// Drives Claude Code. One call is one turn of one conversation; the process of a conversation is kept warm for a
/// minute between its turns, four at once at most.
#[derive(Debug)]
pub struct ClaudeProvider {
    pool: Arc<Pool<ClaudeSession>>,
}

impl ClaudeProvider {
    /// A provider without any process yet.
    pub fn new() -> Self {
        Self { pool: Pool::new(Limits::default()) }
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
            provider_type: TYPE.to_owned(),
            display_name: "Claude Code".to_owned(),
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
        let pool = Arc::clone(&self.pool);
        let stream = async_stream::try_stream! {
            let began = Instant::now();
            let options = input.options.unwrap_or_default();
            let blocks = prompt::blocks(input.prompt.as_deref(), input.messages.as_deref())?;
            let (mut context, _listening) = pool.listen(context);
            let limit = context.deadline;
            let launch = Launch::new(&options, &context)?;
            let conversation = match &options.resume {
                Some(session) => session::resumed(session)?,
                None => Conversation::New(ProviderSessionId::from(crate::ids::fresh())),
            };
            let ready = within(limit, lease(&pool, &launch, &conversation, &options, &context));
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
            yield ProviderItem::Event(StreamEvent::Session { session_id: conversation.id().clone() });
            context.deadline = limit.map(|limit| limit.saturating_sub(began.elapsed()));
            let last = {
                let session = lease.session().ok_or_else(|| AgentError::new(ErrorCode::Process, "no process"))?;
                session.send(&blocks).await?;
                let turn = session.receive(context);
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
        stream.map(|item: Result<_, AgentError>| item.map_err(|error| error.from_provider(TYPE))).boxed()
    }

    fn handshake(&self, context: ExecutionContext) -> BoxFuture<'static, Result<Handshake, AgentError>> {
        Box::pin(async move {
            // It answers the `initialize` request before it would ask a model.
            ClaudeSession::create(&ClaudeOptions::default(), &context).await?.close().await;
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
    pool: &Arc<Pool<ClaudeSession>>,
    launch: &Launch,
    conversation: &Conversation,
    options: &ClaudeOptions,
    context: &ExecutionContext,
) -> Result<Lease<ClaudeSession>, AgentError> {
    let mut lease = pool.lease(conversation.id(), launch).await?;
    match lease.session() {
        Some(session) => session.retune(options),
        None => lease.hold(ClaudeSession::open(launch, conversation, options, context).await?),
    }
    Ok(lease)
}
