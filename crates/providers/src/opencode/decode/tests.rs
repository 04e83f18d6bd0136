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

/// Some gateways number the calls of each answer from the beginning.
#[test]
fn a_question_shows_its_own_call_where_two_answers_give_one_id() {
    let mut decoder = begun();
    let call = |part_id: &str, message: &str, status: &str, command: &str| {
        let state = json!({ "status": status, "input": { "command": command } });
        part(part_id, message, "tool", json!({ "callID": "call_0", "tool": "bash", "state": state }))
    };
    let asks = |id: &str, message: &str| {
        let tool = json!({ "messageID": message, "callID": "call_0" });
        event("permission.asked", json!({ "id": id, "permission": "bash", "tool": tool }))
    };
    let mut said = Vec::new();
    for bytes in [
        call("p1", "a1", "running", "echo hi"),
        asks("q1", "a1"),
        call("p1", "a1", "completed", "echo hi"),
        done("a1", json!({})),
        message("a2", "assistant", json!({})),
        // It may overtake its call.
        asks("q2", "a2"),
        call("p2", "a2", "running", "rm -r ."),
        call("p2", "a2", "completed", "rm -r ."),
    ] {
        said.extend(decoder.push(&bytes));
    }
    let said: Vec<_> = said
        .into_iter()
        .filter_map(|said| match said {
            OpenCodeDecoded::Requested { request, .. } => {
                Some(("asks", request.tool_use_id?, request.input["command"].as_str()?.to_owned()))
            }
            OpenCodeDecoded::Event(StreamEvent::ToolStart { tool_use_id, input, .. }) => {
                Some(("starts", tool_use_id, input["command"].as_str()?.to_owned()))
            }
            OpenCodeDecoded::Event(StreamEvent::ToolComplete { tool_use_id, .. }) => {
                Some(("ends", tool_use_id, String::new()))
            }
            _ => None,
        })
        .collect();
    let first = |what, command: &str| (what, "call_0".to_owned(), command.to_owned());
    let second = |what, command: &str| (what, "call_0#2".to_owned(), command.to_owned());
    let expected = [
        first("starts", "echo hi"),
        first("asks", "echo hi"),
        first("ends", ""),
        second("starts", "rm -r ."),
        second("asks", "rm -r ."),
        second("ends", ""),
    ];
    assert_eq!(said, expected);
}

/// The program takes each for a whole answer, and asks again without end.
#[test]
fn answers_that_are_cut_off_in_a_row_end_the_turn_without_a_price() {
    let mut decoder = begun();
    let step = |id: &str, reason: &str, input: u32| {
        let tokens =
            json!({ "input": input, "output": 0, "reasoning": 0, "cache": { "read": 0, "write": 0 } });
        part(id, "a1", "step-finish", json!({ "reason": reason, "tokens": tokens, "cost": 0.25 }))
    };
    let starts = |id: &str| part(id, "a1", "step-start", json!({}));
    decoder.push(&starts("s1"));
    decoder.push(&step("f1", "tool-calls", 100));
    decoder.push(&starts("s2"));
    let hopeless = |decoder: &mut OpenCodeDecoder, id: &str| {
        let said = decoder.push(&step(id, "unknown", 0));
        said.iter()
            .any(|said| matches!(said, OpenCodeDecoded::Hopeless(error) if error.code == ErrorCode::Network))
    };
    assert_eq!(["f2", "f3", "f4"].map(|id| hopeless(&mut decoder, id)), [false, false, true]);
    let (said, end) = decoder.abandon();
    assert_eq!((end.output.num_turns, end.output.usage.input_tokens, end.output.cost_usd), (4, 100, None));
    let is_unpriced = |said: &OpenCodeDecoded| matches!(said, OpenCodeDecoded::Event(StreamEvent::Usage { usage, cost_usd: None }) if usage.input_tokens == 100);
    assert!(said.iter().any(is_unpriced), "{said:?}");
}

#[test]
fn numbers_that_cannot_be_read_lose_no_answer() {
    for odd in [json!(-28), json!("many"), json!({}), Value::Null] {
        let mut decoder = begun();
        let tokens = json!({ "input": odd, "output": 1e19, "reasoning": 1e19, "cache": odd });
        let step = |id: &str, cost: &Value| {
            part(id, "a1", "step-finish", json!({ "reason": "stop", "tokens": tokens, "cost": cost }))
        };
        let said = [decoder.push(&step("f1", &odd)), decoder.push(&step("f2", &json!(0.25)))].concat();
        assert!(!said.iter().any(|said| matches!(said, OpenCodeDecoded::Fault(_))), "{said:?}");
        let output = decoder.abandon().1.output;
        let counts = (output.num_turns, output.usage.input_tokens, output.usage.output_tokens);
        assert_eq!((counts, output.cost_usd), ((2, 0, u64::MAX), None), "{odd}");
    }
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
