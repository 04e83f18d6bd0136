//! The result of a run, made from the fold at its end.

use std::{fmt, sync::Arc};

use inspan_protocol::{
    AgentError, Envelope, NodeId, NodePath, NodeStatus, Outcome, PauseCause, Prompt, RunSnapshot, SessionId,
    SessionStatus, Usage, WaitingOn,
};
use serde::{Serialize, Serializer};
use serde_json::{Map, Value};

use inspan_flow_core::{NodeIx, NodeState, Run, TaskRef};

/// How a session ended.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FlowRunResult {
    /// The session.
    pub session_id: SessionId,
    /// The flow.
    pub flow: String,
    /// The status of the session.
    pub status: SessionStatus,
    /// How it ended.
    pub outcome: Outcome,
    /// The newest output of each node that has one.
    pub outputs: Outputs,
    /// How each node fared.
    pub nodes: Reports,
    /// Tokens of all agents.
    pub usage: Usage,
    /// What they cost in US dollars; absent if any price is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost_usd: Option<f64>,
    /// What is known of a cost that is not known as a whole.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub known_usd: Option<f64>,
    /// How long the session took, in milliseconds.
    pub duration_ms: u64,
    /// What went wrong, if something did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<AgentError>,
    /// Every event, if the runner was asked for them.
    #[serde(skip)]
    pub events: Vec<Arc<Envelope>>,
    #[serde(skip)]
    pub(super) last: Arc<LastState>,
}

/// The fold at the end of a run. A snapshot of it copies every output, so it is made only on request.
#[derive(Debug)]
pub(super) struct LastState {
    pub(super) run: Run,
    pub(super) input: Map<String, Value>,
}

impl LastState {
    pub(super) fn snapshot(&self) -> RunSnapshot {
        self.run.snapshot(&self.input)
    }

    /// The ids of all nodes in their order, with the places of the nodes.
    fn nodes(&self) -> impl Iterator<Item = (&NodeId, usize)> {
        let nodes = self.run.graph().flow().nodes.iter().enumerate();
        let mut nodes: Vec<_> = nodes.map(|(at, node)| (&node.id, at)).collect();
        nodes.sort_unstable();
        nodes.into_iter()
    }

    /// The place of a node.
    fn find(&self, node: &str) -> Option<usize> {
        self.run.graph().flow().find(node).map(|ix| ix.0 as usize)
    }

    fn output(&self, at: usize) -> Option<&Value> {
        self.run.state().output(TaskRef::of_flow(NodeIx(at as u32)))
    }

    fn report(&self, at: usize) -> NodeReport {
        let node = &self.run.state().nodes()[at];
        NodeReport {
            status: shown(node),
            attempts: node.attempts,
            duration_ms: node.duration_ms,
            reused: node.status == NodeStatus::Reused,
            error: node.error.as_deref().cloned(),
            agents: self.run.state().agents_of(self.run.graph(), TaskRef::of_flow(NodeIx(at as u32))),
        }
    }
}

/// The newest output of each node that has one. It is serialised as what the flow declares that it gives, and as the
/// outputs of all nodes by their ids if it declares nothing. It is not copied.
#[derive(Clone)]
pub struct Outputs(Arc<LastState>);

impl Outputs {
    /// The output of a node.
    pub fn get(&self, node: impl AsRef<str>) -> Option<&Value> {
        self.0.output(self.0.find(node.as_ref())?)
    }

    /// What the flow gives by its `outputs`, or by the `control.end` that ended it; none if it says nothing of it.
    pub fn declared(&self) -> Option<Value> {
        self.0.run.outputs()
    }

    /// All of them, in the order of the ids.
    pub fn iter(&self) -> impl Iterator<Item = (&NodeId, &Value)> {
        self.0.nodes().filter_map(|(id, at)| Some((id, self.0.output(at)?)))
    }
}

impl fmt::Debug for Outputs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

impl Serialize for Outputs {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.declared() {
            Some(outputs) => outputs.serialize(serializer),
            None => serializer.collect_map(self.iter()),
        }
    }
}

/// The result of each node, made on request.
#[derive(Clone)]
pub struct Reports(Arc<LastState>);

impl Reports {
    /// How a node fared.
    pub fn get(&self, node: impl AsRef<str>) -> Option<NodeReport> {
        Some(self.0.report(self.0.find(node.as_ref())?))
    }

    /// All of them, in the order of the ids.
    pub fn iter(&self) -> impl Iterator<Item = (&NodeId, NodeReport)> {
        self.0.nodes().map(|(id, at)| (id, self.0.report(at)))
    }
}

impl fmt::Debug for Reports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

impl Serialize for Reports {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter())
    }
}

impl FlowRunResult {
    /// What a session has given so far that runs elsewhere: `run` is the fold of its log, and `input` what its flow was
    /// given.
    pub fn of_run(run: Run, input: Map<String, Value>, session: SessionId) -> Self {
        of(Arc::new(LastState { run, input }), session, Vec::new())
    }

    /// The fold at the end, from which a paused session resumes.
    pub fn snapshot(&self) -> RunSnapshot {
        self.last.snapshot()
    }

    /// The questions without an answer.
    pub fn open_prompts(&self) -> &[Prompt] {
        self.last.run.state().prompts()
    }

    /// The nodes that failed, and the items of lists, after which the flow went on: they count as finished work, and only a
    /// fork runs them again.
    pub fn handled_failures(&self) -> Vec<NodePath> {
        self.last.run.state().handled_failures(self.last.run.graph())
    }

    /// The limit to raise, as `--budget` names it, if one paused the session.
    pub fn limit_to_raise(&self) -> Option<&str> {
        self.last.run.state().limit_to_raise()
    }

    /// What a paused session waits for.
    pub fn waits_on(&self) -> Option<WaitingOn> {
        let limit = || self.last.run.state().all_nodes().any(|node| shown(node) == NodeStatus::Waiting);
        match self.outcome {
            Outcome::Waiting if self.open_prompts().is_empty() && limit() => Some(WaitingOn::Limit),
            Outcome::Waiting => Some(WaitingOn::Input),
            _ => None,
        }
    }
}

/// How a node fared.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeReport {
    /// Its status.
    pub status: NodeStatus,
    /// How often it was tried, over all passes.
    pub attempts: u32,
    /// How long the newest attempt took, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<u64>,
    /// Whether its output was taken from an earlier session.
    pub reused: bool,
    /// Its newest failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<AgentError>,
    /// The agents that worked on it in its newest pass, in their order, if several may.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub agents: Vec<String>,
}

/// The status of a node, as people see it.
fn shown(node: &NodeState) -> NodeStatus {
    match node.status {
        NodeStatus::Running => NodeStatus::Waiting,
        NodeStatus::Pending if node.is_in_doubt() => NodeStatus::Waiting,
        NodeStatus::Pending if node.is_interrupted() => NodeStatus::Paused,
        status => status,
    }
}

pub(super) fn of(last: Arc<LastState>, session_id: SessionId, events: Vec<Arc<Envelope>>) -> FlowRunResult {
    let run = &last.run;
    let (graph, state) = (run.graph(), run.state());
    FlowRunResult {
        session_id,
        flow: graph.name.clone(),
        status: state.status(),
        outcome: state.outcome().unwrap_or(match state.status() {
            SessionStatus::Paused if state.paused_by() == Some(PauseCause::Budget) => Outcome::BudgetExceeded,
            SessionStatus::Paused => Outcome::Paused,
            SessionStatus::Waiting => Outcome::Waiting,
            _ => Outcome::Failed,
        }),
        outputs: Outputs(last.clone()),
        nodes: Reports(last.clone()),
        usage: state.usage(),
        cost_usd: state.cost_usd(),
        known_usd: state.known_usd(),
        duration_ms: match state.outcome() {
            Some(_) => state.duration_ms(),
            None => state.started_at().map_or(0, |began| state.last_at().since(began).as_millis() as u64),
        },
        error: state.failure().cloned(),
        events,
        last,
    }
}
