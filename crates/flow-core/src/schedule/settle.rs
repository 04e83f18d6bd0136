//! Resolving the edges of a node that has ended: first those that lead back, then those that lead on.

use inspan_protocol::{AgentError, EdgeStatus, ErrorCode, Event, NodeStatus, Outcome};

use super::{Action, Run, edge_name};
use crate::{
    expr::Condition,
    graph::{Edge, NodeIx, OnExhausted},
    state::Ending,
};

impl Run {
    /// Resolves the edges of a node that has ended, as far as they can be resolved by now.
    pub(super) fn settle(&mut self, ix: NodeIx, actions: &mut Vec<Action>) {
        let graph = self.graph.clone();
        let node = graph.node(ix);
        let state = &self.state.nodes[ix.0 as usize];
        let fires = match state.status {
            NodeStatus::Complete | NodeStatus::Reused => true,
            // A failure that nothing handles fires nothing; a handled one is an output.
            NodeStatus::Failed => !state.tainted,
            NodeStatus::Skipped => false,
            _ => return,
        };
        if node.loops.iter().any(|edge| self.going_back.contains(edge)) {
            return;
        }
        let resolved = |edge: &Edge, fires: bool| {
            let (from, to) = (node.id.clone(), graph.node(edge.to).id.clone());
            if fires { Event::EdgeFired { from, to } } else { Event::EdgeSkipped { from, to } }
        };
        let path = Some(self.state.path(&graph, ix));
        for &edge_ix in &node.loops {
            let edge = graph.edge(edge_ix);
            let Some(cycle) = &edge.cycle else { continue };
            let state = self.state.edges[edge_ix.0 as usize];
            if state.status != EdgeStatus::Pending {
                continue;
            }
            let goes_back = fires && self.holds(edge.when.as_ref(), ix, || edge_name(&graph, edge));
            if self.state.ending.is_some() {
                return;
            }
            let exhausted = state.iterations >= cycle.max_iterations;
            if goes_back && !(exhausted && cycle.on_exhausted == OnExhausted::Continue) {
                // Until it has fired, no other edge of this node is resolved.
                actions.clear();
                return self.going_back.push(edge_ix);
            }
            actions.push(Action::Emit { task: path.clone(), event: resolved(edge, false) });
        }
        if !actions.is_empty() {
            // What waits for these loops comes back here once they are known to have ended.
            return self.state.settling.push_front(ix);
        }
        for &edge_ix in &node.outgoing {
            let edge = graph.edge(edge_ix);
            let loops = || edge.leaves.iter().map(|left| self.state.edges[left.0 as usize].status);
            if !self.state.is_open(&graph, edge_ix) || loops().any(|left| left != EdgeStatus::Skipped) {
                continue;
            }
            let fires = fires && self.holds(edge.when.as_ref(), ix, || edge_name(&graph, edge));
            if self.state.ending.is_some() {
                return;
            }
            actions.push(Action::Emit { task: path.clone(), event: resolved(edge, fires) });
        }
    }

    /// Whether the condition of an edge holds after its source has ended; one that cannot be worked out ends the run,
    /// naming its place.
    fn holds(&mut self, when: Option<&Condition>, source: NodeIx, place: impl Fn() -> String) -> bool {
        let Some(when) = when else { return true };
        match when.holds(&self.scope(&self.locals(source))) {
            Ok(holds) => holds,
            Err(error) => {
                let message = format!("the condition of {} cannot be worked out: {error}", place());
                let error = AgentError::new(ErrorCode::BindingFailed, message);
                self.state.end_early(Ending { outcome: Outcome::Failed, error: Some(error) });
                false
            }
        }
    }
}
