//! Tests of the decoder beyond what the recorded transcripts show.

use inspan_testkit::split_everywhere;
use proptest::prelude::*;
use serde_json::json;

use super::wire::AnswerForm;
use super::*;
use crate::transport::json_rpc::Codec;

fn messages(lines: &[Value]) -> Vec<Incoming> {
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    let mut out = Vec::new();
    Codec::default().push(text.as_bytes(), |message| out.push(message));
    out
}

/// A decoder with a turn in progress.
fn begun() -> CodexDecoder {
    let mut decoder = CodexDecoder::default();
    decoder.open(ProviderSessionId::from("ours"), Some("m".to_owned()));
    decoder.begin(AnswerForm::Text);
    decoder.named("t");
    decoder
}

fn tell(method: &str, thread: &str, more: &Value) -> Value {
    let mut params = json!({ "threadId": thread, "turnId": "t" });
    for (key, value) in more.as_object().unwrap() {
        params[key] = value.clone();
    }
    json!({ "method": method, "params": params })
}

fn delta(thread: &str, item: &str, text: &str) -> Value {
    tell("item/agentMessage/delta", thread, &json!({ "itemId": item, "delta": text }))
}

fn usage(thread: &str, turn: &str, total: u64, input: u64) -> Value {
    let tokens = json!({ "total": { "totalTokens": total }, "last": { "inputTokens": input, "cachedInputTokens": 1 } });
    tell("thread/tokenUsage/updated", thread, &json!({ "turnId": turn, "tokenUsage": tokens }))
}

fn ended(thread: &str, turn: &Value) -> Value {
    tell("turn/completed", thread, &json!({ "turn": turn }))
}

fn all(decoder: &mut CodexDecoder, lines: &[Value]) -> Vec<CodexDecoded> {
    messages(lines).into_iter().flat_map(|message| decoder.push(message)).collect()
}

fn events(decoded: &[CodexDecoded]) -> Vec<Value> {
    let event = |decoded: &CodexDecoded| match decoded {
        CodexDecoded::Event(event) => Some(serde_json::to_value(event).unwrap()),
        _ => None,
    };
    decoded.iter().filter_map(event).collect()
}

fn end(decoded: Vec<CodexDecoded>) -> CodexTurnEnd {
    match decoded.into_iter().next_back() {
        Some(CodexDecoded::TurnEnd(end)) => *end,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_sub_agent_says_nothing_but_its_tokens_count() {
    let mut decoder = begun();
    let call = |status: &str| {
        json!({ "item": {
            "type": "collabAgentToolCall", "id": "c", "tool": "spawnAgent", "status": status, "prompt": "go",
            "receiverThreadIds": ["theirs"], "senderThreadId": "ours", "agentsStates": {},
        } })
    };
    let lines = [
        tell("item/started", "ours", &call("inProgress")),
        delta("theirs", "m1", "unheard"),
        usage("theirs", "t2", 10, 5),
        ended("theirs", &json!({ "id": "t2", "status": "completed" })),
        tell("item/completed", "ours", &call("completed")),
        usage("ours", "t", 20, 7),
        delta("ours", "m2", "heard"),
        ended("ours", &json!({ "id": "t", "status": "completed" })),
    ];
    let decoded = all(&mut decoder, &lines);
    let kinds: Vec<_> = events(&decoded).iter().map(|event| event["type"].clone()).collect();
    assert_eq!(kinds, ["toolStart", "usage", "toolComplete", "usage", "text"]);
    let end = end(decoded);
    assert_eq!((end.full_text.as_str(), end.num_turns), ("heard", 1));
    assert_eq!((end.usage.input_tokens, end.usage.cache_read_tokens), (10, 2));
}

#[test]
fn tokens_are_counted_once_however_often_they_are_told() {
    let mut decoder = CodexDecoder::default();
    decoder.open(ProviderSessionId::from("ours"), None);
    // The turn before, reported after a resumption: between the turns, and in the middle of the next.
    assert_eq!(all(&mut decoder, &[usage("ours", "before", 100, 90)]), []);
    decoder.begin(AnswerForm::Text);
    decoder.named("t");
    let lines = [
        usage("ours", "before", 100, 90),
        usage("ours", "t", 110, 10),
        usage("ours", "t", 110, 10),
        usage("ours", "t", 130, 20),
        ended("ours", &json!({ "id": "t", "status": "completed" })),
    ];
    let end = end(all(&mut decoder, &lines));
    assert_eq!((end.usage.input_tokens, end.num_turns), (28, 2));
}

#[test]
fn a_limit_of_requests_lets_the_last_tools_run() {
    let item = |id: &str| json!({ "item": { "type": "sleep", "id": id, "durationMs": 1 } });
    let mut decoder = begun();
    let mut seen = Vec::new();
    let lines = [
        tell("item/started", "ours", &item("a")),
        usage("ours", "t", 10, 1),
        tell("item/completed", "ours", &item("a")),
    ];
    for line in lines {
        all(&mut decoder, &[line]);
        seen.push((decoder.exhausted(1), decoder.exhausted(2)));
    }
    assert_eq!(seen, [(false, false), (false, false), (true, false)]);
    // An answer without tools is the last one anyhow.
    let mut decoder = begun();
    all(&mut decoder, &[delta("ours", "m", "x"), usage("ours", "t", 10, 1)]);
    assert!(!decoder.exhausted(1));
}

#[test]
fn an_item_that_was_not_streamed_comes_whole() {
    let mut decoder = begun();
    let item = |item: Value| tell("item/completed", "ours", &json!({ "item": item }));
    let lines = [
        item(json!({ "type": "reasoning", "id": "r", "summary": ["one", "two"], "content": [] })),
        item(json!({ "type": "reasoning", "id": "r2", "summary": [], "content": ["raw"] })),
        item(json!({ "type": "agentMessage", "id": "m", "text": "whole" })),
        item(json!({ "type": "imageView", "id": "i", "path": "/p" })),
        item(json!({ "type": "somethingNew", "id": "n" })),
        item(json!({ "type": "somethingNew", "id": "n2" })),
    ];
    let expected = [
        json!({ "type": "thinking", "content": "one\n\ntwo", "chunk": "whole" }),
        json!({ "type": "thinking", "content": "raw", "chunk": "whole" }),
        json!({ "type": "text", "content": "whole", "chunk": "whole" }),
        json!({ "type": "toolStart", "toolName": "imageView", "toolUseId": "i", "input": { "path": "/p" } }),
        json!({ "type": "toolComplete", "toolUseId": "i", "result": {}, "isError": false }),
        json!({ "type": "warning", "code": "unknownItem", "message": "ignored an item of the unknown type `somethingNew`" }),
    ];
    assert_eq!(events(&all(&mut decoder, &lines)), expected);
}

#[test]
fn thoughts_have_paragraphs() {
    let mut decoder = begun();
    let part = |index: u64, text: &str| {
        let more = json!({ "itemId": "r", "delta": text, "summaryIndex": index });
        tell("item/reasoning/summaryTextDelta", "ours", &more)
    };
    let decoded = all(&mut decoder, &[part(0, "a"), part(0, "b"), part(1, "c")]);
    let text: String =
        events(&decoded).iter().map(|event| event["content"].as_str().unwrap().to_owned()).collect();
    assert_eq!(text, "ab\n\nc");
}

#[test]
fn a_known_message_of_another_shape_is_a_fault_without_its_words() {
    let mut decoder = begun();
    let line = tell("turn/completed", "ours", &json!({ "turn": { "id": ["planted-secret"] } }));
    let decoded = all(&mut decoder, &[line]);
    let [CodexDecoded::Fault(error)] = &decoded[..] else { panic!("{decoded:?}") };
    assert_eq!(error.code, ErrorCode::Protocol);
    assert!(!error.message.contains("planted") && error.message.contains("`turn/completed`"), "{error}");
}

#[test]
fn a_limit_that_comes_near_is_told_once() {
    let mut decoder = begun();
    let limits = |used: f64| {
        let window = json!({ "usedPercent": used, "resetsAt": 1_767_780_000, "windowDurationMins": 300 });
        json!({ "method": "account/rateLimits/updated", "params": { "rateLimits": { "primary": window, "secondary": null } } })
    };
    let decoded = all(&mut decoder, &[limits(50.0), limits(95.0), limits(95.0), limits(100.0)]);
    assert_eq!(events(&decoded).len(), 1);
    assert_eq!(decoder.resets_at, Some(Timestamp::from_millis(1_767_780_000_000)));
}

#[test]
fn a_window_that_is_no_whole_number_costs_no_line() {
    for window in [json!("200k"), json!(-1), json!(2e5), json!(null), json!({})] {
        let tokens = json!({ "last": { "totalTokens": 9 }, "total": { "totalTokens": 9 }, "modelContextWindow": window });
        let line = tell("thread/tokenUsage/updated", "ours", &json!({ "tokenUsage": tokens }));
        let end = ended("ours", &json!({ "id": "t", "status": "completed" }));
        let told = events(&all(&mut begun(), &[line, end]));
        assert!(
            told.contains(&json!({ "type": "context", "context": { "usedTokens": 9 } })),
            "{window}: {told:?}"
        );
    }
}

/// Lines that are almost those of the program.
fn line() -> impl Strategy<Value = String> {
    let method = prop::sample::select(vec![
        "item/started",
        "item/completed",
        "item/agentMessage/delta",
        "item/reasoning/summaryTextDelta",
        "thread/tokenUsage/updated",
        "turn/started",
        "turn/completed",
        "error",
        "warning",
        "account/rateLimits/updated",
        "serverRequest/resolved",
        "item/commandExecution/requestApproval",
        "mcpServer/elicitation/request",
    ]);
    let kind =
        prop::sample::select(vec!["agentMessage", "commandExecution", "mcpToolCall", "reasoning", "x"]);
    let known = (method, kind, 0_u8..3, "[a-z\u{e4}\"]{0,3}", any::<i32>(), any::<bool>()).prop_map(
        |(method, kind, id, text, number, asks)| {
            let params = json!({
                "threadId": if asks { "ours" } else { "theirs" }, "turnId": "t", "itemId": id.to_string(), "delta": text,
                "item": { "type": kind, "id": id.to_string(), "text": text, "status": "failed", "exitCode": number },
                "turn": { "id": "t", "status": text, "items": [{ "type": kind, "id": "i", "text": text }], "durationMs": number },
                "tokenUsage": { "last": { "inputTokens": id }, "total": { "totalTokens": number.unsigned_abs() } },
                "error": { "message": text, "codexErrorInfo": { kind: { "httpStatusCode": number } } }, "willRetry": asks,
                "rateLimits": { "primary": { "usedPercent": number, "resetsAt": number } }, "requestId": id,
                "serverName": text, "_meta": { "codex_approval_kind": "mcp_tool_call", "tool_params": number },
            });
            if asks && number % 2 == 0 {
                json!({ "id": id, "method": method, "params": params }).to_string()
            } else {
                json!({ "method": method, "params": params }).to_string()
            }
        },
    );
    prop_oneof![8 => known, 1 => "\\PC{0,40}", 1 => Just("{\"method\":".to_owned())]
}

proptest! {
    #[test]
    fn no_line_makes_it_panic(lines in prop::collection::vec(line(), 0..40), junk in prop::collection::vec(any::<u8>(), 0..60)) {
        let mut bytes = lines.join("\n").into_bytes();
        bytes.push(b'\n');
        bytes.extend(junk);
        let mut codec = Codec::default();
        let mut decoder = begun();
        let mut open = BTreeSet::new();
        let mut wrong = false;
        let mut take = |decoded: Vec<CodexDecoded>| {
            for decoded in decoded {
                match decoded {
                    CodexDecoded::Event(StreamEvent::ToolStart { tool_use_id, .. }) => wrong |= !open.insert(tool_use_id),
                    CodexDecoded::Event(StreamEvent::ToolComplete { tool_use_id, .. }) => wrong |= !open.remove(&tool_use_id),
                    _ => {}
                }
            }
        };
        codec.push(&bytes, |message| take(decoder.push(message)));
        codec.finish(|message| take(decoder.push(message)));
        take(decoder.abandon().0);
        prop_assert!(open.is_empty() && !wrong, "tools do not pair up");
    }
}

#[test]
fn bytes_that_are_no_text_are_told_and_the_rest_is_read() {
    let mut bytes = b"\xff\xfe\n".to_vec();
    bytes.extend(delta("ours", "m", "after").to_string().into_bytes());
    for split in split_everywhere(&bytes, 0..3) {
        let (mut codec, mut decoder, mut seen) = (Codec::default(), begun(), Vec::new());
        for chunk in &split.chunks {
            codec.push(chunk, |message| seen.extend(decoder.push(message)));
        }
        codec.finish(|message| seen.extend(decoder.push(message)));
        let kinds: Vec<_> = events(&seen).iter().map(|event| event["type"].clone()).collect();
        assert_eq!(kinds, ["warning", "warning", "text"], "{}", split.name);
    }
}
