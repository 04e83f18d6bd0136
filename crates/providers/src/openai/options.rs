//! The input of a call of the Responses API.

use inspan_protocol::{AgentError, ErrorCode, Message, ProviderSessionId, ThinkingLevel};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_with::skip_serializing_none;

use crate::api::api_options;
use crate::input::provider_input_beside;

/// The input of one turn: exactly one of `prompt` and `messages`.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct OpenAiInput {
    /// What the user says.
    pub prompt: Option<String>,
    /// The conversation: texts, pictures and documents of the user and texts of the assistant, in turn; the last message
    /// is the user's. With `threadId` they follow what the conversation has already.
    pub messages: Option<Vec<Message>>,
    /// The conversation to continue: the `threadId` of an earlier output, or one that the vendor stores, by its
    /// `conv_…`, or by the `resp_…` of its last answer.
    pub thread_id: Option<ProviderSessionId>,
    /// The same as `options.model`.
    pub model: Option<String>,
    /// How the model is asked.
    pub options: Option<OpenAiOptions>,
}

api_options! {
    /// How the model is asked. In a conversation that Inspan stores, `model`, `systemPrompt`, `maxTokens`, `temperature`,
    /// `thinking` and `thinkingSummary` stay as they were unless they are given anew. Tools and servers are those of the call:
    /// what they need may be secret, so no conversation stores it.
    pub struct OpenAiOptions {
        /// The model, by the vendor's name for it; `gpt-5.6-terra` unless given.
        pub model: Option<String>,
        /// Tokens that the answer may have, thinking included; 0 is unset. Unset it is the model's own limit.
        pub max_tokens: Option<u32>,
        /// How freely the model chooses its words, from 0 to 2. It is passed on as it is; models that think refuse it.
        pub temperature: Option<f64>,
        /// The system prompt.
        pub system_prompt: Option<String>,
        /// How much the model may think. Unset it is the model's own choice.
        pub thinking: Option<ThinkingLevel>,
        /// How much of the model's thinking the vendor reports; `auto` if `thinking` is given, else nothing.
        pub thinking_summary: Option<ThinkingSummary>,
        /// The JSON Schema of the structured output.
        pub output_schema: Option<Value>,
        /// The same as `threadId`.
        pub resume: Option<ProviderSessionId>,
    }
}

/// How much of a model's thinking the vendor reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum ThinkingSummary {
    /// Nothing.
    Off,
    /// As much as it sees fit.
    Auto,
    /// A little.
    Concise,
    /// Much.
    Detailed,
}

impl OpenAiInput {
    /// The options, with the fields that may be beside them; the conversation is their `resume`.
    pub(super) fn settled(&self) -> Result<OpenAiOptions, AgentError> {
        let mut options = self.options.clone().unwrap_or_default();
        options.model = one("model", self.model.clone(), "options.model", options.model.take())?;
        options.resume = one("threadId", self.thread_id.clone(), "options.resume", options.resume.take())?;
        Ok(options)
    }
}

fn one<T: PartialEq>(
    first: &str,
    one: Option<T>,
    second: &str,
    other: Option<T>,
) -> Result<Option<T>, AgentError> {
    match (one, other) {
        (Some(one), Some(other)) if one != other => {
            let message = format!("`{first}` and `{second}` are both given and differ; give one of them");
            Err(AgentError::new(ErrorCode::ConfigInvalid, message))
        }
        (one, other) => Ok(one.or(other)),
    }
}

provider_input_beside!(OpenAiInput, thread_id, model);

#[cfg(test)]
mod tests {
    use inspan_protocol::ProviderInput as _;
    use serde_json::json;

    use super::*;

    #[test]
    fn what_may_stand_in_two_places_has_to_agree() {
        let settled = |input: Value| {
            let input: OpenAiInput = serde_json::from_value(input).unwrap();
            input
                .settled()
                .map(|options| json!([options.model, options.resume]))
                .map_err(|error| error.to_string())
        };
        let differ = |first: &str, second: &str| {
            Err(format!(
                "`{first}` and `{second}` are both given and differ; give one of them (CONFIG_INVALID)"
            ))
        };
        let rows = [
            (json!({}), Ok(json!([null, null]))),
            (json!({ "model": "a", "threadId": "t" }), Ok(json!(["a", "t"]))),
            (json!({ "options": { "model": "a", "resume": "t" } }), Ok(json!(["a", "t"]))),
            (
                json!({ "model": "a", "threadId": "t", "options": { "model": "a", "resume": "t" } }),
                Ok(json!(["a", "t"])),
            ),
            (json!({ "model": "a", "options": { "model": "b" } }), differ("model", "options.model")),
            (json!({ "threadId": "a", "options": { "resume": "b" } }), differ("threadId", "options.resume")),
        ];
        for (input, expected) in rows {
            assert_eq!(settled(input.clone()), expected, "{input}");
        }
    }

    #[test]
    fn going_on_leaves_one_place_only() {
        let mut input: OpenAiInput = serde_json::from_value(
            json!({ "messages": [{ "role": "user", "content": "a" }], "model": "m", "options": { "resume": "old" } }),
        )
        .unwrap();
        input.resume(&ProviderSessionId::from("new"), "more");
        assert_eq!(json!(input), json!({ "prompt": "more", "threadId": "new", "model": "m", "options": {} }));
        assert_eq!(input.facts().session, Some(ProviderSessionId::from("new")));
    }
}
