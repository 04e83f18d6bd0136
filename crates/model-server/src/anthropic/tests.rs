//! The form of a structured answer, and the words of errors.
//! The exact bytes are in `fixtures/scenarios/answers/`.

use serde_json::json;

use super::*;

fn request(tools: &[&str]) -> RequestView {
    RequestView { tools: tools.iter().map(|&tool| tool.to_owned()).collect(), ..RequestView::default() }
}

#[test]
fn a_structured_answer_takes_the_form_the_request_offers() {
    let turn = Turn::structured(json!({"b": 1, "a": 2}));
    let spoken_with = |tools: &[&str]| {
        let returned = spoken(&turn, &request(tools));
        let reason = stop_reason(&turn, &returned);
        (returned, reason)
    };
    let input = json!({"a": 2, "b": 1});
    let name = "StructuredOutput".to_owned();
    let called = vec![Spoken::ToolUse { name, input, id: None, chunks: 4 }];
    let reported = vec![Spoken::Text { text: r#"{"a":2,"b":1}"#.to_owned(), chunks: 4 }];
    assert_eq!(spoken_with(&["StructuredOutput"]), (called, "tool_use".to_owned()));
    assert_eq!(spoken_with(&["Bash"]), (reported, "end_turn".to_owned()));
}

#[test]
fn errors_carry_the_vendors_words() {
    let kinds: Vec<String> = [400, 401, 418, 429, 500, 529, 599]
        .map(|status| Anthropic.error_body(status, None, "m", "s"))
        .iter()
        .map(|body| {
            let body: Value = serde_json::from_str(body).unwrap();
            body["error"]["type"].as_str().unwrap().to_owned()
        })
        .collect();
    let expected = [
        "invalid_request_error",
        "authentication_error",
        "invalid_request_error",
        "rate_limit_error",
        "api_error",
        "overloaded_error",
        "api_error",
    ];
    assert_eq!(kinds, expected);
    let own = Anthropic.error_body(400, Some("odd_error"), "m", "main_1");
    assert_eq!(
        own,
        r#"{"type":"error","error":{"type":"odd_error","message":"m"},"request_id":"req_main_1"}"#
    );
    assert_eq!(["overloaded_error", "odd_error"].map(|kind| Anthropic.error_status(kind)), [529, 500]);
    let adopted = Anthropic.error_body(400, Some("context_length_exceeded"), "m", "main_1");
    assert_eq!(
        adopted,
        r#"{"type":"error","error":{"type":"invalid_request_error","message":"m"},"request_id":"req_main_1"}"#
    );
}
