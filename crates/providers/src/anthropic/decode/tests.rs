//! The decoder's refusals, and what is left of an answer that is broken off.

use inspan_testkit::{case_folders, fixture_dir, harmed, random_chunks};
use proptest::prelude::*;

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

/// The streams of the recorded cases.
fn streams() -> &'static [Vec<u8>] {
    static ALL: std::sync::LazyLock<Vec<Vec<u8>>> = std::sync::LazyLock::new(|| {
        let cases = case_folders(fixture_dir().join("providers/anthropic")).unwrap();
        cases.iter().map(|case| std::fs::read(case.join("transcript.sse")).unwrap()).collect()
    });
    &ALL
}

/// All that comes of these reads, and what is kept of the answer.
fn told(chunks: &[&[u8]]) -> (Vec<Decoded>, Said) {
    let mut decoder = Decoder::default();
    let mut decoded: Vec<Decoded> = chunks.iter().flat_map(|chunk| decoder.push(chunk)).collect();
    decoded.extend(decoder.finish());
    (decoded, decoder.so_far())
}

proptest! {
    /// Recorded streams, harmed anywhere, and any bytes at all: no panic, no difference by the cuts, one end at most and
    /// nothing after it, and no more said than was read.
    #[test]
    fn no_stream_breaks_it(
        case in any::<prop::sample::Index>(),
        seed in any::<u64>(),
        noise in prop::option::weighted(0.2, prop::collection::vec(any::<u8>(), 0..400)),
    ) {
        let bytes = noise.unwrap_or_else(|| harmed(case.get::<Vec<u8>>(streams()), seed));
        let whole = told(&[&bytes]);
        prop_assert_eq!(&told(&random_chunks(&bytes, seed)), &whole);
        let ends = |decoded: &Decoded| !matches!(decoded, Decoded::Event(_));
        let first = whole.0.iter().position(ends);
        prop_assert!(first.is_none_or(|first| first + 1 == whole.0.len()), "something follows the end");
        let said = format!("{whole:?}").len();
        prop_assert!(said <= 64 * bytes.len() + 8192, "{said} bytes said of {}", bytes.len());
    }
}
