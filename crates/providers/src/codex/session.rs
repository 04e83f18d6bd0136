//! A conversation with a running Codex: opened, then one message and its answer at a time.
//! Keeping sessions between turns and sharing them out is left to the pool.

use std::time::Duration;

use futures::Stream;
use inspan_protocol::{AgentError, ErrorCode, ExecutionContext, ProviderItem, ProviderSessionId};
use serde_json::{Value, json};
use tokio::sync::Mutex;

use super::launch::Launch;
use super::options::CodexOptions;
use super::outcome::Shape;
use super::turn::{Item, Turn};
use crate::pool::{self, Reuse};
use crate::transport::stall;

pub(super) mod link;

use link::{Link, State};

/// One thread and the process that holds it. Dropping it kills the process and everything it started.
#[derive(Debug)]
pub(super) struct CodexSession {
    id: ProviderSessionId,
    link: Mutex<Link>,
}

/// What one turn is about.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) input: Vec<Value>,
    pub(super) output_schema: Option<Value>,
    pub(super) max_turns: Option<u32>,
    pub(super) stall: Duration,
}

impl Request {
    /// A turn that says this.
    pub(super) fn new(input: Vec<Value>, options: &CodexOptions) -> Self {
        Self {
            input,
            output_schema: options.output_schema.clone(),
            max_turns: options.max_turns,
            stall: stall(options.stall_timeout_ms),
        }
    }

    /// The form of the answer.
    pub(super) fn shape(&self) -> Shape {
        if self.output_schema.is_some() { Shape::Structured } else { Shape::Free }
    }
}

impl CodexSession {
    /// Starts the program and opens a thread, a new one or an earlier one. When it returns, the model was not asked
    /// yet.
    pub(super) async fn open(
        launch: &Launch,
        earlier: Option<&ProviderSessionId>,
        context: &ExecutionContext,
    ) -> Result<Self, AgentError> {
        let link = Link::open(launch, earlier, context).await?;
        Ok(Self { id: link.session.clone(), link: Mutex::new(link) })
    }

    /// The thread.
    pub(super) fn id(&self) -> &ProviderSessionId {
        &self.id
    }

    /// Hands the message over, and gives the events of the turn and its end: one output or one error. The context's
    /// token cancels the turn, its deadline counts from here. If the stream is dropped before its end, the session can
    /// only be ended.
    pub(super) fn turn(
        &self,
        request: Request,
        context: ExecutionContext,
    ) -> impl Stream<Item = Item> + Send + '_ {
        async_stream::stream! {
            let mut link = self.link.lock().await;
            if link.state != State::Idle {
                yield Err(AgentError::new(ErrorCode::InvalidRequest, "the conversation is busy with another turn"));
                return;
            }
            let mut params = json!({ "threadId": self.id, "input": request.input });
            if let Some(schema) = &request.output_schema {
                params["outputSchema"] = schema.clone();
            }
            let started = match link.begin(params) {
                Ok(started) => started,
                Err(error) => {
                    yield Err(error);
                    return;
                }
            };
            let mut turn = Turn::new(context, request, started, link.early());
            loop {
                let item = turn.next(&mut link).await;
                let last = !matches!(item, Ok(ProviderItem::Event(_)));
                yield item;
                if last {
                    return;
                }
            }
        }
    }
}

impl pool::Session for CodexSession {
    type Launch = Launch;

    fn reuse(_: &Launch) -> Reuse {
        Reuse::Warm
    }

    fn is_ready(&self) -> bool {
        self.link.try_lock().is_ok_and(|mut link| link.is_ready())
    }

    async fn end(&self) {
        // Whoever receives a turn holds the link; closing the input under it would be a second way to stop a turn.
        let link = self.link.lock().await;
        match link.state {
            State::Idle => link.peer.end().await,
            // Nobody wants the rest of its turn, and it would go on with it until it is made to stop.
            State::InTurn | State::Gone => link.peer.process().kill().await,
        };
    }
}
