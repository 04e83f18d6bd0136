//! The state of one node and of one edge.

use inspan_protocol::{
    AgentError, EdgeStatus, MultiTurn, NodeStatus, Prompt, ProviderSessionId, Reply, RunId, SkipReason,
    Spending, Timestamp, TurnId,
};
use serde::{Deserialize, Serialize, Serializer, ser::SerializeMap};
use serde_json::Value;

use super::{frame::FrameSet, idle::CONTINUE};
use crate::{graph::Join, node::NodeKind};

/// The status of one node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeState {
    /// Its status.
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
    pub error: Option<Box<AgentError>>,
    /// The event of the newest failure, 0 if there is none.
    pub(crate) failed_seq: u64,
    /// Why it was skipped in this pass.
    pub skipped: Option<SkipReason>,
    /// The conversation of its newest agent run.
    pub conversation: Option<Conversation>,
    /// Attempts of this pass that failed: these alone count against its retries.
    pub(crate) failures: u32,
    /// Those of them that came after an agent's last request that was answered.
    #[serde(default)]
    pub(crate) failures_in_a_row: u32,
    /// Whether it did not run because of a failure, or failed without anything handling it.
    pub(crate) tainted: bool,
    /// Whether it failed, and a node that handles this has begun.
    #[serde(default)]
    pub(crate) handled: bool,
    /// Whether an attempt was interrupted by a pause, a limit or a crash, and none has begun since.
    pub(crate) interrupted: bool,
    /// Whether an interrupted attempt may have had an external effect, and a person has to decide what is
    /// done.
    pub(crate) needs_confirmation: bool,
    /// Whether the newest attempt was cancelled before any machine had begun it.
    #[serde(default)]
    pub(crate) never_began: bool,
    /// Earlier passes that failed, in whatever way that was handled.
    pub failed_passes: u32,
    /// Whether one of its predecessors was really run in this session: in an earlier pass, or before it was skipped or began
    /// to run frames.
    pub(crate) follows_work: bool,
    /// Whether something in its frames was really run in this session.
    pub(crate) worked: bool,
    /// Whether its attempt is left to end although its frame ends early: it follows by an edge that fires in any case.
    pub(crate) cleans_up: bool,
    /// Whether a loop edge into it fired last, and no edge of this pass decides whether it runs.
    pub(crate) sent_back: bool,
    /// The event since which its edges can be resolved, once it has ended: those of the earliest are resolved first.
    pub(crate) settles: u64,
    pub(crate) unresolved: u32,
    pub(crate) fired: u32,
    /// How often in a row the process died while an attempt was at work, and nothing came to an end in between; and
    /// the session's progress at that time.
    pub(crate) deaths: u32,
    pub(crate) deaths_at: u64,
    /// When the first attempt began of those that interruptions alone part.
    pub(crate) since: Option<Timestamp>,
    pub(crate) more: Option<Box<NodeExtras>>,
    /// The frames that it runs.
    pub(crate) frames: Option<Box<FrameSet>>,
    /// The agent that works on it in this pass, if it was chosen among several.
    pub(crate) choice: Option<Box<AgentChoice>>,
}

/// The agent that works on a node. Agents are places in the list of those of the node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct AgentChoice {
    pub(crate) agent: u32,
    /// The agents before it.
    pub(crate) tried: Vec<u32>,
    /// The entry of `fallback` that is next.
    pub(crate) next: u32,
}

/// What only some nodes have: agents, questions, the interrupted.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct NodeExtras {
    /// The agent run that is open.
    pub(crate) run: Option<OpenRun>,
    /// Whether the agent of this attempt, interruptions aside, has named its conversation.
    pub(crate) named: bool,
    /// The agent whose conversation the node's is.
    #[serde(default)]
    pub(crate) speaker: u32,
    /// Messages that no turn has taken yet.
    pub(crate) waiting: Vec<String>,
    /// Messages in a turn that has not ended.
    pub(crate) taken: Vec<String>,
    /// The tool calls that the agent was denied in interrupted attempts, since one has ended.
    #[serde(default)]
    pub(crate) denied: Vec<Value>,
    /// The question that the attempt asks, and the answer once there is one.
    pub(crate) asked: Option<Prompt>,
    /// Whether the running attempt has asked it, and not an interrupted one.
    pub(crate) asks: bool,
    pub(crate) reply: Option<Reply>,
    /// The message to an interrupted agent.
    pub(crate) resume: Option<String>,
    /// Whether a request was answered in the conversation of the running attempt, by this attempt or one that it continues.
    #[serde(default)]
    pub(crate) worked: bool,
    /// What all its attempts have cost, with all fields: earlier versions of the program need them.
    #[serde(flatten, serialize_with = "all_fields")]
    pub(crate) spent: Spending,
    /// Whether some turn's price was unknown when the session was last resumed, and some turn's tokens.
    pub(crate) unpriced_before: bool,
    #[serde(default)]
    pub(crate) uncounted_before: bool,
    /// The cost of the node when its newest attempt began.
    pub(crate) cost_before: f64,
    /// The same in tokens.
    #[serde(default)]
    pub(crate) tokens_before: u64,
    /// What it had spent in an earlier session that this one continues.
    pub(crate) carried: Spending,
    /// Whether `budget:exceeded` was emitted for it since the session was last resumed.
    #[serde(rename = "budgetTold")]
    pub(crate) budget_reported: bool,
}

fn all_fields<S: Serializer>(spent: &Spending, serializer: S) -> Result<S::Ok, S::Error> {
    let Spending { cost_usd, tokens, unpriced, uncounted } = *spent;
    let mut map = serializer.serialize_map(Some(4))?;
    map.serialize_entry("costUsd", &cost_usd)?;
    map.serialize_entry("tokens", &tokens)?;
    map.serialize_entry("unpriced", &unpriced)?;
    map.serialize_entry("uncounted", &uncounted)?;
    map.end()
}

/// An agent run that has begun and not ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct OpenRun {
    pub(crate) run_id: RunId,
    pub(crate) agent_name: String,
    /// Whether a turn has ended and no other has begun.
    pub(crate) between_turns: bool,
    /// Whether it waits for messages after a turn.
    pub(crate) multi_turn: MultiTurn,
}

impl NodeState {
    pub(crate) fn more(&mut self) -> &mut NodeExtras {
        self.more.get_or_insert_default()
    }

    /// An agent whose vendor, network or program failed after requests that were answered goes on in its conversation when it
    /// is tried again: from the start it would do its work, and pay for it, a second time.
    pub(crate) fn go_on_after(&mut self, error: &AgentError) {
        if error.leaves_conversation() && self.has_named() && self.has_worked() {
            self.interrupted = true;
            self.more().resume = Some(CONTINUE.to_owned());
        }
    }

    /// Whether a request of its agent was answered in the newest attempt.
    pub(crate) fn has_worked(&self) -> bool {
        self.more.as_ref().is_some_and(|more| more.worked)
    }

    /// Whether the agent of the newest attempt has named its conversation, and can go on in it.
    pub(crate) fn has_named(&self) -> bool {
        self.conversation.is_some() && self.more.as_ref().is_some_and(|more| more.named)
    }

    /// When the running attempt's time is up, unless it does not pass now: its frames wait for usage limits alone.
    pub(crate) fn time_is_up_at(&self) -> Option<Timestamp> {
        let is_limited = self.frames.as_ref().is_some_and(|set| set.limited_since.is_some());
        self.deadline.filter(|_| !is_limited)
    }

    /// The tool calls that its agent was denied in the interrupted attempts that the running one continues.
    pub(crate) fn denied(&self) -> &[Value] {
        self.more.as_ref().map_or(&[], |more| &more.denied)
    }

    pub(crate) fn run(&self) -> Option<&OpenRun> {
        self.more.as_ref()?.run.as_ref()
    }

    /// Whether a failure keeps what depends on its success from running. A merge of any that has done its work holds
    /// nothing up, whatever failed before it.
    pub(crate) fn taints(&self) -> bool {
        self.tainted && !matches!(self.status, NodeStatus::Complete | NodeStatus::Reused)
    }

    /// Whether it waits for its first attempt in this pass.
    pub(crate) fn has_not_begun(&self) -> bool {
        self.status == NodeStatus::Pending && self.attempt == 0
    }

    /// Whether it has run in this pass, or its end was taken from another session.
    pub(crate) fn has_begun(&self) -> bool {
        self.status != NodeStatus::Skipped && !self.has_not_begun()
    }

    /// Whether it has ended in this pass.
    pub(crate) fn has_ended(&self) -> bool {
        use NodeStatus::{Complete, Failed, Reused, Skipped};
        matches!(self.status, Complete | Failed | Reused | Skipped)
    }

    /// The process died while an attempt was at work.
    pub(crate) fn note_death(&mut self, progress: u64) {
        self.deaths = self.deaths_in_a_row(progress) + 1;
        self.deaths_at = progress;
    }

    /// How often in a row the process died while an attempt was at work.
    pub(crate) fn deaths_in_a_row(&self, progress: u64) -> u32 {
        if self.deaths_at == progress { self.deaths } else { 0 }
    }

    /// Whether an agent of it is in the middle of a turn.
    pub(crate) fn spends(&self) -> bool {
        self.run().is_some_and(|run| !run.between_turns)
    }
}

/// An agent's conversation, as far as it has gone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Conversation {
    /// The vendor's id.
    pub session_id: ProviderSessionId,
    /// The end of its last turn, as far as this node knows it: a branch begins there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn_id: Option<TurnId>,
    /// How many turns it has had.
    pub turns: u32,
    /// Whether it was taken over from another session, and nothing has continued it in this one.
    #[serde(default)]
    pub taken_over: bool,
}

impl NodeState {
    /// Whether the edges into it let it start.
    pub(crate) fn has_its_edges(&self, join: Join) -> bool {
        self.unresolved == 0 || (join == Join::Any && self.fired > 0)
    }

    /// Whether its end was taken from another session; a failure without an attempt is one of that.
    pub(crate) fn is_reused(&self) -> bool {
        self.status == NodeStatus::Reused || (self.status == NodeStatus::Failed && self.attempt == 0)
    }

    /// Whether it was really run in this session, or would perhaps have run if others had not.
    pub(crate) fn is_work(&self, kind: NodeKind) -> bool {
        match self.status {
            NodeStatus::Skipped => self.follows_work,
            // It had not begun when its frame ended, and something cleans up after it.
            NodeStatus::Pending => false,
            // One that runs frames begins also where all in them is reused: it counts if something ran there, or before it.
            _ if kind == NodeKind::Frames => !self.is_reused() && (self.worked || self.follows_work),
            _ => !self.is_reused(),
        }
    }
}

impl Conversation {
    /// One that has just begun.
    pub fn new(session_id: ProviderSessionId) -> Self {
        Self { session_id, turn_id: None, turns: 0, taken_over: false }
    }

    /// The vendor names the conversation that an agent is in: its own goes on, or that of another node with the turns that it
    /// had there, or a new one begins.
    pub fn name(own: &mut Option<Self>, session_id: &ProviderSessionId, of_another: Option<Self>) {
        let known =
            [own.take(), of_another].into_iter().flatten().find(|known| known.session_id == *session_id);
        let known = known.unwrap_or_else(|| Self::new(session_id.clone()));
        *own = Some(Self { taken_over: false, ..known });
    }

    /// A turn ends.
    pub fn end_turn(&mut self, turn_id: Option<&TurnId>) {
        self.turns += 1;
        self.turn_id = turn_id.cloned();
    }
}

/// The status of one edge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EdgeState {
    /// Its status in this pass.
    pub status: EdgeStatus,
    /// How often it has fired, if it closes a cycle.
    pub iterations: u32,
    /// The pass of its source that it was resolved in.
    pub(crate) pass: u32,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn earlier_versions_read_what_is_carried() {
        let nothing = json!({ "costUsd": 0.0, "tokens": 0 });
        let expected = json!({
            "run": null, "named": false, "speaker": 0, "waiting": [], "taken": [], "denied": [], "asked": null, "asks": false,
            "reply": null, "resume": null, "worked": false, "costUsd": 0.0, "tokens": 0, "unpriced": false,
            "uncounted": false, "unpricedBefore": false, "uncountedBefore": false, "costBefore": 0.0,
            "tokensBefore": 0, "carried": nothing, "budgetTold": false,
        });
        assert_eq!(serde_json::to_value(NodeExtras::default()).unwrap(), expected);
    }
}
