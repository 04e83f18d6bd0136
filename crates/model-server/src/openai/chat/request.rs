//! Reads a request of the OpenAI Chat Completions format into what the script looks at.
//! It reads loosely, as the vendor does: unknown keys, roles and tools are not errors.

use serde_json::Value;

use super::super::{AnsweredResults, missing, plain_text};
use crate::wire::Complaint;
use crate::wire::{Delivery, RequestView};

/// Reads the request, or says what the vendor would say about it.
pub(super) fn view(body: &Value) -> Result<RequestView, Complaint> {
    let model = body["model"].as_str().ok_or_else(|| missing("model"))?;
    let messages = body["messages"].as_array().ok_or_else(|| missing("messages"))?;
    let mut system = Vec::new();
    let mut answered = AnsweredResults::default();
    for message in messages {
        let text = plain_text(&message["content"]);
        match message["role"].as_str() {
            Some("tool") => answered.result(text),
            Some("user") => answered.message(text),
            Some("system" | "developer") => system.push(text),
            _ => answered.other(),
        }
    }
    let tools = body["tools"].as_array().into_iter().flatten();
    Ok(RequestView {
        model: model.to_owned(),
        delivery: if body["stream"] == true { Delivery::Stream } else { Delivery::Whole },
        tools: tools.filter_map(|tool| tool["function"]["name"].as_str()).map(str::to_owned).collect(),
        system: system.join("\n"),
        counts_tokens: body["stream_options"]["include_usage"] == true,
        user_messages: answered.messages,
        ..RequestView::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn messages_and_tool_results_are_read_in_their_order() {
        let body = json!({
            "model": "m", "stream": true, "stream_options": {"include_usage": true},
            "tools": [{"type": "function", "function": {"name": "bash"}}, {"type": "function"}],
            "messages": [
                {"role": "system", "content": "one"},
                {"role": "developer", "content": [{"type": "text", "text": "two"}]},
                {"role": "user", "content": [{"type": "text", "text": "hello"}, {"type": "image_url"}]},
                {"role": "assistant", "content": "never seen", "tool_calls": []},
                {"role": "tool", "tool_call_id": "a", "content": "plain"},
                {"role": "tool", "tool_call_id": "b", "content": [{"type": "text", "text": "part"}]},
                {"role": "assistant", "content": null},
                {"role": "tool", "tool_call_id": "c", "content": "later"},
                {"role": "user", "content": "and text"}
            ]
        });
        let strings = |texts: &[&str]| texts.iter().map(|&text| text.to_owned()).collect::<Vec<_>>();
        let expected = RequestView {
            model: "m".to_owned(),
            delivery: Delivery::Stream,
            tools: strings(&["bash"]),
            freeform_tools: vec![],
            tool_groups: Vec::new(),
            system: "one\ntwo".to_owned(),
            counts_tokens: true,
            user_messages: strings(&["hello", "plain\npart", "later", "and text"]),
        };
        assert_eq!(view(&body), Ok(expected));
    }

    #[test]
    fn what_is_missing_is_refused() {
        let message = |body: Value| view(&body).unwrap_err().message;
        assert_eq!(message(json!({"messages": []})), "Missing required parameter: 'model'.");
        assert_eq!(message(json!({"model": "m"})), "Missing required parameter: 'messages'.");
        assert_eq!(message(Value::Null), "Missing required parameter: 'model'.");
    }
}
