//! What a chat returns to a program: its result, or an error with what was done before it.

use inspan_protocol::{AgentError, Message, ProviderSessionId, StopReason, Usage};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The end of one `run_agent`, or of one chat of a session.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct AgentResult {
    /// The answer of the last turn.
    pub text: String,
    /// The answer in the schema that was asked for.
    pub structured_output: Option<Value>,
    /// What was said in this chat: its prompts, the answers, the tools and what they gave.
    pub messages: Vec<Message>,
    /// The tools that were called in this chat, in their order.
    pub tool_calls: Vec<ToolCall>,
    /// Tokens of this chat.
    pub usage: Usage,
    /// Cost of this chat in US dollars; absent means unknown.
    pub cost_usd: Option<f64>,
    /// The provider's type.
    pub provider: String,
    /// The model that the vendor named, else the one that was asked for.
    pub model: Option<String>,
    /// The vendor's conversation, to continue.
    pub session_id: Option<ProviderSessionId>,
    /// Why it ended.
    pub stop_reason: StopReason,
    /// How long it took, in milliseconds.
    pub duration_ms: u64,
}

/// One call of a tool, as the provider reported it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ToolCall {
    /// The vendor's id of the call.
    pub id: String,
    /// The tool.
    pub name: String,
    /// Its arguments.
    pub input: Value,
    /// What it answered; absent as long as it has not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Value>,
    /// Whether it failed.
    #[serde(default)]
    pub is_error: bool,
}

/// Why a chat failed, and what was done before.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{error}")]
#[non_exhaustive]
pub struct ChatError {
    /// Why it failed.
    pub error: AgentError,
    /// What was done before; absent if the chat had not begun.
    pub partial: Option<Box<AgentResult>>,
}

impl From<AgentError> for ChatError {
    fn from(error: AgentError) -> Self {
        Self { error, partial: None }
    }
}

impl From<ChatError> for AgentError {
    fn from(failed: ChatError) -> Self {
        failed.error
    }
}

impl AgentResult {
    /// An error with this result as what was done before it.
    pub(super) fn before(self, error: AgentError) -> ChatError {
        ChatError { error, partial: Some(Box::new(self)) }
    }
}
