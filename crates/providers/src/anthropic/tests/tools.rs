//! Turns that call tools, against the scripted model server, with a real MCP server and tools of a program: what each
//! request holds, what is stored, and what is done after a failure, a cancellation and a crash.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::StreamExt;
use inspan_model_server::{Block, ModelServer, Turn};
use inspan_protocol::{
    ErrorCode, ExecutionContext, FnTool, HostTools, Provider, ProviderItem, StopReason, StreamEvent,
    ToolOutput,
};
use inspan_testkit::MCP_SERVER;
use serde_json::{Value, json};

use super::server::MessagesHarness;
use crate::api::tests::harness::{reported, scripted};

const SOON: Duration = Duration::from_secs(20);

/// A context in which a program gives one tool, and how often that was called.
fn context(harness: &MessagesHarness) -> (ExecutionContext, Arc<AtomicUsize>) {
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&calls);
    let tool = FnTool::new("count", "Counts.", json!({ "properties": {} }), move |_, _| {
        let count = counted.fetch_add(1, Ordering::SeqCst) + 1;
        async move { Ok(ToolOutput::text(format!("{count} oxen"))) }
    });
    let mut context = harness.context();
    context.host_mut().tools = HostTools::default().with(tool);
    (context, calls)
}

fn ask(options: Value) -> Value {
    let mut input = json!({ "prompt": "how many?", "options": { "allowedTools": ["count"] } });
    for (name, value) in options.as_object().unwrap() {
        input["options"][name] = value.clone();
    }
    input
}

fn count() -> Block {
    Block::tool("count", json!({ "all": true }))
}

/// The messages of a request, each block as one line, without marks.
fn spoken(server: &ModelServer, request: usize) -> Vec<String> {
    let body = server.requests()[request].body.clone();
    let block = |block: &Value| match block["type"].as_str().unwrap() {
        "text" => block["text"].as_str().unwrap().to_owned(),
        "tool_use" => format!("<{} {}>", block["name"].as_str().unwrap(), block["input"]),
        "tool_result" => {
            let mark = if block["is_error"] == true { "!" } else { "=" };
            format!("{mark}{}", block["content"][0]["text"].as_str().unwrap_or_default())
        }
        "thinking" => format!("<thinking {}>", block["signature"].as_str().unwrap()),
        other => format!("<{other}>"),
    };
    let message = |message: &Value| {
        let blocks: Vec<String> = message["content"].as_array().unwrap().iter().map(block).collect();
        format!("{}: {}", message["role"].as_str().unwrap(), blocks.join(" | "))
    };
    body["messages"].as_array().unwrap().iter().map(message).collect()
}

#[tokio::test]
async fn a_call_is_answered_in_the_same_turn() {
    let first = Turn {
        blocks: vec![Block::thinking("hm"), Block::text("I count."), count(), count()],
        ..Turn::default()
    };
    let server = scripted([first, Turn::text("Two.")]);
    let harness = MessagesHarness::new(&server.base_url());
    let (context, calls) = context(&harness);
    let (events, output) = harness.turn_in(ask(json!({ "thinking": "low" })), context, |_, _| {}).await;
    let output = output.unwrap();
    assert_eq!(
        (output.text.as_str(), output.num_turns, output.stop_reason),
        ("Two.", 2, StopReason::Complete)
    );
    assert_eq!(
        (output.usage.input_tokens, output.usage.output_tokens, calls.load(Ordering::SeqCst)),
        (200, 40, 2)
    );
    let signature = server.requests()[1].body["messages"][1]["content"][0]["signature"].clone();
    let call = "<count {\"all\":true}>";
    let expected = [
        "user: how many?".to_owned(),
        format!("assistant: <thinking {}> | I count. | {call} | {call}", signature.as_str().unwrap()),
        "user: =1 oxen | =2 oxen".to_owned(),
    ];
    assert_eq!(spoken(&server, 1), expected);
    let body = server.requests()[1].body.clone();
    let marked = json!({ "type": "ephemeral" });
    let tool = json!({ "name": "count", "description": "Counts.", "cache_control": marked,
        "input_schema": { "type": "object", "properties": {} } });
    assert_eq!(body["tools"], json!([tool]));
    // The mark is at the results, where the new part of the next request begins, and not at the calls.
    assert_eq!(body["messages"][2]["content"][1]["cache_control"], marked);
    assert!(body["messages"][2]["content"][0].get("cache_control").is_none());
    assert!(body["messages"][0]["content"][0].get("cache_control").is_none());
    let usages: Vec<u64> = events
        .iter()
        .filter_map(
            |event| if let StreamEvent::Usage { usage, .. } = event { Some(usage.total()) } else { None },
        )
        .collect();
    assert_eq!(usages, [101, 120, 221, 240]);
    let tools = events
        .iter()
        .filter(|event| matches!(event, StreamEvent::ToolStart { .. } | StreamEvent::ToolComplete { .. }));
    assert_eq!(tools.count(), 4);
    assert!(harness.stored().contains("2 oxen"));
}

#[tokio::test]
async fn without_permission_the_model_is_told_and_the_output_says_it() {
    let server = scripted([Turn::tool("count", json!({})), Turn::text("As you wish.")]);
    let harness = MessagesHarness::new(&server.base_url());
    let (context, calls) = context(&harness);
    let output = harness.turn_in(json!({ "prompt": "how many?" }), context, |_, _| {}).await.1.unwrap();
    assert_eq!((output.text.as_str(), calls.load(Ordering::SeqCst)), ("As you wish.", 0));
    let denials = json!([{ "toolName": "count", "toolUseId": "toolu_main_1_0", "toolInput": {} }]);
    assert_eq!(json!(output.permission_denials), denials);
    assert_eq!(spoken(&server, 1)[2], "user: !permission to use `count` was denied: there is nobody to ask");
}

#[tokio::test]
async fn the_limit_of_model_turns_ends_the_turn_with_every_call_answered() {
    let asks = Turn { blocks: vec![Block::text("Again."), count()], ..Turn::default() };
    let server = scripted([asks.clone(), asks.clone(), asks, Turn::text("Done.")]);
    let harness = MessagesHarness::new(&server.base_url());
    for (limit, left, requests, ran) in
        [(Some(2), None, 2, 1), (Some(9), Some(1), 1, 0), (None, Some(0), 1, 0)]
    {
        let before = server.requests().len();
        let (context, calls) = context(&harness);
        let context = ExecutionContext { turns_left: left, ..context };
        let options = limit.map_or(json!({}), |limit| json!({ "maxTurns": limit }));
        let output = harness.turn_in(ask(options), context, |_, _| {}).await.1.unwrap();
        assert_eq!((output.stop_reason, output.num_turns), (StopReason::MaxTurns, requests));
        assert_eq!(output.text, vec!["Again."; requests as usize].join("\n\n"));
        assert_eq!(
            (server.requests().len() - before, calls.load(Ordering::SeqCst)),
            (requests as usize, ran)
        );
        if server.requests().len() == 3 {
            let session = output.session_id.unwrap();
            let resumed = json!({ "prompt": "go on", "options": { "resume": session } });
            harness.turn(resumed).await.1.unwrap();
            let reported = spoken(&server, 3);
            assert_eq!(
                reported[2..],
                ["user: !the call was not carried out: the limit of model turns was reached", "user: go on"]
            );
            // Without tools, the vendor still wants to know what was called.
            let body = server.requests()[3].body.clone();
            assert_eq!(
                (&body["tools"][0]["name"], &body["tool_choice"]),
                (&json!("count"), &json!({ "type": "none" }))
            );
            return;
        }
    }
    panic!("the server was asked too seldom");
}

#[tokio::test]
async fn a_failure_after_a_tool_takes_nothing_back() {
    let cut = Turn { truncate_after: Some(5), ..Turn::text("never whole") };
    let server = scripted([
        Turn::tool("count", json!({})),
        Turn::error(529),
        Turn::tool("count", json!({})),
        cut,
        Turn::text("Two."),
    ]);
    let harness = MessagesHarness::new(&server.base_url());
    let (context, calls) = context(&harness);
    let failed = harness.turn_in(ask(json!({})), context.clone(), |_, _| {}).await;
    assert_eq!(reported(&failed).0, ErrorCode::Overloaded);
    let session = failed.1.unwrap_err().detail.unwrap()["sessionId"].clone();
    let failed = harness.turn_in(ask(json!({ "resume": session })), context.clone(), |_, _| {}).await;
    assert_eq!(reported(&failed).0, ErrorCode::Network);
    let output = harness.turn_in(ask(json!({ "resume": session })), context, |_, _| {}).await.1.unwrap();
    assert_eq!((output.text.as_str(), calls.load(Ordering::SeqCst)), ("Two.", 2));
    let once = ["user: how many?", "assistant: <count {}>"];
    let expected = [once[0], once[1], "user: =1 oxen", once[0], once[1], "user: =2 oxen", once[0]];
    assert_eq!(spoken(&server, 4), expected);
}

#[tokio::test]
async fn a_pause_is_gone_on_from() {
    let paused = Turn { stop_reason: Some("pause_turn".to_owned()), ..Turn::text("One, ") };
    let server = scripted([paused.clone(), Turn::text("two."), paused]);
    let harness = MessagesHarness::new(&server.base_url());
    let output = harness.turn(json!({ "prompt": "count" })).await.1.unwrap();
    assert_eq!((output.text.as_str(), output.num_turns), ("One, two.", 2));
    assert_eq!(spoken(&server, 1), ["user: count", "assistant: One, "]);
    let marked = server.requests()[1].body["messages"][0]["content"][0]["cache_control"].clone();
    assert_eq!(marked, json!({ "type": "ephemeral" }));
    // One that never ends is ended.
    let output = harness.turn(json!({ "prompt": "count", "options": { "maxTurns": 3 } })).await.1.unwrap();
    assert_eq!((output.stop_reason, output.num_turns), (StopReason::MaxTurns, 3));
}

#[tokio::test]
async fn a_call_where_nothing_was_offered_is_a_fault() {
    let server = scripted([Turn::tool("count", json!({}))]);
    let turn = MessagesHarness::new(&server.base_url()).turn(json!({ "prompt": "a" })).await;
    assert_eq!(reported(&turn), (ErrorCode::Protocol, "unexpectedTool".to_owned(), String::new()));
}

/// A harness with an MCP server, and the options that name it.
fn herd(harness: &MessagesHarness) -> Value {
    std::fs::write(harness.folder.path().join("herd.sh"), MCP_SERVER).unwrap();
    json!({
        "mcpServers": { "herd": { "command": "/bin/sh", "args": ["herd.sh"],
            "env": { "HERD_TOKEN": "planted-herd-token", "PATH": "/usr/bin:/bin" } } },
        "allowedTools": ["mcp__herd"],
    })
}

fn in_folder(harness: &MessagesHarness) -> ExecutionContext {
    let mut context = harness.context();
    context.host_mut().cwd = Some(harness.folder.path().to_owned());
    context
}

/// Waits until no process of the MCP server is left; there was one at least.
async fn nobody_left(harness: &MessagesHarness) {
    let pids = std::fs::read_to_string(harness.folder.path().join("herd.pids")).unwrap();
    let stat = |pid: &str| std::fs::read_to_string(format!("/proc/{pid}/stat")).ok();
    let alive = || pids.lines().any(|pid| stat(pid).is_some_and(|stat| !stat.contains(") Z ")));
    for _ in 0..100 {
        if !alive() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("a process is left of {pids}");
}

#[tokio::test]
async fn a_real_server_is_called_and_gone_with_the_turn() {
    let both = Turn {
        blocks: vec![Block::tool("mcp__herd__count", json!({})), Block::tool("mcp__herd__secret", json!({}))],
        ..Turn::default()
    };
    let server = scripted([both, Turn::tool("mcp__herd__die", json!({})), Turn::text("One.")]);
    let harness = MessagesHarness::new(&server.base_url());
    let options = herd(&harness);
    let turn =
        harness.turn_in(json!({ "prompt": "a", "options": options }), in_folder(&harness), |_, _| {}).await;
    assert_eq!(turn.1.as_ref().unwrap().text, "One.");
    nobody_left(&harness).await;
    let reported = spoken(&server, 2);
    assert_eq!(reported[2], "user: =1 oxen | =token [redacted HERD_TOKEN], key none");
    assert!(
        reported[4].starts_with("user: !the MCP server `herd` ended with exit code 3"),
        "{}",
        reported[4]
    );
    // What the server needs is nowhere else.
    let artefacts = format!("{turn:?}{}{:?}", harness.stored(), server.requests());
    assert!(
        !artefacts.contains("planted-herd-token") && artefacts.contains("struck by lightning"),
        "{artefacts}"
    );
}

#[tokio::test]
async fn a_turn_cancelled_within_a_tool_leaves_an_answer_and_no_process() {
    let server = scripted([Turn::tool("mcp__herd__hang", json!({})), Turn::text("Back.")]);
    let harness = MessagesHarness::new(&server.base_url());
    let input = json!({ "prompt": "a", "options": herd(&harness) });
    let (events, output) = harness
        .turn_in(input, in_folder(&harness), |event, context| {
            if matches!(event, StreamEvent::ToolStart { .. }) {
                let (cancel, log) = (context.cancel.clone(), harness.folder.path().join("herd.log"));
                tokio::spawn(async move {
                    while !log.exists() {
                        tokio::time::sleep(Duration::from_millis(10)).await;
                    }
                    cancel.cancel();
                });
            }
        })
        .await;
    let output = output.unwrap();
    assert_eq!((output.stop_reason, output.num_turns), (StopReason::Aborted, 1));
    assert!(matches!(events.last(), Some(StreamEvent::ToolComplete { is_error: true, .. })), "{events:?}");
    nobody_left(&harness).await;
    let resumed = json!({ "prompt": "b", "options": { "resume": output.session_id } });
    harness.turn(resumed).await.1.unwrap();
    let reported = spoken(&server, 1);
    assert!(
        reported[2].starts_with("user: !the call was stopped: the turn was cancelled"),
        "{}",
        reported[2]
    );
    assert_eq!(reported[3], "user: b");
}

#[tokio::test]
async fn a_turn_whose_process_died_within_a_tool_does_not_run_it_again() {
    let two = Turn {
        blocks: vec![Block::tool("mcp__herd__count", json!({})), Block::tool("mcp__herd__hang", json!({}))],
        ..Turn::default()
    };
    let server = scripted([two, Turn::text("Back.")]);
    let harness = MessagesHarness::new(&server.base_url());
    let options = herd(&harness);
    let input = serde_json::from_value(json!({ "prompt": "a", "options": options })).unwrap();
    let mut stream = harness.provider.execute(input, in_folder(&harness));
    let mut session = None;
    let completed = async {
        while let Some(item) = stream.next().await {
            match item.unwrap() {
                ProviderItem::Event(StreamEvent::Session { session_id }) => session = Some(session_id),
                ProviderItem::Event(StreamEvent::ToolComplete { .. }) => return,
                _ => {}
            }
        }
    };
    tokio::time::timeout(SOON, completed).await.unwrap();
    // The answer is stored when the stream is polled again.
    let more = tokio::time::timeout(Duration::from_millis(500), stream.next()).await;
    assert!(more.is_err(), "{more:?}");
    drop(stream);
    nobody_left(&harness).await;
    let mut options = options;
    options["resume"] = json!(session);
    let output = harness
        .turn_in(json!({ "prompt": "go on", "options": options }), in_folder(&harness), |_, _| {})
        .await;
    assert_eq!(output.1.unwrap().text, "Back.");
    let reported = spoken(&server, 1);
    assert!(reported[2].starts_with("user: =1 oxen | !the call was interrupted"), "{}", reported[2]);
    // Unlike a process that dies, a stream that is dropped may still cancel the call.
    let log = std::fs::read_to_string(harness.folder.path().join("herd.log")).unwrap();
    let calls: Vec<_> = log.lines().filter(|line| *line != "cancelled").collect();
    assert_eq!(calls, ["count", "hang"]);
}

#[tokio::test]
async fn a_server_that_does_not_start_keeps_the_model_from_being_asked() {
    let server = scripted([Turn::text("never")]);
    let harness = MessagesHarness::new(&server.base_url());
    let mut options = herd(&harness);
    options["mcpServers"]["herd"]["env"]["HERD_MODE"] = json!("gone");
    let turn =
        harness.turn_in(json!({ "prompt": "a", "options": options }), in_folder(&harness), |_, _| {}).await;
    assert_eq!((reported(&turn).0, reported(&turn).1.as_str()), (ErrorCode::Process, "mcpServer"));
    assert!(turn.0.is_empty() && server.requests().is_empty() && harness.stored().is_empty());
}

#[tokio::test]
async fn a_deadline_ends_a_tool_too() {
    let server = scripted([Turn::tool("mcp__herd__hang", json!({}))]);
    let harness = MessagesHarness::new(&server.base_url());
    let context = ExecutionContext { deadline: Some(Duration::from_secs(2)), ..in_folder(&harness) };
    let turn = harness.turn_in(json!({ "prompt": "a", "options": herd(&harness) }), context, |_, _| {}).await;
    assert_eq!((reported(&turn).0, reported(&turn).1.as_str()), (ErrorCode::Timeout, "deadline"));
    nobody_left(&harness).await;
}
