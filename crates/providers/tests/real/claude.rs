//! The real Claude Code program.

use std::time::Duration;

use inspan_model_server::{Scenario, Turn};
use inspan_protocol::{ErrorCode, ExecutionContext, Provider, StopReason};
use inspan_providers::{ClaudeInput, ClaudeOptions, ClaudeProvider, ClaudeSession};
use serde_json::json;

use crate::cases::{self, RealProgram};
use crate::turns::{self, kind, run, status};
use crate::world::{BOUND, Home, PLANTED, every_message, named, roles};

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

impl RealProgram for ClaudeSandbox {
    type Provider = ClaudeProvider;

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
    let (first, _, second) = cases::continues_in_a_new_process_and_directory(&world).await;
    assert_eq!(second.cost_usd, first.cost_usd);
    assert_eq!(roles(&world.main_requests()[1]), ["user", "assistant", "user"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_tool_leaves_nothing_behind() {
    cases::a_cancelled_tool_leaves_nothing_behind::<ClaudeSandbox>().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_stream_kills_the_tool_too() {
    cases::a_dropped_stream_kills_the_tool_too::<ClaudeSandbox>().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_stream_is_a_timeout_and_the_process_stays_usable() {
    let stall = Duration::from_millis(700);
    cases::a_silent_stream_is_a_timeout_and_the_process_stays_usable::<ClaudeSandbox>(stall).await;
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
    world.assert_ends(&provider).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_program_takes_every_option() {
    let world = ClaudeSandbox::new(Scenario::of([Turn::text("ok")]));
    let provider = ClaudeProvider::new();
    let input: ClaudeInput = serde_json::from_value(json!({
        "messages": every_message(),
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
