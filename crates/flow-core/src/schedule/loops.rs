//! When a loop begins its next pass: once nothing else of it can run. So it does not matter which of several nodes
//! of a pass ends first, or how many may run at once.

use std::cmp::Reverse;

use inspan_protocol::{AgentError, EdgeStatus, ErrorCode, Event, NodeStatus, Outcome};

use super::{Action, Run, edge_name, ending};
use crate::graph::{EdgeIx, Join, NodeIx};

impl Run {
    /// Fires the innermost of the loop edges that are to fire, if all else of its loop has come to its end.
    pub(super) fn go_back(&mut self, actions: &mut Vec<Action>) {
        if self.going_back.is_empty() || self.going_back_at == self.facts.session.last_seq {
            return;
        }
        self.going_back_at = self.facts.session.last_seq;
        let graph = self.graph.clone();
        let rank = |edge: &EdgeIx| graph.flow().edge(*edge).cycle.as_ref().map(|cycle| cycle.rank);
        self.going_back.sort_by_key(|edge| Reverse(rank(edge)));
        let stopped = self.stopped();
        let is_quiet = |edge: &EdgeIx| {
            let mut nodes = graph.flow().edge(*edge).cycle.iter().flat_map(|cycle| &cycle.quiet);
            nodes.all(|ix| stopped[ix.0 as usize] || self.facts.nodes[*ix].has_ended())
        };
        let Some(place) = self.going_back.iter().rposition(is_quiet) else { return };
        let edge_ix = self.going_back.remove(place);
        let edge = graph.flow().edge(edge_ix);
        let Some(cycle) = &edge.cycle else { return };
        let iterations = self.facts.edges[edge_ix].iterations;
        if iterations >= cycle.max_iterations {
            let message = format!(
                "loop {} would begin another pass, and its `maxIterations` of {} is used up",
                edge_name(&graph, edge),
                cycle.max_iterations
            );
            let error = AgentError::new(ErrorCode::LoopExhausted, message);
            return actions.push(ending(Outcome::Failed, error));
        }
        self.going_back.retain(|other| cycle.body.binary_search(&graph.flow().edge(*other).from).is_err());
        let id = |ix: &NodeIx| graph.flow().node(*ix).id.clone();
        let event = Event::LoopIterate {
            from: id(&edge.from),
            to: id(&edge.to),
            iteration: iterations + 1,
            nodes: cycle.body.iter().map(id).collect(),
        };
        actions.push(Action::Emit { task: Some(self.facts.path(&graph, edge.from)), event });
    }

    /// Whether each node can do nothing until one of the loop edges that are to fire has fired: their sources, and
    /// what waits for them.
    fn stopped(&self) -> Vec<bool> {
        let graph = &self.graph;
        let mut stopped = vec![false; graph.flow().nodes.len()];
        let mut held = vec![false; graph.flow().edges.len()];
        let mut open: Vec<NodeIx> =
            self.going_back.iter().map(|edge| graph.flow().edge(*edge).from).collect();
        open.iter().for_each(|ix| stopped[ix.0 as usize] = true);
        while let Some(ix) = open.pop() {
            let mut edges: Vec<EdgeIx> = graph.flow().node(ix).outgoing.to_vec();
            for left in &graph.flow().node(ix).loops {
                let waiting = graph.flow().edge(*left).cycle.iter().flat_map(|cycle| &cycle.releases);
                let waiting = waiting.flat_map(|source| &graph.flow().node(*source).outgoing);
                edges.extend(waiting.filter(|edge| graph.flow().edge(**edge).leaves.contains(left)));
            }
            for edge in edges {
                let to = graph.flow().edge(edge).to;
                let is_pending = self.facts.edges[edge].status == EdgeStatus::Pending;
                if !is_pending || std::mem::replace(&mut held[edge.0 as usize], true) {
                    continue;
                }
                let node = &self.facts.nodes[to];
                let waits = node.status == NodeStatus::Pending && node.attempt == 0;
                let may_come = |edge: &EdgeIx| {
                    self.facts.edges[*edge].status == EdgeStatus::Pending && !held[edge.0 as usize]
                };
                let starts = graph.flow().node(to).join == Join::Any
                    && (node.fired > 0 || graph.flow().node(to).incoming.iter().any(may_come));
                if waits && !starts && !std::mem::replace(&mut stopped[to.0 as usize], true) {
                    open.push(to);
                }
            }
        }
        stopped
    }
}
