//! The provider `opencode`: the real OpenCode program, driven as a server on loopback with its stream of events.
//! Retries, validation of structured output and the turns of a run are left to those who call it.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::future::BoxFuture;
use inspan_protocol::{
    AgentError, ErrorCode, ExecutionContext, Handshake, InputProblem, Provider, ProviderCapabilities,
    ProviderDescriptor, ProviderItem, ProviderSessionId, ProviderStream, StopReason, StreamEvent,
};
use serde_json::Value;
use tokio::time::Instant;

use crate::output::TurnOutput;
use crate::pool::{Lease, Limits, Pool, Session, within};
use crate::prompt::{self, Assistant};
use crate::transport::stall;

mod decode;
mod error;
mod launch;
mod options;
mod outcome;
mod probe;
mod request;
mod rules;
mod server;
#[cfg(test)]
mod tests;
mod turn;
mod wire;

pub use options::{OpenCodeInput, OpenCodeOptions};
pub use probe::{find as find_opencode, probe as probe_opencode};

use error::unknown_session;
use launch::Launch;
use server::{Server, is_id};
use turn::{Bounds, NotBegun, Turn};

/// The provider's type.
const TYPE: &str = "opencode";
/// How long a server is kept after a turn. An idle one holds some 600 MB and saves the next turn three seconds.
const WARM_FOR: Duration = Duration::from_secs(30);
/// Servers kept at once.
const WARM_LIMIT: usize = 2;

/// Drives OpenCode. One call is one turn of one conversation; the server of a conversation is kept warm for half a
/// minute between its turns, two at once at most.
#[derive(Debug)]
pub struct OpenCodeProvider {
    pool: Arc<Pool<Server>>,
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
            provider_type: TYPE.to_owned(),
            display_name: "OpenCode".to_owned(),
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
        let pool = Arc::clone(&self.pool);
        let stream = async_stream::try_stream! {
            let began = Instant::now();
            let options = input.options.unwrap_or_default();
            let blocks = prompt::blocks(input.prompt.as_deref(), input.messages.as_deref())?;
            let message = request::prompt(&blocks, &options)?;
            let (mut context, _listening) = pool.listen(context);
            let limit = context.deadline;
            let launch = Launch::new(&options, &context)?;
            let bounds = Bounds {
                stall: stall(options.stall_timeout_ms),
                steps: options.max_turns,
            };
            let finish = |output: TurnOutput| ProviderItem::Output(TurnOutput {
                duration_ms: began.elapsed().as_millis().try_into().unwrap_or(u64::MAX),
                ..output
            });
            let aborted = |session| TurnOutput { session_id: session, ..TurnOutput::new(StopReason::Aborted) };
            let title = request::title(&blocks);
            let ready = within(limit, lease(&pool, &launch, options.resume.as_ref(), &title, &context));
            let cancel = context.cancel.clone();
            let Some(ready) = cancel.run_until_cancelled(ready).await else {
                yield finish(aborted(options.resume));
                return;
            };
            let (mut lease, session) = ready?;
            yield ProviderItem::Event(StreamEvent::Session { session_id: session.clone() });
            if let Some(directory) = lease.session().and_then(|server| server.elsewhere(&launch)) {
                let message = format!("the conversation stays in the directory in which it was begun, {directory}");
                yield ProviderItem::Event(StreamEvent::Warning { code: "otherDirectory".to_owned(), message });
            }
            context.deadline = limit.map(|limit| limit.saturating_sub(began.elapsed()));
            let last = {
                let server = lease.session().ok_or_else(|| AgentError::new(ErrorCode::Process, "no process"))?;
                match Turn::begin(server, &session, &message, context, bounds).await {
                    Err(NotBegun::Cancelled) => Ok(aborted(Some(session.clone()))),
                    Err(NotBegun::Failed(error)) => Err(error),
                    Ok(mut turn) => loop {
                        match turn.next(server).await {
                            Ok(ProviderItem::Event(event)) => yield ProviderItem::Event(event),
                            Ok(ProviderItem::Output(output)) => break Ok(output),
                            Err(error) => break Err(error),
                        }
                    },
                }
            };
            // Before the last item: whoever reads it may not read on.
            lease.give_back(launch);
            yield finish(last.map_err(|error: AgentError| error.with("sessionId", session.as_str()))?);
        };
        stream.map(|item: Result<_, AgentError>| item.map_err(|error| error.from_provider(TYPE))).boxed()
    }

    fn handshake(&self, context: ExecutionContext) -> BoxFuture<'static, Result<Handshake, AgentError>> {
        Box::pin(async move {
            let launch = Launch::new(&OpenCodeOptions::default(), &context)?;
            Server::start(&launch, &context).await?.end().await;
            Ok(Handshake::Vendor)
        })
    }

    fn shutdown(&self) -> BoxFuture<'static, ()> {
        let pool = Arc::clone(&self.pool);
        Box::pin(async move { pool.shut_down().await })
    }
}

/// A server of the conversation that is ready for a turn: the warm one, or a new one.
async fn lease(
    pool: &Pool<Server>,
    launch: &Launch,
    resume: Option<&ProviderSessionId>,
    title: &str,
    context: &ExecutionContext,
) -> Result<(Lease<Server>, ProviderSessionId), AgentError> {
    let mut lease = match resume {
        Some(id) if !is_id(id.as_str()) => return Err(unknown_session(id.as_str())),
        Some(id) => pool.lease(id, launch).await?,
        None => pool.lease_unnamed(launch).await?,
    };
    let id = match (resume, lease.session().is_some()) {
        (Some(id), true) => id.clone(),
        _ => {
            lease.hold(Server::start(launch, context).await?);
            match open(&mut lease, launch, resume, title).await {
                Ok(id) => id,
                Err(error) => {
                    lease.end().await;
                    return Err(error);
                }
            }
        }
    };
    Ok((lease, id))
}

/// Begins the conversation in a new server, or goes on with it there.
async fn open(
    lease: &mut Lease<Server>,
    launch: &Launch,
    resume: Option<&ProviderSessionId>,
    title: &str,
) -> Result<ProviderSessionId, AgentError> {
    let server = lease.session().ok_or_else(|| AgentError::new(ErrorCode::Process, "no process"))?;
    if let Some(id) = resume {
        server.resume(id, launch).await?;
        return Ok(id.clone());
    }
    let id = server.create(launch, title).await?;
    lease.name(id.clone());
    Ok(id)
}
