//! What is left of an answer that is broken off, and a decoder that survives any bytes.

use inspan_protocol::ErrorCode;
use proptest::prelude::*;
use serde_json::json;

use super::*;

const START: &str = r#"{"type":"response.created","response":{"id":"resp_1","model":"m"}}"#;
const MESSAGE: &str = r#"{"type":"response.output_item.added","output_index":1,"item":{"type":"message","phase":"commentary"}}"#;
const THOUGHT: &str = r#"{"type":"response.output_item.added","output_index":0,"item":{"type":"reasoning"}}"#;
const SEALED: &str = r#"{"type":"response.output_item.done","output_index":0,"item":{"type":"reasoning","id":"rs_1","summary":[],"encrypted_content":"s"}}"#;
const CALL: &str = r#"{"type":"response.output_item.done","output_index":2,"item":{"type":"function_call","id":"fc_1","status":"completed","call_id":"c","name":"look","arguments":"{}"}}"#;
const WORDS: &str = r#"{"type":"response.output_text.delta","output_index":1,"delta":"so "}"#;

fn decode(events: &[&str]) -> (Vec<OpenAiDecoded>, Decoder) {
    let mut decoder = Decoder::default();
    let text: String = events.iter().map(|event| format!("data: {event}\n\n")).collect();
    (decoder.push(text.as_bytes()), decoder)
}

#[test]
fn only_what_the_vendor_takes_back_is_kept() {
    let returned = json!({ "type": "message", "role": "assistant", "phase": "commentary",
        "content": [{ "type": "output_text", "text": "so " }] });
    let sealed = json!({ "type": "reasoning", "summary": [], "encrypted_content": "s" });
    let call = json!({ "type": "function_call", "call_id": "c", "name": "look", "arguments": "{}" });
    let rows: [(&[&str], Value); 7] = [
        (&[], json!([])),
        (&[START, MESSAGE], json!([])),
        (&[START, MESSAGE, WORDS], json!([returned])),
        (&[START, THOUGHT], json!([])),
        (&[START, THOUGHT, SEALED], json!([])),
        (&[START, THOUGHT, SEALED, MESSAGE, WORDS], json!([sealed, returned])),
        (&[START, THOUGHT, SEALED, CALL], json!([sealed, call])),
    ];
    for (events, expected) in rows {
        let returned = decode(events).1.partial();
        assert_eq!(
            (Value::Array(returned.items), returned.calls.len()),
            (expected, usize::from(events.contains(&CALL)))
        );
    }
}

#[test]
fn nothing_follows_a_fault() {
    let (mut decoded, mut decoder) = decode(&[START, WORDS]);
    let fault = AgentError::new(ErrorCode::Protocol, "the item 1 is not open").with("responseId", "resp_1");
    assert_eq!(decoded.pop(), Some(OpenAiDecoded::Failed(fault)));
    assert!(decoder.push(format!("data: {START}\n\n").as_bytes()).is_empty());
    assert!(decoder.finish().is_empty());
}

#[test]
fn an_answer_has_a_bound_of_items() {
    let item = |index: usize| {
        format!(
            r#"{{"type":"response.output_item.added","output_index":{index},"item":{{"type":"message"}}}}"#
        )
    };
    let many: Vec<String> = (0..=ITEMS).map(item).collect();
    let events: Vec<&str> = std::iter::once(START).chain(many.iter().map(String::as_str)).collect();
    let (mut decoded, _) = decode(&events);
    let Some(OpenAiDecoded::Failed(error)) = decoded.pop() else { panic!("{} items are taken", many.len()) };
    assert_eq!(error.message, "the answer has more than 4096 items");
}

/// What a decoder holds, in bytes, without the places of its items.
fn held(decoder: &Decoder) -> usize {
    let item = |item: &DecodedItem| match item {
        DecodedItem::Open { kind, phase, text, refusal, .. } => {
            kind.len() + phase.as_ref().map_or(0, String::len) + text.len() + refusal.len()
        }
        DecodedItem::Done(value) => value.to_string().len(),
    };
    decoder.items.values().map(item).sum::<usize>() + decoder.state.reader.held()
}

/// Feeds a decoder in pieces, to its end and beyond. It holds no more than it was fed, and it ends once.
fn feed(bytes: &[u8], size: usize) -> Result<(), TestCaseError> {
    let mut decoder = Decoder::default();
    let mut fed = 0;
    let mut ends = 0;
    let mut count = |decoded: Vec<OpenAiDecoded>| {
        ends += decoded.iter().filter(|one| !matches!(one, OpenAiDecoded::Event(_))).count();
    };
    for piece in bytes.chunks(size) {
        count(decoder.push(piece));
        fed += piece.len();
        // A control character that is one byte in memory is written as six.
        prop_assert!(held(&decoder) <= 6 * fed, "{} held of {fed}", held(&decoder));
        prop_assert!(decoder.items.len() <= ITEMS);
    }
    count(decoder.finish());
    count(decoder.push(b"data: {}\n\n"));
    count(decoder.finish());
    prop_assert_eq!(ends, 1);
    let _ = decoder.partial();
    Ok(())
}

proptest! {
    #[test]
    fn no_bytes_harm_it(bytes in prop::collection::vec(any::<u8>(), 0..2048), size in 1usize..64) {
        feed(&bytes, size)?;
    }

    #[test]
    fn no_json_harms_it(
        events in prop::collection::vec(
            (prop::sample::select(vec![
                "response.created", "response.output_item.added", "response.output_item.done",
                "response.output_text.delta", "response.reasoning_summary_text.delta", "response.refusal.delta",
                "response.completed", "response.incomplete", "response.failed", "error", "response.other",
            ]), 0u64..3, "[a-z\\\\\"{}é]{0,6}", prop::sample::select(vec![
                json!(null), json!({}), json!([]), json!({ "type": "message", "content": [{ "type": "output_text", "text": "a" }] }),
                json!({ "type": "message", "content": 3 }), json!({ "type": "reasoning", "summary": [{ "type": "summary_text" }] }),
                json!({ "type": "function_call", "name": 1 }), json!({ "type": "other" }),
            ])),
            0..24,
        ),
    ) {
        let text: String = events.into_iter().map(|(kind, index, delta, item)| {
            let response = json!({ "id": delta, "output": [item], "usage": { "input_tokens": index } });
            let event = json!({
                "type": kind, "output_index": index, "delta": delta, "item": item, "response": response,
            });
            format!("data: {event}\n\n")
        }).collect();
        feed(text.as_bytes(), 7)?;
    }

    #[test]
    fn no_change_of_an_answer_harms_it(
        which in any::<prop::sample::Index>(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in any::<prop::sample::Index>(),
    ) {
        let all = crate::replay::transcripts("openai");
        let mut bytes = which.get(&all).clone();
        if !bytes.is_empty() {
            for (place, byte) in changes {
                let place = place.index(bytes.len());
                bytes[place] = byte;
            }
            let cut = cut.index(bytes.len());
            bytes.rotate_left(cut / 2);
        }
        feed(&bytes, 97)?;
    }
}
