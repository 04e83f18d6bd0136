//! What the Messages API says: the events of a stream and the body of an error, as far as anything here reads them.
//! Unknown fields are ignored, as the vendor asks.

use std::borrow::Cow;

use inspan_protocol::Usage;
use serde::Deserialize;
use serde_json::Value;

use crate::decode::or_default;

/// `message_start`.
#[derive(Deserialize)]
pub(super) struct MessageStart<'a> {
    #[serde(borrow)]
    pub(super) message: Head<'a>,
}

/// A message before its first block.
#[derive(Deserialize)]
pub(super) struct Head<'a> {
    #[serde(borrow)]
    pub(super) model: Option<Cow<'a, str>>,
    #[serde(default, deserialize_with = "or_default")]
    pub(super) usage: Option<ApiUsage>,
}

/// `content_block_start`.
#[derive(Deserialize)]
pub(super) struct BlockStart {
    pub(super) index: u64,
    /// As it came, because an unknown one is stored unchanged.
    pub(super) content_block: Value,
}

/// `content_block_delta`.
#[derive(Deserialize)]
pub(super) struct BlockDelta<'a> {
    pub(super) index: u64,
    #[serde(borrow)]
    pub(super) delta: AnthropicDelta<'a>,
}

#[derive(Deserialize)]
pub(super) struct AnthropicDelta<'a> {
    #[serde(borrow, rename = "type")]
    pub(super) kind: Cow<'a, str>,
    #[serde(borrow)]
    pub(super) text: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub(super) thinking: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub(super) signature: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub(super) partial_json: Option<Cow<'a, str>>,
}

/// `content_block_stop`.
#[derive(Deserialize)]
pub(super) struct BlockStop {
    pub(super) index: u64,
}

/// `message_delta`.
#[derive(Deserialize)]
pub(super) struct MessageDelta {
    pub(super) delta: MessageEnd,
    #[serde(default, deserialize_with = "or_default")]
    pub(super) usage: Option<ApiUsage>,
}

#[derive(Deserialize)]
pub(super) struct MessageEnd {
    pub(super) stop_reason: Option<String>,
    pub(super) stop_details: Option<StopDetails>,
}

/// Why the model refused.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub(super) struct StopDetails {
    pub(super) category: Option<String>,
    pub(super) explanation: Option<String>,
}

/// `error`, and the body of an answer that is an error.
#[derive(Deserialize)]
pub(super) struct AnthropicError {
    pub(super) error: FailureWords,
    pub(super) request_id: Option<String>,
}

#[derive(Deserialize)]
pub(super) struct FailureWords {
    #[serde(rename = "type")]
    pub(super) kind: Option<String>,
    pub(super) message: Option<String>,
}

/// Token counts. Those of a later event replace earlier ones; one that is missing stays.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ApiUsage {
    #[serde(deserialize_with = "or_default")]
    input_tokens: Option<u64>,
    #[serde(deserialize_with = "or_default")]
    output_tokens: Option<u64>,
    #[serde(deserialize_with = "or_default")]
    cache_read_input_tokens: Option<u64>,
    #[serde(deserialize_with = "or_default")]
    cache_creation_input_tokens: Option<u64>,
    #[serde(deserialize_with = "or_default")]
    output_tokens_details: Option<OutputDetails>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
struct OutputDetails {
    #[serde(deserialize_with = "or_default")]
    thinking_tokens: Option<u64>,
}

impl ApiUsage {
    /// Replaces the counts that are known.
    pub(super) fn over(self, known: &mut Usage) {
        let thought = self.output_tokens_details.and_then(|details| details.thinking_tokens);
        for (reported, count) in [
            (self.input_tokens, &mut known.input_tokens),
            (self.output_tokens, &mut known.output_tokens),
            (self.cache_read_input_tokens, &mut known.cache_read_tokens),
            (self.cache_creation_input_tokens, &mut known.cache_creation_tokens),
            (thought, &mut known.reasoning_tokens),
        ] {
            *count = reported.unwrap_or(*count);
        }
    }
}
