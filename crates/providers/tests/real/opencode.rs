//! The real OpenCode program.

use std::time::Duration;

use inspan_model_server::{Block, Matcher, Scenario, Turn};
use inspan_protocol::{ErrorCode, StopReason, StreamEvent};
use inspan_providers::{OpenCodeInput, OpenCodeOptions, OpenCodeProvider};
use serde_json::{Value, json};

mod world;

use crate::cases::{self, RealProgram};
use crate::turns::{self, deltas, kind, run, status, thoughts, tools, warnings};
use crate::world::{Answers, every_message, roles};
use world::{Format, OpenCodeSandbox, prompt};

fn options() -> OpenCodeOptions {
    OpenCodeOptions::default()
}

#[tokio::test(flavor = "multi_thread")]
async fn one_turn_in_every_format() {
    for format in [Format::Messages, Format::Responses, Format::Chat] {
        let world = OpenCodeSandbox::new(Scenario::of([Turn {
            blocks: vec![Block::thinking("let me think"), Block::text("Hello there.")],
            ..Turn::default()
        }]));
        world.settings(format);
        let provider = OpenCodeProvider::new();
        let (events, result) = run(&provider, prompt("/hi @there", options()), world.context()).await;
        let output = result.unwrap();
        assert!(
            matches!(&events[0], StreamEvent::Session { session_id } if Some(session_id) == output.session_id.as_ref())
        );
        assert_eq!(deltas(&events), "Hello there.", "{format:?}");
        assert_eq!(thoughts(&events), "let me think", "{format:?}");
        assert_eq!(
            (
                output.text.as_str(),
                output.stop_reason,
                output.num_turns,
                output.usage.input_tokens,
                output.usage.output_tokens,
                output.cost_usd,
                output.model.as_deref(),
            ),
            ("Hello there.", StopReason::Complete, 1, 100, 20, Some(0.0006), Some("loop/scripted-model")),
            "{format:?}"
        );
        // One request: no title was asked for, and the prompt came as it was written.
        let requests = world.main_requests();
        assert_eq!((requests.len(), requests[0].to_string().contains("/hi @there")), (1, true), "{format:?}");
        assert!(!format!("{events:?} {output:?}").contains("planted"));
        world.assert_ends(&provider).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_conversation_continues_in_a_new_server_and_directory() {
    let bash = json!({ "command": "touch made", "description": "make" });
    let world = OpenCodeSandbox::new(Scenario::of([
        Turn::text("first"),
        Turn::tool("bash", bash),
        Turn::text("second"),
    ]));
    let (_, events, second) = cases::continues_in_a_new_process_and_directory(&world).await;
    let elsewhere = warnings(&events).into_iter().filter(|code| *code == "otherDirectory");
    assert_eq!((second.usage.input_tokens, elsewhere.count()), (200, 1));
    assert_eq!(roles(&world.main_requests()[1]), ["user", "assistant", "user"]);
    // The rules hold in the new server too.
    assert_eq!((tools(&events)[0].3, world.folder("proj/made").exists()), (true, false));
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_to_ask_is_a_denial_and_options_decide_unasked() {
    let bash = |command: &str| Block::tool("bash", json!({ "command": command, "description": "x" }));
    let fetch = Block::tool("webfetch", json!({ "url": "http://127.0.0.1:1/", "format": "text" }));
    let world = OpenCodeSandbox::new(Scenario::of([
        Turn { blocks: vec![bash("echo yes"), bash("touch made"), fetch], ..Turn::default() },
        Turn::text("ok"),
    ]));
    let provider = OpenCodeProvider::new();
    let chosen = OpenCodeOptions {
        allowed_tools: Some(vec!["bash(echo *)".to_owned()]),
        disallowed_tools: Some(vec!["webfetch".to_owned()]),
        ..options()
    };
    let (events, result) = run(&provider, prompt("go", chosen), world.context()).await;
    assert_eq!(result.unwrap().text, "ok");
    let failed: Vec<(String, bool)> = tools(&events).into_iter().map(|tool| (tool.0, tool.3)).collect();
    let expected = [("bash", false), ("bash", true), ("webfetch", true)];
    assert_eq!(failed, expected.map(|(name, failed)| (name.to_owned(), failed)));
    assert!(!world.folder("proj/made").exists());
    let offered = offered(&world.main_requests()[0]);
    assert!(!offered.contains(&"webfetch".to_owned()) && offered.contains(&"bash".to_owned()), "{offered:?}");
    world.assert_ends(&provider).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_question_of_the_agent_reaches_a_person() {
    let question = json!({ "questions": [{ "question": "Which?", "header": "colour", "options": [
        { "label": "red", "description": "warm" }, { "label": "blue", "description": "cold" },
    ] }] });
    let world = OpenCodeSandbox::new(Scenario::of([Turn::tool("question", question), Turn::text("ok")]));
    let provider = OpenCodeProvider::new();
    let context = world.context_asking(Answers::Choose("red"));
    let (events, result) = run(&provider, prompt("ask", options()), context).await;
    assert_eq!(result.unwrap().permission_denials, []);
    assert!(tools(&events)[0].2.as_str().unwrap().contains("\"red\""), "{events:?}");
    // Without a person the question is answered too.
    let resumed = run(&provider, prompt("ask", options()), world.context()).await.1.unwrap();
    assert_eq!(resumed.text, "ok");
    world.assert_ends(&provider).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sub_agent_asks_counts_and_says_nothing_itself() {
    let task = json!({ "description": "sub", "prompt": "do it", "subagent_type": "general" });
    let bash = json!({ "command": "echo within", "description": "x" });
    let world = OpenCodeSandbox::new(Scenario::of([
        Turn::tool("task", task),
        Turn::tool("bash", bash),
        Turn::text("the sub-agent's words"),
        Turn::text("the agent's words"),
    ]));
    let provider = OpenCodeProvider::new();
    let (events, result) =
        run(&provider, prompt("go", options()), world.context_asking(Answers::Allow)).await;
    let output = result.unwrap();
    assert_eq!(
        (output.text.as_str(), deltas(&events).as_str(), output.num_turns, output.usage.input_tokens),
        ("the agent's words", "the agent's words", 2, 400)
    );
    let tools = tools(&events);
    assert_eq!((tools[0].0.as_str(), tools[1].0.as_str(), tools[1].3), ("task", "bash", false));
    assert!(tools[0].2.as_str().unwrap().contains("the sub-agent's words"), "{tools:?}");
    world.assert_ends(&provider).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_tool_leaves_nothing_behind() {
    cases::a_cancelled_tool_leaves_nothing_behind::<OpenCodeSandbox>().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_stream_kills_the_tool_too() {
    cases::a_dropped_stream_kills_the_tool_too::<OpenCodeSandbox>().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_server_is_reported_and_the_conversation_continues() {
    let world = OpenCodeSandbox::new(Scenario::of([
        Turn { stall_after: Some(4), ..Turn::text("a b c d") },
        Turn::text("again"),
    ]));
    let provider = OpenCodeProvider::new();
    let mut session = None;
    let (_, result) =
        turns::run_watching(&provider, prompt("hi", options()), world.context(), |event| match event {
            StreamEvent::Session { session_id } => session = Some(session_id.clone()),
            StreamEvent::Text { .. } => world.kill(),
            _ => {}
        })
        .await;
    let error = result.unwrap_err();
    assert_eq!((error.code, kind(&error)), (ErrorCode::Process, json!("processDied")));
    let resumed = OpenCodeOptions { resume: session, ..options() };
    assert_eq!(run(&provider, prompt("again", resumed), world.context()).await.1.unwrap().text, "again");
    world.assert_ends(&provider).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn structured_output_comes_as_the_model_gave_it() {
    let world = OpenCodeSandbox::new(Scenario::of([
        Turn::structured(json!({ "name": "a" })).when(Matcher::last("as json")),
        Turn::text("no, thanks"),
    ]));
    let schema = json!({
        "type": "object", "required": ["name", "n"],
        "properties": { "name": { "type": "string" }, "n": { "type": "integer" } },
    });
    let structured = |resume| OpenCodeOptions {
        output_schema: Some(schema.clone()),
        resume,
        tools: Some(Vec::new()),
        ..options()
    };
    let provider = OpenCodeProvider::new();
    let first = run(&provider, prompt("as json", structured(None)), world.context()).await.1.unwrap();
    assert_eq!(
        (&first.structured_output, first.text.as_str(), first.stop_reason),
        (&Some(json!({ "name": "a" })), "{\"name\":\"a\"}", StopReason::Complete)
    );
    assert_eq!(offered(&world.main_requests()[0]), ["StructuredOutput"]);
    // The conversation continues after that, with and without such a request, here and in another server.
    let again = run(&provider, prompt("plain", structured(first.session_id.clone())), world.context())
        .await
        .1
        .unwrap();
    assert_eq!((again.structured_output, again.text.as_str()), (None, "no, thanks"));
    let plain = OpenCodeOptions { resume: first.session_id.clone(), ..options() };
    let third = run(&provider, prompt("plain", plain), world.context()).await.1.unwrap();
    assert_eq!((third.text.as_str(), third.session_id), ("no, thanks", first.session_id));
    world.assert_ends(&provider).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_conversation_continues_after_a_failed_turn() {
    let world = OpenCodeSandbox::new(Scenario::of([Turn::error(500), Turn::text("well again")]));
    let provider = OpenCodeProvider::new();
    let (events, result) = run(&provider, prompt("hi", options()), world.context()).await;
    assert_eq!(result.unwrap_err().code, ErrorCode::Overloaded);
    let StreamEvent::Session { session_id } = &events[0] else { panic!("{:?}", events[0]) };
    let resumed = OpenCodeOptions { resume: Some(session_id.clone()), ..options() };
    assert_eq!(run(&provider, prompt("hi", resumed), world.context()).await.1.unwrap().text, "well again");
    world.assert_ends(&provider).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_conversation_that_stays_too_long_ends() {
    let mut long = Turn::error(400);
    if let Some(error) = &mut long.http_error {
        error.message = "prompt is too long: 210000 tokens > 200000 maximum".to_owned();
    }
    let world = OpenCodeSandbox::new(Scenario::of([long]));
    let provider = OpenCodeProvider::new();
    let (events, result) = run(&provider, prompt("hi", options()), world.context()).await;
    let error = result.unwrap_err();
    assert_eq!(error.code, ErrorCode::ContextLength, "{error:?} {events:?}");
    assert!(world.main_requests().len() <= 3, "{}", world.main_requests().len());
    world.assert_ends(&provider).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn unknown_names_are_reported() {
    let world = OpenCodeSandbox::new(Scenario::of([Turn::text("never")]));
    let provider = OpenCodeProvider::new();
    for id in ["ses_0000000000000000000000000", "not-an-id"] {
        let resumed = OpenCodeOptions { resume: Some(id.into()), ..options() };
        let error = run(&provider, prompt("hi", resumed), world.context()).await.1.unwrap_err();
        assert_eq!((error.code, kind(&error)), (ErrorCode::InvalidRequest, json!("sessionNotFound")));
    }
    let model = OpenCodeOptions { model: Some("loop/other-model".to_owned()), ..options() };
    let error = run(&provider, prompt("hi", model), world.context()).await.1.unwrap_err();
    assert_eq!(error.code, ErrorCode::ModelNotFound, "{error:?}");
    let agent = OpenCodeOptions { agent: Some("nobody".to_owned()), ..options() };
    let error = run(&provider, prompt("hi", agent), world.context()).await.1.unwrap_err();
    assert_eq!(error.code, ErrorCode::ConfigInvalid, "{error:?}");
    world.assert_ends(&provider).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_stream_is_a_timeout_and_the_server_stays_usable() {
    let stall = Duration::from_secs(6);
    cases::a_silent_stream_is_a_timeout_and_the_process_stays_usable::<OpenCodeSandbox>(stall).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_of_turns_and_one_of_tokens() {
    let world = OpenCodeSandbox::new(Scenario::of([
        Turn::tool("read", json!({ "filePath": "a.txt" })),
        Turn::tool("read", json!({ "filePath": "a.txt" })),
    ]));
    std::fs::write(world.folder("proj/a.txt"), "text").unwrap();
    let provider = OpenCodeProvider::new();
    let limited = OpenCodeOptions { max_turns: Some(1), ..options() };
    let output = run(&provider, prompt("read", limited), world.context()).await.1.unwrap();
    assert_eq!((output.stop_reason, output.num_turns), (StopReason::MaxTurns, 1));
    world.script(Scenario::of([Turn { stop_reason: Some("max_tokens".to_owned()), ..Turn::text("cut") }]));
    let output = run(&provider, prompt("say", options()), world.context()).await.1.unwrap();
    assert_eq!((output.stop_reason, output.text.as_str()), (StopReason::MaxTokens, "cut"));
    world.assert_ends(&provider).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_program_takes_every_option() {
    let world = OpenCodeSandbox::new(Scenario::of([Turn::text("ok")]));
    let provider = OpenCodeProvider::new();
    let input: OpenCodeInput = serde_json::from_value(json!({
        "messages": every_message(),
        "options": {
            "model": "loop/scripted-model", "variant": "high", "agent": "plan", "maxTurns": 4,
            "tools": ["read", "bash"], "allowedTools": ["bash(git *)", "read"], "disallowedTools": ["write"],
            "systemPrompt": "You are a planted prompt.", "appendSystemPrompt": "And an appended one.",
            "mcpServers": { "none": { "type": "local", "command": ["/bin/false"], "enabled": false } },
        },
    }))
    .unwrap();
    let output = run(&provider, input, world.context()).await.1.unwrap();
    assert_eq!((output.text.as_str(), output.model.as_deref()), ("ok", Some("loop/scripted-model")));
    let request = world.main_requests().remove(0);
    assert_eq!(offered(&request), ["bash", "read"]);
    let system = request["system"].to_string();
    assert!(
        system.contains("You are a planted prompt.") && system.contains("And an appended one."),
        "{system}"
    );
    let content = request["messages"][0]["content"].as_array().unwrap();
    let seen: Vec<&Value> = content.iter().map(|block| &block["type"]).collect();
    assert_eq!(seen[..3], ["text", "image", "text"]);
    assert_eq!((&content[0]["text"], &content[2]["text"]), (&json!("/look"), &json!("@here")));
    world.assert_ends(&provider).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_program_is_found_and_says_its_version() {
    let world = OpenCodeSandbox::new(Scenario::of([Turn::text("never")]));
    let status = status(&inspan_providers::OpenCodeProvider::new(), &world.context().host.env).await;
    assert_eq!((status.version, status.problem), (Some(status.tested_version), None));
    world.assert_nothing_runs();
}

fn offered(request: &Value) -> Vec<String> {
    let tools = request["tools"].as_array().into_iter().flatten();
    let mut names: Vec<String> = tools.filter_map(|tool| tool["name"].as_str().map(str::to_owned)).collect();
    names.sort();
    names
}
