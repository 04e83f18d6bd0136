//! Which node is next, and whether it is started, skipped, reused or asked about.

use inspan_protocol::{AgentError, ErrorCode, Event, NodePath, NodeStatus, SkipReason, Timestamp};

use super::{Action, Run, budget::Afford};
use crate::{
    graph::{Join, NodeIx},
    node::Occupies,
};

/// How often in a row the process may die while a node is at work before the node is failed; `retry.maxAttempts` if that
/// is more. Processes are killed from outside too, so it is not few.
const MOST_DEATHS: u32 = 10;

impl Run {
    /// The next node to start or to skip, in the order of the graph; one that only waits needs no free place.
    pub(super) fn candidate(&self, now: Timestamp) -> Option<NodeIx> {
        let first = |occupies: Occupies| {
            let can_start = |ix: &NodeIx| {
                let node = &self.facts.nodes[*ix];
                node.status != NodeStatus::Running && self.graph.flow().node(*ix).occupies == occupies
            };
            let due = self.agenda.due(now).filter(can_start).filter(|ix| !self.is_put_off(*ix)).min();
            let ready = self.agenda.ready(occupies).find(|ix| !self.is_put_off(*ix));
            due.into_iter().chain(ready).min()
        };
        let is_full = self.facts.slots >= self.max_concurrency;
        let worker = if is_full { None } else { first(Occupies::Slot) };
        worker.into_iter().chain(first(Occupies::Nothing)).min()
    }

    /// Whether a node could start and waits for money, or for a person who was asked about it.
    fn is_put_off(&self, ix: NodeIx) -> bool {
        let node = &self.facts.nodes[ix];
        let is_answered = node.more.as_ref().is_some_and(|more| more.reply.is_some());
        let is_asked = || self.asked.get(&ix) == Some(&node.attempts);
        self.held.contains(&ix) || (node.needs_confirmation && !is_answered && is_asked())
    }

    /// Starts, skips or reuses a candidate, asks about it, or puts it off.
    pub(super) fn consider(&mut self, ix: NodeIx, actions: &mut Vec<Action>) {
        let graph = self.graph.clone();
        let node = graph.flow().node(ix);
        let state = &self.facts.nodes[ix];
        // A retry may be due before its edges are resolved, in logs of older versions.
        if state.unresolved > 0 && !(node.join == Join::Any && state.fired > 0) {
            self.held.insert(ix);
            return;
        }
        let path = self.facts.path(&graph, ix);
        let task_id = node.id.clone();
        if let Some(reason) = self.skip_by_edges(ix) {
            let failures = match reason {
                SkipReason::Failure => self.facts.failures_before(&graph, ix),
                _ => Vec::new(),
            };
            let event = Event::TaskSkipped { task_id, reason, failures };
            actions.push(Action::Emit { task: Some(path), event });
            return;
        }
        let mut start = None;
        if let Some(when) = &node.when {
            match when.holds(&self.scope(&self.locals(ix))) {
                Ok(true) => {}
                Ok(false) => {
                    let event =
                        Event::TaskSkipped { task_id, reason: SkipReason::When, failures: Vec::new() };
                    actions.push(Action::Emit { task: Some(path), event });
                    return;
                }
                // A condition that cannot be worked out is a failure of the node, on record as one.
                Err(error) => start = Some(Err(AgentError::from(error))),
            }
        }
        if self.facts.nodes[ix].needs_confirmation {
            match self.confirm_rerun(ix, &path, actions) {
                Some(error) => start = Some(Err(error)),
                None => return,
            }
        }
        if let Some(error) = self.died_too_often(ix) {
            start = Some(Err(error));
        }
        let mut attempt = self.attempt(ix, self.facts.nodes[ix].attempt + 1);
        attempt.input = start.unwrap_or(attempt.input);
        if let Some(event) = self.reuse(&mut attempt) {
            actions.push(Action::Emit { task: Some(path), event });
            return;
        }
        match self.afford(ix) {
            Afford::Yes => {}
            Afford::Later => {
                self.held.insert(ix);
                return;
            }
            Afford::No => return actions.push(self.bankrupt()),
            Afford::Never(error) => attempt.input = Err(error),
        }
        let node_type = node.node_type.clone();
        let event = Event::TaskStart { task_id, node_type, attempt: attempt.attempt, path: path.clone() };
        actions.push(Action::Emit { task: Some(path), event });
        actions.push(Action::Start(Box::new(attempt)));
    }

    /// The failure of a node that was at work again and again when the process died, and may be the cause.
    pub(super) fn died_too_often(&self, ix: NodeIx) -> Option<AgentError> {
        let node = self.graph.flow().node(ix);
        let deaths = self.facts.nodes[ix].deaths_in_a_row(self.facts.progress);
        (deaths >= MOST_DEATHS.max(node.policy.retry.max_attempts)).then(|| {
            let message = format!(
                "node `{}` was at work the last {deaths} times that the process died, and nothing finished in between: \
                 it is not started again",
                node.id
            );
            AgentError::new(ErrorCode::NodeFailed, message)
        })
    }

    fn skip_by_edges(&self, ix: NodeIx) -> Option<SkipReason> {
        let node = self.graph.flow().node(ix);
        let state = &self.facts.nodes[ix];
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
