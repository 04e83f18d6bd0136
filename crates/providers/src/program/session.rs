//! One conversation and its process: opened, used for one turn at a time, and ended.

use std::fmt;
use std::time::Duration;

use inspan_protocol::{AgentError, ErrorCode, ErrorKind, ExecutionContext, ProviderSessionId};
use tokio::time::{Instant, timeout};

use super::turn::ProgramTurn;
use super::{Agent, Call, Ending, ProcessConversation, exit, redacted};
use crate::error::busy;

/// One conversation and its process. Dropping it kills the process and everything it started.
pub(crate) struct Session<A: Agent> {
    pub(super) agent: A,
    id: ProviderSessionId,
    pub(super) state: State,
}

impl<A: Agent> fmt::Debug for Session<A> {
    /// Without the agent, which holds secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("id", &self.id).field("state", &self.state).finish_non_exhaustive()
    }
}

/// Whether a turn is in progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Idle,
    InTurn,
    /// The process was ended.
    Ended,
}

/// Why a turn did not begin.
#[derive(Debug)]
pub(crate) enum NotReady {
    /// The caller cancelled it.
    Cancelled,
    Failed(AgentError),
}

impl From<AgentError> for NotReady {
    fn from(error: AgentError) -> Self {
        Self::Failed(error)
    }
}

impl<A: Agent> Session<A> {
    /// Starts the program and opens the conversation. If that fails or is cancelled, the program has ended when this
    /// returns.
    pub(crate) async fn open(
        call: &Call<A>,
        conversation: &ProcessConversation,
        context: &ExecutionContext,
        began: Instant,
    ) -> Result<Self, NotReady> {
        let mut agent = A::start(&call.launch, conversation, context).await?;
        let opening = async {
            agent.greet(&call.launch).await?;
            agent.open(call, conversation).await
        };
        let opened = bounded::<A, _>(opening, context, began).await;
        match opened {
            Ok(id) => Ok(Self { agent, id, state: State::Idle }),
            Err(error) => Err(give_up(&mut agent, error).await),
        }
    }

    /// Opens another conversation in the same process. If that fails or is cancelled, the program has ended when this
    /// returns.
    pub(crate) async fn reopen(
        mut self,
        call: &Call<A>,
        conversation: &ProcessConversation,
        context: &ExecutionContext,
        began: Instant,
    ) -> Result<Self, NotReady> {
        let opening = async {
            self.agent.leave(conversation).await?;
            self.agent.open(call, conversation).await
        };
        match bounded::<A, _>(opening, context, began).await {
            Ok(id) => Ok(Self { id, ..self }),
            Err(error) => Err(give_up(&mut self.agent, error).await),
        }
    }

    /// Starts the program, exchanges greetings and ends it.
    pub(super) async fn greet(launch: &A::Launch, context: &ExecutionContext) -> Result<(), AgentError> {
        let conversation = ProcessConversation::New(ProviderSessionId::from(crate::conversation::fresh_id()));
        let mut agent = A::start(launch, &conversation, context).await?;
        let greeted = bounded::<A, _>(agent.greet(launch), context, Instant::now()).await;
        match greeted {
            Ok(()) => {
                agent.end(Ending::Close).await;
                Ok(())
            }
            Err(error) => Err(match give_up(&mut agent, error).await {
                NotReady::Failed(error) => error,
                NotReady::Cancelled => AgentError::new(ErrorCode::Aborted, "the handshake was cancelled"),
            }),
        }
    }

    /// The conversation.
    pub(crate) fn id(&self) -> &ProviderSessionId {
        &self.id
    }

    /// The agent.
    pub(crate) fn agent(&self) -> &A {
        &self.agent
    }

    /// Sends the prompt of the next turn.
    pub(crate) async fn begin(
        &mut self,
        prompt: A::Prompt,
        turn: &mut ProgramTurn<A>,
    ) -> Result<(), NotReady> {
        if self.state != State::Idle {
            return Err(busy(&self.id).into());
        }
        self.catch_up()?;
        self.agent.begin(prompt, turn).await?;
        self.state = State::InTurn;
        turn.received();
        Ok(())
    }

    /// Ends the process in the middle of a turn.
    pub(super) async fn break_off(&mut self) -> exit::Exit {
        self.state = State::Ended;
        self.agent.end(Ending::Kill).await
    }

    /// Whether another turn can begin.
    pub(super) fn is_ready(&mut self) -> bool {
        self.state == State::Idle && self.catch_up().is_ok() && self.agent.is_idle()
    }

    /// Ends the process, whatever it does.
    pub(crate) async fn end(&mut self) {
        let how = match self.state {
            State::Idle => Ending::Close,
            State::InTurn | State::Ended => Ending::Kill,
        };
        self.state = State::Ended;
        self.agent.end(how).await;
    }

    fn catch_up(&mut self) -> Result<(), AgentError> {
        self.agent.catch_up()?;
        match self.agent.process().exit() {
            Some(exit) => Err(exit::died(self.agent.process(), exit, A::explain_exit)),
            None => Ok(()),
        }
    }
}

/// Runs the opening of a conversation within its limits. `TIMEOUT` of the kind `start` or `deadline`.
async fn bounded<A: Agent, T>(
    opening: impl Future<Output = Result<T, AgentError>>,
    context: &ExecutionContext,
    began: Instant,
) -> Result<T, Opening> {
    let left = context.deadline.map(|deadline| deadline.saturating_sub(began.elapsed()));
    let limit = left.map_or(A::OPENING, |left| left.min(A::OPENING));
    match context.cancel.run_until_cancelled(timeout(limit, opening)).await {
        Some(Ok(opened)) => opened.map_err(Opening::Failed),
        Some(Err(_)) => Err(Opening::TooSlow(match context.deadline {
            Some(deadline) if left < Some(A::OPENING) => too_long(deadline),
            _ => {
                let message =
                    format!("the program was not ready within {} ms of its start", limit.as_millis());
                AgentError::new(ErrorCode::Timeout, message).with_kind(ErrorKind::Start)
            }
        })),
        None => Err(Opening::Cancelled),
    }
}

/// How an opening failed.
enum Opening {
    Failed(AgentError),
    TooSlow(AgentError),
    Cancelled,
}

/// Ends the program of an opening that failed.
async fn give_up<A: Agent>(agent: &mut A, failure: Opening) -> NotReady {
    let how = if matches!(failure, Opening::Failed(_)) { Ending::Close } else { Ending::Kill };
    agent.end(how).await;
    match failure {
        Opening::Failed(error) | Opening::TooSlow(error) => {
            NotReady::Failed(redacted(error, agent.process().redactor()))
        }
        Opening::Cancelled => NotReady::Cancelled,
    }
}

/// The error for a call that took longer than it may.
pub(super) fn too_long(deadline: Duration) -> AgentError {
    let message = format!("the turn took longer than {} ms", deadline.as_millis());
    AgentError::new(ErrorCode::Timeout, message).with_kind(ErrorKind::Deadline)
}
