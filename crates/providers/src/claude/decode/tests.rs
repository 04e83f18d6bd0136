//! Tests of the decoder beyond what the cases show.

use inspan_testkit::{corrupt, split_everywhere};
use proptest::prelude::*;
use serde_json::{Value, json};

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

/// The ends of turns among what is decoded of these lines.
fn ends<'a>(decoder: &mut ClaudeDecoder, lines: impl IntoIterator<Item = &'a String>) -> Vec<ClaudeTurnEnd> {
    let decoded = lines.into_iter().flat_map(|line| decoder.push_line(line));
    let ends = decoded.filter_map(|decoded| match decoded {
        ClaudeDecoded::TurnEnd(end) => Some(*end),
        _ => None,
    });
    ends.collect()
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
    let message = "line 1 of the program's output is not valid Unicode and was repaired";
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

#[test]
fn a_text_stands_apart_from_the_one_before_a_tool_of_a_sub_agent_ended() {
    let call = json!([{ "type": "tool_use", "id": "t1", "name": "Bash", "input": {} }]);
    let of_sub_agent = |line: String| line.replacen('{', r#"{"parent_tool_use_id":"t0","#, 1);
    let ended = |is_error: bool| {
        let answer =
            json!([{ "type": "tool_result", "tool_use_id": "t1", "content": "", "is_error": is_error }]);
        of_sub_agent(json!({ "type": "user", "message": { "content": answer } }).to_string())
    };
    for (is_error, last) in [(false, "\n\nall done"), (true, "all done")] {
        let [last_delta, stopped] = stop("end_turn");
        let lines = [
            of_sub_agent(assistant("s", &call)),
            start("m1"),
            delta("started"),
            last_delta,
            stopped,
            ended(is_error),
            start("m2"),
            delta("all done"),
        ];
        let decoded = decode(&[lines.join("\n").as_bytes()]);
        let texts = decoded.into_iter().filter_map(|decoded| match decoded {
            ClaudeDecoded::Event(StreamEvent::Text { content, .. }) => Some(content),
            _ => None,
        });
        assert_eq!(texts.collect::<Vec<_>>(), ["started", last], "a tool that fails is shown");
    }
}

/// The program calls it a success where the connection ends properly between two blocks or in the call of a tool.
#[test]
fn an_answer_that_breaks_off_is_no_success_and_has_no_price() {
    let usage = json!({ "input_tokens": 100, "output_tokens": 1 });
    let begins = |id: &str| {
        let message = json!({ "id": id, "model": "m", "usage": usage });
        json!({ "type": "stream_event", "event": { "type": "message_start", "message": message } })
            .to_string()
    };
    let says = |id: &str| assistant(id, &json!([{ "type": "text", "text": "Now I write it." }]));
    let last = |structured: bool| {
        let of = json!({ "inputTokens": 40, "outputTokens": 5 });
        let mut result = json!({
            "type": "result", "subtype": "success", "is_error": false, "result": "Now I write it.",
            "total_cost_usd": 0.5, "modelUsage": { "small": of },
        });
        if structured {
            result["structured_output"] = json!({ "n": 1 });
        }
        result.to_string()
    };
    let [tokens, stopped] = stop("end_turn");
    let whole = |id: &str| vec![begins(id), says(id), tokens.clone(), stopped.clone()];
    let rows = [
        (whole("m1"), false, (false, Some(0.5), 40)),
        (vec![begins("m1"), says("m1")], false, (true, None, 100)),
        // The program does not wait for the end of a message that gives the output.
        (vec![begins("m1"), says("m1")], true, (false, None, 100)),
        // The program asks again, and counts only what the second request took.
        ([vec![begins("m1"), says("m1")], whole("m2")].concat(), false, (false, None, 140)),
    ];
    for (lines, structured, expected) in rows {
        let mut decoder = ClaudeDecoder::new();
        lines.iter().for_each(|line| drop(decoder.push_line(line)));
        let end = ends(&mut decoder, [&last(structured)]).remove(0);
        assert_eq!(
            (end.broke_off, end.output.cost_usd, end.output.usage.input_tokens),
            expected,
            "{lines:?}"
        );
        let judged = crate::program::TurnEnd::judge(&end, crate::program::Cancelled::No);
        assert_eq!(
            judged.err().map(|error| error.code),
            end.broke_off.then_some(inspan_protocol::ErrorCode::Network)
        );
    }
}

#[test]
fn numbers_that_cannot_be_read_lose_no_answer() {
    for odd in [json!(-28), json!("many"), json!({}), Value::Null] {
        let usage = json!({ "input_tokens": odd, "output_tokens": 7 });
        let message = json!({ "id": "m1", "model": "m", "usage": usage });
        let begins =
            json!({ "type": "stream_event", "event": { "type": "message_start", "message": message } });
        let result = json!({
            "type": "result", "subtype": "success", "is_error": false, "result": "a", "duration_ms": odd,
            "total_cost_usd": odd, "usage": usage,
            "modelUsage": { "m": { "inputTokens": odd, "outputTokens": 7, "costUSD": odd } },
        });
        let output =
            ends(&mut ClaudeDecoder::new(), &[begins, result].map(|line| line.to_string())).remove(0).output;
        let expected = Usage { output_tokens: 7, ..Usage::default() };
        assert_eq!((&*output.text, output.usage, output.cost_usd), ("a", expected, None), "{odd}");
    }
}

#[test]
fn structured_output_that_is_no_object_comes_out_of_its_object() {
    let mut decoder = ClaudeDecoder::new();
    decoder.request_output(Root::Wrapped);
    let result = json!({
        "type": "result", "subtype": "success", "is_error": false, "result": "a",
        "structured_output": { "value": [1, 2] },
    });
    let output = ends(&mut decoder, [&result.to_string()]).remove(0).output;
    assert_eq!(output.structured_output, Some(json!([1, 2])));
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

/// A line about a task that runs beside the conversation.
fn task(subtype: &str, kind: &str, status: &str) -> String {
    json!({ "type": "system", "subtype": subtype, "task_id": kind, "task_type": kind, "status": status })
        .to_string()
}

fn result(text: &str, cost: f64) -> String {
    json!({
        "type": "result", "subtype": "success", "is_error": false, "result": text, "total_cost_usd": cost,
        "modelUsage": { "m": { "inputTokens": (cost * 100.0) as u64 } },
    })
    .to_string()
}

#[test]
fn a_resumed_conversation_counts_what_is_new() {
    let model = |tokens: u64, cost: f64| json!({ "m": { "inputTokens": tokens, "costUSD": cost } });
    let result = |total: u64, new: Option<u64>| {
        let cost = |tokens: u64| tokens as f64 / 1000.0;
        let mut line = json!({
            "type": "result", "subtype": "success", "is_error": false, "result": "a", "total_cost_usd": cost(total),
            "modelUsage": model(total, cost(total)),
        });
        if let Some(new) = new {
            line["model_usage_since_last_result"] = model(new, cost(new));
        }
        line.to_string()
    };
    let by_itself = |line: String| line.replacen('{', r#"{"origin":{"kind":"task-notification"},"#, 1);
    // The lines of a process, and what its turns took.
    let rows = [
        ("an older version", vec![result(10, None), result(30, None)], vec![10, 20]),
        ("a new conversation", vec![result(10, Some(10)), result(30, Some(20))], vec![10, 20]),
        ("a resumed one", vec![result(1010, Some(10)), result(1030, Some(20))], vec![10, 20]),
        (
            "a turn of its own first",
            vec![by_itself(result(1010, Some(10))), result(1030, Some(20))],
            vec![30],
        ),
        ("nothing new", vec![result(1000, Some(0)), result(1030, Some(30))], vec![0, 30]),
    ];
    for (name, lines, expected) in rows {
        let mut decoder = ClaudeDecoder::new();
        let decoded = lines.iter().flat_map(|line| decoder.push_line(line));
        let turns: Vec<(u64, Option<f64>)> = decoded
            .filter_map(|decoded| match decoded {
                ClaudeDecoded::TurnEnd(end) => Some((end.output.usage.input_tokens, end.output.cost_usd)),
                _ => None,
            })
            .collect();
        let expected: Vec<(u64, Option<f64>)> =
            expected.into_iter().map(|tokens| (tokens, Some(tokens as f64 / 1000.0))).collect();
        assert_eq!(turns, expected, "{name}");
    }
}

#[test]
fn a_model_that_thinks_although_it_may_not_is_warned_of_once() {
    let thinks = |id| assistant(id, &json!([{ "type": "thinking", "thinking": "hm" }]));
    for (forbidden, expected) in [(true, vec!["thinkingNotOff"]), (false, vec![])] {
        let mut decoder = ClaudeDecoder::new();
        decoder.watch_thinking(forbidden);
        let decoded = ["a", "b"].iter().flat_map(|id| decoder.push_line(&thinks(id)));
        let warned: Vec<String> = decoded
            .filter_map(|decoded| match decoded {
                ClaudeDecoded::Event(StreamEvent::Warning { code, .. }) => Some(code.to_string()),
                _ => None,
            })
            .collect();
        assert_eq!(warned, expected);
    }
}

fn system(subtype: &str) -> String {
    json!({ "type": "system", "subtype": subtype, "state": "idle", "model": "m" }).to_string()
}

#[test]
fn a_turn_ends_with_the_answer_to_its_prompt_and_to_its_sub_agents() {
    let echo = || json!({ "type": "user", "message": { "content": "go" }, "isReplay": true }).to_string();
    let said = |text: &str| assistant(text, &json!([{ "type": "text", "text": text }]));
    let (started, agent) = (|| task("task_started", "local_agent", ""), "local_agent");
    let told = || task("task_notification", agent, "completed");
    let ended = || {
        let patch = json!({ "status": "completed" });
        json!({ "type": "system", "subtype": "task_updated", "task_id": agent, "patch": patch }).to_string()
    };
    let resumed = || {
        let result = json!({ "success": true, "resumedAgentId": agent });
        json!({ "type": "user", "message": { "content": [] }, "tool_use_result": result }).to_string()
    };
    let told_within = || {
        let text = format!("<task-notification>\n<task-id>{agent}</task-id>\n<status>completed</status>");
        json!({ "type": "user", "message": { "content": text }, "isReplay": true }).to_string()
    };
    let idle = || system("session_state_changed");
    let init = || system("init");
    let turn = |text, cost| vec![init(), said(text), result(text, cost)];
    let by_itself = |text, cost| {
        let result = result(text, cost).replacen('{', r#"{"origin":{"kind":"task-notification"},"#, 1);
        vec![init(), said(text), result]
    };
    let rows = [
        ("its own", vec![vec![init(), echo()], turn("a", 1.0)], Some(("a", "a", Some(1.0), false))),
        ("of a program that repeats nothing", vec![turn("a", 1.0)], Some(("a", "a", Some(1.0), false))),
        ("one that the program began", vec![by_itself("b", 1.0)], None),
        (
            "first one that the program began",
            vec![by_itself("b", 1.0), vec![init(), echo()], turn("a", 3.0)],
            Some(("a", "b\n\na", Some(3.0), false)),
        ),
        (
            "one that the program began, and that answers the prompt",
            vec![vec![init(), said("b"), echo()], by_itself("a", 3.0)],
            Some(("a", "b\n\na", Some(3.0), false)),
        ),
        ("a sub-agent works", vec![vec![init(), echo(), started()], turn("a", 1.0), vec![idle()]], None),
        (
            "a sub-agent works again",
            vec![vec![init(), echo(), started(), told_within(), resumed()], turn("a", 1.0), vec![idle()]],
            None,
        ),
        (
            "a workflow works",
            vec![
                vec![init(), echo(), task("task_started", "local_workflow", "")],
                turn("a", 1.0),
                vec![idle()],
            ],
            None,
        ),
        (
            "a sub-agent ended, and the model was told",
            vec![vec![init(), echo(), started()], turn("a", 1.0), vec![idle(), told()], by_itself("z", 3.0)],
            Some(("z", "a\n\nz", Some(3.0), false)),
        ),
        (
            "a sub-agent ended, and the model was told within the turn",
            vec![vec![init(), echo(), started(), ended(), told_within()], turn("a", 1.0)],
            Some(("a", "a", Some(1.0), false)),
        ),
        (
            "a sub-agent ended, and the program tells the model next",
            vec![vec![init(), echo(), started(), ended()], turn("a", 1.0), vec![told()], by_itself("z", 3.0)],
            Some(("z", "a\n\nz", Some(3.0), false)),
        ),
        (
            "a sub-agent ended, and the program has nothing to say of it",
            vec![vec![init(), echo(), started(), ended()], turn("a", 1.0), vec![idle()]],
            Some(("a", "a", Some(1.0), false)),
        ),
        (
            "one that the program began, in which it tells the model of another task",
            vec![vec![started(), init(), said("b"), told_within()], by_itself("b", 1.0)],
            None,
        ),
        (
            "a sub-agent was stopped, and the model was not told",
            vec![
                vec![init(), echo(), started()],
                turn("a", 1.0),
                vec![task("task_notification", agent, "stopped"), idle()],
            ],
            Some(("a", "a", None, true)),
        ),
    ];
    for (name, lines, expected) in rows {
        let mut decoder = ClaudeDecoder::new();
        let lines = lines.concat();
        let ends = ends(&mut decoder, &lines)
            .into_iter()
            .map(|end| (end.output.text, end.full_text, end.output.cost_usd, end.is_error));
        let expected =
            expected.map(|(text, full, cost, failed)| (text.to_owned(), full.to_owned(), cost, failed));
        assert_eq!(Vec::from_iter(ends), Vec::from_iter(expected), "{name}");
    }
}

#[test]
fn the_model_misses_the_end_of_a_sub_agent_that_was_stopped() {
    let updated = |id: &str, status: &str| {
        let patch = json!({ "status": status });
        json!({ "type": "system", "subtype": "task_updated", "task_id": id, "patch": patch }).to_string()
    };
    let agent = "local_agent";
    let rows = [
        (task("task_notification", agent, "stopped"), true),
        (updated(agent, "killed"), true),
        (task("task_notification", agent, "completed"), false),
        (task("task_notification", agent, "failed"), false),
        (updated(agent, "completed"), false),
        (task("task_notification", "local_bash", "stopped"), false),
        (updated("local_bash", "killed"), false),
    ];
    for (line, expected) in rows {
        let mut decoder = ClaudeDecoder::new();
        for line in [&task("task_started", agent, ""), &task("task_started", "local_bash", ""), &line] {
            decoder.push_line(line);
        }
        assert_eq!(decoder.misses_end(), expected, "{line}");
    }
}

/// Tokens and their cost.
type Count = (u64, Option<f64>);

/// What the decoded events say was taken, and what the ends of turns say.
fn counts(lines: &[String]) -> (Vec<Count>, Vec<Count>) {
    let (mut decoder, mut usages, mut ends) = (ClaudeDecoder::new(), Vec::new(), Vec::new());
    for decoded in lines.iter().flat_map(|line| decoder.push_line(line)) {
        match decoded {
            ClaudeDecoded::Event(StreamEvent::Usage { usage, cost_usd }) => {
                usages.push((usage.input_tokens, cost_usd));
            }
            ClaudeDecoded::TurnEnd(end) => ends.push((end.output.usage.input_tokens, end.output.cost_usd)),
            _ => {}
        }
    }
    (usages, ends)
}

#[test]
fn what_sub_agents_take_after_a_result_counts_once() {
    let sub = json!({
        "type": "assistant", "parent_tool_use_id": "t", "message": { "id": "s", "content": [], "usage": { "input_tokens": 50 } },
    });
    let agent = "local_agent";
    let lines = [
        system("init"),
        task("task_started", agent, ""),
        result("a", 1.0),
        sub.to_string(),
        task("task_notification", agent, "stopped"),
        system("session_state_changed"),
        system("init"),
        result("b", 3.0),
    ];
    let (usages, ends) = counts(&lines);
    let known = Some(1.0);
    let expected = [(100, known), (150, known), (150, known), (150, None), (150, Some(2.0))];
    assert_eq!(usages, expected, "also the price of a part, and that there is more");
    assert_eq!(ends, [(150, None), (150, Some(2.0))]);
}

#[test]
fn what_sub_agents_take_after_the_last_result_has_no_known_price() {
    let sub = json!({
        "type": "assistant", "parent_tool_use_id": "t", "message": { "id": "s", "content": [], "usage": { "input_tokens": 50 } },
    });
    let known = Some(1.0);
    for status in ["completed", "failed", "killed"] {
        let patch = json!({ "status": status });
        let ended =
            json!({ "type": "system", "subtype": "task_updated", "task_id": "local_agent", "patch": patch });
        let first = [system("init"), task("task_started", "local_agent", ""), result("a", 1.0)];
        let last = [ended.to_string(), system("session_state_changed")];
        let (usages, ends) = counts(&[&first[..], &[sub.to_string()], &last].concat());
        assert_eq!(usages, [(100, known), (150, known), (150, known), (150, None)], "{status}");
        assert_eq!(ends, [(150, None)], "{status}");
        assert_eq!(
            counts(&[first.as_slice(), &last].concat()).1,
            [(100, known)],
            "{status}, without a request"
        );
    }
}

#[test]
fn an_mcp_server_that_does_not_run_is_said_once() {
    let mut decoder = ClaudeDecoder::new();
    decoder.watch_mcp_servers(["tickets", "mail", "wiki"].map(str::to_owned));
    let mut said = |servers: Value| {
        let line = json!({ "type": "system", "subtype": "init", "model": "m", "mcp_servers": servers });
        let decoded = events(decoder.push_line(&line.to_string()));
        decoded
            .into_iter()
            .map(|event| format!("{}: {}", event["code"], event["message"]))
            .collect::<Vec<_>>()
    };
    let server = |name: &str, status: &str| json!({ "name": name, "status": status });
    let first = json!([
        server("tickets", "failed"),
        server("mail", "pending"),
        server("wiki", "needs-auth"),
        server("of-the-user", "failed"),
    ]);
    let expected = [
        r#""mcpServer": "the MCP server tickets did not start; the program does not say why: check its `command` or `url`""#,
        r#""mcpServer": "the MCP server wiki wants a login, which Claude Code itself takes by `/mcp`""#,
    ];
    assert_eq!(said(first), expected, "one that is pending may start, and one of the user's own is theirs");
    assert_eq!(said(json!([server("tickets", "failed"), server("mail", "failed")])).len(), 1);
    assert!(said(json!({ "tickets": "failed" })).is_empty(), "another form breaks nothing");
}

#[test]
fn a_failed_turn_with_a_sub_agent_at_work_has_no_known_price() {
    let failed = result("no", 1.0).replace("false", "true");
    let lines = [system("init"), task("task_started", "local_agent", ""), failed];
    assert_eq!(counts(&lines).0, [(100, Some(1.0)), (100, None)]);
}

#[test]
fn the_model_is_asked_no_more_than_its_turns_for_what_ends_in_the_background() {
    let said = |id: &str| assistant(id, &json!([{ "type": "text", "text": id }]));
    let asked = || json!({ "type": "system", "subtype": "status", "status": "requesting" }).to_string();
    let ended_in_background = [
        system("init"),
        task("task_started", "local_agent", ""),
        said("a"),
        said("b"),
        result("b", 1.0),
        task("task_notification", "local_agent", "completed"),
        system("init"),
    ];
    let tool = json!([{ "type": "tool_use", "id": "t", "name": "StructuredOutput", "input": {} }]);
    let answered = json!([{ "type": "tool_result", "tool_use_id": "t", "content": "provided" }]);
    let called =
        [assistant("c", &tool), json!({ "type": "user", "message": { "content": answered } }).to_string()];
    // The whole turns after whose last line it is too much, of a model that may write 2, 3 and 4 messages.
    let rows: [(&str, Vec<String>, [bool; 3]); 6] = [
        ("the model is told", vec![], [true, false, false]),
        ("the answer is the last message", vec![asked(), said("c")], [true, false, false]),
        ("a tool has answered", called.to_vec(), [true, false, false]),
        ("the model is asked again", vec![said("c"), asked()], [true, true, false]),
        ("by a program that only streams", vec![said("c"), start("d")], [true, true, false]),
        (
            "a broken message",
            vec![start("c"), delta("c"), stop("tool_use")[0].clone(), start("d")],
            [true, false, false],
        ),
    ];
    for (name, more, expected) in rows {
        let mut decoder = ClaudeDecoder::new();
        for line in &ended_in_background {
            assert!(!decoder.exhausted(2), "{name}: the program counts in its own turn");
            decoder.push_line(line);
        }
        for line in more {
            decoder.push_line(&line);
        }
        assert_eq!([2, 3, 4].map(|max| decoder.exhausted(max)), expected, "{name}");
    }
}

#[test]
fn what_a_turn_leaves_in_the_background_is_said_and_can_be_stopped() {
    let mut decoder = ClaudeDecoder::new();
    let failed = result("no", 1.0).replace("false", "true");
    let lines =
        [system("init"), task("task_started", "local_bash", ""), task("task_started", "local_agent", "")];
    let decoded = lines.iter().chain([&failed]).flat_map(|line| decoder.push_line(line)).collect();
    let message = "stopped in the background at the end of the turn: 1 sub-agent and 1 command";
    let warning = json!({ "type": "warning", "code": "backgroundEnded", "message": message });
    assert!(events(decoded).contains(&warning));
    assert_eq!(decoder.background_commands().collect::<Vec<_>>(), ["local_bash"]);
    assert!(decoder.asks_model() && !decoder.is_idle());
    for kind in ["local_agent", "local_bash"] {
        decoder.push_line(&task("task_notification", kind, "stopped"));
    }
    assert!(decoder.is_idle());
    // The program begins a turn by itself.
    let running = system("session_state_changed").replace("idle", "running");
    decoder.push_line(&running);
    assert!(!decoder.is_idle());
    decoder.push_line(&system("session_state_changed"));
    assert!(decoder.is_idle());
    let next = [system("init"), result("next", 3.0)];
    let costs = ends(&mut decoder, &next).into_iter().map(|end| end.output.cost_usd);
    assert_eq!(Vec::from_iter(costs), [Some(2.0)], "the turn after it is whole");
}

#[test]
fn what_sub_agents_take_is_counted_while_they_work() {
    let mut decoder = ClaudeDecoder::new();
    let block = |tool: &str, message: &str| {
        let message = json!({ "id": message, "model": "m", "content": [], "usage": { "input_tokens": 100 } });
        json!({ "type": "assistant", "message": message, "parent_tool_use_id": tool }).to_string()
    };
    let lines =
        [block("t1", "m1"), block("t1", "m1"), block("t2", "m2"), block("t1", "m1"), block("t1", "m3")];
    let counts = lines.iter().flat_map(|line| decoder.push_line(line)).map(|decoded| match decoded {
        ClaudeDecoded::Event(StreamEvent::Usage { usage, cost_usd: None }) => usage.input_tokens,
        other => panic!("{other:?}"),
    });
    assert_eq!(counts.collect::<Vec<_>>(), [100, 200, 300]);
}

#[test]
fn a_message_of_a_sub_agent_counts_what_it_took_at_its_end_and_once() {
    let tokens =
        |input: u64, output: u64| Usage { input_tokens: input, output_tokens: output, ..Usage::default() };
    let block = |id: &str| {
        let content = json!([{ "type": "text", "text": "x".repeat(40) }]);
        let message =
            json!({ "id": id, "content": content, "usage": { "input_tokens": 100, "output_tokens": 1 } });
        json!({ "type": "assistant", "message": message, "parent_tool_use_id": "t" }).to_string()
    };
    let result = |input: u64, output: u64| {
        let usage = json!({ "m": { "inputTokens": input, "outputTokens": output } });
        json!({ "type": "result", "subtype": "success", "is_error": false, "result": "a", "modelUsage": usage })
            .to_string()
    };
    let mut decoder = ClaudeDecoder::new();
    decoder.push_line(&system("init"));
    decoder.push_line(&task("task_started", "local_agent", ""));
    // A line of the output, or the id of a message whose end is read in a transcript.
    let rows = [
        ("its characters", Ok(block("a")), (100, 10)),
        ("more of them", Ok(block("a")), (100, 20)),
        ("its end", Err("a"), (100, 5000)),
        ("another one", Ok(block("b")), (200, 5010)),
        ("a result that knows more, and the main thread", Ok(result(300, 10_020)), (300, 10_020)),
        ("the end of what the result counts", Err("b"), (300, 10_020)),
        ("one after the result", Ok(block("c")), (400, 10_030)),
        ("its end after the result", Err("c"), (400, 15_020)),
        ("one that is only in the transcript", Err("d"), (500, 20_020)),
    ];
    for (name, step, (input, output)) in rows {
        let decoded = match step {
            Ok(line) => decoder.push_line(&line),
            Err(id) => decoder.count_sub_messages(vec![(id.to_owned(), tokens(100, 5000))]),
        };
        let usage = tokens(input, output);
        let expected = ClaudeDecoded::Event(StreamEvent::Usage { usage, cost_usd: None });
        assert_eq!(decoded, [expected], "{name}");
    }
    assert_eq!(decoder.push_line(&block("c")), [], "the rest of a message whose end is known");
    let last = [task("task_notification", "local_agent", "completed"), system("init"), result(600, 20_040)];
    let usages = ends(&mut decoder, &last).into_iter().map(|end| end.output.usage);
    assert_eq!(Vec::from_iter(usages), [tokens(600, 20_040)], "the last result tells the sums");
}
