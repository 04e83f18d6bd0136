//! The messages of the app server on the wire: what is read of its notifications and requests, and
//! what is answered.

use std::borrow::Cow;

use inspan_protocol::{AgentError, ContentBlock, ErrorCode};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::decode::or_default;

/// The requested form of an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) enum AnswerForm {
    #[default]
    Text,
    /// JSON of a schema.
    Json,
}

/// Where a notification belongs, and which item it is about, if its params have one.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct NotificationPlace<'a> {
    #[serde(borrow)]
    pub(super) thread_id: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub(super) turn_id: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub(super) item: Option<ItemName<'a>>,
}

/// A piece of a message or of a thought.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct CodexDelta<'a> {
    #[serde(borrow)]
    pub(super) item_id: Cow<'a, str>,
    #[serde(borrow, default)]
    pub(super) delta: Cow<'a, str>,
    #[serde(default, deserialize_with = "or_default")]
    pub(super) summary_index: u64,
}

/// Which item it is.
#[derive(Debug, Deserialize)]
pub(super) struct ItemName<'a> {
    #[serde(borrow, rename = "type")]
    pub(super) kind: Cow<'a, str>,
    #[serde(borrow)]
    pub(super) id: Cow<'a, str>,
}

/// `item/started` and `item/completed`.
#[derive(Debug, Deserialize)]
pub(super) struct ItemLine<'a> {
    #[serde(borrow)]
    pub(super) item: Item<'a>,
}

/// An item of a turn: the fields of all kinds that are read, each absent where its kind has none.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Item<'a> {
    #[serde(borrow, rename = "type")]
    pub(super) kind: Cow<'a, str>,
    #[serde(borrow)]
    pub(super) id: Cow<'a, str>,
    #[serde(borrow)]
    pub(super) text: Option<Cow<'a, str>>,
    pub(super) summary: Option<Vec<String>>,
    pub(super) content: Option<Value>,
    #[serde(borrow)]
    pub(super) status: Option<Cow<'a, str>>,
    pub(super) command: Option<Value>,
    pub(super) cwd: Option<Value>,
    pub(super) aggregated_output: Option<Value>,
    #[serde(default, deserialize_with = "or_default")]
    pub(super) exit_code: Option<i64>,
    pub(super) changes: Option<Value>,
    #[serde(borrow)]
    pub(super) server: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub(super) tool: Option<Cow<'a, str>>,
    pub(super) arguments: Option<Value>,
    pub(super) result: Option<Value>,
    pub(super) error: Option<Value>,
    pub(super) content_items: Option<Value>,
    pub(super) success: Option<bool>,
    pub(super) query: Option<Value>,
    pub(super) action: Option<Value>,
    pub(super) results: Option<Value>,
    pub(super) path: Option<Value>,
    pub(super) saved_path: Option<Value>,
    pub(super) prompt: Option<Value>,
    pub(super) receiver_thread_ids: Option<Value>,
    pub(super) agents_states: Option<Value>,
    pub(super) duration_ms: Option<Value>,
}

/// `turn/started` and `turn/completed`.
#[derive(Debug, Deserialize)]
pub(super) struct TurnLine<'a> {
    #[serde(borrow)]
    pub(super) turn: WireTurn<'a>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct WireTurn<'a> {
    #[serde(borrow)]
    pub(super) id: Cow<'a, str>,
    #[serde(borrow, default)]
    pub(super) status: Cow<'a, str>,
    pub(super) error: Option<TurnError>,
    #[serde(default, deserialize_with = "or_default")]
    pub(super) duration_ms: Option<f64>,
    #[serde(borrow, default)]
    pub(super) items: Vec<&'a RawValue>,
}

/// `error`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ErrorLine {
    pub(super) error: TurnError,
    #[serde(default)]
    pub(super) will_retry: bool,
}

/// Why a turn failed, in the program's own words.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct TurnError {
    #[serde(default)]
    pub(super) message: String,
    pub(super) codex_error_info: Option<Value>,
    pub(super) additional_details: Option<String>,
}

/// `thread/tokenUsage/updated`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct UsageLine {
    pub(super) token_usage: TokenUsage,
}

/// Counters of a thread: those of the last request, and those over all its turns, which only distinguish one update from
/// another.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct TokenUsage {
    #[serde(default, deserialize_with = "or_default")]
    pub(super) last: Tokens,
    #[serde(default, deserialize_with = "or_default")]
    pub(super) total: Tokens,
    #[serde(default, deserialize_with = "or_default")]
    pub(super) model_context_window: Option<u64>,
}

/// The tokens of one request to the model. The input includes what was read from the cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Tokens {
    #[serde(deserialize_with = "or_default")]
    pub(super) total_tokens: u64,
    #[serde(deserialize_with = "or_default")]
    pub(super) input_tokens: u64,
    #[serde(deserialize_with = "or_default")]
    pub(super) cached_input_tokens: u64,
    #[serde(deserialize_with = "or_default")]
    pub(super) cache_write_input_tokens: u64,
    #[serde(deserialize_with = "or_default")]
    pub(super) output_tokens: u64,
    #[serde(deserialize_with = "or_default")]
    pub(super) reasoning_output_tokens: u64,
}

impl Tokens {
    /// What came since then.
    pub(super) fn since(self, before: Self) -> Self {
        let grown = |of: fn(&Self) -> u64| of(&self).saturating_sub(of(&before));
        Self {
            total_tokens: grown(|of| of.total_tokens),
            input_tokens: grown(|of| of.input_tokens),
            cached_input_tokens: grown(|of| of.cached_input_tokens),
            cache_write_input_tokens: grown(|of| of.cache_write_input_tokens),
            output_tokens: grown(|of| of.output_tokens),
            reasoning_output_tokens: grown(|of| of.reasoning_output_tokens),
        }
    }
}

/// `account/rateLimits/updated`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct LimitsLine {
    pub(super) rate_limits: RateLimits,
}

#[derive(Debug, Deserialize)]
pub(super) struct RateLimits {
    pub(super) primary: Option<Window>,
    pub(super) secondary: Option<Window>,
}

/// A usage limit over some hours or days.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Window {
    #[serde(default, deserialize_with = "or_default")]
    pub(super) used_percent: f64,
    /// In seconds since 1970.
    #[serde(default, deserialize_with = "or_default")]
    pub(super) resets_at: Option<i64>,
}

/// The notifications that are for the user.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct NoticeLine<'a> {
    #[serde(borrow)]
    pub(super) message: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub(super) summary: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub(super) name: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub(super) status: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub(super) error: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub(super) from_model: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub(super) to_model: Option<Cow<'a, str>>,
}

/// `serverRequest/resolved`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ResolvedLine {
    pub(super) request_id: crate::json_rpc::RemoteId,
}

/// `item/commandExecution/terminalInteraction`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct TerminalLine<'a> {
    #[serde(borrow)]
    pub(super) item_id: Cow<'a, str>,
    #[serde(default)]
    pub(super) stdin: String,
}

/// The requests that ask for consent.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct AskLine<'a> {
    #[serde(borrow)]
    pub(super) thread_id: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub(super) item_id: Option<Cow<'a, str>>,
    pub(super) reason: Option<String>,
    pub(super) command: Option<Value>,
    pub(super) cwd: Option<Value>,
    pub(super) grant_root: Option<Value>,
    pub(super) network_approval_context: Option<Value>,
    pub(super) additional_permissions: Option<Value>,
    pub(super) permissions: Option<Value>,
    #[serde(borrow)]
    pub(super) server_name: Option<Cow<'a, str>>,
    pub(super) message: Option<String>,
    #[serde(rename = "_meta")]
    pub(super) meta: Option<Value>,
}

/// What the user says, in the program's form.
///
/// # Errors
/// A block is neither text nor a picture.
pub(super) fn user_input(blocks: &[ContentBlock]) -> Result<Vec<Value>, AgentError> {
    let input = |block: &ContentBlock| match block {
        ContentBlock::Text { text } => Ok(json!({ "type": "text", "text": text, "text_elements": [] })),
        ContentBlock::Image { media_type, data } => {
            Ok(json!({ "type": "image", "url": format!("data:{media_type};base64,{data}") }))
        }
        _ => {
            let message = "the program takes text and pictures from the user, and nothing else";
            Err(AgentError::new(ErrorCode::ConfigInvalid, message))
        }
    };
    blocks.iter().map(input).collect()
}
