//! The input of a call of the Messages API.

use inspan_protocol::{Message, ProviderSessionId, ThinkingLevel};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_with::skip_serializing_none;

use crate::api::api_options;
use crate::input::provider_input;

/// The input of one turn: exactly one of `prompt` and `messages`.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct AnthropicInput {
    /// What the user says.
    pub prompt: Option<String>,
    /// The conversation: texts, pictures and documents of the user and texts of the assistant, in turn; the last message
    /// is the user's. With `options.resume` they follow what the conversation has already.
    pub messages: Option<Vec<Message>>,
    /// How the model is asked.
    pub options: Option<AnthropicOptions>,
}

api_options! {
    /// How the model is asked. In a conversation that continues, `model`, `systemPrompt`, `maxTokens`,
    /// `temperature`, `thinking` and `maxThinkingTokens` stay as they were unless they are given anew. Tools and servers are
    /// those of the call: what they need may be secret, so no conversation stores it.
    pub struct AnthropicOptions {
        /// The model, by the vendor's name for it; `claude-sonnet-5-5` unless given.
        pub model: Option<String>,
        /// Tokens that the answer may have, thinking included; 0 is unset. Unset it is 32 000, or what is thought and
        /// 8 192 for models up to 4.5, which think by a budget.
        pub max_tokens: Option<u32>,
        /// How freely the model chooses its words, from 0 to 1. It is passed on as it is; not every model takes it.
        pub temperature: Option<f64>,
        /// The system prompt.
        pub system_prompt: Option<String>,
        /// How much the model may think: an effort, or a budget of 1 024 to 23 552 tokens for models up to 4.5. Unset it is
        /// the model's own choice.
        pub thinking: Option<ThinkingLevel>,
        /// Tokens that the model may think for, 1 024 at least, in place of `thinking`. Not every model takes a budget.
        pub max_thinking_tokens: Option<u32>,
        /// The JSON Schema of the structured output.
        pub output_schema: Option<Value>,
        /// How long the vendor caches what it read, to read it again at a lower price; `5m` unless given.
        pub prompt_cache: Option<PromptCache>,
        /// The conversation to continue: the `sessionId` of an earlier output.
        pub resume: Option<ProviderSessionId>,
    }
}

/// How long the vendor caches a conversation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[non_exhaustive]
pub enum PromptCache {
    /// It is not asked to.
    #[serde(rename = "off")]
    Off,
    /// Five minutes from the last use.
    #[default]
    #[serde(rename = "5m")]
    FiveMinutes,
    /// An hour from the last use, at a higher price for writing.
    #[serde(rename = "1h")]
    OneHour,
}

provider_input!(AnthropicInput, |options| options.max_turns, fork_at);
