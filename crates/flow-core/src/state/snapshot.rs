//! The fold, saved, and a fold that begins with one.

use std::{sync::Arc, time::Duration};

use inspan_protocol::{
    AgentSessionRef, EdgeStatus, NodeSnapshot, NodeStatus, RunSnapshot, SNAPSHOT_VERSION, SessionId,
    SessionStatus, Spent,
};
use serde_json::{Map, Value};

use super::{Conversation, Ending, Facts, NodeState};
use crate::graph::{EdgeIx, Graph, NodeIx};

/// Why a snapshot cannot be gone on from.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SnapshotError {
    /// It is of another version.
    #[error(
        "the snapshot of session `{session}` has version {found}, and this program reads version {known}"
    )]
    Version {
        /// The session.
        session: SessionId,
        /// The snapshot's version.
        found: u16,
        /// The version that is read here.
        known: u16,
    },
    /// It is of another flow.
    #[error(
        "the snapshot of session `{session}` is of flow `{flow}` as it was then, and the flow has changed since"
    )]
    Flow {
        /// The session.
        session: SessionId,
        /// The flow.
        flow: String,
    },
}

impl Facts {
    /// The fold as data. `input` is what the flow was given.
    pub(crate) fn snapshot(
        &self,
        graph: &Graph,
        session: &SessionId,
        input: &Map<String, Value>,
    ) -> RunSnapshot {
        let nodes = || self.nodes.entries();
        let path = |ix: NodeIx| self.path(graph, ix);
        let edge = |ix: EdgeIx| {
            let edge = graph.flow().edge(ix);
            format!("{}->{}", graph.flow().node(edge.from).id, graph.flow().node(edge.to).id)
        };
        let outputs = nodes().filter_map(|(ix, _)| Some((path(ix), self.outputs[ix].as_deref()?.clone())));
        let agents = nodes().filter_map(|(ix, node)| {
            let known = node.conversation.as_ref()?;
            let node_type = &graph.flow().node(ix).node_type;
            let provider = node_type.strip_suffix(".agent").unwrap_or(node_type).to_owned();
            Some((
                path(ix),
                AgentSessionRef { provider, session_id: known.session_id.clone(), turns: known.turns },
            ))
        });
        RunSnapshot {
            version: SNAPSHOT_VERSION,
            session_id: session.clone(),
            flow_name: graph.name.clone(),
            flow_hash: graph.hash.clone(),
            status: self.session.status,
            input: input.clone(),
            outputs: outputs.collect(),
            node_status: nodes().map(|(ix, node)| (path(ix), node.status)).collect(),
            nodes: nodes()
                .map(|(ix, node)| (path(ix), node.saved()))
                .filter(|(_, saved)| *saved != NodeSnapshot::default())
                .collect(),
            attempts: nodes()
                .filter(|(_, node)| node.attempt > 0)
                .map(|(ix, node)| (path(ix), node.attempt))
                .collect(),
            errors: nodes()
                .filter_map(|(ix, node)| Some((path(ix), (**node.error.as_ref()?).clone())))
                .collect(),
            edge_status: self.edges.entries().map(|(ix, state)| (edge(ix), state.status)).collect(),
            loop_counters: self
                .edges
                .entries()
                .filter(|(ix, _)| graph.flow().edge(*ix).cycle.is_some())
                .map(|(ix, state)| (edge(ix), state.iterations))
                .collect(),
            frames: Vec::new(),
            agent_sessions: agents.collect(),
            pending_prompts: self.session.prompts.clone(),
            spent: Spent {
                cost_usd: self.session.known_cost(),
                tokens: self.session.usage.total(),
                known_usd: self.session.cost_usd,
                dearest_usd: self.dearest,
                carried: self.carried,
            },
            raised: self.raised.clone(),
            used_ms: self.used().as_millis() as u64,
            failure: self.failure.clone(),
            ending: self.ending.as_ref().map(|ending| ending.outcome),
            state: graph.state.clone(),
            last_seq: self.session.last_seq,
        }
    }

    /// The fold that a snapshot was made of, as far as it says; what was running counts as cut short. What the
    /// snapshot says of nodes and edges that the graph does not have is left out.
    pub(crate) fn restore(graph: &Graph, snapshot: &RunSnapshot) -> Self {
        let mut state = Self::new(graph);
        state.session.status = SessionStatus::Paused;
        state.phase_begun = snapshot.status != SessionStatus::Idle;
        state.session.last_seq = snapshot.last_seq;
        state.session.cost_usd = snapshot.spent.known_usd.max(snapshot.spent.cost_usd.unwrap_or_default());
        state.session.unpriced = snapshot.spent.cost_usd.is_none();
        state.dearest = snapshot.spent.dearest_usd;
        state.carried = snapshot.spent.carried;
        state.raised.clone_from(&snapshot.raised);
        state.used = Duration::from_millis(snapshot.used_ms);
        state.failure.clone_from(&snapshot.failure);
        state.ending = snapshot.ending.map(|outcome| Ending { outcome, error: snapshot.failure.clone() });
        state.session.usage.input_tokens = snapshot.spent.tokens;
        state.session.prompts.clone_from(&snapshot.pending_prompts);
        for (path, status) in &snapshot.node_status {
            let Some(ix) = graph.flow().find(path.node()) else { continue };
            let node = &mut state.nodes[ix];
            node.pass = path.pass();
            node.status = match status {
                NodeStatus::Running => NodeStatus::Paused,
                other => *other,
            };
            node.attempt = snapshot.attempts.get(path).copied().unwrap_or_default();
            node.error = snapshot.errors.get(path).cloned().map(Box::new);
            if let Some(known) = snapshot.agent_sessions.get(path) {
                let session_id = known.session_id.clone();
                node.conversation = Some(Conversation { session_id, turns: known.turns });
            }
            if let Some(saved) = snapshot.nodes.get(path) {
                node.load(saved);
            }
            if let Some(asked) =
                snapshot.pending_prompts.iter().find(|prompt| prompt.task.as_ref() == Some(path))
            {
                node.more().asked = Some(asked.clone());
            }
            state.outputs[ix] = snapshot.outputs.get(path).cloned().map(Arc::new);
        }
        for (at, edge) in graph.flow().edges.iter().enumerate() {
            let ix = EdgeIx(at as u32);
            let key = format!("{}->{}", graph.flow().node(edge.from).id, graph.flow().node(edge.to).id);
            let status = snapshot.edge_status.get(&key).copied().unwrap_or_default();
            state.edges[ix].status = status;
            state.edges[ix].pass = state.nodes[edge.from].pass;
            state.edges[ix].iterations = snapshot.loop_counters.get(&key).copied().unwrap_or_default();
            if edge.cycle.is_none() && status != EdgeStatus::Pending {
                let node = &mut state.nodes[edge.to];
                node.unresolved = node.unresolved.saturating_sub(1);
                node.fired += u32::from(status == EdgeStatus::Fired);
            }
        }
        state
    }
}

impl NodeState {
    fn saved(&self) -> NodeSnapshot {
        let more = self.more.clone().unwrap_or_default();
        NodeSnapshot {
            attempts: self.attempts,
            failures: self.failures,
            tainted: self.tainted,
            interrupted: self.interrupted,
            doubt: self.needs_confirmation,
            sent_back: self.sent_back,
            failed_passes: self.failed_passes,
            follows_work: self.follows_work,
            since: self.since,
            retry_at: self.retry_at,
            named: more.named,
            messages: more.undelivered().map(str::to_owned).collect(),
            resume: more.resume,
            asked: more.asked.filter(|_| more.reply.is_some()),
            reply: more.reply,
            cost_usd: more.cost_usd,
            unpriced: more.unpriced,
            tokens: more.tokens,
            carried: more.carried,
        }
    }

    fn load(&mut self, saved: &NodeSnapshot) {
        self.attempts = saved.attempts;
        self.failures = saved.failures;
        self.tainted = saved.tainted;
        self.interrupted = saved.interrupted;
        self.needs_confirmation = saved.doubt;
        self.sent_back = saved.sent_back;
        self.failed_passes = saved.failed_passes;
        self.follows_work = saved.follows_work;
        self.since = saved.since;
        self.retry_at = saved.retry_at;
        let more = self.more();
        more.named = saved.named;
        more.resume.clone_from(&saved.resume);
        more.taken.clone_from(&saved.messages);
        more.asked.clone_from(&saved.asked);
        more.reply.clone_from(&saved.reply);
        (more.cost_usd, more.cost_before) = (saved.cost_usd, saved.cost_usd);
        more.unpriced = saved.unpriced;
        more.tokens = saved.tokens;
        more.carried = saved.carried;
    }
}
