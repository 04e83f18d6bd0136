//! The order in which the work of an earlier session is reused. Reusing takes no time, so what raced there must not race
//! again: who came after `control.end`, or after a failure that ended its frame, still does, and a merge still comes after
//! the node that it came after.

use std::{cmp::Reverse, collections::BTreeSet};

use inspan_protocol::{EdgeStatus, NodeId, NodePath, NodeStatus};

use super::{Action, Reusable, Run, select::Selected};
use crate::{
    graph::{EdgeOn, FailFast, FrameIx, FramesKind, Join, Node, NodeIx, OnFailure, OnItemError, TaskRef},
    node::{NodeKind, Occupies},
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

    /// Whether an end of its frame that is to be reused comes before a task that has not ended: a `control.end`, or a failure
    /// there or around it.
    pub(super) fn ends_before(&self, task: TaskRef) -> bool {
        if self.reusable.is_none() || self.was_done_or_is_asked_for(task) {
            return false;
        }
        let ends = self.ends.get(self.facts.frames[task.frame].body.0 as usize);
        let mut ends = ends.into_iter().flatten().map(|ix| TaskRef { node: *ix, ..task });
        let mut around = self.facts.around(task.frame).filter_map(|frame| Some((frame, frame.owner?)));
        ends.any(|end| self.is_end_to_reuse(end))
            || around.any(|(frame, owner)| {
                let mut others = frame.tasks().map(|(other, _)| other).filter(|other| *other != task);
                self.fails_again(owner)
                    || others.any(|other| self.fails_again(other) && !self.ends_with(other).is_empty())
            })
    }

    /// Whether a task is an end of its frame, or of one around it, that was so before and has not been in this session.
    pub(super) fn is_end_to_reuse(&self, task: TaskRef) -> bool {
        if self.reusable.is_none() || self.facts.node(task).status != NodeStatus::Pending {
            return false;
        }
        if self.facts.spec(&self.graph, task).kind != NodeKind::End {
            return self.fails_again(task) && !self.ends_with(task).is_empty();
        }
        let gave = |(reusable, before): (&Reusable, _)| {
            reusable.task(&before).is_some_and(|work| work.output.is_some())
        };
        self.before(task).is_some_and(gave)
    }

    /// Whether the failure of a task is still to be taken over.
    fn fails_again(&self, task: TaskRef) -> bool {
        let node = self.facts.node(task);
        let is_open = node.status == NodeStatus::Pending || node.frames.is_some();
        is_open
            && node.failures == 0
            && self
                .before(task)
                .is_some_and(|(reusable, before)| self.failure_taken_over(task, reusable, &before).is_some())
    }

    /// The frames that end when a task does, each with the node in it that ends it: that of a `control.end`, or those around a
    /// failure up to the node that handles it, and the other items of a foreach that fails with one.
    fn ends_with(&self, end: TaskRef) -> Vec<(FrameIx, Option<NodeIx>)> {
        if self.facts.spec(&self.graph, end).kind == NodeKind::End {
            return vec![(end.frame, Some(end.node))];
        }
        let mut found = Vec::new();
        let mut at = end;
        // Of a failure that ends the flow nothing is taken over.
        while let Some(owner) = self.facts.frames[at.frame].owner {
            let body = self.facts.body(&self.graph, at.frame);
            // Whether an edge with a condition fires is known only afterwards.
            let is_handled =
                body.edges_on(at.node, EdgeOn::Failure).any(|edge| body.edge(edge).when.is_none());
            if is_handled || body.node(at.node).policy.on_failure == OnFailure::Continue {
                break;
            }
            if body.policy.fail_fast == FailFast::On {
                found.push((at.frame, Some(at.node)));
            }
            let frames = self.facts.spec(&self.graph, owner).frames.as_deref();
            match frames.map(|frames| &frames.kind) {
                Some(FramesKind::Foreach { on_item_error: OnItemError::Fail, .. }) => {
                    let open = self.facts.node(owner).frames.iter().flat_map(|set| set.open.values());
                    found.extend(open.filter(|frame| **frame != at.frame).map(|frame| (*frame, None)));
                }
                Some(FramesKind::Foreach { .. }) => break,
                _ => {}
            }
            at = owner;
        }
        found
    }

    /// Whether an end that is to be reused waits for a node that it would end: one that had ended before it, or that was asked
    /// for.
    pub(super) fn ends_after_others(&self, end: TaskRef) -> bool {
        self.ends_with(end).into_iter().any(|(frame, by)| {
            let after = by.map_or_else(BTreeSet::new, |by| self.after(frame, by));
            let mut others = self.facts.frames[frame].tasks();
            others.any(|(task, node)| {
                !node.has_ended() && !after.contains(&task.node) && self.was_done_or_is_asked_for(task)
            })
        })
    }

    /// A node and all that cannot come before it in a frame.
    fn after(&self, frame: FrameIx, first: NodeIx) -> BTreeSet<NodeIx> {
        let body = self.facts.body(&self.graph, frame);
        let (mut found, mut open) = (BTreeSet::from([first]), vec![first]);
        while let Some(node) = open.pop() {
            let next = body.node(node).outgoing.iter().map(|edge| body.edge(*edge).to);
            let follows = next.filter(|to| body.node(*to).join != Join::Any).filter(|to| found.insert(*to));
            open.extend(follows);
        }
        found
    }

    fn was_done_or_is_asked_for(&self, task: TaskRef) -> bool {
        let selected = self.selected(task);
        let runs_frames = self.facts.spec(&self.graph, task).kind == NodeKind::Frames;
        let is_again = |reusable: &Reusable, before: &NodePath| match runs_frames {
            true => reusable.is_around_again(before),
            false => {
                let is_tried = || reusable.tasks.get(before).is_some_and(|work| work.is_tried_again);
                reusable.runs_again(before) || is_tried()
            }
        };
        selected.is_asked_for()
            || selected == Selected::Around
            || self.before(task).is_some_and(|(reusable, before)| {
                reusable.has_finished(&before) || is_again(reusable, &before)
            })
    }

    /// Whether anything is at work in a frame, or is to be tried again there, or waits for a place that others have.
    fn is_at_work(&self, frame: FrameIx) -> bool {
        let waits_for_place = |task: TaskRef| {
            self.facts.running() > 0 && self.agenda.is_ready(task) && !self.put_off.contains(&task)
        };
        self.facts.tasks_within(frame).into_iter().any(|task| {
            let node = self.facts.node(task);
            node.retry_at.is_some()
                || (node.status == NodeStatus::Running && node.frames.is_none())
                || waits_for_place(task)
        })
    }

    /// Reuses each end of a frame whose turn has come.
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
            let waits = if self.is_end_to_reuse(task) {
                self.ends_with(task).into_iter().any(|(frame, _)| self.is_at_work(frame))
            } else if self.comes_too_early(task) {
                self.is_at_work(task.frame)
            } else {
                let has_place = self.facts.spec(&self.graph, task).occupies == Occupies::Nothing
                    || (self.facts.slots() < self.max_concurrency && !self.is_full_around(task));
                let ends = |frame| self.facts.around(task.frame).any(|around| around.id == frame);
                let mut others = self.put_off.iter().filter(|other| self.is_end_to_reuse(**other));
                !has_place || others.any(|end| self.ends_with(*end).into_iter().any(|(frame, _)| ends(frame)))
            };
            if !waits {
                self.put_off.remove(&task);
                self.consider(task, Deferral::Over, actions);
            }
        }
    }
}
