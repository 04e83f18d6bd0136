//! The nodes that may have become ready. Whether one really is, and what becomes of it, is left to `schedule`.

use std::{cmp::Reverse, collections::BinaryHeap};

use crate::graph::{Graph, NodeIx, Occupies};

/// Two lines, least index first; entries can be stale. Those that take none of the flow's places for work stand
/// in a line of their own, so that a full flow holds up no timer and no question to a person.
#[derive(Debug, Default)]
pub(crate) struct Candidates {
    working: BinaryHeap<Reverse<NodeIx>>,
    waiting: BinaryHeap<Reverse<NodeIx>>,
}

impl Candidates {
    pub(crate) fn push(&mut self, graph: &Graph, ix: NodeIx) {
        match graph.node(ix).occupies {
            Occupies::Slot => self.working.push(Reverse(ix)),
            Occupies::Nothing => self.waiting.push(Reverse(ix)),
        }
    }

    /// The next in the order of the graph.
    pub(crate) fn pop(&mut self) -> Option<NodeIx> {
        match (self.working.peek(), self.waiting.peek()) {
            (Some(Reverse(working)), Some(Reverse(waiting))) if waiting < working => self.pop_waiting(),
            (Some(_), _) => self.working.pop().map(|Reverse(ix)| ix),
            (None, _) => self.pop_waiting(),
        }
    }

    /// The next of those that can start in a full flow.
    pub(crate) fn pop_waiting(&mut self) -> Option<NodeIx> {
        self.waiting.pop().map(|Reverse(ix)| ix)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.working.is_empty() && self.waiting.is_empty()
    }
}
