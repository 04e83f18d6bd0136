//! When a loop begins its next pass: once nothing else of it can run. So it does not matter which of several nodes
//! of a pass ends first, or how many may run at once.

use std::cmp::Reverse;

use inspan_protocol::{AgentError, EdgeStatus, ErrorCode, Event};

use super::{Action, Run, edge_name};
use crate::{
    graph::{Body, EdgeIx, FrameIx, Join, NodeIx},
    state::FrameState,
};

impl Run {
    /// Fires the innermost of the loop edges that are to fire, if all else of its loop has come to its end.
    pub(super) fn go_back(&mut self, actions: &mut Vec<Action>) {
        self.going_back.retain(|(frame, _)| !self.facts.is_ending(*frame));
        if self.going_back.is_empty() || self.going_back_at == self.facts.session.last_seq {
            return;
        }
        self.going_back_at = self.facts.session.last_seq;
        let mut frames: Vec<FrameIx> = self.going_back.iter().map(|(frame, _)| *frame).collect();
        frames.sort_unstable();
        frames.dedup();
        for frame in frames {
            self.go_back_in(frame, actions);
            if !actions.is_empty() {
                return;
            }
        }
    }

    fn go_back_in(&mut self, frame: FrameIx, actions: &mut Vec<Action>) {
        let graph = self.graph.clone();
        let body = self.facts.body(&graph, frame);
        let rank = |edge: &EdgeIx| body.edge(*edge).cycle.as_ref().map(|cycle| cycle.rank);
        let going_back = self.going_back.iter().filter(|(of, _)| *of == frame);
        let mut going_back: Vec<EdgeIx> = going_back.map(|(_, edge)| *edge).collect();
        going_back.sort_by_key(|edge| Reverse(rank(edge)));
        let state = &self.facts.frames[frame];
        let stopped = state.stopped(body, &going_back);
        let is_quiet = |edge: &EdgeIx| {
            let mut nodes = body.edge(*edge).cycle.iter().flat_map(|cycle| &cycle.quiet);
            nodes.all(|ix| stopped[ix.0 as usize] || state.nodes[*ix].has_ended())
        };
        let Some(edge_ix) = going_back.into_iter().rfind(is_quiet) else { return };
        self.going_back.retain(|going| *going != (frame, edge_ix));
        let edge = body.edge(edge_ix);
        let Some(cycle) = &edge.cycle else { return };
        let iterations = state.edges[edge_ix].iterations;
        if iterations >= cycle.max_iterations {
            let message = format!(
                "loop {} would begin another pass, and its `maxIterations` of {} is used up",
                edge_name(body, edge),
                cycle.max_iterations
            );
            return actions.push(self.end_for(frame, AgentError::new(ErrorCode::LoopExhausted, message)));
        }
        let id = |ix: &NodeIx| body.node(*ix).id.clone();
        let event = Event::LoopIterate {
            from: id(&edge.from),
            to: id(&edge.to),
            iteration: iterations + 1,
            nodes: cycle.body.iter().map(id).collect(),
        };
        actions.push(Action::Emit { task: Some(state.path(body, edge.from)), event });
        let stays = |(of, other): &(FrameIx, EdgeIx)| {
            *of != frame || cycle.body.binary_search(&body.edge(*other).from).is_err()
        };
        self.going_back.retain(stays);
    }
}

impl FrameState {
    /// Whether each node can do nothing until one of the loop edges that are to fire has fired: their sources, and
    /// what waits for them.
    fn stopped(&self, body: &Body, going_back: &[EdgeIx]) -> Vec<bool> {
        let mut stopped = vec![false; body.nodes.len()];
        let mut held = vec![false; body.edges.len()];
        let mut open: Vec<NodeIx> = going_back.iter().map(|edge| body.edge(*edge).from).collect();
        open.iter().for_each(|ix| stopped[ix.0 as usize] = true);
        while let Some(ix) = open.pop() {
            let mut edges: Vec<EdgeIx> = body.node(ix).outgoing.to_vec();
            for left in &body.node(ix).loops {
                let waiting = body.edge(*left).cycle.iter().flat_map(|cycle| &cycle.releases);
                let waiting = waiting.flat_map(|source| &body.node(*source).outgoing);
                edges.extend(waiting.filter(|edge| body.edge(**edge).leaves.contains(left)));
            }
            for edge in edges {
                let to = body.edge(edge).to;
                let is_pending = self.edges[edge].status == EdgeStatus::Pending;
                if !is_pending || std::mem::replace(&mut held[edge.0 as usize], true) {
                    continue;
                }
                let node = &self.nodes[to];
                let may_come =
                    |edge: &EdgeIx| self.edges[*edge].status == EdgeStatus::Pending && !held[edge.0 as usize];
                let starts = body.node(to).join == Join::Any
                    && (node.fired > 0 || body.node(to).incoming.iter().any(may_come));
                if node.has_not_begun() && !starts && !std::mem::replace(&mut stopped[to.0 as usize], true) {
                    open.push(to);
                }
            }
        }
        stopped
    }
}
