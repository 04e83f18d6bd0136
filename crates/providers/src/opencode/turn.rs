//! One turn of a live server: its events as they come, the clocks it runs against, and how it is stopped. The questions
//! it asks are left to `turn/consent.rs`, its beginning to `turn/begin.rs`, starting the server to others.

use std::collections::VecDeque;
use std::time::Duration;

use inspan_protocol::{
    AgentError, ErrorCode, ErrorKind, ExecutionContext, ProviderItem, ProviderSessionId, StopReason,
    StreamEvent, Timestamp,
};
use tokio::time::{Instant, sleep_until};

use super::decode::{Answer as Elsewhere, Decoded, Decoder, Follows, TurnEnd};
use super::error::retrying;
use super::outcome::{Asked as Stop, conclude, output};
use super::server::{Server, State};
use crate::output::{PermissionDenial, TurnOutput};
use crate::transport::http::{Answer as Events, Broken};

mod begin;
mod consent;

pub(super) use begin::NotBegun;
use consent::{Answer, CHANGED, Consent, Question, Questions};

/// How long an aborted turn may take to end by itself.
const GRACE: Duration = Duration::from_secs(2);
/// A tool may be silent for so long at least; the program ends its own tools before that.
const TOOL_SILENCE: Duration = Duration::from_secs(30 * 60);

/// An item of the turn's stream.
pub(super) type Item = Result<ProviderItem<TurnOutput>, AgentError>;

/// What bounds a turn.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// How long nothing may be heard.
    pub(super) stall: Duration,
    /// Messages that the model may write.
    pub(super) steps: Option<u32>,
}

/// The turn in progress.
pub(super) struct Turn {
    context: ExecutionContext,
    session: ProviderSessionId,
    bounds: Bounds,
    began: Instant,
    last_word: Instant,
    phase: Phase,
    events: Events,
    decoder: Decoder,
    steps: u32,
    next: VecDeque<Step>,
    questions: Questions,
    denials: Vec<PermissionDenial>,
}

/// What is to be handed on next.
enum Step {
    Decoded(Decoded),
    End(Item),
}

#[derive(Clone, Debug, PartialEq)]
enum Phase {
    Running,
    /// The program is done, and may take until then to close what is open.
    Closing {
        until: Instant,
    },
    /// The program was asked to stop, and may take until then.
    Stopping {
        why: Why,
        until: Instant,
    },
}

/// Why a turn is stopped before its end.
#[derive(Clone, Debug, PartialEq)]
enum Why {
    Cancelled,
    Stalled,
    DeadlinePassed,
    StepsUsed,
    /// The program would go on with what is the caller's to decide.
    Failed(AgentError),
}

/// What the turn waited for.
enum Woken {
    Bytes(Result<Option<Vec<u8>>, AgentError>),
    Stop(Why),
    GraceOver,
    Died,
    Nothing,
    /// Nothing, if the question was withdrawn.
    Decided(Option<Answer>),
}

/// A moment that no turn lives to see.
fn far() -> Instant {
    Instant::now() + Duration::from_secs(365 * 24 * 60 * 60)
}

impl Turn {
    /// The next item. After an output or an error there is none.
    pub(super) async fn next(&mut self, server: &mut Server) -> Item {
        loop {
            while let Some(step) = self.next.pop_front() {
                let item = match step {
                    Step::End(item) => Some(item),
                    Step::Decoded(decoded) => self.handle(decoded, server).await,
                };
                if let Some(item) = item {
                    if !matches!(item, Ok(ProviderItem::Event(_))) {
                        server.prompt = self.decoder.prompt().map(str::to_owned);
                    }
                    return item;
                }
            }
            match self.wait(server).await {
                Woken::Nothing => {}
                Woken::Bytes(Ok(Some(bytes))) => {
                    let heard = self.decoder.heard();
                    self.next.extend(self.decoder.push(&bytes).into_iter().map(Step::Decoded));
                    if self.decoder.heard() != heard {
                        self.last_word = Instant::now();
                    }
                }
                Woken::Bytes(Ok(None)) => {
                    let message = "the program's server ended its events before the turn did";
                    self.lose(AgentError::new(ErrorCode::Protocol, message), server).await;
                }
                Woken::Bytes(Err(error)) => self.lose(error, server).await,
                Woken::Died => {
                    self.lose(AgentError::new(ErrorCode::Process, "the program ended"), server).await
                }
                Woken::Stop(why) => self.stop(why, server).await,
                Woken::GraceOver => self.abandon(None, server).await,
                Woken::Decided(answer) => {
                    if let Some(answer) = answer
                        && let Err(error) = self.answer(answer, server).await
                    {
                        self.abandon(Some(error), server).await;
                    }
                }
            }
        }
    }

    /// What is said is taken before silence is noticed, because whoever reads this turn may have been away for a
    /// while. A program that never stops talking cannot hold off the other limits by that.
    async fn wait(&mut self, server: &mut Server) -> Woken {
        let cancelled = self.context.cancel.clone();
        let running = self.phase == Phase::Running;
        let stopping = matches!(self.phase, Phase::Stopping { .. });
        let silence = self.silence_ends().unwrap_or_else(far);
        let (limit, over) = match self.phase {
            Phase::Stopping { until, .. } | Phase::Closing { until } => (until, Woken::GraceOver),
            Phase::Running => (self.deadline().unwrap_or_else(far), Woken::Stop(Why::DeadlinePassed)),
        };
        tokio::select! {
            biased;
            () = cancelled.cancelled(), if running => Woken::Stop(Why::Cancelled),
            () = sleep_until(limit) => over,
            bytes = self.events.chunk() => Woken::Bytes(match bytes {
                Ok(bytes) => Ok(bytes.map(|bytes| bytes.as_ref().to_vec())),
                Err(Broken::Failed(error)) => Err(error),
                Err(Broken::Cancelled) => Ok(None),
            }),
            // What it prints means nothing, but must not fill its pipe.
            said = server.process.read() => if said.is_some() { Woken::Nothing } else { Woken::Died },
            answer = self.questions.next(), if !stopping && self.questions.are_pending() => Woken::Decided(answer),
            () = sleep_until(silence), if running => Woken::Stop(Why::Stalled),
        }
    }

    fn deadline(&self) -> Option<Instant> {
        self.began.checked_add(self.context.deadline?)
    }

    /// When the program has said nothing for too long.
    fn silence_ends(&self) -> Option<Instant> {
        // While a person is asked, nothing can be said.
        if self.questions.are_open() {
            return None;
        }
        let stall = self.bounds.stall;
        let limit = if self.decoder.in_tool() { stall.max(TOOL_SILENCE) } else { stall };
        self.last_word.checked_add(limit)
    }

    async fn handle(&mut self, decoded: Decoded, server: &mut Server) -> Option<Item> {
        match decoded {
            Decoded::Event(event) => return Some(Ok(ProviderItem::Event(event))),
            Decoded::Connected => {}
            Decoded::Asked { request_id: id, asked, request } => self.ask(Question { id, asked, request }),
            Decoded::Answered { request_id, answer } => self.answered(&request_id, answer),
            Decoded::Step { follows } => {
                self.steps += 1;
                let used = self.bounds.steps.is_some_and(|most| self.steps >= most);
                if used && follows == Follows::Another {
                    self.stop(Why::StepsUsed, server).await;
                }
            }
            Decoded::Retry { attempt, message, reason, next } => {
                let error = retrying(&message, reason.as_deref(), next, now()).with("attempt", attempt);
                self.stop(Why::Failed(error), server).await;
            }
            Decoded::Hopeless(error) => self.stop(Why::Failed(error), server).await,
            Decoded::Closing => {
                if self.phase == Phase::Running {
                    self.phase = Phase::Closing { until: Instant::now() + GRACE };
                }
            }
            Decoded::TurnEnd(end) => {
                server.state = State::Idle;
                let item = self.conclude(*end, server);
                return Some(item.map(ProviderItem::Output));
            }
            Decoded::Fault(error) => {
                server.break_off().await;
                return Some(Err(error));
            }
        }
        None
    }

    /// Asks the program to end the turn. Its tools' shells end with that, and with nothing less.
    async fn stop(&mut self, why: Why, server: &mut Server) {
        if self.phase != Phase::Running {
            return;
        }
        self.phase = Phase::Stopping { why, until: Instant::now() + GRACE };
        self.questions.clear();
        if server.abort(&self.session, GRACE).await.is_err() {
            self.abandon(None, server).await;
        }
    }

    fn conclude(&mut self, end: TurnEnd, server: &Server) -> Result<TurnOutput, AgentError> {
        let output = match std::mem::replace(&mut self.phase, Phase::Running) {
            Phase::Running | Phase::Closing { .. } => conclude(end, Stop::ToGoOn, &server.redactor),
            Phase::Stopping { why: Why::Cancelled, .. } => conclude(end, Stop::ToStop, &server.redactor),
            Phase::Stopping { why: Why::StepsUsed, .. } => Ok(output(end, StopReason::MaxTurns)),
            Phase::Stopping { why, .. } => Err(self.stopped(why, server)),
        };
        output.map(|output| self.complete(output))
    }

    fn complete(&mut self, output: TurnOutput) -> TurnOutput {
        TurnOutput {
            session_id: Some(self.session.clone()),
            permission_denials: std::mem::take(&mut self.denials),
            ..output
        }
    }

    fn stopped(&self, why: Why, server: &Server) -> AgentError {
        let (kind, message) = match why {
            Why::Failed(error) => {
                return AgentError { message: server.redactor.text(&error.message), ..error };
            }
            Why::DeadlinePassed => {
                let limit = self.context.deadline.unwrap_or_default().as_millis();
                (ErrorKind::Deadline, format!("the turn took longer than {limit} ms"))
            }
            _ => (
                ErrorKind::Stall,
                format!("the program said nothing for {} ms", self.last_word.elapsed().as_millis()),
            ),
        };
        AgentError::new(ErrorCode::Timeout, message).with_kind(kind)
    }

    /// The server went away.
    async fn lose(&mut self, error: AgentError, server: &mut Server) {
        let error = server.lost(error).await;
        self.abandon(Some(error), server).await;
    }

    /// The program will not end the turn: ends the program, and the turn in its place.
    async fn abandon(&mut self, error: Option<AgentError>, server: &mut Server) {
        server.break_off().await;
        let (closing, end) = self.decoder.abandon();
        self.next.extend(closing.into_iter().map(Step::Decoded));
        let item = match (&self.phase, error) {
            (Phase::Stopping { why: Why::Cancelled, .. }, _) => {
                let output = output(end, StopReason::Aborted);
                Ok(self.complete(output))
            }
            (Phase::Running, Some(error)) => Err(error),
            _ => self.conclude(end, server),
        };
        self.next.push_back(Step::End(item.map(ProviderItem::Output)));
    }

    fn ask(&mut self, question: Question) {
        if self.phase == Phase::Running {
            self.questions.ask(self.context.permissions.as_deref(), question);
        }
    }

    /// Somebody answered. A denial denies whatever else the program asks at the time, too.
    fn answered(&mut self, id: &str, answer: Elsewhere) {
        let Some(question) = self.questions.withdraw(id) else { return };
        self.last_word = Instant::now();
        if answer == Elsewhere::Refused {
            self.denials.push(question.denial());
        }
    }

    async fn answer(&mut self, answer: Answer, server: &Server) -> Result<(), AgentError> {
        // What the person took to answer is not the program's silence.
        self.last_word = Instant::now();
        let consent = answer.consent();
        if consent == Consent::Changed {
            // The program runs what it asked about, and nothing else.
            let code = "inputNotChanged".to_owned();
            let warning = StreamEvent::Warning { code, message: CHANGED.to_owned() };
            self.next.push_back(Step::Decoded(Decoded::Event(warning)));
        }
        if consent != Consent::Given {
            self.denials.push(answer.question.denial());
        }
        let (path, body) = answer.reply();
        server.answer(&path, &body).await
    }
}

/// The moment, by the clock that the program on this machine goes by.
#[expect(clippy::disallowed_methods, reason = "the program tells moments, of which a wait is to be made")]
fn now() -> Timestamp {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    Timestamp::from_millis(since.as_millis().try_into().unwrap_or(i64::MAX))
}
