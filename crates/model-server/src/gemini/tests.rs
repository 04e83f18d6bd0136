//! That the events add up to the whole body, and that every path, end and error has its own name.
//! The exact bytes are in `fixtures/scenarios/answers/`.

use serde_json::json;

use super::*;
use crate::scenario::Block;

const FORMAT: fn() -> Gemini = || Gemini { model: "gemini-test".to_owned(), delivery: Delivery::Stream };

fn request() -> RequestView {
    let tools = vec!["run_shell_command".to_owned()];
    RequestView { model: "gemini-test".to_owned(), tools, ..RequestView::default() }
}

fn events_of(turn: &Turn) -> Vec<Value> {
    let events = FORMAT().beats(turn, &request(), "main_7").into_iter().filter_map(|beat| match beat {
        Beat::Event(event) => Some(event),
        Beat::Pause(_) => None,
    });
    let data =
        |event: String| event.strip_prefix("data: ").unwrap().strip_suffix("\r\n\r\n").unwrap().to_owned();
    events.map(|event| serde_json::from_str(&data(event)).unwrap()).collect()
}

#[test]
fn a_path_says_what_is_asked_for() {
    let generate =
        |model: &str, delivery| Some(Method::Generate(Gemini { model: model.to_owned(), delivery }));
    let rows = [
        ("/v1beta/models/gemini-2.5-pro:streamGenerateContent", generate("gemini-2.5-pro", Delivery::Stream)),
        ("/v1/models/m:generateContent", generate("m", Delivery::Whole)),
        ("/v1beta/models/a:b:countTokens", Some(Method::CountTokens)),
        ("/v1beta/models/:generateContent", None),
        ("/v1beta/models/m:embedContent", None),
        ("/v1beta/models/m", None),
        ("/v1/messages", None),
    ];
    for (path, expected) in rows {
        assert_eq!(method(path), expected, "{path}");
    }
}

#[test]
fn the_whole_body_is_what_the_events_add_up_to() {
    let blocks = vec![
        Block::thinking("let me think"),
        Block::Pause { ms: 5 },
        Block::text("One. Two."),
        Block::shell("ls"),
    ];
    let turn = Turn { blocks, ..Turn::default() };
    let whole: Value = serde_json::from_str(&FORMAT().whole(&turn, &request(), "main_7")).unwrap();
    let events = events_of(&turn);
    let parts = events.iter().map(|event| &event["candidates"][0]["content"]["parts"][0]);
    let mut added: Vec<Value> = Vec::new();
    for part in parts.filter(|part| part["text"] != "") {
        match added.last_mut().filter(|last| last["thought"] == part["thought"] && last["text"].is_string()) {
            Some(last) if part["text"].is_string() => {
                last["text"] =
                    format!("{}{}", last["text"].as_str().unwrap(), part["text"].as_str().unwrap()).into();
            }
            _ => added.push(part.clone()),
        }
    }
    assert_eq!(whole["candidates"][0]["content"]["parts"], json!(added));
    let last = events.last().unwrap();
    let end =
        |answer: &Value| [answer["candidates"][0]["finishReason"].clone(), answer["usageMetadata"].clone()];
    assert_eq!(end(last), end(&whole));
    assert_eq!(end(&events[0]), [Value::Null, Value::Null]);
}

#[test]
fn every_stop_reason_has_its_word() {
    let end = |reason: &str| {
        let turn = Turn { stop_reason: Some(reason.to_owned()), ..Turn::text("a") };
        events_of(&turn).last().unwrap()["candidates"][0]["finishReason"].clone()
    };
    let reasons =
        ["end_turn", "tool_use", "max_tokens", "refusal", "content_filter", "MALFORMED_FUNCTION_CALL"];
    assert_eq!(
        reasons.map(end),
        ["STOP", "STOP", "MAX_TOKENS", "SAFETY", "SAFETY", "MALFORMED_FUNCTION_CALL"]
    );
}

#[test]
fn tokens_are_counted_as_the_vendor_does() {
    let counted = usage(&Usage {
        input_tokens: 10,
        output_tokens: 7,
        cache_read_tokens: 3,
        cache_creation_tokens: 1,
        reasoning_tokens: 2,
    });
    assert_eq!(
        counted,
        json!({"promptTokenCount": 14, "cachedContentTokenCount": 3, "candidatesTokenCount": 5,
               "thoughtsTokenCount": 2, "totalTokenCount": 21})
    );
}

#[test]
fn an_error_has_the_word_of_its_kind_or_of_its_status() {
    let body = |status, kind| FORMAT().error_body(status, kind, "No", "main_7");
    let expected = |code: u16, status: &str| {
        format!("{{\"error\":{{\"code\":{code},\"message\":\"No\",\"status\":\"{status}\"}}}}")
    };
    assert_eq!(body(429, None), expected(429, "RESOURCE_EXHAUSTED"));
    assert_eq!(body(502, None), expected(502, "INTERNAL"));
    assert_eq!(body(418, None), expected(418, "INVALID_ARGUMENT"));
    assert_eq!(body(529, Some("overloaded_error")), expected(529, "UNAVAILABLE"));
    assert_eq!(body(400, Some("ABORTED")), expected(400, "ABORTED"));
}
