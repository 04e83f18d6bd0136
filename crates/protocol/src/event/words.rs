//! The closed words in events: outcomes, reasons, kinds and modes.
//! The events themselves are in `event.rs`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How a session ended, or why it is idle: `paused` and `waiting` never occur in `harness:complete`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub enum Outcome {
    /// All that was to run ran well; handled failures included.
    Success,
    /// Something failed, and what did not depend on it finished.
    Partial,
    /// A failure ended the flow.
    Failed,
    /// It was stopped on purpose.
    Stopped,
    /// A budget was used up.
    BudgetExceeded,
    /// The flow's own time was up.
    TimedOut,
    /// Not ended: paused, to be resumed.
    Paused,
    /// Not ended: nothing can run until a person answers or a limit is lifted.
    Waiting,
}

/// Why a node did not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub enum SkipReason {
    /// Its own `when` did not hold.
    When,
    /// None of its incoming edges fired.
    Edge,
    /// Something it depends on failed, or the flow ended before its turn.
    Failure,
    /// Only other nodes were to run, and its output could not be reused.
    NotSelected,
}

/// Why an agent was chosen for a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub enum AgentReason {
    /// The node's expression names it.
    Named,
    /// The agent before it failed.
    Failed,
    /// The condition of its fallback holds for the output of the agent before it.
    Condition,
    /// The agent before it hit a usage limit.
    Limit,
}

/// Why a running attempt was cancelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub enum CancelReason {
    /// A failure ended the flow or its frame.
    Failure,
    /// A `control.end` ended the flow or its frame.
    End,
    /// The session was stopped.
    Stop,
    /// The session is to pause.
    Pause,
    /// A budget is used up.
    Budget,
    /// A timeout of the flow or of its frame expired.
    Timeout,
}

/// When a message reaches a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum MessageMode {
    /// After the turn in progress.
    #[default]
    FollowUp,
    /// At once: it joins the turn in progress where the agent can take it, else it interrupts the turn.
    Steer,
}

/// What a message that steers does to the turn in progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub enum SteerStrength {
    /// It joins the turn, which continues.
    Native,
    /// It interrupts the turn, and is the next one.
    Interrupt,
}

/// One of the two streams that a program prints to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum OutputStream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// What kind of question is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub enum PromptKind {
    /// The flow asks a person.
    Input,
    /// An agent asks whether it may use a tool.
    Permission,
    /// An agent asks a person something. The question ends with the agent's turn, as one for permission does.
    Question,
}

/// What a session waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub enum WaitingOn {
    /// A person's answer.
    Input,
    /// A vendor's usage limit.
    Limit,
}

/// What pauses a session of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub enum PauseCause {
    /// A budget is used up, and something would spend more.
    Budget,
    /// The store has no room for the end of one more node.
    Store,
}

/// How grave a log line is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    /// For finding faults.
    Debug,
    /// For the reader.
    Info,
    /// Something to look at.
    Warn,
    /// Something failed.
    Error,
}
