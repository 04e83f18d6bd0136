//! Tests of the decoder beyond what the recorded transcripts show.

use inspan_protocol::ErrorCode;
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

fn assistant(id: &str, parent: Option<&str>, content: &Value) -> String {
    let message = json!({ "id": id, "model": "m", "content": content });
    json!({ "type": "assistant", "message": message, "parent_tool_use_id": parent }).to_string()
}

fn answers(parent: Option<&str>, content: &Value) -> String {
    json!({ "type": "user", "message": { "role": "user", "content": content }, "parent_tool_use_id": parent })
        .to_string()
}

fn result(more: &Value) -> String {
    let mut line =
        json!({ "type": "result", "subtype": "success", "is_error": false, "result": "the answer" });
    for (key, value) in more.as_object().unwrap() {
        line[key] = value.clone();
    }
    line.to_string()
}

fn all(decoder: &mut ClaudeDecoder, lines: &[String]) -> Vec<ClaudeDecoded> {
    lines.iter().flat_map(|line| decoder.push_line(line)).collect()
}

fn events(decoded: Vec<ClaudeDecoded>) -> Vec<Value> {
    let events = decoded.into_iter().filter_map(|decoded| match decoded {
        ClaudeDecoded::Event(event) => Some(serde_json::to_value(event).unwrap()),
        _ => None,
    });
    events.filter(|event| event["type"] != "usage").collect()
}

fn end(decoded: Vec<ClaudeDecoded>) -> ClaudeTurnEnd {
    match decoded.into_iter().next_back() {
        Some(ClaudeDecoded::TurnEnd(end)) => *end,
        other => panic!("{other:?}"),
    }
}

fn whole(text: &str) -> Value {
    json!({ "type": "text", "content": text, "chunk": "whole" })
}

fn piece(text: &str) -> Value {
    json!({ "type": "text", "content": text, "chunk": "delta" })
}

#[test]
fn unknown_kinds_are_warned_of_once_in_a_turn() {
    let lines = [
        json!({ "type": "brand_new" }).to_string(),
        json!({ "type": "brand_new" }).to_string(),
        json!({ "type": "system", "subtype": "brand_new" }).to_string(),
        json!({ "type": "stream_event", "event": { "type": "odd_event" } }).to_string(),
        assistant("m1", None, &json!([{ "type": "hologram" }])),
        json!({ "type": "keep_alive" }).to_string(),
        result(&json!({})),
        json!({ "type": "brand_new" }).to_string(),
    ];
    let warning = |message: &str| json!({ "type": "warning", "code": "unknownMessage", "message": message });
    assert_eq!(
        events(all(&mut ClaudeDecoder::new(), &lines)),
        [
            warning("ignored a message of the unknown type `brand_new`"),
            // The same word of another kind causes no second warning.
            warning("ignored a stream event of the unknown type `odd_event`"),
            warning("ignored a block of the unknown type `hologram`"),
            warning("ignored a message of the unknown type `brand_new`"),
        ]
    );
}

#[test]
fn warnings_have_a_bound() {
    let mut decoder = ClaudeDecoder::new();
    let lines: Vec<String> = (0..1000).map(|n| json!({ "type": format!("kind_{n}") }).to_string()).collect();
    assert_eq!(events(all(&mut decoder, &lines)).len(), crate::decode::LIMIT);
}

#[test]
fn a_broken_line_is_a_fault_that_quotes_nothing() {
    let rows = [
        ("planted", "line 1 of the program's output (7 bytes) is not a JSON object"),
        (
            "{\"kind\":\"planted\"}",
            "line 1 of the program's output (18 bytes) is not a JSON object with a type",
        ),
        (
            "{\"type\":\"assistant\",\"message\":\"planted\"}",
            "line 1 of the program's output (type `assistant`, 40 bytes) does not have the shape that is known at column 39",
        ),
        (
            "{\"type\":\"assistant\",\"message\":{\"id\":\"m\",\"content\":\"planted\"}}",
            "line 1 of the program's output (type `assistant`, 61 bytes) does not have the shape that is known at column 59",
        ),
        (
            "{\"type\":\"stream_event\",\"event\":{\"type\":\"planted",
            "line 1 of the program's output (type `stream_event`, 47 bytes) is broken JSON at column 47",
        ),
        (
            "{\"type\":\"<planted&\"",
            "line 1 of the program's output (type `planted`, 19 bytes) is broken JSON at column 19",
        ),
    ];
    for (line, message) in rows {
        let expected = ClaudeDecoded::Fault(AgentError::new(ErrorCode::Protocol, message));
        assert_eq!(ClaudeDecoder::new().push_line(line).pop(), Some(expected), "{line}");
    }
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
fn a_last_line_counts_only_if_it_is_whole() {
    let line = result(&json!({}));
    for cut in [0, 1, line.len() / 2] {
        let mut decoder = ClaudeDecoder::new();
        decoder.push_bytes(&line.as_bytes()[..line.len() - cut]);
        let last = decoder.finish();
        let ended = matches!(last.as_slice(), [ClaudeDecoded::TurnEnd(_)]);
        let warned = last == [warning("cutLine", "the program's last line was cut off")];
        assert_eq!((ended, warned), (cut == 0, cut > 0));
    }
}

#[test]
fn blocks_that_did_not_stream_come_whole() {
    let content =
        json!([{ "type": "thinking", "thinking": "hm" }, { "type": "text", "text": "all at once" }]);
    let lines = [
        assistant("m1", None, &content),
        assistant("m1", None, &json!([{ "type": "text", "text": "more" }])),
    ];
    let thinking = json!({ "type": "thinking", "content": "hm", "chunk": "whole" });
    let mut decoder = ClaudeDecoder::new();
    assert_eq!(events(all(&mut decoder, &lines)), [thinking, whole("all at once"), whole("more")]);
    let end = end(decoder.push_line(&result(&json!({}))));
    assert_eq!((end.full_text.as_str(), end.num_turns), ("all at once\n\nmore", 1));
}

#[test]
fn what_a_broken_stream_did_not_void_is_said_again() {
    let mut lines = vec![start("m1"), delta("kept")];
    lines.extend(stop("max_tokens"));
    lines.extend([
        start("m2"),
        delta(" lost"),
        assistant("m3", None, &json!([{ "type": "text", "text": "anew" }])),
    ]);
    let mut decoder = ClaudeDecoder::new();
    assert_eq!(
        events(all(&mut decoder, &lines)),
        [piece("kept"), piece(" lost"), json!({ "type": "retract" }), whole("kept"), whole("anew")]
    );
    let end = end(decoder.push_line(&result(&json!({}))));
    assert_eq!((end.full_text.as_str(), end.num_turns), ("kept\n\nanew", 2));
}

#[test]
fn tools_of_sub_agents_are_tools_and_their_text_is_not() {
    let call = json!([{ "type": "tool_use", "id": "t1", "name": "Agent", "input": { "prompt": "p" } }]);
    let inner = json!([
        { "type": "text", "text": "not the run's" },
        { "type": "tool_use", "id": "t2", "name": "Read", "input": {} },
    ]);
    let lines = [
        assistant("m1", None, &call),
        assistant("s1", Some("t1"), &inner),
        delta("the run's"),
        answers(Some("t1"), &json!([{ "type": "tool_result", "tool_use_id": "t2", "content": "file" }])),
        answers(
            None,
            &json!([{ "type": "tool_result", "tool_use_id": "t1", "content": [], "is_error": true }]),
        ),
        answers(None, &json!([{ "type": "tool_result", "tool_use_id": "t9", "content": "" }])),
    ];
    let started = |id: &str, name: &str, input: Value| json!({ "type": "toolStart", "toolUseId": id, "toolName": name, "input": input });
    let completed = |id: &str, result: Value, is_error: bool| json!({ "type": "toolComplete", "toolUseId": id, "result": result, "isError": is_error });
    assert_eq!(
        events(all(&mut ClaudeDecoder::new(), &lines)),
        [
            started("t1", "Agent", json!({ "prompt": "p" })),
            started("t2", "Read", json!({})),
            piece("the run's"),
            completed("t2", json!("file"), false),
            completed("t1", json!([]), true),
            json!({
                "type": "warning", "code": "unknownTool",
                "message": "ignored the answer of a tool that was never called: `t9`",
            }),
        ]
    );
}

#[test]
fn counters_of_the_process_become_those_of_the_turn() {
    let turn = |input: u64, cost: f64| {
        let model = json!({ "inputTokens": input, "outputTokens": 2, "cacheReadInputTokens": 3, "cacheCreationInputTokens": 4 });
        result(
            &json!({ "modelUsage": { "m": model }, "usage": { "input_tokens": 1 }, "total_cost_usd": cost }),
        )
    };
    let mut decoder = ClaudeDecoder::new();
    let seen = [turn(10, 0.1), turn(15, 0.3), turn(15, 0.3)].map(|line| {
        let end = end(decoder.push_line(&line));
        (end.usage.input_tokens, end.usage.cache_read_tokens, end.cost_usd)
    });
    // The third turn used what the program did not count, so its cost is unknown and not zero.
    assert_eq!(seen, [(10, 3, Some(0.1)), (5, 0, Some(0.2)), (1, 0, None)]);
}

#[test]
fn a_window_that_is_no_whole_number_costs_no_line() {
    for window in [json!("200k"), json!(-1), json!(2e5), json!(null), json!({})] {
        let model = json!({ "inputTokens": 7, "contextWindow": window });
        let end = end(ClaudeDecoder::new().push_line(&result(&json!({ "modelUsage": { "m": model } }))));
        assert_eq!(end.usage.input_tokens, 7, "{window}");
    }
}

#[test]
fn a_cost_that_cannot_be_is_unknown_and_warned_of() {
    for cost in [1e308, -5.0] {
        let returned = result(&json!({ "usage": { "input_tokens": 1 }, "total_cost_usd": cost }));
        let out = ClaudeDecoder::new().push_line(&returned);
        let warned = out.iter().any(|decoded| {
            matches!(decoded, ClaudeDecoded::Event(StreamEvent::Warning { code, .. }) if code == "implausibleCost")
        });
        assert_eq!((warned, end(out).cost_usd), (true, None), "{cost}");
    }
}

#[test]
fn a_usage_limit_tells_when_it_is_lifted() {
    let event = |status: &str| {
        json!({ "type": "rate_limit_event", "rate_limit_info": { "status": status, "resetsAt": 1_767_780_000 } }).to_string()
    };
    let mut decoder = ClaudeDecoder::new();
    let message = "the account comes near its usage limit, which is lifted at 2026-01-07T10:00:00.000Z";
    assert_eq!(decoder.push_line(&event("allowed_warning")), [warning("usageLimitNear", message)]);
    assert_eq!(decoder.push_line(&event("allowed")), []);
    assert_eq!(decoder.push_line(&event("rejected")), []);
    let end = end(decoder.push_line(&result(&json!({ "is_error": true }))));
    assert_eq!(end.resets_at, Some(Timestamp::from_millis(1_767_780_000_000)));
}

#[test]
fn a_known_conversation_is_not_said_again_but_another_one_is() {
    let init =
        |id: &str| json!({ "type": "system", "subtype": "init", "session_id": id, "model": "m" }).to_string();
    let mut decoder = ClaudeDecoder::with_session("a".into());
    let returned = all(&mut decoder, &[init("a"), init("b"), init("b")]);
    assert_eq!(events(returned), [json!({ "type": "session", "sessionId": "b" })]);
    assert!(decoder.in_turn());
}

#[test]
fn an_abandoned_turn_closes_its_tools_and_keeps_what_was_said() {
    let call = json!([{ "type": "tool_use", "id": "t1", "name": "Bash", "input": {} }]);
    let mut decoder = ClaudeDecoder::new();
    all(&mut decoder, &[start("m1"), delta("half a "), delta("word"), assistant("m1", None, &call)]);
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
        let decode = |chunks: &[&[u8]]| {
            let mut decoder = ClaudeDecoder::new();
            let mut out: Vec<ClaudeDecoded> = chunks.iter().flat_map(|chunk| decoder.push_bytes(chunk)).collect();
            out.extend(decoder.finish());
            out.extend(decoder.abandon().0);
            out
        };
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
                Just(stop("end_turn")[0].clone()), Just(result(&json!({}))),
                Just(assistant("m2", None, &json!([{ "type": "text", "text": "t" }]))),
                Just(assistant("m3", None, &json!([{ "type": "tool_use", "id": "t1", "name": "n", "input": 1 }]))),
                Just(answers(None, &json!([{ "type": "tool_result", "tool_use_id": "t1" }]))),
                "[ -~]{0,40}", "\\{\"type\":\"(user|result|system|stream_event|assistant)\"[ -~]{0,40}\\}",
            ],
            0..12,
        ),
        seed in any::<u64>(),
    ) {
        let bytes = lines.join("\n").into_bytes();
        let decode = |chunks: &[&[u8]]| {
            let mut decoder = ClaudeDecoder::new();
            let mut out: Vec<ClaudeDecoded> = chunks.iter().flat_map(|chunk| decoder.push_bytes(chunk)).collect();
            out.extend(decoder.finish());
            out.extend(decoder.abandon().0);
            out
        };
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
