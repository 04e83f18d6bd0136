//! The way through a log: the fold, event by event, and which event brought each part of it where it is. What is
//! said of an event is left to `node` and `session`.

use std::{collections::BTreeMap, sync::Arc};

use inspan_protocol::{Envelope, Event, NodePath, NodeStatus, SessionStatus};

use super::{Said, Statement};
use crate::{
    graph::{EdgeIx, Graph, NodeIx},
    schedule::Run,
    state::{NodeState, RunState},
};

/// A walk through a log.
pub(super) struct Walk<'a> {
    pub(super) run: Run,
    pub(super) log: &'a [Arc<Envelope>],
    pub(super) focus: Option<NodeIx>,
    pub(super) said: Vec<Statement>,
    /// The newest event of each node, and of each edge.
    pub(super) nodes: Vec<Mark>,
    pub(super) edges: Vec<u64>,
    pub(super) marks: Marks,
}

/// Which events brought a node where it is; 0 where there was none.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Mark {
    /// The newest that changed its status.
    pub(super) last: u64,
    /// Its newest failure.
    pub(super) failed: u64,
    /// The newest question of it, and the newest answer.
    pub(super) asked: u64,
    pub(super) answered: u64,
}

/// Which events brought the session where it is.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Marks {
    /// The first cause of an early end, of those that are events.
    pub(super) ending: Option<u64>,
    /// The wish to pause that has not come to its end.
    pub(super) pause: Option<u64>,
    pub(super) paused: Option<u64>,
    pub(super) waiting: Option<u64>,
    pub(super) budget: Option<u64>,
    pub(super) phase: Option<u64>,
    pub(super) over: Option<u64>,
}

impl<'a> Walk<'a> {
    pub(super) fn new(run: Run, log: &'a [Arc<Envelope>], focus: Option<NodeIx>) -> Self {
        let graph = run.graph();
        let base = run.state().last_seq;
        let nodes = vec![Mark { last: base, ..Mark::default() }; graph.nodes.len()];
        let edges = vec![base; graph.edges.len()];
        Self { run, log, focus, said: Vec::new(), nodes, edges, marks: Marks::default() }
    }

    /// Goes through the whole log.
    pub(super) fn walk(&mut self) {
        for envelope in self.log {
            if envelope.seq <= self.state().last_seq {
                continue;
            }
            self.before(envelope);
            let ended = self.state().ending.is_some();
            self.run.apply(envelope);
            // The end itself names its cause, and is none.
            let is_end = matches!(envelope.event, Event::PhaseFailed { .. });
            if !ended && !is_end && self.state().ending.is_some() {
                self.marks.ending = Some(envelope.seq);
            }
            self.after(envelope);
        }
    }

    fn before(&mut self, envelope: &Envelope) {
        match self.focus {
            Some(ix) => self.before_node(envelope, ix),
            None => self.before_session(envelope),
        }
    }

    fn after(&mut self, envelope: &Envelope) {
        self.mark(envelope);
        match self.focus {
            Some(ix) => self.after_node(envelope, ix),
            None => self.after_session(envelope),
        }
    }

    fn mark(&mut self, envelope: &Envelope) {
        let seq = envelope.seq;
        let node = self.node_of(envelope);
        let touch = |nodes: &mut Vec<Mark>| {
            if let Some(ix) = node {
                nodes[ix.0 as usize].last = seq;
            }
        };
        match &envelope.event {
            Event::TaskStart { .. }
            | Event::TaskComplete { .. }
            | Event::TaskSkipped { .. }
            | Event::TaskReused { .. }
            | Event::TaskCancelled { .. }
            | Event::LimitWait { .. } => touch(&mut self.nodes),
            Event::TaskFailed { .. } => {
                touch(&mut self.nodes);
                if let Some(ix) = node {
                    self.nodes[ix.0 as usize].failed = seq;
                }
            }
            Event::SessionPrompt { .. } => {
                if let Some(ix) = node {
                    self.nodes[ix.0 as usize].asked = seq;
                }
            }
            Event::EdgeFired { from, to } | Event::EdgeSkipped { from, to } => {
                if let Some(edge) = self.edge_between(from.as_str(), to.as_str()) {
                    self.edges[edge.0 as usize] = seq;
                }
            }
            Event::LoopIterate { from, to, .. } => self.mark_loop(from.as_str(), to.as_str(), seq),
            Event::SessionPause { .. } => {
                self.marks.pause.get_or_insert(seq);
            }
            Event::FlowPaused { node_ids, .. } => {
                self.marks.paused = Some(seq);
                self.mark_paths(node_ids, seq);
            }
            Event::FlowResumed { .. } => {
                let Marks { ending, budget, .. } = self.marks;
                let budget = budget.filter(|_| ending.is_some());
                self.marks = Marks { ending, budget, ..Marks::default() };
                for (mark, node) in self.nodes.iter_mut().zip(&self.run.state().nodes) {
                    if node.interrupted || node.status == NodeStatus::Cancelled {
                        mark.last = seq;
                    }
                }
            }
            Event::FlowWaiting { .. } => self.marks.waiting = Some(seq),
            Event::BudgetExceeded { .. } if envelope.context.task.is_none() => self.marks.budget = Some(seq),
            Event::PhaseComplete { .. } | Event::PhaseFailed { .. } => self.marks.phase = Some(seq),
            Event::HarnessComplete { .. } => self.marks.over = Some(seq),
            _ => {}
        }
    }

    fn mark_loop(&mut self, from: &str, to: &str, seq: u64) {
        let graph = self.run.graph().clone();
        let Some(edge) = self.edge_between(from, to) else { return };
        self.edges[edge.0 as usize] = seq;
        for ix in graph.edge(edge).cycle.iter().flat_map(|cycle| cycle.body.iter()) {
            self.nodes[ix.0 as usize] = Mark { last: seq, ..Mark::default() };
        }
    }

    fn mark_paths(&mut self, paths: &[NodePath], seq: u64) {
        let graph = self.run.graph().clone();
        for path in paths {
            if let Some(ix) = self.state().find(&graph, Some(path)) {
                self.nodes[ix.0 as usize].last = seq;
            }
        }
    }

    pub(super) fn state(&self) -> &RunState {
        self.run.state()
    }

    pub(super) fn graph(&self) -> Arc<Graph> {
        self.run.graph().clone()
    }

    pub(super) fn node(&self, ix: NodeIx) -> &NodeState {
        &self.state().nodes[ix.0 as usize]
    }

    pub(super) fn path(&self, ix: NodeIx) -> NodePath {
        self.state().path(self.run.graph(), ix)
    }

    /// The node that an event is of, in the pass that it is in.
    pub(super) fn node_of(&self, envelope: &Envelope) -> Option<NodeIx> {
        self.state().find(self.run.graph(), envelope.context.task.as_ref())
    }

    pub(super) fn edge_between(&self, from: &str, to: &str) -> Option<EdgeIx> {
        let graph = self.run.graph();
        let (from, to) = (graph.find(from)?, graph.find(to)?);
        let node = graph.node(from);
        node.outgoing.iter().chain(&node.loops).copied().find(|edge| graph.edge(*edge).to == to)
    }

    /// An event by its number.
    pub(super) fn event(&self, seq: u64) -> Option<&'a Envelope> {
        let at = self.log.binary_search_by_key(&seq, |envelope| envelope.seq).ok()?;
        Some(&self.log[at])
    }

    /// The number of the newest event so far.
    pub(super) fn now(&self) -> u64 {
        self.state().last_seq
    }

    pub(super) fn has_ended(&self) -> bool {
        self.state().status.has_ended()
    }

    pub(super) fn rests(&self) -> bool {
        self.state().status == SessionStatus::Paused
    }

    /// A statement that rests on an event.
    pub(super) fn statement(
        &self,
        seq: u64,
        task: Option<NodePath>,
        kind: Said,
        text: impl Into<String>,
    ) -> Statement {
        let at = self.event(seq).map(|envelope| envelope.timestamp);
        Statement { seq, at, task, kind, text: text.into(), values: BTreeMap::new() }
    }

    pub(super) fn say(&mut self, seq: u64, task: Option<NodePath>, kind: Said, text: impl Into<String>) {
        let statement = self.statement(seq, task, kind, text);
        self.said.push(statement);
    }
}
