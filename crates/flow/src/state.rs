//! The state of a run: a fold over the facts in its event log, and nothing else. Live, resumed, recovered,
//! replayed and forked runs all come here by [`RunState::apply`]; what to do next is left to `schedule`.
//!
//! | Fact | From | To |
//! |---|---|---|
//! | `task:start` | pending | running |
//! | `task:complete` | running | complete |
//! | `task:failed`, will retry | running | pending, with a time to try again |
//! | `task:failed` | running | failed |
//! | `task:cancelled` | running | cancelled |
//! | `task:skipped` | pending | skipped |
//! | `task:reused` | pending | reused |
//! | `loop:iterate` | any, if in the body | pending, one pass further |
//!
//! A fact that does not fit where the node stands is late or a duplicate and changes nothing.

use std::{cmp::Reverse, collections::BinaryHeap, collections::VecDeque, sync::Arc, time::Duration};

use inspan_protocol::{
    AgentError, EdgeStatus, Envelope, Event, NodePath, NodeStatus, Outcome, PendingPrompt, PromptKind,
    ProviderSessionId, SessionStatus, SkipReason, Timestamp, Usage,
};
use serde_json::{Value, json};

use crate::graph::{EdgeIx, FailFast, Graph, Join, NodeIx, Occupies, OnFailure};

/// The events that are facts of a run; all others change nothing here.
pub(crate) const FACTS: &[&str] = &[
    "harness:start",
    "harness:complete",
    "phase:start",
    "phase:complete",
    "phase:failed",
    "task:start",
    "task:complete",
    "task:failed",
    "task:cancelled",
    "task:skipped",
    "task:reused",
    "edge:fired",
    "edge:skipped",
    "loop:iterate",
    "agent:session",
    "agent:usage",
    "session:prompt",
    "session:reply",
    "session:abort",
    "flow:waiting",
];

/// Nodes, least index first.
pub(crate) type Candidates = BinaryHeap<Reverse<NodeIx>>;

/// The fold of a run's facts.
#[derive(Debug)]
pub struct RunState {
    pub(crate) status: SessionStatus,
    pub(crate) outcome: Option<Outcome>,
    pub(crate) started_at: Option<Timestamp>,
    pub(crate) duration_ms: u64,
    pub(crate) phase_begun: bool,
    pub(crate) phase_ended: bool,
    pub(crate) last_seq: u64,
    pub(crate) nodes: Vec<NodeState>,
    pub(crate) edges: Vec<EdgeState>,
    pub(crate) outputs: Vec<Option<Arc<Value>>>,
    pub(crate) prompts: Vec<PendingPrompt>,
    pub(crate) usage: Usage,
    pub(crate) cost_usd: f64,
    /// Whether some turn's price is unknown, so that the sum is too.
    pub(crate) unpriced: bool,
    /// Why the run must end before its time: the first cause counts.
    pub(crate) ending: Option<Ending>,
    /// The first failure that nothing handled.
    pub(crate) failure: Option<AgentError>,
    /// Attempts that run, and how many of them take a place for work.
    pub(crate) running: u32,
    pub(crate) slots: u32,
    /// Nodes that may have become ready and would work; entries can be stale.
    pub(crate) workers: Candidates,
    /// Nodes that may have become ready and would only wait: they need no place; entries can be stale.
    pub(crate) waiters: Candidates,
    /// Nodes that ended and whose edges are to be resolved; entries can be stale.
    pub(crate) settling: VecDeque<NodeIx>,
    /// Moments at which something may be due; entries can be stale.
    pub(crate) timers: BinaryHeap<Reverse<(Timestamp, NodeIx)>>,
}

/// Where one node stands.
#[derive(Clone, Debug, Default)]
pub struct NodeState {
    /// Where it stands.
    pub status: NodeStatus,
    /// The newest attempt of this pass, 0 before the first.
    pub attempt: u32,
    /// Attempts over all passes.
    pub attempts: u32,
    /// Which pass this is, counting from 1.
    pub pass: u32,
    /// When the newest attempt began.
    pub started_at: Option<Timestamp>,
    /// How long the newest attempt took, in milliseconds.
    pub duration_ms: Option<u64>,
    /// When the next attempt is due.
    pub retry_at: Option<Timestamp>,
    /// When the running attempt's time is up.
    pub deadline: Option<Timestamp>,
    /// The newest failure.
    pub error: Option<AgentError>,
    /// The conversation of its newest agent run.
    pub conversation: Option<Conversation>,
    /// Whether it did not run because of a failure, or failed without anything handling it.
    pub(crate) tainted: bool,
    pub(crate) unresolved: u32,
    pub(crate) fired: u32,
}

/// An agent's conversation, as far as it has gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conversation {
    /// The vendor's id.
    pub session_id: ProviderSessionId,
    /// How many turns it has had.
    pub turns: u32,
}

/// Where one edge stands.
#[derive(Clone, Copy, Debug, Default)]
pub struct EdgeState {
    /// Where it stands in this pass.
    pub status: EdgeStatus,
    /// How often it has fired, if it closes a cycle.
    pub iterations: u32,
}

/// Why a run ends before its time.
#[derive(Clone, Debug)]
pub struct Ending {
    /// How the session ends.
    pub outcome: Outcome,
    /// What went wrong, if something did.
    pub error: Option<AgentError>,
}

impl RunState {
    /// The state before the first fact.
    pub fn new(graph: &Graph) -> Self {
        let nodes = graph
            .nodes
            .iter()
            .map(|node| NodeState { pass: 1, unresolved: node.incoming.len() as u32, ..NodeState::default() })
            .collect();
        Self {
            status: SessionStatus::Idle,
            outcome: None,
            started_at: None,
            duration_ms: 0,
            phase_begun: false,
            phase_ended: false,
            last_seq: 0,
            nodes,
            edges: vec![EdgeState::default(); graph.edges.len()],
            outputs: vec![None; graph.nodes.len()],
            prompts: Vec::new(),
            usage: Usage::default(),
            cost_usd: 0.0,
            unpriced: false,
            ending: None,
            failure: None,
            running: 0,
            slots: 0,
            workers: BinaryHeap::new(),
            waiters: BinaryHeap::new(),
            settling: VecDeque::new(),
            timers: BinaryHeap::new(),
        }
    }

    /// Takes one event of the log. Total and idempotent: an event that was taken before, comes late or is
    /// no fact of this run changes nothing.
    pub fn apply(&mut self, graph: &Graph, envelope: &Envelope) {
        if envelope.seq <= self.last_seq {
            return;
        }
        self.last_seq = envelope.seq;
        let at = envelope.timestamp;
        let task = envelope.context.task.as_ref();
        match &envelope.event {
            Event::HarnessStart { .. } if self.started_at.is_none() => {
                self.status = SessionStatus::Running;
                self.started_at = Some(at);
            }
            Event::PhaseStart { .. } if !self.phase_begun => {
                self.phase_begun = true;
                let roots = graph.nodes.iter().enumerate().filter(|(_, node)| node.incoming.is_empty());
                roots.for_each(|(ix, _)| self.propose(graph, NodeIx(ix as u32)));
            }
            Event::PhaseComplete { .. } => self.phase_ended = true,
            Event::PhaseFailed { error, .. } => {
                self.phase_ended = true;
                self.failure.get_or_insert_with(|| error.clone());
            }
            Event::HarnessComplete { outcome, duration_ms, .. } => {
                self.outcome = Some(*outcome);
                self.duration_ms = *duration_ms;
                self.status = SessionStatus::of_outcome(*outcome);
            }
            Event::TaskStart { attempt, .. } => {
                if let Some(ix) = self.locate(graph, task, NodeStatus::Pending) {
                    self.start(graph, ix, *attempt, at);
                }
            }
            Event::TaskComplete { result, duration_ms, .. } => {
                if let Some(ix) = self.locate(graph, task, NodeStatus::Running) {
                    self.end(graph, ix, NodeStatus::Complete, Some(*duration_ms));
                    self.outputs[ix.0 as usize] = Some(result.clone());
                    self.settling.push_back(ix);
                }
            }
            Event::TaskFailed { error, will_retry, .. } => {
                if let Some(ix) = self.locate(graph, task, NodeStatus::Running) {
                    self.fail(graph, ix, error, *will_retry, at);
                }
            }
            Event::TaskCancelled { .. } => {
                if let Some(ix) = self.locate(graph, task, NodeStatus::Running) {
                    self.end(graph, ix, NodeStatus::Cancelled, None);
                }
            }
            Event::TaskSkipped { reason, .. } => {
                if let Some(ix) = self.locate(graph, task, NodeStatus::Pending) {
                    let node = &mut self.nodes[ix.0 as usize];
                    node.status = NodeStatus::Skipped;
                    node.tainted = *reason == SkipReason::Failure;
                    self.settling.push_back(ix);
                }
            }
            Event::TaskReused { result, .. } => {
                if let Some(ix) = self.locate(graph, task, NodeStatus::Pending) {
                    self.nodes[ix.0 as usize].status = NodeStatus::Reused;
                    self.outputs[ix.0 as usize] = Some(result.clone());
                    self.settling.push_back(ix);
                }
            }
            Event::EdgeFired { from, to } => {
                self.resolve(graph, from.as_str(), to.as_str(), EdgeStatus::Fired)
            }
            Event::EdgeSkipped { from, to } => {
                self.resolve(graph, from.as_str(), to.as_str(), EdgeStatus::Skipped)
            }
            Event::LoopIterate { from, to, iteration } => {
                self.iterate(graph, from.as_str(), to.as_str(), *iteration)
            }
            Event::AgentSession { session_id, .. } => {
                if let Some(ix) = task.and_then(|path| graph.find(path.node())) {
                    let known = &mut self.nodes[ix.0 as usize].conversation;
                    if known.as_ref().is_none_or(|known| known.session_id != *session_id) {
                        *known = Some(Conversation { session_id: session_id.clone(), turns: 0 });
                    }
                }
            }
            Event::AgentUsage { usage, cost_usd, .. } => {
                let ix = task.and_then(|path| graph.find(path.node()));
                if let Some(known) = ix.and_then(|ix| self.nodes[ix.0 as usize].conversation.as_mut()) {
                    known.turns += 1;
                }
                self.usage += *usage;
                match cost_usd {
                    Some(cost) => self.cost_usd += cost,
                    None => self.unpriced = true,
                }
            }
            Event::SessionPrompt {
                prompt_id, prompt, choices, allow_text, kind, deadline, default, ..
            } => {
                self.prompts.push(PendingPrompt {
                    prompt_id: prompt_id.clone(),
                    prompt: prompt.clone(),
                    choices: choices.clone(),
                    allow_text: *allow_text,
                    kind: *kind,
                    task: task.cloned(),
                    deadline: *deadline,
                    default: default.clone(),
                });
            }
            Event::SessionReply { prompt_id, .. } => {
                self.prompts.retain(|prompt| prompt.prompt_id != *prompt_id);
                self.wake();
            }
            Event::SessionAbort { reason } => {
                let error = reason.as_ref().map(|reason| {
                    AgentError::new(
                        inspan_protocol::ErrorCode::Aborted,
                        format!("the session was stopped: {reason}"),
                    )
                });
                self.end_early(Ending { outcome: Outcome::Stopped, error });
            }
            Event::FlowWaiting { .. } => self.status = SessionStatus::Waiting,
            _ => {}
        }
    }

    /// Puts a node among those that may be ready.
    pub(crate) fn propose(&mut self, graph: &Graph, ix: NodeIx) {
        match graph.node(ix).occupies {
            Occupies::Slot => self.workers.push(Reverse(ix)),
            Occupies::Nothing => self.waiters.push(Reverse(ix)),
        }
    }

    /// Ends the run before its time, unless it ends already.
    pub(crate) fn end_early(&mut self, ending: Ending) {
        self.ending.get_or_insert(ending);
    }

    /// Where a node's next attempt or pass stands in the run.
    pub(crate) fn path(&self, graph: &Graph, ix: NodeIx) -> NodePath {
        let root = NodePath::root(&graph.node(ix).id);
        match self.nodes[ix.0 as usize].pass {
            0 | 1 => root,
            pass => root.with_pass(pass),
        }
    }

    /// The questions to people that keep the flow waiting.
    pub(crate) fn waits_for_input(&self) -> impl Iterator<Item = &PendingPrompt> {
        self.prompts.iter().filter(|prompt| prompt.kind == PromptKind::Input)
    }

    fn locate(&self, graph: &Graph, task: Option<&NodePath>, expected: NodeStatus) -> Option<NodeIx> {
        let path = task?;
        let ix = graph.find(path.node())?;
        let node = &self.nodes[ix.0 as usize];
        (node.status == expected && node.pass == path.pass()).then_some(ix)
    }

    fn start(&mut self, graph: &Graph, ix: NodeIx, attempt: u32, at: Timestamp) {
        let node = &mut self.nodes[ix.0 as usize];
        node.status = NodeStatus::Running;
        node.attempt = attempt;
        node.attempts += 1;
        node.started_at = Some(at);
        node.retry_at = None;
        node.error = None;
        node.deadline = graph.node(ix).policy.timeout.map(|timeout| at + timeout);
        if let Some(deadline) = node.deadline {
            self.timers.push(Reverse((deadline, ix)));
        }
        self.running += 1;
        if graph.node(ix).occupies == Occupies::Slot {
            self.slots += 1;
        }
        self.wake();
    }

    fn end(&mut self, graph: &Graph, ix: NodeIx, status: NodeStatus, duration_ms: Option<u64>) {
        let node = &mut self.nodes[ix.0 as usize];
        node.status = status;
        node.duration_ms = duration_ms;
        node.deadline = None;
        self.running -= 1;
        if graph.node(ix).occupies == Occupies::Slot {
            self.slots -= 1;
        }
        if !self.prompts.is_empty() {
            let id = graph.node(ix).id.as_str();
            self.prompts.retain(|prompt| prompt.task.as_ref().is_none_or(|task| task.node() != id));
        }
        self.wake();
    }

    fn fail(&mut self, graph: &Graph, ix: NodeIx, error: &AgentError, will_retry: bool, at: Timestamp) {
        let duration =
            self.nodes[ix.0 as usize].started_at.map(|started| at.since(started).as_millis() as u64);
        let status = if will_retry { NodeStatus::Pending } else { NodeStatus::Failed };
        self.end(graph, ix, status, duration);
        let policy = &graph.node(ix).policy;
        let node = &mut self.nodes[ix.0 as usize];
        node.error = Some(error.clone());
        if will_retry {
            let due = at + wait_before_retry(&policy.retry, node.attempt, error);
            node.retry_at = Some(due);
            self.timers.push(Reverse((due, ix)));
        } else if policy.on_failure == OnFailure::Continue {
            self.outputs[ix.0 as usize] = Some(Arc::new(json!({ "failed": true, "error": error })));
            self.settling.push_back(ix);
        } else {
            node.tainted = true;
            self.failure.get_or_insert_with(|| error.clone());
            if graph.policy.fail_fast == FailFast::On {
                self.end_early(Ending { outcome: Outcome::Failed, error: Some(error.clone()) });
            } else {
                self.settling.push_back(ix);
            }
        }
    }

    fn resolve(&mut self, graph: &Graph, from: &str, to: &str, status: EdgeStatus) {
        let Some((edge, to)) = find_edge(graph, from, to) else { return };
        let state = &mut self.edges[edge.0 as usize];
        if state.status != EdgeStatus::Pending {
            return;
        }
        state.status = status;
        if graph.edge(edge).cycle.is_some() {
            return;
        }
        let tainted = self.nodes[graph.edge(edge).from.0 as usize].tainted;
        let node = &mut self.nodes[to.0 as usize];
        node.unresolved = node.unresolved.saturating_sub(1);
        node.fired += u32::from(status == EdgeStatus::Fired);
        node.tainted |= tainted && status == EdgeStatus::Skipped;
        let first = graph.node(to).join == Join::Any && status == EdgeStatus::Fired && node.fired == 1;
        if node.unresolved == 0 || first {
            self.propose(graph, to);
        }
    }

    fn iterate(&mut self, graph: &Graph, from: &str, to: &str, iteration: u32) {
        let Some((edge, to)) = find_edge(graph, from, to) else { return };
        let Some(cycle) = &graph.edge(edge).cycle else { return };
        if iteration <= self.edges[edge.0 as usize].iterations {
            return;
        }
        let inside = |ix: NodeIx| cycle.body.binary_search(&ix).is_ok();
        for &ix in &cycle.body {
            let node = graph.node(ix);
            let (mut unresolved, mut fired) = (0, 0);
            for &incoming in &node.incoming {
                let state = &mut self.edges[incoming.0 as usize];
                if inside(graph.edge(incoming).from) {
                    state.status = EdgeStatus::Pending;
                }
                unresolved += u32::from(state.status == EdgeStatus::Pending);
                fired += u32::from(state.status == EdgeStatus::Fired);
            }
            for &inner in &node.loops {
                let state = &mut self.edges[inner.0 as usize];
                state.status = EdgeStatus::Pending;
                // A loop within this one begins anew; the counter of this one goes on.
                if inner != edge && inside(graph.edge(inner).to) {
                    state.iterations = 0;
                }
            }
            let state = &mut self.nodes[ix.0 as usize];
            *state = NodeState {
                pass: state.pass + 1,
                attempts: state.attempts,
                conversation: state.conversation.take(),
                unresolved,
                fired,
                ..NodeState::default()
            };
        }
        self.edges[edge.0 as usize].iterations = iteration;
        self.propose(graph, to);
    }

    /// What was waiting goes on.
    fn wake(&mut self) {
        if self.status == SessionStatus::Waiting {
            self.status = SessionStatus::Running;
        }
    }
}

/// The vendor's wish wins over the author's backoff.
fn wait_before_retry(retry: &crate::graph::Retry, attempt: u32, error: &AgentError) -> Duration {
    if let Some(wait) = error.retry_after {
        return wait;
    }
    let grown = retry.backoff.as_secs_f64() * retry.factor.powi(attempt.saturating_sub(1).min(1_000) as i32);
    let limit = retry.max_backoff.unwrap_or(Duration::from_secs(24 * 3_600));
    Duration::try_from_secs_f64(grown).map_or(limit, |wait| wait.min(limit))
}

fn find_edge(graph: &Graph, from: &str, to: &str) -> Option<(EdgeIx, NodeIx)> {
    let (from, to) = (graph.find(from)?, graph.find(to)?);
    let node = graph.node(from);
    // A fan-out can have thousands of edges, its targets few: look from the side that has fewer.
    let target = graph.node(to);
    let candidates =
        if target.incoming.len() < node.outgoing.len() { &target.incoming } else { &node.outgoing };
    let found = candidates.iter().chain(&node.loops).copied().find(|&edge| {
        let edge = graph.edge(edge);
        edge.from == from && edge.to == to
    })?;
    Some((found, to))
}
