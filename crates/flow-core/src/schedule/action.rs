//! What a run has its runtime do, and how that ends.

use inspan_protocol::{AgentError, Event, NodePath, PromptId};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Interrupted;
use crate::{graph::TaskRef, state::Conversation};

/// What the runtime is to do.
#[derive(Debug)]
pub enum Action {
    /// Emit this event, in this order; a task's event within the task's place.
    Emit {
        /// The task it belongs to.
        task: Option<NodePath>,
        /// The event.
        event: Event,
    },
    /// Start an attempt, whose `task:start` was emitted just before.
    Start(Box<StartNode>),
    /// End a running attempt.
    Cancel {
        /// The node.
        node: TaskRef,
        /// Its attempt.
        attempt: u32,
        /// Why.
        reason: CancelCause,
    },
    /// Put a question to a person on a node's behalf; the reply comes as a fact.
    Ask {
        /// The node's place.
        task: NodePath,
        /// The id that the question had before, if it was asked before.
        id: Option<PromptId>,
        /// The question.
        prompt: String,
        /// The answers to choose from.
        choices: Vec<String>,
    },
    /// The session has ended, or becomes idle.
    Finish,
}

/// An attempt to start.
#[derive(Debug)]
pub struct StartNode {
    /// The node.
    pub node: TaskRef,
    /// Its place in the run.
    pub path: NodePath,
    /// Which try this is, counting from 1.
    pub attempt: u32,
    /// Its input, with all bindings evaluated; an error ends the attempt at once.
    pub input: Result<Value, AgentError>,
    /// The conversation that it continues.
    pub conversation: Option<Conversation>,
    /// The conversation that it branches, unless it has begun its own and continues that one.
    pub branches: Option<Conversation>,
    /// What is left of an interrupted attempt, if this one replaces it.
    pub interrupted: Option<Box<Interrupted>>,
    /// Messages to an agent that no finished turn has answered, unless its message has them; they follow the first turn.
    pub mail: Vec<String>,
}

/// Why an attempt is cancelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum CancelCause {
    /// Its time is up.
    TimedOut,
    /// Its own budget is used up.
    OverBudget,
    /// The run becomes idle, and may be resumed.
    Pausing,
    /// The run ends before its time.
    Ending,
}

/// How an attempt ended, as far as the runtime can see.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum AttemptEnd {
    /// With an output.
    Output(Value),
    /// With an error.
    Error(AgentError),
    /// It was cancelled before any machine had begun it, so it has had no effect.
    NeverBegan,
}

impl From<Result<Value, AgentError>> for AttemptEnd {
    fn from(end: Result<Value, AgentError>) -> Self {
        end.map_or_else(Self::Error, Self::Output)
    }
}
