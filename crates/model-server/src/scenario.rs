//! The scenario file: what the scripted model answers, request by request, in no vendor's terms.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_with::skip_serializing_none;

mod check;
mod load;
mod make;

pub use self::load::ScenarioError;

/// Everything a scripted model will answer: the scenario file.
///
/// `docs/model-server.md` explains it key by key, and how a request finds its turn. `fixtures/scenarios/` holds one
/// example of each common kind.
///
/// ```
/// # use inspan_model_server::Scenario;
/// let text = r#"
/// {"turns": [
///   {"when": {"lastMessageContains": "ping"}, "times": 1, "blocks": [{"type": "text", "text": "pong"}]},
///   {"blocks": [{"type": "tool_use", "name": "Bash", "input": {"command": "ls"}}]},
///   {"blocks": [{"type": "text", "text": "Done."}]}
/// ]}"#;
/// assert_eq!(Scenario::from_json(text)?.turns.len(), 3);
/// # Ok::<(), inspan_model_server::ScenarioError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Scenario {
    /// Rules (turns with `when`) and the sequence (all others), in one list.
    pub turns: Vec<Turn>,
    /// What answers once the sequence is used up.
    #[serde(default)]
    pub after: After,
    /// Answers auxiliary requests.
    #[serde(default = "Turn::title")]
    pub aux: Turn,
    /// Whether a request without tools is auxiliary.
    #[serde(default = "yes")]
    pub aux_detect: bool,
    /// Wait after each event, in milliseconds.
    #[serde(default)]
    pub chunk_ms: u64,
    /// The longest a hang or stall is held, in milliseconds.
    #[serde(default = "ten_minutes")]
    pub hold_limit_ms: u64,
    /// The answer to a token-count request.
    #[serde(default = "ten_tokens")]
    pub count_tokens: u64,
}

/// What answers once the sequence is used up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum After {
    /// The last turn again.
    #[default]
    Last,
    /// The sequence from its start.
    Cycle,
    /// HTTP 500 with the message `script exhausted`.
    Error,
}

/// One answer of the scripted model.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Turn {
    /// Makes this turn a rule.
    pub when: Option<Matcher>,
    /// How often a rule may answer.
    pub times: Option<u32>,
    /// What the model says.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub blocks: Vec<Block>,
    /// A structured answer, after the blocks.
    pub structured: Option<Value>,
    /// Why the model stops.
    pub stop_reason: Option<String>,
    /// Sent beside the stop reason.
    pub stop_details: Option<Value>,
    /// Token counts.
    pub usage: Usage,
    /// The message's id, instead of the counted one.
    pub message_id: Option<String>,
    /// Further response headers.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
    /// Wait before the first byte, in milliseconds.
    pub first_ms: Option<u64>,
    /// Wait after each event, in milliseconds.
    pub chunk_ms: Option<u64>,
    /// An HTTP error instead of an answer.
    pub http_error: Option<HttpError>,
    /// Never send a byte.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub hang: bool,
    /// Cut the connection after so many events.
    pub truncate_after: Option<usize>,
    /// Send nothing more after so many events.
    pub stall_after: Option<usize>,
    /// Ping this often while stalled, in milliseconds.
    pub stall_ping_ms: Option<u64>,
    /// An error event within the stream.
    pub error_event_after: Option<ErrorEvent>,
    /// A malformed event after so many events.
    pub garbage_after: Option<usize>,
}

/// What a request must look like for a rule to answer it; every key given must fit.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Matcher {
    /// A part of the last user message, its tool results included.
    pub last_message_contains: Option<String>,
    /// A part of any user message, tool results included.
    pub any_message_contains: Option<String>,
    /// A part of the system prompt.
    pub system_contains: Option<String>,
    /// The model's exact name.
    pub model: Option<String>,
}

/// One piece of what the model says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum Block {
    /// Visible text.
    Text {
        /// The whole text.
        text: String,
        /// Pieces it is streamed in.
        #[serde(default = "four_chunks")]
        chunks: usize,
    },
    /// Thinking, with the signature the vendor would add.
    Thinking {
        /// The whole thought.
        text: String,
        /// Opaque to everyone but the vendor.
        #[serde(default = "fixed_signature")]
        signature: String,
        /// Pieces it is streamed in.
        #[serde(default = "four_chunks")]
        chunks: usize,
    },
    /// A tool call.
    ToolUse {
        /// The tool's name as the request offers it.
        name: String,
        /// Its arguments, an object.
        #[serde(default = "empty_object")]
        input: Value,
        /// The call's id, counted if absent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        id: Option<String>,
        /// Pieces the arguments are streamed in.
        #[serde(default = "four_chunks")]
        chunks: usize,
    },
    /// A shell command, through whatever shell tool the request offers.
    Shell {
        /// The command line.
        command: String,
        /// The call's id, counted if absent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        id: Option<String>,
        /// Pieces the arguments are streamed in.
        #[serde(default = "four_chunks")]
        chunks: usize,
    },
    /// A wait between two events.
    Pause {
        /// Milliseconds.
        ms: u64,
    },
}

/// Token counts of one answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Usage {
    /// Tokens read and not cached.
    pub input_tokens: u64,
    /// Tokens written.
    pub output_tokens: u64,
    /// Tokens read from the cache.
    pub cache_read_tokens: u64,
    /// Tokens written to the cache.
    pub cache_creation_tokens: u64,
    /// Tokens of hidden thought, which are among the tokens written; only some formats report them.
    pub reasoning_tokens: u64,
}

/// An HTTP error instead of an answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HttpError {
    /// 400 to 599.
    pub status: u16,
    /// The vendor's word for it; the usual one of that status if absent.
    #[serde(rename = "type", default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// The message of the error object.
    #[serde(default = "scripted_error")]
    pub message: String,
    /// Further response headers, such as `retry-after`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
    /// Replaces the vendor's error object; a JSON string is sent as that very text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body: Option<Value>,
}

/// An error event within a stream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ErrorEvent {
    /// Events sent before it.
    pub after: usize,
    /// The vendor's word for it.
    #[serde(rename = "type", default = "overloaded_error")]
    pub kind: String,
    /// The message of the error object.
    #[serde(default = "scripted_error")]
    pub message: String,
}

impl Scenario {
    /// How long the server waits after each event of `turn`.
    pub(crate) fn gap(&self, turn: &Turn) -> Duration {
        Duration::from_millis(turn.chunk_ms.unwrap_or(self.chunk_ms))
    }

    /// The longest a hang or stall is held.
    pub(crate) fn hold_limit(&self) -> Duration {
        Duration::from_millis(self.hold_limit_ms)
    }
}

impl Default for Usage {
    fn default() -> Self {
        Self {
            input_tokens: 100,
            output_tokens: 20,
            cache_read_tokens: 0,
            cache_creation_tokens: 0,
            reasoning_tokens: 0,
        }
    }
}

fn yes() -> bool {
    true
}

fn ten_minutes() -> u64 {
    600_000
}

fn ten_tokens() -> u64 {
    10
}

fn four_chunks() -> usize {
    4
}

fn fixed_signature() -> String {
    "c2NyaXB0ZWQ=".to_owned()
}

fn empty_object() -> Value {
    Value::Object(serde_json::Map::new())
}

fn scripted_error() -> String {
    "scripted error".to_owned()
}

fn overloaded_error() -> String {
    "overloaded_error".to_owned()
}
