//! The real Claude Code program.

use std::time::Duration;

use inspan_model_server::{Scenario, Turn};
use inspan_protocol::{ErrorCode, ExecutionContext, Provider, StopReason, StreamEvent};
use inspan_providers::{ClaudeInput, ClaudeOptions, ClaudeProvider, ClaudeSession};
use serde_json::{Value, json};

use crate::turns::{self, kind, run, status, tools};
use crate::world::{Answers, BOUND, Home, PIXEL, PLANTED, asking, named};

/// One server and one home.
struct ClaudeSandbox {
    home: Home,
    program: String,
}

impl std::ops::Deref for ClaudeSandbox {
    type Target = Home;

    fn deref(&self) -> &Home {
        &self.home
    }
}

impl ClaudeSandbox {
    fn new(scenario: Scenario) -> Self {
        let program = named("INSPAN_E2E_CLAUDE");
        Self { home: Home::new(scenario, &["proj"], ("CLAUDE_CONFIG_DIR", "config")), program }
    }

    fn context(&self) -> ExecutionContext {
        self.home.context([
            ("INSPAN_CLAUDE", self.program.clone()),
            ("ANTHROPIC_BASE_URL", self.server.base_url()),
            ("ANTHROPIC_API_KEY", PLANTED.to_owned()),
            ("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1".to_owned()),
            ("CLAUDECODE", "1".to_owned()),
        ])
    }

    fn context_asking(&self, answers: Answers) -> ExecutionContext {
        asking(self.context(), answers)
    }

    /// The numbers of the running programs, without what they run themselves.
    fn processes(&self) -> Vec<u32> {
        self.running_with("--input-format=stream-json")
    }
}

fn prompt(text: &str, options: ClaudeOptions) -> ClaudeInput {
    ClaudeInput { prompt: Some(text.to_owned()), options: Some(options), ..ClaudeInput::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_conversation_continues_in_a_new_process_and_directory() {
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
