//! Which node is next, and whether it is started, skipped, reused or asked about.

use inspan_protocol::{
    AgentError, EdgeStatus, ErrorCode, Event, LogLevel, NodePath, NodeStatus, SkipReason, Timestamp,
};
use serde_json::Map;

use super::{
    Action, Deferral, Planning, Run,
    budget::BudgetDecision,
    select::{Selected, is_left_out},
};
use crate::{
    graph::{Join, NodeIx, TaskRef},
    node::{NodeKind, Occupies},
    state::IT_IS_DONE,
};

/// How often in a row the process may die while a node is at work before the node is failed; `retry.maxAttempts` if that
/// is more. Processes are killed from outside too, so the number is not small.
const MOST_DEATHS: u32 = 10;

impl Run {
    /// The next node to start or to skip, in the order of the graph; one that only waits needs no free place. Whether a failure
    /// is handled depends neither on a place nor on that order: a node that does not handle it is skipped before anything
    /// starts, and what depends on the failed node waits until that is known.
    pub(super) fn candidate(&mut self, now: Timestamp) -> Option<TaskRef> {
        let handlers: Vec<TaskRef> =
            self.agenda.handlers().filter(|task| !self.handlers_that_run.contains(task)).collect();
        for task in handlers {
            if self.is_put_off(task) || self.is_in_doubt(task) {
                continue;
            }
            if self.is_to_be_skipped(task) {
                return Some(task);
            }
            // An event that concerns it can change that.
            self.handlers_that_run.insert(task);
        }
        let first = |occupies: Occupies| {
            let is_due = |task: &TaskRef| {
                let node = &self.facts.node(*task);
                node.status != NodeStatus::Running && self.facts.spec(&self.graph, *task).occupies == occupies
            };
            let has_place = |task| occupies == Occupies::Nothing || !self.is_full_around(task);
            let can_start =
                |task: &TaskRef| has_place(*task) && !self.is_put_off(*task) && !self.is_in_doubt(*task);
            let due = self.agenda.due(now).filter(is_due).filter(can_start).min();
            let ready = self.agenda.ready(occupies).find(can_start);
            due.into_iter().chain(ready).min()
        };
        let is_full = self.facts.slots() >= self.max_concurrency;
        let worker = if is_full { None } else { first(Occupies::Slot) };
        worker.into_iter().chain(first(Occupies::Nothing)).min()
    }

    /// Whether a limit around a task lets it not work now. In a plan nothing waits for a place.
    pub(super) fn is_full_around(&self, task: TaskRef) -> bool {
        self.planning == Planning::Off && self.facts.full_around(&self.graph, task).is_some()
    }

    fn is_to_be_skipped(&self, task: TaskRef) -> bool {
        let reason = || self.skip_reason(task, self.facts.is_ending(task.frame));
        self.selected(task) != Selected::Itself && matches!(reason(), Ok(Some(_)))
    }

    /// Whether a node depends on a failure that may be handled or not. One that had finished in the session before came after
    /// the failures that are taken over from there: they were handled, also if what handled them was cancelled since.
    fn is_in_doubt(&self, task: TaskRef) -> bool {
        let frame = &self.facts.frames[task.frame];
        let had_finished = || {
            let before = self.before(task);
            before.is_some_and(|(reusable, path)| reusable.has_finished(&path))
        };
        let is_known = |failed: NodeIx| frame.nodes[failed].is_reused() && had_finished();
        let doubt = || frame.doubt_before(self.facts.body(&self.graph, task.frame), task.node, is_known);
        !self.facts.is_ending(task.frame) && doubt().is_some()
    }

    /// Whether a node could start and waits for money, or for a person who was asked about it.
    fn is_put_off(&self, task: TaskRef) -> bool {
        let node = &self.facts.node(task);
        let is_answered = node.more.as_ref().is_some_and(|more| more.reply.is_some());
        let is_asked = || self.asked.get(&task) == Some(&node.attempts);
        self.held.contains(&task)
            || self.put_off.contains(&task)
            || (!is_answered && is_asked() && self.needs_confirmation(task))
    }

    /// Starts, skips or reuses a candidate, asks about it, or puts it off.
    pub(super) fn consider(&mut self, task: TaskRef, put_off: Deferral, actions: &mut Vec<Action>) {
        let graph = self.graph.clone();
        let node = graph.body(self.facts.frames[task.frame].body).node(task.node);
        let is_ending = self.facts.is_ending(task.frame);
        if !is_ending && self.waits_for_edges(task) {
            self.held.insert(task);
            return;
        }
        let path = self.facts.path(&graph, task);
        let selected = self.selected(task);
        let may_wait = put_off == Deferral::Allowed && self.reusable.is_some() && !is_ending;
        if may_wait && !selected.is_asked_for() && self.comes_too_early(task) {
            self.put_off.insert(task);
            return;
        }
        let mut failure = None;
        if selected != Selected::Itself {
            match self.skip_reason(task, is_ending) {
                Ok(None) => {}
                Ok(Some(reason)) => return actions.push(self.skip(task, reason)),
                // A condition that cannot be evaluated is a failure of the node, and is stored as one.
                Err(error) => failure = Some(error),
            }
        }
        if failure.is_none() {
            match self.choose_agent(task) {
                Some(Ok(event)) => return actions.push(Action::Emit { task: Some(path), event }),
                Some(Err(error)) => failure = Some(error),
                None => {}
            }
        }
        if self.facts.ending.is_some()
            && self.needs_confirmation(task)
            && self.rerun_answer(task).is_none()
            && let BudgetDecision::Never(error) = self.afford(task)
        {
            // It cannot run again: nobody is asked, since the end waits for no larger budget.
            failure = Some(error);
        } else if self.needs_confirmation(task) {
            // What does not run in any case is not asked about.
            let is_done = self.rerun_answer(task).as_deref() == Some(IT_IS_DONE);
            if !is_done && is_left_out(selected, node.kind, || false) {
                return actions.push(self.skip(task, SkipReason::NotSelected));
            }
            if !is_done && may_wait && self.ends_before(task) {
                self.put_off.insert(task);
                return;
            }
            match self.confirm_rerun(task, &path, actions) {
                Some(error) => failure = Some(error),
                None => return,
            }
        }
        if let Some(error) = self.died_too_often(task) {
            failure = Some(error);
        }
        let failure = failure.or_else(|| self.cannot_share(task));
        // What nothing can be reused for needs no input to be put off.
        let early = (self.reusable.is_none() && failure.is_none()).then(|| self.afford(task));
        if matches!(early, Some(BudgetDecision::Later)) {
            self.held.insert(task);
            return;
        }
        let before = self.facts.node(task).attempt.max(self.facts.frames[task.frame].attempts_before);
        let mut attempt = self.attempt(task, before + 1);
        if let Some(error) = failure {
            attempt.input = Err(error);
        }
        if let Some(event) = self.reuse(&mut attempt) {
            if may_wait && self.is_end_to_reuse(task) && self.ends_after_others(task) {
                self.put_off.insert(task);
                return;
            }
            actions.push(Action::Emit { task: Some(path), event });
            return;
        }
        // In frames that are entered for their outputs alone nothing runs, so a node that gives none needs none.
        if is_left_out(selected, node.kind, || self.is_needed(task) && self.can_reuse_frames(&attempt)) {
            return actions.push(self.skip(task, SkipReason::NotSelected));
        }
        if may_wait && self.ends_before(task) {
            self.put_off.insert(task);
            return;
        }
        match early.unwrap_or_else(|| self.afford(task)) {
            BudgetDecision::Yes => {}
            BudgetDecision::Later => {
                self.held.insert(task);
                return;
            }
            BudgetDecision::No => return actions.push(self.end_over_budget()),
            BudgetDecision::NotInFrame(frame, error) => return actions.extend(self.end_frame(frame, error)),
            BudgetDecision::Never(error) => attempt.input = Err(error),
        }
        let node_type = self.facts.spec(&graph, task).node_type.clone();
        let task_id = node.id.clone();
        // Who only waits, for a person or a time, leaves nothing half done, and a stop is to end what costs money.
        let can_clean_up = node.occupies == Occupies::Slot && node.kind != NodeKind::Agent;
        let cleans_up =
            is_ending || (can_clean_up && self.facts.has_any_end(&graph, task, EdgeStatus::Fired));
        let since = self.waits_since(&attempt);
        let goes_on = attempt.interrupted.as_ref().is_some_and(|cut| cut.before.is_some());
        let session_id = attempt.conversation.as_ref().filter(|_| goes_on);
        let event = Event::TaskStart {
            task_id,
            node_type,
            attempt: attempt.attempt,
            path: path.clone(),
            cleans_up,
            since,
            session_id: session_id.map(|known| known.session_id.clone()),
            messages: self.older_mail(task).to_vec(),
        };
        let runs_frames = node.kind == NodeKind::Frames;
        let warnings = [self.warn_of_later_turns(&attempt), self.warn_of_other_provider(&attempt)];
        for message in warnings.into_iter().flatten() {
            let warning = Event::Log { level: LogLevel::Warn, message, fields: Map::new() };
            actions.push(Action::Emit { task: Some(path.clone()), event: warning });
        }
        actions.push(Action::Emit { task: Some(path), event });
        if !runs_frames {
            actions.push(Action::Start(Box::new(attempt)));
        }
    }

    /// A retry may be due before its edges are resolved, in logs of older versions.
    fn waits_for_edges(&self, task: TaskRef) -> bool {
        let join = self.facts.body(&self.graph, task.frame).node(task.node).join;
        !self.facts.node(task).has_its_edges(join)
    }

    /// Why a node is skipped, as far as the edges that lead to it and its own condition say.
    fn skip_reason(&self, task: TaskRef, is_ending: bool) -> Result<Option<SkipReason>, AgentError> {
        if let Some(reason) = self.skip_by_edges(task).filter(|_| !is_ending) {
            return Ok(Some(reason));
        }
        let node = self.facts.body(&self.graph, task.frame).node(task.node);
        match &node.when {
            Some(when) if self.facts.node(task).choice.is_none() => {
                let holds = self.scoped(task.frame, &self.locals(task), |scope| when.holds(scope))?;
                Ok((!holds).then_some(SkipReason::When))
            }
            _ => Ok(None),
        }
    }

    fn skip(&self, task: TaskRef, reason: SkipReason) -> Action {
        let body = self.facts.body(&self.graph, task.frame);
        let failures = match reason {
            SkipReason::Failure => self.facts.frames[task.frame].failures_before(body, task.node),
            _ => Vec::new(),
        };
        let task_id = body.node(task.node).id.clone();
        let event = Event::TaskSkipped { task_id, reason, failures };
        Action::Emit { task: Some(self.facts.path(&self.graph, task)), event }
    }

    /// The failure of a node that was at work again and again when the process died, and may be the cause.
    pub(super) fn died_too_often(&self, task: TaskRef) -> Option<AgentError> {
        let node = self.facts.spec(&self.graph, task);
        let deaths = self.facts.node(task).deaths_in_a_row(self.facts.progress);
        (deaths >= MOST_DEATHS.max(node.policy.retry.max_attempts)).then(|| {
            let message = format!(
                "node `{}` was running the last {deaths} times the process died, and nothing finished in between: \
                 it is not restarted",
                node.id
            );
            AgentError::new(ErrorCode::NodeFailed, message)
        })
    }

    fn skip_by_edges(&self, task: TaskRef) -> Option<SkipReason> {
        let node = self.facts.spec(&self.graph, task);
        let state = &self.facts.node(task);
        if node.incoming.is_empty() {
            return None;
        }
        let ready = match node.join {
            Join::Any => state.sent_back || state.fired > 0,
            Join::Resolved => (state.sent_back || state.fired > 0) && !state.tainted,
            Join::All => state.fired as usize == node.incoming.len(),
        };
        match (ready, state.tainted) {
            (true, _) => None,
            (false, true) => Some(SkipReason::Failure),
            (false, false) => Some(SkipReason::Edge),
        }
    }
}

/// The place of a path's node, for words to people.
pub(super) fn named(path: &NodePath) -> String {
    format!("`{path}`")
}
