//! The body of a request: the settings and the conversation.

use inspan_protocol::{AgentError, Content, ContentBlock, Message, ProviderSessionId, Role, ThinkingLevel};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use serde_with::skip_serializing_none;

use super::decode::message as answer;
use super::options::{OpenAiInput, OpenAiOptions, ThinkingSummary};
use super::schema::VendorSchema;
use crate::error::invalid;
use crate::input::{self, blocks_of};
use inspan_protocol::ToolSpec;

/// The model unless one is named.
pub(super) const DEFAULT_MODEL: &str = "gpt-5.6-terra";

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
    thinking_summary: Option<ThinkingSummary>,
}

impl ConversationSettings {
    /// These, with the values that a call replaces.
    pub(super) fn with(self, options: &OpenAiOptions) -> Self {
        Self {
            model: options.model.clone().or(self.model),
            max_tokens: options.max_tokens.or(self.max_tokens),
            temperature: options.temperature.or(self.temperature),
            system_prompt: options.system_prompt.clone().or(self.system_prompt),
            thinking: options.thinking.or(self.thinking),
            thinking_summary: options.thinking_summary.or(self.thinking_summary),
        }
    }

    fn model(&self) -> &str {
        self.model.as_deref().unwrap_or(DEFAULT_MODEL)
    }
}

/// Who stores the conversation.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Thread {
    /// Inspan, which sends all of it each time.
    Own(ProviderSessionId),
    /// The vendor, as a conversation that grows with each turn.
    Conversation(ProviderSessionId),
    /// The vendor, by its last answer.
    Response(ProviderSessionId),
}

impl Thread {
    /// The conversation of this name. The vendor's ids have prefixes, ours have none.
    pub(super) fn of(session: ProviderSessionId) -> Self {
        match session.as_str() {
            name if name.starts_with("conv_") => Self::Conversation(session),
            name if name.starts_with("resp_") => Self::Response(session),
            _ => Self::Own(session),
        }
    }

    /// Its name.
    pub(super) fn session(&self) -> &ProviderSessionId {
        match self {
            Self::Own(session) | Self::Conversation(session) | Self::Response(session) => session,
        }
    }
}

/// Whether a model thinks before it answers; the vendor refuses to be asked about the thoughts of those that do not.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Thinks {
    Yes,
    No,
}

impl Thinks {
    /// Models that do not have names such as `gpt-4.1`, `chatgpt-4o-latest` and `gpt-5-chat-latest`; a gateway may put
    /// its own words before them, and the vendor `ft:`.
    fn of(model: &str) -> Self {
        let name = model.rsplit('/').next().unwrap_or(model).trim_start_matches("ft:");
        let old = ["gpt-3.5", "gpt-4", "chatgpt-"].iter().any(|start| name.starts_with(start));
        if old || name.contains("-chat") { Self::No } else { Self::Yes }
    }
}

/// The body of a request that streams its answer.
pub(super) fn body(
    settings: &ConversationSettings,
    thread: &Thread,
    form: Option<&VendorSchema>,
    offered: &[ToolSpec],
    items: &[Value],
) -> Result<Vec<u8>, AgentError> {
    let model = settings.model();
    let mut body = json!({ "model": model, "stream": true, "input": items });
    match thread {
        Thread::Own(session) => {
            body["store"] = json!(false);
            // So that what the vendor has read of this conversation is found again.
            body["prompt_cache_key"] = json!(session);
            if Thinks::of(model) == Thinks::Yes {
                body["include"] = json!(["reasoning.encrypted_content"]);
            }
        }
        Thread::Conversation(session) => body["conversation"] = json!(session),
        Thread::Response(session) => {
            body["store"] = json!(true);
            body["previous_response_id"] = json!(session);
        }
    }
    if let Some(system) = settings.system_prompt.as_deref().filter(|system| !system.trim().is_empty()) {
        body["instructions"] = json!(system);
    }
    if let Some(most) = settings.max_tokens.filter(|most| *most > 0) {
        body["max_output_tokens"] = json!(most);
    }
    if let Some(temperature) = settings.temperature {
        body["temperature"] = json!(temperature);
    }
    if let Some(reasoning) = reasoning(settings) {
        body["reasoning"] = reasoning;
    }
    if let Some(form) = form {
        let format = json!({
            "type": "json_schema", "name": "output", "schema": form.schema, "strict": form.is_strict(),
        });
        body["text"] = json!({ "format": format });
    }
    if !offered.is_empty() {
        body["tools"] = offered.iter().map(tool).collect();
    }
    serde_json::to_vec(&body)
        .map_err(|error| invalid(format!("the request cannot be written as JSON: {error}")))
}

/// A tool as it is offered to the model. The schema is not enforced, because it may need more than the vendor supports; the
/// tool checks its arguments anyway.
fn tool(tool: &ToolSpec) -> Value {
    let mut offered = json!({
        "type": "function", "name": tool.name, "parameters": tool.input_schema, "strict": false,
    });
    if !tool.description.is_empty() {
        offered["description"] = json!(tool.description);
    }
    offered
}

fn reasoning(settings: &ConversationSettings) -> Option<Value> {
    let mut reasoning = json!({});
    let off = settings.thinking == Some(ThinkingLevel::Off);
    if off && Thinks::of(settings.model()) == Thinks::No {
        return None;
    }
    if let Some(level) = settings.thinking {
        reasoning["effort"] = json!(effort(level, settings.model()));
    }
    let usual =
        if settings.thinking.is_some() && !off { ThinkingSummary::Auto } else { ThinkingSummary::Off };
    match settings.thinking_summary.unwrap_or(usual) {
        ThinkingSummary::Off => {}
        summary => reasoning["summary"] = json!(summary),
    }
    (reasoning != json!({})).then_some(reasoning)
}

/// The vendor's word for a level. Only the first models of the fifth generation know `minimal`.
fn effort(level: ThinkingLevel, model: &str) -> &'static str {
    let name = model.rsplit('/').next().unwrap_or(model);
    match level {
        ThinkingLevel::Off => "none",
        ThinkingLevel::Minimal if name == "gpt-5" || name.starts_with("gpt-5-") => "minimal",
        ThinkingLevel::Minimal | ThinkingLevel::Low => "low",
        ThinkingLevel::Medium => "medium",
        ThinkingLevel::High => "high",
        _ => "xhigh",
    }
}

/// The messages of a turn in the vendor's form.
pub(super) fn messages(input: &OpenAiInput) -> Result<Vec<Value>, AgentError> {
    let messages = input::messages(input.prompt.as_deref(), input.messages.as_deref())?;
    messages.iter().map(message).collect()
}

fn message(message: &Message) -> Result<Value, AgentError> {
    let empty = || invalid("the prompt is empty, or one of `messages` is");
    if message.role != Role::User {
        let texts = match &message.content {
            Content::Blocks(blocks)
                if !blocks.iter().all(|block| matches!(block, ContentBlock::Text { .. })) =>
            {
                return Err(invalid("a message of the assistant may hold texts only"));
            }
            content => content.text(),
        };
        return answer(&texts, None).ok_or_else(empty);
    }
    let blocks: Vec<Value> = blocks_of(&message.content)
        .iter()
        .filter_map(|block| self::block(block).transpose())
        .collect::<Result<_, _>>()?;
    if blocks.is_empty() {
        return Err(empty());
    }
    Ok(json!({ "type": "message", "role": "user", "content": blocks }))
}

/// A block in the vendor's form; a text of white space only is left out.
pub(super) fn block(block: &ContentBlock) -> Result<Option<Value>, AgentError> {
    Ok(match block {
        ContentBlock::Text { text } => text_block(text),
        ContentBlock::Image { media_type, data } => {
            let address = format!("data:{media_type};base64,{data}");
            Some(json!({ "type": "input_image", "image_url": address, "detail": "auto" }))
        }
        ContentBlock::Document { media_type, data, title } => match media_type.as_str() {
            "application/pdf" => {
                let name = title.as_deref().unwrap_or("document.pdf");
                let file = format!("data:{media_type};base64,{data}");
                Some(json!({ "type": "input_file", "filename": name, "file_data": file }))
            }
            // The vendor takes no inline files of plain text, so the text itself is sent.
            "text/plain" => text_block(&match title {
                Some(title) => format!("{title}\n\n{data}"),
                None => data.clone(),
            }),
            _ => {
                return Err(invalid("a document in `messages` has to be `application/pdf` or `text/plain`"));
            }
        },
        _ => return Err(invalid("`messages` may hold texts, pictures and documents only")),
    })
}

fn text_block(text: &str) -> Option<Value> {
    (!text.trim().is_empty()).then(|| json!({ "type": "input_text", "text": text }))
}

#[cfg(test)]
mod tests;
