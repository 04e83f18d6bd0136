//! The real Codex program.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use inspan_model_server::{Block, Scenario, Turn};
use inspan_protocol::{
    ErrorCode, ExecutionContext, Provider, ProviderSessionId, Steering, StopReason, StreamEvent,
};
use inspan_providers::{CodexInput, CodexOptions, CodexProvider};
use serde_json::{Value, json};
use tokio::time::Instant;

mod world;

use crate::cases::{self, RealProgram};
use crate::turns::{self, deltas, kind, run, status, tools, warnings};
use crate::world::{Answers, BOUND, PIXEL, PLANTED, every_message};
use world::{CodexSandbox, options, prompt};

fn exec(command: &str) -> Turn {
    Turn::tool("exec_command", json!({ "cmd": command }))
}

/// Asks before each command.
fn asking() -> CodexOptions {
    options(json!({ "approvalPolicy": "untrusted", "sandbox": "workspace-write" }))
}

/// Asks nothing.
fn free() -> CodexOptions {
    options(CodexSandbox::options())
}

fn resume(session: Option<&ProviderSessionId>) -> CodexOptions {
    CodexOptions { resume: session.cloned(), ..CodexOptions::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_conversation_continues_in_a_new_process_and_directory() {
    let world = CodexSandbox::new(Scenario::of([Turn::text("first"), Turn::text("second")]));
    let (first, _, second) = cases::continues_in_a_new_process_and_directory(&world).await;
    assert_eq!((second.usage, second.num_turns), (first.usage, 1));
    assert_eq!(said(&world.requests()[1].body), ["one", "first", "go on"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_providers_do_not_share_a_conversation() {
    let world = CodexSandbox::new(Scenario::of([Turn::text("first"), Turn::text("second")]));
    let (one, other) = (CodexProvider::new(), CodexProvider::new());
    let first = run(&one, prompt("one", CodexOptions::default()), world.context()).await.1.unwrap();
    let again = resume(first.session_token.as_ref());
    let error = run(&other, prompt("two", again.clone()), world.context()).await.1.unwrap_err();
    assert_eq!((error.code, kind(&error)), (ErrorCode::InvalidRequest, json!("sessionBusy")));
    one.shutdown().await;
    assert_eq!(run(&other, prompt("two", again), world.context()).await.1.unwrap().code, "second");
    other.shutdown().await;
    world.assert_nothing_runs();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_script_of_npm_works_and_is_reaped_too() {
    let world = CodexSandbox::new(Scenario::of([exec("sleep 300"), Turn::text("never")]));
    let provider = CodexProvider::new();
    let mut through = free();
    through.executable = Some(world.wrapper().display().to_string());
    let stream = provider.execute(prompt("wait", through), world.context());
    tokio::select! {
        () = world.wait_for("sleep") => {}
        () = turns::drain(stream) => panic!("the turn ended by itself"),
    }
    world.wait_until_nothing_runs(BOUND).await;
    provider.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_allows_another_command_is_a_denial() {
    let world = CodexSandbox::new(Scenario::of([exec("touch made"), Turn::text("Then not.")]));
    let provider = CodexProvider::new();
    let (events, result) = run(&provider, prompt("go", asking()), world.context_asking(Answers::Other)).await;
    let output = result.unwrap();
    let denials = &output.turn.permission_denials;
    assert_eq!((output.code.as_str(), denials.len()), ("Then not.", 1));
    assert_eq!(denials[0].tool_name, "commandExecution");
    assert!(warnings(&events).contains(&"inputNotChanged"), "{events:?}");
    assert!(!world.folder("proj/made").exists());
    world.assert_ends(&provider).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_of_files_is_asked_about() {
    let patch = "apply_patch <<'EOF'\n*** Begin Patch\n*** Add File: new.txt\n+hello\n*** End Patch\nEOF";
    for (answers, made) in [(Answers::Allow, true), (Answers::Deny("not today"), false)] {
        let world = CodexSandbox::new(Scenario::of([exec(patch), Turn::text("ok")]));
        let provider = CodexProvider::new();
        let (events, result) = run(&provider, prompt("go", asking()), world.context_asking(answers)).await;
        result.unwrap();
        let seen = tools(&events);
        assert_eq!((seen[0].0.as_str(), seen[0].3), ("fileChange", !made));
        assert_eq!(world.folder("proj/new.txt").exists(), made);
        world.assert_ends(&provider).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_tool_leaves_nothing_behind() {
    cases::a_cancelled_tool_leaves_nothing_behind::<CodexSandbox>().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_program_is_an_error_and_its_conversation_can_be_resumed() {
    let world = CodexSandbox::new(Scenario::of([exec("sleep 300"), Turn::text("continued")]));
    let provider = CodexProvider::new();
    let kill = async {
        world.wait_for("sleep").await;
        for pid in world.processes() {
            let done = std::process::Command::new("kill").args(["-9", &pid.to_string()]).status();
            assert!(done.unwrap().success());
        }
    };
    let (turn, ()) = tokio::join!(run(&provider, prompt("wait", free()), world.context()), kill);
    let error = turn.1.unwrap_err();
    assert_eq!((error.code, kind(&error)), (ErrorCode::Process, json!("processDied")));
    world.wait_until_nothing_runs(BOUND).await;
    let StreamEvent::Session { session_id } = &turn.0[0] else { panic!("{:?}", turn.0[0]) };
    let again = resume(Some(session_id));
    assert_eq!(run(&provider, prompt("go on", again), world.context()).await.1.unwrap().code, "continued");
    world.assert_ends(&provider).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_out_of_service_is_not_asked_again() {
    let world = CodexSandbox::new(Scenario::of([Turn::error(503)]));
    let provider = CodexProvider::new();
    let error = run(&provider, prompt("hi", CodexOptions::default()), world.context()).await.1.unwrap_err();
    assert_eq!((error.code, world.requests().len()), (ErrorCode::Overloaded, 1), "{error}");
    world.assert_ends(&provider).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn retries_that_the_caller_wants_are_warned_of_and_retracted() {
    let broken = Turn { truncate_after: Some(8), ..Turn::text("one two three four five") };
    let world = CodexSandbox::new(Scenario::of([broken, Turn::text("anew")]));
    let provider = CodexProvider::new();
    let wanted = options(json!({ "config": { "model_providers": { "loop": { "stream_max_retries": 2 } } } }));
    let (events, result) = run(&provider, prompt("hi", wanted), world.context()).await;
    assert_eq!((result.unwrap().code.as_str(), deltas(&events).as_str()), ("anew", "anew"));
    assert!(warnings(&events).contains(&"apiRetry"), "{events:?}");
    assert_eq!(events.iter().filter(|event| **event == StreamEvent::Retract).count(), 1);
    world.assert_ends(&provider).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_stream_is_a_timeout_and_the_process_stays_usable() {
    let stall = Duration::from_millis(700);
    cases::a_silent_stream_is_a_timeout_and_the_process_stays_usable::<CodexSandbox>(stall).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_limit_of_turns_lets_the_last_tool_run() {
    let world = CodexSandbox::new(Scenario::of([
        exec("touch one"),
        exec("touch two"),
        exec("touch three"),
        Turn::text("never"),
    ]));
    let provider = CodexProvider::new();
    let mut limited = free();
    limited.max_turns = Some(2);
    let output = run(&provider, prompt("go", limited), world.context()).await.1.unwrap();
    assert_eq!((output.turn.stop_reason, output.turn.num_turns), (StopReason::MaxTurns, 2));
    let made = |name: &str| world.folder("proj").join(name).exists();
    assert_eq!([made("one"), made("two"), made("three")], [true, true, false]);
    world.assert_ends(&provider).await;
}

/// Says one message, once it was asked for.
struct OneMessage(Mutex<Option<String>>, tokio_util::sync::CancellationToken);

impl Steering for OneMessage {
    fn next(&self) -> BoxFuture<'static, String> {
        let message = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        let now = self.1.clone();
        async move {
            now.cancelled().await;
            match message {
                Some(message) => message,
                None => std::future::pending().await,
            }
        }
        .boxed()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_joins_the_turn_in_progress() {
    let slow = Turn {
        blocks: vec![Block::Text { text: "one two three four five six".to_owned(), chunks: 26 }],
        chunk_ms: Some(100),
        ..Turn::default()
    };
    let world = CodexSandbox::new(Scenario::of([slow, Turn::text("Brief.")]));
    let provider = CodexProvider::new();
    let now = tokio_util::sync::CancellationToken::new();
    let steering: Arc<dyn Steering> =
        Arc::new(OneMessage(Mutex::new(Some("be brief".to_owned())), now.clone()));
    let context = ExecutionContext { steering: Some(steering), ..world.context() };
    let mut pieces = 0;
    let (events, result) =
        turns::run_watching(&provider, prompt("count", CodexOptions::default()), context, |event| {
            pieces += u32::from(matches!(event, StreamEvent::Text { .. }));
            if pieces == 3 {
                now.cancel();
            }
        })
        .await;
    let output = result.unwrap();
    assert_eq!((output.code.as_str(), output.turn.stop_reason), ("Brief.", StopReason::Complete));
    assert_eq!(events.iter().filter(|event| **event == StreamEvent::Steered).count(), 1);
    assert_eq!(deltas(&events), "Brief.");
    let asked = said(&world.requests()[1].body).into_iter().map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(
        (asked.first().map(String::as_str), asked.last().map(String::as_str)),
        (Some("count"), Some("be brief"))
    );
    world.assert_ends(&provider).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_program_takes_every_option() {
    let world = CodexSandbox::new(Scenario::of([Turn::text("ok")]));
    let provider = CodexProvider::new();
    std::fs::create_dir(world.folder("proj/sub")).unwrap();
    let schema = json!({ "type": "object", "properties": {}, "required": [], "additionalProperties": false });
    let input: CodexInput = serde_json::from_value(json!({
        "messages": every_message(),
        "options": {
            "model": "another-model", "maxTurns": 4, "approvalPolicy": "on-request", "sandbox": "workspace-write",
            "systemPrompt": "You are a planted prompt.", "appendSystemPrompt": "And an appended one.",
            "thinking": "low", "cwd": "sub", "mcpServers": { "none": { "command": "/bin/false", "args": [] } },
            "config": { "web_search": "disabled" }, "outputSchema": schema,
        },
    }))
    .unwrap();
    let (events, result) = run(&provider, input, world.context()).await;
    let output = result.unwrap();
    assert_eq!((output.code.as_str(), output.turn.model.as_deref()), ("ok", Some("another-model")));
    assert!(warnings(&events).contains(&"mcpServer"), "{events:?}");
    let request = world.requests().remove(0).body;
    let format = &request["text"]["format"];
    assert_eq!(
        (&request["model"], &format["type"], &format["schema"]),
        (&json!("another-model"), &json!("json_schema"), &schema)
    );
    let input = request["input"].to_string();
    for part in ["You are a planted prompt.", "And an appended one.", "/proj/sub"] {
        assert!(input.contains(part), "{part} is not in {input}");
    }
    assert!(input.contains(&format!("data:image/png;base64,{PIXEL}")));
    world.assert_ends(&provider).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_of_the_environment_stays_in_memory() {
    for name in ["CODEX_API_KEY", "OPENAI_API_KEY"] {
        let world = CodexSandbox::unconfigured(Scenario::of([Turn::text("never")]));
        let provider = CodexProvider::new();
        // The vendor's own server, with the address of our server.
        let there =
            || options(json!({ "config": { "openai_base_url": format!("{}/v1", world.server.base_url()) } }));
        let error = run(&provider, prompt("hi", there()), world.context()).await.1.unwrap_err();
        assert_eq!((error.code, kind(&error)), (ErrorCode::Auth, json!("noLogin")), "{name}");
        let mut context = world.context();
        context.host_mut().env = context.host.env.with(name, PLANTED);
        let cancel = context.cancel.clone();
        let sent = async {
            let asked = || {
                let key = json!(inspan_model_server::SECRET_PRESENT);
                world.server.requests().iter().any(|request| {
                    request.headers.get("authorization").is_some_and(|value| key == json!(value))
                })
            };
            let until = Instant::now() + BOUND;
            while !asked() {
                assert!(Instant::now() < until, "{name} was never sent: {:?}", world.server.requests());
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            cancel.cancel();
        };
        let (turn, ()) = tokio::join!(run(&provider, prompt("hi", there()), context), sent);
        assert_eq!(turn.1.unwrap().turn.stop_reason, StopReason::Aborted, "{name}");
        world.assert_ends(&provider).await;
        world.assert_key_is_nowhere(PLANTED);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_configuration_that_the_program_refuses_is_the_callers_fault() {
    let world = CodexSandbox::new(Scenario::of([Turn::text("never")]));
    let provider = CodexProvider::new();
    let wrong = options(json!({ "config": { "model_providers.openai.name": "mine" } }));
    let error = run(&provider, prompt("hi", wrong), world.context()).await.1.unwrap_err();
    assert_eq!((error.code, kind(&error)), (ErrorCode::ConfigInvalid, json!("optionRefused")), "{error}");
    world.assert_ends(&provider).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_program_is_found_and_says_its_version() {
    let world = CodexSandbox::new(Scenario::of([Turn::text("never")]));
    let by_file = status(&inspan_providers::CodexProvider::new(), &world.context().host.env).await;
    let config = format!("as {} says", world.folder("codex/config.toml").display());
    assert_eq!(
        (by_file.version, by_file.login, by_file.problem),
        (Some(by_file.tested_version), Some(config), None)
    );
    let bare = CodexSandbox::unconfigured(Scenario::of([Turn::text("never")]));
    let none = status(&inspan_providers::CodexProvider::new(), &bare.context().host.env).await;
    assert_eq!((none.login, none.problem.is_some()), (None, true));
    let env = bare.context().host.env.with("OPENAI_API_KEY", PLANTED);
    let by_key = status(&inspan_providers::CodexProvider::new(), &env).await;
    assert_eq!(by_key.login.as_deref(), Some("environment variable OPENAI_API_KEY"));
    world.assert_nothing_runs();
}

/// The texts of the user and the model in a request, without what the program says about its surroundings.
fn said(request: &Value) -> Vec<&str> {
    let items = request["input"].as_array().into_iter().flatten();
    let texts = items
        .filter(|item| matches!(item["role"].as_str(), Some("user" | "assistant")))
        .flat_map(|item| item["content"].as_array().into_iter().flatten())
        .filter_map(|part| part["text"].as_str());
    texts.filter(|text| !text.starts_with('<') && !text.starts_with("# AGENTS.md")).collect()
}
