//! The decoder by single events: what comes twice, late, out of order or in a form that is not known.

use inspan_protocol::{Chunk, StreamEvent};
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

fn all(decoder: &mut OpenCodeDecoder, events: impl IntoIterator<Item = Vec<u8>>) -> Vec<OpenCodeDecoded> {
    events.into_iter().flat_map(|event| decoder.push(&event)).collect()
}

fn text(content: &str, chunk: Chunk) -> OpenCodeDecoded {
    OpenCodeDecoded::Event(StreamEvent::Text { content: content.to_owned(), chunk })
}

fn done(id: &str, more: Value) -> Vec<u8> {
    let mut info = json!({ "time": { "created": 1, "completed": 2 } });
    info.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    message(id, "assistant", info)
}

#[test]
fn a_text_is_said_once_however_often_it_is_told() {
    let end = json!({ "text": "one two", "time": { "start": 1, "end": 2 } });
    let rows = [
        // Streamed in full and sent again, more than once.
        (
            vec![
                delta("p", "one "),
                delta("p", "two"),
                part("p", "a1", "text", end.clone()),
                part("p", "a1", "text", end.clone()),
                delta("p", "late"),
            ],
            vec![text("one ", Chunk::Delta), text("two", Chunk::Delta)],
        ),
        // A part of it was not streamed.
        (
            vec![delta("p", "one "), part("p", "a1", "text", end.clone())],
            vec![text("one ", Chunk::Delta), text("two", Chunk::Delta)],
        ),
        // None of it was.
        (vec![part("p", "a1", "text", end.clone())], vec![text("one two", Chunk::Whole)]),
        // The end was trimmed.
        (
            vec![delta("p", "one two \n"), part("p", "a1", "text", end)],
            vec![text("one two \n", Chunk::Delta)],
        ),
    ];
    for (events, expected) in rows {
        let mut decoder = begun();
        decoder.push(&part("p", "a1", "text", json!({ "text": "", "time": { "start": 1 } })));
        assert_eq!(all(&mut decoder, events), expected);
        assert_eq!(decoder.abandon().1.full_text, "one two".split_at(decoder_said(&expected)).0.trim());
    }
}

/// How much of `one two` these events say.
fn decoder_said(events: &[OpenCodeDecoded]) -> usize {
    let returned: String = events
        .iter()
        .filter_map(|event| match event {
            OpenCodeDecoded::Event(StreamEvent::Text { content, .. }) => Some(content.as_str()),
            _ => None,
        })
        .collect();
    returned.trim().len()
}

#[test]
fn the_last_words_of_an_earlier_turn_do_not_end_this_one() {
    let mut decoder = OpenCodeDecoder::new(SESSION, Some("u0".to_owned()));
    let late = [
        idle(),
        message("a0", "assistant", json!({ "error": { "name": "MessageAbortedError", "data": {} } })),
        message("u0", "user", json!({ "summary": { "diffs": [] } })),
        event("session.error", json!({ "error": { "name": "MessageAbortedError", "data": {} } })),
    ];
    assert_eq!(all(&mut decoder, late), []);
    assert_eq!(all(&mut decoder, [message("u1", "user", json!({})), idle()]), []);
    let last = all(
        &mut decoder,
        [message("a1", "assistant", json!({})), done("a1", json!({ "finish": "stop" })), idle()],
    );
    let expected = OpenCodeTurnEnd { finish: Some("stop".to_owned()), ..OpenCodeTurnEnd::default() };
    assert_eq!(last, [OpenCodeDecoded::TurnEnd(Box::new(expected))]);
    assert_eq!(decoder.prompt(), Some("u1"));
}

#[test]
fn a_message_that_is_not_taken_ends_the_turn() {
    let failure = |words: &str| {
        event("session.error", json!({ "error": { "name": "UnknownError", "data": { "message": words } } }))
    };
    let mut decoder = OpenCodeDecoder::new(SESSION, None);
    assert_eq!(decoder.push(&failure("Error: of an earlier turn\n    at its place")), []);
    let seen = decoder.push(&failure("Agent not found: \"nobody\""));
    let [OpenCodeDecoded::TurnEnd(end)] = seen.as_slice() else { panic!("{seen:?}") };
    assert_eq!(end.error.as_ref().unwrap().name, "UnknownError");
}

#[test]
fn a_turn_ends_when_all_of_it_is_closed() {
    let mut decoder = begun();
    let failure = json!({ "error": { "name": "MessageAbortedError", "data": { "message": "Aborted" } } });
    let seen =
        all(&mut decoder, [event("session.error", failure.clone()), idle(), done("a1", failure), idle()]);
    assert_eq!(seen.len(), 2, "{seen:?}");
    assert_eq!(seen[0], OpenCodeDecoded::Closing);
    let OpenCodeDecoded::TurnEnd(end) = &seen[1] else { panic!("{seen:?}") };
    assert_eq!(end.error.as_ref().unwrap().name, "MessageAbortedError");
}

#[test]
fn steps_are_counted_once_and_a_price_of_zero_is_unknown() {
    let step = |id: &str, cost: f64| {
        let tokens = json!({ "input": 3, "output": 2, "reasoning": 4, "cache": { "read": 5, "write": 6 } });
        part(id, "a1", "step-finish", json!({ "reason": "stop", "tokens": tokens, "cost": cost }))
    };
    let mut free = begun();
    all(&mut free, [step("s1", 0.0), step("s1", 0.0), step("s2", 0.0)]);
    let end = free.abandon().1;
    let counts = [
        end.usage.input_tokens,
        end.usage.output_tokens,
        end.usage.cache_read_tokens,
        end.usage.cache_creation_tokens,
        end.usage.reasoning_tokens,
    ];
    assert_eq!((counts, end.cost_usd, end.num_turns), ([6, 12, 10, 12, 8], None, 2));
    let mut paid = begun();
    all(&mut paid, [step("s1", 0.1), step("s2", 0.2)]);
    assert_eq!(paid.abandon().1.cost_usd, Some(0.3));
}

#[test]
fn what_is_not_known_is_warned_of_once_and_what_is_broken_is_a_fault() {
    let mut decoder = begun();
    let odd = || event("session.hologram", json!({}));
    let seen = all(
        &mut decoder,
        [
            odd(),
            odd(),
            part("p", "a1", "hologram", json!({})),
            b"data: {\"type\":\"plugin.added\",\"properties\":{}}\n\n".to_vec(),
        ],
    );
    let expected = [
        warning("unknownEvent", "ignored an event of the unknown type `session.hologram`"),
        warning("unknownPart", "ignored a part of the unknown type `hologram`"),
    ];
    assert_eq!(seen, expected);
    let rows: [(&[u8], &str); 3] = [
        (b"data: planted\n\n", "event 1 of the server (type `event`, 7 bytes) is broken JSON at column 1"),
        (
            b"data: {\"type\":\"message.updated\",\"properties\":{\"sessionID\":\"ses_1\",\"info\":7}}\n\n",
            "event 1 of the server (type `message.updated`, 70 bytes) does not have the shape that is known at column 29",
        ),
        (b"data: \xff\n\n", "a line of the stream is not UTF-8"),
    ];
    for (bytes, message) in rows {
        let fault = AgentError::new(ErrorCode::Protocol, message);
        assert_eq!(OpenCodeDecoder::new(SESSION, None).push(bytes), [OpenCodeDecoded::Fault(fault)]);
    }
}

#[test]
fn a_question_waits_for_the_call_that_it_is_about() {
    let asked = || {
        event(
            "permission.asked",
            json!({ "id": "per_1", "permission": "edit", "patterns": ["a"], "metadata": { "filepath": "a" },
                "tool": { "messageID": "a1", "callID": "c1" } }),
        )
    };
    let call = |status: &str| {
        part(
            "p",
            "a1",
            "tool",
            json!({ "callID": "c1", "tool": "write", "state": { "status": status, "input": { "content": "x" } } }),
        )
    };
    let request = |name: &str, input: Value| OpenCodeDecoded::Requested {
        request_id: "per_1".to_owned(),
        kind: RequestKind::Permission,
        request: PermissionRequest {
            tool_name: name.to_owned(),
            tool_use_id: Some("c1".to_owned()),
            input,
            description: Some("edit: a".to_owned()),
        },
    };
    let whole = request("write", json!({ "content": "x" }));
    let mut early = begun();
    assert_eq!(all(&mut early, [call("pending"), asked()]), []);
    assert_eq!(early.push(&call("running")).last(), Some(&whole));
    let mut late = begun();
    assert_eq!(all(&mut late, [call("running"), asked()]).last(), Some(&whole));
    // Whatever comes next releases it.
    let mut never = begun();
    never.push(&asked());
    let heartbeat = b"data: {\"type\":\"server.heartbeat\",\"properties\":{}}\n\n";
    assert_eq!(never.push(heartbeat), [request("edit", json!({ "filepath": "a" }))]);
    assert_eq!((never.events_of_turn(), never.in_tool(), late.in_tool()), (3, false, true));
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
