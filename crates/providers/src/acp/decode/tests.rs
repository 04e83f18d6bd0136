//! The decoder against bytes that no agent should send, and the rules for everything that it returns.

use std::collections::BTreeSet;

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::json_rpc::Codec;

const OPENED: &str = r#"{"id":1,"result":{"sessionId":"s"}}"#;

/// What a decoder in its first turn makes of these bytes.
fn decode(bytes: &[u8]) -> Vec<AcpDecoded> {
    let mut decoder = AcpDecoder::of_new(ProviderSessionId::from("s"));
    decoder.begin(2, None);
    let mut codec = Codec::default();
    let mut out = Vec::new();
    codec.push(bytes, |message| out.extend(decoder.take(message)));
    codec.finish(|message| out.extend(decoder.take(message)));
    let (closing, _) = decoder.abandon();
    out.extend(closing);
    out
}

/// Pieces of messages, so that chance finds more than broken JSON.
fn word() -> impl Strategy<Value = String> {
    let fixed = [
        r#"{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"s","update":{"#,
        r#""sessionUpdate":"agent_message_chunk","#,
        r#""sessionUpdate":"tool_call","toolCallId":"t","#,
        r#""sessionUpdate":"tool_call_update","toolCallId":"t","#,
        r#""sessionUpdate":"usage_update","cost":{"amount":1e308,"currency":"USD"},"#,
        r#""content":{"type":"text","text":"x"}"#,
        r#""content":[{"type":"diff","path":"/a"}],"status":"completed""#,
        r#""rawInput":{"command":"ls"},"status":"in_progress""#,
        r#""_meta":{"v":{"toolName":"Bash"}},"title":null"#,
        "}}}\n",
        "\n",
        r#"{"id":2,"result":{"stopReason":"end_turn","usage":{"totalTokens":18446744073709551615}}}"#,
        r#"{"id":2,"error":{"code":-1,"message":"x"}}"#,
        r#"{"id":9,"method":"session/request_permission","params":{"toolCall":{"toolCallId":"t"}}}"#,
        r#"{"id":9,"method":"terminal/create","params":{"command":"ls"}}"#,
    ];
    prop_oneof![4 => proptest::sample::select(fixed.map(str::to_owned).to_vec()), 1 => any::<String>()]
}

proptest! {
    #[test]
    fn no_bytes_stop_it(junk in any::<Vec<u8>>(), words in proptest::collection::vec(word(), 0..40)) {
        let _said = decode(&junk);
        let decoded = decode(words.concat().as_bytes());
        let mut open = BTreeSet::new();
        for decoded in decoded {
            match decoded {
                AcpDecoded::Event(StreamEvent::ToolStart { tool_use_id, .. }) => {
                    prop_assert!(open.insert(tool_use_id), "a tool begins twice");
                }
                AcpDecoded::Event(StreamEvent::ToolComplete { tool_use_id, .. }) => {
                    prop_assert!(open.remove(&tool_use_id), "a tool ends that never began");
                }
                _ => {}
            }
        }
        prop_assert!(open.is_empty(), "tools without an end: {open:?}");
    }
}

#[test]
fn nothing_is_said_outside_of_a_turn() {
    let mut decoder = AcpDecoder::of_resumed(ProviderSessionId::from("s"));
    let mut codec = Codec::default();
    let history = format!(
        "{OPENED}\n{}\n",
        json!({ "method": "session/update", "params": { "sessionId": "s", "update": {
            "sessionUpdate": "agent_message_chunk", "content": { "type": "text", "text": "said long ago" },
        } } })
    );
    let mut out = Vec::new();
    codec.push(history.as_bytes(), |message| out.extend(decoder.take(message)));
    assert_eq!((out, decoder.in_turn(), decoder.in_tool()), (Vec::new(), false, false));
}

#[test]
fn a_lost_line_is_a_fault() {
    let mut line = vec![b'x'; 16 * 1024 * 1024 + 1];
    line.push(b'\n');
    let decoded = decode(&line);
    assert!(
        matches!(&decoded[..], [AcpDecoded::Fault(error)] if error.code == ErrorCode::Protocol),
        "{decoded:?}"
    );
}

#[test]
fn a_name_comes_from_the_agent_and_not_from_the_model() {
    let names = |call: Value| {
        let line = json!({ "id": 9, "method": "session/request_permission", "params": { "toolCall": call } });
        let decoded = decode(format!("{line}\n").as_bytes());
        let asked = decoded.into_iter().find_map(|decoded| match decoded {
            AcpDecoded::PermissionRequested { question, .. } => {
                Some((question.request.tool_name, question.names))
            }
            _ => None,
        });
        asked.unwrap()
    };
    let list = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
    assert_eq!(
        names(
            json!({ "toolCallId": "t", "title": "read", "kind": "execute", "rawInput": { "command": "read" } })
        ),
        ("execute".to_owned(), list(&["execute"]))
    );
    assert_eq!(
        names(
            json!({ "title": "rm -r x", "kind": "execute", "_meta": { "claudeCode": { "toolName": "Bash" } } })
        ),
        ("Bash".to_owned(), list(&["execute", "Bash"]))
    );
    assert_eq!(names(json!({})), ("other".to_owned(), list(&["other"])));
    assert_eq!(names(json!({ "title": "read" })), ("other".to_owned(), list(&["other"])));
}

#[test]
fn a_second_call_with_the_id_of_an_ended_one_is_a_call_of_its_own() {
    let update = |kind: &str, mut call: Value| {
        call["sessionUpdate"] = json!(kind);
        call["toolCallId"] = json!("call_0");
        json!({ "method": "session/update", "params": { "sessionId": "s", "update": call } }).to_string()
    };
    let call = |command: &str| {
        let meta = json!({ "claudeCode": { "toolName": "Bash" } });
        update(
            "tool_call",
            json!({ "kind": "execute", "_meta": meta, "status": "in_progress", "rawInput": { "command": command } }),
        )
    };
    let end =
        |output: &str| update("tool_call_update", json!({ "status": "completed", "rawOutput": output }));
    let asked = json!({ "toolCallId": "call_0", "kind": "execute", "rawInput": { "command": "rm -rf two" } });
    let asked = json!({ "id": 9, "method": "session/request_permission", "params": { "toolCall": asked } });
    let lines = [
        call("echo one"),
        end("one"),
        end("again"),
        call("rm -rf two"),
        asked.to_string(),
        end("two"),
        end("late"),
    ];
    let mut said = Vec::new();
    for decoded in decode(format!("{}\n", lines.join("\n")).as_bytes()) {
        said.push(match decoded {
            AcpDecoded::Event(StreamEvent::ToolStart { tool_use_id, input, .. }) => {
                format!("{tool_use_id} {}", input["command"].as_str().unwrap())
            }
            AcpDecoded::Event(StreamEvent::ToolComplete { tool_use_id, result, .. }) => {
                format!("{tool_use_id} gave {}", result.as_str().unwrap())
            }
            AcpDecoded::PermissionRequested { question, .. } => {
                format!("{} as {}", question.request.tool_use_id.unwrap(), question.names.join(" "))
            }
            other => format!("{other:?}"),
        });
    }
    assert_eq!(
        said,
        [
            "call_0 echo one",
            "call_0 gave one",
            "call_0#2 rm -rf two",
            "call_0#2 as execute Bash",
            "call_0#2 gave two"
        ]
    );
}

#[test]
fn a_question_that_may_be_about_one_of_several_calls_shows_all_of_them() {
    let input = |command: &str| json!({ "command": command });
    let asked = |inputs: &[&str], asks: Value| {
        let mut lines = String::new();
        for command in inputs {
            let call = json!({ "sessionUpdate": "tool_call", "toolCallId": "t", "rawInput": input(command) });
            let params = json!({ "sessionId": "s", "update": call });
            lines += &format!("{}\n", json!({ "method": "session/update", "params": params }));
        }
        for asks in [&asks, &json!({ "toolCallId": "t" })] {
            let params = json!({ "toolCall": asks });
            let ask = json!({ "id": 9, "method": "session/request_permission", "params": params });
            lines += &format!("{ask}\n");
        }
        let questions = decode(lines.as_bytes()).into_iter().filter_map(|decoded| match decoded {
            AcpDecoded::PermissionRequested { question, .. } => Some(question.request.input),
            _ => None,
        });
        questions.collect::<Vec<_>>()
    };
    let unnamed = json!({ "toolCallId": "t" });
    let all = json!({ "oneOf": [input("rm -rf /"), input("ls")] });
    assert_eq!(asked(&["rm -rf /", "ls"], unnamed.clone()), [all.clone(), all]);
    // The same call again, and one whose arguments stream.
    assert_eq!(asked(&["l", "ls", "ls"], unnamed), [input("ls"), input("ls")]);
    let named = asked(&["rm -rf /", "ls"], json!({ "toolCallId": "t", "rawInput": input("rm -rf /") }));
    assert_eq!(named[0], input("rm -rf /"));
    assert!(named[1].to_string().contains(r#"{"command":"ls"}"#), "{named:?}");
}

#[test]
fn an_answer_counts_whatever_its_agent_says_of_the_tokens() {
    let rows = [
        (json!({ "totalTokens": 12.0, "inputTokens": 1e1, "outputTokens": 2.0 }), (10, 2)),
        (json!({ "totalTokens": null, "inputTokens": 10, "outputTokens": 2 }), (10, 2)),
        (json!({ "totalTokens": -1, "inputTokens": "10", "outputTokens": 2 }), (0, 2)),
        (json!("x"), (0, 0)),
        (json!(null), (0, 0)),
    ];
    for (usage, expected) in rows {
        let line = json!({ "stopReason": "end_turn", "usage": usage }).to_string();
        let prompted: wire::Prompted = serde_json::from_str(&line).unwrap();
        let usage = prompted.usage.map(super::spent::usage).unwrap_or_default();
        assert_eq!((usage.input_tokens, usage.output_tokens), expected, "{line}");
    }
}

#[test]
fn numbers_that_are_only_shown_cost_no_line() {
    let decoded = |update: Value| {
        let params = json!({ "sessionId": "s", "update": update });
        let line = json!({ "method": "session/update", "params": params });
        let events = decode(format!("{line}\n").as_bytes()).into_iter().filter_map(|decoded| match decoded {
            AcpDecoded::Event(event) => Some(serde_json::to_value(event).unwrap()),
            _ => None,
        });
        events.collect::<Vec<_>>()
    };
    for odd in [json!("5 kB"), json!(-1), json!(0.5), json!({})] {
        let call = json!({
            "sessionUpdate": "tool_call", "toolCallId": "t", "kind": "read", "status": "in_progress",
            "rawInput": { "path": "/a" }, "used": odd, "size": odd,
        });
        assert_eq!(decoded(call)[0]["type"], "toolStart", "{odd}");
        assert_eq!(
            decoded(json!({ "sessionUpdate": "usage_update", "used": 5, "size": odd })),
            [json!({ "type": "context", "context": { "usedTokens": 5 } })]
        );
    }
}
