//! Resolving the edges of a node that has ended.

use inspan_protocol::{AgentError, EdgeStatus, ErrorCode, Event, NodeStatus, Outcome};

use super::{Action, Run, edge_name};
use crate::{
    graph::{NodeIx, OnExhausted},
    state::Ending,
};

impl Run {
    /// Resolves the edges of a node that has ended.
    pub(super) fn settle(&mut self, ix: NodeIx, actions: &mut Vec<Action>) {
        let graph = self.graph.clone();
        let node = graph.node(ix);
        let state = &self.state.nodes[ix.0 as usize];
        let fires = match state.status {
            NodeStatus::Complete | NodeStatus::Reused => true,
            // A failure that is the flow's to deal with fires nothing; a handled one is an output.
            NodeStatus::Failed => !state.tainted,
            NodeStatus::Skipped => false,
            _ => return,
        };
        let from = || node.id.clone();
        let to = |edge: &crate::graph::Edge| graph.node(edge.to).id.clone();
        let path = Some(self.state.path(&graph, ix));
        for &edge_ix in &node.loops {
            let edge = graph.edge(edge_ix);
            let Some(cycle) = &edge.cycle else { continue };
            let state = self.state.edges[edge_ix.0 as usize];
            if state.status != EdgeStatus::Pending {
                continue;
            }
            let goes_on = fires && self.holds(edge.when.as_ref(), || edge_name(&graph, edge));
            if self.state.ending.is_some() {
                return;
            }
            let under_way = |ix: &NodeIx| self.state.nodes[ix.0 as usize].is_under_way();
            if goes_on && cycle.body.iter().any(under_way) {
                // A merge went on with the first branch of several; the others end in this pass.
                actions.clear();
                return self.blocked.push(ix);
            }
            if goes_on && state.iterations < cycle.max_iterations {
                let iteration = state.iterations + 1;
                // Edges of this pass that were found not to fire are reset by the iteration itself.
                actions.clear();
                let event = Event::LoopIterate { from: from(), to: to(edge), iteration };
                actions.push(Action::Emit { task: path, event });
                return;
            }
            if goes_on && cycle.on_exhausted == OnExhausted::Fail {
                let message = format!(
                    "loop {} has used up its maxIterations of {} and would go on",
                    edge_name(&graph, edge),
                    cycle.max_iterations
                );
                let error = AgentError::new(ErrorCode::LoopExhausted, message);
                self.state.end_early(Ending { outcome: Outcome::Failed, error: Some(error) });
                return;
            }
            let event = Event::EdgeSkipped { from: from(), to: to(edge) };
            actions.push(Action::Emit { task: path.clone(), event });
        }
        for &edge_ix in &node.outgoing {
            let edge = graph.edge(edge_ix);
            // An edge out of a loop's middle keeps what its first pass made of it.
            if self.state.edges[edge_ix.0 as usize].status != EdgeStatus::Pending {
                continue;
            }
            let event = if fires && self.holds(edge.when.as_ref(), || edge_name(&graph, edge)) {
                Event::EdgeFired { from: from(), to: to(edge) }
            } else {
                Event::EdgeSkipped { from: from(), to: to(edge) }
            };
            if self.state.ending.is_some() {
                return;
            }
            actions.push(Action::Emit { task: path.clone(), event });
        }
    }

    /// Whether a condition holds; one that cannot be worked out ends the run, naming its place.
    fn holds(&mut self, when: Option<&crate::expr::Condition>, place: impl Fn() -> String) -> bool {
        let Some(when) = when else { return true };
        match when.holds(&self.scope()) {
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
