//! Resolving the edges of a node that has ended: first those that lead back, then those that lead on.

use inspan_protocol::{AgentError, EdgeStatus, ErrorCode, Event, NodeStatus, Outcome};

use super::{Action, Run, edge_name, ending, select::Selected};
use crate::graph::{Edge, EdgeIx, EdgeOn, FrameIx, OnExhausted, OnFailure, TaskRef};

/// What happens with the loop edges of a node that has ended.
enum Loops {
    /// This one is to fire, once nothing else of its loop can run; until then no other edge of the node is resolved.
    GoBack(EdgeIx),
    /// None fires, and these events skip those that were open.
    Left(Vec<Action>),
}

/// A condition that cannot be evaluated ends the run: the decision that says so.
type Resolved<T> = Result<T, Box<Action>>;

impl Run {
    /// Resolves edges of nodes that have ended, until there is something to do.
    pub(super) fn settle_ended(&mut self, actions: &mut Vec<Action>) {
        while actions.is_empty()
            && let Some(task) = self.next_ended()
        {
            actions.append(&mut self.settle(task));
        }
    }

    /// Resolves the edges of a node that has ended, as far as they can be resolved by now.
    pub(super) fn settle(&mut self, task: TaskRef) -> Vec<Action> {
        let fires = match self.facts.node(task).status {
            NodeStatus::Complete | NodeStatus::Reused => true,
            // A failure that nothing handles fires nothing; a handled one is an output.
            NodeStatus::Failed => !self.facts.node(task).tainted,
            _ => false,
        };
        match self.resolve_loops(task, fires) {
            Ok(Loops::GoBack(edge)) => {
                self.going_back.push((task.frame, edge));
                Vec::new()
            }
            // What waits for these loops is checked once they are known to have ended.
            Ok(Loops::Left(skipped)) if !skipped.is_empty() => skipped,
            Ok(Loops::Left(_)) => self.resolve_edges(task),
            Err(ending) => vec![*ending],
        }
    }

    fn resolve_loops(&self, task: TaskRef, fires: bool) -> Resolved<Loops> {
        let mut skipped = Vec::new();
        let body = self.facts.body(&self.graph, task.frame);
        for &edge_ix in &body.node(task.node).loops {
            let edge = body.edge(edge_ix);
            let state = self.facts.frames[task.frame].edges[edge_ix];
            let Some(cycle) = edge.cycle.as_ref().filter(|_| state.status == EdgeStatus::Pending) else {
                continue;
            };
            // A node that was asked for alone runs once.
            let runs_once = self.selected(task) == Selected::Itself;
            let goes_back = fires && !runs_once && self.holds(task, edge)?;
            let exhausted = state.iterations >= cycle.max_iterations;
            if goes_back && !(exhausted && cycle.on_exhausted == OnExhausted::Continue) {
                return Ok(Loops::GoBack(edge_ix));
            }
            skipped.push(self.resolved(task, edge, false));
        }
        Ok(Loops::Left(skipped))
    }

    fn resolve_edges(&self, task: TaskRef) -> Vec<Action> {
        let mut actions = Vec::new();
        let body = self.facts.body(&self.graph, task.frame);
        let frame = &self.facts.frames[task.frame];
        let outgoing = &body.node(task.node).outgoing;
        let handlers = outgoing.iter().filter(|edge| body.resolves_first(**edge));
        let others = outgoing.iter().filter(|edge| !body.resolves_first(**edge));
        for &edge_ix in handlers.chain(others) {
            let edge = body.edge(edge_ix);
            let mut loops = edge.leaves.iter().map(|left| frame.edges[*left].status);
            if !frame.is_open(body, edge_ix) || loops.any(|left| left != EdgeStatus::Skipped) {
                continue;
            }
            let fires = self.fires_after(task, edge.on);
            match if fires { self.holds(task, edge) } else { Ok(false) } {
                Ok(fires) => actions.push(self.resolved(task, edge, fires)),
                Err(ending) => {
                    actions.push(*ending);
                    break;
                }
            }
            // The failure is handled, or is not, once this is a fact.
            if edge.on == EdgeOn::Failure && frame.nodes[task.node].tainted {
                break;
            }
        }
        actions
    }

    /// Whether an edge may fire after the way in which this task ended.
    fn fires_after(&self, task: TaskRef, on: EdgeOn) -> bool {
        let node = self.facts.node(task);
        let handled = self.facts.spec(&self.graph, task).policy.on_failure == OnFailure::Continue;
        match on {
            EdgeOn::Any => true,
            EdgeOn::Failure => node.status == NodeStatus::Failed,
            EdgeOn::Skipped => node.status == NodeStatus::Skipped,
            EdgeOn::Success => match node.status {
                NodeStatus::Complete | NodeStatus::Reused => true,
                NodeStatus::Failed => handled,
                _ => false,
            },
        }
    }

    /// The event that an edge out of a task is resolved.
    pub(super) fn resolved(&self, task: TaskRef, edge: &Edge, fires: bool) -> Action {
        let body = self.facts.body(&self.graph, task.frame);
        let (from, to) = (body.node(edge.from).id.clone(), body.node(edge.to).id.clone());
        let event = if fires { Event::EdgeFired { from, to } } else { Event::EdgeSkipped { from, to } };
        Action::Emit { task: Some(self.facts.path(&self.graph, task)), event }
    }

    /// Whether the condition of an edge holds after its source has ended.
    fn holds(&self, task: TaskRef, edge: &Edge) -> Resolved<bool> {
        let Some(when) = &edge.when else { return Ok(true) };
        self.scoped(task.frame, &self.locals(task), |scope| when.holds(scope)).map_err(|error| {
            let name = edge_name(self.facts.body(&self.graph, task.frame), edge);
            let message = format!("the condition of {name} cannot be evaluated: {error}");
            Box::new(self.end_for(task.frame, AgentError::new(ErrorCode::BindingFailed, message)))
        })
    }

    /// The decision to end a frame, or the run, because of an error in it.
    pub(super) fn end_for(&self, frame: FrameIx, error: AgentError) -> Action {
        self.end_frame(frame, error.clone()).unwrap_or_else(|| ending(Outcome::Failed, error))
    }
}
