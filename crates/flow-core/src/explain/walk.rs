//! Replays a log event by event. What a statement says is in `node` and `session`; which event is behind a part of the
//! state is looked up in the log.

use std::{collections::BTreeMap, sync::Arc};

use inspan_protocol::{Envelope, Event, NodePath, NodeStatus, SessionStatus};

use super::{Statement, StatementKind};
use crate::{
    graph::{EdgeIx, Graph, NodeIx},
    schedule::Run,
    state::{Facts, NodeState},
};

/// A log on replay.
pub(super) struct Walk<'a> {
    pub(super) run: Run,
    pub(super) log: &'a [Arc<Envelope>],
    pub(super) statements: Vec<Statement>,
    /// Why the node was skipped or cancelled last.
    pub(super) reason: String,
    /// The event before the log.
    base: u64,
}

impl<'a> Walk<'a> {
    /// Replays the whole log, with statements about one node or, without one, about the session.
    pub(super) fn of(run: Run, log: &'a [Arc<Envelope>], focus: Option<NodeIx>) -> Self {
        let base = run.state().session.last_seq;
        let mut walk = Self { run, log, statements: Vec::new(), reason: String::new(), base };
        for envelope in log.iter().filter(|envelope| envelope.seq > base) {
            match focus {
                Some(ix) => walk.before_node(envelope, ix),
                None => walk.before_session(envelope),
            }
            walk.run.apply(envelope);
            match focus {
                Some(ix) => walk.after_node(envelope, ix),
                None => walk.after_session(envelope),
            }
        }
        walk
    }

    pub(super) fn state(&self) -> &Facts {
        self.run.state()
    }

    pub(super) fn graph(&self) -> Arc<Graph> {
        self.run.graph().clone()
    }

    pub(super) fn node(&self, ix: NodeIx) -> &NodeState {
        &self.state().nodes[ix]
    }

    pub(super) fn path(&self, ix: NodeIx) -> NodePath {
        self.state().path(self.run.graph(), ix)
    }

    /// The node of an event, if it is of the node's current pass.
    pub(super) fn node_of(&self, envelope: &Envelope) -> Option<NodeIx> {
        self.state().find(self.run.graph(), envelope.context.task.as_ref())
    }

    pub(super) fn edge_between(&self, from: &str, to: &str) -> Option<EdgeIx> {
        let graph = self.run.graph();
        let (from, to) = (graph.flow().find(from)?, graph.flow().find(to)?);
        let node = graph.flow().node(from);
        node.outgoing.iter().chain(&node.loops).copied().find(|edge| graph.flow().edge(*edge).to == to)
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

    /// The newest event that changed where a node stands.
    pub(super) fn changed(&self, ix: NodeIx) -> u64 {
        let (graph, path) = (self.run.graph(), self.path(ix));
        let node = self.node(ix);
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
                let edge = self.edge_between(from.as_str(), to.as_str());
                let cycle = edge.and_then(|edge| graph.flow().edge(edge).cycle.as_ref());
                cycle.is_some_and(|cycle| cycle.body.contains(&ix))
            }
            Event::FlowPaused { node_ids, .. } => node_ids.contains(&path),
            Event::FlowResumed { .. } => is_cut,
            _ => false,
        };
        self.newest(changes).unwrap_or(self.base)
    }

    /// The newest question of a node.
    pub(super) fn asked(&self, ix: NodeIx) -> Option<u64> {
        let path = self.path(ix);
        let asks = |envelope: &Envelope| {
            matches!(envelope.event, Event::SessionPrompt(_)) && envelope.context.task.as_ref() == Some(&path)
        };
        self.newest(asks)
    }

    /// The question of a node that is open.
    pub(super) fn open_question(&self, ix: NodeIx) -> Option<u64> {
        self.state().asked_by(self.run.graph(), ix)?;
        self.asked(ix)
    }

    /// The newest event so far.
    pub(super) fn now(&self) -> u64 {
        self.state().session.last_seq
    }

    pub(super) fn has_ended(&self) -> bool {
        self.state().status().has_ended()
    }

    pub(super) fn is_paused(&self) -> bool {
        self.state().status() == SessionStatus::Paused
    }

    /// A statement that rests on an event.
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
}
