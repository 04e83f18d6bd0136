//! The answers of the Anthropic Messages format as types, so that key order is fixed by declaration.
//! Their content is decided in `anthropic.rs`.

use serde::Serialize;
use serde_json::Value;

use super::NoInput;

/// One event of a stream; `Error` is the body of an HTTP error too.
#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum MessagesEvent {
    MessageStart {
        message: AnthropicMessage,
    },
    Ping {},
    ContentBlockStart {
        index: usize,
        content_block: StartedContent,
    },
    ContentBlockDelta {
        index: usize,
        delta: Delta,
    },
    ContentBlockStop {
        index: usize,
    },
    MessageDelta {
        delta: MessageEnd,
        usage: OutputUsage,
    },
    MessageStop {},
    Error {
        error: WireError,
        #[serde(skip_serializing_if = "Option::is_none")]
        request_id: Option<String>,
    },
}

impl MessagesEvent {
    /// The name on the `event:` line, the same as `type` within the data.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::MessageStart { .. } => "message_start",
            Self::Ping {} => "ping",
            Self::ContentBlockStart { .. } => "content_block_start",
            Self::ContentBlockDelta { .. } => "content_block_delta",
            Self::ContentBlockStop { .. } => "content_block_stop",
            Self::MessageDelta { .. } => "message_delta",
            Self::MessageStop {} => "message_stop",
            Self::Error { .. } => "error",
        }
    }
}

#[derive(Debug, Serialize)]
pub(super) struct AnthropicMessage {
    pub(super) id: String,
    #[serde(rename = "type")]
    pub(super) kind: &'static str,
    pub(super) role: &'static str,
    pub(super) model: String,
    pub(super) content: Vec<AnthropicContent>,
    pub(super) stop_reason: Option<String>,
    pub(super) stop_sequence: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) stop_details: Option<Value>,
    pub(super) usage: AnthropicUsage,
}

#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum AnthropicContent {
    Text { text: String },
    Thinking { thinking: String, signature: String },
    ToolUse { id: String, name: String, input: Value },
}

/// A block as it is before its first delta.
#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum StartedContent {
    Text { text: &'static str },
    Thinking { thinking: &'static str, signature: &'static str },
    ToolUse { id: String, name: String, input: NoInput },
}

#[derive(Debug, Serialize)]
#[serde(tag = "type")]
pub(super) enum Delta {
    #[serde(rename = "text_delta")]
    Text { text: String },
    #[serde(rename = "thinking_delta")]
    Thinking { thinking: String },
    #[serde(rename = "signature_delta")]
    Signature { signature: String },
    #[serde(rename = "input_json_delta")]
    InputJson { partial_json: String },
}

#[derive(Debug, Serialize)]
pub(super) struct MessageEnd {
    pub(super) stop_reason: String,
    pub(super) stop_sequence: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) stop_details: Option<Value>,
}

#[derive(Debug, Serialize)]
pub(super) struct AnthropicUsage {
    pub(super) input_tokens: u64,
    pub(super) cache_creation_input_tokens: u64,
    pub(super) cache_read_input_tokens: u64,
    pub(super) output_tokens: u64,
}

#[derive(Debug, Serialize)]
pub(super) struct OutputUsage {
    pub(super) output_tokens: u64,
}

#[derive(Debug, Serialize)]
pub(super) struct WireError {
    #[serde(rename = "type")]
    pub(super) kind: String,
    pub(super) message: String,
}
