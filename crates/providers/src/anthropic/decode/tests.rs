//! The decoder's refusals, and what is left of an answer that is broken off.

use super::*;

const START: &str = r#"{"type":"message_start","message":{"model":"m"}}"#;
const TEXT: &str = r#"{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}"#;
const THINKING: &str =
    r#"{"type":"content_block_start","index":0,"content_block":{"type":"thinking","thinking":""}}"#;

fn delta(piece: &str) -> String {
    format!(r#"{{"type":"content_block_delta","index":0,"delta":{piece}}}"#)
}

fn decode(events: &[&str]) -> (Vec<Decoded>, Decoder) {
    let mut decoder = Decoder::default();
    let text: String = events.iter().map(|event| format!("data: {event}\n\n")).collect();
    (decoder.push(text.as_bytes()), decoder)
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
        assert_eq!(decoded.pop(), Some(Decoded::Failed(fault)), "{events:?}");
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
        assert_eq!(Value::Array(decode(events).1.so_far().content), expected, "{events:?}");
    }
}
