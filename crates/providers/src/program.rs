//! The runtime of agent CLIs: one process for each conversation, warm between its turns, and one loop for every
//! turn. A vendor implements [`Agent`]: how its program is started and spoken to, and what its messages mean.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use futures::Stream;
use inspan_protocol::{
    AgentError, ErrorCode, ExecutionContext, ProviderItem, ProviderSessionId, Redactor, StopReason,
    StreamEvent,
};
use tokio::time::Instant;

use crate::output::TurnOutput;
use inspan_process::{Exit, Process};

pub(crate) mod exit;
pub(crate) mod info;
pub(crate) mod pool;
mod provider;
pub(crate) mod requests;
pub(crate) mod session;
#[cfg(test)]
pub(crate) mod tests;
pub(crate) mod turn;

pub(crate) use provider::{ProgramProvider, program_provider};

use pool::{Lease, Limits, Pool, Reuse, within};
use session::{NotReady, Session};
use turn::{Handled, Received, Turn};

/// An agent that is a program: one process that holds one conversation, with the decoder of its output.
pub(crate) trait Agent: Send + Sized + 'static {
    /// What a process is started with. Two turns with the same launch can share a process.
    type Launch: PartialEq + Debug + Send + Sync + 'static;
    /// What one turn sends.
    type Prompt: Send + Sync;
    /// What one read from the program brings.
    type Frame: Send;
    /// What decodes its turns.
    type Decoder: TurnDecoder;
    /// A request of the program that waits for its answer.
    type Request: Send;
    /// The answer before it is written.
    type Answer: Send + 'static;

    /// How long the program may take from its start until the conversation is open.
    const OPENING: Duration;

    /// How many processes stay warm, and for how long.
    const LIMITS: Limits = Limits::DEFAULT;

    /// The code of a warning about the user's machine that every process repeats; each such message is passed on once.
    const REPEATED_WARNING: Option<&str> = None;

    /// Whether a process with this launch may serve more than one turn.
    fn reuse(_launch: &Self::Launch) -> Reuse {
        Reuse::Warm
    }

    /// Checks that a text can be the id of a conversation; the program might take any other for an option or a path.
    fn check_id(_id: &ProviderSessionId) -> Result<(), AgentError> {
        Ok(())
    }

    /// Starts the process.
    fn start(
        launch: &Self::Launch,
        conversation: &Conversation,
        context: &ExecutionContext,
    ) -> Result<Self, AgentError>;

    /// Waits until the program answers, and checks its login where it reports one. Sends nothing to a model.
    fn greet(&mut self, launch: &Self::Launch) -> impl Future<Output = Result<(), AgentError>> + Send;

    /// Opens the conversation, and returns its id.
    fn open(
        &mut self,
        call: &Call<Self>,
        conversation: &Conversation,
    ) -> impl Future<Output = Result<ProviderSessionId, AgentError>> + Send;

    /// Reads what came since the last turn, so that the next one begins at its own beginning.
    fn catch_up(&mut self) -> Result<(), AgentError>;

    /// Whether the program has begun no turn by itself.
    fn is_idle(&self) -> bool {
        true
    }

    /// Sends the prompt.
    fn begin(
        &mut self,
        prompt: Self::Prompt,
        turn: &mut Turn<Self>,
    ) -> impl Future<Output = Result<(), NotReady>> + Send;

    /// The next frame. Can be cancelled without losing one.
    fn next(&mut self) -> impl Future<Output = Received<Self::Frame>> + Send;

    /// A frame that has arrived already.
    fn try_next(&mut self) -> Option<Self::Frame>;

    /// Decodes a frame into the turn's queue. An error means that the program can no longer be spoken to.
    fn receive(&mut self, frame: Self::Frame, turn: &mut Turn<Self>) -> Result<(), AgentError>;

    /// The output ended: decodes what is left of it.
    fn finish(&mut self, _turn: &mut Turn<Self>) {}

    /// Acts on what was decoded. An error means that the program can no longer be spoken to.
    fn handle(
        &mut self,
        decoded: Decoded<Self>,
        turn: &mut Turn<Self>,
    ) -> impl Future<Output = Result<Handled<Self>, AgentError>> + Send;

    /// Answers a request of the program.
    fn answer(
        &mut self,
        request: Self::Request,
        answer: Self::Answer,
        turn: &mut Turn<Self>,
    ) -> impl Future<Output = Result<(), AgentError>> + Send;

    /// Whether a person has to answer this request, which may take any time.
    fn waits_for_person(_request: &Self::Request) -> bool {
        true
    }

    /// Asks the program to end the turn in progress.
    fn interrupt(&mut self, turn: &mut Turn<Self>) -> impl Future<Output = Result<(), AgentError>> + Send;

    /// The program ended a turn that it was asked to stop.
    fn clean_up(&mut self) -> impl Future<Output = ()> + Send {
        std::future::ready(())
    }

    /// The decoder; none between turns if each turn has its own.
    fn decoder(&mut self) -> Option<&mut Self::Decoder>;

    /// The process.
    fn process(&self) -> &Process;

    /// Ends the process and everything that it started.
    fn end(&mut self, how: Ending) -> impl Future<Output = Exit> + Send {
        how.apply(self.process())
    }

    /// The error that the vendor's words on stderr mean, if they are known.
    fn explain_exit(_exit: Exit, _stderr: &str) -> Option<AgentError> {
        None
    }

    /// The program ended too early: ends what is left of it, and returns the error.
    fn died(&mut self) -> impl Future<Output = AgentError> + Send {
        async move {
            let exit = self.end(Ending::BreakOff).await;
            exit::died(self.process(), exit, Self::explain_exit)
        }
    }
}

/// What the decoder of an agent makes of a frame.
pub(crate) type Decoded<A> = <<A as Agent>::Decoder as TurnDecoder>::Decoded;
/// How a turn of an agent ended.
pub(crate) type End<A> = <<A as Agent>::Decoder as TurnDecoder>::End;

/// The decoder of a program's output, as far as the runtime needs it.
pub(crate) trait TurnDecoder: Send {
    /// One thing that the program reports.
    type Decoded: Send;
    /// How a turn ended.
    type End: TurnEnd;

    /// Whether a tool has been called and has not answered.
    fn in_tool(&self) -> bool;

    /// Ends a turn that the program will not end: returns what closes its tools, and what it came to until now.
    fn abandon(&mut self) -> (Vec<Self::Decoded>, Self::End);
}

/// How a process is ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// No turn is in progress: the program may finish what it writes.
    Close,
    /// A turn is in progress and does not end.
    BreakOff,
    /// At once.
    Kill,
}

impl Ending {
    /// Ends a program that ends with its input.
    pub(crate) async fn apply(self, process: &Process) -> Exit {
        match (process.exit(), self) {
            (Some(exit), _) => exit,
            (None, Self::Close | Self::BreakOff) => process.end().await,
            (None, Self::Kill) => process.kill().await,
        }
    }
}

/// How a turn ended in the vendor's words.
pub(crate) trait TurnEnd: Default + Send {
    /// The stop reason, or the error, of a turn that the program ended.
    fn judge(&self, cancelled: Cancelled) -> Result<StopReason, AgentError>;

    /// The output of a turn with this stop reason. The runtime adds the conversation and the duration where they are
    /// missing, and the permissions that were denied here.
    fn output(self, reason: StopReason) -> TurnOutput;
}

/// Whether the caller cancelled a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cancelled {
    No,
    Yes,
}

/// The output or error of a turn that the program ended.
///
/// A turn that ended well at the moment it was cancelled is complete: nothing of it is missing.
pub(crate) fn conclude<E: TurnEnd>(
    end: E,
    cancelled: Cancelled,
    redactor: &Redactor,
) -> Result<TurnOutput, AgentError> {
    match end.judge(cancelled) {
        Ok(reason) => Ok(end.output(reason)),
        Err(_) if cancelled == Cancelled::Yes => Ok(end.output(StopReason::Aborted)),
        Err(error) => Err(redacted(error, redactor)),
    }
}

/// The same error without secrets in its message.
pub(crate) fn redacted(mut error: AgentError, redactor: &Redactor) -> AgentError {
    error.message = redactor.text(&error.message);
    error
}

/// The conversation of a process.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Conversation {
    /// A new one. A program that does not choose the id itself takes this one.
    New(ProviderSessionId),
    /// An earlier one.
    Resumed(ProviderSessionId),
}

impl Conversation {
    /// The id, which the program may replace in a new conversation.
    pub(crate) fn id(&self) -> &ProviderSessionId {
        match self {
            Self::New(id) | Self::Resumed(id) => id,
        }
    }
}

/// One call of a provider.
pub(crate) struct Call<A: Agent> {
    /// What its process is started with.
    pub(crate) launch: A::Launch,
    /// The conversation to continue.
    pub(crate) resume: Option<ProviderSessionId>,
    /// How long the program may send nothing.
    pub(crate) stall: Duration,
    /// What the turn sends.
    pub(crate) prompt: A::Prompt,
}

/// The items of one turn.
fn turn_items<A: Agent>(
    pool: Arc<Pool<Session<A>>>,
    context: ExecutionContext,
    prepare: impl FnOnce(&ExecutionContext) -> Result<Call<A>, AgentError> + Send + 'static,
) -> impl Stream<Item = Result<ProviderItem<TurnOutput>, AgentError>> + Send {
    async_stream::try_stream! {
        let began = Instant::now();
        let (context, _listening) = pool.listen(context);
        let call = prepare(&context)?;
        let aborted = |session_id| ProviderItem::Output(TurnOutput {
            session_id,
            duration_ms: elapsed_ms(began),
            ..TurnOutput::new(StopReason::Aborted)
        });
        let mut lease = match ready(&pool, &call, &context, began).await {
            Ok(lease) => lease,
            Err(NotReady::Failed(error)) => Err(error)?,
            Err(NotReady::Cancelled) => {
                yield aborted(call.resume);
                return;
            }
        };
        let missing = || AgentError::new(ErrorCode::Process, "no process");
        let id = lease.session().ok_or_else(missing)?.id().clone();
        yield ProviderItem::Event(StreamEvent::Session { session_id: id.clone() });
        let last = {
            let session = lease.session().ok_or_else(missing)?;
            let mut turn = Turn::new(context, began, call.stall);
            match session.begin(call.prompt, &mut turn).await {
                Ok(()) => loop {
                    match session.next(&mut turn).await {
                        Ok(ProviderItem::Event(event)) => yield ProviderItem::Event(event),
                        last => break last,
                    }
                },
                Err(NotReady::Cancelled) => Ok(aborted(Some(id.clone()))),
                Err(NotReady::Failed(error)) => Err(error),
            }
        };
        // Before the last item, because the caller may stop reading there.
        lease.give_back(call.launch);
        yield last.map_err(|error| error.with("sessionId", id.as_str()))?;
    }
}

/// A session of the conversation that is ready for a turn: the warm one, or a new process.
async fn ready<A: Agent>(
    pool: &Arc<Pool<Session<A>>>,
    call: &Call<A>,
    context: &ExecutionContext,
    began: Instant,
) -> Result<Lease<Session<A>>, NotReady> {
    let conversation = match &call.resume {
        Some(id) => {
            A::check_id(id)?;
            Conversation::Resumed(id.clone())
        }
        None => Conversation::New(ProviderSessionId::from(crate::conversation::fresh_id())),
    };
    let leasing = within(context.deadline, pool.lease(conversation.id(), &call.launch));
    let mut lease = context.cancel.run_until_cancelled(leasing).await.ok_or(NotReady::Cancelled)??;
    if lease.session().is_none() {
        let session = Session::open(call, &conversation, context, began).await?;
        lease.rename(session.id().clone());
        lease.hold(session);
    }
    Ok(lease)
}

/// The milliseconds since then.
fn elapsed_ms(since: Instant) -> u64 {
    since.elapsed().as_millis().try_into().unwrap_or(u64::MAX)
}
