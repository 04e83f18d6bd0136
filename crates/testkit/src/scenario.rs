//! The scenario file: what the scripted model answers, request by request, in no vendor's terms.
//! Choosing a turn is left to `script.rs`, its form on the wire to the wire files.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

mod check;
mod load;
mod make;

pub use self::load::ScenarioError;

/// Everything a scripted model will answer; the scenario file, key by key.
///
/// A scenario is one JSON object; keys are camelCase, an unknown key is an error. Times are whole
/// milliseconds. `fixtures/scenarios/` holds one example of each common kind.
///
/// ```
/// # use inspan_testkit::Scenario;
/// let text = r#"
/// {"turns": [
///   {"when": {"lastMessageContains": "ping"}, "times": 1, "blocks": [{"type": "text", "text": "pong"}]},
///   {"blocks": [{"type": "tool_use", "name": "Bash", "input": {"command": "ls"}}]},
///   {"blocks": [{"type": "text", "text": "Done."}]}
/// ]}"#;
/// assert_eq!(Scenario::from_json(text)?.turns.len(), 3);
/// # Ok::<(), inspan_testkit::ScenarioError>(())
/// ```
///
/// # How a request finds its turn
///
/// 1. A request that offers no tools is *auxiliary* (a title, a summary): `aux` answers it and no turn is
///    used up. `auxDetect: false` switches that off, for clients that run without tools.
/// 2. Turns with `when` are rules: the first whose matcher fits, and whose `times` are not used up, answers.
/// 3. Otherwise the next turn without `when` answers; after the last one, `after` decides.
///
/// Agents put more into a user message than their user wrote: reminders, lists of skills, file contents. Match
/// words that stand nowhere else (`role=reviewer`), not everyday ones (`review`).
///
/// # Keys of a scenario
///
/// | Key | Default | Meaning |
/// |---|---|---|
/// | `turns` | required | the turns: rules and sequence in one list |
/// | `after` | `"last"` | once the sequence is used up: `"last"` repeats its last turn, `"cycle"` starts again, `"error"` answers 500 |
/// | `aux` | a small JSON title | the turn that answers auxiliary requests |
/// | `auxDetect` | `true` | whether requests without tools are auxiliary |
/// | `chunkMs` | 0 | wait after each event of a stream, unless the turn has its own |
/// | `holdLimitMs` | 600000 | the longest a `hang` or `stallAfter` is held before the connection is cut |
/// | `countTokens` | 10 | the answer to a token-count request |
///
/// # Keys of a turn
///
/// | Key | Meaning |
/// |---|---|
/// | `when` | makes the turn a rule; every key given must fit: `lastMessageContains` (text and tool results of the last user message), `anyMessageContains` (of any user message), `systemContains`, `model` (exact) |
/// | `times` | how often a rule may answer; no limit if absent |
/// | `blocks` | what the model says, in order; see below |
/// | `structured` | a JSON value: a call of the tool `StructuredOutput` if the request offers it, else the JSON as text; comes after `blocks` |
/// | `stopReason` | why the model stops, see below; default `tool_use` if a tool is called, else `end_turn` |
/// | `stopDetails` | a JSON value sent beside the stop reason, where the format has a place for it |
/// | `usage` | `inputTokens` (100), `outputTokens` (20), `cacheReadTokens` (0), `cacheCreationTokens` (0), `reasoningTokens` (0, among the output tokens) |
/// | `messageId` | the message's id, instead of the counted one |
/// | `headers` | further response headers |
/// | `firstMs` | wait before the response's first byte |
/// | `chunkMs` | wait after each event |
/// | `httpError` | `{status, type?, message?, headers?, body?}` instead of an answer; `body` replaces the vendor's error object, and a `body` that is a JSON string is sent as that very text |
/// | `hang` | `true`: take the request and never send a byte |
/// | `truncateAfter` | K: cut the connection after K events, without the end of the body |
/// | `stallAfter` | K: fall silent after K events and keep the connection open |
/// | `stallPingMs` | while stalled, send a ping this often |
/// | `errorEventAfter` | `{after, type?, message?}`: an error event after K events, then a regular end of the body |
/// | `garbageAfter` | K: a malformed event after K events; the rest follows |
///
/// K counts every event, the opening ping and the closing `[DONE]` of a format that has them too; a K beyond the last event acts after it. If the client
/// asked for one JSON body instead of a stream, `truncateAfter` and `stallAfter` act after half of that body,
/// `errorEventAfter` becomes an HTTP error and `garbageAfter` breaks the JSON.
///
/// # Words that every format understands
///
/// The server speaks several formats, and a scenario serves them all. Stop reasons and error types are given in the
/// words of the first column; any other word is sent as it stands where the format has a place for it.
///
/// | `stopReason` | Anthropic Messages | OpenAI Responses | OpenAI Chat Completions |
/// |---|---|---|---|
/// | `end_turn`, `tool_use` | the same | `completed` | `stop`, `tool_calls` |
/// | `max_tokens` | the same | `incomplete`, `max_output_tokens` | `length` |
/// | `content_filter` | the same | `incomplete`, `content_filter` | `content_filter` |
/// | `refusal` | the same | `completed`, the texts become refusals | `stop`, the texts become refusals |
/// | `model_context_window_exceeded` | the same | `failed`, `context_length_exceeded` | `length` |
/// | `failed` | the same | `failed`, with `code` and `message` of `stopDetails` | the same |
///
/// | `type` of an error | Anthropic `type` | OpenAI `type`, `code` |
/// |---|---|---|
/// | `invalid_request_error` | the same | `invalid_request_error`, none |
/// | `authentication_error` | the same | `invalid_request_error`, `invalid_api_key` |
/// | `billing_error`, `insufficient_quota` | `billing_error` | `insufficient_quota` twice |
/// | `permission_error` | the same | `invalid_request_error`, `insufficient_permissions` |
/// | `not_found_error` | the same | `invalid_request_error`, `model_not_found` |
/// | `context_length_exceeded` | `invalid_request_error` | `invalid_request_error`, `context_length_exceeded` |
/// | `rate_limit_error` | the same | `requests`, `rate_limit_exceeded` |
/// | `api_error`, `timeout_error` | the same | `server_error`, `server_error` |
/// | `overloaded_error` | the same | `service_unavailable_error`, `server_is_overloaded` |
///
/// Where a format streams no thinking of its own accord (OpenAI Responses), it comes as a reasoning summary.
///
/// # Blocks
///
/// | `type` | Keys |
/// |---|---|
/// | `text` | `text`, `chunks` (pieces it is streamed in, default 4) |
/// | `thinking` | `text`, `signature` (a fixed word if absent), `chunks` |
/// | `tool_use` | `name`, `input`, `id` (counted if absent), `chunks` |
/// | `shell` | `command`, `id`, `chunks`: a call of whichever shell tool the request offers, so that one scenario serves every agent |
/// | `pause` | `ms`: a wait between two events |
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
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Turn {
    /// Makes this turn a rule.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub when: Option<Matcher>,
    /// How often a rule may answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub times: Option<u32>,
    /// What the model says.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub blocks: Vec<Block>,
    /// A structured answer, after the blocks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub structured: Option<Value>,
    /// Why the model stops.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop_reason: Option<String>,
    /// Sent beside the stop reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop_details: Option<Value>,
    /// Token counts.
    pub usage: Usage,
    /// The message's id, instead of the counted one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message_id: Option<String>,
    /// Further response headers.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
    /// Wait before the first byte, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_ms: Option<u64>,
    /// Wait after each event, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chunk_ms: Option<u64>,
    /// An HTTP error instead of an answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub http_error: Option<HttpError>,
    /// Never send a byte.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub hang: bool,
    /// Cut the connection after so many events.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub truncate_after: Option<usize>,
    /// Fall silent after so many events.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stall_after: Option<usize>,
    /// Ping this often while stalled, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stall_ping_ms: Option<u64>,
    /// An error event within the stream.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error_event_after: Option<ErrorEvent>,
    /// A malformed event after so many events.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub garbage_after: Option<usize>,
}

/// What a request must look like for a rule to answer it; every key given must fit.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Matcher {
    /// A part of the last user message, its tool results included.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_message_contains: Option<String>,
    /// A part of any user message, tool results included.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub any_message_contains: Option<String>,
    /// A part of the system prompt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub system_contains: Option<String>,
    /// The model's exact name.
    #[serde(skip_serializing_if = "Option::is_none")]
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
