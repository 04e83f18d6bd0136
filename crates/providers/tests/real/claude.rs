//! The real Claude Code program.

use std::time::Duration;

use inspan_model_server::{Block, Matcher, Scenario, Turn};
use inspan_protocol::{ErrorCode, ExecutionContext, Provider, StopReason, StreamEvent};
use inspan_providers::{ClaudeInput, ClaudeOptions, ClaudeProvider, ClaudeSession};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::turns::{self, deltas, kind, run, slow, status, thoughts, tools};
use crate::{Answers, BOUND, PIXEL, PLANTED, RealSandbox, asking, named};

/// One server and one home for the program.
struct ClaudeSandbox {
    shared: RealSandbox,
    program: String,
}

impl std::ops::Deref for ClaudeSandbox {
    type Target = RealSandbox;

    fn deref(&self) -> &RealSandbox {
        &self.shared
    }
}

impl ClaudeSandbox {
    fn new(scenario: Scenario) -> Self {
        let program = named("INSPAN_E2E_CLAUDE");
        Self { shared: RealSandbox::new(scenario, &["proj"], ("CLAUDE_CONFIG_DIR", "config")), program }
    }

    fn context(&self) -> ExecutionContext {
        self.shared.context([
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

/// A sandbox whose model answers so, and a provider.
fn start<const N: usize>(turns: [Turn; N]) -> (ClaudeSandbox, ClaudeProvider) {
    (ClaudeSandbox::new(Scenario::of(turns)), ClaudeProvider::new())
}

#[tokio::test(flavor = "multi_thread")]
async fn one_turn() {
    let (sandbox, provider) = start([Turn {
        blocks: vec![Block::thinking("let me think"), Block::text("Hello there.")],
        ..Turn::default()
    }]);
    let (events, result) = run(&provider, prompt("hi", ClaudeOptions::default()), sandbox.context()).await;
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
    sandbox.end(&provider).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_turns_share_a_process_and_count_apart() {
    let (sandbox, provider) = start([Turn::text("first"), Turn::text("second")]);
    let first = run(&provider, prompt("one", ClaudeOptions::default()), sandbox.context()).await.1.unwrap();
    let warm = sandbox.processes();
    let options = ClaudeOptions { resume: first.session_id.clone(), ..ClaudeOptions::default() };
    let began = Instant::now();
    let second = run(&provider, prompt("two", options), sandbox.context()).await.1.unwrap();
    let took = began.elapsed();
    assert_eq!((sandbox.processes(), warm.len()), (warm, 1));
    assert_eq!(
        (second.text.as_str(), &second.session_id, second.cost_usd),
        ("second", &first.session_id, first.cost_usd)
    );
    assert_eq!(second.usage, first.usage);
    assert!(took < Duration::from_millis(500), "a warm turn took {took:?}");
    let requests = sandbox.main_requests();
    assert_eq!(roles(&requests[1]), ["user", "assistant", "user"]);
    sandbox.end(&provider).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_conversation_goes_on_in_a_new_process_and_directory() {
    let (sandbox, provider) = start([Turn::text("first"), Turn::text("second")]);
    let first = run(&provider, prompt("one", ClaudeOptions::default()), sandbox.context()).await.1.unwrap();
    sandbox.end(&provider).await;
    let provider = ClaudeProvider::new();
    std::fs::create_dir(sandbox.folder("proj/sub")).unwrap();
    let options = ClaudeOptions {
        resume: first.session_id.clone(),
        cwd: Some("sub".to_owned()),
        ..ClaudeOptions::default()
    };
    let second = run(&provider, prompt("two", options), sandbox.context()).await.1.unwrap();
    assert_eq!(
        (second.text.as_str(), &second.session_id, second.cost_usd),
        ("second", &first.session_id, first.cost_usd)
    );
    assert_eq!(roles(&sandbox.main_requests()[1]), ["user", "assistant", "user"]);
    sandbox.end(&provider).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn other_options_take_another_process() {
    let (sandbox, provider) = start([Turn::text("first"), Turn::text("second")]);
    let first = run(&provider, prompt("one", ClaudeOptions::default()), sandbox.context()).await.1.unwrap();
    let warm = sandbox.processes();
    let options = ClaudeOptions {
        resume: first.session_id.clone(),
        append_system_prompt: Some("and be brief".to_owned()),
        ..ClaudeOptions::default()
    };
    let second = run(&provider, prompt("two", options), sandbox.context()).await.1.unwrap();
    assert_eq!(second.text, "second");
    let now = sandbox.processes();
    assert_eq!((now.len(), now == warm), (1, false));
    assert!(sandbox.main_requests()[1]["system"].to_string().contains("and be brief"));
    sandbox.end(&provider).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn prompts_reach_the_model_as_written() {
    let sandbox = ClaudeSandbox::new(Scenario::of([Turn::text("ok")]));
    std::fs::write(sandbox.folder("proj/note.txt"), "INSIDE-THE-FILE").unwrap();
    let provider = ClaudeProvider::new();
    for text in ["/compact now", "/nosuch command", "read @note.txt", "@note.txt", "! ls", "# note"] {
        let output =
            run(&provider, prompt(text, ClaudeOptions::default()), sandbox.context()).await.1.unwrap();
        assert_eq!(output.text, "ok", "{text}");
        let requests = sandbox.main_requests();
        let messages = requests.last().unwrap()["messages"].clone();
        let said: Vec<&Value> =
            messages[0]["content"].as_array().unwrap().iter().map(|block| &block["text"]).collect();
        assert_eq!(said.last().unwrap(), &text);
        assert!(!messages.to_string().contains("INSIDE-THE-FILE"), "{text}");
    }
    sandbox.end(&provider).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tool_is_allowed() {
    let bash = json!({ "command": "touch made && echo done", "description": "make" });
    let (sandbox, provider) = start([Turn::tool("Bash", bash.clone()), Turn::text("All done.")]);
    let context = sandbox.context_asking(Answers::Allow);
    let (events, result) = run(&provider, prompt("go", ClaudeOptions::default()), context).await;
    assert_eq!(result.unwrap().text, "All done.");
    assert_eq!(tools(&events), [("Bash".to_owned(), bash, json!("done"), false)]);
    assert!(sandbox.folder("proj/made").exists());
    sandbox.end(&provider).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tool_is_denied_and_the_agent_goes_on() {
    let bash = json!({ "command": "touch made", "description": "make" });
    let (sandbox, provider) = start([Turn::tool("Bash", bash.clone()), Turn::text("Then not.")]);
    let context = sandbox.context_asking(Answers::Deny("not today"));
    let (events, result) = run(&provider, prompt("go", ClaudeOptions::default()), context).await;
    let output = result.unwrap();
    assert_eq!((output.text.as_str(), output.permission_denials.len()), ("Then not.", 1));
    assert_eq!(tools(&events), [("Bash".to_owned(), bash.clone(), json!("not today"), true)]);
    // Nobody to ask is a denial as well.
    let other = ClaudeSandbox::new(Scenario::of([Turn::tool("Bash", bash), Turn::text("Then not.")]));
    let (events, result) = run(&provider, prompt("go", ClaudeOptions::default()), other.context()).await;
    assert_eq!((result.unwrap().text.as_str(), tools(&events)[0].3), ("Then not.", true));
    assert!(!sandbox.folder("proj/made").exists() && !other.folder("proj/made").exists());
    sandbox.end(&provider).await;
    other.assert_nothing_runs();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_text_can_be_gone_on_with() {
    let (sandbox, provider) = start([slow(), Turn::text("continued")]);
    let context = sandbox.context();
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
    let second = run(&provider, prompt("go on", options), sandbox.context()).await.1.unwrap();
    assert_eq!((second.text.as_str(), &second.session_id), ("continued", &output.session_id));
    sandbox.end(&provider).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_tool_leaves_nothing_behind() {
    let bash = json!({ "command": "sleep 300; echo late", "description": "wait" });
    let (sandbox, provider) = start([Turn::tool("Bash", bash), Turn::text("continued")]);
    let context = sandbox.context_asking(Answers::Allow);
    let cancel = context.cancel.clone();
    let sleeping = sandbox.wait_for("sleep");
    let stop = async {
        sleeping.await;
        cancel.cancel();
    };
    let (turn, ()) = tokio::join!(run(&provider, prompt("wait", ClaudeOptions::default()), context), stop);
    let output = turn.1.unwrap();
    assert_eq!(output.stop_reason, StopReason::Aborted);
    assert_eq!((tools(&turn.0).len(), tools(&turn.0)[0].3), (1, true));
    // The program kills its tool's shell in the moment after it said that the turn ended.
    sandbox.wait_until_gone("sleep 300", Duration::from_secs(2)).await;
    let options = ClaudeOptions { resume: output.session_id.clone(), ..ClaudeOptions::default() };
    let second = run(&provider, prompt("go on", options), sandbox.context()).await.1.unwrap();
    assert_eq!(second.text, "continued");
    sandbox.end(&provider).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_stream_kills_the_tool_too() {
    let bash = json!({ "command": "sleep 300; echo late", "description": "wait" });
    let (sandbox, provider) = start([Turn::tool("Bash", bash)]);
    let stream =
        provider.execute(prompt("wait", ClaudeOptions::default()), sandbox.context_asking(Answers::Allow));
    let sleeping = sandbox.wait_for("sleep");
    tokio::select! {
        () = sleeping => {}
        () = turns::drain(stream) => panic!("the turn ended by itself"),
    }
    // The stream was dropped with its future.
    sandbox.wait_until_nothing_runs(BOUND).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn structured_output_comes_as_the_model_gave_it() {
    let sandbox = ClaudeSandbox::new(Scenario::of([
        Turn::structured(json!({ "name": "a", "n": 1 })).when(Matcher::last("as json")),
        Turn::text("no, thanks"),
    ]));
    let schema = json!({
        "type": "object", "required": ["name", "n"],
        "properties": { "name": { "type": "string" }, "n": { "type": "integer" } },
    });
    let options = || ClaudeOptions { output_schema: Some(schema.clone()), ..ClaudeOptions::default() };
    let provider = ClaudeProvider::new();
    let output = run(&provider, prompt("as json", options()), sandbox.context()).await.1.unwrap();
    assert_eq!(output.structured_output, Some(json!({ "name": "a", "n": 1 })));
    let output = run(&provider, prompt("plain", options()), sandbox.context()).await.1.unwrap();
    assert_eq!((output.structured_output, output.stop_reason), (None, StopReason::Complete));
    sandbox.end(&provider).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn failures_have_their_codes() {
    let rows = [(401, ErrorCode::Auth), (429, ErrorCode::RateLimited), (529, ErrorCode::Overloaded)];
    for (status, code) in rows {
        let (sandbox, provider) = start([Turn::error(status)]);
        let began = Instant::now();
        let error =
            run(&provider, prompt("hi", ClaudeOptions::default()), sandbox.context()).await.1.unwrap_err();
        assert_eq!(
            (error.code, error.detail.as_ref().map(|d| d["status"].clone())),
            (code, Some(json!(status)))
        );
        assert!(began.elapsed() < BOUND);
        assert_eq!(sandbox.main_requests().len(), 1, "the program did not retry {status}");
        sandbox.end(&provider).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_connection_is_the_networks_fault() {
    let (sandbox, provider) = start([Turn::text("never")]);
    let mut context = sandbox.context();
    let unused = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    context.host_mut().env = context.host.env.with("ANTHROPIC_BASE_URL", format!("http://{unused}"));
    let began = Instant::now();
    let error = run(&provider, prompt("hi", ClaudeOptions::default()), context).await.1.unwrap_err();
    assert_eq!(error.code, ErrorCode::Network);
    assert!(began.elapsed() < BOUND);
    sandbox.end(&provider).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_conversation_is_named() {
    let (sandbox, provider) = start([Turn::text("never")]);
    for id in ["5f0e3d3a-3f0e-4a53-9d0b-0123456789ab", "not-an-id"] {
        let options = ClaudeOptions { resume: Some(id.into()), ..ClaudeOptions::default() };
        let error = run(&provider, prompt("hi", options), sandbox.context()).await.1.unwrap_err();
        assert_eq!((error.code, kind(&error)), (ErrorCode::InvalidRequest, json!("sessionNotFound")));
    }
    sandbox.end(&provider).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broken_stream_is_retracted_and_an_error() {
    let broken = Turn { truncate_after: Some(6), ..Turn::text("a b c d e f g h") };
    let (sandbox, provider) = start([broken]);
    let (events, result) = run(&provider, prompt("hi", ClaudeOptions::default()), sandbox.context()).await;
    assert_eq!(result.unwrap_err().code, ErrorCode::Network);
    assert_eq!(events.iter().filter(|event| **event == StreamEvent::Retract).count(), 1);
    sandbox.end(&provider).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_stream_is_a_timeout_and_the_process_stays_usable() {
    let (sandbox, provider) =
        start([Turn { stall_after: Some(4), ..Turn::text("a b c d") }, Turn::text("again")]);
    let options = ClaudeOptions { stall_timeout_ms: Some(700), ..ClaudeOptions::default() };
    let (events, result) = run(&provider, prompt("hi", options.clone()), sandbox.context()).await;
    let error = result.unwrap_err();
    assert_eq!((error.code, kind(&error)), (ErrorCode::Timeout, json!("stall")));
    let StreamEvent::Session { session_id } = &events[0] else { panic!("{:?}", events[0]) };
    let warm = sandbox.processes();
    let options = ClaudeOptions { resume: Some(session_id.clone()), ..options };
    assert_eq!(run(&provider, prompt("again", options), sandbox.context()).await.1.unwrap().text, "again");
    assert_eq!(sandbox.processes(), warm);
    sandbox.end(&provider).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_of_turns_and_cost() {
    let read = |path: &str| Turn::tool("Read", json!({ "file_path": path }));
    let (sandbox, provider) = start([read("/etc/hostname"), read("/etc/hosts"), Turn::text("never")]);
    let options = ClaudeOptions {
        max_turns: Some(1),
        allowed_tools: Some(vec!["Read".to_owned()]),
        ..ClaudeOptions::default()
    };
    let output = run(&provider, prompt("read", options), sandbox.context()).await.1.unwrap();
    assert_eq!((output.stop_reason, output.num_turns), (StopReason::MaxTurns, 1));
    let options = ClaudeOptions {
        max_budget_usd: Some(0.000_000_1),
        allowed_tools: Some(vec!["Read".to_owned()]),
        ..ClaudeOptions::default()
    };
    let (_, result) = run(&provider, prompt("read", options), sandbox.context()).await;
    let error = result.unwrap_err();
    assert_eq!((error.code, kind(&error)), (ErrorCode::Billing, json!("maxBudget")));
    sandbox.end(&provider).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_program_takes_every_option() {
    let (sandbox, provider) = start([Turn::text("ok")]);
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
    std::fs::create_dir(sandbox.folder("more")).unwrap();
    let output = run(&provider, input, sandbox.context()).await.1.unwrap();
    assert_eq!((output.text.as_str(), output.model.as_deref()), ("ok", Some("claude-haiku-4-5")));
    let request = sandbox.main_requests().remove(0);
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
    // A call with a budget has a process of its own.
    sandbox.wait_until_nothing_runs(BOUND).await;
    provider.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_by_hand() {
    let sandbox = ClaudeSandbox::new(Scenario::of([Turn::text("first"), Turn::text("second")]));
    let context = sandbox.context();
    let session = ClaudeSession::create(&ClaudeOptions::default(), &context).await.unwrap();
    for (say, expected) in [("one", "first"), ("two", "second")] {
        session.send(&[inspan_protocol::ContentBlock::Text { text: say.to_owned() }]).await.unwrap();
        let output = turns::last(session.receive(sandbox.context())).await.unwrap();
        assert_eq!((output.text.as_str(), output.session_id.as_ref()), (expected, Some(session.id())));
    }
    session.close().await;
    sandbox.assert_nothing_runs();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_program_is_found_and_says_its_version() {
    let sandbox = ClaudeSandbox::new(Scenario::of([Turn::text("never")]));
    let status = status(&inspan_providers::ClaudeProvider::new(), &sandbox.context().host.env).await;
    assert_eq!(
        (status.version, status.login.as_deref(), status.problem),
        (Some(status.tested_version), Some("environment variable ANTHROPIC_API_KEY"), None)
    );
    sandbox.assert_nothing_runs();
}

fn roles(request: &Value) -> Vec<&str> {
    let messages = request["messages"].as_array().into_iter().flatten();
    messages.filter_map(|message| message["role"].as_str()).filter(|role| *role != "system").collect()
}
