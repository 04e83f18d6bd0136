//! What the Responses API says: the events of a stream and the body of an error, as far as anything here reads them.
//! Unknown fields are ignored.

use std::borrow::Cow;

use inspan_protocol::Usage;
use serde::Deserialize;
use serde_json::Value;

use crate::decode::or_default;

/// `response.created` and the other events that hold the whole response.
#[derive(Deserialize)]
pub(super) struct ResponseEvent {
    pub(super) response: Response,
}

#[derive(Deserialize)]
pub(super) struct Response {
    pub(super) id: Option<String>,
    pub(super) model: Option<String>,
    /// As it came, because an unknown item is stored unchanged.
    pub(super) output: Option<Vec<Value>>,
    #[serde(default, deserialize_with = "or_default")]
    pub(super) usage: Option<ApiUsage>,
    pub(super) incomplete_details: Option<IncompleteDetails>,
    pub(super) error: Option<FailureWords>,
}

#[derive(Deserialize)]
pub(super) struct IncompleteDetails {
    pub(super) reason: Option<String>,
}

/// `response.output_item.added` and `.done`.
#[derive(Deserialize)]
pub(super) struct ItemEvent {
    pub(super) output_index: u64,
    pub(super) item: Value,
}

/// A piece of a text, a refusal or a thought.
#[derive(Deserialize)]
pub(super) struct DeltaEvent<'a> {
    pub(super) output_index: u64,
    /// Which part of a summary it belongs to.
    #[serde(default, deserialize_with = "or_default")]
    pub(super) summary_index: u64,
    #[serde(borrow)]
    pub(super) delta: Cow<'a, str>,
}

/// The event `error`: its words beside its type, or in a separate field as in the body of an answer.
#[derive(Deserialize)]
pub(super) struct ErrorEvent {
    pub(super) error: Option<FailureWords>,
    pub(super) code: Option<Value>,
    pub(super) message: Option<String>,
    pub(super) param: Option<String>,
}

/// The body of an answer that is an error.
#[derive(Deserialize)]
pub(super) struct OpenAiError {
    pub(super) error: FailureWords,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub(super) struct FailureWords {
    #[serde(rename = "type")]
    pub(super) kind: Option<String>,
    /// A text; some gateways send a number.
    pub(super) code: Option<Value>,
    pub(super) message: Option<String>,
    pub(super) param: Option<String>,
}

impl FailureWords {
    /// The vendor's own word for the error: its code, else its type.
    pub(super) fn word(&self) -> Option<&str> {
        let code = self.code.as_ref().and_then(Value::as_str);
        code.or(self.kind.as_deref()).filter(|word| !word.is_empty())
    }
}

/// Token counts of one response.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ApiUsage {
    #[serde(deserialize_with = "or_default")]
    input_tokens: Option<u64>,
    #[serde(deserialize_with = "or_default")]
    input_tokens_details: Option<InputDetails>,
    #[serde(deserialize_with = "or_default")]
    output_tokens: Option<u64>,
    #[serde(deserialize_with = "or_default")]
    output_tokens_details: Option<OutputDetails>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
struct InputDetails {
    #[serde(deserialize_with = "or_default")]
    cached_tokens: Option<u64>,
    #[serde(deserialize_with = "or_default")]
    cache_write_tokens: Option<u64>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
struct OutputDetails {
    #[serde(deserialize_with = "or_default")]
    reasoning_tokens: Option<u64>,
}

impl From<ApiUsage> for Usage {
    /// The vendor counts what its cache read and wrote among the input; here each token is counted once.
    fn from(usage: ApiUsage) -> Self {
        let input = usage.input_tokens_details.unwrap_or_default();
        let (read, written) =
            (input.cached_tokens.unwrap_or_default(), input.cache_write_tokens.unwrap_or_default());
        Self {
            input_tokens: usage.input_tokens.unwrap_or_default().saturating_sub(read).saturating_sub(written),
            output_tokens: usage.output_tokens.unwrap_or_default(),
            cache_read_tokens: read,
            cache_creation_tokens: written,
            reasoning_tokens: usage
                .output_tokens_details
                .and_then(|details| details.reasoning_tokens)
                .unwrap_or_default(),
        }
    }
}
