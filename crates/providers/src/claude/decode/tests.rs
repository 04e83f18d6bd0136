//! Tests of the decoder beyond what the cases show.

use inspan_testkit::{corrupt, split_everywhere};
use proptest::prelude::*;
use serde_json::json;

use super::*;

fn delta(text: &str) -> String {
    let delta = json!({ "type": "text_delta", "text": text });
    json!({ "type": "stream_event", "event": { "type": "content_block_delta", "index": 0, "delta": delta } })
        .to_string()
}

fn start(id: &str) -> String {
    json!({ "type": "stream_event", "event": { "type": "message_start", "message": { "id": id, "model": "m" } } }).to_string()
}

fn stop(reason: &str) -> [String; 2] {
    let end = json!({ "type": "message_delta", "delta": { "stop_reason": reason }, "usage": { "output_tokens": 1 } });
    [end, json!({ "type": "message_stop" })]
        .map(|event| json!({ "type": "stream_event", "event": event }).to_string())
}

fn assistant(id: &str, content: &Value) -> String {
    json!({ "type": "assistant", "message": { "id": id, "model": "m", "content": content } }).to_string()
}

/// All that is decoded of these reads, to the end of a program that leaves its turn open.
fn decode(chunks: &[&[u8]]) -> Vec<ClaudeDecoded> {
    let mut decoder = ClaudeDecoder::new();
    let mut out: Vec<ClaudeDecoded> = chunks.iter().flat_map(|chunk| decoder.push_bytes(chunk)).collect();
    out.extend(decoder.finish());
    out.extend(decoder.abandon().0);
    out
}

fn events(decoded: Vec<ClaudeDecoded>) -> Vec<Value> {
    let events = decoded.into_iter().filter_map(|decoded| match decoded {
        ClaudeDecoded::Event(event) => Some(serde_json::to_value(event).unwrap()),
        _ => None,
    });
    events.filter(|event| event["type"] != "usage").collect()
}

#[test]
fn the_type_may_stand_anywhere_and_hold_escapes() {
    let rows = [
        (r#"{"type":"user"}"#, Some("user")),
        (r#"{ "type" : "user" }"#, Some("user")),
        (r#"{"a":{"type":"no"},"type":"user"}"#, Some("user")),
        (r#"{"type":"us\u0065r"}"#, Some("user")),
        (r#"{"type":7}"#, None),
        ("[]", None),
    ];
    assert_eq!(
        rows.map(|(line, _)| wire::line_type(line).map(|kind| kind.into_owned())),
        rows.map(|(_, kind)| kind.map(str::to_owned))
    );
}

#[test]
fn bytes_that_are_no_utf8_are_repaired_and_said() {
    let mut line = b"{\"type\":\"keep_alive\",\"x\":\"".to_vec();
    line.extend(b"\xff\"}\n");
    let message = "line 1 of the program's output is not UTF-8 and was repaired";
    assert_eq!(ClaudeDecoder::new().push_bytes(&line), [warning("invalidUtf8", message)]);
}

#[test]
fn an_abandoned_turn_closes_its_tools_and_keeps_what_was_said() {
    let call = json!([{ "type": "tool_use", "id": "t1", "name": "Bash", "input": {} }]);
    let mut decoder = ClaudeDecoder::new();
    for line in [start("m1"), delta("half a "), delta("word"), assistant("m1", &call)] {
        decoder.push_line(&line);
    }
    assert!(decoder.in_turn() && decoder.in_tool());
    let (closing, end) = decoder.abandon();
    let closed = json!({
        "type": "toolComplete", "toolUseId": "t1", "result": "the turn ended before the tool answered", "isError": true,
    });
    assert_eq!((events(closing), end.full_text.as_str()), (vec![closed], "half a word"));
    assert!(!decoder.in_turn() && !decoder.in_tool());
}

/// What the program really printed, one text per recorded case.
fn transcripts() -> &'static [Vec<u8>] {
    static ALL: std::sync::LazyLock<Vec<Vec<u8>>> =
        std::sync::LazyLock::new(|| crate::replay::transcripts("claude"));
    &ALL
}

proptest! {
    /// What the program printed, corrupted anywhere: no panic, no difference by the cuts, and no more output than input.
    #[test]
    fn harmed_transcripts_do_not_break_it(case in any::<prop::sample::Index>(), seed in any::<u64>()) {
        let bytes = corrupt(case.get::<Vec<u8>>(transcripts()), seed);
        let whole = decode(&[&bytes]);
        prop_assert_eq!(&decode(&inspan_testkit::random_chunks(&bytes, seed)), &whole);
        let returned: usize = events(whole).iter().map(|event| event.to_string().len()).sum();
        prop_assert!(returned <= 16 * bytes.len() + 4096, "{returned} bytes said of {}", bytes.len());
    }

    /// Whatever the program prints, and however the reads cut it, the decoder neither fails nor differs.
    #[test]
    fn nothing_that_is_printed_breaks_it(
        lines in prop::collection::vec(
            prop_oneof![
                Just(delta("x")), Just(start("m1")), Just(start("m2")), Just(stop("max_tokens")[1].clone()),
                Just(stop("end_turn")[0].clone()), Just(r#"{"type":"result","subtype":"success","result":"the answer"}"#.to_owned()),
                Just(assistant("m2", &json!([{ "type": "text", "text": "t" }]))),
                Just(assistant("m3", &json!([{ "type": "tool_use", "id": "t1", "name": "n", "input": 1 }]))),
                Just(r#"{"type":"user","message":{"role":"user","content":[{"type":"tool_result","tool_use_id":"t1"}]}}"#.to_owned()),
                "[ -~]{0,40}", "\\{\"type\":\"(user|result|system|stream_event|assistant)\"[ -~]{0,40}\\}",
            ],
            0..12,
        ),
        seed in any::<u64>(),
    ) {
        let bytes = lines.join("\n").into_bytes();
        let mut open = Vec::new();
        let mut splits = split_everywhere(&bytes, [seed]).into_iter().map(|split| decode(&split.chunks));
        let first = splits.next().unwrap_or_default();
        prop_assert!(splits.all(|other| other == first));
        for decoded in first {
            match decoded {
                ClaudeDecoded::Event(StreamEvent::ToolStart { tool_use_id, .. }) => open.push(tool_use_id),
                ClaudeDecoded::Event(StreamEvent::ToolComplete { tool_use_id, .. }) => {
                    prop_assert_eq!(open.pop(), Some(tool_use_id));
                }
                _ => {}
            }
        }
        prop_assert!(open.is_empty(), "every tool is answered");
    }
}
