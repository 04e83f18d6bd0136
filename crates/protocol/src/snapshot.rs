//! What is saved of a run and of an agent session.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{
    AgentError, BudgetRaise, FrameSpending, Message, NodePath, Outcome, Prompt, ProviderSessionId, Reply,
    SessionId, Spending, ThinkingLevel, Timestamp, TurnId,
};

/// The state of a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub enum SessionStatus {
    /// Not started.
    #[default]
    Idle,
    /// At work.
    Running,
    /// Nothing can run until a person answers or a limit is lifted.
    Waiting,
    /// Paused; it can be resumed.
    Paused,
    /// Ended, its outcome says how well.
    Complete,
    /// Ended by a failure.
    Failed,
    /// Stopped for good.
    Aborted,
}

impl SessionStatus {
    /// The status of a session whose `harness:complete` has this outcome.
    pub const fn of_outcome(outcome: Outcome) -> Self {
        match outcome {
            Outcome::Success | Outcome::Partial => Self::Complete,
            Outcome::Stopped => Self::Aborted,
            Outcome::Failed | Outcome::BudgetExceeded | Outcome::TimedOut => Self::Failed,
            Outcome::Paused => Self::Paused,
            Outcome::Waiting => Self::Waiting,
        }
    }

    /// The word on the wire.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Running => "running",
            Self::Waiting => "waiting",
            Self::Paused => "paused",
            Self::Complete => "complete",
            Self::Failed => "failed",
            Self::Aborted => "aborted",
        }
    }

    /// Whether nothing more can come.
    pub const fn has_ended(self) -> bool {
        matches!(self, Self::Complete | Self::Failed | Self::Aborted)
    }
}

/// The state of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub enum NodeStatus {
    /// Not yet its turn.
    #[default]
    Pending,
    /// An attempt runs.
    Running,
    /// Finished.
    Complete,
    /// Failed, its attempts used up.
    Failed,
    /// Will not run.
    Skipped,
    /// Its output was taken from an earlier session.
    Reused,
    /// Cancelled while it ran.
    Cancelled,
    /// Interrupted by a pause; it will continue.
    Paused,
    /// Cut short by the end of its process; it will continue. The status as people see it, and in no snapshot.
    Interrupted,
    /// Waits for a person, a timer or a limit.
    Waiting,
}

/// The state of an edge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub enum EdgeStatus {
    /// Its source has not ended.
    #[default]
    Pending,
    /// It fired.
    Fired,
    /// It did not fire.
    Skipped,
}

/// An agent's conversation, to continue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AgentSessionRef {
    /// The provider's type.
    pub provider: String,
    /// The vendor's conversation.
    pub session_id: ProviderSessionId,
    /// The end of its last turn here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn_id: Option<TurnId>,
    /// How many turns it has had.
    #[serde(default)]
    pub turns: u32,
    /// Whether it was taken over from another session, and nothing has continued it in this one.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub taken_over: bool,
}

/// What a session has spent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionSpending {
    /// The known cost in US dollars; absent if no price was known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_usd: Option<f64>,
    /// Tokens of all kinds.
    pub tokens: u64,
    /// The cost of those turns whose price is known, in US dollars.
    #[serde(default)]
    pub known_usd: f64,
    /// Whether nothing is known of the tokens of some turn.
    #[serde(default, skip_serializing_if = "is_default")]
    pub uncounted: bool,
    /// The most that one attempt of an agent has cost.
    #[serde(default)]
    pub dearest_usd: f64,
    /// The most tokens of one attempt of an agent.
    #[serde(default)]
    pub most_tokens: u64,
    /// What an earlier session had spent that this one continues.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub carried: Option<Spending>,
}

/// One iteration of a node that opens frames.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FrameSnapshot {
    /// The node that opened it.
    pub owner: NodePath,
    /// Which iteration it is, counting from 0.
    pub index: u32,
    /// The item it works on.
    pub item: Option<Value>,
    /// The input of a subflow.
    pub input: Option<Value>,
    /// When it began.
    #[serde(default)]
    pub started_at: Timestamp,
    /// What it gives, if it ends by that.
    pub outputs: Option<Value>,
    /// How it ends, if it is to end before its time.
    pub ending: Option<Outcome>,
    /// The first failure in it that nothing handled.
    pub failure: Option<AgentError>,
    /// What its agents have spent.
    #[serde(default)]
    pub spent: Spending,
    /// The most attempts that a node in it had when the frame ran before, and has had in all.
    #[serde(default)]
    pub attempts: (u32, u32),
}

/// The frames of a node that have ended, and what is known of all of them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct FramesSnapshot {
    /// The items of a foreach.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub items: Option<Value>,
    /// What identifies each item.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub keys: Vec<String>,
    /// How many frames may be open at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_concurrency: Option<u32>,
    /// The frames that have ended, in the order of their indices.
    pub ended: Vec<EndedFrameSnapshot>,
    /// Whether the `until` of a loop holds.
    #[serde(skip_serializing_if = "is_default")]
    pub done: bool,
    /// The conversations of the nodes of the last pass of a loop, in the order of its body.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub agent_sessions: Vec<Option<AgentSessionRef>>,
}

/// How one frame ended: with outputs, with an error, or cancelled.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EndedFrameSnapshot {
    /// Which frame of the node, counting from 0.
    pub index: u32,
    /// What it gave.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outputs: Option<Value>,
    /// What went wrong.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<AgentError>,
    /// The most attempts that a node of it had.
    #[serde(default)]
    pub attempts: u32,
    /// Whether it is to run again.
    #[serde(default, skip_serializing_if = "is_default")]
    pub again: bool,
}

/// What it takes to continue a node, beside its status and its newest attempt; what is not set is left out.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct NodeSnapshot {
    /// Attempts over all passes.
    pub attempts: u32,
    /// Attempts of this pass that failed.
    #[serde(skip_serializing_if = "is_default")]
    pub failures: u32,
    /// Those of them that came after an agent's last request that was answered.
    #[serde(skip_serializing_if = "is_default")]
    pub failures_in_a_row: u32,
    /// Whether an unhandled failure is its own, or prevented it from running.
    #[serde(skip_serializing_if = "is_default")]
    pub tainted: bool,
    /// Whether it failed, and a node that handles this has begun.
    #[serde(skip_serializing_if = "is_default")]
    pub handled: bool,
    /// Whether an attempt was interrupted, and none has begun since.
    #[serde(skip_serializing_if = "is_default")]
    pub interrupted: bool,
    /// Whether that attempt may have had lasting effects, and a person has to decide what is done.
    #[serde(skip_serializing_if = "is_default")]
    pub doubt: bool,
    /// Whether the newest attempt was cancelled before any machine had begun it.
    #[serde(skip_serializing_if = "is_default")]
    pub never_began: bool,
    /// Whether the newest attempt cleans up, so that it goes on although its frame or the flow ends.
    #[serde(skip_serializing_if = "is_default")]
    pub cleans_up: bool,
    /// Whether a loop has sent the run back to it, so that it runs whatever its other edges say.
    #[serde(skip_serializing_if = "is_default")]
    pub sent_back: bool,
    /// Earlier passes that failed.
    #[serde(skip_serializing_if = "is_default")]
    pub failed_passes: u32,
    /// Whether one of its predecessors really ran in this session, in an earlier pass.
    #[serde(skip_serializing_if = "is_default")]
    pub follows_work: bool,
    /// When the first attempt began of those that interruptions alone part.
    pub since: Option<Timestamp>,
    /// When the next attempt is due.
    pub retry_at: Option<Timestamp>,
    /// Whether the agent of this attempt has named its conversation.
    #[serde(skip_serializing_if = "is_default")]
    pub named: bool,
    /// Whether a request was answered in that.
    #[serde(skip_serializing_if = "is_default")]
    pub worked: bool,
    /// The message to the agent when it continues.
    pub resume: Option<String>,
    /// Messages to the agent that no finished turn has answered.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub messages: Vec<String>,
    /// The tool calls that its agent was denied in the interrupted attempts that its next one continues.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub denied: Vec<Value>,
    /// The question that was answered, if its answer has not been used.
    pub asked: Option<Prompt>,
    /// The answer.
    pub reply: Option<Reply>,
    /// What all its attempts have cost, where known, in US dollars.
    #[serde(skip_serializing_if = "is_default")]
    pub cost_usd: f64,
    /// Whether some turn's price is unknown.
    #[serde(skip_serializing_if = "is_default")]
    pub unpriced: bool,
    /// Whether nothing is known of the tokens of some turn.
    #[serde(skip_serializing_if = "is_default")]
    pub uncounted: bool,
    /// Tokens of all its attempts.
    #[serde(skip_serializing_if = "is_default")]
    pub tokens: u64,
    /// What it had spent in an earlier session that this one continues.
    #[serde(skip_serializing_if = "is_default")]
    pub carried: Spending,
    /// The agents that have worked on it in this pass, in their order, if several may: the last is at work.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub agents: Vec<String>,
    /// Its frames, while it runs them.
    pub frames: Option<FramesSnapshot>,
    /// When the time of a node that runs frames is up.
    pub deadline: Option<Timestamp>,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// The state of a run, saved: the fold of its event log up to `last_seq`. Serialise it, load it elsewhere,
/// resume.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RunSnapshot {
    /// The version of this format.
    pub version: u16,
    /// The session.
    pub session_id: SessionId,
    /// The flow.
    pub flow_name: String,
    /// The hash of the flow that the run belongs to.
    pub flow_hash: String,
    /// The state of the session.
    pub status: SessionStatus,
    /// What the flow was given.
    pub input: Map<String, Value>,
    /// The newest output of each node.
    pub outputs: BTreeMap<NodePath, Value>,
    /// The state of each node.
    pub node_status: BTreeMap<NodePath, NodeStatus>,
    /// More of each node of which there is more to say.
    #[serde(default)]
    pub nodes: BTreeMap<NodePath, NodeSnapshot>,
    /// The newest attempt of each node that has one, in its present pass.
    pub attempts: BTreeMap<NodePath, u32>,
    /// What went wrong last, of each node that failed.
    pub errors: BTreeMap<NodePath, AgentError>,
    /// The state of each edge, by `from->to`.
    pub edge_status: BTreeMap<String, EdgeStatus>,
    /// How often each loop edge has fired, by `from->to`.
    pub loop_counters: BTreeMap<String, u32>,
    /// The frames that are open.
    pub frames: Vec<FrameSnapshot>,
    /// The conversation of each agent node.
    pub agent_sessions: BTreeMap<NodePath, AgentSessionRef>,
    /// The questions that are open.
    pub pending_prompts: Vec<Prompt>,
    /// What was spent.
    pub spent: SessionSpending,
    /// What was spent in frames that have ended and may run again, by what the paths of their nodes begin with: `scan[4]/`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub spent_in: BTreeMap<String, FrameSpending>,
    /// Where the agents whose work was taken over from another session were in that, and the nodes with all their frames; each
    /// with its place in this one.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub taken_over: BTreeMap<NodePath, NodePath>,
    /// Budgets that were raised since the session began.
    #[serde(default, skip_serializing_if = "BudgetRaise::is_empty")]
    pub raised: BudgetRaise,
    /// How long the session ran so far, without idle time, in milliseconds.
    #[serde(default)]
    pub used_ms: u64,
    /// The first failure that nothing handled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<AgentError>,
    /// How the session ends, if it is about to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ending: Option<Outcome>,
    /// The flow's own state, as its nodes set it.
    pub state: Map<String, Value>,
    /// The last event that the snapshot contains.
    pub last_seq: u64,
}

/// An agent session, exported: enough to continue it elsewhere. Immutable.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SessionState {
    /// The version of this format.
    pub version: u16,
    /// The text so far.
    pub messages: Vec<Message>,
    /// The provider's type.
    pub provider: String,
    /// The requested model, or the one that the vendor named; empty if it is not known.
    pub model: String,
    /// How much it thinks; absent where the vendor decides.
    pub thinking: Option<ThinkingLevel>,
    /// The system prompt.
    pub system_prompt: Option<String>,
    /// The vendor's conversation.
    pub provider_session_id: Option<ProviderSessionId>,
    /// Messages that no turn has delivered yet.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub queued: Vec<String>,
    /// When it was exported.
    pub exported_at: Timestamp,
}
