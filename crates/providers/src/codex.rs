//! The provider `codex`: the real Codex program, driven over the JSON-RPC of its app server.
//! Retries, validation of structured output and the turns of a run are left to those who call it.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use futures::future::BoxFuture;
use futures::{StreamExt, pin_mut};
use inspan_protocol::{
    AgentError, ErrorCode, ExecutionContext, Handshake, InputProblem, Provider, ProviderCapabilities,
    ProviderDescriptor, ProviderItem, ProviderSessionId, ProviderStream, StopReason, StreamEvent,
};
use serde_json::Value;
use tokio::time::Instant;

use crate::output::TurnOutput;
use crate::pool::{Lease, Limits, Pool, Session, within};
use crate::prompt::{self, Assistant};

mod config;
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

pub use options::{ApprovalPolicy, CodexInput, CodexOptions, SandboxMode};
pub use outcome::CodexOutput;
pub use probe::{find as find_codex, probe as probe_codex};

use launch::Launch;
use session::{CodexSession, Request};

/// The provider's type.
const TYPE: &str = "codex";

/// Drives Codex. One call is one turn of one conversation; the process of a conversation is kept warm for a minute
/// between its turns, four at once at most.
#[derive(Debug)]
pub struct CodexProvider {
    pool: Arc<Pool<CodexSession>>,
    shown: Arc<Shown>,
}

/// Warnings about the user's machine and settings that were passed on. Every process repeats them, and once is enough.
#[derive(Debug, Default)]
struct Shown(Mutex<BTreeSet<String>>);

/// How many different ones are remembered.
const SHOWN_LIMIT: usize = 256;

impl Shown {
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
        Self { pool: Pool::new(Limits::default()), shown: Arc::default() }
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
            provider_type: TYPE.to_owned(),
            display_name: "Codex".to_owned(),
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

    fn execute(&self, input: CodexInput, context: ExecutionContext) -> ProviderStream<CodexOutput> {
        let pool = Arc::clone(&self.pool);
        let shown = Arc::clone(&self.shown);
        let stream = async_stream::try_stream! {
            let began = Instant::now();
            let earlier = earlier(&input)?;
            let options = input.options.unwrap_or_default();
            let blocks = prompt::blocks(input.prompt.as_deref(), input.messages.as_deref())?;
            let request = Request::new(wire::user_input(&blocks)?, &options);
            let (mut context, _listening) = pool.listen(context);
            let limit = context.deadline;
            let launch = Launch::new(&options, &context)?;
            let ready = ready(&pool, &launch, earlier.as_ref(), &mut context, began).await;
            let (mut lease, session_id) = match ready {
                Err(error) if error.code == ErrorCode::Aborted && context.cancel.is_cancelled() => {
                    yield ProviderItem::Output(CodexOutput::new(TurnOutput {
                        session_id: earlier,
                        duration_ms: began.elapsed().as_millis().try_into().unwrap_or(u64::MAX),
                        ..TurnOutput::new(StopReason::Aborted)
                    }));
                    return;
                }
                ready => ready?,
            };
            yield ProviderItem::Event(StreamEvent::Session { session_id });
            context.deadline = limit.map(|limit| limit.saturating_sub(began.elapsed()));
            let last = {
                let session = lease.session().ok_or_else(|| AgentError::new(ErrorCode::Process, "no process"))?;
                let turn = session.turn(request, context);
                pin_mut!(turn);
                loop {
                    match turn.next().await {
                        Some(Ok(ProviderItem::Event(event))) => {
                            if shown.is_new(&event) {
                                yield ProviderItem::Event(event);
                            }
                        }
                        Some(Ok(ProviderItem::Output(output))) => {
                            break Ok(ProviderItem::Output(CodexOutput::new(output)));
                        }
                        Some(Err(error)) => break Err(error),
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
            let launch = Launch::new(&CodexOptions::default(), &context)?;
            // It tells whether there is a login, and keeps nothing of a thread that no message came to.
            CodexSession::open(&launch, None, &context).await?.end().await;
            Ok(Handshake::Vendor)
        })
    }

    fn shutdown(&self) -> BoxFuture<'static, ()> {
        let pool = Arc::clone(&self.pool);
        Box::pin(async move { pool.shut_down().await })
    }
}

/// The conversation to go on with.
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

/// A session of the conversation that is ready for a turn: the warm one, or a new process. `ABORTED` if the call is
/// cancelled meanwhile.
async fn ready(
    pool: &Arc<Pool<CodexSession>>,
    launch: &Launch,
    earlier: Option<&ProviderSessionId>,
    context: &mut ExecutionContext,
    began: Instant,
) -> Result<(Lease<CodexSession>, ProviderSessionId), AgentError> {
    let leasing = async {
        match earlier {
            Some(id) => pool.lease(id, launch).await,
            None => pool.lease_unnamed(launch).await,
        }
    };
    let limit = context.deadline;
    let leased = context.cancel.run_until_cancelled(within(limit, leasing)).await;
    let cancelled = || AgentError::new(ErrorCode::Aborted, "the call was cancelled before its turn began");
    let mut lease = leased.ok_or_else(cancelled)??;
    if let Some(session) = lease.session() {
        let id = session.id().clone();
        return Ok((lease, id));
    }
    context.deadline = limit.map(|limit| limit.saturating_sub(began.elapsed()));
    let session = CodexSession::open(launch, earlier, context).await?;
    let id = session.id().clone();
    lease.name(id.clone());
    lease.hold(session);
    Ok((lease, id))
}
