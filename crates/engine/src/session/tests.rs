//! Sessions against a scripted provider on paused time: what all of these tests share, and one chat whole.

use std::time::Duration;

use inspan_protocol::{ErrorCode, StopReason, Usage};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::{
    Filter, run_agent, run_agent_stream,
    testing::{Do, NOON, Script, hub, say, session, tool_complete, tool_start},
};

mod ends;
mod messages;
mod stored;

fn output(text: &str) -> Do {
    Do::Output(json!({ "text": text, "sessionId": "s-1" }))
}

fn aborted(text: &str) -> Do {
    Do::Output(json!({ "text": text, "sessionId": "s-1", "stopReason": "aborted" }))
}

/// A turn that takes a second.
fn turn(text: &str) -> Vec<Do> {
    vec![Do::Say(session("s-1")), Do::Sleep(Duration::from_secs(1)), Do::Say(say(text)), output(text)]
}

/// A turn that writes some text and runs until it is cancelled.
fn working(text: &str) -> Vec<Do> {
    vec![Do::Say(session("s-1")), Do::Say(say(text)), Do::AwaitCancel, aborted(text)]
}

fn failing(error: AgentError) -> Vec<Do> {
    vec![Do::Say(session("s-1")), Do::Say(say("half")), Do::Fail(error)]
}

fn error(code: ErrorCode) -> AgentError {
    AgentError::new(code, "no")
}

fn open(script: &Script) -> AgentSession {
    open_with(script, AgentOptions::new())
}

fn open_with(script: &Script, options: AgentOptions) -> AgentSession {
    AgentSession::new(script.provider(), options.hub(hub())).unwrap()
}

/// The prompts that reached the provider, and whether each continued a conversation.
fn prompts(script: &Script) -> Vec<(String, bool)> {
    let prompt = |input: &Value| input["prompt"].as_str().unwrap().to_owned();
    script.inputs().iter().map(|input| (prompt(input), input["options"].get("resume").is_some())).collect()
}

fn fresh(prompt: &str) -> (String, bool) {
    (prompt.to_owned(), false)
}

fn resumed(prompt: &str) -> (String, bool) {
    (prompt.to_owned(), true)
}

fn texts(messages: &[Message]) -> Vec<String> {
    messages.iter().map(|message| message.content.text()).collect()
}

/// Runs every task as far as it can without time passing.
async fn settle() {
    for _ in 0..50 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn one_call_gives_all_that_was_done() {
    let usage = Usage { input_tokens: 3, output_tokens: 4, ..Usage::default() };
    let script = Script::new([vec![
        Do::Say(session("s-1")),
        Do::Sleep(Duration::from_millis(40)),
        Do::Say(say("let me ")),
        Do::Say(say("look")),
        Do::Say(tool_start("t")),
        Do::Say(tool_complete("t")),
        Do::Say(say("done")),
        Do::Output(json!({ "text": "done", "sessionId": "s-1", "usage": usage, "costUsd": 0.5 })),
    ]]);
    let options = AgentOptions::new().model("m").max_tokens(0).option("secretSauce", "x").hub(hub());
    let result = run_agent(script.provider(), options.prompt("go")).await.unwrap();
    let call = ToolCall {
        id: "t".to_owned(),
        name: "Bash".to_owned(),
        input: json!({}),
        result: Some(json!("ok")),
        is_error: false,
    };
    let messages = json!([
        { "role": "user", "content": "go" },
        { "role": "assistant", "content": [
            { "type": "text", "text": "let me look" },
            { "type": "tool_use", "id": "t", "name": "Bash", "input": {} },
        ] },
        { "role": "user", "content": [
            { "type": "tool_result", "tool_use_id": "t", "content": "ok", "is_error": false },
        ] },
        { "role": "assistant", "content": [{ "type": "text", "text": "done" }] },
    ]);
    let expected = AgentResult {
        text: "done".to_owned(),
        structured_output: None,
        messages: serde_json::from_value(messages).unwrap(),
        tool_calls: vec![call],
        usage,
        cost_usd: Some(0.5),
        provider: "script".to_owned(),
        model: Some("m".to_owned()),
        session_id: Some("s-1".into()),
        stop_reason: StopReason::Complete,
        duration_ms: 40,
    };
    assert_eq!(result, expected);
    let given = json!({ "prompt": "go", "options": { "model": "m", "secretSauce": "x" } });
    assert_eq!(script.inputs(), [given]);
}

#[tokio::test(start_paused = true)]
async fn a_stream_ends_with_the_result() {
    let script = Script::new([turn("hello")]);
    let mut stream = run_agent_stream(script.provider(), "hi").unwrap();
    let (mut names, mut result) = (Vec::new(), None);
    while let Some(item) = stream.next().await {
        match item.unwrap() {
            AgentItem::Event(envelope) => names.push(envelope.event.name().to_owned()),
            AgentItem::Result(end) => result = Some(end.text),
        }
    }
    assert_eq!(names, ["agent:start", "agent:session", "agent:text", "agent:usage", "agent:complete"]);
    assert_eq!(result.as_deref(), Some("hello"));
}

#[tokio::test(start_paused = true)]
async fn a_provider_that_does_not_stream_is_shown_at_the_end() {
    let script = Script::new([vec![output("all at once")]]);
    let result = run_agent(script.provider(), "hi").await.unwrap();
    assert_eq!(texts(&result.messages), ["hi", "all at once"]);
}

#[tokio::test(start_paused = true)]
async fn a_shared_hub_shows_each_session_its_own_events() {
    let (shared, script) = (hub(), Script::new([turn("a"), turn("b")]));
    let seen = Arc::new(Mutex::new(0));
    let count = Arc::clone(&seen);
    let options = AgentOptions::new().hub(shared.clone()).sink(move |_| *count.lock() += 1);
    let watched = AgentSession::new(script.provider(), options).unwrap();
    let other = AgentSession::new(script.provider(), AgentOptions::new().hub(shared)).unwrap();
    other.chat("x").await.unwrap();
    assert_eq!(*seen.lock(), 0);
    watched.chat("y").await.unwrap();
    assert_eq!(*seen.lock(), 5);
    assert_eq!(texts(&watched.snapshot().unwrap().messages), ["y", "b"]);
}

#[test]
fn what_cannot_be_is_refused_before_anything_happens() {
    let script = Script::new([]);
    let refused = |options: AgentOptions| AgentSession::new(script.provider(), options).err().unwrap();
    let unknown = refused(AgentOptions::new().thinking(ThinkingLevel::High));
    assert_eq!(unknown.code, ErrorCode::ConfigInvalid);
    assert_eq!(
        unknown.to_string(),
        "script: provider `script` does not take `thinking`: it has no such option (CONFIG_INVALID)"
    );
    let wrong = refused(AgentOptions::new().option("maxTurns", "many"));
    assert_eq!(wrong.code, ErrorCode::ConfigInvalid);
}

#[tokio::test(start_paused = true)]
async fn the_structured_output_is_repaired_once() {
    let said = |number: Value| {
        let output = json!({ "text": "n", "sessionId": "s-1", "structuredOutput": { "n": number } });
        vec![Do::Say(session("s-1")), Do::Output(output)]
    };
    let schema = json!({ "type": "object", "properties": { "n": { "type": "integer" } } });
    let options = || AgentOptions::new().output_schema(schema.clone()).hub(hub());
    let script = Script::new([said(json!("one")), said(json!(1))]);
    let result = run_agent(script.provider(), options().prompt("count")).await.unwrap();
    assert_eq!(result.structured_output, Some(json!({ "n": 1 })));
    let script = Script::new([said(json!("one")), said(json!("two"))]);
    let error = run_agent(script.provider(), options().prompt("count")).await.unwrap_err();
    assert_eq!(error.error.code, ErrorCode::OutputInvalid);
}
