//! The facts of a run: a fold over its event log, and nothing else. Live, resumed, recovered, replayed and forked runs
//! all come here by [`Facts::apply`]. What may be decided next follows from the facts and is kept in the agenda.
//!
//! | Fact | From | To |
//! |---|---|---|
//! | `task:start` | pending, waiting | running |
//! | `task:complete` | running | complete |
//! | `task:failed`, will retry | running | pending, with a time to try again |
//! | `task:failed` | running | failed |
//! | `task:cancelled` | running | cancelled |
//! | `task:interrupted` | running | pending, interrupted |
//! | `task:skipped` | pending | skipped |
//! | `task:reused` | pending | reused |
//! | `limit:wait` | running | waiting, with a time to try again |
//! | `flow:paused` | cancelled, if it is named | paused |
//! | `flow:resumed` | running, paused, cancelled by a pause | pending, interrupted |
//! | `loop:iterate` | any, if in the body | pending, one pass further |
//! | `edge:fired` of an edge that an earlier pass had skipped | skipped | pending, one pass further |
//!
//! A fact that does not fit where the node stands is late or a duplicate and changes nothing. What concerns the session
//! as a whole is in [`SessionFacts`], which a store folds too.

mod agent;
mod budget;
mod node;
mod rest;
mod session;
mod snapshot;
mod transition;
mod view;

use std::{sync::Arc, time::Duration};

use inspan_protocol::{
    AgentError, BudgetRaise, EdgeStatus, Envelope, ErrorCode, Event, NodePath, NodeStatus, Outcome, Prompt,
    ProviderSessionId, SessionStatus, SkipReason, Spending, Timestamp,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub(crate) use node::OpenRun;
pub use node::{Conversation, EdgeState, NodeState};
pub use rest::CONTINUE;
pub(crate) use rest::{IT_IS_DONE, LET_IT_FAIL, RUN_AGAIN};
pub use session::{SessionFacts, Waits};
pub use snapshot::SnapshotError;
pub use transition::wait_before_retry;

use crate::{
    graph::{EdgeIx, Graph, NodeIx},
    ids::IndexVec,
};

/// The events that are facts of a run; all others change nothing here.
pub const FACTS: &[&str] = &[
    "harness:start",
    "harness:complete",
    "phase:start",
    "phase:complete",
    "phase:failed",
    "task:start",
    "task:complete",
    "task:failed",
    "task:cancelled",
    "task:interrupted",
    "task:skipped",
    "task:reused",
    "edge:fired",
    "edge:skipped",
    "loop:iterate",
    "agent:start",
    "agent:turn",
    "agent:steer",
    "agent:session",
    "agent:usage",
    "agent:complete",
    "session:message",
    "session:prompt",
    "session:reply",
    "session:pause",
    "session:abort",
    "flow:paused",
    "flow:resumed",
    "flow:waiting",
    "flow:ending",
    "limit:wait",
    "budget:spent",
    "budget:exceeded",
    "budget:carried",
];

/// The fold of a run's facts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Facts {
    pub(crate) session: SessionFacts,
    /// When a session that an earlier process began elsewhere was resumed in this log.
    pub(crate) continued_at: Option<Timestamp>,
    /// The time of the newest fact, and how long the session lay still between two processes.
    pub(crate) last_at: Timestamp,
    pub(crate) rested: Duration,
    /// The time that the session took before the snapshot that it began with.
    pub(crate) used: Duration,
    pub(crate) duration_ms: u64,
    pub(crate) phase_begun: bool,
    pub(crate) phase_ended: bool,
    /// How often something has come to an end: an attempt, or a turn of an agent.
    pub(crate) progress: u64,
    pub(crate) nodes: IndexVec<NodeIx, NodeState>,
    pub(crate) edges: IndexVec<EdgeIx, EdgeState>,
    #[serde(with = "optional")]
    pub(crate) outputs: IndexVec<NodeIx, Option<Arc<Value>>>,
    /// Whether some price was unknown already when the session was last resumed.
    pub(crate) unpriced_before: bool,
    /// The most that one attempt of an agent has cost.
    pub(crate) dearest: f64,
    /// What the newest `budget:spent` said of tokens, and whether `budget:exceeded` was emitted since the session was
    /// last resumed.
    pub(crate) told_tokens: u64,
    pub(crate) budget_told: bool,
    /// What an earlier session had spent that this one continues.
    pub(crate) carried: Option<Spending>,
    /// Budgets that were raised since the session began.
    pub(crate) raised: BudgetRaise,
    /// Set from the wish to pause until the session goes on.
    pub(crate) pausing: Option<Pause>,
    /// Why the run must end before its time: the first cause counts.
    pub(crate) ending: Option<Ending>,
    /// The event that is the cause of the ending, if it is an event.
    pub(crate) ended_by: Option<u64>,
    /// The first failure that nothing handled.
    pub(crate) failure: Option<AgentError>,
    /// Attempts that run, and how many of them take a place for work.
    pub(crate) running: u32,
    pub(crate) slots: u32,
    /// The nodes that the newest event may have changed.
    #[serde(skip)]
    pub(crate) touched: Vec<NodeIx>,
}

/// A wish to pause.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Pause {
    pub(crate) reason: Option<String>,
    /// The event that asked for it.
    pub(crate) seq: u64,
}

/// Why a run ends before its time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ending {
    /// How the session ends.
    pub outcome: Outcome,
    /// What went wrong, if something did.
    pub error: Option<AgentError>,
}

impl Facts {
    /// The state before the first fact.
    pub fn new(graph: &Graph) -> Self {
        let nodes = graph
            .flow()
            .nodes
            .iter()
            .map(|node| NodeState { pass: 1, unresolved: node.incoming.len() as u32, ..NodeState::default() })
            .collect();
        Self {
            session: SessionFacts::default(),
            continued_at: None,
            last_at: Timestamp::default(),
            rested: Duration::ZERO,
            used: Duration::ZERO,
            duration_ms: 0,
            phase_begun: false,
            phase_ended: false,
            progress: 0,
            nodes,
            edges: graph.flow().edges.iter().map(|_| EdgeState::default()).collect(),
            outputs: graph.flow().nodes.iter().map(|_| None).collect(),
            unpriced_before: false,
            dearest: 0.0,
            told_tokens: 0,
            budget_told: false,
            carried: None,
            raised: BudgetRaise::default(),
            pausing: None,
            ending: None,
            ended_by: None,
            failure: None,
            running: 0,
            slots: 0,
            touched: Vec::new(),
        }
    }

    /// Takes one event of the log. Total and idempotent: an event that was taken before, comes late or is
    /// no fact of this run changes nothing.
    pub fn apply(&mut self, graph: &Graph, envelope: &Envelope) {
        let Envelope { seq, timestamp, context, event, .. } = envelope;
        self.take(graph, *seq, *timestamp, context.task.as_ref(), event);
    }

    /// As `apply`, with only what counts of an envelope.
    pub(crate) fn take(
        &mut self,
        graph: &Graph,
        seq: u64,
        at: Timestamp,
        task: Option<&NodePath>,
        event: &Event,
    ) {
        if seq <= self.session.last_seq {
            return;
        }
        let answered = match event {
            Event::SessionReply { prompt_id, .. } => self.session.prompt(prompt_id).cloned(),
            _ => None,
        };
        self.session.take(seq, at, task, event);
        let was_ending = self.ending.is_some();
        self.touched.clear();
        match event {
            Event::HarnessStart { .. } | Event::FlowWaiting { .. } => {}
            Event::PhaseStart { .. } => self.phase_begun = true,
            Event::PhaseComplete { .. } => self.phase_ended = true,
            Event::PhaseFailed { error, .. } => self.fail_phase(error),
            Event::HarnessComplete { duration_ms, .. } => self.duration_ms = *duration_ms,
            Event::TaskStart { attempt, .. } => {
                if let Some(ix) = self.locate(graph, task, &[NodeStatus::Pending, NodeStatus::Waiting]) {
                    self.start(graph, ix, *attempt, at);
                }
            }
            Event::TaskComplete { result, duration_ms, .. } => {
                if let Some(ix) = self.locate(graph, task, &[NodeStatus::Running]) {
                    self.end(graph, ix, NodeStatus::Complete, Some(*duration_ms));
                    self.outputs[ix] = Some(result.clone());
                }
            }
            Event::TaskFailed { error, will_retry, .. } => {
                if let Some(ix) = self.locate(graph, task, &[NodeStatus::Running]) {
                    self.fail(graph, ix, error, *will_retry, at);
                }
            }
            Event::TaskCancelled { .. } => {
                if let Some(ix) = self.locate(graph, task, &[NodeStatus::Running]) {
                    self.end(graph, ix, NodeStatus::Cancelled, None);
                }
            }
            Event::TaskInterrupted { .. } => {
                if let Some(ix) = self.locate(graph, task, &[NodeStatus::Running]) {
                    self.lose(graph, ix);
                }
            }
            Event::LimitWait { until, .. } => {
                if let Some(ix) = self.locate(graph, task, &[NodeStatus::Running]) {
                    self.wait_for_limit(graph, ix, *until, at);
                }
            }
            Event::TaskSkipped { reason, .. } => {
                if let Some(ix) = self.locate(graph, task, &[NodeStatus::Pending]) {
                    self.skip_node(ix, *reason);
                }
            }
            Event::TaskReused { result, session_id, .. } => {
                if let Some(ix) = self.locate(graph, task, &[NodeStatus::Pending]) {
                    self.reuse(ix, result, session_id.as_ref());
                }
            }
            Event::EdgeFired { from, to } => {
                self.resolve(graph, from.as_str(), to.as_str(), EdgeStatus::Fired)
            }
            Event::EdgeSkipped { from, to } => {
                self.resolve(graph, from.as_str(), to.as_str(), EdgeStatus::Skipped);
            }
            Event::LoopIterate { from, to, iteration, nodes } => {
                self.iterate(graph, from.as_str(), to.as_str(), *iteration, nodes);
            }
            Event::AgentStart { run_id, agent_name, multi_turn, .. } => {
                self.begin_run(graph, task, run_id, agent_name, *multi_turn);
            }
            Event::AgentTurn { .. } => self.begin_turn(graph, task),
            Event::AgentSteer { content, strength, .. } => self.steer(graph, task, content, *strength),
            Event::AgentSession { session_id, .. } => self.name_conversation(graph, task, session_id),
            Event::AgentUsage { usage, cost_usd, .. } => self.end_turn(graph, task, *usage, *cost_usd),
            Event::AgentComplete { run_id, .. } => self.end_run(graph, task, run_id),
            Event::SessionMessage { content, run_id, .. } => self.message(run_id.as_ref(), content),
            Event::SessionPrompt(prompt) => {
                self.ask(graph, Prompt { task: task.cloned(), ..prompt.clone() });
            }
            Event::SessionReply { content, choice, .. } => {
                self.reply(graph, answered.as_ref(), content, choice.as_deref());
            }
            Event::SessionPause { reason } => {
                if self.session.status != SessionStatus::Paused {
                    self.pausing.get_or_insert_with(|| Pause { reason: reason.clone(), seq });
                }
            }
            Event::SessionAbort { reason } => {
                let error = reason.as_ref().map(|reason| {
                    AgentError::new(ErrorCode::Aborted, format!("the session was stopped: {reason}"))
                });
                self.end_early(Ending { outcome: Outcome::Stopped, error });
            }
            Event::FlowPaused { node_ids, .. } => self.pause(graph, node_ids),
            Event::FlowResumed { node_ids, message, messages, budget } => {
                self.raised.merge(budget);
                self.resume(graph, node_ids, message, messages, at);
            }
            Event::FlowEnding { outcome, error } => {
                self.end_early(Ending { outcome: *outcome, error: error.clone() });
            }
            Event::BudgetSpent { tokens, .. } => self.told_tokens = *tokens,
            Event::BudgetExceeded { .. } => match task.map(|path| graph.flow().find(path.node())) {
                None => self.budget_told = true,
                Some(Some(ix)) => self.nodes[ix].more().budget_told = true,
                Some(None) => {}
            },
            Event::BudgetCarried { spent, nodes, .. } => self.carry(graph, *spent, nodes),
            Event::AgentText { .. }
            | Event::AgentThinking { .. }
            | Event::AgentRetract { .. }
            | Event::AgentToolStart { .. }
            | Event::AgentToolComplete { .. }
            | Event::AgentWarning { .. }
            | Event::ExecOutput { .. }
            | Event::SessionClose { .. }
            | Event::SessionRejected { .. }
            | Event::ChannelRegistered { .. }
            | Event::ChannelStarted { .. }
            | Event::ChannelStopped { .. }
            | Event::ChannelUnregistered { .. }
            | Event::ChannelFailed { .. }
            | Event::Log { .. }
            | Event::Unknown(_) => return,
        }
        // The end of the phase repeats a cause and is none itself.
        if !was_ending && self.ending.is_some() && !matches!(event, Event::PhaseFailed { .. }) {
            self.ended_by = Some(seq);
        }
        self.last_at = at;
    }

    /// Between the end of the phase and that of the session nothing may begin, also after a crash.
    fn fail_phase(&mut self, error: &AgentError) {
        self.phase_ended = true;
        let outcome = self.outcome_of(error);
        self.end_early(Ending { outcome, error: Some(error.clone()) });
        self.failure.get_or_insert_with(|| error.clone());
    }

    fn skip_node(&mut self, ix: NodeIx, reason: SkipReason) {
        let node = &mut self.nodes[ix];
        node.status = NodeStatus::Skipped;
        node.skipped = Some(reason);
        node.tainted = reason == SkipReason::Failure;
        node.settles = self.session.last_seq;
        self.outputs[ix] = None;
        self.touched.push(ix);
    }

    fn reuse(&mut self, ix: NodeIx, result: &Arc<Value>, session_id: Option<&ProviderSessionId>) {
        let node = &mut self.nodes[ix];
        node.status = NodeStatus::Reused;
        node.needs_confirmation = false;
        node.settles = self.session.last_seq;
        if let Some(session_id) = session_id {
            node.conversation = Some(Conversation { session_id: session_id.clone(), turns: 0 });
        }
        self.outputs[ix] = Some(result.clone());
        self.touched.push(ix);
        self.forget_prompts(ix);
    }

    /// Ends the run before its time, unless it ends already.
    fn end_early(&mut self, ending: Ending) {
        self.ending.get_or_insert(ending);
    }

    /// The time that the session took so far, rests aside.
    fn used(&self) -> Duration {
        let here = self.started_at().map_or(Duration::ZERO, |started| self.last_at.since(started));
        self.used + here.saturating_sub(self.rested)
    }

    /// How a session ends whose phase failed with this, unless its cause is among the facts already.
    fn outcome_of(&self, error: &AgentError) -> Outcome {
        match error.code {
            _ if self.failure.as_ref() == Some(error) => Outcome::Partial,
            ErrorCode::BudgetExceeded => Outcome::BudgetExceeded,
            ErrorCode::Timeout => Outcome::TimedOut,
            ErrorCode::Aborted => Outcome::Stopped,
            _ => Outcome::Failed,
        }
    }

    /// Where a node's next attempt or pass stands in the run.
    pub fn path(&self, graph: &Graph, ix: NodeIx) -> NodePath {
        let root = NodePath::root(&graph.flow().node(ix).id);
        match self.nodes[ix].pass {
            0 | 1 => root,
            pass => root.with_pass(pass),
        }
    }

    pub(crate) fn find(&self, graph: &Graph, task: Option<&NodePath>) -> Option<NodeIx> {
        let (node, pass) = task?.node_and_pass();
        let ix = graph.flow().find(node)?;
        (self.nodes[ix].pass == pass).then_some(ix)
    }

    fn locate(&self, graph: &Graph, task: Option<&NodePath>, expected: &[NodeStatus]) -> Option<NodeIx> {
        let ix = self.find(graph, task)?;
        expected.contains(&self.nodes[ix].status).then_some(ix)
    }
}

/// An output may be `null`, which JSON cannot tell from an absent one: each is a list of at most one.
mod optional {
    use std::sync::Arc;

    use serde::{Deserialize, Deserializer, Serializer};
    use serde_json::Value;

    use crate::ids::{IndexVec, NodeIx};

    type Outputs = IndexVec<NodeIx, Option<Arc<Value>>>;

    pub(super) fn serialize<S: Serializer>(outputs: &Outputs, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(outputs.iter().map(Option::as_slice))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Outputs, D::Error> {
        let lists = Vec::<Vec<Arc<Value>>>::deserialize(deserializer)?;
        Ok(lists.into_iter().map(|list| list.into_iter().next()).collect())
    }
}
