//! A conversation with a running Claude Code for programs that drive it without a provider: created or resumed, then
//! one message and its answer at a time.

use futures::Stream;
use inspan_protocol::{
    AgentError, ContentBlock, ErrorCode, ExecutionContext, ProviderItem, ProviderSessionId,
};
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::agent::{ClaudeAgent, ClaudePrompt, interrupt};
use super::options::ClaudeOptions;
use crate::error::busy;
use crate::output::TurnOutput;
use crate::program::session::{NotReady, Session};
use crate::program::turn::ProgramTurn;
use crate::program::{Agent, ProcessConversation};
use inspan_process::Stdin;

/// One conversation and the process that holds it. Dropping it kills the process and everything it started.
#[derive(Debug)]
pub struct ClaudeSession {
    id: ProviderSessionId,
    options: ClaudeOptions,
    stdin: Stdin,
    inner: Mutex<ConversationState>,
}

#[derive(Debug)]
struct ConversationState {
    session: Session<ClaudeAgent>,
    answer: Awaited,
}

/// Whether a message was sent whose answer is not received yet.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Awaited {
    Yes,
    No,
}

impl ClaudeSession {
    /// Starts a new conversation. When it returns, the program runs and has answered; no model was asked yet.
    ///
    /// # Errors
    /// The options do not fit, the program is missing, or it does not start or answer in time.
    pub async fn create(options: &ClaudeOptions, context: &ExecutionContext) -> Result<Self, AgentError> {
        let id = ProviderSessionId::from(crate::conversation::fresh_id());
        Self::open(ProcessConversation::New(id), options, context).await
    }

    /// Resumes an earlier conversation in a new process. No other process may use it meanwhile: the program allows two
    /// processes to resume one conversation, and loses what one of them did.
    ///
    /// # Errors
    /// As [`Self::create`]; an unknown conversation is `INVALID_REQUEST`, kind `sessionNotFound`.
    pub async fn resume(
        session: &ProviderSessionId,
        options: &ClaudeOptions,
        context: &ExecutionContext,
    ) -> Result<Self, AgentError> {
        ClaudeAgent::check_id(session)?;
        Self::open(ProcessConversation::Resumed(session.clone()), options, context).await
    }

    async fn open(
        conversation: ProcessConversation,
        options: &ClaudeOptions,
        context: &ExecutionContext,
    ) -> Result<Self, AgentError> {
        let call = super::call_with(Vec::new(), options, context)?;
        let session = Session::open(&call, &conversation, context, Instant::now()).await.map_err(failed)?;
        Ok(Self {
            id: session.id().clone(),
            options: options.clone(),
            stdin: session.agent().stdin(),
            inner: Mutex::new(ConversationState { session, answer: Awaited::No }),
        })
    }

    /// The conversation.
    pub fn id(&self) -> &ProviderSessionId {
        &self.id
    }

    /// Sends the user's next message. Its answer comes by [`Self::receive`].
    ///
    /// # Errors
    /// A turn is in progress (`INVALID_REQUEST`, kind `sessionBusy`), the program has ended, or the message holds what
    /// the program cannot take.
    pub async fn send(&self, message: &[ContentBlock]) -> Result<(), AgentError> {
        let mut inner = self.inner.try_lock().map_err(|_| busy(&self.id))?;
        let prompt = ClaudePrompt::new(message.to_vec(), &self.options);
        // The program needs nothing of the turn to take its message.
        let mut turn = self.turn(ExecutionContext::default());
        inner.session.begin(prompt, &mut turn).await.map_err(failed)?;
        inner.answer = Awaited::Yes;
        Ok(())
    }

    /// The events of the turn and its end: one output or one error. The context's token cancels the turn, its
    /// deadline counts from here. If the stream is dropped before its end, the session can only be closed.
    pub fn receive(
        &self,
        context: ExecutionContext,
    ) -> impl Stream<Item = Result<ProviderItem<TurnOutput>, AgentError>> + Send + '_ {
        async_stream::stream! {
            let mut inner = self.inner.lock().await;
            if std::mem::replace(&mut inner.answer, Awaited::No) == Awaited::No {
                let message = "no message was sent whose answer could be received";
                yield Err(AgentError::new(ErrorCode::InvalidRequest, message));
                return;
            }
            let mut turn = self.turn(context);
            loop {
                let item = turn.next(&mut inner.session).await;
                let last = !matches!(item, Ok(ProviderItem::Event(_)));
                yield item;
                if last {
                    return;
                }
            }
        }
    }

    fn turn(&self, context: ExecutionContext) -> ProgramTurn<ClaudeAgent> {
        ProgramTurn::new(context, Instant::now(), crate::input::stall(self.options.stall_timeout_ms))
    }

    /// Asks the program to end the turn in progress. The turn then ends by itself with an output that says `aborted`.
    ///
    /// # Errors
    /// The program takes no input any more.
    pub fn interrupt(&self) -> Result<(), AgentError> {
        interrupt(&self.stdin)
    }

    /// Ends the program: it may finish writing, then is asked to end, then is killed with everything it started.
    pub async fn close(self) {
        self.inner.into_inner().session.end().await;
    }
}

fn failed(error: NotReady) -> AgentError {
    match error {
        NotReady::Failed(error) => error,
        NotReady::Cancelled => {
            AgentError::new(ErrorCode::Aborted, "the call was cancelled before its turn began")
        }
    }
}
