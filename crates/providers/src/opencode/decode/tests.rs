//! The decoder against any bytes and any order of events; what it makes of them is in the recorded cases.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

const SESSION: &str = "ses_1";
const STATUSES: [&str; 4] = ["pending", "running", "completed", "error"];

fn event(kind: &str, mut properties: Value) -> Vec<u8> {
    properties["sessionID"].is_null().then(|| properties["sessionID"] = json!(SESSION));
    format!("data: {}\n\n", json!({ "id": "evt", "type": kind, "properties": properties })).into_bytes()
}

fn message(id: &str, role: &str, more: Value) -> Vec<u8> {
    let mut info = json!({ "id": id, "role": role, "time": { "created": 1 } });
    info.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    event("message.updated", json!({ "info": info }))
}

fn part(id: &str, message: &str, kind: &str, more: Value) -> Vec<u8> {
    let mut part = json!({ "id": id, "messageID": message, "type": kind });
    part.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    event("message.part.updated", json!({ "part": part }))
}

fn delta(part: &str, text: &str) -> Vec<u8> {
    event("message.part.delta", json!({ "partID": part, "field": "text", "delta": text }))
}

fn idle() -> Vec<u8> {
    event("session.idle", json!({}))
}

/// A decoder in whose turn the model has begun an answer.
fn begun() -> OpenCodeDecoder {
    let mut decoder = OpenCodeDecoder::new(SESSION, None);
    assert_eq!(decoder.push(&message("u1", "user", json!({}))), []);
    assert_eq!(decoder.push(&message("a1", "assistant", json!({}))), []);
    decoder
}

fn done(id: &str, more: Value) -> Vec<u8> {
    let mut info = json!({ "time": { "created": 1, "completed": 2 } });
    info.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    message(id, "assistant", info)
}

#[test]
fn a_heartbeat_is_no_event_of_the_turn_and_a_call_is_open_until_it_ends() {
    let mut decoder = begun();
    decoder.push(b"data: {\"type\":\"server.heartbeat\",\"properties\":{}}\n\n");
    assert_eq!((decoder.events_of_turn(), decoder.in_tool()), (2, false));
    decoder.push(&part(
        "p",
        "a1",
        "tool",
        json!({ "callID": "c1", "tool": "t", "state": { "status": "running" } }),
    ));
    assert_eq!((decoder.events_of_turn(), decoder.in_tool()), (3, true));
    assert_eq!(decoder.prompt(), Some("u1"), "the next turn begins after this message");
}

proptest! {
    /// No bytes make it panic, and where they are cut changes nothing.
    #[test]
    fn any_bytes_are_decoded_alike(bytes in prop::collection::vec(any::<u8>(), 0..300), at in 0_usize..300) {
        let whole = OpenCodeDecoder::new(SESSION, None).push(&bytes);
        let (left, right) = bytes.split_at(at.min(bytes.len()));
        let mut decoder = OpenCodeDecoder::new(SESSION, None);
        let mut cut = decoder.push(left);
        if !cut.iter().any(|decoded| matches!(decoded, OpenCodeDecoded::Fault(_))) {
            cut.extend(decoder.push(right));
            prop_assert_eq!(cut, whole);
        }
    }

    /// Nor do events of the known kinds with any content, in any order.
    #[test]
    fn any_events_are_survived(events in prop::collection::vec((0_usize..9, 0_u8..4, any::<bool>(), "[a-z ]{0,8}"), 0..60)) {
        let mut decoder = begun();
        let mut ends = 0;
        for (kind, id, flag, words) in events {
            let (part_id, message_id) = (format!("p{id}"), format!("a{id}"));
            let bytes = match kind {
                0 => message(&message_id, if flag { "assistant" } else { "user" }, json!({ "summary": flag })),
                1 => done(&message_id, json!({ "finish": words })),
                2 => part(&part_id, &message_id, "text", json!({ "text": words, "time": { "end": flag.then_some(1) } })),
                3 => delta(&part_id, &words),
                4 => part(&part_id, &message_id, "tool", json!({ "callID": words, "tool": "t", "state": {
                    "status": STATUSES[usize::from(id)], "input": { "tool": 1 } } })),
                5 => part(&part_id, &message_id, "step-finish", json!({ "tokens": { "input": -5.5 }, "cost": f64::from(id) })),
                6 => event("session.error", json!({ "error": { "name": words } })),
                7 => event("permission.asked", json!({ "id": words, "permission": words, "sessionID": if flag { SESSION } else { "ses_2" } })),
                _ => idle(),
            };
            for decoded in decoder.push(&bytes) {
                prop_assert!(!matches!(decoded, OpenCodeDecoded::Fault(_)), "{decoded:?}");
                ends += usize::from(matches!(decoded, OpenCodeDecoded::TurnEnd(_)));
            }
            if ends > 0 { break; }
        }
        decoder.abandon();
    }
}
