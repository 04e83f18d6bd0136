//! The exact bytes of a stream, and the small pieces they are made of.

use serde_json::json;

use super::*;
use crate::scenario::Block;
use crate::wire::Delivery;

fn request(tools: &[&str]) -> RequestView {
    RequestView {
        model: "claude-test".to_owned(),
        delivery: Delivery::Stream,
        tools: tools.iter().map(|&tool| tool.to_owned()).collect(),
        system: String::new(),
        user_messages: vec![],
        ..RequestView::default()
    }
}

fn stream_of(turn: &Turn, tools: &[&str]) -> String {
    let beats = Anthropic.beats(turn, &request(tools), "main_7");
    beats
        .into_iter()
        .map(|beat| match beat {
            Beat::Event(event) => event,
            Beat::Pause(wait) => format!("({wait:?})\n"),
        })
        .collect()
}

#[test]
fn thinking_text_and_a_tool_call_as_the_vendor_streams_them() {
    let blocks = vec![
        Block::Thinking { text: "Hmm.".to_owned(), signature: "c2ln".to_owned(), chunks: 2 },
        Block::Pause { ms: 30 },
        Block::Text { text: "Ünïcode \"q\"\n".to_owned(), chunks: 3 },
        Block::ToolUse {
            name: "Bash".to_owned(),
            input: json!({"zeta": [1, {"b": null, "a": true}], "command": "ls"}),
            id: None,
            chunks: 2,
        },
    ];
    let usage = crate::Usage {
        input_tokens: 3,
        output_tokens: 9,
        cache_read_tokens: 5,
        cache_creation_tokens: 7,
        ..Default::default()
    };
    let turn = Turn { blocks, usage, ..Turn::default() };
    let expected = r#"event: message_start
data: {"type":"message_start","message":{"id":"msg_main_7","type":"message","role":"assistant","model":"claude-test","content":[],"stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":3,"cache_creation_input_tokens":7,"cache_read_input_tokens":5,"output_tokens":1}}}

event: ping
data: {"type":"ping"}

event: content_block_start
data: {"type":"content_block_start","index":0,"content_block":{"type":"thinking","thinking":"","signature":""}}

event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"Hm"}}

event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"m."}}

event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":{"type":"signature_delta","signature":"c2ln"}}

event: content_block_stop
data: {"type":"content_block_stop","index":0}

(30ms)
event: content_block_start
data: {"type":"content_block_start","index":1,"content_block":{"type":"text","text":""}}

event: content_block_delta
data: {"type":"content_block_delta","index":1,"delta":{"type":"text_delta","text":"Ünïc"}}

event: content_block_delta
data: {"type":"content_block_delta","index":1,"delta":{"type":"text_delta","text":"ode "}}

event: content_block_delta
data: {"type":"content_block_delta","index":1,"delta":{"type":"text_delta","text":"\"q\"\n"}}

event: content_block_stop
data: {"type":"content_block_stop","index":1}

event: content_block_start
data: {"type":"content_block_start","index":2,"content_block":{"type":"tool_use","id":"toolu_main_7_2","name":"Bash","input":{}}}

event: content_block_delta
data: {"type":"content_block_delta","index":2,"delta":{"type":"input_json_delta","partial_json":"{\"command\":\"ls\",\"zeta\":"}}

event: content_block_delta
data: {"type":"content_block_delta","index":2,"delta":{"type":"input_json_delta","partial_json":"[1,{\"a\":true,\"b\":null}]}"}}

event: content_block_stop
data: {"type":"content_block_stop","index":2}

event: message_delta
data: {"type":"message_delta","delta":{"stop_reason":"tool_use","stop_sequence":null},"usage":{"output_tokens":9}}

event: message_stop
data: {"type":"message_stop"}

"#;
    assert_eq!(stream_of(&turn, &["Bash"]), expected);
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
