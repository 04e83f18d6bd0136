//! The body of a request: the settings, the tools and the conversation.

use inspan_protocol::{AgentError, ContentBlock, Role, ThinkingLevel};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use serde_with::skip_serializing_none;

use super::options::{AnthropicInput, AnthropicOptions, PromptCache};
use super::schema;
use crate::error::invalid;
use crate::input::{self, blocks_of};
use crate::instructed::instruction;
use inspan_protocol::ToolSpec;

/// The model unless one is named.
pub(super) const DEFAULT_MODEL: &str = "claude-sonnet-5-5";
/// Tokens of an answer unless given; models that think by a budget have it beside the budget.
const DEFAULT_MAX_TOKENS: u32 = 32_000;
const BUDGET_MAX_TOKENS: u32 = 8_192;
const LEAST_BUDGET: u32 = 1_024;
/// Blocks that the vendor looks back from a mark for what it knows; it looks at twenty.
const LOOK_BACK: usize = 18;

/// The settings that a conversation stores.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct ConversationSettings {
    model: Option<String>,
    max_tokens: Option<u32>,
    temperature: Option<f64>,
    system_prompt: Option<String>,
    thinking: Option<ThinkingLevel>,
    max_thinking_tokens: Option<u32>,
}

impl ConversationSettings {
    /// These, with the values that a call replaces.
    pub(super) fn with(self, options: &AnthropicOptions) -> Self {
        let anew = options.thinking.is_some() || options.max_thinking_tokens.is_some();
        let (thinking, max_thinking_tokens) = match anew {
            true => (options.thinking, options.max_thinking_tokens),
            false => (self.thinking, self.max_thinking_tokens),
        };
        Self {
            model: options.model.clone().or(self.model),
            max_tokens: options.max_tokens.or(self.max_tokens),
            temperature: options.temperature.or(self.temperature),
            system_prompt: options.system_prompt.clone().or(self.system_prompt),
            thinking,
            max_thinking_tokens,
        }
    }

    fn model(&self) -> &str {
        self.model.as_deref().unwrap_or(DEFAULT_MODEL)
    }
}

/// How the amount of thinking is requested.
#[derive(Clone, Copy, Debug, PartialEq)]
enum ThinksBy {
    /// Tokens.
    Budget,
    /// A word for its effort.
    Effort,
}

impl ThinksBy {
    /// Models up to 4.5 have names such as `claude-3-7-sonnet-20250219`, `claude-opus-4-1` and
    /// `claude-sonnet-4-20250514`; a gateway may put its own words before them.
    fn of(model: &str) -> Self {
        let name = model.rsplit("claude-").next().unwrap_or(model);
        let parts: Vec<&str> = name.split(['-', '@', ':', '.']).collect();
        let number = |part: Option<&&str>| part.and_then(|part| part.parse::<u32>().ok());
        let (major, minor) = match number(parts.first()) {
            Some(major) => (Some(major), number(parts.get(1))),
            None => (number(parts.get(1)), number(parts.get(2))),
        };
        // A minor version of many digits is a date.
        let minor = minor.filter(|minor| *minor < 100).unwrap_or(0);
        match major {
            Some(..=3) => Self::Budget,
            Some(4) if minor <= 5 => Self::Budget,
            _ => Self::Effort,
        }
    }
}

/// The body of a request that streams its answer.
pub(super) fn body(
    settings: &ConversationSettings,
    options: &AnthropicOptions,
    tools: &[ToolSpec],
    messages: &[Value],
) -> Result<Vec<u8>, AgentError> {
    let thinks_by = ThinksBy::of(settings.model());
    let mut body = json!({ "model": settings.model(), "stream": true });
    let mut output = json!({});
    let mut budget = settings.max_thinking_tokens;
    match (budget, settings.thinking, thinks_by) {
        (Some(_), Some(_), _) => {
            return Err(invalid("`thinking` and `maxThinkingTokens` are both given; give one of them"));
        }
        (None, Some(ThinkingLevel::Off), _) => body["thinking"] = json!({ "type": "disabled" }),
        (None, Some(level), ThinksBy::Effort) => {
            body["thinking"] = json!({ "type": "adaptive", "display": "summarized" });
            output["effort"] = json!(effort(level));
        }
        (None, Some(level), ThinksBy::Budget) => budget = Some(tokens(level)),
        (Some(_), None, _) | (None, None, _) => {}
    }
    let max_tokens = settings.max_tokens.filter(|most| *most > 0).unwrap_or(match (thinks_by, budget) {
        (ThinksBy::Budget, budget) => BUDGET_MAX_TOKENS.saturating_add(budget.unwrap_or(0)),
        (ThinksBy::Effort, budget) => DEFAULT_MAX_TOKENS.saturating_add(budget.unwrap_or(0)),
    });
    body["max_tokens"] = json!(max_tokens);
    if let Some(budget) = budget {
        if budget < LEAST_BUDGET || budget >= max_tokens {
            let message = format!(
                "the model would think for {budget} tokens, which has to be {LEAST_BUDGET} at least and less than \
                 `maxTokens`, {max_tokens}"
            );
            return Err(invalid(message));
        }
        body["thinking"] = json!({ "type": "enabled", "budget_tokens": budget });
    }
    if let Some(temperature) = settings.temperature {
        body["temperature"] = json!(temperature);
    }
    let mut asked = None;
    match &options.output_schema {
        Some(schema) if schema::open_place(schema).is_some() => asked = Some(instruction(schema)),
        Some(schema) => {
            output["format"] = json!({ "type": "json_schema", "schema": schema::strict(schema) });
        }
        None => {}
    }
    if output != json!({}) {
        body["output_config"] = output;
    }
    let cache = match options.prompt_cache.unwrap_or_default() {
        PromptCache::Off => None,
        PromptCache::FiveMinutes => Some(json!({ "type": "ephemeral" })),
        PromptCache::OneHour => Some(json!({ "type": "ephemeral", "ttl": "1h" })),
    };
    let system = settings.system_prompt.as_deref().filter(|system| !system.trim().is_empty());
    let system: Vec<&str> = system.into_iter().chain(asked.as_deref()).collect();
    let system = (!system.is_empty()).then(|| system.join("\n\n"));
    if let Some(system) = &system {
        body["system"] = json!([marked(json!({ "type": "text", "text": system }), cache.as_ref())]);
    }
    let mut tools: Vec<Value> = tools.iter().map(tool).collect();
    if tools.is_empty() {
        // The vendor refuses a conversation with calls unless there are tools; these are there and cannot be called.
        tools = called(messages);
        if !tools.is_empty() {
            body["tool_choice"] = json!({ "type": "none" });
        }
    }
    if let (None, Some(last)) = (&system, tools.last_mut()) {
        // The system prompt comes after the tools, so that its mark is theirs too.
        *last = marked(last.take(), cache.as_ref());
    }
    if !tools.is_empty() {
        body["tools"] = json!(tools);
    }
    body["messages"] = json!(messages);
    for (message, block) in marks(messages) {
        let block = &mut body["messages"][message]["content"][block];
        *block = marked(block.take(), cache.as_ref());
    }
    serde_json::to_vec(&body)
        .map_err(|error| invalid(format!("the request cannot be written as JSON: {error}")))
}

/// A tool in the vendor's form.
fn tool(offered: &ToolSpec) -> Value {
    let mut schema = offered.input_schema.clone();
    if schema.get("type").is_none() {
        schema["type"] = json!("object");
    }
    let mut tool = json!({ "name": offered.name, "input_schema": schema });
    if !offered.description.trim().is_empty() {
        tool["description"] = json!(offered.description);
    }
    tool
}

/// The tools that were called in a conversation and are not there any more.
fn called(messages: &[Value]) -> Vec<Value> {
    let blocks = messages.iter().filter_map(|message| message["content"].as_array()).flatten();
    let calls = blocks.filter(|block| block["type"] == "tool_use");
    let names: std::collections::BTreeSet<&str> = calls.filter_map(|call| call["name"].as_str()).collect();
    let gone = |name: &str| {
        let description = "This tool is no longer available.";
        json!({ "name": name, "description": description, "input_schema": { "type": "object" } })
    };
    names.into_iter().map(gone).collect()
}

/// Where the vendor's cache is marked: the last block of the user's last message, and of the one before if there are
/// more blocks in between than the vendor looks back. Stored messages have no marks: from one on, the vendor looks
/// for the longest beginning that it knows.
fn marks(messages: &[Value]) -> Vec<(usize, usize)> {
    let length = |message: &Value| message["content"].as_array().map_or(0, Vec::len);
    let ends = messages.iter().enumerate().rev().filter(|(_, message)| message["role"] == "user");
    let ends: Vec<(usize, usize)> =
        ends.filter_map(|(at, message)| Some((at, length(message).checked_sub(1)?))).take(2).collect();
    let far = |last: usize, before: usize| {
        messages[before + 1..=last].iter().map(length).sum::<usize>() > LOOK_BACK
    };
    match ends[..] {
        [last, before] if far(last.0, before.0) => vec![before, last],
        [last, ..] => vec![last],
        [] => Vec::new(),
    }
}

fn marked(mut block: Value, cache: Option<&Value>) -> Value {
    if let Some(cache) = cache {
        block["cache_control"] = cache.clone();
    }
    block
}

fn effort(level: ThinkingLevel) -> &'static str {
    match level {
        ThinkingLevel::Off | ThinkingLevel::Minimal | ThinkingLevel::Low => "low",
        ThinkingLevel::Medium => "medium",
        ThinkingLevel::High => "high",
        _ => "xhigh",
    }
}

/// With the tokens of an answer, even the largest budget fits the output limit of those models.
fn tokens(level: ThinkingLevel) -> u32 {
    match level {
        ThinkingLevel::Off | ThinkingLevel::Minimal => LEAST_BUDGET,
        ThinkingLevel::Low => 4_096,
        ThinkingLevel::Medium => 8_192,
        ThinkingLevel::High => 16_384,
        _ => 23_552,
    }
}

/// The messages of a turn in the vendor's form.
pub(super) fn messages(input: &AnthropicInput) -> Result<Vec<Value>, AgentError> {
    let messages = input::messages(input.prompt.as_deref(), input.messages.as_deref())?;
    let mut all: Vec<Value> = Vec::new();
    for message in &messages {
        let blocks: Vec<Value> = blocks_of(&message.content)
            .iter()
            .filter_map(|block| self::block(block, message.role).transpose())
            .collect::<Result<_, _>>()?;
        if blocks.is_empty() {
            return Err(invalid("the prompt is empty, or one of `messages` is"));
        }
        let role = if message.role == Role::User { "user" } else { "assistant" };
        all.push(json!({ "role": role, "content": blocks }));
    }
    Ok(all)
}

/// A block in the vendor's form; a text of white space only is left out, because the vendor refuses it.
fn block(block: &ContentBlock, role: Role) -> Result<Option<Value>, AgentError> {
    Ok(match block {
        ContentBlock::Text { text } => text_block(text),
        ContentBlock::Image { .. } | ContentBlock::Document { .. } if role != Role::User => {
            return Err(invalid("a message of the assistant may hold no picture and no document"));
        }
        ContentBlock::Image { .. } | ContentBlock::Document { .. } => {
            let why = "a document in `messages` has to be `application/pdf` or `text/plain`";
            Some(media_block(block).ok_or_else(|| invalid(why))?)
        }
        _ => return Err(invalid("`messages` may hold texts, pictures and documents only")),
    })
}

/// A picture or a document as a block, if the vendor takes it.
pub(super) fn media_block(block: &ContentBlock) -> Option<Value> {
    let base64 =
        |media_type: &str, data: &str| json!({ "type": "base64", "media_type": media_type, "data": data });
    match block {
        ContentBlock::Image { media_type, data } => {
            Some(json!({ "type": "image", "source": base64(media_type, data) }))
        }
        ContentBlock::Document { media_type, data, title } => {
            let source = match media_type.as_str() {
                "application/pdf" => base64(media_type, data),
                "text/plain" => json!({ "type": "text", "media_type": media_type, "data": data }),
                _ => return None,
            };
            let mut block = json!({ "type": "document", "source": source });
            if let Some(title) = title {
                block["title"] = json!(title);
            }
            Some(block)
        }
        _ => None,
    }
}

/// A text as a block, unless it says nothing.
pub(super) fn text_block(text: &str) -> Option<Value> {
    (!text.trim().is_empty()).then(|| json!({ "type": "text", "text": text }))
}

#[cfg(test)]
mod tests;
