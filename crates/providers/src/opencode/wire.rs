//! What OpenCode's server says, as far as anything here reads it: its events and the body of an error.

use std::borrow::Cow;
use std::collections::BTreeMap;

use inspan_protocol::Usage;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::decode::or_default;

/// Any event.
#[derive(Deserialize)]
pub(super) struct Envelope<'a> {
    #[serde(borrow, rename = "type")]
    pub(super) kind: Cow<'a, str>,
    #[serde(borrow)]
    pub(super) properties: &'a RawValue,
}

/// The conversation that an event is about, if it is about one.
#[derive(Deserialize)]
pub(super) struct EventOrigin<'a> {
    #[serde(borrow, rename = "sessionID")]
    pub(super) session: Option<Cow<'a, str>>,
}

/// `message.updated`.
#[derive(Deserialize)]
pub(super) struct MessageUpdated<'a> {
    #[serde(borrow)]
    pub(super) info: MessageInfo<'a>,
}

#[derive(Deserialize)]
pub(super) struct MessageInfo<'a> {
    #[serde(borrow)]
    pub(super) id: Cow<'a, str>,
    #[serde(borrow)]
    pub(super) role: Cow<'a, str>,
    #[serde(default)]
    pub(super) time: MessageTime,
    pub(super) error: Option<OpenCodeFailure>,
    #[serde(borrow, rename = "providerID")]
    pub(super) provider: Option<Cow<'a, str>>,
    #[serde(borrow, rename = "modelID")]
    pub(super) model: Option<Cow<'a, str>>,
    /// Set for the summary by which a conversation is shortened. A user's message has an object here.
    #[serde(default)]
    pub(super) summary: Value,
    pub(super) structured: Option<Value>,
    #[serde(borrow)]
    pub(super) finish: Option<Cow<'a, str>>,
}

/// A message of a conversation, as the server lists it.
#[derive(Deserialize)]
pub(super) struct StoredMessage {
    pub(super) info: StoredInfo,
}

#[derive(Deserialize)]
pub(super) struct StoredInfo {
    pub(super) id: String,
    pub(super) role: String,
    #[serde(default)]
    pub(super) time: MessageTime,
}

#[derive(Default, Deserialize)]
pub(super) struct MessageTime {
    /// In milliseconds since 1970; a branch keeps it, and gives its messages new ids.
    pub(super) created: Option<f64>,
    pub(super) completed: Option<f64>,
}

/// `message.part.updated`.
#[derive(Deserialize)]
pub(super) struct PartUpdated<'a> {
    #[serde(borrow)]
    pub(super) part: Part<'a>,
}

#[derive(Deserialize)]
pub(super) struct Part<'a> {
    #[serde(borrow)]
    pub(super) id: Cow<'a, str>,
    #[serde(borrow, rename = "messageID")]
    pub(super) message: Cow<'a, str>,
    #[serde(borrow, rename = "type")]
    pub(super) kind: Cow<'a, str>,
    #[serde(borrow)]
    pub(super) text: Option<Cow<'a, str>>,
    pub(super) time: Option<PartTime>,
    #[serde(borrow)]
    pub(super) tool: Option<Cow<'a, str>>,
    #[serde(borrow, rename = "callID")]
    pub(super) call: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub(super) state: Option<ToolState<'a>>,
    #[serde(borrow)]
    pub(super) reason: Option<Cow<'a, str>>,
    #[serde(default, deserialize_with = "or_default")]
    pub(super) tokens: Option<Tokens>,
    #[serde(default, deserialize_with = "or_default")]
    pub(super) cost: Option<f64>,
}

#[derive(Deserialize)]
pub(super) struct PartTime {
    pub(super) end: Option<f64>,
}

#[derive(Deserialize)]
pub(super) struct ToolState<'a> {
    #[serde(borrow)]
    pub(super) status: Cow<'a, str>,
    #[serde(default)]
    pub(super) input: Value,
    #[serde(borrow)]
    pub(super) output: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub(super) error: Option<Cow<'a, str>>,
}

/// Token counts. What was spent on reasoning is not among `output`.
#[derive(Clone, Copy, Default, Deserialize)]
#[serde(default)]
pub(super) struct Tokens {
    #[serde(deserialize_with = "or_default")]
    input: u64,
    #[serde(deserialize_with = "or_default")]
    output: u64,
    #[serde(deserialize_with = "or_default")]
    reasoning: u64,
    #[serde(deserialize_with = "or_default")]
    cache: Cache,
}

#[derive(Clone, Copy, Default, Deserialize)]
#[serde(default)]
struct Cache {
    #[serde(deserialize_with = "or_default")]
    read: u64,
    #[serde(deserialize_with = "or_default")]
    write: u64,
}

impl From<Tokens> for Usage {
    fn from(tokens: Tokens) -> Self {
        Self {
            input_tokens: tokens.input,
            output_tokens: tokens.output.saturating_add(tokens.reasoning),
            cache_read_tokens: tokens.cache.read,
            cache_creation_tokens: tokens.cache.write,
            reasoning_tokens: tokens.reasoning,
        }
    }
}

/// `message.part.delta`.
#[derive(Deserialize)]
pub(super) struct PartDelta<'a> {
    #[serde(borrow, rename = "partID")]
    pub(super) part: Cow<'a, str>,
    #[serde(borrow)]
    pub(super) field: Cow<'a, str>,
    #[serde(borrow)]
    pub(super) delta: Cow<'a, str>,
}

/// `session.status`.
#[derive(Deserialize)]
pub(super) struct SessionStatus<'a> {
    #[serde(borrow)]
    pub(super) status: Status<'a>,
}

#[derive(Deserialize)]
pub(super) struct Status<'a> {
    #[serde(borrow, rename = "type")]
    pub(super) kind: Cow<'a, str>,
    #[serde(default, deserialize_with = "or_default")]
    pub(super) attempt: u32,
    #[serde(borrow)]
    pub(super) message: Option<Cow<'a, str>>,
    /// The moment of the next attempt, in milliseconds since 1970.
    #[serde(default, deserialize_with = "or_default")]
    pub(super) next: Option<f64>,
    pub(super) action: Option<RetryAction>,
}

#[derive(Deserialize)]
pub(super) struct RetryAction {
    pub(super) reason: Option<String>,
}

/// `session.error`.
#[derive(Deserialize)]
pub(super) struct SessionError {
    pub(super) error: Option<OpenCodeFailure>,
}

/// Why something failed, in the program's own form; the body of an answer that is an error has it too.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub(super) struct OpenCodeFailure {
    pub(super) name: String,
    #[serde(default)]
    pub(super) data: FailureData,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct FailureData {
    pub(super) message: Option<String>,
    #[serde(deserialize_with = "or_default")]
    pub(super) status_code: Option<u16>,
    pub(super) is_retryable: Option<bool>,
    pub(super) response_headers: BTreeMap<String, String>,
    pub(super) response_body: Option<String>,
}

/// `permission.asked`.
#[derive(Deserialize)]
pub(super) struct PermissionAsked<'a> {
    #[serde(borrow)]
    pub(super) id: Cow<'a, str>,
    #[serde(borrow)]
    pub(super) permission: Cow<'a, str>,
    #[serde(default)]
    pub(super) patterns: Vec<String>,
    #[serde(default)]
    pub(super) metadata: Value,
    #[serde(borrow)]
    pub(super) tool: Option<CallOf<'a>>,
}

#[derive(Deserialize)]
pub(super) struct CallOf<'a> {
    #[serde(borrow, default, rename = "messageID")]
    pub(super) message: Cow<'a, str>,
    #[serde(borrow, rename = "callID")]
    pub(super) call: Cow<'a, str>,
}

/// `question.asked`.
#[derive(Deserialize)]
pub(super) struct QuestionAsked<'a> {
    #[serde(borrow)]
    pub(super) id: Cow<'a, str>,
    #[serde(default)]
    pub(super) questions: Value,
    #[serde(borrow)]
    pub(super) tool: Option<CallOf<'a>>,
}

/// `permission.replied`, `question.replied` and `question.rejected`.
#[derive(Deserialize)]
pub(super) struct Replied<'a> {
    #[serde(borrow, rename = "requestID")]
    pub(super) request: Cow<'a, str>,
    #[serde(borrow)]
    pub(super) reply: Option<Cow<'a, str>>,
}
