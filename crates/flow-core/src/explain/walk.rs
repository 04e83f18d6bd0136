//! Replays a log event by event. What a statement says is in `node` and `session`; which event is behind a part of the
//! state is looked up in the log.

use std::{collections::BTreeMap, sync::Arc};

use inspan_protocol::{
    DeniedCalls, Envelope, Event, NodeId, NodePath, NodeStatus, PromptKind, SessionStatus,
};

use super::{Statement, StatementKind, reason::denied};
use crate::{
    graph::{Body, EdgeIx, FrameIx, Graph, Node, NodeIx, TaskRef},
    schedule::Run,
    state::{EdgeState, Facts, NodeState, find_edge},
};

/// A log on replay.
pub(super) struct Walk<'a> {
    pub(super) run: Run,
    /// The frame that is looked at.
    pub(super) frame: FrameIx,
    pub(super) log: &'a [Arc<Envelope>],
    pub(super) statements: Vec<Statement>,
    /// Why the node was skipped or cancelled last.
    pub(super) reason: String,
    /// The event before the log.
    base: u64,
    /// The state of the node when its frame closed, with what led there.
    pub(super) standing: Option<(Statement, Vec<Statement>)>,
    /// The event that closes a frame, while the state just before it is looked at.
    pub(super) closing: Option<u64>,
    pub(super) is_lost: bool,
    denied: DeniedCalls,
}

impl<'a> Walk<'a> {
    /// Replays the whole log, with statements about one node or, without one, about the session.
    pub(super) fn of(run: Run, log: &'a [Arc<Envelope>], focus: Option<&NodePath>, is_lost: bool) -> Self {
        let base = run.state().session.last_seq;
        let (frame, reason) = (FrameIx::FLOW, String::new());
        let mut walk = Self {
            run,
            frame,
            log,
            statements: Vec::new(),
            reason,
            base,
            standing: None,
            closing: None,
            is_lost,
            denied: DeniedCalls::default(),
        };
        for envelope in log.iter().filter(|envelope| envelope.seq > base) {
            match focus {
                Some(path) => walk.take_about(envelope, path),
                None => {
                    walk.frame = walk.frame_of(envelope);
                    walk.before_session(envelope);
                    walk.run.apply(envelope);
                    walk.frame = walk.frame_of(envelope);
                    walk.after_session(envelope);
                }
            }
        }
        walk.frame = focus.and_then(|path| walk.find(path)).map_or(FrameIx::FLOW, |task| task.frame);
        walk
    }

    fn take_about(&mut self, envelope: &Envelope, path: &NodePath) {
        let before = self.find(path);
        let denied = denied(self.denied.take(envelope));
        if let Some(task) = before {
            self.frame = task.frame;
            let closes = matches!(
                envelope.event,
                Event::FrameComplete { .. } | Event::FrameFailed { .. } | Event::FrameCancelled { .. }
            );
            if closes && task.frame != FrameIx::FLOW {
                // If its frame is what closes, this is the last that is known of it.
                let statements = self.statements.clone();
                self.closing = Some(envelope.seq);
                let standing = self.node_standing(task);
                self.closing = None;
                self.standing = Some((standing, std::mem::replace(&mut self.statements, statements)));
            }
            self.before_node(envelope, task, &denied);
        }
        self.run.apply(envelope);
        if let Some(task) = self.find(path) {
            (self.frame, self.standing) = (task.frame, None);
            self.after_node(envelope, task, &denied);
        }
    }

    /// The task of a path, if its frame is open.
    pub(super) fn find(&self, path: &NodePath) -> Option<TaskRef> {
        self.state().find_any_pass(self.run.graph(), path)
    }

    fn frame_of(&self, envelope: &Envelope) -> FrameIx {
        let task = envelope.context.task.as_ref().and_then(|path| self.find(path));
        task.map_or(FrameIx::FLOW, |task| task.frame)
    }

    /// The body of the frame that is looked at.
    pub(super) fn body<'g>(&self, graph: &'g Graph) -> &'g Body {
        self.state().body(graph, self.frame)
    }

    pub(super) fn spec_of<'g>(&self, graph: &'g Graph, task: TaskRef) -> &'g Node {
        self.state().spec(graph, task)
    }

    pub(super) fn edge_state(&self, edge: EdgeIx) -> EdgeState {
        self.state().frames[self.frame].edges[edge]
    }

    /// A node of the frame that is looked at.
    pub(super) fn task(&self, node: NodeIx) -> TaskRef {
        TaskRef { frame: self.frame, node }
    }

    pub(super) fn state(&self) -> &Facts {
        self.run.state()
    }

    pub(super) fn graph(&self) -> Arc<Graph> {
        self.run.graph().clone()
    }

    pub(super) fn node(&self, task: TaskRef) -> &NodeState {
        self.state().node(task)
    }

    pub(super) fn path(&self, task: TaskRef) -> NodePath {
        self.state().path(self.run.graph(), task)
    }

    /// The node of an event, if it is of the node's current pass.
    pub(super) fn node_of(&self, envelope: &Envelope) -> Option<TaskRef> {
        self.state().find(self.run.graph(), envelope.context.task.as_ref())
    }

    /// The edge that an event resolves which has not been applied yet, if it is of the frame that is looked at.
    pub(super) fn open_edge_of(&self, envelope: &Envelope, from: &NodeId, to: &NodeId) -> Option<EdgeIx> {
        let is_here = self.frame_of(envelope) == self.frame;
        let (graph, path) = (self.run.graph(), envelope.context.task.as_ref());
        self.state().open_edge(graph, path, from.as_str(), to.as_str()).filter(|_| is_here)
    }

    /// The loop edge of an event, if it is of the frame that is looked at.
    pub(super) fn edge_of(&self, envelope: &Envelope, from: &NodeId, to: &NodeId) -> Option<EdgeIx> {
        let is_here = self.frame_of(envelope) == self.frame;
        find_edge(self.body(self.run.graph()), from.as_str(), to.as_str()).filter(|_| is_here)
    }

    /// An event by its number.
    pub(super) fn event(&self, seq: u64) -> Option<&'a Envelope> {
        let at = self.log.binary_search_by_key(&seq, |envelope| envelope.seq).ok()?;
        Some(&self.log[at])
    }

    /// The newest event so far that fits.
    pub(super) fn newest(&self, fits: impl Fn(&Envelope) -> bool) -> Option<u64> {
        let so_far = self.log.partition_point(|envelope| envelope.seq <= self.now());
        self.log[..so_far].iter().rev().find(|envelope| fits(envelope)).map(|envelope| envelope.seq)
    }

    /// The newest event that changed the status of a node.
    pub(super) fn changed(&self, task: TaskRef) -> u64 {
        let (graph, path) = (self.run.graph(), self.path(task));
        let node = self.node(task);
        let is_cut = node.interrupted || node.status == NodeStatus::Cancelled;
        let changes = |envelope: &Envelope| match &envelope.event {
            Event::TaskStart { .. }
            | Event::TaskComplete { .. }
            | Event::TaskFailed { .. }
            | Event::TaskSkipped { .. }
            | Event::TaskReused { .. }
            | Event::TaskCancelled { .. }
            | Event::LimitWait { .. } => envelope.context.task.as_ref() == Some(&path),
            Event::LoopIterate { from, to, .. } => {
                let edge = self.edge_of(envelope, from, to);
                let cycle = edge.and_then(|edge| self.body(graph).edge(edge).cycle.as_ref());
                cycle.is_some_and(|cycle| cycle.body.contains(&task.node))
            }
            Event::FlowPaused { node_ids, .. } => node_ids.contains(&path),
            Event::FlowResumed { .. } => is_cut,
            _ => false,
        };
        self.newest(changes).unwrap_or(self.base)
    }

    /// The newest question of a node.
    pub(super) fn asked(&self, task: TaskRef) -> Option<u64> {
        let path = self.path(task);
        let asks = |envelope: &Envelope| {
            matches!(envelope.event, Event::SessionPrompt(_)) && envelope.context.task.as_ref() == Some(&path)
        };
        self.newest(asks)
    }

    /// The question of a node that is open. What an agent asked whose process is gone is not.
    pub(super) fn open_question(&self, task: TaskRef) -> Option<u64> {
        let open = self.state().asked_by(self.run.graph(), task)?;
        if self.is_lost && open.kind != PromptKind::Input {
            return None;
        }
        self.asked(task)
    }

    /// The newest event so far.
    pub(super) fn now(&self) -> u64 {
        self.state().session.last_seq
    }

    pub(super) fn has_ended(&self) -> bool {
        self.state().session.status.has_ended()
    }

    /// What an attempt does that has begun and not ended.
    pub(super) fn runs(&self, attempt: u32) -> String {
        match (self.is_paused(), self.is_lost) {
            (true, _) => "is paused".to_owned(),
            (false, false) => format!("runs, attempt {attempt}"),
            (false, true) => format!("was interrupted in attempt {attempt}: the process is gone"),
        }
    }

    pub(super) fn is_paused(&self) -> bool {
        self.state().session.status == SessionStatus::Paused
    }

    /// A statement that is based on an event.
    pub(super) fn statement(
        &self,
        seq: u64,
        task: Option<NodePath>,
        kind: StatementKind,
        text: impl Into<String>,
    ) -> Statement {
        let at = self.event(seq).map(|envelope| envelope.timestamp);
        Statement { seq, at, task, kind, text: text.into(), values: BTreeMap::new() }
    }

    pub(super) fn say(
        &mut self,
        seq: u64,
        task: Option<NodePath>,
        kind: StatementKind,
        text: impl Into<String>,
    ) {
        let statement = self.statement(seq, task, kind, text);
        self.statements.push(statement);
    }

    /// As `say`, about a node.
    pub(super) fn say_of(&mut self, task: TaskRef, seq: u64, kind: StatementKind, text: impl Into<String>) {
        self.say(seq, Some(self.path(task)), kind, text);
    }
}
