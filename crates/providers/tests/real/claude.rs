//! The real Claude Code program.

use std::time::Duration;

use inspan_model_server::{Block, Matcher, Scenario, Turn};
use inspan_protocol::{ErrorCode, Provider, StopReason, StreamEvent};
use inspan_providers::{ClaudeInput, ClaudeOptions, ClaudeProvider, ClaudeSession};
use serde_json::{Value, json};
use tokio::time::Instant;

mod world;

use crate::turns::{self, deltas, kind, run, status, thoughts, tools};
use crate::world::{Answers, BOUND, PIXEL};
use world::{ClaudeSandbox, prompt};

#[tokio::test(flavor = "multi_thread")]
async fn one_turn() {
    let world = ClaudeSandbox::new(Scenario::of([Turn {
        blocks: vec![Block::thinking("let me think"), Block::text("Hello there.")],
        ..Turn::default()
    }]));
    let provider = ClaudeProvider::new();
    let (events, result) = run(&provider, prompt("hi", ClaudeOptions::default()), world.context()).await;
    let output = result.unwrap();
    assert!(
        matches!(&events[0], StreamEvent::Session { session_id } if Some(session_id) == output.session_id.as_ref())
    );
    assert_eq!(deltas(&events), "Hello there.");
    assert_eq!(thoughts(&events), "let me think");
    assert_eq!(
        (
            output.text.as_str(),
            output.stop_reason,
            output.num_turns,
            output.usage.input_tokens,
            output.usage.output_tokens
        ),
        ("Hello there.", StopReason::Complete, 1, 100, 20)
    );
    assert!(output.cost_usd.unwrap() > 0.0);
    provider.shutdown().await;
    world.assert_nothing_runs();
}

#[tokio::test(flavor = "multi_thread")]
async fn two_turns_share_a_process_and_count_apart() {
    let world = ClaudeSandbox::new(Scenario::of([Turn::text("first"), Turn::text("second")]));
    let provider = ClaudeProvider::new();
    let first = run(&provider, prompt("one", ClaudeOptions::default()), world.context()).await.1.unwrap();
    let warm = world.processes();
    let options = ClaudeOptions { resume: first.session_id.clone(), ..ClaudeOptions::default() };
    let began = Instant::now();
    let second = run(&provider, prompt("two", options), world.context()).await.1.unwrap();
    let took = began.elapsed();
    assert_eq!((world.processes(), warm.len()), (warm, 1));
    assert_eq!(
        (second.text.as_str(), &second.session_id, second.cost_usd),
        ("second", &first.session_id, first.cost_usd)
    );
    assert_eq!(second.usage, first.usage);
    assert!(took < Duration::from_millis(500), "a warm turn took {took:?}");
    let requests = world.main_requests();
    assert_eq!(roles(&requests[1]), ["user", "assistant", "user"]);
    provider.shutdown().await;
    world.assert_nothing_runs();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_conversation_goes_on_in_a_new_process_and_directory() {
    let world = ClaudeSandbox::new(Scenario::of([Turn::text("first"), Turn::text("second")]));
    let provider = ClaudeProvider::new();
    let first = run(&provider, prompt("one", ClaudeOptions::default()), world.context()).await.1.unwrap();
    provider.shutdown().await;
    world.assert_nothing_runs();
    let provider = ClaudeProvider::new();
    std::fs::create_dir(world.folder("proj/sub")).unwrap();
    let options = ClaudeOptions {
        resume: first.session_id.clone(),
        cwd: Some("sub".to_owned()),
        ..ClaudeOptions::default()
    };
    let second = run(&provider, prompt("two", options), world.context()).await.1.unwrap();
    assert_eq!(
        (second.text.as_str(), &second.session_id, second.cost_usd),
        ("second", &first.session_id, first.cost_usd)
    );
    assert_eq!(roles(&world.main_requests()[1]), ["user", "assistant", "user"]);
    provider.shutdown().await;
    world.assert_nothing_runs();
}

#[tokio::test(flavor = "multi_thread")]
async fn other_options_take_another_process() {
    let world = ClaudeSandbox::new(Scenario::of([Turn::text("first"), Turn::text("second")]));
    let provider = ClaudeProvider::new();
    let first = run(&provider, prompt("one", ClaudeOptions::default()), world.context()).await.1.unwrap();
    let warm = world.processes();
    let options = ClaudeOptions {
        resume: first.session_id.clone(),
        append_system_prompt: Some("and be brief".to_owned()),
        ..ClaudeOptions::default()
    };
    let second = run(&provider, prompt("two", options), world.context()).await.1.unwrap();
    assert_eq!(second.text, "second");
    let now = world.processes();
    assert_eq!((now.len(), now == warm), (1, false));
    assert!(world.main_requests()[1]["system"].to_string().contains("and be brief"));
    provider.shutdown().await;
    world.assert_nothing_runs();
}

#[tokio::test(flavor = "multi_thread")]
async fn prompts_reach_the_model_as_written() {
    let world = ClaudeSandbox::new(Scenario::of([Turn::text("ok")]));
    std::fs::write(world.folder("proj/note.txt"), "INSIDE-THE-FILE").unwrap();
    let provider = ClaudeProvider::new();
    for text in ["/compact now", "/nosuch command", "read @note.txt", "@note.txt", "! ls", "# note"] {
        let output = run(&provider, prompt(text, ClaudeOptions::default()), world.context()).await.1.unwrap();
        assert_eq!(output.text, "ok", "{text}");
        let requests = world.main_requests();
        let messages = requests.last().unwrap()["messages"].clone();
        let said: Vec<&Value> =
            messages[0]["content"].as_array().unwrap().iter().map(|block| &block["text"]).collect();
        assert_eq!(said.last().unwrap(), &text);
        assert!(!messages.to_string().contains("INSIDE-THE-FILE"), "{text}");
    }
    provider.shutdown().await;
    world.assert_nothing_runs();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tool_is_allowed() {
    let bash = json!({ "command": "touch made && echo done", "description": "make" });
    let world = ClaudeSandbox::new(Scenario::of([Turn::tool("Bash", bash.clone()), Turn::text("All done.")]));
    let provider = ClaudeProvider::new();
    let context = world.context_asking(Answers::Allow);
    let (events, result) = run(&provider, prompt("go", ClaudeOptions::default()), context).await;
    assert_eq!(result.unwrap().text, "All done.");
    assert_eq!(tools(&events), [("Bash".to_owned(), bash, json!("done"), false)]);
    assert!(world.folder("proj/made").exists());
    provider.shutdown().await;
    world.assert_nothing_runs();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tool_is_denied_and_the_agent_goes_on() {
    let bash = json!({ "command": "touch made", "description": "make" });
    let world = ClaudeSandbox::new(Scenario::of([Turn::tool("Bash", bash.clone()), Turn::text("Then not.")]));
    let provider = ClaudeProvider::new();
    let context = world.context_asking(Answers::Deny("not today"));
    let (events, result) = run(&provider, prompt("go", ClaudeOptions::default()), context).await;
    let output = result.unwrap();
    assert_eq!((output.text.as_str(), output.permission_denials.len()), ("Then not.", 1));
    assert_eq!(tools(&events), [("Bash".to_owned(), bash.clone(), json!("not today"), true)]);
    // Without a person to ask it is denied too.
    let other = ClaudeSandbox::new(Scenario::of([Turn::tool("Bash", bash), Turn::text("Then not.")]));
    let (events, result) = run(&provider, prompt("go", ClaudeOptions::default()), other.context()).await;
    assert_eq!((result.unwrap().text.as_str(), tools(&events)[0].3), ("Then not.", true));
    assert!(!world.folder("proj/made").exists() && !other.folder("proj/made").exists());
    provider.shutdown().await;
    world.assert_nothing_runs();
    other.assert_nothing_runs();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_text_can_be_gone_on_with() {
    let slow = Turn {
        blocks: vec![Block::Text { text: "one two three four five six".to_owned(), chunks: 26 }],
        chunk_ms: Some(100),
        ..Turn::default()
    };
    let world = ClaudeSandbox::new(Scenario::of([slow, Turn::text("continued")]));
    let provider = ClaudeProvider::new();
    let context = world.context();
    let cancel = context.cancel.clone();
    let mut pieces = 0;
    let began = Instant::now();
    let (events, result) =
        turns::run_watching(&provider, prompt("count", ClaudeOptions::default()), context, |event| {
            pieces += u32::from(matches!(event, StreamEvent::Text { .. }));
            if pieces == 3 {
                cancel.cancel();
            }
        })
        .await;
    let output = result.unwrap();
    assert!(began.elapsed() < BOUND);
    assert_eq!((output.stop_reason, output.text.clone()), (StopReason::Aborted, deltas(&events)));
    let options = ClaudeOptions { resume: output.session_id.clone(), ..ClaudeOptions::default() };
    let second = run(&provider, prompt("go on", options), world.context()).await.1.unwrap();
    assert_eq!((second.text.as_str(), &second.session_id), ("continued", &output.session_id));
    provider.shutdown().await;
    world.assert_nothing_runs();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_tool_leaves_nothing_behind() {
    let bash = json!({ "command": "sleep 300; echo late", "description": "wait" });
    let world = ClaudeSandbox::new(Scenario::of([Turn::tool("Bash", bash), Turn::text("continued")]));
    let provider = ClaudeProvider::new();
    let context = world.context_asking(Answers::Allow);
    let cancel = context.cancel.clone();
    let sleeping = world.wait_for("sleep");
    let stop = async {
        sleeping.await;
        cancel.cancel();
    };
    let (turn, ()) = tokio::join!(run(&provider, prompt("wait", ClaudeOptions::default()), context), stop);
    let output = turn.1.unwrap();
    assert_eq!(output.stop_reason, StopReason::Aborted);
    assert_eq!((tools(&turn.0).len(), tools(&turn.0)[0].3), (1, true));
    // The program kills its tool's shell in the moment after it said that the turn ended.
    world.wait_until_gone("sleep 300", Duration::from_secs(2)).await;
    let options = ClaudeOptions { resume: output.session_id.clone(), ..ClaudeOptions::default() };
    let second = run(&provider, prompt("go on", options), world.context()).await.1.unwrap();
    assert_eq!(second.text, "continued");
    provider.shutdown().await;
    world.assert_nothing_runs();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_stream_kills_the_tool_too() {
    let bash = json!({ "command": "sleep 300; echo late", "description": "wait" });
    let world = ClaudeSandbox::new(Scenario::of([Turn::tool("Bash", bash)]));
    let provider = ClaudeProvider::new();
    let stream =
        provider.execute(prompt("wait", ClaudeOptions::default()), world.context_asking(Answers::Allow));
    let sleeping = world.wait_for("sleep");
    tokio::select! {
        () = sleeping => {}
        () = turns::drain(stream) => panic!("the turn ended by itself"),
    }
    // The stream was dropped with its future.
    world.wait_until_nothing_runs(BOUND).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn structured_output_comes_as_the_model_gave_it() {
    let world = ClaudeSandbox::new(Scenario::of([
        Turn::structured(json!({ "name": "a", "n": 1 })).when(Matcher::last("as json")),
        Turn::text("no, thanks"),
    ]));
    let schema = json!({
        "type": "object", "required": ["name", "n"],
        "properties": { "name": { "type": "string" }, "n": { "type": "integer" } },
    });
    let options = || ClaudeOptions { output_schema: Some(schema.clone()), ..ClaudeOptions::default() };
    let provider = ClaudeProvider::new();
    let output = run(&provider, prompt("as json", options()), world.context()).await.1.unwrap();
    assert_eq!(output.structured_output, Some(json!({ "name": "a", "n": 1 })));
    let output = run(&provider, prompt("plain", options()), world.context()).await.1.unwrap();
    assert_eq!((output.structured_output, output.stop_reason), (None, StopReason::Complete));
    provider.shutdown().await;
    world.assert_nothing_runs();
}

#[tokio::test(flavor = "multi_thread")]
async fn failures_have_their_codes() {
    let rows = [(401, ErrorCode::Auth), (429, ErrorCode::RateLimited), (529, ErrorCode::Overloaded)];
    for (status, code) in rows {
        let world = ClaudeSandbox::new(Scenario::of([Turn::error(status)]));
        let provider = ClaudeProvider::new();
        let began = Instant::now();
        let error =
            run(&provider, prompt("hi", ClaudeOptions::default()), world.context()).await.1.unwrap_err();
        assert_eq!(
            (error.code, error.detail.as_ref().map(|d| d["status"].clone())),
            (code, Some(json!(status)))
        );
        assert!(began.elapsed() < BOUND);
        assert_eq!(world.main_requests().len(), 1, "the program did not retry {status}");
        provider.shutdown().await;
        world.assert_nothing_runs();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_connection_is_the_networks_fault() {
    let world = ClaudeSandbox::new(Scenario::of([Turn::text("never")]));
    let provider = ClaudeProvider::new();
    let mut context = world.context();
    let unused = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    context.host_mut().env = context.host.env.with("ANTHROPIC_BASE_URL", format!("http://{unused}"));
    let began = Instant::now();
    let error = run(&provider, prompt("hi", ClaudeOptions::default()), context).await.1.unwrap_err();
    assert_eq!(error.code, ErrorCode::Network);
    assert!(began.elapsed() < BOUND);
    provider.shutdown().await;
    world.assert_nothing_runs();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_conversation_is_named() {
    let world = ClaudeSandbox::new(Scenario::of([Turn::text("never")]));
    let provider = ClaudeProvider::new();
    for id in ["5f0e3d3a-3f0e-4a53-9d0b-0123456789ab", "not-an-id"] {
        let options = ClaudeOptions { resume: Some(id.into()), ..ClaudeOptions::default() };
        let error = run(&provider, prompt("hi", options), world.context()).await.1.unwrap_err();
        assert_eq!((error.code, kind(&error)), (ErrorCode::InvalidRequest, json!("sessionNotFound")));
    }
    provider.shutdown().await;
    world.assert_nothing_runs();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broken_stream_is_retracted_and_an_error() {
    let broken = Turn { truncate_after: Some(6), ..Turn::text("a b c d e f g h") };
    let world = ClaudeSandbox::new(Scenario::of([broken]));
    let provider = ClaudeProvider::new();
    let (events, result) = run(&provider, prompt("hi", ClaudeOptions::default()), world.context()).await;
    assert_eq!(result.unwrap_err().code, ErrorCode::Network);
    assert_eq!(events.iter().filter(|event| **event == StreamEvent::Retract).count(), 1);
    provider.shutdown().await;
    world.assert_nothing_runs();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_stream_is_a_timeout_and_the_process_stays_usable() {
    let world = ClaudeSandbox::new(Scenario::of([
        Turn { stall_after: Some(4), ..Turn::text("a b c d") },
        Turn::text("again"),
    ]));
    let provider = ClaudeProvider::new();
    let options = ClaudeOptions { stall_timeout_ms: Some(700), ..ClaudeOptions::default() };
    let (events, result) = run(&provider, prompt("hi", options.clone()), world.context()).await;
    let error = result.unwrap_err();
    assert_eq!((error.code, kind(&error)), (ErrorCode::Timeout, json!("stall")));
    let StreamEvent::Session { session_id } = &events[0] else { panic!("{:?}", events[0]) };
    let warm = world.processes();
    let options = ClaudeOptions { resume: Some(session_id.clone()), ..options };
    assert_eq!(run(&provider, prompt("again", options), world.context()).await.1.unwrap().text, "again");
    assert_eq!(world.processes(), warm);
    provider.shutdown().await;
    world.assert_nothing_runs();
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_of_turns_and_cost() {
    let read = |path: &str| Turn::tool("Read", json!({ "file_path": path }));
    let world =
        ClaudeSandbox::new(Scenario::of([read("/etc/hostname"), read("/etc/hosts"), Turn::text("never")]));
    let provider = ClaudeProvider::new();
    let options = ClaudeOptions {
        max_turns: Some(1),
        allowed_tools: Some(vec!["Read".to_owned()]),
        ..ClaudeOptions::default()
    };
    let output = run(&provider, prompt("read", options), world.context()).await.1.unwrap();
    assert_eq!((output.stop_reason, output.num_turns), (StopReason::MaxTurns, 1));
    let options = ClaudeOptions {
        max_budget_usd: Some(0.000_000_1),
        allowed_tools: Some(vec!["Read".to_owned()]),
        ..ClaudeOptions::default()
    };
    let (_, result) = run(&provider, prompt("read", options), world.context()).await;
    let error = result.unwrap_err();
    assert_eq!((error.code, kind(&error)), (ErrorCode::Billing, json!("maxBudget")));
    provider.shutdown().await;
    world.assert_nothing_runs();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_program_takes_every_option() {
    let world = ClaudeSandbox::new(Scenario::of([Turn::text("ok")]));
    let provider = ClaudeProvider::new();
    let input: ClaudeInput = serde_json::from_value(json!({
        "messages": [
            { "role": "user", "content": [
                { "type": "text", "text": "/look" },
                { "type": "image", "media_type": "image/png", "data": PIXEL },
            ] },
            { "role": "user", "content": "@here" },
        ],
        "options": {
            "model": "claude-haiku-4-5", "maxTurns": 4, "tools": ["Read", "Bash"], "allowedTools": ["Bash(git *)", "Read"],
            "disallowedTools": ["Write"], "permissionMode": "acceptEdits", "systemPrompt": "You are a planted prompt.",
            "appendSystemPrompt": "And an appended one.", "thinking": "low", "maxThinkingTokens": 2048, "maxTokens": 4000,
            "maxBudgetUsd": 5, "addDirs": ["../more", "/"], "settingSources": ["user", "project"],
            "mcpServers": { "none": { "command": "/bin/false", "args": [] } },
        },
    }))
    .unwrap();
    std::fs::create_dir(world.folder("more")).unwrap();
    let output = run(&provider, input, world.context()).await.1.unwrap();
    assert_eq!((output.text.as_str(), output.model.as_deref()), ("ok", Some("claude-haiku-4-5")));
    let request = world.main_requests().remove(0);
    let tools: Vec<&str> =
        request["tools"].as_array().unwrap().iter().filter_map(|tool| tool["name"].as_str()).collect();
    assert_eq!(
        (request["model"].clone(), request["max_tokens"].clone()),
        (json!("claude-haiku-4-5"), json!(4000))
    );
    assert_eq!(tools, ["Bash", "Read"]);
    let system = request["system"].to_string();
    assert!(
        system.contains("You are a planted prompt.") && system.contains("And an appended one."),
        "{system}"
    );
    let content = request["messages"][0]["content"].as_array().unwrap();
    let kinds: Vec<&str> =
        content[content.len() - 3..].iter().filter_map(|block| block["type"].as_str()).collect();
    assert_eq!(kinds, ["text", "image", "text"]);
    assert_eq!(
        (&content[content.len() - 3]["text"], &content[content.len() - 1]["text"]),
        (&json!("/look"), &json!("@here"))
    );
    // A call with a budget has its own process.
    world.wait_until_nothing_runs(BOUND).await;
    provider.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_by_hand() {
    let world = ClaudeSandbox::new(Scenario::of([Turn::text("first"), Turn::text("second")]));
    let context = world.context();
    let session = ClaudeSession::create(&ClaudeOptions::default(), &context).await.unwrap();
    for (say, expected) in [("one", "first"), ("two", "second")] {
        session.send(&[inspan_protocol::ContentBlock::Text { text: say.to_owned() }]).await.unwrap();
        let output = turns::last(session.receive(world.context())).await.unwrap();
        assert_eq!((output.text.as_str(), output.session_id.as_ref()), (expected, Some(session.id())));
    }
    session.close().await;
    world.assert_nothing_runs();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_program_is_found_and_says_its_version() {
    let world = ClaudeSandbox::new(Scenario::of([Turn::text("never")]));
    let status = status(&inspan_providers::ClaudeProvider::new(), &world.context().host.env).await;
    assert_eq!(
        (status.version, status.login.as_deref(), status.problem),
        (Some(status.tested_version), Some("environment variable ANTHROPIC_API_KEY"), None)
    );
    world.assert_nothing_runs();
}

fn roles(request: &Value) -> Vec<&str> {
    let messages = request["messages"].as_array().into_iter().flatten();
    messages.filter_map(|message| message["role"].as_str()).filter(|role| *role != "system").collect()
}
