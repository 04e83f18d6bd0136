//! Tests of the echo.

use futures::StreamExt;
use inspan_protocol::ErrorCode;
use serde_json::{Value, json};

use super::*;

async fn play(input: Value, context: ExecutionContext) -> Vec<Value> {
    let input: EchoInput = serde_json::from_value(input).unwrap();
    let items = EchoProvider.execute(input, context).collect::<Vec<_>>().await;
    let line = |item: Result<ProviderItem<TurnOutput>, AgentError>| match item {
        Ok(ProviderItem::Event(event)) => json!({ "event": event }),
        Ok(ProviderItem::Output(output)) => json!({ "output": output }),
        Err(error) => json!({ "error": error.code }),
    };
    items.into_iter().map(line).collect()
}

#[tokio::test(start_paused = true)]
async fn it_answers_in_words_and_counts_its_turns() {
    let input = json!({ "prompt": "hello  big harness", "options": { "delayMs": 5, "model": "m", "resume": "echo-2" } });
    let usage = json!({
        "inputTokens": 3, "outputTokens": 3, "cacheReadTokens": 0, "cacheCreationTokens": 0, "reasoningTokens": 0,
    });
    assert_eq!(
        play(input, ExecutionContext::default()).await,
        [
            json!({ "event": { "type": "session", "sessionId": "echo-3" } }),
            json!({ "event": { "type": "text", "content": "hello  ", "chunk": "delta" } }),
            json!({ "event": { "type": "text", "content": "big ", "chunk": "delta" } }),
            json!({ "event": { "type": "text", "content": "harness", "chunk": "delta" } }),
            json!({ "event": { "type": "usage", "usage": usage, "costUsd": 0.0 } }),
            json!({ "output": {
                "text": "hello  big harness", "sessionId": "echo-3", "usage": usage, "costUsd": 0.0, "model": "m",
                "numTurns": 1, "stopReason": "complete", "durationMs": 15,
            } }),
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn it_stops_when_it_is_cancelled() {
    let context = ExecutionContext::default();
    context.cancel.cancel();
    let returned = play(json!({ "prompt": "hello" }), context).await;
    assert_eq!((returned.len(), &returned[2]["output"]["stopReason"]), (3, &json!("aborted")));
    assert_eq!(
        (&returned[2]["output"]["text"], &returned[2]["output"]["sessionId"]),
        (&json!(""), &json!("echo-1"))
    );
}

#[tokio::test(start_paused = true)]
async fn it_keeps_to_its_deadline() {
    let context =
        ExecutionContext { deadline: Some(Duration::from_millis(12)), ..ExecutionContext::default() };
    let returned = play(json!({ "prompt": "a b c", "options": { "delayMs": 5 } }), context).await;
    assert_eq!((returned.len(), &returned[3]), (4, &json!({ "error": ErrorCode::Timeout })));
}
