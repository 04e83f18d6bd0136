//! Reads a request of the OpenAI Responses format into what the script looks at.
//! It reads loosely, as the vendor does: unknown keys, items and tools are not errors.

use serde_json::Value;

use super::super::{AnsweredResults, missing, plain_text};
use crate::wire::Complaint;
use crate::wire::{Delivery, RequestView};

/// Reads the request, or says what the vendor would say about it.
pub(super) fn view(body: &Value) -> Result<RequestView, Complaint> {
    let model = body["model"].as_str().ok_or_else(|| missing("model"))?;
    if let Some(id) = body["previous_response_id"].as_str() {
        let message = format!("Previous response with id '{id}' not found.");
        return Err(Complaint { kind: Some("previous_response_not_found"), message });
    }
    let mut view = RequestView { model: model.to_owned(), ..RequestView::default() };
    if body["stream"] == true {
        view.delivery = Delivery::Stream;
    }
    body["tools"].as_array().into_iter().flatten().for_each(|tool| add_tool(&mut view, tool));
    let mut system: Vec<String> = body["instructions"].as_str().map(str::to_owned).into_iter().collect();
    match &body["input"] {
        Value::String(text) => view.user_messages.push(text.clone()),
        Value::Array(items) => {
            let mut answered = AnsweredResults::default();
            for item in items {
                let result = item["type"].as_str().is_some_and(|kind| kind.ends_with("_output"));
                match (result, item["role"].as_str()) {
                    (true, _) => answered.result(plain_text(&item["output"])),
                    (_, Some("user")) => answered.message(plain_text(&item["content"])),
                    (_, Some("system" | "developer")) => system.push(plain_text(&item["content"])),
                    _ => answered.other(),
                }
            }
            view.user_messages = answered.messages;
        }
        _ => return Err(missing("input")),
    }
    view.system = system.join("\n");
    Ok(view)
}

/// A tool without a name is built in, and called by its type.
fn add_tool(view: &mut RequestView, tool: &Value) {
    let kind = tool["type"].as_str().unwrap_or_default();
    let Some(name) = tool["name"].as_str().or(Some(kind)).filter(|name| !name.is_empty()) else { return };
    view.tools.push(name.to_owned());
    if kind == "custom" {
        view.freeform_tools.push(name.to_owned());
    }
    // A group of tools under one name.
    if kind == "namespace" {
        view.tool_groups.push(name.to_owned());
    }
    tool["tools"].as_array().into_iter().flatten().for_each(|tool| add_tool(view, tool));
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn messages_and_tool_results_are_read_in_their_order() {
        let body = json!({
            "model": "m", "stream": true, "instructions": "one",
            "tools": [
                {"type": "function", "name": "exec_command"},
                {"type": "custom", "name": "apply_patch"},
                {"type": "web_search"},
                {"type": "namespace", "name": "agents", "tools": [{"type": "function", "name": "spawn"}]},
                {}
            ],
            "input": [
                {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "two"}]},
                {"role": "user", "content": "hello"},
                {"type": "reasoning", "summary": [{"type": "summary_text", "text": "never seen"}]},
                {"type": "function_call", "call_id": "a", "name": "exec_command", "arguments": "{}"},
                {"type": "custom_tool_call", "call_id": "b", "name": "apply_patch", "input": "x"},
                {"type": "function_call_output", "call_id": "a", "output": "plain"},
                {"type": "custom_tool_call_output", "call_id": "b", "output": [{"type": "input_text", "text": "part"}]},
                {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "nor this"}]},
                {"type": "function_call_output", "call_id": "c", "output": "later"},
                {"type": "message", "role": "user", "content": [
                    {"type": "input_text", "text": "and"}, {"type": "input_image"}, {"type": "input_text", "text": "text"}
                ]}
            ]
        });
        let strings = |texts: &[&str]| texts.iter().map(|&text| text.to_owned()).collect::<Vec<_>>();
        let expected = RequestView {
            model: "m".to_owned(),
            delivery: Delivery::Stream,
            tools: strings(&["exec_command", "apply_patch", "web_search", "agents", "spawn"]),
            freeform_tools: strings(&["apply_patch"]),
            tool_groups: strings(&["agents"]),
            counts_tokens: false,
            system: "one\ntwo".to_owned(),
            user_messages: strings(&["hello", "plain\npart", "later", "and\ntext"]),
        };
        assert_eq!(view(&body), Ok(expected));
    }

    #[test]
    fn a_plain_text_is_one_message() {
        let found = view(&json!({"model": "m", "input": "hello"})).unwrap();
        assert_eq!((found.delivery, found.user_messages), (Delivery::Whole, vec!["hello".to_owned()]));
    }

    #[test]
    fn what_is_missing_or_not_kept_is_refused() {
        let message = |body: Value| view(&body).unwrap_err().message;
        assert_eq!(message(json!({"input": "x"})), "Missing required parameter: 'model'.");
        assert_eq!(message(json!({"model": "m"})), "Missing required parameter: 'input'.");
        assert_eq!(message(Value::Null), "Missing required parameter: 'model'.");
        let reported = message(json!({"model": "m", "input": "x", "previous_response_id": "resp_1"}));
        assert_eq!(reported, "Previous response with id 'resp_1' not found.");
    }
}
