//! What a provider says while one turn runs. The engine turns these into `agent:*` events.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{ContextUse, ProviderSessionId, Usage};

/// Whether a piece of text continues what was streamed before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Chunk {
    /// A piece to append to what came before.
    Delta,
    /// A complete text; nothing of it was streamed before.
    Whole,
}

/// One thing a provider says during a turn.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "camelCase", rename_all_fields = "camelCase", deny_unknown_fields)]
#[non_exhaustive]
pub enum StreamEvent {
    /// The vendor's conversation, as soon as it is known.
    Session {
        /// The vendor's id.
        session_id: ProviderSessionId,
    },
    /// Text of the answer.
    Text {
        /// The text.
        content: String,
        /// Whether it continues.
        chunk: Chunk,
    },
    /// Text of the model's thinking.
    Thinking {
        /// The text.
        content: String,
        /// Whether it continues.
        chunk: Chunk,
    },
    /// The text and thinking since the last tool event, whole text or retraction are void: the vendor's stream
    /// broke and started again. The part that was not broken is sent again, whole.
    Retract,
    /// The oldest message that [`Steering::next`](crate::Steering::next) gave, and that was not reported yet, has joined
    /// the turn in progress.
    Steered,
    /// A tool was called.
    ToolStart {
        /// The tool.
        tool_name: String,
        /// The vendor's id of the call.
        tool_use_id: String,
        /// Its arguments.
        input: Value,
    },
    /// A tool answered.
    ToolComplete {
        /// The vendor's id of the call.
        tool_use_id: String,
        /// The answer.
        result: Value,
        /// Whether the tool failed.
        is_error: bool,
    },
    /// Tokens and cost of this turn so far; the last one of a turn counts. Before an error, no tokens and no cost say that a
    /// prompt was sent and nothing is known of what it took.
    Usage {
        /// Tokens.
        usage: Usage,
        /// Cost in US dollars; absent means unknown.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cost_usd: Option<f64>,
    },
    /// A request was cut short while it was answered: the turn took more tokens than it says.
    Uncounted,
    /// How much of its context the conversation fills; the last one of a turn counts.
    Context {
        /// Tokens used, and how many the model takes.
        context: ContextUse,
    },
    /// Something the adapter tolerated and the user should see.
    Warning {
        /// A short fixed word.
        code: String,
        /// What happened.
        message: String,
    },
}

impl StreamEvent {
    /// A warning.
    pub fn warning(code: impl Into<String>, message: impl Into<String>) -> Self {
        Self::Warning { code: code.into(), message: message.into() }
    }
}
