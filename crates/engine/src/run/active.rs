//! A run: its turns, what follows each of them (the next with the messages that wait, a repair of the output, a wait, or
//! the end), and the guarantee that a run that has begun ends exactly once, also when its future is dropped or panics.

use std::{sync::Arc, time::Duration};

use inspan_protocol::{
    AgentError, ErrorCode, InputFacts, MultiTurn, ProviderSessionId, RunId, StopReason, Timestamp, Usage,
};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::{
    RunEnd,
    mailbox::{Mail, Mailbox, UNDELIVERED, Wakeup, undelivered},
    output::{OutputCheck, Totals, invalid, repair_message},
    state::{RunEvents, RunInput},
    turn::{Cut, ProviderCall, TurnEnd},
};
use crate::hub::Hub;

/// A run from its first turn to its end.
pub(super) struct ActiveRun {
    pub(super) open: OpenRun,
    pub(super) call: ProviderCall,
    pub(super) facts: InputFacts,
    pub(super) check: Option<OutputCheck>,
    pub(super) idle_timeout: Duration,
    pub(super) totals: Totals,
}

/// What comes after a turn.
enum AfterTurn {
    /// One more turn with this input, in which so many messages are.
    Turn(Value, usize),
    /// The end; these messages were taken and will not be delivered.
    End(StopReason, Vec<Mail>),
    Fail(AgentError, Vec<Mail>),
}

/// The most bytes that an answer may take as JSON to be written down before the run ends.
const MOST_NOTED_BYTES: usize = 256 * 1024;

/// Whether the agent may still be asked to fix its output.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Repair {
    Left,
    Used,
}

impl ActiveRun {
    /// `listens`: it begins by waiting for messages.
    pub(super) async fn run(mut self, mut input: Value, mut listens: bool) -> Result<RunEnd, AgentError> {
        let (mut repair, mut messages) = (Repair::Left, 0);
        loop {
            if self.call.cancel.is_cancelled() {
                return Ok(self.end(StopReason::Aborted, Vec::new()));
            }
            let step = if std::mem::take(&mut listens) {
                self.next(&input, &mut repair).await
            } else {
                let left = self.facts.max_turns.map(|max| max.saturating_sub(self.totals.model_turns));
                let turn = self.call.turn(&mut self.open, input.clone(), messages, left).await;
                self.totals.denials.extend(turn.denials);
                match self.after_turn(turn.end, turn.cut) {
                    Some(step) => step,
                    None => self.next(&input, &mut repair).await,
                }
            };
            match step {
                AfterTurn::Turn(next, delivered) => (input, messages) = (next, delivered),
                AfterTurn::End(stop_reason, taken) => return Ok(self.end(stop_reason, taken)),
                AfterTurn::Fail(error, taken) => {
                    self.open.end(StopReason::Error, taken);
                    let error = error.with_denials(&self.totals.denials);
                    return Err(error.from_provider(&self.call.provider_type));
                }
            }
        }
    }

    /// Adds the turn to the sums; returns the end of the run if the turn's end means that.
    fn after_turn(&mut self, end: TurnEnd, cut: Option<Cut>) -> Option<AfterTurn> {
        let stop_reason = match end {
            TurnEnd::Failed(error) => {
                let error = if cut == Some(Cut::Deadline) { self.timeout() } else { error };
                return Some(AfterTurn::Fail(error, Vec::new()));
            }
            TurnEnd::Interrupted => {
                self.totals.add_interrupted();
                StopReason::Aborted
            }
            TurnEnd::Output(output, facts) => {
                let stop_reason = facts.stop_reason;
                self.totals.add(output, facts);
                stop_reason
            }
        };
        match (cut, stop_reason) {
            // The turn had ended before the interruption reached it.
            (_, StopReason::Complete) | (Some(Cut::Steered), _) => None,
            (Some(Cut::Cancelled), _) => Some(AfterTurn::End(StopReason::Aborted, Vec::new())),
            (Some(Cut::Deadline), _) => Some(AfterTurn::Fail(self.timeout(), Vec::new())),
            (None, StopReason::Aborted | StopReason::Error) => Some(AfterTurn::End(stop_reason, Vec::new())),
            (None, _) => None,
        }
    }

    async fn next(&mut self, input: &Value, repair: &mut Repair) -> AfterTurn {
        let mailbox = self.open.mailbox();
        // What began by waiting has that in the log of the run before.
        let mut is_new = self.totals.calls > 0;
        loop {
            let waiting = mailbox.take();
            if !waiting.is_empty() {
                *repair = Repair::Left;
                return self.deliver(input, waiting);
            }
            if let Some(step) = self.check_output(input, repair) {
                return step;
            }
            if self.facts.multi_turn == MultiTurn::Off || mailbox.is_closing() {
                let late = mailbox.take_or_close();
                if late.is_empty() {
                    return AfterTurn::End(self.stop_reason(), late);
                }
                *repair = Repair::Left;
                return self.deliver(input, late);
            }
            if self.turns_used_up() {
                return AfterTurn::End(StopReason::MaxTurns, Vec::new());
            }
            if std::mem::take(&mut is_new) {
                self.note_answer();
            }
            let idle_until = Instant::now() + self.idle_timeout;
            let until = self.call.deadline.map_or(idle_until, |deadline| deadline.min(idle_until));
            tokio::select! {
                biased;
                () = self.call.cancel.cancelled() => return AfterTurn::End(StopReason::Aborted, Vec::new()),
                wakeup = mailbox.wakeup() => match wakeup {
                    Wakeup::Mail | Wakeup::Closing => continue,
                },
                () = sleep_until(until) => {}
            }
            if until < idle_until {
                return AfterTurn::Fail(self.timeout(), Vec::new());
            }
            let late = mailbox.take_or_close();
            if late.is_empty() {
                return AfterTurn::End(self.stop_reason(), late);
            }
            *repair = Repair::Left;
            return self.deliver(input, late);
        }
    }

    /// Writes down what the run gives if no message comes.
    fn note_answer(&mut self) {
        let totals = self.totals.clone();
        let (output, _) = totals.finish(self.stop_reason(), self.open.usage(), self.open.session().cloned());
        if output.to_string().len() <= MOST_NOTED_BYTES {
            self.open.apply(RunInput::Listens(output));
        }
    }

    /// The turn that delivers these messages, if there may be one.
    fn deliver(&self, input: &Value, waiting: Vec<Mail>) -> AfterTurn {
        if self.call.cancel.is_cancelled() {
            return AfterTurn::End(StopReason::Aborted, waiting);
        }
        if self.turns_used_up() {
            return AfterTurn::End(StopReason::MaxTurns, waiting);
        }
        if self.is_late() {
            return AfterTurn::Fail(self.timeout(), waiting);
        }
        let Some(session) = self.open.session() else {
            self.open.warn("noSession", "the provider named no conversation, so the run cannot continue");
            return AfterTurn::End(self.stop_reason(), waiting);
        };
        let mut texts: Vec<_> = waiting.iter().map(|mail| mail.content.as_str()).collect();
        if self.totals.was_cut && self.call.provider.descriptor().capabilities.forgets_cut_turns {
            texts.splice(..0, input["prompt"].as_str());
        }
        match self.call.provider.resume(input.clone(), session, &texts.join("\n\n")) {
            Ok(input) => AfterTurn::Turn(input, waiting.len()),
            Err(error) => AfterTurn::Fail(error, waiting),
        }
    }

    /// A repair or an error if the structured output is wanted and does not fit.
    fn check_output(&self, input: &Value, repair: &mut Repair) -> Option<AfterTurn> {
        let facts = self.totals.last_facts();
        let output = facts.and_then(|facts| facts.structured_output.as_ref());
        let violations = self.check.as_ref()?.violations(output);
        if violations.is_empty() {
            return None;
        }
        let refused = facts.is_some_and(|facts| facts.stop_reason == StopReason::Refusal);
        let fail = |error| Some(AfterTurn::Fail(error, Vec::new()));
        let Some(session) = self.open.session() else { return fail(invalid(&violations)) };
        if *repair == Repair::Used || refused {
            return fail(invalid(&violations));
        }
        if self.call.cancel.is_cancelled() {
            return Some(AfterTurn::End(StopReason::Aborted, Vec::new()));
        }
        if self.is_late() {
            return fail(self.timeout());
        }
        *repair = Repair::Used;
        self.open.warn("repair", format!("asked to fix its structured output: {}", violations.join("; ")));
        match self.call.provider.resume(input.clone(), session, &repair_message(&violations)) {
            Ok(input) => Some(AfterTurn::Turn(input, 0)),
            Err(error) => fail(error),
        }
    }

    fn turns_used_up(&self) -> bool {
        self.facts.max_turns.is_some_and(|max| self.totals.model_turns >= max)
    }

    fn is_late(&self) -> bool {
        self.call.deadline.is_some_and(|deadline| Instant::now() >= deadline)
    }

    fn timeout(&self) -> AgentError {
        self.call.error(ErrorCode::Timeout, "the run did not end by its deadline")
    }

    /// Why the last turn ended, for a run that ends with it.
    fn stop_reason(&self) -> StopReason {
        self.totals.last_facts().map_or(StopReason::Aborted, |facts| facts.stop_reason)
    }

    fn end(mut self, stop_reason: StopReason, taken: Vec<Mail>) -> RunEnd {
        // To the flow these are successes; nobody would see that an answer may be cut off.
        match stop_reason {
            StopReason::MaxTokens => {
                let message = "stopped at the limit of tokens for one answer: the answer is not whole";
                self.open.warn("maxTokens", message);
            }
            StopReason::MaxTurns => {
                let message = "stopped at the limit of turns: the agent had not said that it is done";
                self.open.warn("maxTurns", message);
            }
            _ => {}
        }
        self.open.end(stop_reason, taken);
        let run_id = self.open.run_id().clone();
        let (turns, denials) = (self.totals.calls, self.totals.denials.clone());
        let session = self.open.session().cloned();
        let (output, facts) = self.totals.finish(stop_reason, self.open.usage(), session);
        RunEnd { run_id, output, facts, turns, denials }
    }
}

/// Where a run puts the messages that it did not deliver.
pub(crate) type Undelivered = Arc<Mutex<Vec<Mail>>>;

/// How many events of a session may be emitted and not yet stored before its agents have to wait.
pub(super) const BACKLOG: u64 = 8_192;

/// A run that has begun: its events and its mailbox.
pub(crate) struct OpenRun {
    pub(super) hub: Hub,
    events: RunEvents,
    mailbox: Arc<Mailbox>,
    began: Timestamp,
    turn: CancellationToken,
    undelivered: Option<Undelivered>,
}

impl OpenRun {
    /// Begins the run; its mailbox is open already, so that no message falls between the two.
    pub(crate) fn begin(
        hub: Hub,
        events: RunEvents,
        mailbox: impl Into<Arc<Mailbox>>,
        turn: u32,
        undelivered: Option<Undelivered>,
    ) -> Self {
        let began = hub.clock().now();
        let turn_cancel = CancellationToken::new();
        let mut run = Self { hub, events, mailbox: mailbox.into(), began, turn: turn_cancel, undelivered };
        run.apply(RunInput::Begin { turn });
        run
    }

    pub(super) fn now(&self) -> Timestamp {
        self.hub.clock().now()
    }

    pub(super) fn apply(&mut self, input: RunInput<'_>) {
        for event in self.events.apply(input) {
            self.hub.emit(event);
        }
    }

    /// As [`OpenRun::apply`], and waits until its last event is stored, if there is a store.
    pub(super) async fn apply_and_store(&mut self, input: RunInput<'_>) {
        let mut last = None;
        for event in self.events.apply(input) {
            last = Some(self.hub.emit(event).seq);
        }
        if let Some(seq) = last {
            self.hub.until_stored(seq).await;
        }
    }

    /// Whether more events are still to be stored than may be.
    pub(super) fn is_behind(&self) -> bool {
        self.hub.unstored() > BACKLOG
    }

    /// Waits until the store has caught up.
    pub(super) async fn catches_up(&self) {
        self.hub.until_stored(self.hub.last_seq().saturating_sub(BACKLOG / 2)).await;
    }

    pub(super) fn warn(&self, code: &str, message: impl Into<String>) {
        self.hub.emit(self.events.warning(code, message));
    }

    pub(super) fn begin_turn(&mut self, parent: &CancellationToken) -> CancellationToken {
        self.turn = parent.child_token();
        self.turn.clone()
    }

    pub(super) fn cancel_turn(&self) {
        self.turn.cancel();
    }

    pub(super) fn mailbox(&self) -> Arc<Mailbox> {
        Arc::clone(&self.mailbox)
    }

    pub(super) fn session(&self) -> Option<&ProviderSessionId> {
        self.events.session()
    }

    pub(super) fn run_id(&self) -> &RunId {
        self.events.run_id()
    }

    pub(super) fn usage(&self) -> Usage {
        self.events.usage()
    }

    /// Ends the run: closes the mailbox, warns of every message that no turn will read (`taken` were already taken out)
    /// or stores them for the caller that wants them, and completes.
    pub(crate) fn end(&mut self, stop_reason: StopReason, taken: Vec<Mail>) {
        let waiting = self.mailbox.close();
        let mut unread: Vec<_> = taken.into_iter().chain(waiting).collect();
        if let Some(undelivered) = &self.undelivered {
            undelivered.lock().append(&mut unread);
        }
        for mail in unread {
            self.warn(UNDELIVERED, undelivered(&mail));
        }
        let duration = self.hub.clock().now().since(self.began);
        let duration_ms = duration.as_millis().try_into().unwrap_or(u64::MAX);
        self.apply(RunInput::End { stop_reason, duration_ms });
    }
}

impl Drop for OpenRun {
    fn drop(&mut self) {
        if !self.events.has_ended() {
            self.turn.cancel();
            self.end(StopReason::Aborted, Vec::new());
        }
    }
}
