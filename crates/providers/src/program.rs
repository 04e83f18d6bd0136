//! The runtime of agent CLIs: one process for each conversation, warm between its turns, and one loop for every
//! turn. A vendor implements [`Agent`]: how its program is started and driven, and what its messages mean.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::{Stream, StreamExt};
use inspan_protocol::{
    AgentError, ErrorCode, ExecutionContext, Handshake, ProviderItem, ProviderSessionId, ProviderStream,
    Redactor, StopReason, StreamEvent, TurnId,
};
use tokio::time::Instant;

use crate::error::no_turn;
use crate::output::{PermissionDenial, TurnOutput, is_turn_id};
use inspan_process::{Exit, Process};

pub(crate) mod exit;
pub(crate) mod info;
pub(crate) mod pool;
pub(crate) mod requests;
pub(crate) mod session;
#[cfg(test)]
pub(crate) mod tests;
pub(crate) mod turn;

use exit::EXIT_AFTER_BREAK;
use pool::{Lease, Limits, Pool, Reuse, within};
use session::{NotReady, Session};
use turn::{GRACE, Handled, ProgramTurn, Received};

/// An agent that is a program: one process that holds one conversation at a time, with the decoder of its output.
pub(crate) trait Agent: Send + Sized + 'static {
    /// What a process is started with. Two turns with the same launch can share a process. It cannot be printed, because
    /// it holds secrets.
    type Launch: PartialEq + Send + Sync + 'static;
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

    /// Whether one process can hold one conversation after the other.
    const MANY_CONVERSATIONS: bool = false;

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
        conversation: &ProcessConversation,
        context: &ExecutionContext,
    ) -> impl Future<Output = Result<Self, AgentError>> + Send;

    /// Waits until the program answers, and checks its login where it reports one. Sends nothing to a model.
    fn greet(&mut self, launch: &Self::Launch) -> impl Future<Output = Result<(), AgentError>> + Send;

    /// Leaves the conversation of the turns before, so that [`Self::open`] can open this one in the same process. Only
    /// called if [`Self::MANY_CONVERSATIONS`].
    fn leave(&mut self, _for: &ProcessConversation) -> impl Future<Output = Result<(), AgentError>> + Send {
        std::future::ready(Ok(()))
    }

    /// Opens the conversation, and returns its id, which no other conversation may have.
    fn open(
        &mut self,
        call: &Call<Self>,
        conversation: &ProcessConversation,
    ) -> impl Future<Output = Result<ProviderSessionId, AgentError>> + Send;

    /// Reads what came since the last turn, so that the next one begins at its own beginning.
    fn catch_up(&mut self) -> Result<(), AgentError>;

    /// How long a turn that the caller cancelled may take to end by itself.
    fn grace(&self) -> Duration {
        GRACE
    }

    /// Whether the program has started no turn by itself.
    fn is_idle(&self) -> bool {
        true
    }

    /// Sends the prompt.
    fn begin(
        &mut self,
        prompt: Self::Prompt,
        turn: &mut ProgramTurn<Self>,
    ) -> impl Future<Output = Result<(), NotReady>> + Send;

    /// The next frame. Can be cancelled without losing one.
    fn next(&mut self) -> impl Future<Output = Received<Self::Frame>> + Send;

    /// A frame that has arrived already.
    fn try_next(&mut self) -> Option<Self::Frame>;

    /// Decodes a frame into the turn's queue. An error means that the program can no longer be used.
    fn receive(&mut self, frame: Self::Frame, turn: &mut ProgramTurn<Self>) -> Result<(), AgentError>;

    /// The output ended: decodes what is left of it.
    fn finish(&mut self, _turn: &mut ProgramTurn<Self>) {}

    /// Acts on what was decoded. An error means that the program can no longer be used.
    fn handle(
        &mut self,
        decoded: Decoded<Self>,
        turn: &mut ProgramTurn<Self>,
    ) -> impl Future<Output = Result<Handled<Self>, AgentError>> + Send;

    /// Answers a request of the program.
    fn answer(
        &mut self,
        request: Self::Request,
        answer: Self::Answer,
        turn: &mut ProgramTurn<Self>,
    ) -> impl Future<Output = Result<(), AgentError>> + Send;

    /// Whether a person has to answer this request, which may take any time.
    fn waits_for_person(_request: &Self::Request) -> bool {
        true
    }

    /// Asks the program to end the turn in progress.
    fn interrupt(
        &mut self,
        turn: &mut ProgramTurn<Self>,
    ) -> impl Future<Output = Result<(), AgentError>> + Send;

    /// The program ended a turn that it was asked to stop, or whose end closes what is open.
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

    /// The program ended too early, or closed its output: ends what is left of it, and returns the error.
    fn died(&mut self) -> impl Future<Output = AgentError> + Send {
        async move {
            let own = self.process().wait(EXIT_AFTER_BREAK).await;
            let exit = self.end(Ending::Kill).await;
            exit::broken_off(self.process(), own, exit, Self::explain_exit)
        }
    }
}

/// What the decoder of an agent makes of a frame.
pub(crate) type Decoded<A> = <<A as Agent>::Decoder as TurnDecoder>::Decoded;
/// How a turn of an agent ended.
pub(crate) type AgentTurnEnd<A> = <<A as Agent>::Decoder as TurnDecoder>::End;

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
    /// At once: a program that is only asked to end goes on with its turn meanwhile, and nobody sees what it does and spends.
    Kill,
}

impl Ending {
    /// Ends a program that ends with its input.
    pub(crate) async fn apply(self, process: &Process) -> Exit {
        match (process.exit(), self) {
            (Some(exit), _) => exit,
            (None, Self::Close) => process.end().await,
            (None, Self::Kill) => process.kill().await,
        }
    }
}

/// How a turn ended in the vendor's words.
pub(crate) trait TurnEnd: Default + Send {
    /// The stop reason, or the error, of a turn that the program ended.
    fn judge(&self, cancelled: Cancelled) -> Result<StopReason, AgentError>;

    /// Takes the calls that the program says were not allowed.
    fn take_denials(&mut self) -> Vec<PermissionDenial> {
        Vec::new()
    }

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
/// A turn that ended well at the moment it was cancelled is complete: nothing of it is missing. Whether it ended well is
/// for the judge to say, as far as the program's words tell a whole turn from one that was cut.
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
pub(crate) enum ProcessConversation {
    /// A new one. A program that does not choose the id itself takes this one.
    New(ProviderSessionId),
    /// An earlier one.
    Resumed(ProviderSessionId),
    /// A branch of an earlier one. A program that does not choose its id itself takes this one.
    Forked {
        /// The earlier one, which stays as it is.
        from: ProviderSessionId,
        /// The end of the turn after which it begins; else that of the last one.
        at: Option<TurnId>,
        /// The id of the branch.
        id: ProviderSessionId,
    },
}

impl ProcessConversation {
    /// The id, which the program may replace in a new conversation.
    pub(crate) fn id(&self) -> &ProviderSessionId {
        match self {
            Self::New(id) | Self::Resumed(id) | Self::Forked { id, .. } => id,
        }
    }
}

/// One call of a provider.
pub(crate) struct Call<A: Agent> {
    /// What its process is started with.
    pub(crate) launch: A::Launch,
    /// The conversation to continue.
    pub(crate) resume: Option<ProviderSessionId>,
    /// Whether that one is branched.
    pub(crate) fork: bool,
    /// The end of the turn at which it is.
    pub(crate) fork_at: Option<TurnId>,
    /// How long the program may send nothing.
    pub(crate) stall: Duration,
    /// What the turn sends.
    pub(crate) prompt: A::Prompt,
}

/// A provider that runs an agent CLI: its processes, and what it has passed on.
pub(crate) struct ProgramProvider<A: Agent> {
    pool: Arc<Pool<A>>,
    shown: Arc<ShownWarnings>,
}

impl<A: Agent> fmt::Debug for ProgramProvider<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProgramProvider").finish_non_exhaustive()
    }
}

impl<A: Agent> ProgramProvider<A> {
    /// A provider without any process yet.
    pub(crate) fn new() -> Self {
        Self::with_limits(A::LIMITS)
    }

    /// As [`Self::new`], with other limits of its processes.
    pub(crate) fn with_limits(limits: Limits) -> Self {
        Self { pool: Pool::new(limits), shown: Arc::default() }
    }

    /// Runs one turn: takes the warm process of the conversation or starts one, sends the prompt, and reads until the
    /// turn ends.
    pub(crate) fn execute<O: From<TurnOutput> + Send + 'static>(
        &self,
        provider: &'static str,
        context: ExecutionContext,
        prepare: impl FnOnce(&ExecutionContext) -> Result<Call<A>, AgentError> + Send + 'static,
    ) -> ProviderStream<O> {
        let shown = Arc::clone(&self.shown);
        let convert = move |item: Result<ProviderItem<TurnOutput>, AgentError>| {
            let item = match item {
                Ok(ProviderItem::Event(event)) if !shown.is_new::<A>(&event) => None,
                Ok(ProviderItem::Event(event)) => Some(Ok(ProviderItem::Event(event))),
                Ok(ProviderItem::Output(output)) => Some(Ok(ProviderItem::Output(O::from(output)))),
                Err(error) => Some(Err(error.from_provider(provider))),
            };
            std::future::ready(item)
        };
        turn_items(Arc::clone(&self.pool), context, prepare).filter_map(convert).boxed()
    }

    /// Starts a program, exchanges greetings and ends it; no conversation is opened.
    pub(crate) async fn handshake(
        &self,
        context: ExecutionContext,
        launch: impl FnOnce(&ExecutionContext) -> Result<A::Launch, AgentError> + Send,
    ) -> Result<Handshake, AgentError> {
        let launch = launch(&context)?;
        Session::<A>::greet(&launch, &context).await?;
        Ok(Handshake::Vendor)
    }

    /// Ends all processes.
    pub(crate) async fn shut_down(&self) {
        self.pool.shut_down().await;
    }
}

/// Warnings that every process repeats and that were passed on once.
#[derive(Debug, Default)]
struct ShownWarnings(Mutex<BTreeSet<String>>);

/// How many different ones are remembered.
const SHOWN_LIMIT: usize = 256;

impl ShownWarnings {
    /// Whether an event is to be passed on.
    fn is_new<A: Agent>(&self, event: &StreamEvent) -> bool {
        let StreamEvent::Warning { code, message } = event else { return true };
        if A::REPEATED_WARNING != Some(code) {
            return true;
        }
        let mut shown = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        !shown.contains(message) && (shown.len() >= SHOWN_LIMIT || shown.insert(message.clone()))
    }
}

/// The items of one turn.
fn turn_items<A: Agent>(
    pool: Arc<Pool<A>>,
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
                yield aborted(call.resume.filter(|_| !call.fork));
                return;
            }
        };
        let missing = || AgentError::new(ErrorCode::Process, "no process");
        let id = lease.session().ok_or_else(missing)?.id().clone();
        yield ProviderItem::Event(StreamEvent::Session { session_id: id.clone() });
        let last = {
            let session = lease.session().ok_or_else(missing)?;
            let mut turn = ProgramTurn::new(context, began, call.stall);
            match session.begin(call.prompt, &mut turn).await {
                Ok(()) => loop {
                    match turn.next(session).await {
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

/// A session of the conversation that is ready for a turn: the warm one, the process of another conversation that is over,
/// or a new process.
async fn ready<A: Agent>(
    pool: &Arc<Pool<A>>,
    call: &Call<A>,
    context: &ExecutionContext,
    began: Instant,
) -> Result<Lease<A>, NotReady> {
    let fresh = || ProviderSessionId::from(crate::conversation::fresh_id());
    let conversation = match &call.resume {
        Some(id) => {
            A::check_id(id)?;
            match call.fork {
                true => {
                    let (from, at) = (id.clone(), call.fork_at.clone());
                    if let Some(at) = &at {
                        check_turn_id(at)?;
                    }
                    ProcessConversation::Forked { from, at, id: fresh() }
                }
                false => ProcessConversation::Resumed(id.clone()),
            }
        }
        None => ProcessConversation::New(fresh()),
    };
    let leasing = within(context.deadline, async {
        let mut lease = pool.lease(conversation.id(), &call.launch).await?;
        if let ProcessConversation::Resumed(_) = &conversation {
            lease.lock(&context.host.env).await?;
        }
        Ok(lease)
    });
    let mut lease = context.cancel.run_until_cancelled(leasing).await.ok_or(NotReady::Cancelled)??;
    if lease.session().is_none() {
        let session = match pool.spare(&call.launch).await {
            // What it cannot open may be opened by a new process.
            Some(spare) => match spare.reopen(call, &conversation, context, began).await {
                Err(NotReady::Failed(error)) => {
                    tracing::debug!(%error, "the running program does not take another conversation");
                    Session::open(call, &conversation, context, began).await?
                }
                reopened => reopened?,
            },
            None => Session::open(call, &conversation, context, began).await?,
        };
        lease.rename(session.id().clone());
        lease.hold(session);
        if !matches!(conversation, ProcessConversation::Resumed(_)) {
            lease.lock(&context.host.env).await?;
        }
    }
    Ok(lease)
}

/// Checks the end of a turn, which becomes part of an argument or an address.
fn check_turn_id(turn: &TurnId) -> Result<(), AgentError> {
    if is_turn_id(turn) { Ok(()) } else { Err(no_turn(turn)) }
}

/// The milliseconds since then.
fn elapsed_ms(since: Instant) -> u64 {
    since.elapsed().as_millis().try_into().unwrap_or(u64::MAX)
}

/// A public provider over an [`Agent`]: its program, its capabilities, and how a call is made of an input.
macro_rules! program_provider {
    (
        $(#[$doc:meta])*
        $provider:ident for $agent:ty, $input:ty => $output:ty, $program:expr, $capabilities:expr, $call:path $(, $check:path)?
    ) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub struct $provider($crate::program::ProgramProvider<$agent>);

        impl $provider {
            /// A provider without any process yet.
            pub fn new() -> Self {
                Self($crate::program::ProgramProvider::new())
            }
        }

        impl Default for $provider {
            fn default() -> Self {
                Self::new()
            }
        }

        impl ::inspan_protocol::Provider for $provider {
            type Input = $input;
            type Output = $output;

            fn descriptor(&self) -> ::inspan_protocol::ProviderDescriptor {
                ::inspan_protocol::ProviderDescriptor {
                    provider_type: $program.provider.to_owned(),
                    display_name: $program.name.to_owned(),
                    capabilities: $capabilities,
                }
            }

            fn check_input(&self, input: &::serde_json::Value) -> Vec<::inspan_protocol::InputProblem> {
                [$crate::input::check(input, $crate::input::Assistant::Refused) $(, $check(input))?].concat()
            }

            fn setup(&self) -> ::inspan_protocol::Setup {
                $program.setup()
            }

            fn check_setup(
                &self,
                environment: &::inspan_protocol::Environment,
            ) -> Result<(), ::inspan_protocol::AgentError> {
                $program.find(None, environment, None).map(drop)
            }

            async fn probe(
                &self,
                environment: &::inspan_protocol::Environment,
                supervisor: Option<::inspan_protocol::Supervisor>,
            ) -> ::inspan_protocol::Probe {
                ::inspan_protocol::Probe::Program($program.probe(environment, supervisor).await)
            }

            fn execute(
                &self,
                input: $input,
                context: ::inspan_protocol::ExecutionContext,
            ) -> ::inspan_protocol::ProviderStream<$output> {
                self.0.execute($program.provider, context, move |context| $call(input, context))
            }

            async fn handshake(
                &self,
                context: ::inspan_protocol::ExecutionContext,
            ) -> Result<::inspan_protocol::Handshake, ::inspan_protocol::AgentError> {
                self.0.handshake(context, |context| <$agent as $crate::program::Agent>::Launch::new(&Default::default(), context)).await
            }

            async fn shutdown(&self) {
                self.0.shut_down().await;
            }
        }
    };
}

pub(crate) use program_provider;
