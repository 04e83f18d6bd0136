//! Reads a request of the Gemini API into what the script looks at.
//! It reads loosely, as the vendor does: unknown keys and parts are no error.

use serde_json::Value;

use crate::wire::Complaint;
use crate::wire::{Delivery, RequestView};

/// Reads the request, or says what the vendor would say about it.
pub(super) fn view(body: &Value, model: &str, delivery: Delivery) -> Result<RequestView, Complaint> {
    let contents = body["contents"].as_array().filter(|contents| !contents.is_empty());
    let contents = contents.ok_or("* GenerateContentRequest.contents: contents is not specified")?;
    let tools = body["tools"].as_array().into_iter().flatten();
    let declared = tools.flat_map(|tool| tool["functionDeclarations"].as_array().into_iter().flatten());
    let from_user = contents.iter().filter(|content| content["role"] != "model");
    Ok(RequestView {
        model: model.to_owned(),
        delivery,
        tools: declared.filter_map(|tool| tool["name"].as_str()).map(str::to_owned).collect(),
        system: text_of(&body["systemInstruction"]),
        user_messages: from_user.map(text_of).collect(),
        ..RequestView::default()
    })
}

/// The texts and tool results of a content, one a line.
fn text_of(content: &Value) -> String {
    let parts = content["parts"].as_array().into_iter().flatten();
    let texts = parts.filter_map(|part| {
        match (part["text"].as_str(), part["functionResponse"]["response"].as_object()) {
            (Some(text), _) => Some(text.to_owned()),
            (None, Some(response)) => Some(match response.get("output").or_else(|| response.get("error")) {
                Some(Value::String(text)) => text.clone(),
                _ => Value::Object(response.clone()).to_string(),
            }),
            (None, None) => None,
        }
    });
    texts.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn texts_and_tool_results_of_user_contents_are_read() {
        let body = json!({
            "systemInstruction": {"parts": [{"text": "one"}, {"text": "two"}], "role": "user"},
            "tools": [{"functionDeclarations": [{"name": "run_shell_command"}, {"name": "read_file"}]}, {"googleSearch": {}}],
            "contents": [
                {"role": "user", "parts": [{"text": "hello"}]},
                {"role": "model", "parts": [{"functionCall": {"name": "read_file", "args": {}}}]},
                {"role": "user", "parts": [
                    {"functionResponse": {"name": "read_file", "response": {"output": "plain"}}},
                    {"functionResponse": {"name": "read_file", "response": {"error": "no file"}}},
                    {"functionResponse": {"name": "read_file", "response": {"lines": 2}}},
                    {"inlineData": {}},
                    {"text": "and text"}
                ]}
            ]
        });
        let expected = RequestView {
            model: "m".to_owned(),
            delivery: Delivery::Stream,
            tools: vec!["run_shell_command".to_owned(), "read_file".to_owned()],
            system: "one\ntwo".to_owned(),
            user_messages: vec!["hello".to_owned(), "plain\nno file\n{\"lines\":2}\nand text".to_owned()],
            ..RequestView::default()
        };
        assert_eq!(view(&body, "m", Delivery::Stream), Ok(expected));
    }

    #[test]
    fn a_request_without_contents_is_refused() {
        let complaint = Err("* GenerateContentRequest.contents: contents is not specified".into());
        for body in [json!({}), json!({"contents": []}), json!({"contents": "x"}), Value::Null] {
            assert_eq!(view(&body, "m", Delivery::Whole), complaint, "{body}");
        }
    }
}
