//! Conversations against the scripted model server: what each request holds, in this process and in another, after
//! turns that ended, failed or were cancelled.

use inspan_model_server::{Block, ExchangeState, Turn};
use serde_json::json;

use super::server::{MessagesHarness, TestApi};
use crate::AnthropicProvider;
use crate::api::tests::harness::{scripted, session_of, spoken, text};

#[tokio::test]
async fn a_turn_says_its_session_first_and_all_it_came_to() {
    let server = scripted([Turn::text("All done.")]);
    let harness = MessagesHarness::new(&server.base_url());
    let (events, output) = harness.turn(json!({ "prompt": "hello" })).await;
    let mut output = serde_json::to_value(output.unwrap()).unwrap();
    assert!(output["durationMs"].take().is_u64());
    let usage = json!({
        "inputTokens": 100, "outputTokens": 20, "cacheReadTokens": 0, "cacheCreationTokens": 0, "reasoningTokens": 0,
    });
    let expected = json!({
        "text": "All done.", "sessionId": session_of(&events), "turnId": "2", "usage": usage, "model": "claude-sonnet-5-5",
        "numTurns": 1, "stopReason": "complete", "durationMs": null,
    });
    assert_eq!((output, text(&events)), (expected, "All done.".to_owned()));
    let request = &server.requests()[0];
    let body = json!({
        "model": "claude-sonnet-5-5", "max_tokens": 32000, "stream": true,
        "messages": [{ "role": "user", "content": [
            { "type": "text", "text": "hello", "cache_control": { "type": "ephemeral" } },
        ] }],
    });
    assert_eq!(
        (&request.body, request.path.as_str(), request.ending),
        (&body, "/v1/messages", ExchangeState::Complete)
    );
    let headers = ["anthropic-version", "content-type", "accept", "x-api-key"]
        .map(|name| request.headers[name].as_str());
    assert_eq!(headers, ["2023-06-01", "application/json", "text/event-stream", "<present>"]);
}

#[tokio::test]
async fn a_session_and_a_message_are_enough_in_a_new_process_too() {
    let thought = Turn { blocks: vec![Block::thinking("hm"), Block::text("One.")], ..Turn::default() };
    let server = scripted([thought, Turn::text("Two."), Turn::text("Three.")]);
    let mut harness = MessagesHarness::new(&server.base_url());
    let options = json!({ "model": "claude-opus-4-1", "systemPrompt": "Be brief.", "thinking": "low", "temperature": 1.0 });
    let (events, _) = harness.turn(json!({ "prompt": "first", "options": options })).await;
    let session = session_of(&events);
    harness.turn(json!({ "prompt": "second", "options": { "resume": session } })).await.1.unwrap();
    // Nothing of the first process is left but the files.
    harness.provider = AnthropicProvider::new();
    let (events, output) = harness
        .turn(json!({ "prompt": "third", "options": { "resume": session, "model": "claude-haiku-4-5" } }))
        .await;
    assert_eq!((session_of(&events), output.unwrap().text), (session, "Three.".to_owned()));
    let all =
        ["user: first", "<thinking>", "assistant: One.", "user: second", "assistant: Two.", "user: third"];
    assert_eq!(
        [spoken::<TestApi>(&server, 1), spoken::<TestApi>(&server, 2)],
        [all[..4].to_vec(), all.to_vec()]
    );
    let asked = |request: usize| {
        let body = server.requests()[request].body.clone();
        json!([
            body["model"],
            body["system"][0]["text"],
            body["thinking"]["budget_tokens"],
            body["max_tokens"],
            body["temperature"]
        ])
    };
    assert_eq!(
        [asked(0), asked(1), asked(2)],
        [
            json!(["claude-opus-4-1", "Be brief.", 4096, 12288, 1.0]),
            json!(["claude-opus-4-1", "Be brief.", 4096, 12288, 1.0]),
            json!(["claude-haiku-4-5", "Be brief.", 4096, 12288, 1.0]),
        ]
    );
}

#[tokio::test]
async fn structured_output_is_asked_for_in_the_vendors_form() {
    let verdict = json!({ "verdict": "approved" });
    let server =
        scripted([Turn { structured: Some(verdict.clone()), ..Turn::default() }, Turn::text("no JSON")]);
    let harness = MessagesHarness::new(&server.base_url());
    let schema = json!({ "type": "object", "required": ["verdict"], "properties": { "verdict": { "type": "string", "minLength": 1 } } });
    let input = json!({ "prompt": "judge", "options": { "outputSchema": schema, "thinking": "xhigh" } });
    assert_eq!(harness.turn(input.clone()).await.1.unwrap().structured_output, Some(verdict));
    assert_eq!(harness.turn(input).await.1.unwrap().structured_output, None);
    let body = server.requests()[0].body.clone();
    let format = json!({ "type": "json_schema", "schema": {
        "type": "object", "required": ["verdict"], "additionalProperties": false,
        "properties": { "verdict": { "type": "string", "description": "{minLength: 1}" } },
    } });
    assert_eq!(body["output_config"], json!({ "format": format, "effort": "xhigh" }));
    assert_eq!(body["thinking"], json!({ "type": "adaptive", "display": "summarized" }));
}
