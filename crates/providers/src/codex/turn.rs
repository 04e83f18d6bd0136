//! One turn of a live process: its messages as they come, the questions it asks, the user's words that join it, the
//! clocks it runs against, and how it is stopped. Starting the process and asking for the turn are left to the session.

use std::collections::VecDeque;
use std::time::Duration;

use futures::future::BoxFuture;
use inspan_protocol::{
    AgentError, ErrorCode, ErrorKind, ExecutionContext, ProviderItem, StopReason, StreamEvent,
};
use serde_json::json;
use tokio::time::{Instant, sleep_until};

use super::decode::{Decoded, TurnEnd};
use super::error::{died, refused};
use super::outcome::{Asked, conclude, output};
use super::session::Request;
use super::session::link::{Link, State};
use super::wire;
use crate::output::TurnOutput;
use crate::transport::json_rpc::{Incoming, METHOD_NOT_FOUND, OurId, RpcError, refuse, respond};

mod consent;

use consent::{Answer, Consent, Questions, elicitation};

/// How long an interrupted turn may take to end by itself.
const GRACE: Duration = Duration::from_secs(2);
/// A tool may be silent for so long at least; the program ends its own tools before that.
const TOOL_SILENCE: Duration = Duration::from_secs(30 * 60);

/// An item of the turn's stream.
pub(super) type Item = Result<ProviderItem<TurnOutput>, AgentError>;

/// The turn in progress.
pub(super) struct Turn {
    context: ExecutionContext,
    request: Request,
    began: Instant,
    last_message: Instant,
    phase: Phase,
    /// The request that asked for the turn.
    started: OurId,
    /// The program's name for the turn.
    id: Option<String>,
    next: VecDeque<Step>,
    questions: Questions,
    /// The user's next message, awaited over the whole turn.
    steering: Option<BoxFuture<'static, String>>,
    /// The request by which such a message was handed over.
    steered: Option<OurId>,
}

/// What is to be handed on next.
enum Step {
    Decoded(Decoded),
    End(Item),
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Phase {
    Running,
    /// The program was asked to stop, and may take until then.
    Stopping {
        why: Why,
        until: Instant,
    },
}

/// Why a turn is stopped before its end.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Why {
    Cancelled,
    MaxTurns,
    Stalled,
    DeadlinePassed,
}

/// A moment that no turn lives to see.
fn far() -> Instant {
    Instant::now() + Duration::from_secs(365 * 24 * 60 * 60)
}

/// What the turn waited for.
enum Woken {
    Message(Option<Incoming>),
    Stop(Why),
    GraceOver,
    /// Nothing, if the question was withdrawn.
    Answered(Option<Answer>),
    Steer(String),
}

impl Turn {
    /// A turn that was asked for just now.
    pub(super) fn new(
        context: ExecutionContext,
        request: Request,
        started: OurId,
        early: Vec<Decoded>,
    ) -> Self {
        let now = Instant::now();
        let steering = context.steering.as_ref().map(|steering| steering.next());
        Self {
            context,
            request,
            began: now,
            last_message: now,
            phase: Phase::Running,
            started,
            id: None,
            next: early.into_iter().map(Step::Decoded).collect(),
            questions: Questions::default(),
            steering,
            steered: None,
        }
    }

    /// The next item. After an output or an error there is none.
    pub(super) async fn next(&mut self, link: &mut Link) -> Item {
        loop {
            while let Some(step) = self.next.pop_front() {
                let item = match step {
                    Step::End(item) => Some(item),
                    Step::Decoded(decoded) => self.handle(decoded, link).await,
                };
                if let Some(item) = item {
                    return item;
                }
            }
            match self.wait(link).await {
                Woken::Message(Some(message)) => {
                    self.last_message = Instant::now();
                    self.take(message, link).await;
                    let spent = self.request.max_turns.is_some_and(|max| link.decoder.exhausted(max));
                    if spent && self.phase == Phase::Running {
                        self.stop(Why::MaxTurns, link).await;
                    }
                }
                Woken::Message(None) => self.abandon(link).await,
                Woken::Stop(why) => self.stop(why, link).await,
                Woken::GraceOver => {
                    // The end may be there already, and nobody came to read it.
                    while let Some(message) = link.peer.try_next() {
                        self.next.extend(link.decoder.push(message).into_iter().map(Step::Decoded));
                    }
                    let ends =
                        |step: &Step| matches!(step, Step::Decoded(Decoded::TurnEnd(_) | Decoded::Fault(_)));
                    if !self.next.iter().any(ends) {
                        self.abandon(link).await;
                    }
                }
                Woken::Answered(answer) => {
                    if let Some(answer) = answer
                        && self.answer(&answer, link).is_err()
                    {
                        self.abandon(link).await;
                    }
                }
                Woken::Steer(message) => self.steer(&message, link).await,
            }
        }
    }

    /// What is said is taken before silence is noticed, because whoever reads this turn may have been away for a
    /// while. A program that never stops talking cannot hold off the other limits by that.
    async fn wait(&mut self, link: &mut Link) -> Woken {
        let cancelled = self.context.cancel.clone();
        let running = self.phase == Phase::Running;
        let silence = self.silence_ends(link).unwrap_or_else(far);
        let (limit, over) = match self.phase {
            Phase::Stopping { until, .. } => (until, Woken::GraceOver),
            Phase::Running => (self.deadline().unwrap_or_else(far), Woken::Stop(Why::DeadlinePassed)),
        };
        // One message at a time, and none before the turn has a name to send it to.
        let steerable = running && self.id.is_some() && self.steered.is_none() && self.steering.is_some();
        let steering = async {
            match &mut self.steering {
                Some(next) => next.await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = cancelled.cancelled(), if running => Woken::Stop(Why::Cancelled),
            () = sleep_until(limit) => over,
            message = steering, if steerable => Woken::Steer(message),
            message = link.peer.next() => Woken::Message(message),
            answer = self.questions.next(), if self.questions.are_pending() => Woken::Answered(answer),
            () = sleep_until(silence), if running => Woken::Stop(Why::Stalled),
        }
    }

    fn deadline(&self) -> Option<Instant> {
        self.began.checked_add(self.context.deadline?)
    }

    /// When the program has said nothing for too long.
    fn silence_ends(&self, link: &Link) -> Option<Instant> {
        if self.questions.are_open() {
            // A person may take their time; the broker that asks them has its own deadline.
            return None;
        }
        let stall = self.request.stall;
        let limit = if link.decoder.in_tool() { stall.max(TOOL_SILENCE) } else { stall };
        self.last_message.checked_add(limit)
    }

    async fn take(&mut self, message: Incoming, link: &mut Link) {
        match message {
            Incoming::Answer { id, result } if id == self.started => match result {
                Ok(answer) => {
                    let named = serde_json::from_str::<wire::TurnLine<'_>>(answer.get());
                    if let Ok(line) = named {
                        self.named(line.turn.id.into_owned(), link).await;
                    }
                }
                Err(error) => self.not_begun(&error, link),
            },
            Incoming::Answer { id, result } if Some(id) == self.steered => {
                self.steered = None;
                let event = match result {
                    Ok(_) => {
                        self.steering = self.context.steering.as_ref().map(|steering| steering.next());
                        StreamEvent::Steered
                    }
                    Err(error) => {
                        // It begins the next turn, and so does whatever comes after it.
                        let message = format!("the message could not join the turn: {}", error.message);
                        StreamEvent::Warning { code: "notSteered".to_owned(), message }
                    }
                };
                self.next.push_back(Step::Decoded(Decoded::Event(event)));
            }
            message => self.next.extend(link.decoder.push(message).into_iter().map(Step::Decoded)),
        }
    }

    /// The turn has a name, by which it can be interrupted.
    async fn named(&mut self, turn_id: String, link: &mut Link) {
        if self.id.is_none() {
            link.decoder.named(&turn_id);
            self.id = Some(turn_id);
            if self.phase != Phase::Running {
                self.interrupt(link).await;
            }
        }
    }

    /// The program refused to begin the turn.
    fn not_begun(&mut self, error: &RpcError, link: &mut Link) {
        link.state = State::Idle;
        let mut error = refused("turn/start", error);
        error.message = link.redactor.text(&error.message);
        let _nothing_happened = link.decoder.abandon();
        self.next.push_back(Step::End(Err(error)));
    }

    async fn stop(&mut self, why: Why, link: &mut Link) {
        self.phase = Phase::Stopping { why, until: Instant::now() + GRACE };
        self.steering = None;
        self.interrupt(link).await;
    }

    /// Asks the program to end the turn, if it can be named yet.
    async fn interrupt(&mut self, link: &mut Link) {
        let Some(id) = &self.id else { return };
        if link.interrupt(id).is_err() {
            self.abandon(link).await;
        }
    }

    async fn steer(&mut self, message: &str, link: &mut Link) {
        // A future that is done must not be asked again.
        self.steering = None;
        let text = json!({ "type": "text", "text": message, "text_elements": [] });
        let params = json!({ "threadId": link.session, "expectedTurnId": self.id, "input": [text] });
        match link.peer.request("turn/steer", params) {
            Ok(id) => self.steered = Some(id),
            Err(_) => self.abandon(link).await,
        }
    }

    async fn handle(&mut self, decoded: Decoded, link: &mut Link) -> Option<Item> {
        match decoded {
            Decoded::Event(StreamEvent::Warning { code, message }) => {
                let message = link.redactor.text(&message);
                Some(Ok(ProviderItem::Event(StreamEvent::Warning { code, message })))
            }
            Decoded::Event(event) => Some(Ok(ProviderItem::Event(event))),
            Decoded::Asked { id, request, form } => {
                self.questions.ask(self.context.permissions.as_deref(), id, request, form);
                None
            }
            Decoded::Withdrawn { id } => {
                self.questions.withdraw(&id);
                None
            }
            Decoded::Unsupported { id, method } => {
                let why = format!("`{method}` is not offered here");
                refuse(&link.peer.stdin(), &id, METHOD_NOT_FOUND, &why).err().map(Err)
            }
            Decoded::Elicited { id } => {
                respond(&link.peer.stdin(), &id, elicitation("decline")).err().map(Err)
            }
            Decoded::TurnStarted { turn_id } => {
                self.named(turn_id, link).await;
                None
            }
            Decoded::TurnEnd(end) => {
                link.state = State::Idle;
                if self.phase != Phase::Running {
                    // An interrupted command goes on without its turn.
                    link.clean().await;
                }
                Some(self.conclude(*end, link))
            }
            Decoded::Fault(error) => {
                link.break_off().await;
                Some(Err(error))
            }
        }
    }

    fn conclude(&self, end: TurnEnd, link: &Link) -> Item {
        let shape = self.request.shape();
        let asked = match self.phase {
            Phase::Running => Asked::ToGoOn,
            Phase::Stopping { why: Why::Cancelled, .. } => Asked::ToStop,
            Phase::Stopping { why: Why::MaxTurns, .. } => {
                return Ok(ProviderItem::Output(output(end, StopReason::MaxTurns, shape)));
            }
            Phase::Stopping { why, .. } => return Err(self.too_late(why, link)),
        };
        conclude(end, asked, shape, &link.redactor).map(ProviderItem::Output)
    }

    /// The program will not end the turn: ends the program, and the turn in its place.
    async fn abandon(&mut self, link: &mut Link) {
        let exit = link.break_off().await;
        let (closing, mut end) = link.decoder.abandon();
        end.duration_ms = self.began.elapsed().as_millis().try_into().unwrap_or(u64::MAX);
        self.next.extend(closing.into_iter().map(Step::Decoded));
        let shape = self.request.shape();
        let item = match self.phase {
            Phase::Stopping { why: Why::Cancelled, .. } => Ok(output(end, StopReason::Aborted, shape)),
            Phase::Stopping { why: Why::MaxTurns, .. } => Ok(output(end, StopReason::MaxTurns, shape)),
            Phase::Stopping { why, .. } => Err(self.too_late(why, link)),
            Phase::Running => Err(died(exit, &link.peer.process().stderr())),
        };
        self.next.push_back(Step::End(item.map(ProviderItem::Output)));
    }

    fn too_late(&self, why: Why, link: &Link) -> AgentError {
        let (kind, message) = match why {
            Why::DeadlinePassed => {
                let limit = self.context.deadline.unwrap_or_default().as_millis();
                (ErrorKind::Deadline, format!("the turn took longer than {limit} ms"))
            }
            _ => {
                let silence = self.last_message.elapsed().as_millis();
                (ErrorKind::Stall, format!("the program said nothing for {silence} ms"))
            }
        };
        let detail = json!({ "sessionId": link.session });
        AgentError::new(ErrorCode::Timeout, message).with_detail(detail).with_kind(kind)
    }

    fn answer(&mut self, answer: &Answer, link: &mut Link) -> Result<(), AgentError> {
        // What the person took to answer is not the program's silence.
        self.last_message = Instant::now();
        let consent = answer.consent();
        if consent == Consent::Changed {
            let tool = &answer.request.tool_name;
            let message =
                format!("{tool} was denied, because the program cannot run it with other arguments");
            let warning = StreamEvent::Warning { code: "inputNotChanged".to_owned(), message };
            self.next.push_back(Step::Decoded(Decoded::Event(warning)));
        }
        if consent != Consent::Given {
            link.decoder.denied(&answer.request);
        }
        respond(&link.peer.stdin(), &answer.id, answer.reply())
    }
}
