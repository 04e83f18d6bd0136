//! One turn of a live agent: its messages as they come, the questions it asks, the clocks it runs against, and how it
//! is stopped. Starting the agent and writing the prompt are left to the session; what is done for the agent
//! meanwhile, to `turn/service.rs`.

use std::collections::VecDeque;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt};
use inspan_protocol::{
    AgentError, ErrorCode, ErrorKind, ExecutionContext, ProviderItem, StopReason, StreamEvent,
};
use serde_json::json;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::decode::{Decoded, TurnEnd};
use super::error::died;
use super::link::{Link, State};
use super::outcome::{Around, Asked, Form, conclude, output};
use super::permission::{Granted, Policy};
use crate::output::{PermissionDenial, TurnOutput};
use crate::transport::json_rpc::{Incoming, TheirId, refuse};

mod service;

use service::Reply;

/// How long a cancelled turn may take to end by itself.
const GRACE: Duration = Duration::from_secs(2);
/// A tool may be silent for so long at least; agents end their own tools before that.
const TOOL_SILENCE: Duration = Duration::from_secs(30 * 60);

/// An item of the turn's stream.
pub(super) type Item = Result<ProviderItem<TurnOutput>, AgentError>;

/// What a call chooses for its turn.
#[derive(Clone, Debug)]
pub(super) struct Manner {
    pub(super) stall: Duration,
    pub(super) form: Form,
    pub(super) policy: Policy,
}

/// The turn in progress.
pub(super) struct Turn {
    context: ExecutionContext,
    manner: Manner,
    began: Instant,
    last_word: Instant,
    phase: Phase,
    next: VecDeque<Step>,
    replies: FuturesUnordered<BoxFuture<'static, Option<Reply>>>,
    open: Vec<Open>,
    granted: Granted,
    denials: Vec<PermissionDenial>,
}

/// A request of the agent that is not answered yet.
struct Open {
    id: TheirId,
    about: About,
    /// Cancelled when nobody wants the answer any more.
    withdrawn: CancellationToken,
}

/// What an open request waits for.
#[derive(Clone, Copy, Debug, PartialEq)]
enum About {
    /// A person's answer to the agent's own question.
    Question,
    /// A person's answer, whether something may be done for the agent.
    Leave,
    /// Something that is being done for the agent.
    Work,
}

/// What is to be handed on next.
enum Step {
    Decoded(Decoded),
    End(Item),
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Phase {
    Running,
    /// The agent was asked to stop, and may take until then.
    Stopping {
        why: Why,
        until: Instant,
    },
}

/// Why a turn is stopped before its end.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Why {
    Cancelled,
    Stalled,
    DeadlinePassed,
}

/// A moment that no turn lives to see.
fn far() -> Instant {
    Instant::now() + Duration::from_secs(365 * 24 * 60 * 60)
}

/// What the turn waited for.
enum Woken {
    Said(Option<Incoming>),
    Stop(Why),
    GraceOver,
    /// Nothing, if nobody wants the answer any more.
    Replied(Option<Reply>),
}

impl Turn {
    /// A turn whose prompt was handed over just now.
    pub(super) fn new(context: ExecutionContext, manner: Manner, link: &mut Link) -> Self {
        let now = Instant::now();
        let warnings = std::mem::take(&mut link.warnings);
        Self {
            context,
            manner,
            began: now,
            last_word: now,
            phase: Phase::Running,
            next: warnings.into_iter().map(|event| Step::Decoded(Decoded::Event(event))).collect(),
            replies: FuturesUnordered::new(),
            open: Vec::new(),
            granted: Granted::default(),
            denials: Vec::new(),
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
                Woken::Said(Some(message)) => self.hear(message, link),
                Woken::Said(None) => self.abandon(link).await,
                Woken::Stop(why) => {
                    self.phase = Phase::Stopping { why, until: Instant::now() + GRACE };
                    if link.cancel().and_then(|()| self.withdraw(link)).is_err() {
                        self.abandon(link).await;
                    }
                }
                Woken::GraceOver => {
                    // The end may be there already, and nobody came to read it.
                    while let Some(message) = link.peer.try_next() {
                        self.hear(message, link);
                    }
                    let ends =
                        |step: &Step| matches!(step, Step::Decoded(Decoded::TurnEnd(_) | Decoded::Fault(_)));
                    if !self.next.iter().any(ends) {
                        self.abandon(link).await;
                    }
                }
                Woken::Replied(reply) => {
                    if let Some(reply) = reply
                        && self.reply(reply, link).is_err()
                    {
                        self.abandon(link).await;
                    }
                }
            }
        }
    }

    fn hear(&mut self, message: Incoming, link: &mut Link) {
        // Noise is no sign of life.
        if !matches!(message, Incoming::Odd(_)) {
            self.last_word = Instant::now();
        }
        self.next.extend(link.decoder.take(message).into_iter().map(Step::Decoded));
    }

    /// What is said is taken before silence is noticed, because whoever reads this turn may have been away for a
    /// while. An agent that never stops talking cannot hold off the other limits by that.
    async fn wait(&mut self, link: &mut Link) -> Woken {
        let cancelled = self.context.cancel.clone();
        let running = self.phase == Phase::Running;
        let silence = self.silence_ends(link).unwrap_or_else(far);
        let (limit, over) = match self.phase {
            Phase::Stopping { until, .. } => (until, Woken::GraceOver),
            Phase::Running => (self.deadline().unwrap_or_else(far), Woken::Stop(Why::DeadlinePassed)),
        };
        tokio::select! {
            biased;
            () = cancelled.cancelled(), if running => Woken::Stop(Why::Cancelled),
            () = sleep_until(limit) => over,
            message = link.peer.next() => Woken::Said(message),
            Some(reply) = self.replies.next(), if !self.replies.is_empty() => Woken::Replied(reply),
            () = sleep_until(silence), if running => Woken::Stop(Why::Stalled),
        }
    }

    fn deadline(&self) -> Option<Instant> {
        self.began.checked_add(self.context.deadline?)
    }

    /// When the agent has said nothing for too long.
    fn silence_ends(&self, link: &Link) -> Option<Instant> {
        if self.open.iter().any(|open| open.about != About::Work) {
            // A person may take their time; the broker that asks them has its own deadline.
            return None;
        }
        let works = link.decoder.in_tool() || !self.open.is_empty();
        let limit = if works { self.manner.stall.max(TOOL_SILENCE) } else { self.manner.stall };
        self.last_word.checked_add(limit)
    }

    async fn handle(&mut self, decoded: Decoded, link: &mut Link) -> Option<Item> {
        let done = match decoded {
            Decoded::Event(event) => return Some(Ok(ProviderItem::Event(event))),
            Decoded::Asked { id, question } => self.asked(id, *question, link),
            Decoded::Wanted { id, wanted } => self.wanted(id, wanted, link),
            Decoded::Refused { id, code, message } => refuse(&link.peer.stdin(), &id, code, &message),
            Decoded::TurnEnd(end) => {
                link.state = State::Idle;
                // The next turn would take the answers for its own.
                let answered = self.withdraw(link);
                let item = self.conclude(*end, link);
                if answered.is_err() {
                    link.break_off().await;
                }
                return Some(item);
            }
            Decoded::Fault(error) => {
                link.break_off().await;
                return Some(Err(error));
            }
        };
        if done.is_err() {
            self.abandon(link).await;
        }
        None
    }

    fn conclude(&mut self, end: TurnEnd, link: &Link) -> Item {
        let asked = match self.phase {
            Phase::Running => Asked::ToGoOn,
            Phase::Stopping { why: Why::Cancelled, .. } => Asked::ToStop,
            Phase::Stopping { why, .. } => return Err(self.too_late(why, link)),
        };
        let denials = std::mem::take(&mut self.denials);
        conclude(end, asked, self.around(link, denials), &link.redactor).map(ProviderItem::Output)
    }

    fn around<'a>(&self, link: &'a Link, denials: Vec<PermissionDenial>) -> Around<'a> {
        Around {
            session: &link.session,
            form: self.manner.form,
            denials,
            duration_ms: self.began.elapsed().as_millis().try_into().unwrap_or(u64::MAX),
        }
    }

    /// The agent will not end the turn: ends the agent, and the turn in its place.
    async fn abandon(&mut self, link: &mut Link) {
        let exit = link.break_off().await;
        let (closing, end) = link.decoder.abandon();
        self.next.retain(|step| matches!(step, Step::Decoded(Decoded::Event(_))));
        self.next.extend(closing.into_iter().map(Step::Decoded));
        let denials = std::mem::take(&mut self.denials);
        let item = match self.phase {
            Phase::Stopping { why: Why::Cancelled, .. } => {
                Ok(output(end, StopReason::Aborted, self.around(link, denials)))
            }
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
                (ErrorKind::Stall, format!("the agent said nothing for {} ms", self.manner.stall.as_millis()))
            }
        };
        let detail = json!({ "sessionId": link.session });
        AgentError::new(ErrorCode::Timeout, message).with_detail(detail).with_kind(kind)
    }

    fn warn(&mut self, code: &str, message: String) {
        let event = StreamEvent::Warning { code: code.to_owned(), message };
        self.next.push_back(Step::Decoded(Decoded::Event(event)));
    }
}
