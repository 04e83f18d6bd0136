//! Every event, one variant per wire name. Unknown names are preserved exactly; broken known ones are refused.

use std::{collections::BTreeMap, sync::Arc};

use serde_json::{Map, Value};

#[macro_use]
mod read;
mod words;

pub use read::UnknownEvent;
pub use words::*;

use crate::{
    AgentError, BudgetRaise, CommandKind, ContextUse, FrameSpending, MultiTurn, NodeId, NodePath, Prompt,
    PromptId, ProviderSessionId, RunId, SessionId, Spending, StopReason, Timestamp, TurnId, TurnSpending,
    Usage,
};

events! {
    /// A session began.
    "harness:start" HarnessStart {
        /// The flow.
        name: String,
    }
    /// A session ended. Only what needs no live session follows: `channel:*` and refused commands.
    "harness:complete" HarnessComplete {
        /// Whether the outcome is `success`.
        success: bool,
        /// How it ended.
        outcome: Outcome,
        /// How long it ran, in milliseconds, pauses included.
        duration_ms: u64,
        /// What the flow gives, if it declares `outputs` or ended at a `control.end` with outputs.
        outputs: Option<Arc<Value>>,
    }
    /// A phase of the flow began.
    "phase:start" PhaseStart {
        /// The phase, `Run Flow` unless the flow names its own.
        name: String,
        /// Its number, counting from 1.
        phase_number: Option<u32>,
    }
    /// A phase ended well.
    "phase:complete" PhaseComplete {
        /// The phase.
        name: String,
    }
    /// A phase ended with an unhandled failure, or was stopped.
    "phase:failed" PhaseFailed {
        /// The phase.
        name: String,
        /// What went wrong.
        error: AgentError,
    }
    /// An attempt of a node began. Written down before anything of the attempt takes effect.
    "task:start" TaskStart {
        /// The node.
        task_id: NodeId,
        /// Its type.
        node_type: Arc<str>,
        /// Which try this is, counting from 1.
        attempt: u32,
        /// The node's place in the run, the same as the context's `task`.
        path: NodePath,
        /// Whether the attempt is left to end although its frame or the flow ends early: an edge that fires in any case led to it.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        cleans_up: bool,
        /// When its wait began, if that was in the session that this one continues: its time counts from there.
        since: Option<Timestamp>,
        /// The conversation of the session before in which its agent goes on: its first turn has what no turn has answered.
        session_id: Option<ProviderSessionId>,
        /// Messages that its agent takes over from the session before: they were accepted, and no finished turn has answered them.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        messages: Vec<String>,
    }
    /// A node finished.
    "task:complete" TaskComplete {
        /// The node.
        task_id: NodeId,
        /// Its output.
        result: Arc<Value>,
        /// How long the attempt took, in milliseconds.
        duration_ms: u64,
    }
    /// An attempt of a node failed.
    "task:failed" TaskFailed {
        /// The node.
        task_id: NodeId,
        /// What went wrong.
        error: AgentError,
        /// Whether another attempt follows.
        will_retry: bool,
    }
    /// A node will not run in this pass.
    "task:skipped" TaskSkipped {
        /// The node.
        task_id: NodeId,
        /// Why.
        reason: SkipReason,
        /// The failures that it depends on, as the `seq` of their events; logs of older versions do not name them.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        failures: Vec<u64>,
    }
    /// A node did not run: its output was taken from another session, or a person said that it is done.
    "task:reused" TaskReused {
        /// The node.
        task_id: NodeId,
        /// The session and path it was taken from.
        from: String,
        /// The agent's conversation, if it can be resumed.
        session_id: Option<ProviderSessionId>,
        /// The end of the agent's last turn in it.
        turn_id: Option<TurnId>,
        /// The output; null for a failure.
        result: Arc<Value>,
        /// The failure, if what was taken is one that the flow had handled.
        error: Option<AgentError>,
    }
    /// An agent was chosen for a node: by an expression, or because of how the agent before it ended.
    "task:agent" TaskAgent {
        /// The node.
        task_id: NodeId,
        /// The name of the agent that works next.
        agent: String,
        /// Why it was chosen.
        reason: AgentReason,
        /// The agent before it, whose last attempt has ended.
        after: Option<String>,
        /// The output of the agent before it, if it had one.
        result: Option<Arc<Value>>,
        /// The failure of the agent before it, if it failed.
        error: Option<AgentError>,
    }
    /// The process of a running attempt is gone, and the attempt with it: it is started again, an agent in its conversation.
    "task:interrupted" TaskInterrupted {
        /// The node.
        task_id: NodeId,
        /// The attempt whose process is gone; it is not counted as a failure.
        attempt: u32,
        /// Whether no machine had begun it, so that it can have had no effect.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        never_began: bool,
        /// Whether its process was stopped on purpose, or cut off from the others, and says so: the attempt did not bring it down.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        stopped: bool,
    }
    /// A running attempt was cancelled on purpose: by a failure elsewhere, a stop or a pause.
    "task:cancelled" TaskCancelled {
        /// The node.
        task_id: NodeId,
        /// The agent's conversation, if it can be resumed.
        session_id: Option<ProviderSessionId>,
        /// Why; logs of older versions do not say.
        reason: Option<CancelReason>,
        /// The `seq` of the event that is the reason, if it is an event: a failure, a stop or a request to pause.
        cause: Option<u64>,
        /// Whether no machine had begun it, so that it can have had no effect.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        never_began: bool,
        /// The tool calls that its agent was denied in it.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        permission_denials: Vec<Value>,
    }
    /// The items of a foreach are known: there is one frame for each.
    "frame:items" FrameItems {
        /// The node.
        task_id: NodeId,
        /// The list of items.
        items: Arc<Value>,
        /// What identifies each item, if the node has a `key`.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        keys: Vec<String>,
        /// How many frames may be open at once.
        max_concurrency: Option<u32>,
    }
    /// A frame of a node began: one item of a foreach, one pass of a loop, or the run of a subflow.
    "frame:start" FrameStart {
        /// The node.
        task_id: NodeId,
        /// Which frame of the node, counting from 0.
        index: u32,
        /// The input of a subflow.
        input: Option<Arc<Value>>,
        /// What it counts against its budgets from the start: the session that this one continues has spent it.
        carried: Option<Box<FrameSpending>>,
    }
    /// A frame is to end before its time: what runs in it is cancelled, and nothing more begins in it.
    "frame:ending" FrameEnding {
        /// The node.
        task_id: NodeId,
        /// Which frame of the node.
        index: u32,
        /// Why.
        error: AgentError,
    }
    /// A frame ended well.
    "frame:complete" FrameComplete {
        /// The node.
        task_id: NodeId,
        /// Which frame of the node.
        index: u32,
        /// What it gives.
        outputs: Arc<Value>,
        /// How long it took, in milliseconds.
        duration_ms: u64,
        /// Whether the `until` of a loop holds after this pass.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        ends_loop: bool,
    }
    /// A frame ended with a failure that nothing in it handled.
    "frame:failed" FrameFailed {
        /// The node.
        task_id: NodeId,
        /// Which frame of the node.
        index: u32,
        /// What went wrong.
        error: AgentError,
    }
    /// A frame was cancelled: its node ended before it, or the session was stopped.
    "frame:cancelled" FrameCancelled {
        /// The node.
        task_id: NodeId,
        /// Which frame of the node.
        index: u32,
    }
    /// An edge fired.
    "edge:fired" EdgeFired {
        /// The node it leaves.
        from: NodeId,
        /// The node it enters.
        to: NodeId,
    }
    /// An edge did not fire.
    "edge:skipped" EdgeSkipped {
        /// The node it leaves.
        from: NodeId,
        /// The node it enters.
        to: NodeId,
    }
    /// A loop edge fired: the nodes of the loop's body are pending again, one pass further.
    "loop:iterate" LoopIterate {
        /// The node the edge leaves.
        from: NodeId,
        /// The node the edge enters.
        to: NodeId,
        /// How often the edge has fired, this time included.
        iteration: u32,
        /// The nodes that are pending again; logs of older versions do not name them.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        nodes: Vec<NodeId>,
    }
    /// An agent run began.
    "agent:start" AgentStart {
        /// The agent.
        agent_name: String,
        /// The run.
        run_id: RunId,
        /// The provider's type.
        provider: String,
        /// The requested model.
        model: Option<String>,
        /// The turn the run begins with, 1 unless it continues an earlier conversation.
        turn: u32,
        /// Whether it waits for messages after a turn, and so is among those that a message to all is for.
        #[serde(default, skip_serializing_if = "MultiTurn::is_off")]
        multi_turn: MultiTurn,
        /// Whether it begins by waiting for messages, with the answer of the run that it replaces: its first turn begins with `agent:turn`.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        listens: bool,
    }
    /// A run that waits for messages has answered. Interrupted now, it waits again when the session is resumed.
    "agent:listen" AgentListen {
        /// The run.
        run_id: RunId,
        /// What it gives if no message comes. An answer of more than 256 KiB is not written down, nor this event.
        output: Value,
    }
    /// A run's next turn began. The first turn begins with `agent:start`.
    "agent:turn" AgentTurn {
        /// The run.
        run_id: RunId,
        /// The turn, counting on from the one that `agent:start` names.
        turn: u32,
        /// How many of the messages that wait for the run are in it, from the oldest on. Absent in older logs: all of them.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        messages: Option<u32>,
    }
    /// A message that steers reached the run's turn in progress.
    "agent:steer" AgentSteer {
        /// The run.
        run_id: RunId,
        /// The message.
        content: String,
        /// What it does to the turn.
        strength: SteerStrength,
    }
    /// The vendor named its conversation. Written down at once, so that a crash can be resumed.
    "agent:session" AgentSession {
        /// The run.
        run_id: RunId,
        /// The vendor's conversation.
        session_id: ProviderSessionId,
    }
    /// Text of an agent's answer.
    "agent:text" AgentText {
        /// The text.
        content: String,
        /// Whether it continues what came before; else it is complete in itself.
        delta: bool,
        /// The run.
        run_id: RunId,
    }
    /// Text of an agent's thinking.
    "agent:thinking" AgentThinking {
        /// The text.
        content: String,
        /// Whether it continues what came before; else it is complete in itself.
        delta: bool,
        /// The run.
        run_id: RunId,
    }
    /// The text and thinking since the last tool event, whole text or retraction are void: the vendor's stream began again.
    "agent:retract" AgentRetract {
        /// The run.
        run_id: RunId,
    }
    /// An agent called a tool.
    "agent:tool:start" AgentToolStart {
        /// The tool.
        tool_name: String,
        /// The vendor's id of the call, which the completion repeats.
        tool_use_id: String,
        /// The arguments.
        input: Value,
        /// The run.
        run_id: RunId,
    }
    /// A tool answered.
    "agent:tool:complete" AgentToolComplete {
        /// The tool.
        tool_name: String,
        /// The vendor's id of the call.
        tool_use_id: String,
        /// The answer.
        result: Value,
        /// Whether the tool failed.
        is_error: bool,
        /// The run.
        run_id: RunId,
    }
    /// What a turn that goes on has taken since the last such event of it. `agent:usage` at its end counts this again.
    "agent:spent" AgentSpent {
        /// Tokens.
        usage: Usage,
        /// Cost in US dollars; absent means that it is not known before the turn ends.
        #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "crate::agent::read_cost")]
        cost_usd: Option<f64>,
        /// The run.
        run_id: RunId,
    }
    /// Tokens and cost of one turn, at its end.
    "agent:usage" AgentUsage {
        /// Tokens of the turn.
        usage: Usage,
        /// Cost of the turn in US dollars; absent means unknown.
        #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "crate::agent::read_cost")]
        cost_usd: Option<f64>,
        /// How much of its context the conversation fills after the turn; absent means unknown.
        context: Option<ContextUse>,
        /// The end of the turn in the conversation; absent where the vendor names none, and if it did not end well.
        turn_id: Option<TurnId>,
        /// The part of it that `agent:spent` has reported; absent means none.
        reported: Option<TurnSpending>,
        /// Whether a request of the turn was cut short while it was answered, so that its tokens are more than `usage`.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        uncounted: bool,
        /// The run.
        run_id: RunId,
    }
    /// Something was tolerated that the user should see.
    "agent:warning" AgentWarning {
        /// A short fixed word.
        code: String,
        /// What happened.
        message: String,
        /// The run.
        run_id: RunId,
    }
    /// An agent run ended, exactly once per `agent:start`.
    "agent:complete" AgentComplete {
        /// The agent.
        agent_name: String,
        /// Whether it ended without an error.
        success: bool,
        /// The run.
        run_id: RunId,
        /// Why it ended.
        stop_reason: StopReason,
        /// Tokens of all its turns.
        usage: Usage,
        /// How long it ran, in milliseconds.
        duration_ms: u64,
        /// Whether a prompt was sent and nothing is known of what the vendor took for it.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        unpriced: bool,
    }
    /// A program that a node runs printed something: what came of one stream within a short time, in the order it came.
    "exec:output" ExecOutput {
        /// Which of its two streams.
        stream: OutputStream,
        /// What it printed, without secrets.
        text: String,
        /// Whether the output is too long to be reported in full: no more of either stream follows in this attempt.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        truncated: bool,
    }
    /// A message for one run, one agent, or every run that listens.
    "session:message" SessionMessage {
        /// The message.
        content: String,
        /// The run it is for.
        run_id: Option<RunId>,
        /// The agent it is for.
        agent_name: Option<String>,
        /// When it is delivered; `followUp` if absent.
        mode: Option<MessageMode>,
        /// How many runs, nodes and other listeners received it, for a message to all of them.
        receivers: Option<u32>,
    }
    /// A question to a person.
    "session:prompt" SessionPrompt(Prompt)
    /// The answer to a question.
    "session:reply" SessionReply {
        /// The question.
        prompt_id: PromptId,
        /// The answer.
        content: String,
        /// Which of the choices it is.
        choice: Option<String>,
        /// Whether nobody answered, and it is the default of the question. Older logs do not say so.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        is_default: bool,
    }
    /// A run takes no more messages and ends after its turn.
    "session:close" SessionClose {
        /// The run.
        run_id: RunId,
    }
    /// The session is to stop, for good.
    "session:abort" SessionAbort {
        /// Why.
        reason: Option<String>,
    }
    /// The session is to pause: what runs is cancelled, and `flow:paused` follows.
    "session:pause" SessionPause {
        /// Why.
        reason: Option<String>,
        /// What pauses it, unless a person or a program does.
        cause: Option<PauseCause>,
    }
    /// A command was refused; nothing of it took effect.
    "session:rejected" SessionRejected {
        /// The command.
        command: CommandKind,
        /// Why it was refused.
        reason: String,
    }
    /// The session is paused; a later process may resume it.
    "flow:paused" FlowPaused {
        /// The nodes that were running.
        node_ids: Vec<NodePath>,
        /// Why, in words.
        reason: Option<String>,
        /// What paused it, unless a person or a program did.
        cause: Option<PauseCause>,
        /// The limits to raise, if a budget paused it, as in `budget:exceeded`.
        budget: Option<String>,
    }
    /// The session is resumed, after a pause, a wait or a crash. Everything that was open before is closed.
    "flow:resumed" FlowResumed {
        /// The nodes that continue in their own conversations, and those that start over with the message.
        node_ids: Vec<NodePath>,
        /// The message to them.
        message: String,
        /// The messages to some of them instead, by their places.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        messages: BTreeMap<NodePath, String>,
        /// Budgets that were raised; they replace those of the flow.
        #[serde(default, skip_serializing_if = "BudgetRaise::is_empty")]
        budget: BudgetRaise,
        /// The time of the newest event before, if the process that ran the session was gone: since then it was idle.
        idle_since: Option<Timestamp>,
    }
    /// Nothing can run until a person answers or a limit is lifted.
    "flow:waiting" FlowWaiting {
        /// What it waits for.
        on: WaitingOn,
        /// Until when, if known.
        until: Option<Timestamp>,
    }
    /// The flow is to end before all of it has run: what runs is cancelled, and then the session ends.
    "flow:ending" FlowEnding {
        /// How the session will end.
        outcome: Outcome,
        /// What went wrong, if something did.
        error: Option<AgentError>,
    }
    /// Money and tokens spent so far by the session.
    "budget:spent" BudgetSpent {
        /// In US dollars; absent means unknown.
        cost_usd: Option<f64>,
        /// Tokens.
        tokens: u64,
    }
    /// The budget of the flow is used up, or, within a task, that of its node or of one of the frames that it runs.
    "budget:exceeded" BudgetExceeded {
        /// Its size, and what was spent, of each limit that is used up.
        limit: String,
        /// Which limits to raise, as `--budget` names them (`usd`, `each/.usd,each.usd`), also of used-up budgets around it, if limits ended it.
        budget: Option<String>,
        /// The number of the frame whose budget it is.
        frame: Option<u32>,
    }
    /// What the session counts against its budgets from the start: the session that it continues has spent it.
    "budget:carried" BudgetCarried {
        /// That session.
        from: SessionId,
        /// What it spent in all.
        spent: Spending,
        /// By single nodes of it.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        nodes: BTreeMap<NodeId, Spending>,
        /// Its budgets that were raised, and those that are raised for this session.
        #[serde(default, skip_serializing_if = "BudgetRaise::is_empty")]
        raised: BudgetRaise,
    }
    /// A vendor's usage limit is waited out.
    "limit:wait" LimitWait {
        /// The provider's type.
        provider: String,
        /// When the limit is lifted.
        until: Timestamp,
        /// The tool calls that the agent was denied in the attempt that met it.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        permission_denials: Vec<Value>,
    }
    /// A channel was made known to the session.
    "channel:registered" ChannelRegistered {
        /// The channel.
        name: String,
    }
    /// A channel is ready.
    "channel:started" ChannelStarted {
        /// The channel.
        name: String,
    }
    /// A channel has seen the end of the session.
    "channel:stopped" ChannelStopped {
        /// The channel.
        name: String,
    }
    /// A channel is gone.
    "channel:unregistered" ChannelUnregistered {
        /// The channel.
        name: String,
    }
    /// A channel failed. The run continues without it.
    "channel:error" ChannelFailed {
        /// The channel.
        name: String,
        /// What went wrong.
        error: String,
    }
    /// A line of the flow's own log.
    "log" Log {
        /// How grave it is.
        level: LogLevel,
        /// The line.
        message: String,
        /// Its fields.
        #[serde(default, skip_serializing_if = "Map::is_empty")]
        fields: Map<String, Value>,
    }
}

#[cfg(test)]
mod tests;
