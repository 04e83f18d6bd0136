//! From a turn's words and options to the bodies of the requests that the server takes.

use inspan_protocol::{AgentError, ContentBlock};
use serde_json::{Map, Value, json};

use super::options::OpenCodeOptions;
use super::rules::Rule;
use crate::error::invalid;

/// The longest title of a conversation, in characters.
const TITLE: usize = 80;

/// The request for a new conversation. With a title given, the program asks no model for one.
pub(super) fn session(rules: &[Rule], title: &str) -> Value {
    json!({ "title": title, "permission": rules })
}

/// The title of a conversation: the beginning of its first message.
pub(super) fn title(blocks: &[ContentBlock]) -> String {
    let text = crate::input::text(blocks);
    let line = text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or("inspan");
    line.chars().take(TITLE).collect()
}

/// The request for one turn. The program takes the words as they are: only its terminal reads `/` and `@`.
pub(super) fn prompt(blocks: &[ContentBlock], options: &OpenCodeOptions) -> Result<Value, AgentError> {
    let mut parts = Vec::new();
    for block in blocks {
        parts.push(match block {
            ContentBlock::Text { text } => json!({ "type": "text", "text": text }),
            ContentBlock::Image { media_type, data } => {
                let url = format!("data:{media_type};base64,{data}");
                json!({ "type": "file", "mime": media_type, "url": url })
            }
            _ => return Err(invalid("`messages` may hold texts and pictures only")),
        });
    }
    let mut body = Map::new();
    body.insert("parts".to_owned(), json!(parts));
    let mut put = |name: &str, value: Option<Value>| value.map(|value| body.insert(name.to_owned(), value));
    if let Some(model) = &options.model {
        let Some((provider, model)) = model.split_once('/').filter(|(p, m)| !p.is_empty() && !m.is_empty())
        else {
            return Err(invalid("`model` must be written as `provider/model`"));
        };
        put("model", Some(json!({ "providerID": provider, "modelID": model })));
    }
    put("agent", options.agent.clone().map(Value::from));
    put("variant", options.variant.clone().map(Value::from));
    put("system", options.append_system_prompt.clone().map(Value::from));
    // One attempt: whether another one is wanted is the caller's to say.
    let format = |schema| json!({ "type": "json_schema", "schema": schema, "retryCount": 0 });
    put("format", options.output_schema.clone().map(format));
    Ok(Value::Object(body))
}

#[cfg(test)]
mod tests {
    use inspan_protocol::ErrorCode;

    use super::*;

    #[test]
    fn a_turn_says_what_was_asked_for_and_nothing_else() {
        let text = ContentBlock::Text { text: "/look @here".to_owned() };
        let image = ContentBlock::Image { media_type: "image/png".to_owned(), data: "AA==".to_owned() };
        assert_eq!(
            prompt(&[text.clone(), image], &OpenCodeOptions::default()).unwrap(),
            json!({ "parts": [
                { "type": "text", "text": "/look @here" },
                { "type": "file", "mime": "image/png", "url": "data:image/png;base64,AA==" },
            ] })
        );
        let options = OpenCodeOptions {
            model: Some("openrouter/vendor/model".to_owned()),
            agent: Some("plan".to_owned()),
            variant: Some("high".to_owned()),
            append_system_prompt: Some("be brief".to_owned()),
            output_schema: Some(json!({ "type": "object" })),
            ..OpenCodeOptions::default()
        };
        assert_eq!(
            prompt(std::slice::from_ref(&text), &options).unwrap(),
            json!({
                "parts": [{ "type": "text", "text": "/look @here" }],
                "model": { "providerID": "openrouter", "modelID": "vendor/model" },
                "agent": "plan", "variant": "high", "system": "be brief",
                "format": { "type": "json_schema", "schema": { "type": "object" }, "retryCount": 0 },
            })
        );
        for model in ["model", "/model", "provider/"] {
            let options = OpenCodeOptions { model: Some(model.to_owned()), ..OpenCodeOptions::default() };
            let error = prompt(std::slice::from_ref(&text), &options).unwrap_err();
            assert_eq!(error.code, ErrorCode::ConfigInvalid, "{model}");
        }
    }
}
