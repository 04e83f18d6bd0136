//! Resolving the edges of a node that has ended: first those that lead back, then those that lead on.

use inspan_protocol::{AgentError, EdgeStatus, ErrorCode, Event, NodeStatus, Outcome};

use super::{Action, Run, edge_name, ending};
use crate::graph::{Edge, EdgeIx, NodeIx, OnExhausted};

/// What becomes of the loop edges of a node that has ended.
enum Loops {
    /// This one is to fire, once nothing else of its loop can run; until then no other edge of the node is resolved.
    GoBack(EdgeIx),
    /// None fires, and these events say so of those that were open.
    Left(Vec<Action>),
}

/// A condition that cannot be worked out ends the run: the decision that says so.
type Resolved<T> = Result<T, Box<Action>>;

impl Run {
    /// Resolves the edges of a node that has ended, as far as they can be resolved by now.
    pub(super) fn settle(&mut self, ix: NodeIx) -> Vec<Action> {
        let fires = match self.facts.nodes[ix].status {
            NodeStatus::Complete | NodeStatus::Reused => true,
            // A failure that nothing handles fires nothing; a handled one is an output.
            NodeStatus::Failed => !self.facts.nodes[ix].tainted,
            _ => false,
        };
        match self.resolve_loops(ix, fires) {
            Ok(Loops::GoBack(edge)) => {
                self.going_back.push(edge);
                Vec::new()
            }
            // What waits for these loops is looked at once they are known to have ended.
            Ok(Loops::Left(skipped)) if !skipped.is_empty() => skipped,
            Ok(Loops::Left(_)) => self.resolve_edges(ix, fires),
            Err(ending) => vec![*ending],
        }
    }

    fn resolve_loops(&self, ix: NodeIx, fires: bool) -> Resolved<Loops> {
        let mut skipped = Vec::new();
        for &edge_ix in &self.graph.flow().node(ix).loops {
            let edge = self.graph.flow().edge(edge_ix);
            let state = self.facts.edges[edge_ix];
            let Some(cycle) = edge.cycle.as_ref().filter(|_| state.status == EdgeStatus::Pending) else {
                continue;
            };
            let goes_back = fires && self.holds(edge)?;
            let exhausted = state.iterations >= cycle.max_iterations;
            if goes_back && !(exhausted && cycle.on_exhausted == OnExhausted::Continue) {
                return Ok(Loops::GoBack(edge_ix));
            }
            skipped.push(self.resolved(edge, false));
        }
        Ok(Loops::Left(skipped))
    }

    fn resolve_edges(&self, ix: NodeIx, fires: bool) -> Vec<Action> {
        let mut actions = Vec::new();
        for &edge_ix in &self.graph.flow().node(ix).outgoing {
            let edge = self.graph.flow().edge(edge_ix);
            let mut loops = edge.leaves.iter().map(|left| self.facts.edges[*left].status);
            if !self.facts.is_open(&self.graph, edge_ix) || loops.any(|left| left != EdgeStatus::Skipped) {
                continue;
            }
            match if fires { self.holds(edge) } else { Ok(false) } {
                Ok(fires) => actions.push(self.resolved(edge, fires)),
                Err(ending) => {
                    actions.push(*ending);
                    break;
                }
            }
        }
        actions
    }

    fn resolved(&self, edge: &Edge, fires: bool) -> Action {
        let (from, to) =
            (self.graph.flow().node(edge.from).id.clone(), self.graph.flow().node(edge.to).id.clone());
        let event = if fires { Event::EdgeFired { from, to } } else { Event::EdgeSkipped { from, to } };
        Action::Emit { task: Some(self.facts.path(&self.graph, edge.from)), event }
    }

    /// Whether the condition of an edge holds after its source has ended.
    fn holds(&self, edge: &Edge) -> Resolved<bool> {
        let Some(when) = &edge.when else { return Ok(true) };
        when.holds(&self.scope(&self.locals(edge.from))).map_err(|error| {
            let name = edge_name(&self.graph, edge);
            let message = format!("the condition of {name} cannot be worked out: {error}");
            Box::new(ending(Outcome::Failed, AgentError::new(ErrorCode::BindingFailed, message)))
        })
    }
}
