//! Reads a request of the Anthropic Messages format into what the script looks at.
//! It reads loosely, as the vendor does: unknown keys and content blocks are not errors.

use serde_json::Value;

use crate::wire::Complaint;
use crate::wire::{Delivery, RequestView};

/// Reads the request, or says what the vendor would say about it.
pub(super) fn view(body: &Value) -> Result<RequestView, Complaint> {
    let model = body["model"].as_str().ok_or("model: Field required")?;
    let messages = body["messages"].as_array().ok_or("messages: Field required")?;
    let delivery = match body["stream"].as_bool() {
        Some(true) => Delivery::Stream,
        _ => Delivery::Whole,
    };
    let tools = body["tools"].as_array().into_iter().flatten();
    let from_user = messages.iter().filter(|message| message["role"] == "user");
    Ok(RequestView {
        model: model.to_owned(),
        delivery,
        tools: tools.filter_map(|tool| tool["name"].as_str()).map(str::to_owned).collect(),
        system: text_of(&body["system"]),
        user_messages: from_user.map(|message| text_of(&message["content"])).collect(),
        ..RequestView::default()
    })
}

/// The text of a string, of a block, or of a list of blocks; tool results are texts within a block.
fn text_of(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        Value::Array(blocks) => {
            let texts: Vec<String> = blocks.iter().map(text_of).filter(|text| !text.is_empty()).collect();
            texts.join("\n")
        }
        Value::Object(block) => match block.get("type").and_then(Value::as_str) {
            Some("text") => block.get("text").map(text_of).unwrap_or_default(),
            Some("tool_result") => block.get("content").map(text_of).unwrap_or_default(),
            _ => String::new(),
        },
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn texts_and_tool_results_of_user_messages_are_read() {
        let body = json!({
            "model": "m", "stream": true,
            "system": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}],
            "tools": [{"name": "Bash"}, {"name": "Read"}],
            "messages": [
                {"role": "user", "content": "hello"},
                {"role": "assistant", "content": [{"type": "text", "text": "never seen"}]},
                {"role": "user", "content": [
                    {"type": "tool_result", "tool_use_id": "t", "content": "plain"},
                    {"type": "tool_result", "tool_use_id": "u", "content": [{"type": "text", "text": "block"}]},
                    {"type": "image", "source": {}},
                    {"type": "text", "text": "and text"}
                ]}
            ]
        });
        let expected = RequestView {
            model: "m".to_owned(),
            delivery: Delivery::Stream,
            tools: vec!["Bash".to_owned(), "Read".to_owned()],
            system: "one\ntwo".to_owned(),
            user_messages: vec!["hello".to_owned(), "plain\nblock\nand text".to_owned()],
            ..RequestView::default()
        };
        assert_eq!(view(&body), Ok(expected));
    }

    #[test]
    fn a_request_without_model_or_messages_is_refused() {
        assert_eq!(view(&json!({"messages": []})), Err("model: Field required".into()));
        assert_eq!(view(&json!({"model": "m", "messages": "x"})), Err("messages: Field required".into()));
        assert_eq!(view(&Value::Null), Err("model: Field required".into()));
    }
}
