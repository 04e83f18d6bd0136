//! What may be decided next: an index over the facts, updated after each event. It says nothing that the facts do
//! not say, so it can be rebuilt from them at any time.

use std::collections::{BTreeMap, BTreeSet};

use inspan_protocol::{NodeStatus, Timestamp};

use crate::{
    graph::{FrameIx, Graph, NodeIx, TaskRef},
    node::Occupies,
    state::{Facts, FramesStep},
};

/// The tasks about which something can be decided, by what it is.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Agenda {
    /// What is known of each task of which there is something to know.
    entries: BTreeMap<TaskRef, Entry>,
    /// The frames that are open, the flow's aside.
    frames: BTreeMap<FrameIx, FrameEntry>,
    /// Tasks that can start, by whether they need a place for work.
    ready: BTreeSet<(Occupies, TaskRef)>,
    /// Those of them that decide whether a failure is handled.
    handlers: BTreeSet<TaskRef>,
    /// When a task is to be tried again, or an attempt's time is up.
    timers: BTreeSet<(Timestamp, TaskRef)>,
    /// When the time of a frame is up.
    frame_timers: BTreeSet<(Timestamp, FrameIx)>,
    /// Tasks that have ended and whose edges can be resolved, by the event since which they can.
    ended: BTreeSet<(u64, TaskRef)>,
    /// Frames in which nothing can happen any more.
    idle: BTreeSet<FrameIx>,
    /// Tasks that run frames, by what is to be decided about these.
    steps: BTreeSet<(FramesStep, TaskRef)>,
}

/// The index entry of one task.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Entry {
    ready: Option<Occupies>,
    handles: bool,
    timer: Option<Timestamp>,
    settles: Option<u64>,
    step: Option<FramesStep>,
    /// Whether the frame cannot end because of it.
    is_active: bool,
}

/// The index entry of one frame.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct FrameEntry {
    active: u32,
    deadline: Option<Timestamp>,
}

impl Entry {
    fn of(graph: &Graph, facts: &Facts, task: TaskRef) -> Self {
        let Some(frame) = facts.frames.get(task.frame) else { return Self::default() };
        let body = graph.body(frame.body);
        let (spec, node) = (body.node(task.node), &frame.nodes[task.node]);
        let is_open = matches!(node.status, NodeStatus::Pending | NodeStatus::Waiting);
        let is_ending = facts.is_ending(task.frame);
        // The end of the flow waits for no usage limit.
        let is_limited = node.status == NodeStatus::Waiting && facts.ending.is_some();
        let can_start = match is_ending {
            true => facts.may_clean_up(graph, task),
            false => node.has_its_edges(spec.join) && !is_limited,
        };
        let ready = (is_open && can_start && node.retry_at.is_none()).then_some(spec.occupies);
        let entry = Self {
            ready,
            handles: ready.is_some() && frame.handles(body, task.node),
            timer: match node.status {
                NodeStatus::Running => node.time_is_up_at(),
                _ => node.retry_at.filter(|_| is_open && !is_limited && (!is_ending || can_start)),
            },
            settles: (!is_ending && frame.settles(body, task.node)).then_some(node.settles),
            step: facts.frames_step(graph, task),
            is_active: false,
        };
        let is_held = matches!(node.status, NodeStatus::Cancelled | NodeStatus::Paused)
            && (!is_ending || facts.is_paused_cleanup(node));
        let runs = node.status == NodeStatus::Running;
        let decides = entry.ready.is_some() || entry.timer.is_some() || entry.settles.is_some();
        Self { is_active: is_held || runs || decides, ..entry }
    }
}

impl Agenda {
    pub(crate) fn rebuild(graph: &Graph, facts: &Facts) -> Self {
        let mut agenda = Self::default();
        facts.tasks().for_each(|(task, _)| agenda.refresh(graph, facts, task));
        agenda
    }

    /// Takes up what the newest event has changed.
    pub(crate) fn update(&mut self, graph: &Graph, facts: &Facts) {
        facts.touched.iter().for_each(|task| self.refresh(graph, facts, *task));
    }

    fn refresh(&mut self, graph: &Graph, facts: &Facts, task: TaskRef) {
        let new = Entry::of(graph, facts, task);
        let old = match new == Entry::default() {
            true => self.entries.remove(&task),
            false => self.entries.insert(task, new),
        };
        let old = old.unwrap_or_default();
        if old != new {
            replace(&mut self.ready, task, old.ready, new.ready);
            match new.handles {
                true => self.handlers.insert(task),
                false => self.handlers.remove(&task),
            };
            replace(&mut self.timers, task, old.timer, new.timer);
            replace(&mut self.ended, task, old.settles, new.settles);
            replace(&mut self.steps, task, old.step, new.step);
        }
        if task.frame != FrameIx::FLOW {
            self.refresh_frame(facts, task.frame, old.is_active, new.is_active);
        }
    }

    fn refresh_frame(&mut self, facts: &Facts, frame: FrameIx, was_active: bool, is_active: bool) {
        let Some(state) = facts.frames.get(frame) else {
            let closed = self.frames.remove(&frame).unwrap_or_default();
            replace(&mut self.frame_timers, frame, closed.deadline, None);
            self.idle.remove(&frame);
            return;
        };
        let entry = self.frames.entry(frame).or_default();
        entry.active = entry.active + u32::from(is_active) - u32::from(was_active);
        let deadline = state.deadline.filter(|_| state.ending.is_none() && state.limited_since.is_none());
        if entry.deadline != deadline {
            replace(&mut self.frame_timers, frame, entry.deadline, deadline);
            entry.deadline = deadline;
        }
        match entry.active {
            0 => self.idle.insert(frame),
            _ => self.idle.remove(&frame),
        };
    }

    /// What is due by `now`, earliest first: retries, and attempts whose time is up.
    pub(super) fn due(&self, now: Timestamp) -> impl Iterator<Item = TaskRef> {
        self.timers.range(..=(now, LAST_TASK)).map(|(_, task)| *task)
    }

    /// Frames whose time is up by `now`, earliest first.
    pub(super) fn due_frames(&self, now: Timestamp) -> impl Iterator<Item = FrameIx> {
        self.frame_timers.range(..=(now, LAST_TASK.frame)).map(|(_, frame)| *frame)
    }

    /// When something is due after `now`.
    pub(super) fn next_timer(&self, now: Timestamp) -> Option<Timestamp> {
        let task = self.timers.range((now, LAST_TASK)..).map(|(at, _)| *at).find(|at| *at > now);
        let frames = self.frame_timers.range((now, LAST_TASK.frame)..);
        let frame = frames.map(|(at, _)| *at).find(|at| *at > now);
        task.into_iter().chain(frame).min()
    }

    /// Tasks that can start, in the order of the graph, retries aside.
    pub(super) fn ready(&self, occupies: Occupies) -> impl Iterator<Item = TaskRef> {
        self.ready.range((occupies, FIRST_TASK)..=(occupies, LAST_TASK)).map(|(_, task)| *task)
    }

    /// Whether a task can start, retries aside.
    pub(super) fn is_ready(&self, task: TaskRef) -> bool {
        self.entries.get(&task).is_some_and(|entry| entry.ready.is_some())
    }

    /// Tasks that can start and decide whether a failure is handled, in the order of the graph.
    pub(super) fn handlers(&self) -> impl Iterator<Item = TaskRef> {
        self.handlers.iter().copied()
    }

    /// Tasks whose edges can be resolved, the earliest first.
    pub(super) fn ended(&self) -> impl Iterator<Item = TaskRef> {
        self.ended.iter().map(|(_, task)| *task)
    }

    /// The innermost frame in which nothing can happen any more.
    pub(super) fn idle_frame(&self) -> Option<FrameIx> {
        self.idle.last().copied()
    }

    /// Tasks about whose frames this is to be decided.
    pub(super) fn steps(&self, step: FramesStep) -> impl Iterator<Item = TaskRef> {
        self.steps.range((step, FIRST_TASK)..=(step, LAST_TASK)).map(|(_, task)| *task)
    }
}

/// Puts something at another place of an index.
fn replace<K: Ord, T: Ord + Copy>(index: &mut BTreeSet<(K, T)>, of: T, old: Option<K>, new: Option<K>) {
    old.map(|key| index.remove(&(key, of)));
    index.extend(new.map(|key| (key, of)));
}

/// Before and after every task in the order of tasks.
const FIRST_TASK: TaskRef = TaskRef { frame: FrameIx::FLOW, node: NodeIx(0) };
const LAST_TASK: TaskRef = TaskRef { frame: FrameIx(u32::MAX), node: NodeIx(u32::MAX) };
