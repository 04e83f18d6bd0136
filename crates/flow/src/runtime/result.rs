//! What a run gives back, read off the fold at its end.

use std::{collections::BTreeMap, sync::Arc};

use inspan_protocol::{
    AgentError, Envelope, NodeId, NodeStatus, Outcome, PendingPrompt, RunSnapshot, SessionId, SessionStatus,
    Usage, WaitingOn,
};
use serde::Serialize;
use serde_json::{Map, Value};

use crate::{schedule::Run, state::NodeState};

/// How a session ended.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FlowRunResult {
    /// The session.
    pub session_id: SessionId,
    /// The flow.
    pub flow: String,
    /// Where the session stands.
    pub status: SessionStatus,
    /// How it ended.
    pub outcome: Outcome,
    /// The newest output of each node that has one.
    pub outputs: BTreeMap<NodeId, Arc<Value>>,
    /// How each node fared.
    pub nodes: BTreeMap<NodeId, NodeReport>,
    /// Tokens of all agents.
    pub usage: Usage,
    /// What they cost in US dollars; absent if any price is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost_usd: Option<f64>,
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

/// The fold at the end of a run. A snapshot of it copies every output, so it is made only for who wants one.
#[derive(Debug)]
pub(super) struct LastState {
    pub(super) run: Run,
    pub(super) input: Map<String, Value>,
}

impl LastState {
    pub(super) fn snapshot(&self) -> RunSnapshot {
        self.run.snapshot(&self.input)
    }
}

impl FlowRunResult {
    /// The fold at the end: what a session that rests goes on from.
    pub fn snapshot(&self) -> RunSnapshot {
        self.last.snapshot()
    }

    /// The questions that nobody has answered yet.
    pub fn open_prompts(&self) -> &[PendingPrompt] {
        &self.last.run.state().prompts
    }

    /// What a session waits for that rests.
    pub fn waits_on(&self) -> Option<WaitingOn> {
        let limit = || self.nodes.values().any(|node| node.status == NodeStatus::Waiting);
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
    /// Where it stands.
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
}

/// Where a node stands, as people see it.
fn shown(node: &NodeState) -> NodeStatus {
    match node.status {
        NodeStatus::Running => NodeStatus::Waiting,
        NodeStatus::Pending if node.doubt => NodeStatus::Waiting,
        NodeStatus::Pending if node.interrupted => NodeStatus::Paused,
        status => status,
    }
}

pub(super) fn of(last: Arc<LastState>, session_id: SessionId, events: Vec<Arc<Envelope>>) -> FlowRunResult {
    let run = &last.run;
    let (graph, state) = (run.graph(), run.state());
    let ids = || graph.nodes.iter().map(|node| node.id.clone());
    let outputs = ids().zip(&state.outputs).filter_map(|(id, output)| Some((id, output.clone()?))).collect();
    let reports = state.nodes.iter().map(|node| NodeReport {
        status: shown(node),
        attempts: node.attempts,
        duration_ms: node.duration_ms,
        reused: node.status == NodeStatus::Reused,
        error: node.error.as_deref().cloned(),
    });
    FlowRunResult {
        session_id,
        flow: graph.name.clone(),
        status: state.status,
        outcome: state.outcome.unwrap_or(match state.status {
            SessionStatus::Paused => Outcome::Paused,
            SessionStatus::Waiting => Outcome::Waiting,
            _ => Outcome::Failed,
        }),
        outputs,
        nodes: ids().zip(reports).collect(),
        usage: state.usage,
        cost_usd: (!state.unpriced).then_some(state.cost_usd),
        duration_ms: match state.outcome {
            Some(_) => state.duration_ms,
            None => state.started_at.map_or(0, |began| state.last_at.since(began).as_millis() as u64),
        },
        error: state.failure.clone(),
        events,
        last,
    }
}
