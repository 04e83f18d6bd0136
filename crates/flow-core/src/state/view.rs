//! The read model: what may be shown of a run's state, and the reasons that are written onto events.

use std::collections::BTreeSet;

use inspan_protocol::{
    AgentError, CancelReason, EdgeStatus, NodeStatus, Outcome, PauseCause, Prompt, SessionStatus, Timestamp,
    Usage,
};

use serde_json::Value;

use super::{EdgeState, Facts, NodeState};
use crate::graph::{Graph, NodeIx};

impl Facts {
    /// Where the session stands.
    pub fn status(&self) -> SessionStatus {
        self.session.status
    }

    /// How it ended.
    pub fn outcome(&self) -> Option<Outcome> {
        self.session.outcome
    }

    /// When it began.
    pub fn started_at(&self) -> Option<Timestamp> {
        self.session.started_at.or(self.continued_at)
    }

    /// The time of its newest event.
    pub fn last_at(&self) -> Timestamp {
        self.last_at
    }

    /// The newest output of a node.
    pub fn output(&self, node: NodeIx) -> Option<&Value> {
        self.outputs[node].as_deref()
    }

    /// How long it took, in milliseconds, once it has ended.
    pub fn duration_ms(&self) -> u64 {
        self.duration_ms
    }

    /// Where each node stands, in the order of the graph.
    pub fn nodes(&self) -> &[NodeState] {
        &self.nodes
    }

    /// Where each edge stands, in the order of the graph.
    pub fn edges(&self) -> &[EdgeState] {
        &self.edges
    }

    /// The questions that are open.
    pub fn prompts(&self) -> &[Prompt] {
        &self.session.prompts
    }

    /// The question that a node waits for.
    pub fn asked_by(&self, graph: &Graph, node: NodeIx) -> Option<&Prompt> {
        self.session.prompts.iter().find(|open| self.find(graph, open.task.as_ref()) == Some(node))
    }

    /// The first failure that nothing handled.
    pub fn failure(&self) -> Option<&AgentError> {
        self.failure.as_ref()
    }

    /// The budgets that are used up, each with its size and what was spent: the flow's under no node.
    pub fn used_up_budgets(&self, graph: &Graph) -> Vec<(Option<NodeIx>, String)> {
        let flow = self.exceeded(graph).map(|limit| (None, limit));
        let nodes = (0..graph.flow().nodes.len()).map(|at| NodeIx(at as u32));
        let nodes = nodes.filter_map(|ix| Some((Some(ix), self.node_exceeded(graph, ix)?)));
        flow.into_iter().chain(nodes).collect()
    }

    /// Why the session is paused, unless a person or a program paused it.
    pub fn paused_by(&self) -> Option<PauseCause> {
        self.session.paused_by
    }

    /// Why running attempts are being cancelled, and the event that is the cause, if it is an event.
    pub(crate) fn why_cancelled(&self) -> (CancelReason, Option<u64>) {
        match (&self.ending, &self.pausing) {
            (Some(ending), _) => {
                let reason = match ending.outcome {
                    Outcome::Stopped => CancelReason::Stop,
                    Outcome::BudgetExceeded => CancelReason::Budget,
                    Outcome::TimedOut => CancelReason::Timeout,
                    _ => CancelReason::Failure,
                };
                (reason, self.ended_by)
            }
            (None, Some(pause)) => (CancelReason::Pause, Some(pause.seq)),
            (None, None) => (CancelReason::Budget, None),
        }
    }

    /// The events of the unhandled failures that keep a node from running, oldest first.
    pub(crate) fn failures_before(&self, graph: &Graph, ix: NodeIx) -> Vec<u64> {
        let (mut seen, mut next) = (BTreeSet::from([ix]), vec![ix]);
        let mut found = BTreeSet::new();
        while let Some(ix) = next.pop() {
            for &edge in &graph.flow().node(ix).incoming {
                let from = graph.flow().edge(edge).from;
                let source = &self.nodes[from];
                let is_skipped = self.edges[edge].status == EdgeStatus::Skipped;
                if !is_skipped || !source.tainted || !seen.insert(from) {
                    continue;
                }
                match source.status {
                    NodeStatus::Failed => drop(found.insert(source.failed_seq)),
                    _ => next.push(from),
                }
            }
        }
        found.into_iter().filter(|seq| *seq > 0).collect()
    }

    /// Tokens of all agents.
    pub fn usage(&self) -> Usage {
        self.session.usage
    }

    /// What they cost in US dollars; nothing if any price is unknown.
    pub fn cost_usd(&self) -> Option<f64> {
        self.session.known_cost()
    }
}

impl NodeState {
    /// Attempts of this pass that failed.
    pub fn failures(&self) -> u32 {
        self.failures
    }

    /// Whether an attempt was cut short by a pause, a limit or a crash, and none has begun since.
    pub fn is_interrupted(&self) -> bool {
        self.interrupted
    }

    /// Whether a person has to say what became of an attempt that was cut short.
    pub fn is_in_doubt(&self) -> bool {
        self.needs_confirmation
    }
}
