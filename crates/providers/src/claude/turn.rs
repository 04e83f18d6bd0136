//! One turn of a live process: its lines as they come, the questions it asks, the clocks it runs against, and how it
//! is stopped. Starting the process and writing the prompt are left to the session.

use std::collections::VecDeque;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt};
use inspan_protocol::{
    AgentError, ErrorCode, ErrorKind, ExecutionContext, PermissionDecision, PermissionRequest, ProviderItem,
    StopReason,
};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::decode::{Decoded, TurnEnd};
use super::error::died;
use super::outcome::{Asked, conclude, output};
use super::session::link::{Link, State};
use super::wire;
use crate::output::TurnOutput;

/// How long an interrupted turn may take to end by itself.
const GRACE: Duration = Duration::from_secs(2);
/// A tool may be silent for so long at least; the program ends its own tools before that.
const TOOL_SILENCE: Duration = Duration::from_secs(30 * 60);

/// An item of the turn's stream.
pub(super) type Item = Result<ProviderItem<TurnOutput>, AgentError>;

/// The turn in progress.
pub(super) struct Turn {
    context: ExecutionContext,
    stall: Duration,
    began: Instant,
    last_line: Instant,
    phase: Phase,
    next: VecDeque<Step>,
    questions: FuturesUnordered<BoxFuture<'static, Option<Answer>>>,
    open_questions: Vec<(String, CancellationToken)>,
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
    Stalled,
    DeadlinePassed,
}

/// A moment that no turn lives to see.
fn far() -> Instant {
    Instant::now() + Duration::from_secs(365 * 24 * 60 * 60)
}

struct Answer {
    request_id: String,
    input: Value,
    decision: PermissionDecision,
}

/// What the turn waited for.
enum Woken {
    Bytes(Option<Vec<u8>>),
    Stop(Why),
    GraceOver,
    /// Nothing, if the question was withdrawn.
    Answered(Option<Answer>),
}

impl Turn {
    /// A turn whose prompt was handed over just now.
    pub(super) fn new(context: ExecutionContext, stall: Duration) -> Self {
        let now = Instant::now();
        Self {
            context,
            stall,
            began: now,
            last_line: now,
            phase: Phase::Running,
            next: VecDeque::new(),
            questions: FuturesUnordered::new(),
            open_questions: Vec::new(),
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
                Woken::Bytes(Some(bytes)) => {
                    self.last_line = Instant::now();
                    self.next.extend(link.decoder.push_bytes(&bytes).into_iter().map(Step::Decoded));
                }
                Woken::Bytes(None) => {
                    let rest = link.decoder.finish();
                    let ended = rest.iter().any(|decoded| matches!(decoded, Decoded::TurnEnd(_)));
                    self.next.extend(rest.into_iter().map(Step::Decoded));
                    if !ended {
                        self.abandon(link).await;
                    }
                }
                Woken::Stop(why) => {
                    self.phase = Phase::Stopping { why, until: Instant::now() + GRACE };
                    if link.interrupt().is_err() {
                        self.abandon(link).await;
                    }
                }
                Woken::GraceOver => {
                    // The end may be there already, and nobody came to read it.
                    while let Some(bytes) = link.process.try_read() {
                        self.next.extend(link.decoder.push_bytes(&bytes).into_iter().map(Step::Decoded));
                    }
                    let ends =
                        |step: &Step| matches!(step, Step::Decoded(Decoded::TurnEnd(_) | Decoded::Fault(_)));
                    if !self.next.iter().any(ends) {
                        self.abandon(link).await;
                    }
                }
                Woken::Answered(answer) => {
                    if let Some(answer) = answer
                        && self.answer(answer, link).is_err()
                    {
                        self.abandon(link).await;
                    }
                }
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
        tokio::select! {
            biased;
            () = cancelled.cancelled(), if running => Woken::Stop(Why::Cancelled),
            () = sleep_until(limit) => over,
            bytes = link.process.read() => Woken::Bytes(bytes),
            Some(answer) = self.questions.next(), if !self.questions.is_empty() => Woken::Answered(answer),
            () = sleep_until(silence), if running => Woken::Stop(Why::Stalled),
        }
    }

    fn deadline(&self) -> Option<Instant> {
        self.began.checked_add(self.context.deadline?)
    }

    /// When the program has said nothing for too long.
    fn silence_ends(&self, link: &Link) -> Option<Instant> {
        if !self.open_questions.is_empty() {
            // A person may take their time; the broker that asks them has its own deadline.
            return None;
        }
        let limit = if link.decoder.in_tool() { self.stall.max(TOOL_SILENCE) } else { self.stall };
        self.last_line.checked_add(limit)
    }

    async fn handle(&mut self, decoded: Decoded, link: &mut Link) -> Option<Item> {
        match decoded {
            Decoded::Event(event) => Some(Ok(ProviderItem::Event(event))),
            Decoded::PermissionAsked { request_id, request } => {
                self.ask(request_id, request);
                None
            }
            Decoded::Withdrawn { request_id } => {
                if let Some(open) = self.open_questions.iter().position(|(open, _)| *open == request_id) {
                    self.open_questions.remove(open).1.cancel();
                }
                None
            }
            Decoded::Unsupported { request_id, subtype } => {
                let refusal = wire::control_error(&request_id, &format!("`{subtype}` is not offered here"));
                link.send(&refusal).err().map(Err)
            }
            // The end of the turn tells more than the answer to the interrupt that brought it about.
            Decoded::Answered { .. } => None,
            Decoded::TurnEnd(end) => {
                link.state = State::Idle;
                Some(self.conclude(*end, link))
            }
            Decoded::Fault(error) => {
                link.break_off().await;
                Some(Err(error))
            }
        }
    }

    fn conclude(&self, end: TurnEnd, link: &Link) -> Item {
        let asked = match self.phase {
            Phase::Running => Asked::ToGoOn,
            Phase::Stopping { why: Why::Cancelled, .. } => Asked::ToStop,
            Phase::Stopping { why, .. } => return Err(self.too_late(why, link)),
        };
        conclude(end, asked, &link.redactor).map(ProviderItem::Output)
    }

    /// The program will not end the turn: ends the program, and the turn in its place.
    async fn abandon(&mut self, link: &mut Link) {
        let exit = link.break_off().await;
        let (closing, mut end) = link.decoder.abandon();
        end.session_id.get_or_insert_with(|| link.session.clone());
        end.duration_ms = self.began.elapsed().as_millis().try_into().unwrap_or(u64::MAX);
        self.next.extend(closing.into_iter().map(Step::Decoded));
        let item = match self.phase {
            Phase::Stopping { why: Why::Cancelled, .. } => Ok(output(end, StopReason::Aborted)),
            Phase::Stopping { why, .. } => Err(self.too_late(why, link)),
            Phase::Running => Err(died(exit, &link.process.stderr())),
        };
        self.next.push_back(Step::End(item.map(ProviderItem::Output)));
    }

    fn too_late(&self, why: Why, link: &Link) -> AgentError {
        let (kind, message) = match why {
            Why::DeadlinePassed => {
                let limit = self.context.deadline.unwrap_or_default().as_millis();
                (ErrorKind::Deadline, format!("the turn took longer than {limit} ms"))
            }
            _ => (
                ErrorKind::Stall,
                format!("the program said nothing for {} ms", self.last_line.elapsed().as_millis()),
            ),
        };
        let detail = json!({ "sessionId": link.session });
        AgentError::new(ErrorCode::Timeout, message).with_detail(detail).with_kind(kind)
    }

    fn ask(&mut self, request_id: String, request: PermissionRequest) {
        let input = request.input.clone();
        let decision: BoxFuture<'static, PermissionDecision> = match &self.context.permissions {
            Some(broker) => broker.request(request),
            None => {
                let message = format!("nobody is there who could allow {}", request.tool_name);
                Box::pin(std::future::ready(PermissionDecision::Deny { message }))
            }
        };
        let withdrawn = CancellationToken::new();
        self.open_questions.push((request_id.clone(), withdrawn.clone()));
        self.questions.push(Box::pin(async move {
            let decision = withdrawn.run_until_cancelled(decision).await?;
            Some(Answer { request_id, input, decision })
        }));
    }

    fn answer(&mut self, answer: Answer, link: &Link) -> Result<(), AgentError> {
        let Some(open) = self.open_questions.iter().position(|(open, _)| *open == answer.request_id) else {
            return Ok(());
        };
        self.open_questions.remove(open);
        // What the person took to answer is not the program's silence.
        self.last_line = Instant::now();
        let response = match answer.decision {
            PermissionDecision::Allow { updated_input } => {
                // An allowance without its input is taken for a denial.
                json!({ "behavior": "allow", "updatedInput": updated_input.unwrap_or(answer.input) })
            }
            PermissionDecision::Deny { message } => json!({ "behavior": "deny", "message": message }),
        };
        link.send(&wire::control_success(&answer.request_id, response))
    }
}
