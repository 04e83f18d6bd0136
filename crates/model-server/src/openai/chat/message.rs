//! The answers of the OpenAI Chat Completions format as types, so that key order is fixed by declaration.
//! Their content is decided in `chat.rs`.

use serde::Serialize;
use serde_with::skip_serializing_none;

/// One event of a stream.
#[derive(Debug, Serialize)]
pub(super) struct Chunk {
    pub(super) id: String,
    pub(super) object: &'static str,
    pub(super) created: u64,
    pub(super) model: String,
    /// Empty in the chunk that counts the tokens.
    pub(super) choices: Vec<ChunkChoice>,
    /// Absent unless the client requested it; then null until the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) usage: Option<Option<ChatUsage>>,
}

#[derive(Debug, Serialize)]
pub(super) struct ChunkChoice {
    pub(super) index: usize,
    pub(super) delta: Delta,
    pub(super) finish_reason: Option<String>,
}

#[skip_serializing_none]
#[derive(Debug, Default, Serialize)]
pub(super) struct Delta {
    pub(super) role: Option<&'static str>,
    pub(super) content: Option<String>,
    pub(super) refusal: Option<String>,
    /// Not OpenAI's own: what servers of this format that show their thinking agreed on.
    pub(super) reasoning_content: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) tool_calls: Vec<ChatToolCall>,
}

/// The whole answer.
#[derive(Debug, Serialize)]
pub(super) struct Completion {
    pub(super) id: String,
    pub(super) object: &'static str,
    pub(super) created: u64,
    pub(super) model: String,
    pub(super) choices: Vec<Choice>,
    pub(super) usage: ChatUsage,
}

#[derive(Debug, Serialize)]
pub(super) struct Choice {
    pub(super) index: usize,
    pub(super) message: ChatMessage,
    pub(super) finish_reason: String,
}

#[derive(Debug, Default, Serialize)]
pub(super) struct ChatMessage {
    pub(super) role: &'static str,
    pub(super) content: Option<String>,
    pub(super) refusal: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) reasoning_content: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) tool_calls: Vec<ChatToolCall>,
}

/// A call; in a stream the first piece has all keys, the others only more of the arguments.
#[skip_serializing_none]
#[derive(Debug, Serialize)]
pub(super) struct ChatToolCall {
    pub(super) index: Option<usize>,
    pub(super) id: Option<String>,
    #[serde(rename = "type")]
    pub(super) kind: Option<&'static str>,
    pub(super) function: Function,
}

#[derive(Debug, Serialize)]
pub(super) struct Function {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) name: Option<String>,
    pub(super) arguments: String,
}

#[derive(Debug, Serialize)]
pub(super) struct ChatUsage {
    /// Cached tokens are included, unlike in the scenario.
    pub(super) prompt_tokens: u64,
    pub(super) completion_tokens: u64,
    pub(super) total_tokens: u64,
    pub(super) prompt_tokens_details: ChatInputDetails,
    pub(super) completion_tokens_details: ChatOutputDetails,
}

#[derive(Debug, Serialize)]
pub(super) struct ChatInputDetails {
    pub(super) cached_tokens: u64,
}

#[derive(Debug, Serialize)]
pub(super) struct ChatOutputDetails {
    pub(super) reasoning_tokens: u64,
}
