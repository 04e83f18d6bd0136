//! The decoder's refusals, and what is left of an answer that is broken off.

use inspan_protocol::ErrorCode;
use inspan_testkit::{corrupt, random_chunks};
use proptest::prelude::*;

use super::*;

const START: &str = r#"{"type":"message_start","message":{"model":"m"}}"#;
const TEXT: &str = r#"{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}"#;
const THINKING: &str =
    r#"{"type":"content_block_start","index":0,"content_block":{"type":"thinking","thinking":""}}"#;

fn delta(piece: &str) -> String {
    format!(r#"{{"type":"content_block_delta","index":0,"delta":{piece}}}"#)
}

fn decode(events: &[&str]) -> (Vec<AnthropicDecoded>, Decoder) {
    let mut decoder = Decoder::default();
    let text: String = events.iter().map(|event| format!("data: {event}\n\n")).collect();
    (decoder.push(text.as_bytes()), decoder)
}

#[test]
fn tokens_that_are_written_in_another_way_lose_no_answer() {
    let start = r#"{"type":"message_start","message":{"model":"m","usage":null}}"#;
    let usage = r#"{"input_tokens":7.0,"output_tokens":"many","cache_read_input_tokens":null}"#;
    let end = format!(r#"{{"type":"message_delta","delta":{{"stop_reason":"end_turn"}},"usage":{usage}}}"#);
    let (mut decoded, _) = decode(&[start, &end, r#"{"type":"message_stop"}"#]);
    let Some(AnthropicDecoded::End(response)) = decoded.pop() else { panic!("{decoded:?}") };
    assert_eq!(response.usage, Usage { input_tokens: 7, ..Usage::default() });
}

#[test]
fn every_event_in_a_wrong_place_is_a_fault() {
    let words = delta(r#"{"type":"text_delta","text":"a"}"#);
    let thought = delta(r#"{"type":"thinking_delta","thinking":"a"}"#);
    let signed = delta(r#"{"type":"signature_delta","signature":"a"}"#);
    let unknown = delta(r#"{"type":"new_delta"}"#);
    let stop = r#"{"type":"content_block_stop","index":0}"#;
    let end = r#"{"type":"message_stop"}"#;
    let no_type = r#"{"type":"content_block_start","index":0,"content_block":{}}"#;
    let not_open = "the block 0 is not open";
    let misfit = "a piece of the block 0 is of another kind than the block";
    let rows: [(&[&str], &str); 14] = [
        (&[TEXT], "the event `content_block_start` came out of order"),
        (&[stop], "the event `content_block_stop` came out of order"),
        (&[end], "the event `message_stop` came out of order"),
        (&[START, START], "the event `message_start` came out of order"),
        (&[START, &words], not_open),
        (&[START, &unknown], not_open),
        (&[START, stop], not_open),
        (&[START, TEXT, stop, &words], not_open),
        (&[START, TEXT, TEXT], "the block 0 began twice"),
        (&[START, TEXT, &thought], misfit),
        (&[START, TEXT, &signed], misfit),
        (&[START, THINKING, &words], misfit),
        (&[START, TEXT, end], "the answer ended within a block"),
        (&[START, no_type], "the block 0 has no type"),
    ];
    for (events, expected) in rows {
        let (mut decoded, mut decoder) = decode(events);
        let fault = AgentError::new(ErrorCode::Protocol, expected);
        assert_eq!(decoded.pop(), Some(AnthropicDecoded::Failed(fault)), "{events:?}");
        assert!(decoder.push(b"data: {\"type\":\"ping\"}\n\n").is_empty());
        assert!(decoder.finish().is_empty(), "{events:?}");
    }
}

#[test]
fn only_what_the_vendor_takes_back_is_kept() {
    let words = delta(r#"{"type":"text_delta","text":"so "}"#);
    let thought = delta(r#"{"type":"thinking_delta","thinking":"hm"}"#);
    let signed = delta(r#"{"type":"signature_delta","signature":"s"}"#);
    let stop = r#"{"type":"content_block_stop","index":0}"#;
    let rows: [(&[&str], Value); 6] = [
        (&[], json!([])),
        (&[START, TEXT], json!([])),
        (&[START, TEXT, &words], json!([{ "type": "text", "text": "so " }])),
        (&[START, THINKING, &thought], json!([])),
        (&[START, THINKING, &thought, &signed], json!([])),
        (
            &[START, THINKING, &thought, &signed, stop],
            json!([{ "type": "thinking", "thinking": "hm", "signature": "s" }]),
        ),
    ];
    for (events, expected) in rows {
        assert_eq!(Value::Array(decode(events).1.partial().content), expected, "{events:?}");
    }
}

#[test]
fn a_call_that_no_result_could_name_is_a_fault() {
    let tool = |index: u8, id: &str, name: &str| {
        let block = json!({ "type": "tool_use", "id": id, "name": name, "input": {} });
        json!({ "type": "content_block_start", "index": index, "content_block": block }).to_string()
    };
    let rows = [
        (tool(1, "", "a"), "the block 1 calls a tool without a name or an id"),
        (tool(1, "2", ""), "the block 1 calls a tool without a name or an id"),
        (tool(1, "1", "b"), "the block 1 calls a tool with the id of another call"),
    ];
    for (second, expected) in rows {
        let fault = AgentError::new(ErrorCode::Protocol, expected);
        let decoded = decode(&[START, &tool(0, "1", "a"), &second]).0.pop();
        assert_eq!(decoded, Some(AnthropicDecoded::Failed(fault)));
    }
}

#[test]
fn arguments_belong_to_calls_alone() {
    let tool = r#"{"type":"content_block_start","index":0,"content_block":{"type":"tool_use","id":"1","name":"a","input":{}}}"#;
    let piece = delta(r#"{"type":"input_json_delta","partial_json":"{}"}"#);
    let words = delta(r#"{"type":"text_delta","text":"a"}"#);
    for events in [[START, TEXT, &piece], [START, tool, &words]] {
        let misfit = protocol("a piece of the block 0 is of another kind than the block".to_owned());
        assert_eq!(decode(&events).0.pop(), Some(AnthropicDecoded::Failed(misfit)));
    }
    // One that is cut off is ignored: its end is unknown.
    let cut = decode(&[START, tool, &piece]).1.partial();
    assert_eq!((cut.content, cut.calls), (vec![], vec![]));
}

/// Events of all kinds, right and wrong, in any order.
fn any_event() -> impl Strategy<Value = String> {
    let index = 0..3_u64;
    let kind = prop::sample::select(vec!["text", "thinking", "tool_use", "redacted_thinking", "odd", ""]);
    let piece = prop::sample::select(vec!["text", "thinking", "signature", "input_json", "odd"]);
    prop_oneof![
        Just(START.to_owned()),
        Just(r#"{"type":"message_stop"}"#.to_owned()),
        Just(r#"{"type":"message_delta","delta":{"stop_reason":"tool_use"}}"#.to_owned()),
        (index.clone(), kind, "[a-z]{0,2}").prop_map(|(index, kind, id)| json!({
            "type": "content_block_start", "index": index,
            "content_block": { "type": kind, "id": id, "name": "say", "input": {} },
        }).to_string()),
        (index.clone(), piece, "\\PC{0,4}").prop_map(|(index, piece, text)| json!({
            "type": "content_block_delta", "index": index, "delta": {
                "type": format!("{piece}_delta"), "text": text, "thinking": text, "signature": text, "partial_json": text,
            },
        }).to_string()),
        index.prop_map(|index| json!({ "type": "content_block_stop", "index": index }).to_string()),
    ]
}

/// The streams of the recorded cases.
fn streams() -> &'static [Vec<u8>] {
    static ALL: std::sync::LazyLock<Vec<Vec<u8>>> =
        std::sync::LazyLock::new(|| crate::replay::transcripts("anthropic"));
    &ALL
}

/// The output of these reads, and what is stored of the answer. It has one end, and nothing after it.
fn reported(chunks: &[&[u8]]) -> (Vec<AnthropicDecoded>, PartialResponse) {
    let mut decoder = Decoder::default();
    let mut decoded: Vec<AnthropicDecoded> = chunks.iter().flat_map(|chunk| decoder.push(chunk)).collect();
    decoded.extend(decoder.finish());
    let end = decoded.iter().position(|decoded| !matches!(decoded, AnthropicDecoded::Event(_)));
    assert_eq!(end.map(|end| end + 1), Some(decoded.len()), "{decoded:?}");
    (decoded, decoder.partial())
}

proptest! {
    /// A recorded stream that is corrupted anywhere, or bytes that never were a stream: no panic, no difference by the
    /// cuts, and no more output than input.
    #[test]
    fn no_stream_breaks_it(
        case in any::<prop::sample::Index>(),
        seed in any::<u64>(),
        noise in prop::option::weighted(0.2, prop::collection::vec(any::<u8>(), 0..2000)),
    ) {
        let bytes = noise.unwrap_or_else(|| corrupt(case.get::<Vec<u8>>(streams()), seed));
        let whole = reported(&[&bytes]);
        prop_assert_eq!(&reported(&random_chunks(&bytes, seed)), &whole);
        let returned = format!("{whole:?}").len();
        prop_assert!(returned <= 64 * bytes.len() + 8192, "{returned} bytes said of {}", bytes.len());
    }

    #[test]
    fn no_events_make_it_panic(events in prop::collection::vec(any_event(), 0..40), seed in any::<u64>()) {
        let text: String = events.iter().map(|event| format!("data: {event}\n\n")).collect();
        reported(&random_chunks(text.as_bytes(), seed));
    }
}
