//! Tests of the decoder beyond what the cases show.

use inspan_protocol::Chunk;
use proptest::prelude::*;
use serde_json::json;

use super::wire::AnswerForm;
use super::*;
use crate::json_rpc::Codec;

/// A decoder with a turn in progress.
fn begun() -> CodexDecoder {
    let mut decoder = CodexDecoder::default();
    decoder.open(ProviderSessionId::from("ours"), Some("m".to_owned()));
    decoder.begin(AnswerForm::Text);
    decoder.named("t");
    decoder
}

/// Whether one request, and two, are used up after each of these messages of the program.
fn exhausted(lines: &[Value]) -> Vec<(bool, bool)> {
    let mut decoder = begun();
    let mut seen = Vec::new();
    for line in lines {
        Codec::default().push(format!("{line}\n").as_bytes(), |message| drop(decoder.push(message)));
        seen.push((decoder.exhausted(1), decoder.exhausted(2)));
    }
    seen
}

#[test]
fn a_limit_of_requests_lets_the_last_tools_run() {
    let tell = |method: &str, key: &str, value: Value| json!({ "method": method, "params": { "threadId": "ours", "turnId": "t", key: value } });
    let sleep = json!({ "type": "sleep", "id": "a", "durationMs": 1 });
    let tokens = json!({ "total": { "totalTokens": 10 }, "last": { "inputTokens": 1 } });
    let usage = tell("thread/tokenUsage/updated", "tokenUsage", tokens);
    let tool =
        [tell("item/started", "item", sleep.clone()), usage.clone(), tell("item/completed", "item", sleep)];
    assert_eq!(exhausted(&tool), [(false, false), (false, false), (true, false)]);
    // An answer without tools is the last one anyhow.
    let text = json!({ "method": "item/agentMessage/delta", "params": { "threadId": "ours", "turnId": "t", "itemId": "m", "delta": "x" } });
    assert_eq!(exhausted(&[text, usage]), [(false, false); 2]);
}

/// What is decoded of these messages.
fn decoded(decoder: &mut CodexDecoder, lines: &[Value]) -> Vec<CodexDecoded> {
    let mut out = Vec::new();
    for line in lines {
        Codec::default().push(format!("{line}\n").as_bytes(), |message| out.extend(decoder.push(message)));
    }
    out
}

#[test]
fn tokens_that_cannot_be_read_lose_no_answer_and_no_request() {
    for odd in [json!(-28), json!("many"), json!({}), Value::Null] {
        let tokens = |output: u64| json!({ "totalTokens": odd, "inputTokens": odd, "outputTokens": output });
        let usage = |total: u64| {
            let usage = json!({ "total": tokens(total), "last": tokens(1) });
            let params = json!({ "threadId": "ours", "turnId": "t", "tokenUsage": usage });
            json!({ "method": "thread/tokenUsage/updated", "params": params })
        };
        let mut decoder = begun();
        // The last one is repeated.
        let out = decoded(&mut decoder, &[usage(1), usage(2), usage(2)]);
        let counted = |output_tokens| {
            let usage = Usage { output_tokens, ..Usage::default() };
            CodexDecoded::Event(StreamEvent::Usage { usage, cost_usd: None })
        };
        assert_eq!(out, [counted(1), counted(2)], "{odd}");
        assert_eq!(decoder.abandon().1.output.num_turns, 2);
    }
}

#[test]
fn text_that_is_sent_again_after_a_message_was_cut_is_in_the_turn_once() {
    let tell = |method: &str, rest: Value| {
        let mut params = json!({ "threadId": "ours", "turnId": "t" });
        params.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
        json!({ "method": method, "params": params })
    };
    let delta = |id: &str| tell("item/agentMessage/delta", json!({ "itemId": id, "delta": id }));
    let message = |method: &str, id: &str| {
        tell(method, json!({ "item": { "type": "agentMessage", "id": id, "text": id } }))
    };
    let lines = [
        delta("kept"),
        message("item/completed", "kept"),
        delta("cut"),
        message("item/started", "next"),
        delta("next"),
    ];
    let mut decoder = begun();
    let out = decoded(&mut decoder, &lines);
    let again = StreamEvent::Text { content: "kept".to_owned(), chunk: Chunk::Whole };
    assert_eq!(out[2..4], [StreamEvent::Retract, again].map(CodexDecoded::Event));
    assert_eq!(decoder.abandon().1.full_text, "kept\n\nnext");
}

#[test]
fn a_turn_that_its_sub_agents_outlive_ends_with_the_last_of_them() {
    let turn = |method: &str, thread: &str, id: &str| json!({ "method": method, "params": { "threadId": thread, "turn": { "id": id, "status": "completed" } } });
    let spawned = json!({ "type": "collabAgentToolCall", "id": "c", "tool": "spawnAgent", "status": "completed", "agentsStates": {
        "first": { "status": "pendingInit" }, "second": { "status": "completed" },
    } });
    let spawned = json!({ "method": "item/completed", "params": { "threadId": "ours", "turnId": "t", "item": spawned } });
    let left = [spawned, turn("turn/started", "third", "v"), turn("turn/completed", "ours", "t")];
    let mut decoder = begun();
    assert_eq!(decoded(&mut decoder, &left).last(), Some(&CodexDecoded::BackgroundLeft));
    let at_work = BTreeMap::from([("first".to_owned(), None), ("third".to_owned(), Some("v".to_owned()))]);
    assert_eq!(decoder.at_work(), &at_work);
    assert!(!decoder.exhausted(0), "the model is not asked again");
    // It is interrupted again, by its id.
    let begins = [turn("turn/completed", "third", "v"), turn("turn/started", "first", "w")];
    assert_eq!(decoded(&mut decoder, &begins), [CodexDecoded::BackgroundLeft]);
    // A tool that the turn itself calls after its end is answered.
    let late =
        json!({ "threadId": "ours", "turnId": "t", "item": { "type": "commandExecution", "id": "late" } });
    let late = json!({ "method": "item/started", "params": late });
    let end = decoded(&mut decoder, &[late, turn("turn/completed", "first", "w")]);
    let [.., CodexDecoded::Event(StreamEvent::ToolComplete { .. }), CodexDecoded::TurnEnd(end)] = &*end
    else {
        panic!("{end:?}")
    };
    assert_eq!(end.status, Status::Completed);
    // One that does not end is ended with the program, and takes nothing from the turn.
    let mut decoder = begun();
    decoded(&mut decoder, &left);
    assert_eq!(decoder.abandon().1.status, Status::Completed);
}

#[test]
fn an_mcp_server_whose_start_does_not_end_is_named_once() {
    let status = |name: &str, status: &str| json!({ "method": "mcpServer/startupStatus/updated", "params": { "threadId": "ours", "name": name, "status": status } });
    let end = json!({ "method": "turn/completed", "params": { "threadId": "ours", "turn": { "id": "t", "status": "completed" } } });
    let lines =
        [status("slow", "starting"), status("fast", "starting"), status("fast", "ready"), end.clone()];
    let mut decoder = begun();
    let said = decoded(&mut decoder, &lines);
    let warned = warning("mcpServer", "the MCP server slow was still starting when the turn ended");
    assert!(matches!(&*said, [first, CodexDecoded::TurnEnd(_)] if *first == warned), "{said:?}");
    decoder.begin(AnswerForm::Text);
    assert!(matches!(&*decoded(&mut decoder, &[end]), [CodexDecoded::TurnEnd(_)]));
}

#[test]
fn what_is_typed_into_a_command_and_further_rights_are_seen() {
    let item = json!({ "type": "commandExecution", "id": "c", "command": "/bin/sh", "status": "inProgress" });
    let typed = |stdin: &str| json!({ "method": "item/commandExecution/terminalInteraction", "params": { "threadId": "ours", "turnId": "t", "itemId": "c", "processId": "1", "stdin": stdin } });
    let mut decoder = begun();
    let lines = [
        json!({ "method": "item/started", "params": { "threadId": "ours", "turnId": "t", "item": item } }),
        typed(""),
        typed("rm x\n"),
    ];
    let said = decoded(&mut decoder, &lines);
    let [_, CodexDecoded::Event(StreamEvent::ToolStart { tool_name, input, .. }), _] = &*said else {
        panic!("{said:?}")
    };
    assert_eq!(
        (&**tool_name, input),
        ("terminalInteraction", &json!({ "stdin": "rm x\n", "command": "/bin/sh" }))
    );
    let rights = json!({ "network": { "enabled": true } });
    let params =
        json!({ "threadId": "ours", "itemId": "c", "command": "curl x", "additionalPermissions": rights });
    let asks = json!({ "id": 1, "method": "item/commandExecution/requestApproval", "params": params });
    let said = decoded(&mut decoder, &[asks]);
    let [CodexDecoded::PermissionRequested { request, .. }] = &*said else { panic!("{said:?}") };
    assert_eq!(request.input["additionalPermissions"], rights);
}

#[test]
fn a_sub_agent_that_asks_to_change_files_says_so_and_which() {
    let mut decoder = begun();
    let item = |id: &str| json!({ "type": "fileChange", "id": id, "changes": [{ "path": "deploy.yml", "diff": "+x" }] });
    let started = json!({ "method": "item/started", "params": { "threadId": "theirs", "turnId": "u", "item": item("f") } });
    let asks = |id: &str| {
        let params = json!({ "threadId": "theirs", "turnId": "u", "itemId": id });
        json!({ "id": 1, "method": "item/fileChange/requestApproval", "params": params })
    };
    // A call of the turn itself may have the same id.
    let ours = json!({ "type": "fileChange", "id": "f", "changes": [{ "path": "notes.txt", "diff": "+y" }] });
    let ours =
        json!({ "method": "item/started", "params": { "threadId": "ours", "turnId": "t", "item": ours } });
    decoded(&mut decoder, &[ours]);
    let said = decoded(&mut decoder, &[started, asks("f"), asks("g")]);
    let inputs: Vec<_> = said
        .iter()
        .map(|said| match said {
            CodexDecoded::PermissionRequested { request, .. } => {
                assert_eq!(request.description.as_deref(), Some("a sub-agent asks"));
                request.input["changes"].clone()
            }
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(inputs, [item("f")["changes"].clone(), json!("the program did not tell them")]);
}

/// Some gateways number the calls of each answer from the beginning.
#[test]
fn a_question_shows_its_own_call_where_two_have_one_id() {
    let mut decoder = begun();
    let item = |path: &str, status: &str| json!({ "type": "fileChange", "id": "f", "status": status, "changes": [{ "path": path }] });
    let line = |method: &str, item: Value| json!({ "method": method, "params": { "threadId": "ours", "turnId": "t", "item": item } });
    let asks = json!({ "id": 1, "method": "item/fileChange/requestApproval", "params": { "threadId": "ours", "turnId": "t", "itemId": "f" } });
    let (starts, ends) = (
        |path| line("item/started", item(path, "inProgress")),
        |path| line("item/completed", item(path, "completed")),
    );
    let lines = [
        starts("notes"),
        // The same call again is nothing new.
        starts("notes"),
        asks.clone(),
        ends("notes"),
        ends("notes"),
        starts("keys"),
        asks,
        ends("keys"),
        // The start was not told.
        ends("more"),
    ];
    let said = decoded(&mut decoder, &lines);
    let path = |input: &Value| input["changes"][0]["path"].as_str().unwrap_or_default().to_owned();
    let said: Vec<_> = said
        .into_iter()
        .filter_map(|said| match said {
            CodexDecoded::PermissionRequested { request, .. } => {
                Some(format!("asks {} {}", request.tool_use_id?, path(&request.input)))
            }
            CodexDecoded::Event(StreamEvent::ToolStart { tool_use_id, input, .. }) => {
                Some(format!("starts {tool_use_id} {}", path(&input)))
            }
            CodexDecoded::Event(StreamEvent::ToolComplete { tool_use_id, .. }) => {
                Some(format!("ends {tool_use_id}"))
            }
            _ => None,
        })
        .collect();
    let expected = [
        "starts f notes",
        "asks f notes",
        "ends f",
        "starts f#1 keys",
        "asks f#1 keys",
        "ends f#1",
        "starts f#2 more",
        "ends f#2",
    ];
    assert_eq!(said, expected);
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
        "item/commandExecution/terminalInteraction",
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
