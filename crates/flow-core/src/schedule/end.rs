//! How a run ends, comes to rest, or waits.

use inspan_protocol::{
    AgentError, ErrorCode, Event, NodeStatus, Outcome, PauseCause, SessionStatus, Timestamp, WaitingOn,
};

use super::{Action, CancelCause, Run, emit};

impl Run {
    /// Cancels what runs, and ends the session once nothing does.
    pub(super) fn wind_down(&mut self, now: Timestamp, actions: &mut Vec<Action>) {
        if self.facts.running > 0 {
            self.cancel_all(CancelCause::Ending, actions);
            return;
        }
        if let Some(ending) = self.facts.ending.clone() {
            self.finish(ending.outcome, ending.error, now, actions);
        }
    }

    /// Cancels what runs, and lays the session to rest once nothing does.
    pub(super) fn come_to_rest(&mut self, actions: &mut Vec<Action>) {
        if self.facts.running > 0 {
            self.cancel_all(CancelCause::Pausing, actions);
            return;
        }
        let reason = self.facts.pausing.clone().and_then(|pause| pause.reason);
        let paused = self.paused(reason, None);
        actions.push(emit(paused));
        actions.push(Action::Finish);
    }

    pub(super) fn paused(&self, reason: Option<String>, cause: Option<PauseCause>) -> Event {
        let cut = self.facts.nodes.entries().filter(|(_, node)| node.status == NodeStatus::Cancelled);
        let node_ids = cut.map(|(ix, _)| self.facts.path(&self.graph, ix)).collect();
        Event::FlowPaused { node_ids, reason, cause }
    }

    fn cancel_all(&mut self, reason: CancelCause, actions: &mut Vec<Action>) {
        for ix in self.facts.nodes.places() {
            if self.facts.nodes[ix].status == NodeStatus::Running {
                self.cancel(ix, reason, actions);
            }
        }
    }

    pub(super) fn finish(
        &mut self,
        outcome: Outcome,
        error: Option<AgentError>,
        now: Timestamp,
        actions: &mut Vec<Action>,
    ) {
        let name = self.graph.phase.clone();
        if !self.facts.phase_ended {
            actions.push(emit(match (outcome, error) {
                (Outcome::Success, _) => Event::PhaseComplete { name },
                (_, Some(error)) => Event::PhaseFailed { name, error },
                (_, None) => {
                    let error = AgentError::new(ErrorCode::Aborted, "the session was stopped");
                    Event::PhaseFailed { name, error }
                }
            }));
        }
        let duration_ms = self.facts.started_at().map_or(0, |started| now.since(started).as_millis() as u64);
        let success = outcome == Outcome::Success;
        actions.push(emit(Event::HarnessComplete { success, outcome, duration_ms }));
        actions.push(Action::Finish);
    }

    /// Nothing can be decided now: wait for what runs, or end.
    pub(super) fn rest(&mut self, now: Timestamp, actions: &mut Vec<Action>) {
        let state = &self.facts;
        let (mut asking, mut doubts) = (0, 0);
        for prompt in state.session.waits_for_input() {
            let Some(ix) = state.find(&self.graph, prompt.task.as_ref()) else { continue };
            let node = &state.nodes[ix];
            // One that was cut short has asked, and the attempt in its place is about to ask again.
            let asks = node.more.as_ref().is_some_and(|more| more.asks);
            asking += u32::from(node.status == NodeStatus::Running && asks);
            doubts += u32::from(node.status == NodeStatus::Pending && node.needs_confirmation);
        }
        if state.running > asking {
            return;
        }
        if asking + doubts > 0 {
            if state.session.status == SessionStatus::Running {
                let until = state.session.waits_for_input().filter_map(|prompt| prompt.deadline).min();
                actions.push(emit(Event::FlowWaiting { on: WaitingOn::Input, until }));
            }
            return;
        }
        if state.running > 0 {
            return;
        }
        if self.agenda.next_timer(now).is_some() {
            let limited = state.nodes.iter().filter(|node| node.status == NodeStatus::Waiting);
            let until = limited.filter_map(|node| node.retry_at).min();
            let retries = |node: &crate::state::NodeState| {
                node.status == NodeStatus::Pending && node.retry_at.is_some()
            };
            if until.is_some()
                && state.session.status == SessionStatus::Running
                && !state.nodes.iter().any(retries)
            {
                actions.push(emit(Event::FlowWaiting { on: WaitingOn::Limit, until }));
            }
            return;
        }
        if self.pause_for_budget(actions) {
            return;
        }
        let state = &self.facts;
        // It would be wrong to call this a success.
        let open: Vec<_> =
            state.nodes.iter().zip(&self.graph.flow().nodes).filter(|(node, _)| !node.has_ended()).collect();
        if !open.is_empty() {
            let names: Vec<_> = open.iter().take(5).map(|(_, node)| format!("`{}`", node.id)).collect();
            let message = format!("nothing can run any more, and {} never became ready", names.join(", "));
            let error = AgentError::new(ErrorCode::NodeFailed, message);
            return self.finish(Outcome::Failed, Some(error), now, actions);
        }
        match state.failure.clone() {
            Some(error) => self.finish(Outcome::Partial, Some(error), now, actions),
            None => self.finish(Outcome::Success, None, now, actions),
        }
    }
}
