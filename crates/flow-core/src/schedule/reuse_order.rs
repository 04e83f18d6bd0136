//! The order in which the work of an earlier session is reused. Reusing takes no time, so what raced there must not race
//! again: who came after `control.end` still does, and a merge still comes after the node that it came after.

use std::cmp::Reverse;

use inspan_protocol::{EdgeStatus, NodeId, NodeStatus};

use super::{Action, Reusable, Run, select::Selected};
use crate::{
    graph::{FrameIx, Join, Node, NodeIx, TaskRef},
    node::NodeKind,
};

/// Whether a task that can start may be put off.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Deferral {
    /// Until what was done before it is reused.
    Allowed,
    /// No: nothing else can be reused before it.
    Over,
}

impl Run {
    /// Finds the nodes that end a frame, if there is work to reuse.
    pub(super) fn find_ends(&mut self) {
        let ends = |nodes: &[Node]| {
            let of_kind = (0..).map(NodeIx).zip(nodes).filter(|(_, node)| node.kind == NodeKind::End);
            of_kind.map(|(ix, _)| ix).collect()
        };
        let bodies = self.graph.bodies.iter().filter(|_| self.reusable.is_some());
        self.ends = bodies.map(|body| ends(&body.nodes)).collect();
    }

    /// The predecessors whose edges have fired before a task that begins after any of them.
    pub(super) fn came_after(&self, task: TaskRef) -> Vec<NodeId> {
        let body = self.facts.body(&self.graph, task.frame);
        let node = body.node(task.node);
        let frame = &self.facts.frames[task.frame];
        let any = node.incoming.iter().filter(|_| node.join == Join::Any);
        let fired = any.filter(|edge| frame.edges[**edge].status == EdgeStatus::Fired);
        fired.map(|edge| body.node(body.edge(*edge).from).id.clone()).collect()
    }

    /// Whether a predecessor that a task came after has not ended yet.
    pub(super) fn comes_too_early(&self, task: TaskRef) -> bool {
        let body = self.facts.body(&self.graph, task.frame);
        let node = body.node(task.node);
        if node.join != Join::Any {
            return false;
        }
        let Some((reusable, before)) = self.before(task) else { return false };
        let Some(work) = reusable.tasks.get(&before) else { return false };
        let frame = &self.facts.frames[task.frame];
        let mut open = node.incoming.iter().filter(|edge| frame.edges[**edge].status == EdgeStatus::Pending);
        open.any(|edge| work.came_after.contains(&body.node(body.edge(*edge).from).id))
    }

    /// Whether a `control.end` that is to be reused comes before a task of its frame that has not ended.
    pub(super) fn ends_before(&self, task: TaskRef) -> bool {
        let Some(ends) = self.ends.get(self.facts.frames[task.frame].body.0 as usize) else { return false };
        let mut ends = ends.iter().map(|ix| TaskRef { node: *ix, ..task });
        ends.any(|end| self.is_end_to_reuse(end)) && !self.was_done_or_is_asked_for(task)
    }

    /// Whether a task is a `control.end` that ended its frame before, and has not in this session.
    fn is_end_to_reuse(&self, task: TaskRef) -> bool {
        let gave = |(reusable, before): (&Reusable, _)| {
            reusable.task(&before).is_some_and(|work| work.output.is_some())
        };
        self.facts.spec(&self.graph, task).kind == NodeKind::End
            && self.facts.node(task).status == NodeStatus::Pending
            && self.before(task).is_some_and(gave)
    }

    /// Whether a `control.end` waits for a node of its frame that ended before it, or that was asked for.
    pub(super) fn ends_after_others(&self, end: TaskRef) -> bool {
        let mut others = self.facts.frames[end.frame].tasks().filter(|(task, _)| *task != end);
        others.any(|(task, node)| !node.has_ended() && self.was_done_or_is_asked_for(task))
    }

    fn was_done_or_is_asked_for(&self, task: TaskRef) -> bool {
        let selected = self.selected(task);
        selected.is_asked_for()
            || selected == Selected::Around
            || self.before(task).is_some_and(|(reusable, before)| {
                reusable.has_finished(&before) || reusable.is_around_again(&before)
            })
    }

    /// Whether anything is at work in a frame, or is to be tried again there.
    fn is_at_work(&self, frame: FrameIx) -> bool {
        let mut tasks = self.facts.tasks_within(frame).into_iter().map(|task| self.facts.node(task));
        tasks.any(|node| {
            node.retry_at.is_some() || (node.status == NodeStatus::Running && node.frames.is_none())
        })
    }

    /// Reuses each `control.end` whose turn has come.
    pub(super) fn reuse_ends(&mut self, actions: &mut Vec<Action>) {
        for task in self.put_off.iter().copied().collect::<Vec<_>>() {
            if actions.is_empty() && self.is_end_to_reuse(task) && !self.ends_after_others(task) {
                self.put_off.remove(&task);
                self.consider(task, Deferral::Over, actions);
            }
        }
    }

    /// Decides about what was put off, as nothing else can be decided: unless it comes after something that is at work.
    pub(super) fn start_deferred(&mut self, actions: &mut Vec<Action>) {
        let mut tasks: Vec<TaskRef> = self.put_off.iter().copied().collect();
        // A frame comes after those that run within it.
        tasks.sort_by_key(|task| (Reverse(task.frame), task.node));
        for task in tasks {
            if !actions.is_empty() {
                return;
            }
            let waits = match self.is_end_to_reuse(task) || self.comes_too_early(task) {
                true => self.is_at_work(task.frame),
                false => {
                    let mut others = self.put_off.iter().filter(|other| other.frame == task.frame);
                    others.any(|other| self.is_end_to_reuse(*other))
                }
            };
            if !waits {
                self.put_off.remove(&task);
                self.consider(task, Deferral::Over, actions);
            }
        }
    }
}
