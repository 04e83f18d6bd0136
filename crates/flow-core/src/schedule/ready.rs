//! Which node is next, and whether it is started, skipped, reused or asked about.

use std::cmp::Reverse;

use inspan_protocol::{AgentError, ErrorCode, Event, NodePath, NodeStatus, SkipReason, Timestamp};

use super::{Action, Run, budget::Afford};
use crate::graph::{Join, NodeIx};

/// How often in a row the process may die while a node is at work before the node is failed; `retry.maxAttempts` if that
/// is more. Processes are killed from outside too, so it is not few.
const MOST_DEATHS: u32 = 10;

impl Run {
    /// The next candidate in the order of the graph; one that only waits needs no free place.
    pub(super) fn candidate(&mut self) -> Option<NodeIx> {
        let is_full = self.state.slots >= self.max_concurrency;
        let worker = self.state.workers.peek().filter(|_| !is_full).map(|Reverse(ix)| *ix);
        let waiter = self.state.waiters.peek().map(|Reverse(ix)| *ix);
        match (worker, waiter) {
            (Some(worker), waiter) if waiter.is_none_or(|waiter| worker < waiter) => self.state.workers.pop(),
            _ => self.state.waiters.pop(),
        }
        .map(|Reverse(ix)| ix)
    }

    /// Starts or skips a candidate, unless it is stale.
    pub(super) fn consider(&mut self, ix: NodeIx, now: Timestamp, actions: &mut Vec<Action>) {
        let graph = self.graph.clone();
        let node = graph.node(ix);
        let state = &self.state.nodes[ix.0 as usize];
        let due = state.retry_at.is_none_or(|at| at <= now);
        let resolved = state.unresolved == 0 || (node.join == Join::Any && state.fired > 0);
        let pending = matches!(state.status, NodeStatus::Pending | NodeStatus::Waiting);
        if !pending || !due || !resolved {
            return;
        }
        let path = self.state.path(&graph, ix);
        let task_id = node.id.clone();
        if let Some(reason) = self.skip_by_edges(ix) {
            let failures = match reason {
                SkipReason::Failure => self.state.failures_before(&graph, ix),
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
        if self.state.nodes[ix.0 as usize].doubt {
            match self.settle_doubt(ix, &path, actions) {
                Some(error) => start = Some(Err(error)),
                None => return,
            }
        }
        if let Some(error) = self.died_too_often(ix) {
            start = Some(Err(error));
        }
        let mut attempt = self.attempt(ix, self.state.nodes[ix.0 as usize].attempt + 1);
        attempt.input = start.unwrap_or(attempt.input);
        if let Some(event) = self.reuse(&mut attempt) {
            actions.push(Action::Emit { task: Some(path), event });
            return;
        }
        match self.afford(ix) {
            Afford::Yes => {}
            Afford::Later => return self.held.push(ix),
            Afford::No => {
                self.state.propose(&graph, ix);
                return self.refuse_to_spend();
            }
            Afford::Never(error) => attempt.input = Err(error),
        }
        let node_type = node.node_type.clone();
        let event = Event::TaskStart { task_id, node_type, attempt: attempt.attempt, path: path.clone() };
        actions.push(Action::Emit { task: Some(path), event });
        actions.push(Action::Start(Box::new(attempt)));
    }

    /// The failure of a node that was at work again and again when the process died, and may be the cause.
    pub(super) fn died_too_often(&self, ix: NodeIx) -> Option<AgentError> {
        let node = self.graph.node(ix);
        let deaths = self.state.nodes[ix.0 as usize].deaths_in_a_row(self.state.progress);
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
        let node = self.graph.node(ix);
        let state = &self.state.nodes[ix.0 as usize];
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
