//! What runs next. [`Run::next`] makes one decision at a time from the folded state; carrying it out, and
//! feeding what happened back by [`Run::apply`], is the runtime's. Nothing here waits, and time comes in
//! as a parameter.
//!
//! The order of decisions: begin the session, end early if there is cause, resolve the edges of what has
//! ended, start what is ready in the order of the graph, wait, end.

use std::{cmp::Reverse, sync::Arc};

use inspan_protocol::{
    AgentError, EdgeStatus, Envelope, ErrorCode, Event, NodePath, NodeStatus, Outcome, SessionId,
    SessionStatus, SkipReason, Timestamp, WaitingOn,
};
use serde_json::{Map, Value, json};

use crate::{
    expr::Scope,
    graph::{Graph, Join, NodeIx, OnExhausted, RetryOn},
    state::{Conversation, Ending, RunState},
};

/// A run: its graph, what it was given, and the fold of its facts.
#[derive(Debug)]
pub struct Run {
    graph: Arc<Graph>,
    flow: Value,
    vars: Value,
    locals: Map<String, Value>,
    max_concurrency: u32,
    state: RunState,
    /// Attempts that were told to end, by node: a decision is given once.
    cancelled: Vec<(NodeIx, u32, CancelReason)>,
}

/// What the runtime is to do.
#[derive(Debug)]
pub enum Action {
    /// Emit this event, in this order; a task's event within the task's place.
    Emit {
        /// The task it belongs to.
        task: Option<NodePath>,
        /// The event.
        event: Event,
    },
    /// Start an attempt, whose `task:start` was emitted just before.
    Start(StartNode),
    /// End a running attempt.
    Cancel {
        /// The node.
        node: NodeIx,
        /// Its attempt.
        attempt: u32,
        /// Why.
        reason: CancelReason,
    },
    /// The session is over.
    Finish,
}

/// An attempt to start.
#[derive(Debug)]
pub struct StartNode {
    /// The node.
    pub node: NodeIx,
    /// Its place in the run.
    pub path: NodePath,
    /// Which try this is, counting from 1.
    pub attempt: u32,
    /// Its input, all bindings worked out; an error ends the attempt at once.
    pub input: Result<Value, AgentError>,
    /// The conversation that it goes on with.
    pub conversation: Option<Conversation>,
}

/// Why an attempt is cancelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CancelReason {
    /// Its time is up.
    TimedOut,
    /// The run ends before its time.
    Ending,
}

/// How an attempt ended, as far as the runtime can see.
#[derive(Debug)]
pub enum AttemptEnd {
    /// With an output.
    Output(Value),
    /// With an error.
    Error(AgentError),
}

impl Run {
    /// A run before its first fact. `input` is what the flow was given, defaults included.
    pub fn new(
        graph: Arc<Graph>,
        session: &SessionId,
        input: Map<String, Value>,
        max_concurrency: Option<u32>,
    ) -> Self {
        let flow = json!({ "name": graph.name, "sessionId": session, "input": input });
        let vars = Value::Object(graph.state.clone());
        let limit = max_concurrency.or(graph.policy.max_concurrency).unwrap_or(u32::MAX).max(1);
        let state = RunState::new(&graph);
        Self { graph, flow, vars, locals: Map::new(), max_concurrency: limit, state, cancelled: Vec::new() }
    }

    /// The graph.
    pub fn graph(&self) -> &Arc<Graph> {
        &self.graph
    }

    /// The fold so far.
    pub fn state(&self) -> &RunState {
        &self.state
    }

    /// Takes one event of the log.
    pub fn apply(&mut self, envelope: &Envelope) {
        self.state.apply(&self.graph, envelope);
    }

    /// Puts the next decision into `actions`, which is empty before; it stays so if there is nothing to do
    /// until something happens. Every emitted event must be applied before this is called again.
    pub fn next(&mut self, now: Timestamp, actions: &mut Vec<Action>) {
        if self.state.status == SessionStatus::Idle {
            actions.push(emit(Event::HarnessStart { name: self.graph.name.clone() }));
            return;
        }
        if !self.state.phase_begun {
            actions.push(emit(Event::PhaseStart { name: self.graph.phase.clone(), phase_number: Some(1) }));
            return;
        }
        if self.state.outcome.is_some() {
            return;
        }
        self.look_at_time(now, actions);
        if actions.is_empty() && self.state.ending.is_some() {
            self.wind_down(now, actions);
            return;
        }
        while actions.is_empty()
            && let Some(node) = self.state.settling.pop_front()
        {
            self.settle(node, actions);
            if self.state.ending.is_some() {
                return self.next(now, actions);
            }
        }
        while actions.is_empty()
            && let Some(node) = self.candidate()
        {
            self.consider(node, now, actions);
        }
        if actions.is_empty() {
            self.rest(now, actions);
        }
    }

    /// When to ask again even if nothing happens.
    pub fn wake_at(&self) -> Option<Timestamp> {
        let node = self.state.timers.peek().map(|Reverse((at, _))| *at);
        let flow =
            self.flow_deadline().filter(|_| self.state.ending.is_none() && self.state.outcome.is_none());
        node.into_iter().chain(flow).min()
    }

    /// The attempts that must be in flight now. After a crash the driver starts exactly these again.
    pub fn outstanding(&self) -> Vec<StartNode> {
        let running =
            self.state.nodes.iter().enumerate().filter(|(_, node)| node.status == NodeStatus::Running);
        running.map(|(ix, node)| self.attempt(NodeIx(ix as u32), node.attempt)).collect()
    }

    fn attempt(&self, ix: NodeIx, attempt: u32) -> StartNode {
        let node = self.graph.node(ix);
        let input = node.input.resolve(&self.scope()).map_err(AgentError::from);
        let conversation =
            node.session.and_then(|source| self.state.nodes[source.0 as usize].conversation.clone());
        StartNode { node: ix, path: self.state.path(&self.graph, ix), attempt, input, conversation }
    }

    /// The event that an attempt's end is; nothing if a newer attempt has taken its place.
    pub fn conclude(
        &mut self,
        node: NodeIx,
        attempt: u32,
        end: AttemptEnd,
        now: Timestamp,
    ) -> Option<(NodePath, Event)> {
        let state = &self.state.nodes[node.0 as usize];
        if state.status != NodeStatus::Running || state.attempt != attempt {
            return None;
        }
        let task_id = self.graph.node(node).id.clone();
        let path = self.state.path(&self.graph, node);
        let reason = self.take_cancelled(node, attempt);
        let state = &self.state.nodes[node.0 as usize];
        let event = match (end, reason) {
            // What finished although it was told to end is finished work all the same.
            (AttemptEnd::Output(output), _) => {
                let duration_ms = state.started_at.map_or(0, |started| now.since(started).as_millis() as u64);
                Event::TaskComplete { task_id, result: Arc::new(output), duration_ms }
            }
            // So is a failure that came first; only what ended because it was told to is cancelled.
            (AttemptEnd::Error(error), Some(CancelReason::Ending)) if error.code == ErrorCode::Aborted => {
                Event::TaskCancelled {
                    task_id,
                    session_id: state.conversation.as_ref().map(|known| known.session_id.clone()),
                }
            }
            (AttemptEnd::Error(error), reason) => {
                let error = if reason == Some(CancelReason::TimedOut) { self.timed_out(node) } else { error };
                Event::TaskFailed { will_retry: self.will_retry(node, &error), task_id, error }
            }
        };
        Some((path, event))
    }

    fn timed_out(&self, node: NodeIx) -> AgentError {
        let node = self.graph.node(node);
        let limit = node.policy.timeout.map_or_else(String::new, |limit| format!(" of {limit:?}"));
        AgentError::new(
            ErrorCode::Timeout,
            format!("node `{}` did not end within its timeout{limit}", node.id),
        )
    }

    fn will_retry(&self, node: NodeIx, error: &AgentError) -> bool {
        let retry = &self.graph.node(node).policy.retry;
        let attempt = self.state.nodes[node.0 as usize].attempt;
        let again = match retry.on {
            RetryOn::Any => error.code != ErrorCode::Aborted,
            RetryOn::Retryable => error.is_retryable(),
        };
        again && attempt < retry.max_attempts && self.state.ending.is_none()
    }

    fn take_cancelled(&mut self, node: NodeIx, attempt: u32) -> Option<CancelReason> {
        let place = self.cancelled.iter().position(|&(ix, n, _)| ix == node && n == attempt)?;
        Some(self.cancelled.swap_remove(place).2)
    }

    fn cancel(&mut self, node: NodeIx, reason: CancelReason, actions: &mut Vec<Action>) {
        let attempt = self.state.nodes[node.0 as usize].attempt;
        if !self.cancelled.iter().any(|&(ix, n, _)| ix == node && n == attempt) {
            self.cancelled.push((node, attempt, reason));
            actions.push(Action::Cancel { node, attempt, reason });
        }
    }

    fn flow_deadline(&self) -> Option<Timestamp> {
        Some(self.state.started_at? + self.graph.policy.timeout?)
    }

    /// Takes what is due: retries become candidates, late attempts are cancelled, the flow's own time ends.
    fn look_at_time(&mut self, now: Timestamp, actions: &mut Vec<Action>) {
        if self.state.ending.is_none() && self.flow_deadline().is_some_and(|deadline| deadline <= now) {
            let limit = self.graph.policy.timeout.unwrap_or_default();
            let message = format!("flow `{}` did not end within its timeout of {limit:?}", self.graph.name);
            let error = AgentError::new(ErrorCode::Timeout, message);
            self.state.end_early(Ending { outcome: Outcome::TimedOut, error: Some(error) });
        }
        while let Some(&Reverse((at, node))) = self.state.timers.peek() {
            let state = &self.state.nodes[node.0 as usize];
            let retries = state.status == NodeStatus::Pending && state.retry_at == Some(at);
            let expires = state.status == NodeStatus::Running && state.deadline == Some(at);
            if at > now && (retries || expires) {
                break;
            }
            self.state.timers.pop();
            if retries {
                self.state.propose(&self.graph, node);
            } else if expires {
                self.cancel(node, CancelReason::TimedOut, actions);
            }
        }
    }

    /// Cancels what runs, and ends the session once nothing does.
    fn wind_down(&mut self, now: Timestamp, actions: &mut Vec<Action>) {
        if self.state.running > 0 {
            for ix in 0..self.state.nodes.len() {
                if self.state.nodes[ix].status == NodeStatus::Running {
                    self.cancel(NodeIx(ix as u32), CancelReason::Ending, actions);
                }
            }
            return;
        }
        if let Some(ending) = self.state.ending.clone() {
            self.finish(ending.outcome, ending.error, now, actions);
        }
    }

    fn finish(
        &mut self,
        outcome: Outcome,
        error: Option<AgentError>,
        now: Timestamp,
        actions: &mut Vec<Action>,
    ) {
        let name = self.graph.phase.clone();
        if !self.state.phase_ended {
            actions.push(emit(match (outcome, error) {
                (Outcome::Success, _) => Event::PhaseComplete { name },
                (_, Some(error)) => Event::PhaseFailed { name, error },
                (_, None) => {
                    let error = AgentError::new(ErrorCode::Aborted, "the session was stopped");
                    Event::PhaseFailed { name, error }
                }
            }));
        }
        let duration_ms = self.state.started_at.map_or(0, |started| now.since(started).as_millis() as u64);
        let success = outcome == Outcome::Success;
        actions.push(emit(Event::HarnessComplete { success, outcome, duration_ms }));
        actions.push(Action::Finish);
    }

    /// Resolves the edges of a node that has ended.
    fn settle(&mut self, ix: NodeIx, actions: &mut Vec<Action>) {
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

    /// The next candidate in the order of the graph; one that only waits needs no free place.
    fn candidate(&mut self) -> Option<NodeIx> {
        let is_full = self.state.slots >= self.max_concurrency;
        let worker = self.state.workers.peek().filter(|_| !is_full).map(|Reverse(ix)| *ix);
        let waiter = self.state.waiters.peek().map(|Reverse(ix)| *ix);
        match (worker, waiter) {
            (Some(worker), waiter) if waiter.is_none_or(|waiter| worker < waiter) => self.state.workers.pop(),
            _ => self.state.waiters.pop(),
        }
        .map(|Reverse(ix)| ix)
    }

    /// Starts or skips a candidate, unless it is stale.
    fn consider(&mut self, ix: NodeIx, now: Timestamp, actions: &mut Vec<Action>) {
        let graph = self.graph.clone();
        let node = graph.node(ix);
        let state = &self.state.nodes[ix.0 as usize];
        let due = state.retry_at.is_none_or(|at| at <= now);
        let resolved = state.unresolved == 0 || (node.join == Join::Any && state.fired > 0);
        if state.status != NodeStatus::Pending || !due || !resolved {
            return;
        }
        let path = self.state.path(&graph, ix);
        let task_id = node.id.clone();
        if let Some(reason) = self.skip_by_edges(ix) {
            actions.push(Action::Emit { task: Some(path), event: Event::TaskSkipped { task_id, reason } });
            return;
        }
        let mut start = None;
        if let Some(when) = &node.when {
            match when.holds(&self.scope()) {
                Ok(true) => {}
                Ok(false) => {
                    let event = Event::TaskSkipped { task_id, reason: SkipReason::When };
                    actions.push(Action::Emit { task: Some(path), event });
                    return;
                }
                // A condition that cannot be worked out is a failure of the node, on record as one.
                Err(error) => start = Some(Err(AgentError::from(error))),
            }
        }
        let mut attempt = self.attempt(ix, state.attempt + 1);
        attempt.input = start.unwrap_or(attempt.input);
        let node_type = node.node_type.to_string();
        let event = Event::TaskStart { task_id, node_type, attempt: attempt.attempt, path: path.clone() };
        actions.push(Action::Emit { task: Some(path), event });
        actions.push(Action::Start(attempt));
    }

    fn skip_by_edges(&self, ix: NodeIx) -> Option<SkipReason> {
        let node = self.graph.node(ix);
        let state = &self.state.nodes[ix.0 as usize];
        if node.incoming.is_empty() {
            return None;
        }
        let ready = match node.join {
            Join::Any => state.fired > 0,
            Join::Resolved => state.fired > 0 && !state.tainted,
            Join::All => state.fired as usize == node.incoming.len(),
        };
        match (ready, state.tainted) {
            (true, _) => None,
            (false, true) => Some(SkipReason::Failure),
            (false, false) => Some(SkipReason::Edge),
        }
    }

    /// Nothing can be decided now: wait for what runs, or end.
    fn rest(&mut self, now: Timestamp, actions: &mut Vec<Action>) {
        let waiting = self.state.waits_for_input().count() as u32;
        if self.state.running > 0 {
            if waiting >= self.state.running && self.state.status == SessionStatus::Running {
                let until = self.state.waits_for_input().filter_map(|prompt| prompt.deadline).min();
                actions.push(emit(Event::FlowWaiting { on: WaitingOn::Input, until }));
            }
            return;
        }
        if self.state.workers.is_empty() && self.state.timers.is_empty() {
            match self.state.failure.clone() {
                Some(error) => self.finish(Outcome::Partial, Some(error), now, actions),
                None => self.finish(Outcome::Success, None, now, actions),
            }
        }
    }

    fn scope(&self) -> Scope<'_> {
        Scope { outputs: &self.state.outputs, flow: &self.flow, state: &self.vars, locals: &self.locals }
    }
}

fn emit(event: Event) -> Action {
    Action::Emit { task: None, event }
}

fn edge_name(graph: &Graph, edge: &crate::graph::Edge) -> String {
    format!("`{} -> {}`", graph.node(edge.from).id, graph.node(edge.to).id)
}

#[cfg(test)]
mod tests;
