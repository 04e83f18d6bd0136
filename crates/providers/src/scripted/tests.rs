//! Tests of the scripted provider.

use std::sync::Arc;

use futures::StreamExt;
use futures::future::BoxFuture;
use inspan_protocol::PermissionBroker;
use serde_json::json;

use super::*;

struct Deny;

impl PermissionBroker for Deny {
    fn request(&self, request: PermissionRequest) -> BoxFuture<'static, PermissionDecision> {
        let message = format!("no {} for {}", request.tool_name, request.tool_use_id.unwrap_or_default());
        Box::pin(std::future::ready(PermissionDecision::Deny { message }))
    }
}

fn input(turns: Value, resume: Option<&str>) -> ScriptedInput {
    serde_json::from_value(json!({ "prompt": "go", "options": { "turns": turns, "resume": resume } }))
        .unwrap()
}

fn line(item: Result<ProviderItem<TurnOutput>, AgentError>) -> Value {
    match item {
        Ok(ProviderItem::Event(event)) => json!({ "event": event }),
        Ok(ProviderItem::Output(output)) => json!({ "output": output }),
        Err(error) => json!({ "error": error }),
    }
}

async fn play(input: ScriptedInput, context: ExecutionContext) -> Vec<Value> {
    ScriptedProvider.execute(input, context).map(line).collect().await
}

#[tokio::test(start_paused = true)]
async fn a_turn_is_played_step_by_step() {
    let turns = json!([[], [
        { "thinking": "hm" },
        { "text": "first " },
        { "tool": { "name": "Bash", "input": { "command": "ls" }, "result": "a.txt" } },
        { "text": "void " },
        "retract",
        { "warning": { "code": "odd", "message": "strange" } },
        { "delayMs": 250 },
        { "usage": { "tokens": { "inputTokens": 7, "outputTokens": 2 }, "costUsd": 0.5 } },
        { "structured": { "ok": true } },
        { "text": "last" },
    ]]);
    let usage = json!({
        "inputTokens": 7, "outputTokens": 2, "cacheReadTokens": 0, "cacheCreationTokens": 0, "reasoningTokens": 0,
    });
    assert_eq!(
        play(input(turns, Some("scripted-1")), ExecutionContext::default()).await,
        [
            json!({ "event": { "type": "session", "sessionId": "scripted-2" } }),
            json!({ "event": { "type": "thinking", "content": "hm", "chunk": "delta" } }),
            json!({ "event": { "type": "text", "content": "first ", "chunk": "delta" } }),
            json!({ "event": {
                "type": "toolStart", "toolName": "Bash", "toolUseId": "tool-2-3", "input": { "command": "ls" },
            } }),
            json!({ "event": { "type": "toolComplete", "toolUseId": "tool-2-3", "result": "a.txt", "isError": false } }),
            json!({ "event": { "type": "text", "content": "void ", "chunk": "delta" } }),
            json!({ "event": { "type": "retract" } }),
            json!({ "event": { "type": "warning", "code": "odd", "message": "strange" } }),
            json!({ "event": { "type": "usage", "usage": usage, "costUsd": 0.5 } }),
            json!({ "event": { "type": "text", "content": "last", "chunk": "delta" } }),
            json!({ "output": {
                "text": "first last", "structuredOutput": { "ok": true }, "sessionId": "scripted-2", "usage": usage,
                "costUsd": 0.5, "numTurns": 1, "stopReason": "complete", "durationMs": 250,
            } }),
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn permission_is_asked_and_a_denial_is_the_tools_answer() {
    let turns = json!([[{ "tool": { "name": "Write", "input": { "path": "x" }, "result": "written", "ask": true } }]]);
    let broker = ExecutionContext { permissions: Some(Arc::new(Deny)), ..ExecutionContext::default() };
    let answers = [
        play(input(turns.clone(), None), broker).await,
        play(input(turns, None), ExecutionContext::default()).await,
    ]
    .map(|returned| {
        (returned[2]["event"]["result"].clone(), returned[3]["output"]["permissionDenials"].clone())
    });
    let denials = json!([{ "toolName": "Write", "toolUseId": "tool-1-1", "toolInput": { "path": "x" } }]);
    assert_eq!(
        answers,
        [
            (json!("no Write for tool-1-1"), denials.clone()),
            (json!("permission to use `Write` was denied: there is nobody to ask"), denials),
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn it_fails_stops_and_runs_out_as_its_script_says() {
    let error =
        json!([[{ "error": { "code": "RATE_LIMITED", "message": "slow down", "retryAfterMs": 1500 } }]]);
    let returned = play(input(error, None), ExecutionContext::default()).await;
    assert_eq!(
        returned[1],
        json!({ "error": {
            "_tag": "ProviderError", "code": "RATE_LIMITED", "message": "slow down", "retryable": true,
            "retryAfterMs": 1500, "provider": "scripted",
        } })
    );
    let returned = play(
        input(json!([[{ "stop": "maxTurns" }, { "text": "never" }]]), None),
        ExecutionContext::default(),
    )
    .await;
    assert_eq!((returned.len(), &returned[1]["output"]["stopReason"]), (2, &json!("maxTurns")));
    let returned = play(input(json!([[]]), Some("scripted-1")), ExecutionContext::default()).await;
    assert_eq!(returned[0]["error"]["message"], json!("the script has 1 turns, and this is turn 2"));
}

#[tokio::test(start_paused = true)]
async fn a_hanging_turn_ends_by_cancellation_or_deadline() {
    let turns = json!([[{ "text": "so far" }, "hang", { "text": "never" }], [{ "text": "next" }]]);
    let context = ExecutionContext::default();
    let cancel = context.cancel.clone();
    let later = async {
        tokio::time::sleep(Duration::from_secs(3600)).await;
        cancel.cancel();
    };
    let (returned, ()) = tokio::join!(play(input(turns.clone(), None), context), later);
    let output = &returned.last().unwrap()["output"];
    assert_eq!((&output["stopReason"], &output["text"]), (&json!("aborted"), &json!("so far")));
    let next = play(input(turns.clone(), output["sessionId"].as_str()), ExecutionContext::default()).await;
    assert_eq!(next.last().unwrap()["output"]["text"], json!("next"));
    let context = ExecutionContext { deadline: Some(Duration::from_secs(5)), ..ExecutionContext::default() };
    let returned = play(input(turns, None), context).await;
    assert_eq!(returned.last().unwrap()["error"]["code"], json!("TIMEOUT"));
}
