//! Facts of frames: how they open, and how they end.

use std::{borrow::Cow, sync::Arc};

use inspan_protocol::{
    AgentError, EdgeStatus, ErrorCode, Event, FrameSpending, NodePath, NodeStatus, Outcome, Timestamp,
};
use serde_json::Value;

use super::{FrameEnd, FrameSet, FrameState, FramesStep, frame_prefix};
use crate::{
    graph::{Edge, EdgeIx, EdgeOn, FrameIx, Frames, FramesKind, Graph, Join, NodeIx, OnItemError, TaskRef},
    state::{Ending, Facts, NodeState},
};

/// A limit that is reached.
pub(crate) struct Full {
    /// The node that runs frames.
    pub(crate) owner: TaskRef,
    /// The frame of it in which no more nodes may work. Without one, no more of its frames may.
    pub(crate) index: Option<u32>,
    /// How many work.
    pub(crate) most: u32,
}

impl Facts {
    /// The items of a foreach are known.
    pub(in super::super) fn set_items(
        &mut self,
        task: TaskRef,
        items: &Arc<Value>,
        keys: &[String],
        most: Option<u32>,
    ) {
        let set = self.node_mut(task).frames.get_or_insert_default();
        if set.items.is_none() {
            set.items = Some(items.clone());
            keys.clone_into(&mut set.keys);
        }
        set.max_concurrency = most;
        self.touched.push(task);
    }

    pub(in super::super) fn open_frame(
        &mut self,
        graph: &Graph,
        owner: TaskRef,
        index: u32,
        input: Option<&Arc<Value>>,
        carried: Option<&FrameSpending>,
        at: Timestamp,
    ) {
        let Some(frames) = self.spec(graph, owner).frames.as_deref() else { return };
        let id = self.frames.next();
        let mut frame = FrameState::new(graph, id, frames.body);
        frame.owner = Some(owner);
        frame.index = index;
        let path = self.path(graph, owner);
        frame.prefix = frame_prefix(&path, &frames.kind, index);
        frame.started_at = at;
        frame.deadline = graph.body(frames.body).policy.timeout.map(|timeout| at + timeout);
        frame.input = input.cloned();
        frame.attempts_before = self.frames[owner.frame].attempts_before;
        let parent = self.locals(owner).into_owned();
        let node = self.node_mut(owner);
        // A pass of a loop depends on what the passes before it did.
        let mut follows_work = node.worked && matches!(frames.kind, FramesKind::Loop { .. });
        let may_begin = |set: &&mut FrameSet| set.is_left(index) && set.may_have(index);
        let Some(set) = node.frames.as_deref_mut().filter(may_begin) else { return };
        if let Some(FrameEnd::Again(attempts)) = set.end(index) {
            frame.attempts_before = frame.attempts_before.max(*attempts);
            // Another attempt begins anew: what an earlier session has left was taken over by the first.
            follows_work = true;
        }
        frame.nodes.iter_mut().for_each(|node| node.follows_work = follows_work);
        frame.locals = Arc::new(set.locals(frames, index, &parent));
        for (node, known) in frame.nodes.iter_mut().zip(&set.conversations) {
            node.conversation.clone_from(known);
        }
        set.open.insert(index, id);
        set.skip_begun();
        self.touched.extend(frame.tasks().map(|(task, _)| task));
        self.touched.push(owner);
        if let Some(before) = self.spent_in.remove(&frame.prefix).as_ref().or(carried) {
            frame.carry(graph.body(frames.body), before);
        }
        self.frames.push(frame);
    }

    /// What the expressions of a task, and of the edges out of it, see beside the nodes.
    pub(crate) fn locals(&self, task: TaskRef) -> Cow<'_, Value> {
        let locals = &*self.frames[task.frame].locals;
        let pass = self.node(task).pass;
        if pass <= 1 {
            return Cow::Borrowed(locals);
        }
        let mut locals = locals.clone();
        if let Some(frame) = locals.get_mut("frame").and_then(Value::as_object_mut) {
            frame.insert("pass".to_owned(), pass.into());
        }
        Cow::Owned(locals)
    }

    /// Takes how a frame ends.
    pub(in super::super) fn take_frame_fact(
        &mut self,
        graph: &Graph,
        owner: Option<&NodePath>,
        event: &Event,
    ) {
        match event {
            Event::FrameEnding { index, error, .. } => {
                if let Some(frame) = self.open_frame_of(graph, owner, *index) {
                    self.end_frame_early(frame, error, error.code == ErrorCode::Aborted);
                }
            }
            Event::FrameComplete { index, outputs, ends_loop, .. } => {
                self.close_frame(graph, owner, *index, *ends_loop, |_| FrameEnd::Complete(outputs.clone()));
            }
            Event::FrameFailed { index, error, .. } => {
                let error = Box::new(error.clone());
                self.close_frame(graph, owner, *index, false, |attempts| FrameEnd::Failed(error, attempts));
            }
            Event::FrameCancelled { index, .. } => {
                self.close_frame(graph, owner, *index, false, FrameEnd::Cancelled);
            }
            _ => {}
        }
    }

    /// The open frame of a node with this index.
    pub(crate) fn open_frame_of(
        &self,
        graph: &Graph,
        owner: Option<&NodePath>,
        index: u32,
    ) -> Option<FrameIx> {
        let owner = self.find(graph, owner)?;
        self.node(owner).frames.as_ref()?.open.get(&index).copied()
    }

    fn close_frame(
        &mut self,
        graph: &Graph,
        owner: Option<&NodePath>,
        index: u32,
        ends_loop: bool,
        end: impl FnOnce(u32) -> FrameEnd,
    ) {
        let Some(id) = self.open_frame_of(graph, owner, index) else { return };
        let Some(frame) = self.take_frame(graph, id) else { return };
        let attempts = frame.nodes.iter().map(|node| node.attempt).max().unwrap_or_default();
        let attempts = attempts.max(frame.most_attempts).max(frame.attempts_before);
        self.progress += 1;
        if let Some(owner) = frame.owner {
            let is_loop = |frames: &Frames| matches!(frames.kind, FramesKind::Loop { .. });
            let is_loop = self.spec(graph, owner).frames.as_deref().is_some_and(is_loop);
            let end = end(attempts);
            self.note_spent(graph, owner, &frame, matches!(end, FrameEnd::Complete(_)));
            if let Some(set) = self.node_mut(owner).frames.as_deref_mut() {
                set.close(index, end);
                set.done = ends_loop;
                if is_loop {
                    set.conversations = frame.nodes.iter().map(|node| node.conversation.clone()).collect();
                }
            }
            let around = &mut self.frames[owner.frame];
            around.most_attempts = around.most_attempts.max(attempts);
            self.touched.push(owner);
        }
    }

    /// Takes a frame out. In a broken log something may still work in it, which nothing could end later.
    pub(in super::super) fn take_frame(&mut self, graph: &Graph, id: FrameIx) -> Option<Box<FrameState>> {
        let works =
            |(_, node): &(TaskRef, &NodeState)| node.status == NodeStatus::Running || node.frames.is_some();
        let working: Vec<_> = self.frames[id].tasks().filter(works).map(|(task, _)| task).collect();
        working.into_iter().for_each(|task| self.end(graph, task, NodeStatus::Failed, None));
        let frame = self.frames.close(id)?;
        self.touched.extend(frame.tasks().map(|(task, _)| task));
        self.ending_frames.remove(&id);
        if let Some(owner) = frame.owner {
            self.count_limited(owner.frame, -(frame.limited as i32));
        }
        Some(frame)
    }

    /// A frame ends before its time, because of a failure or because it is cancelled.
    pub(in super::super) fn end_frame_early(
        &mut self,
        frame: FrameIx,
        error: &AgentError,
        is_cancelled: bool,
    ) {
        if self.frames[frame].ending.is_none() {
            let outcome = if is_cancelled { Outcome::Stopped } else { Outcome::Failed };
            let state = &mut self.frames[frame];
            state.ending = Some(Ending { outcome, error: Some(error.clone()) });
            state.ended_by = Some(self.session.last_seq);
            self.ending_frames.insert(frame);
            self.touch_frame(frame);
        }
    }

    /// A `control.end` ends its frame, or the flow, with success.
    pub(in super::super) fn end_frame_well(&mut self, frame: FrameIx, result: &Arc<Value>) {
        let outputs = result.get("outputs").map(|outputs| Arc::new(outputs.clone()));
        let state = &mut self.frames[frame];
        if frame == FrameIx::FLOW {
            if self.ending.is_none() {
                state.outputs_at_end = outputs;
                self.end_early(Ending { outcome: Outcome::Success, error: None });
            }
        } else if state.ending.is_none() {
            state.outputs_at_end = outputs;
            state.ending = Some(Ending { outcome: Outcome::Success, error: None });
            state.ended_by = Some(self.session.last_seq);
            self.ending_frames.insert(frame);
            self.touch_frame(frame);
        }
    }

    /// What may be decided about the tasks of a frame, and of the frames within it, has changed.
    pub(in super::super) fn touch_frame(&mut self, frame: FrameIx) {
        let within = self.tasks_within(frame);
        self.touched.extend(self.frames[frame].owner.into_iter().chain(within));
    }

    /// The tasks of a frame, and of the frames within it.
    pub(crate) fn tasks_within(&self, frame: FrameIx) -> Vec<TaskRef> {
        let (mut tasks, mut open) = (Vec::new(), vec![frame]);
        while let Some(frame) = open.pop() {
            for (task, node) in self.frames[frame].tasks() {
                tasks.push(task);
                open.extend(node.frames.iter().flat_map(|set| set.open.values()));
            }
        }
        tasks
    }

    /// Lifts the limits of how many frames of a node are open at a time.
    pub(crate) fn open_all_frames(&mut self) {
        let nodes = self.frames.iter_mut().flat_map(|frame| frame.nodes.iter_mut());
        nodes.filter_map(|node| node.frames.as_mut()).for_each(|set| set.max_concurrency = None);
    }

    /// What is to be decided about the frames that a task runs.
    pub(crate) fn frames_step(&self, graph: &Graph, task: TaskRef) -> Option<FramesStep> {
        let node = self.node(task);
        let set = node.frames.as_deref().filter(|_| node.status == NodeStatus::Running)?;
        let all_closed = set.open.is_empty();
        if self.must_end(task) {
            return all_closed.then_some(FramesStep::Decide);
        }
        let frames = self.spec(graph, task).frames.as_deref()?;
        let FramesKind::Foreach { on_item_error, .. } = &frames.kind else {
            return all_closed.then_some(FramesStep::Decide);
        };
        let Some(total) = set.total() else { return Some(FramesStep::Decide) };
        let breaks_off = set.failed > 0 && *on_item_error != OnItemError::Continue;
        if breaks_off || set.next >= total {
            // The end of those that run is requested once.
            let must_end = |frame: &FrameIx| self.frames[*frame].ending.is_none();
            let tells = *on_item_error == OnItemError::Fail && set.open.values().any(must_end);
            return (all_closed || (breaks_off && tells)).then_some(FramesStep::Decide);
        }
        // An item that fails may still have work to clean up after itself; nothing begins beside that.
        let fails = |frame: &FrameIx| {
            self.frames[*frame].ending.as_ref().is_some_and(|ending| ending.outcome == Outcome::Failed)
        };
        if *on_item_error != OnItemError::Continue && set.open.values().any(fails) {
            return None;
        }
        let works = |frame: &&FrameIx| self.frames[**frame].running == 0 || self.frames[**frame].slots > 0;
        let working = || set.open.values().filter(works).count() as u32;
        set.max_concurrency.is_none_or(|most| working() < most).then_some(FramesStep::Open)
    }

    /// What around a task lets it not work beside what does. A frame that only waited has given up its place among those of
    /// its node.
    pub(crate) fn full_around(&self, graph: &Graph, task: TaskRef) -> Option<Full> {
        self.around(task.frame).find_map(|frame| {
            let owner = frame.owner?;
            let most = self.body(graph, frame.id).policy.max_concurrency;
            if let Some(most) = most.filter(|most| frame.slots >= *most) {
                return Some(Full { owner, index: Some(frame.index), most });
            }
            let set = self.node(owner).frames.as_deref().filter(|_| frame.slots == 0)?;
            let most = set.max_concurrency.filter(|most| set.working >= *most)?;
            Some(Full { owner, index: None, most })
        })
    }

    /// Whether a task may start although its frame is to end: it cleans up, and what it cleans up after has ended or can begin
    /// no more. The end of the flow waits for no usage limit, a stop for no person, and a stop during the end for nothing
    /// that may cost money or waits.
    pub(crate) fn may_clean_up(&self, graph: &Graph, task: TaskRef) -> bool {
        let (node, spec) = (self.node(task), self.body(graph, task.frame).node(task.node));
        let is_answered = node.more.as_ref().is_some_and(|more| more.reply.is_some());
        let is_limited = node.status == NodeStatus::Waiting && self.ending.is_some();
        let is_in_doubt = node.needs_confirmation && !is_answered && self.is_stopping();
        if is_limited || is_in_doubt || (self.stopped_while_ending && spec.ends_at_stop()) {
            return false;
        }
        let needs_all = spec.join != Join::Any;
        let runs_yet = |from: NodeIx| {
            let from = self.frames[task.frame].task(from);
            let is_led_to = |status| self.has_any_end(graph, from, status);
            let begins =
                self.node(from).cleans_up || is_led_to(EdgeStatus::Fired) || is_led_to(EdgeStatus::Pending);
            self.node(from).status != NodeStatus::Pending || begins
        };
        let mut open = self.any_ends(graph, task, EdgeStatus::Pending);
        let waits = needs_all && open.any(runs_yet);
        let may_begin = node.cleans_up || (node.attempt == 0 && !waits);
        may_begin && self.has_any_end(graph, task, EdgeStatus::Fired)
    }

    /// Whether an edge that fires in any case leads to a task and has this status.
    pub(crate) fn has_any_end(&self, graph: &Graph, task: TaskRef, status: EdgeStatus) -> bool {
        self.any_ends(graph, task, status).next().is_some()
    }

    /// From which nodes edges that fire in any case lead to a task, and have this status.
    fn any_ends(&self, graph: &Graph, task: TaskRef, status: EdgeStatus) -> impl Iterator<Item = NodeIx> {
        let (frame, body) = (&self.frames[task.frame], self.body(graph, task.frame));
        let incoming = body.node(task.node).incoming.iter().map(|edge| (*edge, body.edge(*edge)));
        let fires =
            move |(ix, edge): &(EdgeIx, &Edge)| edge.on == EdgeOn::Any && frame.edges[*ix].status == status;
        incoming.filter(fires).map(|(_, edge)| edge.from)
    }

    /// Whether a frame, or one around it, is to end before its time. What runs in frames of a node that cleans up is left to
    /// end, as the node is.
    pub(crate) fn is_ending(&self, frame: FrameIx) -> bool {
        let frame = &self.frames[frame];
        let around = || frame.owner.map_or(self.ending.is_some(), |owner| self.must_end(owner));
        frame.ending.is_some() || around()
    }

    /// Whether a task is to end before its time: its frame is, and it does not clean up.
    pub(crate) fn must_end(&self, task: TaskRef) -> bool {
        !self.node(task).cleans_up && self.is_ending(task.frame)
    }
}
