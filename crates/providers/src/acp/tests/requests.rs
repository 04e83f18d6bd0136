//! What agents ask for during a turn: permission, files, commands, and what is not offered.

use inspan_protocol::{ErrorCode, PermissionDecision, StopReason, StreamEvent};
use serde_json::{Value, json};

use super::super::{AcpInput, AcpOptions, AcpProvider};
use super::agent::{END, Fake, Person, TEXT, agent, once, options, plain, run, warnings};
use crate::program::tests::fake::{NeverAnswers, cancelled};
use futures::StreamExt;
use inspan_protocol::Provider;

/// A request of the agent, for the shell.
fn request(id: u32, method: &str, params: &Value) -> String {
    let mut params = params.clone();
    params["sessionId"] = json!("s-1");
    format!("'{}'", json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }))
}

/// The agent's question about a tool of this kind.
fn question(id: u32, call: Value) -> String {
    let options = json!([
        { "optionId": "a", "kind": "allow_always", "name": "Always" },
        { "optionId": "b", "kind": "allow_once", "name": "Once" },
        { "optionId": "c", "kind": "reject_once", "name": "No" },
    ]);
    request(id, "session/request_permission", &json!({ "toolCall": call, "options": options }))
}

fn shell() -> Value {
    json!({ "toolCallId": "t", "title": "touch x", "kind": "execute", "rawInput": { "command": "touch x" } })
}

/// An agent that makes these requests one after the other in its first turn.
fn asking(requests: &[String]) -> String {
    let lines: Vec<String> = requests.iter().map(|request| format!("say {request}; hear")).collect();
    format!("{}\nhear\n{}\nsay {TEXT}\nsay {END}\ncat", plain(), lines.join("\n"))
}

/// What the agent was answered.
fn answers(fake: &Fake) -> Vec<Value> {
    let reported = fake.received().into_iter().skip(3);
    reported
        .map(|line| if line["error"].is_null() { line["result"].clone() } else { line["error"].clone() })
        .collect()
}

fn selected(option: &str) -> Value {
    json!({ "outcome": { "outcome": "selected", "optionId": option } })
}

#[tokio::test]
async fn a_question_is_answered_by_the_options_of_the_call_or_by_a_person() {
    let allow = || PermissionDecision::Allow { updated_input: None };
    let deny = || PermissionDecision::Deny { message: "not today".to_owned() };
    let changed = PermissionDecision::Allow { updated_input: Some(json!({ "command": "ls" })) };
    let list = |name: &str| Some(vec![name.to_owned()]);
    let allowed = AcpOptions { allowed_tools: list("execute"), ..options() };
    let denied = AcpOptions { disallowed_tools: list("execute"), ..allowed.clone() };
    let rows = [
        (options(), Some(allow()), "b", 1, 0, &[][..]),
        (options(), Some(deny()), "c", 1, 1, &[]),
        (options(), Some(changed), "c", 1, 1, &["permissionNotPassedOn"]),
        (options(), None, "c", 0, 1, &[]),
        (allowed, Some(deny()), "b", 0, 0, &[]),
        (denied, Some(allow()), "c", 0, 1, &[]),
    ];
    for (options, says, option, asked, denials, warned) in rows {
        let fake = agent(&asking(&[question(7, shell())]));
        let person = says.map(Person::says);
        let context = person.clone().map_or_else(|| fake.context(), |person| fake.asking(person));
        let (events, result) = once(options, context).await;
        let output = result.unwrap();
        assert_eq!(answers(&fake), [selected(option)]);
        assert_eq!(person.map_or(0, |person| person.asked().len()), asked);
        assert_eq!((output.permission_denials.len(), warnings(&events)), (denials, warned.to_vec()));
        let started = events.iter().find_map(|event| match event {
            StreamEvent::ToolStart { input, .. } => Some(input.clone()),
            _ => None,
        });
        assert_eq!(
            started,
            Some(json!({ "command": "touch x" })),
            "the tool is reported before its permission is requested"
        );
    }
}

/// The end of this request.
fn end(id: u32) -> String {
    END.replace("3", &id.to_string())
}

#[tokio::test]
async fn a_turn_that_its_agent_ends_at_a_denial_goes_on() {
    // With a text after the denial its model knows of it.
    let told = agent(&asking(&[question(7, shell())]));
    let (events, result) = once(options(), told.context()).await;
    assert_eq!((result.unwrap().text.as_str(), warnings(&events).len()), ("so far", 0));

    let used = |id: u32| {
        let usage = r#""usage":{"inputTokens":100,"outputTokens":20,"totalTokens":120}"#;
        end(id).replace(r#""end_turn""#, &format!(r#""end_turn",{usage}"#))
    };
    let script = format!(
        "{}\nhear\nsay {TEXT}\nsay {}\nhear\nsay {}\nhear\nsay {TEXT}\nsay {}\ncat",
        plain(),
        question(7, shell()),
        used(3),
        used(4)
    );
    let fake = agent(&script);
    let person = Person::says(PermissionDecision::Deny { message: "not today".to_owned() });
    let (events, result) = once(options(), fake.asking(person)).await;
    let output = result.unwrap();
    let text = "A tool was denied: not today. Continue without it. If that is not possible, say what you could not do.";
    assert_eq!(fake.received()[4]["params"]["prompt"], json!([{ "type": "text", "text": text }]));
    assert_eq!((output.text.as_str(), output.num_turns, output.permission_denials.len()), ("so far", 2, 1));
    assert_eq!((output.usage.input_tokens, output.usage.output_tokens), (200, 40));
    assert_eq!(warnings(&events), ["endedAtDenial"]);
}

#[tokio::test]
async fn a_turn_that_ends_at_every_denial_fails() {
    let script = format!(
        "{}\nid=3; while hear; do say {}; hear; say '{{\"id\":'$id',\"result\":{{\"stopReason\":\"end_turn\"}}}}'; \
         id=$((id+1)); done",
        plain(),
        question(7, shell())
    );
    let fake = agent(&script);
    let error = once(options(), fake.context()).await.1.unwrap_err();
    assert_eq!((error.code, error.denials().len()), (ErrorCode::ToolDenied, 9));
}

#[tokio::test]
async fn a_turn_that_fails_by_its_own_answer_says_what_was_denied() {
    let error = r#"'{"jsonrpc":"2.0","id":3,"error":{"code":-32603,"message":"the model is gone (500)"}}'"#;
    let fake = agent(&asking(&[question(7, shell())]).replace(END, error));
    let error = once(options(), fake.context()).await.1.unwrap_err();
    let denied = json!({ "toolName": "execute", "toolUseId": "t", "toolInput": { "command": "touch x" } });
    assert_eq!(error.denials(), [denied]);
}

#[tokio::test]
async fn a_tool_that_is_named_by_nothing_but_the_options_is_allowed_for_one_use() {
    let rows = [
        (json!({ "toolCallId": "t", "title": "{}", "kind": "other" }), "{} (offers: Always, Once, No)", true),
        (json!({ "toolCallId": "t", "title": "{}", "kind": "fetch" }), "{}", false),
    ];
    for (call, said, once_only) in rows {
        let fake = agent(&asking(&[question(7, call)]));
        let person = Person::allows(None);
        once(options(), fake.asking(person.clone())).await.1.unwrap();
        let [asked] = &person.asked()[..] else { panic!("one question") };
        assert_eq!((asked.description.as_deref(), asked.once_only), (Some(said), once_only));
        assert_eq!(answers(&fake), [selected("b")]);
    }
}

#[tokio::test]
async fn what_qwen_code_asks_a_person_gets_its_answer() {
    let asked = json!([{ "header": "DB", "question": "Which?", "options": [{ "label": "a" }] }]);
    let call = json!({ "toolCallId": "t", "kind": "think", "rawInput": { "questions": asked } });
    let offers = json!([{ "optionId": "once", "kind": "allow_once", "name": "Submit" }]);
    let asks = request(7, "session/request_permission", &json!({ "toolCall": call, "options": offers }));
    let fake = agent(&asking(&[asks]));
    let person = Person::allows(Some(json!({ "answers": [["a"]] })));
    let allowed = AcpOptions { allowed_tools: Some(vec!["think".to_owned()]), ..options() };
    let provider = AcpProvider::qwen();
    run(&provider, allowed, fake.asking(person.clone())).await.1.unwrap();
    provider.shutdown().await;
    let mut answer = selected("once");
    answer["answers"] = json!({ "0": "a" });
    assert_eq!((answers(&fake), person.asked()[0].questions[0].question.as_str()), (vec![answer], "Which?"));
}

#[tokio::test]
async fn an_open_question_is_answered_with_cancelled_when_the_turn_is() {
    let fake = agent(&format!(
        "{}\nhear\nsay {}\nsay {TEXT}\nhear\nhear\nsay {}\nhear\nsay '{{\"id\":3,\"result\":{{\"stopReason\":\"cancelled\"}}}}'\ncat",
        plain(),
        question(7, shell()),
        question(8, shell()),
    ));
    let provider = AcpProvider::new();
    let (_, result) = cancelled(&provider, options(), fake.asking(NeverAnswers)).await;
    assert_eq!(result.unwrap().stop_reason, StopReason::Aborted);
    let reported: Vec<Value> = fake.received().into_iter().skip(3).collect();
    let cancelled =
        |id: u32| json!({ "jsonrpc": "2.0", "id": id, "result": { "outcome": { "outcome": "cancelled" } } });
    assert_eq!(
        reported,
        [
            json!({ "jsonrpc": "2.0", "method": "session/cancel", "params": { "sessionId": "s-1" } }),
            cancelled(7),
            cancelled(8),
        ]
    );
    provider.shutdown().await;
}

#[tokio::test]
async fn files_are_served_within_the_folder_and_written_with_leave_alone() {
    let fake = agent("");
    let (work, outside) = (fake.work(), fake.folder().canonicalize().unwrap());
    std::fs::write(work.join("a.txt"), "one\ntwo\n").unwrap();
    std::fs::write(outside.join("secret"), "planted").unwrap();
    std::os::unix::fs::symlink(outside.join("secret"), work.join("link")).unwrap();
    let path = |name: &str| work.join(name).display().to_string();
    let read = |id, path: String| request(id, "fs/read_text_file", &json!({ "path": path }));
    let write =
        |id, path: String| request(id, "fs/write_text_file", &json!({ "path": path, "content": "new" }));
    let script = asking(&[
        read(10, path("a.txt")),
        read(11, path("link")),
        read(12, path("../secret")),
        read(13, outside.join("secret").display().to_string()),
        read(14, path("none")),
        write(15, path("b.txt")),
        write(16, path("link")),
        write(17, path("../c.txt")),
        request(18, "fs/read_text_file", &json!({ "path": 7 })),
    ]);
    let rewrite = std::process::Command::new("/bin/sh")
        .args(["-c", "printf '#!/bin/sh\n%s\n' \"$1\" > agent", "sh", &script])
        .current_dir(&outside)
        .status();
    assert!(rewrite.unwrap().success());
    let person = Person::allows(None);
    let (_, result) = once(options(), fake.asking(person.clone())).await;
    result.unwrap();
    let codes: Vec<Value> =
        answers(&fake).into_iter().map(|answer| answer.get("code").cloned().unwrap_or(answer)).collect();
    assert_eq!(
        codes,
        [
            json!({ "content": "one\ntwo\n" }),
            json!(-32602),
            json!(-32602),
            json!(-32602),
            json!(-32002),
            json!({}),
            json!(-32602),
            json!(-32602),
            json!(-32602),
        ]
    );
    let asked: Vec<Value> = person.asked().into_iter().map(|request| request.input).collect();
    assert_eq!(asked[0], json!({ "path": path("b.txt"), "content": "new" }));
    assert_eq!(std::fs::read_to_string(work.join("b.txt")).unwrap(), "new");
    assert_eq!(std::fs::read_to_string(outside.join("secret")).unwrap(), "planted");
    assert!(!outside.join("c.txt").exists());
}

#[tokio::test]
async fn a_file_is_not_read_where_reading_is_denied() {
    let path = json!({ "path": "/nowhere" });
    let fake = agent(&asking(&[request(10, "fs/read_text_file", &path)]));
    let denied = AcpOptions { disallowed_tools: Some(vec!["read".to_owned()]), ..options() };
    let (_, result) = once(denied, fake.context()).await;
    assert_eq!(answers(&fake)[0]["code"], json!(-32603));
    assert_eq!(result.unwrap().permission_denials[0].tool_input, path);
}

#[tokio::test]
async fn without_leave_nothing_is_written_or_run() {
    let fake = agent(&asking(&[
        request(10, "fs/write_text_file", &json!({ "path": "/nowhere", "content": "x" })),
        request(11, "terminal/create", &json!({ "command": "touch made" })),
    ]));
    let (_, result) = once(options(), fake.context()).await;
    let output = result.unwrap();
    assert_eq!(
        answers(&fake).iter().map(|answer| answer["code"].clone()).collect::<Vec<_>>(),
        [-32603, -32603]
    );
    let denied: Vec<&str> =
        output.permission_denials.iter().map(|denial| denial.tool_name.as_str()).collect();
    assert_eq!(denied, ["fs/write_text_file", "terminal/create"]);
    assert!(!fake.work().join("made").exists());
}

#[tokio::test]
async fn a_command_that_was_allowed_is_not_asked_about_twice() {
    let about = |id: u32, method: &str| request(id, method, &json!({ "terminalId": "terminal-1" }));
    let fake = agent(&asking(&[
        question(
            10,
            json!({ "toolCallId": "t", "kind": "execute", "rawInput": { "command": "echo hi there" } }),
        ),
        request(11, "terminal/create", &json!({ "command": "echo", "args": ["hi", "there"] })),
        about(12, "terminal/wait_for_exit"),
        about(13, "terminal/output"),
        about(14, "terminal/release"),
        about(15, "terminal/output"),
        request(16, "terminal/create", &json!({ "command": "echo", "args": ["hi", "there"] })),
        request(17, "elicitation/create", &json!({ "message": "which?" })),
    ]));
    let person = Person::allows(None);
    let (events, result) = once(options(), fake.asking(person.clone())).await;
    result.unwrap();
    let exit = json!({ "exitCode": 0, "signal": null });
    let seen = answers(&fake);
    assert_eq!(
        seen[..5],
        [
            selected("b"),
            json!({ "terminalId": "terminal-1" }),
            exit.clone(),
            json!({ "output": "hi there\n", "truncated": false, "exitStatus": exit }),
            json!({}),
        ]
    );
    assert_eq!(
        (seen[5]["code"].clone(), seen[6].clone()),
        (json!(-32602), json!({ "terminalId": "terminal-2" }))
    );
    assert_eq!(seen[7]["code"], json!(-32601));
    let asked: Vec<String> = person.asked().into_iter().map(|request| request.tool_name).collect();
    assert_eq!(asked, ["execute", "terminal/create"]);
    assert_eq!(warnings(&events), ["unsupported"]);
}

#[tokio::test]
async fn what_runs_is_in_the_log_although_a_tool_has_the_name_of_its_program() {
    let tool = |id: &str, kind: &str, input: Value| {
        let call = json!({ "sessionUpdate": "tool_call", "toolCallId": id, "kind": kind, "title": id, "rawInput": input });
        let params = json!({ "sessionId": "s-1", "update": call });
        format!("'{}'; say ", json!({ "jsonrpc": "2.0", "method": "session/update", "params": params }))
    };
    let runs = |id, script: &str| {
        request(id, "terminal/create", &json!({ "command": "sh", "args": ["-c", script] }))
    };
    let named = tool("a", "other", json!({ "language": "sh", "script": "true" }));
    let fake = agent(&asking(&[named + &runs(10, "echo evil"), runs(11, "true")]));
    let allowed = AcpOptions { allowed_tools: Some(vec!["execute".to_owned()]), ..options() };
    let (events, result) = once(allowed, fake.context()).await;
    result.unwrap();
    let runs = events.iter().filter_map(|event| match event {
        StreamEvent::ToolStart { tool_name, input, .. } if tool_name == "terminal/create" => {
            Some(input["args"][1].clone())
        }
        _ => None,
    });
    assert_eq!(runs.collect::<Vec<_>>(), ["echo evil"]);
}

#[tokio::test]
async fn what_the_options_forbid_is_not_allowed_by_another_question() {
    let fake = agent(&asking(&[
        question(
            10,
            json!({ "toolCallId": "t", "kind": "execute", "rawInput": { "command": "touch made" } }),
        ),
        request(11, "terminal/create", &json!({ "command": "touch", "args": ["made"] })),
    ]));
    let forbidden = AcpOptions { disallowed_tools: Some(vec!["terminal/create".to_owned()]), ..options() };
    let (_, result) = once(forbidden, fake.asking(Person::allows(None))).await;
    let denied = result.unwrap().permission_denials;
    assert_eq!(answers(&fake)[0], selected("b"));
    assert_eq!(
        denied.iter().map(|denial| denial.tool_name.as_str()).collect::<Vec<_>>(),
        ["terminal/create"]
    );
    assert!(!fake.work().join("made").exists());
}

#[tokio::test]
async fn a_command_does_not_outlive_its_agent() {
    let fake = agent(&asking(&[request(
        10,
        "terminal/create",
        &json!({ "command": "echo $$ >> pids; sleep 300" }),
    )]));
    let provider = AcpProvider::new();
    let allowed = AcpOptions { allowed_tools: Some(vec!["execute".to_owned()]), ..options() };
    run(&provider, allowed, fake.context()).await.1.unwrap();
    super::agent::wait_until(|| fake.pids().len() == 1).await;
    assert_eq!(fake.running().len(), 1, "between turns it goes on");
    provider.shutdown().await;
    assert_eq!(fake.running().len(), 0);
}

#[tokio::test]
async fn a_command_does_not_outlive_a_turn_that_is_cut() {
    let create = request(10, "terminal/create", &json!({ "command": "echo $$ >> pids; sleep 300" }));
    let cancelled = r#"'{"jsonrpc":"2.0","id":3,"result":{"stopReason":"cancelled"}}'"#;
    let fake = agent(&format!("{}\nhear\nsay {create}; hear\nhear; say {cancelled}\ncat", plain()));
    let provider = AcpProvider::new();
    let allowed = AcpOptions { allowed_tools: Some(vec!["execute".to_owned()]), ..options() };
    let context = fake.context();
    let cut = async {
        super::agent::wait_until(|| fake.pids().len() == 1).await;
        context.cancel.cancel();
    };
    let ((_, result), ()) = tokio::join!(run(&provider, allowed, context.clone()), cut);
    assert_eq!(result.unwrap().stop_reason, StopReason::Aborted);
    assert_eq!(fake.running().len(), 0);
    provider.shutdown().await;
}

#[tokio::test]
async fn the_result_of_a_tool_has_the_output_of_its_terminal() {
    let about = |id: u32, method: &str| request(id, method, &json!({ "terminalId": "terminal-1" }));
    let ended = json!({ "sessionId": "s-1", "update": {
        "sessionUpdate": "tool_call_update", "toolCallId": "t", "status": "completed",
        "content": [{ "type": "terminal", "terminalId": "terminal-1" }],
    } });
    let ended = json!({ "jsonrpc": "2.0", "method": "session/update", "params": ended });
    let fake = agent(&asking(&[
        request(10, "terminal/create", &json!({ "command": "echo", "args": ["tests failed"] })),
        about(11, "terminal/wait_for_exit"),
        about(12, "terminal/release"),
        format!("'{ended}'; say {}", about(13, "terminal/output")),
    ]));
    let allowed = AcpOptions { allowed_tools: Some(vec!["execute".to_owned()]), ..options() };
    let (events, result) = once(allowed, fake.context()).await;
    result.unwrap();
    let result = events.iter().find_map(|event| match event {
        StreamEvent::ToolComplete { tool_use_id, result, .. } if tool_use_id == "t" => {
            Some(&result["content"])
        }
        _ => None,
    });
    let terminal = json!({ "type": "terminal", "terminalId": "terminal-1", "output": "tests failed\n" });
    assert_eq!(result, Some(&json!([terminal])));
}

/// Its id, its arguments, and its result with whether that is an error.
type LoggedCall = (String, Value, Option<(Value, bool)>);

/// The calls of tools among events.
fn calls(events: &[StreamEvent]) -> Vec<LoggedCall> {
    let ends = |id: &str| {
        events.iter().find_map(|event| match event {
            StreamEvent::ToolComplete { tool_use_id, result, is_error } if tool_use_id == id => {
                Some((result.clone(), *is_error))
            }
            _ => None,
        })
    };
    let starts = events.iter().filter_map(|event| match event {
        StreamEvent::ToolStart { tool_use_id, input, .. } => Some((tool_use_id, input)),
        _ => None,
    });
    starts.map(|(id, input)| (id.clone(), input.clone(), ends(id))).collect()
}

#[tokio::test]
async fn what_is_done_for_an_agent_is_in_the_log_once() {
    let about = |id: u32, method: &str| request(id, method, &json!({ "terminalId": "terminal-1" }));
    let run = |id: u32, command: &str| {
        let env = json!([{ "name": "RUN_TOKEN", "value": "planted-secret-42" }]);
        request(id, "terminal/create", &json!({ "command": command, "env": env }))
    };
    let write = |id: u32, name: &str| {
        let params = json!({ "path": format!("HERE/{name}"), "content": "planted-secret" });
        request(id, "fs/write_text_file", &params)
    };
    let held = json!({ "sessionId": "s-1", "update": {
        "sessionUpdate": "tool_call", "toolCallId": "t", "status": "in_progress", "rawInput": { "file": "held.txt" },
    } });
    let held = json!({ "jsonrpc": "2.0", "method": "session/update", "params": held });
    let script = asking(&[
        write(10, "a.txt"),
        request(11, "fs/read_text_file", &json!({ "path": "HERE/a.txt" })),
        write(12, "../b.txt"),
        run(13, "printf %07000d 1; echo; echo $RUN_TOKEN; exit 3"),
        about(14, "terminal/wait_for_exit"),
        about(15, "terminal/release"),
        run(16, "sleep 300"),
        format!("'{held}'; say {}", write(17, "held.txt")),
    ]);
    let fake = agent(&script.replace("HERE", "'\"$PWD\"'"));
    let names = ["edit", "execute"].map(str::to_owned);
    let allowed = AcpOptions { allowed_tools: Some(names.into()), ..options() };
    let (events, result) = once(allowed, fake.context()).await;
    result.unwrap();
    let seen = calls(&events);
    let ids: Vec<&str> = seen.iter().map(|(id, ..)| id.as_str()).collect();
    let (write, run) = ("fs/write_text_file", "terminal/create");
    assert_eq!(
        ids,
        [write, "fs/read_text_file", "fs/write_text_file#2", run, "terminal/create#2", "t"],
        "the last file is named by a tool of the agent"
    );
    let of = |at: usize| (seen[at].1.clone(), seen[at].2.clone().unwrap());
    let path = fake.work().join("a.txt").display().to_string();
    let content = "[redacted MY_TOKEN]";
    assert_eq!(of(0), (json!({ "path": path, "content": content }), (json!({}), false)));
    assert_eq!(of(1), (json!({ "path": path }), (json!({ "bytes": "planted-secret".len() }), false)));
    assert!(of(2).1.1, "it is outside of the folder");
    let (input, (result, is_error)) = of(3);
    assert_eq!(input["env"], json!(["RUN_TOKEN=[redacted RUN_TOKEN]"]));
    assert!(
        is_error && result["output"].as_str().unwrap().ends_with("1\n[redacted RUN_TOKEN]\n"),
        "{result}"
    );
    assert_eq!(result["exitStatus"], json!({ "exitCode": 3, "signal": null }));
    assert!(
        result["bytesNotShown"].as_u64() > Some(3000) && result["output"].as_str().unwrap().len() <= 4000
    );
    assert!(of(4).1.1, "its turn is over");
}

#[tokio::test]
async fn gemini_reads_files_itself() {
    for (provider, reads_through_us) in
        [(AcpProvider::new(), true), (AcpProvider::qwen(), true), (AcpProvider::gemini(), false)]
    {
        let fake = agent(&asking(&[]));
        run(&provider, options(), fake.context()).await.1.unwrap();
        let offered = &fake.received()[0]["params"]["clientCapabilities"]["fs"];
        assert_eq!(*offered, json!({ "readTextFile": reads_through_us, "writeTextFile": true }));
        provider.shutdown().await;
    }
}

#[tokio::test]
async fn a_flood_of_requests_is_refused_beyond_its_bound() {
    let floods = format!(
        "{}\nhear\ni=0; while [ $i -lt 100 ]; do say \"{{\\\"id\\\":$i,\\\"method\\\":\\\"session/request_permission\\\",\\\"params\\\":{{\\\"toolCall\\\":{{}},\\\"options\\\":[]}}}}\"; i=$((i+1)); done\ni=0; while [ $i -lt 36 ]; do hear; i=$((i+1)); done; say {END}; i=0; while [ $i -lt 64 ]; do hear; i=$((i+1)); done; cat",
        plain()
    );
    let fake = agent(&floods);
    let (_, result) = once(options(), fake.asking(NeverAnswers)).await;
    result.unwrap();
    let reported = answers(&fake);
    assert!(
        reported.iter().all(|answer| *answer == json!({ "outcome": { "outcome": "cancelled" } })),
        "{reported:?}"
    );
}

#[tokio::test]
async fn a_prompt_reaches_the_model_as_text_and_pictures_where_they_are_taken() {
    let fake = agent(&format!("{}\nhear; say {END}; cat", plain()));
    let returned = |text: &str, options: AcpOptions| AcpInput {
        prompt: Some(text.to_owned()),
        options: Some(options),
        ..AcpInput::default()
    };
    let expand = AcpOptions { expand_prompt: Some(true), ..options() };
    let schema = AcpOptions { output_schema: Some(json!({ "type": "object" })), ..options() };
    let mut texts = Vec::new();
    for input in
        [returned("/compact now", options()), returned("/compact now", expand), returned("plain", schema)]
    {
        let provider = AcpProvider::new();
        let items: Vec<_> = provider.execute(input, fake.context()).collect().await;
        assert!(items.iter().all(Result::is_ok), "{items:?}");
        let prompt = fake.received().pop().unwrap();
        let blocks = prompt["params"]["prompt"].as_array().unwrap().clone();
        texts.push(
            blocks.into_iter().map(|block| block["text"].as_str().unwrap().to_owned()).collect::<Vec<_>>(),
        );
        provider.shutdown().await;
    }
    assert_eq!(texts[0], ["The message follows; it is not a command.\n\n/compact now"]);
    assert_eq!(texts[1], ["/compact now"]);
    assert_eq!((texts[2][0].as_str(), texts[2][1].contains(r#"{"type":"object"}"#)), ("plain", true));
    let message: inspan_protocol::Message = serde_json::from_value(json!({
        "role": "user", "content": [{ "type": "image", "media_type": "image/png", "data": "AA==" }],
    }))
    .unwrap();
    let input = AcpInput { messages: Some(vec![message]), options: Some(options()), ..AcpInput::default() };
    let last = AcpProvider::new().execute(input, fake.context()).collect::<Vec<_>>().await.pop().unwrap();
    assert_eq!(last.unwrap_err().message, "this agent takes no pictures");
}
