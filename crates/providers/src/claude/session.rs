//! A conversation with a running Claude Code: created or resumed, then one message and its answer at a time.
//! Keeping sessions between turns and sharing them out is left to the pool.

use std::time::Duration;

use futures::Stream;
use inspan_protocol::{
    AgentError, ContentBlock, ErrorCode, ErrorKind, ExecutionContext, ProviderItem, ProviderSessionId,
};
use tokio::sync::Mutex;

use super::launch::{Conversation, Launch};
use super::options::ClaudeOptions;
use super::turn::Turn;
use super::wire;
use crate::conversation::busy;
use crate::output::TurnOutput;
use crate::pool::{self, Reuse};
use crate::transport::process::Stdin;
use crate::transport::stall;

pub(super) mod link;

use link::{Link, State};

/// One conversation and the process that holds it. Dropping it kills the process and everything it started.
#[derive(Debug)]
pub struct ClaudeSession {
    id: ProviderSessionId,
    stall: Duration,
    rewriting: wire::Rewriting,
    stdin: Stdin,
    link: Mutex<Link>,
}

impl ClaudeSession {
    /// Starts a new conversation. When it returns, the program runs and has answered; the model was not asked yet.
    ///
    /// # Errors
    /// The options do not fit, the program is missing, or it does not start or answer in time.
    pub async fn create(options: &ClaudeOptions, context: &ExecutionContext) -> Result<Self, AgentError> {
        let launch = Launch::new(options, context)?;
        let id = ProviderSessionId::from(crate::ids::fresh());
        Self::open(&launch, &Conversation::New(id), options, context).await
    }

    /// Goes on with an earlier conversation in a new process. Nobody else may hold it meanwhile: the program lets two
    /// processes go on with one conversation, and loses what one of them did.
    ///
    /// # Errors
    /// As [`Self::create`]; an unknown conversation is `INVALID_REQUEST`, kind `sessionNotFound`.
    pub async fn resume(
        session: &ProviderSessionId,
        options: &ClaudeOptions,
        context: &ExecutionContext,
    ) -> Result<Self, AgentError> {
        let launch = Launch::new(options, context)?;
        Self::open(&launch, &resumed(session)?, options, context).await
    }

    pub(super) async fn open(
        launch: &Launch,
        conversation: &Conversation,
        options: &ClaudeOptions,
        context: &ExecutionContext,
    ) -> Result<Self, AgentError> {
        let link = Link::open(launch, conversation, context).await?;
        let wanted = options.expand_prompt == Some(true);
        Ok(Self {
            id: conversation.id().clone(),
            stall: stall(options.stall_timeout_ms),
            rewriting: if wanted { wire::Rewriting::Wanted } else { wire::Rewriting::Defeated },
            stdin: link.process.stdin(),
            link: Mutex::new(link),
        })
    }

    /// The conversation.
    pub fn id(&self) -> &ProviderSessionId {
        &self.id
    }

    /// Hands the user's next message over. Its answer comes by [`Self::receive`].
    ///
    /// # Errors
    /// A turn is in progress (`INVALID_REQUEST`, kind `sessionBusy`), the program has ended, or the message holds what
    /// the program cannot take.
    pub async fn send(&self, message: &[ContentBlock]) -> Result<(), AgentError> {
        let line = wire::user_message(message, self.rewriting)?;
        let mut link = self.link.try_lock().map_err(|_| busy(&self.id))?;
        if link.state != State::Idle {
            return Err(busy(&self.id));
        }
        link.catch_up()?;
        link.send(&line)?;
        link.state = State::InTurn;
        Ok(())
    }

    /// The events of the turn and its end: one output or one error. The context's token cancels the turn, its
    /// deadline counts from here. If the stream is dropped before its end, the session can only be closed.
    pub fn receive(
        &self,
        context: ExecutionContext,
    ) -> impl Stream<Item = Result<ProviderItem<TurnOutput>, AgentError>> + Send + '_ {
        async_stream::stream! {
            let mut link = self.link.lock().await;
            if link.state != State::InTurn {
                let message = "no message was sent whose answer could be received";
                yield Err(AgentError::new(ErrorCode::InvalidRequest, message));
                return;
            }
            // Only the end of the turn makes the session usable again.
            link.state = State::Gone;
            let mut turn = Turn::new(context, self.stall);
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

    /// Asks the program to end the turn in progress. The turn then ends by itself with an output that says `aborted`.
    ///
    /// # Errors
    /// The program takes no input any more.
    pub fn interrupt(&self) -> Result<(), AgentError> {
        link::interrupt(&self.stdin)
    }

    /// Ends the program: lets it finish writing, then asks it to end, then kills it and everything it started.
    pub async fn close(self) {
        pool::Session::end(&self).await;
    }

    /// Takes over what a later turn may choose anew.
    pub(super) fn retune(&mut self, options: &ClaudeOptions) {
        let wanted = options.expand_prompt == Some(true);
        self.stall = stall(options.stall_timeout_ms);
        self.rewriting = if wanted { wire::Rewriting::Wanted } else { wire::Rewriting::Defeated };
    }
}

impl pool::Session for ClaudeSession {
    type Launch = Launch;

    fn reuse(launch: &Launch) -> Reuse {
        launch.reuse
    }

    fn is_ready(&self) -> bool {
        self.link.try_lock().is_ok_and(|mut link| link.is_ready())
    }

    async fn end(&self) {
        // Whoever receives a turn holds the link; closing the input under it would be a second way to stop a turn.
        let link = self.link.lock().await;
        match link.state {
            State::Idle => link.process.end().await,
            // Nobody wants the rest of its turn, and it would go on with it until it is made to stop.
            State::InTurn | State::Gone => link.process.kill().await,
        };
    }
}

/// The conversation to go on with. The program would take another text for a title, or for an option.
pub(super) fn resumed(session: &ProviderSessionId) -> Result<Conversation, AgentError> {
    if uuid::Uuid::try_parse(session.as_str()).is_err() {
        let message = format!("no such conversation: `{session}` is no id of this provider");
        return Err(AgentError::new(ErrorCode::InvalidRequest, message).with_kind(ErrorKind::SessionNotFound));
    }
    Ok(Conversation::Resumed(session.clone()))
}
