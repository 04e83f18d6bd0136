//! What may be decided next: an index over the facts, kept up to date after each event. It says nothing that the facts do
//! not say, so it can be rebuilt from them at any time.

use std::collections::BTreeSet;

use inspan_protocol::{NodeStatus, Timestamp};

use crate::{
    graph::{Graph, Join, NodeIx},
    ids::IndexVec,
    node::Occupies,
    state::Facts,
};

/// The nodes about which something can be decided, by what it is.
#[derive(Debug, PartialEq)]
pub(crate) struct Agenda {
    entries: IndexVec<NodeIx, Entry>,
    /// Nodes that can start and need a place for work, and those that need none.
    workers: BTreeSet<NodeIx>,
    waiters: BTreeSet<NodeIx>,
    /// When a node is to be tried again, or an attempt's time is up.
    timers: BTreeSet<(Timestamp, NodeIx)>,
    /// Nodes that have ended and whose edges can be resolved, by the event since which they can.
    ended: BTreeSet<(u64, NodeIx)>,
}

/// What stands in the index for one node.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Entry {
    ready: Option<Occupies>,
    timer: Option<Timestamp>,
    settles: Option<u64>,
}

impl Entry {
    fn of(graph: &Graph, facts: &Facts, ix: NodeIx) -> Self {
        let (spec, node) = (graph.flow().node(ix), &facts.nodes[ix]);
        let resolved = node.unresolved == 0 || (spec.join == Join::Any && node.fired > 0);
        let is_open = matches!(node.status, NodeStatus::Pending | NodeStatus::Waiting);
        Self {
            ready: (is_open && resolved && node.retry_at.is_none()).then_some(spec.occupies),
            timer: match node.status {
                NodeStatus::Running => node.deadline,
                _ => node.retry_at.filter(|_| is_open),
            },
            settles: facts.settles(graph, ix).then_some(node.settles),
        }
    }
}

impl Agenda {
    pub(crate) fn rebuild(graph: &Graph, facts: &Facts) -> Self {
        let mut agenda = Self {
            entries: facts.nodes.iter().map(|_| Entry::default()).collect(),
            workers: BTreeSet::new(),
            waiters: BTreeSet::new(),
            timers: BTreeSet::new(),
            ended: BTreeSet::new(),
        };
        facts.nodes.places().for_each(|ix| agenda.refresh(graph, facts, ix));
        agenda
    }

    /// Takes up what the newest event has changed.
    pub(crate) fn update(&mut self, graph: &Graph, facts: &Facts) {
        facts.touched.iter().for_each(|ix| self.refresh(graph, facts, *ix));
    }

    fn refresh(&mut self, graph: &Graph, facts: &Facts, ix: NodeIx) {
        let new = Entry::of(graph, facts, ix);
        let old = std::mem::replace(&mut self.entries[ix], new);
        if old == new {
            return;
        }
        match old.ready {
            Some(Occupies::Slot) => self.workers.remove(&ix),
            Some(Occupies::Nothing) => self.waiters.remove(&ix),
            None => false,
        };
        match new.ready {
            Some(Occupies::Slot) => self.workers.insert(ix),
            Some(Occupies::Nothing) => self.waiters.insert(ix),
            None => false,
        };
        old.timer.map(|at| self.timers.remove(&(at, ix)));
        self.timers.extend(new.timer.map(|at| (at, ix)));
        old.settles.map(|since| self.ended.remove(&(since, ix)));
        self.ended.extend(new.settles.map(|since| (since, ix)));
    }

    /// What is due by `now`, earliest first: retries, and attempts whose time is up.
    pub(super) fn due(&self, now: Timestamp) -> impl Iterator<Item = NodeIx> {
        self.timers.range(..=(now, NodeIx(u32::MAX))).map(|(_, ix)| *ix)
    }

    /// When something is due after `now`.
    pub(super) fn next_timer(&self, now: Timestamp) -> Option<Timestamp> {
        self.timers.range((now, NodeIx(u32::MAX))..).map(|(at, _)| *at).find(|at| *at > now)
    }

    /// Nodes that can start, in the order of the graph, retries aside.
    pub(super) fn ready(&self, occupies: Occupies) -> impl Iterator<Item = NodeIx> {
        match occupies {
            Occupies::Slot => self.workers.iter().copied(),
            Occupies::Nothing => self.waiters.iter().copied(),
        }
    }

    /// Nodes whose edges can be resolved, the earliest first.
    pub(super) fn ended(&self) -> impl Iterator<Item = NodeIx> {
        self.ended.iter().map(|(_, ix)| *ix)
    }
}
