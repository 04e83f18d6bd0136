//! How a run ends, becomes idle, or waits.

use std::sync::Arc;

use inspan_protocol::{
    AgentError, EdgeStatus, ErrorCode, Event, NodeStatus, Outcome, PauseCause, Prompt, SessionStatus,
    Timestamp, WaitingOn,
};
use serde_json::Value;

use super::{Action, CancelCause, Run, emit, frames::check_value};
use crate::{
    graph::{EdgeIx, FrameIx, NodeIx, TaskRef},
    node::{NodeKind, Occupies},
    state::{NodeState, Pause},
};

impl Run {
    /// Cancels what runs, runs what cleans up, and ends the session once nothing runs.
    pub(super) fn wind_down(&mut self, now: Timestamp, actions: &mut Vec<Action>) {
        self.cancel_all(CancelCause::Ending, actions);
        actions.extend(self.fail_cut());
        let cleans_up = |(task, node): &(TaskRef, &NodeState)| {
            node.status == NodeStatus::Running && node.frames.is_none() && !self.facts.must_end(*task)
        };
        let cleaning = self.facts.tasks().filter(cleans_up).count() as u32;
        let Some(ending) = self.facts.ending.clone() else { return };
        if !actions.is_empty() || self.facts.running() > cleaning {
            return;
        }
        // A question need not end by itself. All else that cleans up is waited for.
        let asking: Vec<TaskRef> = self.asking().collect();
        let only_asks = self.facts.running() <= asking.len() as u32;
        let is_stopped = ending.outcome == Outcome::Stopped;
        if only_asks && is_stopped && !asking.is_empty() {
            return asking.iter().for_each(|task| self.cancel(*task, CancelCause::Ending, actions));
        }
        // A stop is more than the pause before it.
        if !is_stopped && self.pause_cleanup(only_asks, actions) {
            return;
        }
        self.take_answers(actions);
        // What cleans up may run frames, in which nodes follow each other as elsewhere.
        if actions.is_empty() {
            self.follow_up(now, actions);
        }
        if actions.is_empty() {
            self.clean_up(FrameIx::FLOW, false, actions);
        }
        while actions.is_empty()
            && let Some(task) = self.candidate(now)
        {
            self.consider(task, super::Deferral::Over, actions);
        }
        if actions.is_empty() {
            self.open_next_frame(now, actions);
        }
        if !actions.is_empty() || !only_asks {
            return;
        }
        if !asking.is_empty() {
            let deadlines = self.facts.session.waits_for_input().filter_map(|open| open.deadline);
            return self.wait_for_people(deadlines.min(), actions);
        }
        if self.agenda.next_timer(now).is_some() {
            return;
        }
        // A person says what becomes of a node that cleans up and was cut short, unless all is to stop.
        let doubts = self
            .open_questions()
            .filter(|(task, _)| !self.facts.must_end(*task) && self.needs_confirmation(*task))
            .map(|(_, prompt)| prompt.deadline);
        if let Some(until) = doubts.reduce(|one, other| one.into_iter().chain(other).min())
            && !is_stopped
        {
            return self.wait_for_people(until, actions);
        }
        self.clean_up(FrameIx::FLOW, true, actions);
        if !actions.is_empty() {
            return;
        }
        self.finish(ending.outcome, ending.error, now, actions);
    }

    /// Fails what a budget has cut and nothing continues, so that what comes after it runs. It begins no more for that: its
    /// conversation stays as it is, and nobody is asked about it.
    fn fail_cut(&self) -> Option<Action> {
        let (task, node) = self.facts.tasks().find(|(task, _)| self.facts.is_cut_for_good(*task))?;
        let error = self.cut_by_budget(task).with_denials(node.denied());
        let task_id = self.facts.spec(&self.graph, task).id.clone();
        let event = Event::TaskFailed { task_id, error, will_retry: false };
        Some(Action::Emit { task: Some(self.facts.path(&self.graph, task)), event })
    }

    /// Cuts short for a pause what cleans up and is not to go on, and lays the session to rest once nothing else runs; returns
    /// whether there is anything that the pause cuts. Nothing more starts then: it may have to come after what was cut.
    fn pause_cleanup(&mut self, only_asks: bool, actions: &mut Vec<Action>) -> bool {
        if self.facts.pausing.is_none() {
            return false;
        }
        let was_cut = |(task, node): (TaskRef, &NodeState)| {
            node.status == NodeStatus::Cancelled && !self.facts.must_end(task)
        };
        let has_cut = self.asking().next().is_some() || self.facts.tasks().any(was_cut);
        let cuts = self.has_cleanup_to_cut();
        if cuts {
            self.cut_cleanup(actions);
        }
        if only_asks && (cuts || has_cut) && actions.is_empty() {
            self.pause_when_idle(actions);
        }
        cuts || has_cut
    }

    /// Whether something cleans up, or is about to, that a pause cuts short: it may cost money, or run for long.
    fn has_cleanup_to_cut(&self) -> bool {
        self.facts.tasks().any(|(task, node)| {
            let cleans_up = node.status == NodeStatus::Running && !self.facts.must_end(task);
            let kind = self.facts.spec(&self.graph, task).kind;
            kind.may_cost() && (cleans_up || self.agenda.is_ready(task))
        })
    }

    /// Cancels, for a pause, agents that clean up and all that runs in frames of a node that does.
    fn cut_cleanup(&mut self, actions: &mut Vec<Action>) {
        let ends = |(task, node): &(TaskRef, &NodeState)| {
            let is_agent = self.facts.spec(&self.graph, *task).kind == NodeKind::Agent;
            let mut owners = self.facts.around(task.frame).filter_map(|frame| frame.owner);
            let is_cut = is_agent || owners.any(|owner| self.facts.node(owner).cleans_up);
            let runs = node.status == NodeStatus::Running && node.frames.is_none();
            runs && is_cut && !self.is_answered(*task, node)
        };
        let running: Vec<TaskRef> = self.facts.tasks().filter(ends).map(|(task, _)| task).collect();
        running.into_iter().for_each(|task| self.cancel(task, CancelCause::Pausing, actions));
    }

    /// Fires the `on: any` edges in a frame that is ending: those of ended nodes, and once nothing else can happen in it
    /// (`is_idle`) those of nodes that never began. A clean-up node starts before the nodes after it.
    pub(super) fn clean_up(&self, frame: FrameIx, is_idle: bool, actions: &mut Vec<Action>) {
        let body = self.facts.body(&self.graph, frame);
        let state = &self.facts.frames[frame];
        let is_open = |edge: EdgeIx| state.edges[edge].status == EdgeStatus::Pending;
        let cleans_up =
            |node: NodeIx| self.facts.has_any_end(&self.graph, state.task(node), EdgeStatus::Pending);
        for edge in body.edges_that_clean_up() {
            let (from, to) = (body.edge(edge).from, body.edge(edge).to);
            let waits = state.nodes[to].has_not_begun();
            let has_ended = match state.nodes[from].status {
                NodeStatus::Running => false,
                NodeStatus::Pending => is_idle && !cleans_up(from),
                NodeStatus::Cancelled | NodeStatus::Paused => {
                    !self.facts.is_paused_cleanup(&state.nodes[from])
                }
                // What cleans up in a frame is tried again after its usage limit.
                NodeStatus::Waiting => self.facts.ending.is_some() || self.facts.must_end(state.task(from)),
                _ => true,
            };
            if is_open(edge) && waits && has_ended {
                actions.push(self.resolved(state.task(from), body.edge(edge), true));
            }
        }
    }

    /// The running nodes that wait for an answer. An interrupted attempt has asked too, and the one that replaces it is about
    /// to ask again.
    fn asking(&self) -> impl Iterator<Item = TaskRef> {
        self.open_questions().map(|(task, _)| task).filter(|task| {
            let node = self.facts.node(*task);
            node.status == NodeStatus::Running && node.more.as_ref().is_some_and(|more| more.asks)
        })
    }

    /// The nodes that wait for an answer, and what they asked.
    fn open_questions(&self) -> impl Iterator<Item = (TaskRef, &Prompt)> {
        let open = self.facts.session.waits_for_input();
        open.filter_map(|prompt| Some((self.facts.find(&self.graph, prompt.task.as_ref())?, prompt)))
    }

    fn wait_for_people(&self, until: Option<Timestamp>, actions: &mut Vec<Action>) {
        if self.facts.session.status == SessionStatus::Running {
            actions.push(emit(Event::FlowWaiting { on: WaitingOn::Input, until }));
        }
    }

    /// Cancels what runs, and lays the session to rest once nothing does.
    pub(super) fn pause_when_idle(&mut self, actions: &mut Vec<Action>) {
        if self.facts.running() > 0 {
            self.cancel_all(CancelCause::Pausing, actions);
            return;
        }
        self.take_answers(actions);
        if !actions.is_empty() {
            return;
        }
        let Pause { reason, cause, .. } = self.facts.pausing.clone().unwrap_or_default();
        let paused = self.paused(reason, cause, None);
        actions.push(emit(paused));
        actions.push(Action::Finish);
    }

    pub(super) fn paused(
        &self,
        reason: Option<String>,
        cause: Option<PauseCause>,
        budget: Option<String>,
    ) -> Event {
        // What a failure or a stop has cancelled does not continue.
        let is_cut = |(task, node): &(TaskRef, &NodeState)| {
            node.status == NodeStatus::Cancelled && !self.facts.must_end(*task)
        };
        let cut = self.facts.tasks().filter(is_cut);
        let node_ids = cut.map(|(task, _)| self.facts.path(&self.graph, task)).collect();
        Event::FlowPaused { node_ids, reason, cause, budget }
    }

    /// Begins a node that a person has answered: what is in the log of an answer would not be asked again in this session,
    /// but in another one that continues it.
    fn take_answers(&mut self, actions: &mut Vec<Action>) {
        let waits = |(task, node): &(TaskRef, &NodeState)| {
            node.status == NodeStatus::Pending && self.is_answered(*task, node)
        };
        let answered: Vec<TaskRef> = self.facts.tasks().filter(waits).map(|(task, _)| task).collect();
        for task in answered {
            if actions.is_empty() {
                self.consider(task, super::Deferral::Over, actions);
            }
        }
    }

    /// Whether a node that asks a person has its answer, and ends at once with it.
    pub(super) fn is_answered(&self, task: TaskRef, node: &NodeState) -> bool {
        node.more.as_ref().is_some_and(|more| more.reply.is_some())
            && self.facts.spec(&self.graph, task).occupies == Occupies::Nothing
    }

    fn cancel_all(&mut self, reason: CancelCause, actions: &mut Vec<Action>) {
        let ends = |(task, node): &(TaskRef, &NodeState)| {
            let is_spared = (reason == CancelCause::Ending && !self.facts.must_end(*task))
                || self.is_answered(*task, node);
            node.status == NodeStatus::Running && node.frames.is_none() && !is_spared
        };
        let running = self.facts.tasks().filter(ends);
        for task in running.map(|(task, _)| task).collect::<Vec<_>>() {
            self.cancel(task, reason, actions);
        }
    }

    pub(super) fn finish(
        &mut self,
        outcome: Outcome,
        error: Option<AgentError>,
        now: Timestamp,
        actions: &mut Vec<Action>,
    ) {
        let (outcome, error, outputs) = match outcome {
            Outcome::Success | Outcome::Partial => match self.declared_outputs() {
                Ok(outputs) => (outcome, error, outputs),
                Err(failure) => (Outcome::Failed, Some(failure), None),
            },
            _ => (outcome, error, None),
        };
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
        actions.push(emit(Event::HarnessComplete { success, outcome, duration_ms, outputs }));
        actions.push(Action::Finish);
    }

    /// What the flow gave when it ended well, if it says what.
    pub fn outputs(&self) -> Option<Value> {
        self.facts.outputs().cloned()
    }

    /// What the flow gives, if it says what.
    fn declared_outputs(&self) -> Result<Option<Arc<Value>>, AgentError> {
        let is_declared = self.graph.flow().outputs.is_some() || self.facts.outputs_at_end().is_some();
        if (!is_declared && self.graph.output_schema.is_none()) || self.is_partial(FrameIx::FLOW) {
            return Ok(None);
        }
        let outputs = self.outputs_of(FrameIx::FLOW)?;
        if let Some(schema) = &self.graph.output_schema {
            check_value(schema, &outputs).map_err(|why| {
                let message =
                    format!("the outputs of flow `{}` do not fit the schema: {why}", self.graph.name);
                AgentError::new(ErrorCode::OutputInvalid, message)
            })?;
        }
        Ok(Some(Arc::new(outputs)))
    }

    /// Nothing can be decided now: wait for what runs, or end.
    pub(super) fn rest(&mut self, now: Timestamp, actions: &mut Vec<Action>) {
        let state = &self.facts;
        let asking = self.asking().count() as u32;
        if state.running() > asking {
            return;
        }
        let in_doubt = |(task, _): (TaskRef, &Prompt)| {
            state.node(task).status == NodeStatus::Pending && self.needs_confirmation(task)
        };
        if asking > 0 || self.open_questions().any(in_doubt) {
            let deadlines = state.session.waits_for_input().filter_map(|open| open.deadline);
            return self.wait_for_people(deadlines.min(), actions);
        }
        if !self.something_is_due_later(now) && self.pause_for_budget(actions) {
            return;
        }
        let state = &self.facts;
        if self.agenda.next_timer(now).is_some() {
            let nodes = || state.tasks().map(|(_, node)| node);
            let limited = nodes().filter(|node| node.status == NodeStatus::Waiting);
            let until = limited.filter_map(|node| node.retry_at).min();
            let retries = |node: &crate::state::NodeState| {
                node.status == NodeStatus::Pending && node.retry_at.is_some()
            };
            if until.is_some() && state.session.status == SessionStatus::Running && !nodes().any(retries) {
                actions.push(emit(Event::FlowWaiting { on: WaitingOn::Limit, until }));
            }
            return;
        }
        if let Some(error) = self.never_ready(FrameIx::FLOW) {
            return self.finish(Outcome::Failed, Some(error), now, actions);
        }
        match state.failure().cloned() {
            Some(error) => self.finish(Outcome::Partial, Some(error), now, actions),
            None => self.finish(Outcome::Success, None, now, actions),
        }
    }
}
