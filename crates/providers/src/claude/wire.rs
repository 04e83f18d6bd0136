//! The lines that Claude Code prints, as structs that borrow from the line; those it reads are in `outgoing.rs`.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use inspan_protocol::{Timestamp, Usage};
use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, SeqAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::decode::or_default;

mod outgoing;

pub(super) use outgoing::{Rewriting, control_error, control_request, control_success, user_message};

/// A string of the line, borrowed unless it holds escapes.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(transparent)]
pub(super) struct Str<'a>(#[serde(borrow)] pub(super) Cow<'a, str>);

impl Str<'_> {
    /// The string itself, without a copy if it was not borrowed.
    pub(super) fn into_string(self) -> String {
        self.0.into_owned()
    }
}

impl std::ops::Deref for Str<'_> {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

#[derive(Deserialize)]
struct Peek<'a> {
    #[serde(borrow, rename = "type")]
    kind: Str<'a>,
}

/// The `type` of a line. It is the first field in practice, so that no parsing is needed.
pub(super) fn line_type(line: &str) -> Option<Cow<'_, str>> {
    if let Some(rest) = line.strip_prefix("{\"type\":\"")
        && let Some(end) = rest.bytes().position(|byte| matches!(byte, b'"' | b'\\'))
        && rest.as_bytes()[end] == b'"'
    {
        return Some(Cow::Borrowed(&rest[..end]));
    }
    serde_json::from_str::<Peek<'_>>(line).ok().map(|peek| peek.kind.0)
}

/// `stream_event`: one event of the model's own stream.
#[derive(Deserialize)]
pub(super) struct StreamLine<'a> {
    #[serde(borrow)]
    pub(super) event: ApiEvent<'a>,
    #[serde(borrow)]
    pub(super) parent_tool_use_id: Option<Str<'a>>,
}

#[derive(Deserialize)]
pub(super) struct ApiEvent<'a> {
    #[serde(borrow, rename = "type")]
    pub(super) kind: Str<'a>,
    #[serde(borrow)]
    pub(super) message: Option<MessageHead<'a>>,
    #[serde(borrow)]
    pub(super) delta: Option<ClaudeDelta<'a>>,
    #[serde(default, deserialize_with = "or_default")]
    pub(super) usage: Option<ClaudeUsage>,
}

#[derive(Deserialize)]
pub(super) struct MessageHead<'a> {
    #[serde(borrow)]
    pub(super) id: Str<'a>,
    #[serde(borrow)]
    pub(super) model: Option<Str<'a>>,
    #[serde(default, deserialize_with = "or_default")]
    pub(super) usage: Option<ClaudeUsage>,
}

#[derive(Deserialize)]
pub(super) struct ClaudeDelta<'a> {
    #[serde(borrow)]
    pub(super) text: Option<Str<'a>>,
    #[serde(borrow)]
    pub(super) thinking: Option<Str<'a>>,
    #[serde(borrow)]
    pub(super) stop_reason: Option<Str<'a>>,
}

/// Token counts in the model's own words; one that is not known counts as zero.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ClaudeUsage {
    #[serde(deserialize_with = "or_default")]
    input_tokens: u64,
    #[serde(deserialize_with = "or_default")]
    output_tokens: u64,
    #[serde(deserialize_with = "or_default")]
    cache_read_input_tokens: u64,
    #[serde(deserialize_with = "or_default")]
    cache_creation_input_tokens: u64,
}

impl From<ClaudeUsage> for Usage {
    fn from(usage: ClaudeUsage) -> Self {
        Self {
            input_tokens: usage.input_tokens,
            output_tokens: usage.output_tokens,
            cache_read_tokens: usage.cache_read_input_tokens,
            cache_creation_tokens: usage.cache_creation_input_tokens,
            reasoning_tokens: 0,
        }
    }
}

/// `assistant`: one finished block of a message.
#[derive(Deserialize)]
pub(super) struct AssistantLine<'a> {
    #[serde(borrow)]
    pub(super) message: AssistantMessage<'a>,
    #[serde(borrow)]
    pub(super) parent_tool_use_id: Option<Str<'a>>,
    #[serde(borrow)]
    pub(super) error: Option<Str<'a>>,
    #[serde(borrow)]
    pub(super) uuid: Option<Str<'a>>,
}

#[derive(Deserialize)]
pub(super) struct AssistantMessage<'a> {
    #[serde(borrow)]
    pub(super) id: Str<'a>,
    #[serde(borrow)]
    pub(super) model: Option<Str<'a>>,
    #[serde(borrow)]
    pub(super) content: MessageBlocks<'a>,
    #[serde(borrow)]
    pub(super) stop_reason: Option<Str<'a>>,
    #[serde(default, deserialize_with = "or_default")]
    pub(super) usage: Option<ClaudeUsage>,
}

#[derive(Default, Deserialize)]
pub(super) struct Block<'a> {
    #[serde(borrow, rename = "type")]
    pub(super) kind: Str<'a>,
    #[serde(borrow)]
    pub(super) text: Option<Str<'a>>,
    #[serde(borrow)]
    pub(super) thinking: Option<Str<'a>>,
    #[serde(borrow)]
    pub(super) id: Option<Str<'a>>,
    #[serde(borrow)]
    pub(super) name: Option<Str<'a>>,
    pub(super) input: Option<Value>,
    #[serde(borrow)]
    pub(super) tool_use_id: Option<Str<'a>>,
    pub(super) content: Option<Value>,
    pub(super) is_error: Option<bool>,
}

impl Block<'_> {
    /// How many characters the model wrote.
    pub(super) fn characters(&self) -> u64 {
        let texts = [&self.text, &self.thinking].into_iter().flatten();
        let input = self.input.as_ref().map(|input| input.to_string().chars().count());
        texts.map(|text| text.chars().count()).chain(input).sum::<usize>() as u64
    }
}

/// A line of the transcript of a sub-agent with a message of the model.
#[derive(Deserialize)]
pub(super) struct TranscriptLine<'a> {
    timestamp: Timestamp,
    #[serde(borrow)]
    message: WrittenMessage<'a>,
}

#[derive(Deserialize)]
struct WrittenMessage<'a> {
    #[serde(borrow)]
    id: Str<'a>,
    stop_reason: Option<IgnoredAny>,
    usage: ClaudeUsage,
}

impl TranscriptLine<'_> {
    /// The id of a finished message and what it took, if it was written since then.
    pub(super) fn count(self, since: Timestamp) -> Option<(String, Usage)> {
        let is_known = self.timestamp >= since && self.message.stop_reason.is_some();
        is_known.then(|| (self.message.id.into_string(), self.message.usage.into()))
    }
}

/// `user`: what tools answered, and words that the program put in.
#[derive(Deserialize)]
pub(super) struct UserLine<'a> {
    #[serde(borrow)]
    pub(super) message: UserMessage<'a>,
    #[serde(borrow)]
    pub(super) parent_tool_use_id: Option<Str<'a>>,
    /// Whether the program repeats what it was sent.
    #[serde(default, rename = "isReplay")]
    pub(super) is_replay: bool,
    #[serde(borrow)]
    pub(super) uuid: Option<Str<'a>>,
    /// What a tool answered, in the program's own form.
    #[serde(borrow)]
    pub(super) tool_use_result: Option<&'a RawValue>,
}

impl UserLine<'_> {
    /// The sub-agent that a tool has set to work again.
    pub(super) fn resumed_agent(&self) -> Option<String> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Resumed {
            resumed_agent_id: String,
        }
        let result = self.tool_use_result?.get();
        // Most results are large, and say nothing of that.
        let resumed =
            result.contains("\"resumedAgentId\"").then(|| serde_json::from_str::<Resumed>(result))?;
        resumed.ok().map(|resumed| resumed.resumed_agent_id)
    }
}

#[derive(Deserialize)]
pub(super) struct UserMessage<'a> {
    #[serde(borrow)]
    pub(super) content: UserContent<'a>,
}

/// The blocks of a message. Nearly every line carries one, so there is room for one at first.
pub(super) struct MessageBlocks<'a>(pub(super) Vec<Block<'a>>);

impl<'de: 'a, 'a> Deserialize<'de> for MessageBlocks<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(Blocks { what: "blocks", lifetime: PhantomData }).map(Self)
    }
}

/// The blocks of a message that may be a plain string instead, which is a block of text.
pub(super) struct UserContent<'a>(pub(super) Vec<Block<'a>>);

impl<'de: 'a, 'a> Deserialize<'de> for UserContent<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Blocks { what: "a string or blocks", lifetime: PhantomData }).map(Self)
    }
}

struct Blocks<'a> {
    what: &'static str,
    lifetime: PhantomData<&'a ()>,
}

impl<'de: 'a, 'a> Visitor<'de> for Blocks<'a> {
    type Value = Vec<Block<'a>>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.what)
    }

    fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
        let text = Some(Str(Cow::Owned(text.to_owned())));
        Ok(vec![Block { kind: Str(Cow::Borrowed("text")), text, ..Block::default() }])
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
        let mut blocks = Vec::with_capacity(1);
        while let Some(block) = items.next_element()? {
            blocks.push(block);
        }
        Ok(blocks)
    }
}

/// `result`: the end of a turn.
#[derive(Deserialize)]
pub(super) struct ResultLine<'a> {
    #[serde(borrow)]
    pub(super) subtype: Str<'a>,
    pub(super) is_error: bool,
    #[serde(default, deserialize_with = "or_default")]
    pub(super) api_error_status: Option<u16>,
    #[serde(borrow)]
    pub(super) result: Option<Str<'a>>,
    #[serde(borrow, default)]
    pub(super) errors: Vec<Str<'a>>,
    #[serde(borrow)]
    pub(super) stop_reason: Option<Str<'a>>,
    #[serde(borrow)]
    pub(super) terminal_reason: Option<Str<'a>>,
    #[serde(borrow)]
    pub(super) session_id: Option<Str<'a>>,
    #[serde(default, deserialize_with = "or_default")]
    pub(super) duration_ms: f64,
    #[serde(default, deserialize_with = "or_default")]
    pub(super) total_cost_usd: Option<f64>,
    #[serde(default, deserialize_with = "or_default")]
    pub(super) usage: ClaudeUsage,
    #[serde(default, rename = "modelUsage", deserialize_with = "or_default")]
    pub(super) model_usage: BTreeMap<String, ModelUsage>,
    /// What of `model_usage` this process counted since its previous result. Older versions leave it out.
    #[serde(default, deserialize_with = "or_default")]
    pub(super) model_usage_since_last_result: Option<BTreeMap<String, ModelUsage>>,
    #[serde(default)]
    pub(super) permission_denials: Vec<Denial>,
    pub(super) structured_output: Option<Value>,
    /// What began the turn, unless it was a prompt.
    pub(super) origin: Option<IgnoredAny>,
}

/// What one model used since the process began, or since the conversation did.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct ModelUsage {
    #[serde(deserialize_with = "or_default")]
    pub(super) input_tokens: u64,
    #[serde(deserialize_with = "or_default")]
    pub(super) output_tokens: u64,
    #[serde(deserialize_with = "or_default")]
    pub(super) cache_read_input_tokens: u64,
    #[serde(deserialize_with = "or_default")]
    pub(super) cache_creation_input_tokens: u64,
    #[serde(rename = "costUSD", deserialize_with = "or_default")]
    pub(super) cost_usd: Option<f64>,
    #[serde(deserialize_with = "or_default")]
    pub(super) context_window: Option<u64>,
}

#[derive(Deserialize)]
pub(super) struct Denial {
    pub(super) tool_name: String,
    pub(super) tool_use_id: String,
    #[serde(default)]
    pub(super) tool_input: Value,
}

/// `system`: everything the program says about itself.
#[derive(Deserialize)]
pub(super) struct SystemLine<'a> {
    #[serde(borrow)]
    pub(super) subtype: Str<'a>,
    #[serde(borrow)]
    pub(super) session_id: Option<Str<'a>>,
    #[serde(borrow)]
    pub(super) model: Option<Str<'a>>,
    #[serde(default, deserialize_with = "or_default")]
    pub(super) attempt: Option<u64>,
    #[serde(default, deserialize_with = "or_default")]
    pub(super) max_retries: Option<u64>,
    #[serde(default, deserialize_with = "or_default")]
    pub(super) retry_delay_ms: Option<f64>,
    #[serde(default, deserialize_with = "or_default")]
    pub(super) error_status: Option<u16>,
    #[serde(borrow)]
    pub(super) error: Option<Str<'a>>,
    #[serde(borrow)]
    pub(super) original_model: Option<Str<'a>>,
    #[serde(borrow)]
    pub(super) fallback_model: Option<Str<'a>>,
    #[serde(borrow)]
    pub(super) tool_name: Option<Str<'a>>,
    #[serde(borrow)]
    pub(super) task_id: Option<Str<'a>>,
    #[serde(borrow)]
    pub(super) task_type: Option<Str<'a>>,
    #[serde(borrow)]
    pub(super) status: Option<Str<'a>>,
    #[serde(borrow)]
    pub(super) state: Option<Str<'a>>,
    /// What changed of a task.
    #[serde(borrow)]
    pub(super) patch: Option<TaskChange<'a>>,
    /// See [`Self::mcp_servers`].
    #[serde(borrow)]
    mcp_servers: Option<&'a RawValue>,
}

/// An MCP server, and whether it runs.
#[derive(Deserialize)]
pub(super) struct McpServer<'a> {
    #[serde(borrow)]
    pub(super) name: Str<'a>,
    #[serde(borrow)]
    pub(super) status: Str<'a>,
}

impl SystemLine<'_> {
    /// The MCP servers. A program that writes them in another form loses a warning and not the line.
    pub(super) fn mcp_servers(&self) -> Vec<McpServer<'_>> {
        self.mcp_servers.and_then(|servers| serde_json::from_str(servers.get()).ok()).unwrap_or_default()
    }
}

#[derive(Deserialize)]
pub(super) struct TaskChange<'a> {
    #[serde(borrow)]
    pub(super) status: Option<Str<'a>>,
}

/// `rate_limit_event`: the state of a subscription's limit.
#[derive(Deserialize)]
pub(super) struct RateLimitLine<'a> {
    #[serde(borrow)]
    pub(super) rate_limit_info: RateLimitInfo<'a>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct RateLimitInfo<'a> {
    #[serde(borrow)]
    pub(super) status: Option<Str<'a>>,
    /// Seconds since 1970.
    #[serde(default, deserialize_with = "or_default")]
    pub(super) resets_at: Option<i64>,
}

/// `control_request`: the program asks us.
#[derive(Deserialize)]
pub(super) struct ControlRequestLine<'a> {
    #[serde(borrow)]
    pub(super) request_id: Str<'a>,
    #[serde(borrow)]
    pub(super) request: ControlRequest<'a>,
}

#[derive(Deserialize)]
pub(super) struct ControlRequest<'a> {
    #[serde(borrow)]
    pub(super) subtype: Str<'a>,
    #[serde(borrow)]
    pub(super) tool_name: Option<Str<'a>>,
    pub(super) input: Option<Value>,
    #[serde(borrow)]
    pub(super) tool_use_id: Option<Str<'a>>,
    #[serde(borrow)]
    pub(super) description: Option<Str<'a>>,
}

/// `control_cancel_request`: the program no longer wants an answer.
#[derive(Deserialize)]
pub(super) struct ControlCancelLine<'a> {
    #[serde(borrow)]
    pub(super) request_id: Str<'a>,
}

/// `control_response`: the program answers us.
#[derive(Deserialize)]
pub(super) struct ControlResponseLine<'a> {
    #[serde(borrow)]
    pub(super) response: ControlResponse<'a>,
}

#[derive(Deserialize)]
pub(super) struct ControlResponse<'a> {
    #[serde(borrow)]
    pub(super) subtype: Str<'a>,
    #[serde(borrow)]
    pub(super) request_id: Str<'a>,
    #[serde(borrow)]
    pub(super) error: Option<Str<'a>>,
}
