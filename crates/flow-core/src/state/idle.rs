//! Facts of an idle session and of people: questions and answers, pauses, and how a session is resumed.

use std::{collections::BTreeMap, time::Duration};

use inspan_protocol::{EdgeStatus, NodePath, NodeStatus, Outcome, Prompt, PromptKind, Reply, Timestamp};

use super::{
    Facts,
    frame::FrameState,
    node::{NodeExtras, NodeState},
};
use crate::{
    graph::{Effects, FrameIx, Graph, TaskRef},
    node::NodeKind,
};

/// The answers to the question whether an interrupted attempt has taken effect.
pub(crate) const RUN_AGAIN: &str = "run it again";
pub(crate) const IT_IS_DONE: &str = "it is done";
pub(crate) const LET_IT_FAIL: &str = "let it fail";

/// The message to an agent that resumes, if nobody gives another one.
pub const CONTINUE: &str = "continue";

impl Facts {
    pub(super) fn ask(&mut self, graph: &Graph, prompt: Prompt) {
        if prompt.kind == PromptKind::Input
            && let Some(task) = self.find(graph, prompt.task.as_ref())
        {
            let node = self.node_mut(task);
            let asks = node.status == NodeStatus::Running;
            let more = node.more();
            more.asks = asks;
            more.asked = Some(prompt);
            more.reply = None;
            self.touched.push(task);
        }
    }

    pub(super) fn reply(
        &mut self,
        graph: &Graph,
        answered: Option<&Prompt>,
        content: &str,
        choice: Option<&str>,
    ) {
        let Some(prompt) = answered else { return };
        if prompt.kind == PromptKind::Input
            && let Some(task) = self.find(graph, prompt.task.as_ref())
        {
            let node = self.node_mut(task);
            let reply = Reply { content: content.to_owned(), choice: choice.map(str::to_owned) };
            if node.needs_confirmation && choice == Some(RUN_AGAIN) {
                node.needs_confirmation = false;
                node.deaths = 0;
                let more = node.more();
                (more.asked, more.reply) = (None, None);
            } else {
                node.more().reply = Some(reply);
            }
            self.touched.push(task);
        }
    }

    pub(super) fn forget_prompts(&mut self, task: TaskRef) {
        if let Some(more) = &mut self.node_mut(task).more {
            (more.asked, more.reply) = (None, None);
        }
    }

    pub(super) fn pause(&mut self, graph: &Graph, paths: &[NodePath]) {
        self.pausing = None;
        for path in paths {
            let task = self.find(graph, Some(path));
            if let Some(task) = task.filter(|task| self.node(*task).status == NodeStatus::Cancelled) {
                self.node_mut(task).status = NodeStatus::Paused;
            }
        }
    }

    /// What was in flight when the session came to rest, however it did, is pending again.
    pub(super) fn resume(
        &mut self,
        graph: &Graph,
        continued: &[NodePath],
        (message, messages): (&str, &BTreeMap<NodePath, String>),
        at: Timestamp,
        rest: Duration,
    ) {
        match self.started_at() {
            Some(_) => {
                self.rested += rest;
                self.put_off_frames(rest);
            }
            // The log begins elsewhere; the time counts from here.
            None => self.continued_at = Some(at),
        }
        self.pausing = None;
        self.budget_reported = false;
        self.frames.iter_mut().for_each(|frame| frame.budget_reported = false);
        self.unpriced_before = self.session.unpriced;
        self.uncounted_before = self.session.uncounted;
        let tasks: Vec<TaskRef> = self.tasks().map(|(task, _)| task).collect();
        for task in tasks {
            if let Some(more) = &mut self.node_mut(task).more {
                more.unpriced_before = more.spent.unpriced;
                more.uncounted_before = more.spent.uncounted;
                more.budget_reported = false;
            }
            let path = self.path(graph, task);
            let node_message =
                continued.contains(&path).then(|| messages.get(&path).map_or(message, |own| own));
            if self.is_cut(task) {
                self.note_death(task);
                self.interrupt(graph, task, node_message);
            } else if let Some(node_message) = node_message {
                self.node_mut(task).more().add_message(node_message);
            }
            // A node that runs frames continues; its timer and theirs have moved.
            if self.node(task).needs_confirmation && self.is_stopping() {
                // Nobody is asked about it any more: a node that cleans up in frames ends with it.
                self.end_cleanup_around(task.frame);
            }
            self.touched.push(task);
        }
        let waiting = self.tasks().filter(|(_, node)| node.status == NodeStatus::Waiting);
        for task in waiting.map(|(task, _)| task).collect::<Vec<_>>() {
            self.note_limits_around(Some(task), at);
        }
    }

    /// The process of one attempt is gone; its agent continues its own conversation, if it has named one.
    pub(super) fn lose(&mut self, graph: &Graph, task: TaskRef, stopped: bool) {
        // Machines are stopped as often as people like.
        if !stopped {
            self.note_death(task);
        }
        let has_named = self.node(task).has_named();
        self.interrupt(graph, task, has_named.then_some(CONTINUE));
    }

    /// An attempt may be why the process died that ran it.
    fn note_death(&mut self, task: TaskRef) {
        let progress = self.progress;
        let node = self.node_mut(task);
        // A process may leave a question that waits, and then it has not died.
        let waits = node.more.as_ref().is_some_and(|more| more.asks);
        if node.status == NodeStatus::Running && !node.never_began && !waits {
            node.note_death(progress);
        }
    }

    /// A stop that comes while the run is ending ends what cleans up and may cost money, and what waits for a person or a time;
    /// returns whether there is such work. What of it has not begun begins no more. Everything else that cleans up goes on.
    pub(super) fn stop_cleanup(&mut self, graph: &Graph) -> bool {
        let (mut is_waited_for, mut ended) = (false, Vec::new());
        for (task, node) in self.tasks().filter(|(_, node)| !node.has_ended()) {
            let is_asked = node.more.as_ref().is_some_and(|more| more.asked.is_some());
            is_waited_for |= (is_asked || node.needs_confirmation) && !self.must_end(task);
            let may_begin = || {
                let has_edge = |status| self.has_any_end(graph, task, status);
                node.has_not_begun() && (has_edge(EdgeStatus::Fired) || has_edge(EdgeStatus::Pending))
            };
            if self.spec(graph, task).ends_at_stop() && (node.cleans_up || may_begin()) {
                ended.push(task);
            }
        }
        let stops = !self.phase_ended && (is_waited_for || !ended.is_empty());
        if stops {
            self.end_cleanup_of(ended);
            self.stopped_while_ending = true;
        }
        stops
    }

    /// The first stop ends what cleans up in a frame, if it may cost money or waits. Where nothing of it has begun, it is left
    /// to begin, as what cleans up in the flow is.
    pub(super) fn stop_cleanup_in_frames(&mut self, graph: &Graph) {
        let ends = |(task, node): &(TaskRef, &NodeState)| {
            node.cleans_up && !node.has_ended() && self.spec(graph, *task).ends_at_stop()
        };
        let ended: Vec<TaskRef> = self.tasks().filter(ends).map(|(task, _)| task).collect();
        self.end_cleanup_of(ended);
    }

    /// Whether a budget has cut what cleans up in a frame, and no larger one is waited for any more, since the run ends.
    pub(crate) fn is_cut_for_good(&self, task: TaskRef) -> bool {
        let ends = self.ending.is_some() && self.pausing.is_none() && !self.is_stopping();
        ends && self.node(task).status == NodeStatus::Cancelled && !self.must_end(task)
    }

    /// Whether a node that was cancelled continues: what cleans up is cancelled for a pause, or because all is to stop.
    pub(crate) fn is_paused_cleanup(&self, node: &NodeState) -> bool {
        node.cleans_up && !self.is_stopping()
    }

    /// Whether the run ends because it is to stop.
    pub(super) fn is_stopping(&self) -> bool {
        self.ending.as_ref().is_some_and(|ending| ending.outcome == Outcome::Stopped)
    }

    /// What cleans up and was cut short for a pause begins again if the session is stopped before it has paused.
    pub(super) fn clean_up_again(&mut self, graph: &Graph, task: TaskRef) {
        let node = self.node(task);
        let asks = node.more.as_ref().is_some_and(|more| more.asks);
        let is_cut = node.status == NodeStatus::Cancelled && !self.must_end(task);
        let is_stopped = self.is_stopping();
        if is_cut && is_stopped && asks && !self.is_ending(task.frame) {
            // What asked in frames of a node that cleans up is not asked again: the node ends with it.
            self.end_cleanup_around(task.frame);
        } else if is_cut && is_stopped && !asks && self.pausing.is_some() {
            self.interrupt(graph, task, None);
        }
    }

    /// These are to end as what does not clean up.
    fn end_cleanup_of(&mut self, tasks: Vec<TaskRef>) {
        tasks.into_iter().for_each(|task| self.node_mut(task).cleans_up = false);
    }

    fn end_cleanup_around(&mut self, frame: FrameIx) {
        let owners: Vec<TaskRef> = self.around(frame).filter_map(|frame| frame.owner).collect();
        self.end_cleanup_of(owners);
        self.touch_frame(FrameIx::FLOW);
    }

    /// Counts nodes that begin or end to wait for a usage limit in their frame and in all around it.
    pub(super) fn count_limited(&mut self, frame: FrameIx, change: i32) {
        let mut next = Some(frame).filter(|_| change != 0);
        while let Some(ix) = next {
            let frame = &mut self.frames[ix];
            frame.limited = frame.limited.saturating_add_signed(change);
            next = frame.owner.map(|owner| owner.frame);
        }
    }

    /// The time in which all that is left waits for usage limits counts for no timeout around it: the deadlines of the frames,
    /// and of the nodes that run them, move by it once something else happens.
    pub(super) fn note_limits(&mut self, graph: &Graph, path: Option<&NodePath>, at: Timestamp) {
        self.note_limits_around(path.and_then(|path| self.find_any_pass(graph, path)), at);
    }

    fn note_limits_around(&mut self, mut node: Option<TaskRef>, at: Timestamp) {
        let mut next = Some(node.map_or(FrameIx::FLOW, |task| task.frame));
        while let Some(ix) = next {
            if let Some(task) = node {
                self.note_limited_node(task, at);
            }
            let frame = &mut self.frames[ix];
            let is_limited = frame.is_limited();
            if is_limited != frame.limited_since.is_some() {
                self.touched.extend(frame.tasks().next().map(|(task, _)| task));
                let waited = turned(&mut frame.limited_since, at);
                frame.deadline = frame.deadline.map(|deadline| deadline + waited);
                if ix == FrameIx::FLOW {
                    self.limited += waited;
                }
            }
            node = frame.owner;
            next = node.map(|owner| owner.frame);
        }
    }

    fn note_limited_node(&mut self, task: TaskRef, at: Timestamp) {
        let node = self.node(task);
        let Some(set) = node.frames.as_deref().filter(|_| node.deadline.is_some()) else { return };
        let mut open = set.open.values().map(|frame| &self.frames[*frame]);
        let is_limited = open.clone().all(|frame| frame.running == 0) && open.any(FrameState::is_limited);
        if is_limited != set.limited_since.is_some() {
            let node = self.node_mut(task);
            let waited =
                node.frames.as_mut().map(|set| turned(&mut set.limited_since, at)).unwrap_or_default();
            node.deadline = node.deadline.map(|deadline| deadline + waited);
            self.touched.push(task);
        }
    }

    /// The time between two processes counts neither for nodes that run frames, nor for the frames: their deadlines
    /// and their start times move by it, so that it does not count in their durations.
    fn put_off_frames(&mut self, rest: Duration) {
        for frame in self.frames.iter_mut() {
            frame.deadline = frame.deadline.map(|deadline| deadline + rest);
            frame.started_at = frame.started_at + rest;
            frame.limited_since = frame.limited_since.map(|since| since + rest);
            for node in frame.nodes.iter_mut().filter(|node| node.frames.is_some()) {
                node.deadline = node.deadline.map(|deadline| deadline + rest);
                node.started_at = node.started_at.map(|started| started + rest);
                if let Some(set) = &mut node.frames {
                    set.limited_since = set.limited_since.map(|since| since + rest);
                }
            }
        }
    }

    /// The time of a running attempt ends at this moment.
    pub(crate) fn put_off_attempt(&mut self, task: TaskRef, deadline: Timestamp) {
        self.node_mut(task).deadline = Some(deadline);
        self.touched.push(task);
    }

    pub(super) fn interrupt(&mut self, graph: &Graph, task: TaskRef, message: Option<&str>) {
        let spec = self.spec(graph, task);
        let ends = self.ending.is_some() && self.must_end(task);
        if self.node(task).status == NodeStatus::Running {
            self.count_running(task.frame, spec.occupies, -1);
        }
        self.touched.push(task);
        self.release(task);
        let node = self.node_mut(task);
        node.deadline = None;
        if let Some(more) = &mut node.more {
            more.run = None;
        }
        if ends {
            node.status = NodeStatus::Cancelled;
            return;
        }
        node.status = NodeStatus::Pending;
        node.interrupted = true;
        node.needs_confirmation = spec.effects == Effects::External && !node.never_began;
        if let Some(message) = message {
            node.more().add_message(message);
        }
    }

    /// Whether an attempt was in flight when the session came to rest or its process died.
    fn is_cut(&self, task: TaskRef) -> bool {
        let node = self.node(task);
        match node.status {
            NodeStatus::Running => node.frames.is_none(),
            NodeStatus::Paused => true,
            NodeStatus::Cancelled => !self.is_ending(task.frame) || self.is_paused_cleanup(node),
            _ => false,
        }
    }

    /// The agents that were interrupted, and whether each continues its own conversation when the session is resumed. One
    /// that has named none starts over.
    pub(crate) fn interrupted_agents(&self, graph: &Graph) -> impl Iterator<Item = (NodePath, bool)> {
        let interrupted = |(task, node): (TaskRef, &NodeState)| {
            let is_cut = self.is_cut(task);
            // It waits for a limit, or the process died before it was started.
            let has_message =
                node.interrupted && node.more.as_ref().is_some_and(|more| more.resume.is_some());
            let continues = has_message || (node.has_named() && is_cut);
            let waits = matches!(node.status, NodeStatus::Pending | NodeStatus::Waiting) && node.interrupted;
            let starts_over = self.spec(graph, task).kind == NodeKind::Agent && (is_cut || waits);
            // What is ending does not continue.
            let goes_on = !self.must_end(task);
            (goes_on && (continues || starts_over)).then(|| (self.path(graph, task), continues))
        };
        self.tasks().filter_map(interrupted)
    }
}

/// Begins a span, or ends it and gives its length.
fn turned(since: &mut Option<Timestamp>, at: Timestamp) -> Duration {
    match since.take() {
        Some(since) => at.since(since),
        None => {
            *since = Some(at);
            Duration::ZERO
        }
    }
}

impl NodeExtras {
    /// The message to the agent when it resumes; a message that it should have got before is not lost.
    fn add_message(&mut self, message: &str) {
        // It was sent before, and is read before.
        self.taken.append(&mut self.waiting);
        match &mut self.resume {
            Some(before) if before != CONTINUE => {
                if message != CONTINUE {
                    *before = format!("{before}\n\n{message}");
                }
            }
            resume => *resume = Some(message.to_owned()),
        }
    }

    /// The messages that no finished turn has answered, the oldest first.
    pub(crate) fn undelivered(&self) -> impl Iterator<Item = &str> {
        let resume = self.resume.iter().filter(|message| *message != CONTINUE);
        self.taken.iter().chain(resume).chain(&self.waiting).map(String::as_str)
    }
}
