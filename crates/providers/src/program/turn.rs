//! One turn of a live program: its messages as they arrive, the requests it makes, the clocks it runs against, and how it
//! is stopped.
//!
//! | phase | entered | left |
//! |---|---|---|
//! | running | the prompt was sent | by the end of the turn, or into one of the others |
//! | closing | the program says that it is done, and messages are missing | by the end of the turn, or after the grace |
//! | stopping | the caller cancelled, a limit was reached, or the turn cannot succeed | as closing |
//!
//! After the grace the program is ended, and the turn ends with it.

use std::collections::VecDeque;
use std::time::Duration;

use futures::future::BoxFuture;
use inspan_protocol::{
    AgentError, ErrorCode, ErrorKind, ExecutionContext, PermissionDecision, PermissionRequest, ProviderItem,
    StopReason, StreamEvent,
};
use tokio::time::{Instant, sleep_until};

use super::exit::EXIT_AFTER_BREAK;
use super::requests::OpenRequests;
use super::session::{Session, State, too_long};
use super::{Agent, AgentTurnEnd, Cancelled, Decoded, TurnDecoder as _, TurnEnd, conclude, elapsed_ms, exit};
use crate::error::{TurnCount, is_lost};
use crate::output::{PermissionDenial, TurnOutput, is_turn_id, with_denials};

/// How long an interrupted turn may take to end by itself.
pub(crate) const GRACE: Duration = Duration::from_secs(2);
/// By how much the end of a silence may be noticed too late, before that says that this process was stopped meanwhile.
const LATE: Duration = Duration::from_secs(2);
/// A tool may be silent for at least this long; agents end their own tools before that.
const TOOL_SILENCE: Duration = Duration::from_secs(30 * 60);

/// An item of the turn's stream.
pub(crate) type StreamItem = Result<ProviderItem<TurnOutput>, AgentError>;

/// What a read from the program brings.
pub(crate) enum Received<F> {
    Frame(F),
    /// Nothing follows, and why, unless the program exited.
    Ended(Option<AgentError>),
}

/// The result of something that was decoded.
pub(crate) enum Handled<A: Agent> {
    /// Nothing that the caller sees.
    Nothing,
    Event(StreamEvent),
    /// The program ended the turn.
    End(Box<AgentTurnEnd<A>>),
    /// The program did not take the prompt; it can take another one.
    Refused(AgentError),
    /// The program broke its protocol; nothing after it can be relied on.
    Fault(AgentError),
}

/// The turn in progress.
pub(crate) struct ProgramTurn<A: Agent> {
    pub(crate) context: ExecutionContext,
    pub(crate) requests: OpenRequests<A::Request, A::Answer>,
    began: Instant,
    stall: Duration,
    last_heard: Instant,
    phase: Phase,
    queue: VecDeque<QueueItem<A>>,
    denials: Vec<PermissionDenial>,
    count: TurnCount,
    /// A reason to stop that the loop has not acted on yet.
    stop: Option<Interruption>,
    /// Set once nothing more will arrive, with the reason.
    over: Option<Option<AgentError>>,
}

/// What the turn does next.
enum QueueItem<A: Agent> {
    Decoded(Decoded<A>),
    Event(StreamEvent),
    /// The prompt was sent, and the turn was cut short: says that its price is unknown.
    PriceUnknown,
    Last(StreamItem),
}

enum Phase {
    Running,
    Closing { until: Instant },
    Stopping { why: Interruption, until: Instant },
}

/// Why a turn is stopped before its end.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Interruption {
    Cancelled,
    /// The program was silent for this long.
    Stalled(Duration),
    DeadlinePassed,
    /// The model has written as many messages as it may.
    MaxTurns,
    /// The program would retry, which is for the caller to decide.
    Failed(AgentError),
}

/// What the turn waited for.
enum Woken<A: Agent> {
    Received(Received<A::Frame>),
    Stop(Interruption),
    GraceOver,
    /// Nothing if the request was withdrawn.
    Answered(Option<(A::Request, A::Answer)>),
}

impl<A: Agent> ProgramTurn<A> {
    /// A turn of a call that began then.
    pub(crate) fn new(context: ExecutionContext, began: Instant, stall: Duration) -> Self {
        Self {
            context,
            requests: OpenRequests::default(),
            began,
            stall,
            last_heard: Instant::now(),
            phase: Phase::Running,
            queue: VecDeque::new(),
            denials: Vec::new(),
            count: TurnCount::default(),
            stop: None,
            over: None,
        }
    }

    /// How much of the call's time is left.
    pub(crate) fn time_left(&self) -> Option<Duration> {
        self.context.deadline.map(|deadline| deadline.saturating_sub(self.began.elapsed()))
    }

    /// Queues what was decoded.
    pub(crate) fn extend(&mut self, decoded: impl IntoIterator<Item = Decoded<A>>) {
        self.queue.extend(decoded.into_iter().map(QueueItem::Decoded));
    }

    /// Queues an event.
    pub(crate) fn emit(&mut self, event: StreamEvent) {
        self.queue.push_back(QueueItem::Event(event));
    }

    /// Queues a warning.
    pub(crate) fn warn(&mut self, code: &str, message: String) {
        self.emit(StreamEvent::warning(code, message));
    }

    /// The program gave a sign of life.
    pub(crate) fn received(&mut self) {
        self.last_heard = Instant::now();
    }

    /// Whether the program was not asked to stop.
    pub(crate) fn is_running(&self) -> bool {
        matches!(self.phase, Phase::Running)
    }

    /// Stops the turn, if it is running.
    pub(crate) fn stop(&mut self, why: Interruption) {
        self.stop.get_or_insert(why);
    }

    /// The program is done, and may take a moment to close what is open.
    pub(crate) fn close(&mut self) {
        if self.is_running() {
            self.phase = Phase::Closing { until: Instant::now() + GRACE };
        }
    }

    /// Records that a tool was not allowed.
    pub(crate) fn deny(&mut self, request: &PermissionRequest) {
        self.denials.push(PermissionDenial {
            tool_name: request.tool_name.clone(),
            tool_use_id: request.tool_use_id.clone().unwrap_or_default(),
            tool_input: request.input.clone(),
        });
    }

    /// The decision on a request. Without a broker the answer is no.
    pub(crate) fn decision(&self, request: PermissionRequest) -> BoxFuture<'static, PermissionDecision> {
        match &self.context.permissions {
            Some(broker) => broker.request(request),
            None => {
                let message =
                    format!("permission to use `{}` was denied: there is nobody to ask", request.tool_name);
                Box::pin(std::future::ready(PermissionDecision::Deny { message }))
            }
        }
    }

    /// The next item. Nothing follows an output or an error.
    pub(crate) async fn next(&mut self, session: &mut Session<A>) -> StreamItem {
        loop {
            if let Some(why) = self.stop.take() {
                self.interrupt(why, session).await;
            }
            if let Some(item) = self.queue.pop_front() {
                match self.act(item, session).await {
                    Some(item) => return self.with_denials(item),
                    None => continue,
                }
            }
            if let Some(cause) = self.over.take() {
                self.abandon(cause, session).await;
                continue;
            }
            match self.wait(&mut session.agent).await {
                Woken::Received(Received::Frame(frame)) => {
                    if let Err(error) = session.agent.receive(frame, self) {
                        self.over = Some(Some(error));
                    }
                }
                Woken::Received(Received::Ended(cause)) => {
                    session.agent.finish(self);
                    self.over = Some(cause);
                }
                Woken::Stop(why) => self.stop(why),
                Woken::GraceOver => {
                    // The end may have arrived while nothing was read.
                    let received = std::iter::from_fn(|| session.agent.try_next()).collect::<Vec<_>>();
                    for frame in received {
                        let _over_anyway = session.agent.receive(frame, self);
                    }
                    self.over = Some(None);
                }
                Woken::Answered(None) => {}
                Woken::Answered(Some((request, answer))) => {
                    // The time until the answer does not count as a stall of the program.
                    self.received();
                    if let Err(error) = session.agent.answer(request, answer, self).await {
                        self.over = Some(Some(error));
                    }
                }
            }
        }
    }

    /// Output is read before the stall limit is checked, because the caller may not have polled for a while. A
    /// program that never stops writing cannot delay the other limits.
    async fn wait(&mut self, agent: &mut A) -> Woken<A> {
        let cancelled = self.context.cancel.clone();
        let running = self.is_running();
        let (silence, last_heard) = (self.silence_ends(agent), self.last_heard);
        let limit = match self.phase {
            Phase::Stopping { until, .. } | Phase::Closing { until } => Some(until),
            Phase::Running => self.context.deadline.and_then(|deadline| self.began.checked_add(deadline)),
        };
        tokio::select! {
            biased;
            () = cancelled.cancelled(), if running => Woken::Stop(Interruption::Cancelled),
            () = reached(limit) => {
                if running { Woken::Stop(Interruption::DeadlinePassed) } else { Woken::GraceOver }
            }
            received = agent.next() => Woken::Received(received),
            answered = self.requests.next(), if self.requests.are_pending() => Woken::Answered(answered),
            () = reached(silence), if running => match silence.is_some_and(|due| due.elapsed() > LATE) {
                // We were stopped ourselves: what came meanwhile is not read yet.
                true => {
                    self.received();
                    Woken::Answered(None)
                }
                false => Woken::Stop(Interruption::Stalled(last_heard.elapsed())),
            },
        }
    }

    /// When the program has been silent for too long.
    fn silence_ends(&self, agent: &mut A) -> Option<Instant> {
        // A person may take any time; the broker that asks has its own deadline.
        if self.requests.iter().any(A::waits_for_person) {
            return None;
        }
        let in_tool = agent.decoder().is_some_and(|decoder| decoder.in_tool());
        let works = in_tool || !self.requests.is_empty();
        let limit = if works { self.stall.max(TOOL_SILENCE) } else { self.stall };
        self.last_heard.checked_add(limit)
    }

    async fn act(&mut self, item: QueueItem<A>, session: &mut Session<A>) -> Option<StreamItem> {
        let decoded = match item {
            QueueItem::Last(item) => return Some(item),
            QueueItem::Event(event) => return Some(Ok(ProviderItem::Event(event))),
            QueueItem::PriceUnknown => return Some(Ok(ProviderItem::Event(self.count.cut()))),
            QueueItem::Decoded(decoded) => decoded,
        };
        match session.agent.handle(decoded, self).await {
            Ok(Handled::Nothing) => None,
            Ok(Handled::Event(event)) => {
                self.count.note(&event);
                Some(Ok(ProviderItem::Event(event)))
            }
            Ok(Handled::End(mut end)) => {
                self.take_denials(&mut *end);
                session.state = State::Idle;
                if !self.is_running() {
                    session.agent.clean_up().await;
                }
                if !self.is_over_limit() {
                    let last = self.conclude(*end, session);
                    return if last.as_ref().is_err_and(is_lost) {
                        self.last_of_cut(last)
                    } else {
                        Some(last)
                    };
                }
                // A program that ends the turn itself may know its price.
                let is_known = end.output(StopReason::Aborted).cost_usd.is_some();
                let last = self.conclude(AgentTurnEnd::<A>::default(), session);
                if is_known { Some(last) } else { self.last_of_cut(last) }
            }
            Ok(Handled::Refused(error)) => {
                session.state = State::Idle;
                Some(Err(super::redacted(error, session.agent.process().redactor())))
            }
            Ok(Handled::Fault(error)) => {
                session.break_off().await;
                self.last_of_cut(Err(error))
            }
            Err(error) => {
                if session.state == State::InTurn {
                    self.over.get_or_insert(Some(error));
                }
                None
            }
        }
    }

    /// Asks the program to end the turn.
    async fn interrupt(&mut self, why: Interruption, session: &mut Session<A>) {
        if !self.is_running() {
            return;
        }
        let grace = if why == Interruption::Cancelled { session.agent.grace() } else { GRACE };
        self.phase = Phase::Stopping { why, until: Instant::now() + grace };
        if let Err(error) = session.agent.interrupt(self).await {
            self.over = Some(Some(error));
        }
    }

    fn conclude(&mut self, end: AgentTurnEnd<A>, session: &Session<A>) -> StreamItem {
        let redactor = session.agent.process().redactor();
        let output = match std::mem::replace(&mut self.phase, Phase::Running) {
            Phase::Running | Phase::Closing { .. } => conclude(end, Cancelled::No, redactor),
            Phase::Stopping { why: Interruption::Cancelled, .. } => conclude(end, Cancelled::Yes, redactor),
            Phase::Stopping { why: Interruption::MaxTurns, .. } => Ok(end.output(StopReason::MaxTurns)),
            Phase::Stopping { why: Interruption::Failed(error), .. } => Err(super::redacted(error, redactor)),
            Phase::Stopping { why: Interruption::DeadlinePassed, .. } => {
                Err(too_long(self.context.deadline.unwrap_or_default()))
            }
            Phase::Stopping { why: Interruption::Stalled(silence), .. } => {
                let message = format!("the program sent nothing for {} ms", silence.as_millis());
                Err(AgentError::new(ErrorCode::Timeout, message).with_kind(ErrorKind::Stall))
            }
        };
        output.map(|output| self.complete(output, session))
    }

    /// The program will not end the turn: ends the program, and then the turn.
    async fn abandon(&mut self, cause: Option<AgentError>, session: &mut Session<A>) {
        // A connection that breaks is often the first sign of an exit, which explains more. A program may also close its
        // output and live on.
        let own = match cause.is_some() || self.is_running() {
            true => session.agent.process().wait(EXIT_AFTER_BREAK).await,
            false => None,
        };
        let exit = session.break_off().await;
        let (closing, end) = session.agent.decoder().map(|decoder| decoder.abandon()).unwrap_or_default();
        self.extend(closing);
        let is_cut = self.is_running() || self.is_over_limit();
        let item = match &self.phase {
            Phase::Running => Err(match cause {
                Some(error) if own.is_none() => error,
                _ => exit::broken_off(session.agent.process(), own, exit, A::explain_exit),
            }),
            Phase::Stopping { why: Interruption::Cancelled, .. } => {
                Ok(self.complete(end.output(StopReason::Aborted), session))
            }
            _ => self.conclude(end, session),
        };
        if is_cut || item.as_ref().is_err_and(is_lost) {
            self.queue.push_back(QueueItem::PriceUnknown);
        }
        self.queue.push_back(QueueItem::Last(item));
    }

    /// Whether a limit of its time ends the turn.
    fn is_over_limit(&self) -> bool {
        let Phase::Stopping { why, .. } = &self.phase else { return false };
        matches!(why, Interruption::Stalled(_) | Interruption::DeadlinePassed)
    }

    /// The turn ends with this, once it is said what is known of what it took.
    fn last_of_cut(&mut self, last: StreamItem) -> Option<StreamItem> {
        self.queue.push_front(QueueItem::Last(last));
        self.queue.push_front(QueueItem::PriceUnknown);
        None
    }

    /// Adds what the program does not say itself.
    fn complete(&mut self, mut output: TurnOutput, session: &Session<A>) -> ProviderItem<TurnOutput> {
        output.session_id.get_or_insert_with(|| session.id().clone());
        output.turn_id = output.turn_id.filter(is_turn_id);
        if output.duration_ms == 0 {
            output.duration_ms = elapsed_ms(self.began);
        }
        ProviderItem::Output(output)
    }

    /// Takes the calls of which the program says that they were not allowed, unless that is known.
    fn take_denials(&mut self, end: &mut AgentTurnEnd<A>) {
        for denial in end.take_denials() {
            if self.denials.iter().all(|known| known.tool_use_id != denial.tool_use_id) {
                self.denials.push(denial);
            }
        }
    }

    /// The last item says what was not allowed, however the turn ends.
    fn with_denials(&mut self, mut item: StreamItem) -> StreamItem {
        match &mut item {
            Ok(ProviderItem::Output(output)) => output.permission_denials = std::mem::take(&mut self.denials),
            Ok(ProviderItem::Event(_)) => {}
            Err(error) => *error = with_denials(error.clone(), &self.denials),
        }
        item
    }
}

/// Waits until then; forever if there is no such moment.
async fn reached(moment: Option<Instant>) {
    match moment {
        Some(moment) => sleep_until(moment).await,
        None => std::future::pending().await,
    }
}
