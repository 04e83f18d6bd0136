//! What follows a turn: the next one with the messages that wait, a repair, a wait, or the end of the run.
//! Driving a turn itself is left to `turn`.

use std::time::Duration;

use inspan_protocol::{AgentError, ErrorCode, InputFacts, MultiTurn, StopReason};
use serde_json::Value;
use tokio::time::{Instant, sleep_until};

use super::{
    RunEnd,
    live::Live,
    mailbox::{Mail, Wakeup},
    structured::{OutputCheck, invalid, repair_message},
    totals::Totals,
    turn::{Cut, Setting, TurnEnd},
};

pub(super) struct Driver {
    pub(super) live: Live,
    pub(super) setting: Setting,
    pub(super) facts: InputFacts,
    pub(super) check: Option<OutputCheck>,
    pub(super) idle_timeout: Duration,
    pub(super) totals: Totals,
}

/// What comes after a turn.
enum Step {
    /// One more turn with this input.
    Turn(Value),
    /// The end; these messages were taken and will not be delivered.
    End(StopReason, Vec<Mail>),
    Fail(AgentError, Vec<Mail>),
}

/// Whether the agent may still be asked to mend its output.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Repair {
    Left,
    Used,
}

impl Driver {
    pub(super) async fn run(mut self, mut input: Value) -> Result<RunEnd, AgentError> {
        let mut repair = Repair::Left;
        loop {
            if self.setting.cancel.is_cancelled() {
                return Ok(self.end(StopReason::Aborted, Vec::new()));
            }
            let left = self.facts.max_turns.map(|max| max.saturating_sub(self.totals.model_turns));
            let turn = self.setting.turn(&mut self.live, input.clone(), left).await;
            let step = match self.after_turn(turn.end, turn.cut) {
                Some(step) => step,
                None => self.next(&input, &mut repair).await,
            };
            match step {
                Step::Turn(next) => input = next,
                Step::End(stop_reason, taken) => return Ok(self.end(stop_reason, taken)),
                Step::Fail(error, taken) => {
                    self.live.end(StopReason::Error, taken);
                    return Err(error.from_provider(&self.setting.provider_type));
                }
            }
        }
    }

    /// Adds the turn up; the end of the run if the way the turn ended says so.
    fn after_turn(&mut self, end: TurnEnd, cut: Option<Cut>) -> Option<Step> {
        let stop_reason = match end {
            TurnEnd::Failed(error) => {
                let error = if cut == Some(Cut::Deadline) { self.timeout() } else { error };
                return Some(Step::Fail(error, Vec::new()));
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
            // The turn was done before the cut reached it.
            (_, StopReason::Complete) | (Some(Cut::Steered), _) => None,
            (Some(Cut::Cancelled), _) => Some(Step::End(StopReason::Aborted, Vec::new())),
            (Some(Cut::Deadline), _) => Some(Step::Fail(self.timeout(), Vec::new())),
            (None, StopReason::Aborted | StopReason::Error) => Some(Step::End(stop_reason, Vec::new())),
            (None, _) => None,
        }
    }

    async fn next(&self, input: &Value, repair: &mut Repair) -> Step {
        let mailbox = self.live.mailbox();
        loop {
            let waiting = mailbox.take();
            if !waiting.is_empty() {
                *repair = Repair::Left;
                return self.go_on(input, waiting);
            }
            if let Some(step) = self.check_output(input, repair) {
                return step;
            }
            if self.facts.multi_turn == MultiTurn::Off || mailbox.is_closing() {
                let late = mailbox.take_or_close();
                if late.is_empty() {
                    return Step::End(self.stop_reason(), late);
                }
                *repair = Repair::Left;
                return self.go_on(input, late);
            }
            if self.turns_used_up() {
                return Step::End(StopReason::MaxTurns, Vec::new());
            }
            let idle_until = Instant::now() + self.idle_timeout;
            let until = self.setting.deadline.map_or(idle_until, |deadline| deadline.min(idle_until));
            tokio::select! {
                biased;
                () = self.setting.cancel.cancelled() => return Step::End(StopReason::Aborted, Vec::new()),
                wakeup = mailbox.wakeup() => match wakeup {
                    Wakeup::Mail | Wakeup::Closing => continue,
                },
                () = sleep_until(until) => {}
            }
            if until < idle_until {
                return Step::Fail(self.timeout(), Vec::new());
            }
            let late = mailbox.take_or_close();
            if late.is_empty() {
                return Step::End(self.stop_reason(), late);
            }
            *repair = Repair::Left;
            return self.go_on(input, late);
        }
    }

    /// The turn that delivers these messages, if there may be one.
    fn go_on(&self, input: &Value, waiting: Vec<Mail>) -> Step {
        if self.setting.cancel.is_cancelled() {
            return Step::End(StopReason::Aborted, waiting);
        }
        if self.turns_used_up() {
            return Step::End(StopReason::MaxTurns, waiting);
        }
        if self.is_late() {
            return Step::Fail(self.timeout(), waiting);
        }
        let Some(session) = self.live.session() else {
            self.live.warn("noSession", "the provider named no conversation, so the run cannot go on");
            return Step::End(self.stop_reason(), waiting);
        };
        let texts: Vec<_> = waiting.iter().map(|mail| mail.content.as_str()).collect();
        match self.setting.provider.resume(input.clone(), session, &texts.join("\n\n")) {
            Ok(input) => Step::Turn(input),
            Err(error) => Step::Fail(error, waiting),
        }
    }

    /// A repair or an error if the structured output is wanted and does not fit.
    fn check_output(&self, input: &Value, repair: &mut Repair) -> Option<Step> {
        let facts = self.totals.last_facts();
        let output = facts.and_then(|facts| facts.structured_output.as_ref());
        let violations = self.check.as_ref()?.violations(output);
        if violations.is_empty() {
            return None;
        }
        let refused = facts.is_some_and(|facts| facts.stop_reason == StopReason::Refusal);
        let fail = |error| Some(Step::Fail(error, Vec::new()));
        let Some(session) = self.live.session() else { return fail(invalid(&violations)) };
        if *repair == Repair::Used || refused {
            return fail(invalid(&violations));
        }
        if self.setting.cancel.is_cancelled() {
            return Some(Step::End(StopReason::Aborted, Vec::new()));
        }
        if self.is_late() {
            return fail(self.timeout());
        }
        *repair = Repair::Used;
        self.live.warn("repair", format!("asked to mend its structured output: {}", violations.join("; ")));
        match self.setting.provider.resume(input.clone(), session, &repair_message(&violations)) {
            Ok(input) => Some(Step::Turn(input)),
            Err(error) => fail(error),
        }
    }

    fn turns_used_up(&self) -> bool {
        self.facts.max_turns.is_some_and(|max| self.totals.model_turns >= max)
    }

    fn is_late(&self) -> bool {
        self.setting.deadline.is_some_and(|deadline| Instant::now() >= deadline)
    }

    fn timeout(&self) -> AgentError {
        self.setting.error(ErrorCode::Timeout, "the run did not end by its deadline")
    }

    /// Why the last turn ended, for a run that ends with it.
    fn stop_reason(&self) -> StopReason {
        self.totals.last_facts().map_or(StopReason::Aborted, |facts| facts.stop_reason)
    }

    fn end(mut self, stop_reason: StopReason, taken: Vec<Mail>) -> RunEnd {
        self.live.end(stop_reason, taken);
        let run_id = self.live.run_id().clone();
        let turns = self.totals.calls;
        let session = self.live.session().cloned();
        let (output, facts) = self.totals.finish(stop_reason, self.live.usage(), session);
        RunEnd { run_id, output, facts, turns }
    }
}
