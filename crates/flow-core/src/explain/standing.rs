//! The status of a node at the end of the log, and what it waits for if it has not ended.

use inspan_protocol::{EdgeStatus, Envelope, Event, NodeStatus};

use super::{Statement, StatementKind, reason::in_short, walk::Walk};
use crate::{
    graph::{Graph, TaskRef},
    state::Full,
};

impl Walk<'_> {
    /// The status of a node; what prevents it from running is added to the statements.
    pub(super) fn node_standing(&mut self, task: TaskRef) -> Statement {
        let graph = self.graph();
        let id = self.label(&graph, task);
        let node = self.node(task);
        let pass = match (node.pass, node.failed_passes) {
            (0 | 1, _) => String::new(),
            (pass, 0) => format!(", in pass {pass}"),
            (pass, 1) => format!(", in pass {pass}; 1 earlier pass failed"),
            (pass, failed) => format!(", in pass {pass}; {failed} earlier passes failed"),
        };
        let mut seq = self.changed(task);
        let text = match node.status {
            NodeStatus::Complete => format!("`{id}` completed{pass}"),
            NodeStatus::Failed => {
                let why =
                    node.error.as_ref().map(|error| format!(": {}", in_short(error))).unwrap_or_default();
                format!("`{id}` failed{pass}{why}")
            }
            NodeStatus::Reused => format!("`{id}` was reused{pass}"),
            NodeStatus::Skipped => format!("`{id}` was skipped{}", self.because()),
            NodeStatus::Cancelled if node.failed_seq == seq => {
                let error = node.error.as_deref().map(|error| format!(": {}", in_short(error)));
                let failed = format!("failed in attempt {}{}", node.attempt, error.unwrap_or_default());
                format!("`{id}` {failed}, and was cancelled before it was tried again{}", self.because())
            }
            NodeStatus::Cancelled => format!("`{id}` was cancelled{}", self.because()),
            NodeStatus::Paused => format!("`{id}` is paused{pass}"),
            NodeStatus::Waiting | NodeStatus::Pending
                if node.retry_at.is_some() && self.state().is_ending(task.frame) =>
            {
                let ended = if self.state().ending.is_some() { "the session" } else { "its frame" };
                format!("`{id}` is not tried again: {ended} ended first")
            }
            NodeStatus::Waiting => match node.retry_at {
                Some(until) => format!("`{id}` waits for a usage limit, until {until}"),
                None => format!("`{id}` waits"),
            },
            NodeStatus::Running => match self.open_question(task) {
                Some(asked) => {
                    seq = asked;
                    format!("`{id}` waits for an answer{pass}")
                }
                None => format!("`{id}` {}{pass}", self.runs(node.attempt)),
            },
            _ => {
                let (at, text) = self.pending(task);
                seq = at;
                text
            }
        };
        self.statements.sort_by_key(|statement| statement.seq);
        self.statement(seq, Some(self.path(task)), StatementKind::Standing, text)
    }

    /// A node by its id, and one in a frame by its path.
    fn label(&self, graph: &Graph, task: TaskRef) -> String {
        let path = self.path(task);
        match path.as_str().contains('/') {
            true => path.to_string(),
            false => self.spec_of(graph, task).id.to_string(),
        }
    }

    fn because(&self) -> String {
        if self.reason.is_empty() { String::new() } else { format!(": {}", self.reason) }
    }

    fn pending(&mut self, task: TaskRef) -> (u64, String) {
        let graph = self.graph();
        let (spec, node) = (self.spec_of(&graph, task), self.node(task).clone());
        let (id, changed) = (self.label(&graph, task), self.changed(task));
        let over = match self.closing {
            Some(closing) => Some((closing, "its frame")),
            None if self.has_ended() => Some((self.ended().unwrap_or(self.now()), "the session")),
            None => None,
        };
        if let Some((over, ended)) = over {
            self.say_end(task);
            self.say_open_edges(task);
            let what = match node.is_interrupted() {
                true => "was interrupted, and did not begin again",
                false => "did not run",
            };
            return (over, format!("`{id}` {what}: {ended} ended first"));
        }
        let asked = self.open_question(task);
        if node.needs_confirmation || asked.is_some() {
            let seq = asked.or_else(|| self.asked(task)).unwrap_or(changed);
            let what = "was interrupted and may have taken effect: a person must decide";
            return (seq, format!("`{id}` {what}"));
        }
        if let Some(due) = node.retry_at {
            return (changed, format!("`{id}` waits for its retry at {due}"));
        }
        if node.interrupted {
            return (changed, format!("`{id}` was interrupted and runs again"));
        }
        if !self.is_ready(task) {
            self.say_open_edges(task);
            let total = spec.incoming.len();
            return (
                self.now(),
                format!("`{id}` waits: {} of {total} edges into it are pending", node.unresolved),
            );
        }
        let doubt = self.state().frames[task.frame].doubt_before(self.body(&graph), task.node, |_| false);
        if let Some((failed, by)) = doubt {
            let [failed, by] = [failed, by].map(|node| self.label(&graph, self.task(node)));
            let text =
                format!("`{id}` waits: whether the failure of `{failed}` is handled depends on `{by}`");
            return (self.now(), text);
        }
        if self.is_paused() {
            let paused = self.paused().unwrap_or(self.now());
            return (paused, format!("`{id}` is ready, and {}", self.cause_at(paused)));
        }
        let (running, most) = (self.state().slots(), self.run.max_concurrency());
        if running >= most && spec.occupies == crate::graph::Occupies::Slot {
            let text = format!("`{id}` is ready and waits for a free slot: {running} of {most} are in use");
            return (self.now(), text);
        }
        let full =
            self.state().full_around(&graph, task).filter(|_| spec.occupies == crate::graph::Occupies::Slot);
        if let Some(Full { owner, index, most }) = full {
            let work = match index {
                Some(index) => format!("nodes in {} work", self.state().frame_name_of(&graph, owner, index)),
                None => format!("frames of `{}` work", self.state().path(&graph, owner)),
            };
            let text =
                format!("`{id}` is ready and waits: {most} {work}, and no more may (`maxConcurrency`)");
            return (self.now(), text);
        }
        if let Some(budget) = self.state().waits_for_budget(&graph, task) {
            return (self.now(), format!("`{id}` is ready and waits: {budget}"));
        }
        (self.now(), format!("`{id}` is ready to run"))
    }

    /// Whether nothing before a node keeps it from starting.
    pub(super) fn is_ready(&self, task: TaskRef) -> bool {
        self.node(task).has_its_edges(self.spec_of(self.run.graph(), task).join)
    }

    /// Why the session, or the frame, ended before the node's turn.
    fn say_end(&mut self, task: TaskRef) {
        let phase = |envelope: &Envelope| {
            matches!(envelope.event, Event::PhaseComplete { .. } | Event::PhaseFailed { .. })
        };
        let state = self.state();
        let cause = match self.closing {
            Some(_) => state.why_cancelled(task.frame).1,
            None => state.ended_by.or_else(|| self.budget_exceeded(None)).or_else(|| self.newest(phase)),
        };
        let Some(seq) = cause else { return };
        let kind = match self.event(seq).map(|envelope| &envelope.event) {
            Some(Event::SessionAbort { .. }) => StatementKind::Stopped,
            Some(Event::BudgetExceeded { .. }) => StatementKind::Budget,
            Some(Event::TaskFailed { .. }) => StatementKind::Failed,
            _ => StatementKind::Ended,
        };
        let text = self.cause_at(seq);
        self.say_of(task, seq, kind, text);
    }

    fn say_open_edges(&mut self, task: TaskRef) {
        let graph = self.graph();
        for &edge in &self.spec_of(&graph, task).incoming {
            if self.edge_state(edge).status != EdgeStatus::Pending {
                continue;
            }
            let from = self.task(self.body(&graph).edge(edge).from);
            let source = &self.spec_of(&graph, from).id;
            let how = match self.node(from).status {
                NodeStatus::Running if self.open_question(from).is_some() => "waits for an answer",
                NodeStatus::Running => "runs",
                NodeStatus::Waiting => "waits for a usage limit",
                NodeStatus::Paused => "is paused",
                NodeStatus::Cancelled => "was cancelled",
                NodeStatus::Failed => "failed",
                NodeStatus::Pending if self.node(from).retry_at.is_some() => "waits for its retry",
                NodeStatus::Pending => "has not run",
                _ if !self.body(&graph).edge(edge).leaves.is_empty() => "has ended, but its loop has not",
                _ => "has ended",
            };
            let last = self.open_question(from).unwrap_or(self.changed(from));
            let seq = if last > 0 { last } else { self.now() };
            let text =
                format!("edge `{source} -> {}` is pending: `{source}` {how}", self.spec_of(&graph, task).id);
            self.say_of(task, seq, StatementKind::EdgePending, text);
        }
    }
}
