//! The provider `opencode`: the real OpenCode program, driven as a server on loopback with its stream of events.
//! Retries, validation of structured output and the turns of a run are left to those who call it.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::future::BoxFuture;
use inspan_protocol::{
    AgentError, ErrorCode, ExecutionContext, Provider, ProviderCapabilities, ProviderDescriptor,
    ProviderItem, ProviderSessionId, ProviderStream, StopReason, StreamEvent,
};
use tokio::time::{Instant, timeout};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::kind::Kind;
use crate::output::TurnOutput;
use crate::pool::{BUSY_LIMIT, Keep, Lease, Limits, Pool};
use crate::prompt;

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
/// How long the program may say nothing during a turn, unless its options say otherwise.
const STALL: Duration = Duration::from_secs(300);

/// Drives OpenCode. One call is one turn of one conversation; the server of a conversation is kept warm for half a
/// minute between its turns, two at once at most.
#[derive(Debug)]
pub struct OpenCodeProvider {
    pool: Arc<Pool<Server>>,
}

impl OpenCodeProvider {
    /// A provider without any server yet.
    pub fn new() -> Self {
        Self { pool: Pool::new(Limits { warm_for: WARM_FOR, warm: WARM_LIMIT, busy: BUSY_LIMIT }) }
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
                thinking: false,
                images: true,
                cost: true,
                native_steer: false,
            },
        }
    }

    fn execute(&self, input: OpenCodeInput, context: ExecutionContext) -> ProviderStream<TurnOutput> {
        let pool = Arc::clone(&self.pool);
        let stream = async_stream::try_stream! {
            let began = Instant::now();
            let options = input.options.unwrap_or_default();
            let blocks = prompt::blocks(input.prompt.as_deref(), input.messages.as_deref())?;
            let message = request::prompt(&blocks, &options)?;
            let (mut context, _listening) = listen_to(&pool.closing(), context);
            let limit = context.deadline;
            let launch = Launch::new(&options, &context)?;
            let bounds = Bounds {
                stall: options.stall_timeout_ms.map_or(STALL, Duration::from_millis),
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

    fn shutdown(&self) -> BoxFuture<'static, ()> {
        let pool = Arc::clone(&self.pool);
        Box::pin(async move { pool.shut_down().await })
    }
}

/// A server of the conversation that is ready for a turn: the warm one, or a new one.
async fn lease(
    pool: &Arc<Pool<Server>>,
    launch: &Launch,
    resume: Option<&ProviderSessionId>,
    title: &str,
    context: &ExecutionContext,
) -> Result<(Lease<Server>, ProviderSessionId), AgentError> {
    let Some(id) = resume else {
        if pool.closing().is_cancelled() {
            return Err(AgentError::new(ErrorCode::Aborted, "the provider was shut down"));
        }
        let mut server = Server::start(launch, context).await?;
        return match server.create(launch, title).await {
            Ok(id) => Ok((pool.adopt(id.clone(), server), id)),
            Err(error) => {
                server.end().await;
                Err(error)
            }
        };
    };
    if !is_id(id.as_str()) {
        return Err(unknown_session(id.as_str()));
    }
    let mut lease = pool.lease(id, launch).await?;
    if lease.session().is_none() {
        let mut server = Server::start(launch, context).await?;
        let resumed = server.resume(id, launch).await;
        lease.hold(server);
        if let Err(error) = resumed {
            lease.end().await;
            return Err(error);
        }
    }
    Ok((lease, id.clone()))
}

/// A context whose token is also cancelled when the provider is shut down, for as long as the guard lives.
fn listen_to(closing: &CancellationToken, context: ExecutionContext) -> (ExecutionContext, DropGuard) {
    let cancel = context.cancel.child_token();
    let (closing, turn) = (closing.clone(), cancel.clone());
    tokio::spawn(async move {
        if turn.run_until_cancelled(closing.cancelled()).await.is_some() {
            turn.cancel();
        }
    });
    let over = cancel.clone().drop_guard();
    (ExecutionContext { cancel, ..context }, over)
}

async fn within<T>(
    limit: Option<Duration>,
    work: impl Future<Output = Result<T, AgentError>>,
) -> Result<T, AgentError> {
    let Some(limit) = limit else { return work.await };
    timeout(limit, work).await.unwrap_or_else(|_| {
        let message = format!("the turn took longer than {} ms", limit.as_millis());
        Err(AgentError::new(ErrorCode::Timeout, message).kind("deadline"))
    })
}
