//! Conversations against the scripted model server: what each request holds, in this process and in another, after
//! turns that ended, failed or were cancelled.

use inspan_model_server::{Block, ExchangeState, Turn};
use inspan_protocol::StreamEvent;
use serde_json::json;

use super::server::{ResponsesHarness, TestApi};
use crate::OpenAiProvider;
use crate::api::tests::harness::{scripted, session_of, spoken, text};

#[tokio::test]
async fn a_turn_says_its_session_first_and_all_it_came_to() {
    let server = scripted([Turn::text("All done.")]);
    let harness = ResponsesHarness::new(&server.base_url());
    let (events, output) = harness.turn(json!({ "prompt": "hello" })).await;
    let mut output = serde_json::to_value(output.unwrap()).unwrap();
    assert!(output["durationMs"].take().is_u64());
    let usage = json!({
        "inputTokens": 100, "outputTokens": 20, "cacheReadTokens": 0, "cacheCreationTokens": 0, "reasoningTokens": 0,
    });
    let session = session_of(&events);
    let expected = json!({
        "content": "All done.", "threadId": session, "text": "All done.", "sessionId": session, "turnId": "2", "usage": usage,
        "model": "gpt-5.6-terra", "numTurns": 1, "stopReason": "complete", "durationMs": null,
    });
    assert_eq!((output, text(&events)), (expected, "All done.".to_owned()));
    let request = &server.requests()[0];
    let body = json!({
        "model": "gpt-5.6-terra", "stream": true, "store": false, "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": session, "input": [
            { "type": "message", "role": "user", "content": [{ "type": "input_text", "text": "hello" }] },
        ],
    });
    assert_eq!(
        (&request.body, request.path.as_str(), request.ending),
        (&body, "/v1/responses", ExchangeState::Complete)
    );
    let headers = ["content-type", "accept", "authorization"].map(|name| request.headers[name].as_str());
    assert_eq!(headers, ["application/json", "text/event-stream", "<present>"]);
}

#[tokio::test]
async fn a_session_and_a_message_are_enough_in_a_new_process_too() {
    let thought = Turn { blocks: vec![Block::thinking("hm"), Block::text("One.")], ..Turn::default() };
    let server = scripted([thought, Turn::text("Two."), Turn::text("Three.")]);
    let mut harness = ResponsesHarness::new(&server.base_url());
    let options =
        json!({ "model": "gpt-5.4", "systemPrompt": "Be brief.", "thinking": "low", "maxTokens": 99 });
    let (events, _) = harness.turn(json!({ "prompt": "first", "options": options })).await;
    let session = session_of(&events);
    harness.turn(json!({ "prompt": "second", "options": { "resume": session } })).await.1.unwrap();
    // Nothing of the first process is left but the files.
    harness.provider = OpenAiProvider::new();
    let (events, output) =
        harness.turn(json!({ "prompt": "third", "threadId": session, "model": "gpt-5.6-luna" })).await;
    assert_eq!((session_of(&events), output.unwrap().content), (session, "Three.".to_owned()));
    let all =
        ["user: first", "<reasoning>", "assistant: One.", "user: second", "assistant: Two.", "user: third"];
    assert_eq!(
        [spoken::<TestApi>(&server, 1), spoken::<TestApi>(&server, 2)],
        [all[..4].to_vec(), all.to_vec()]
    );
    // What the vendor does not store has no id of the vendor, and its thoughts are as it sealed them.
    let sealed = json!({ "type": "reasoning", "summary": [{ "type": "summary_text", "text": "hm" }],
        "encrypted_content": server.requests()[1].body["input"][1]["encrypted_content"] });
    let answer = json!({ "type": "message", "role": "assistant", "content": [{ "type": "output_text", "text": "One." }] });
    assert_eq!(server.requests()[1].body["input"].as_array().unwrap()[1..3], [sealed.clone(), answer]);
    assert!(sealed["encrypted_content"].is_string());
    let asked = |request: usize| {
        let body = server.requests()[request].body.clone();
        json!([body["model"], body["instructions"], body["reasoning"]["effort"], body["max_output_tokens"]])
    };
    assert_eq!(
        [asked(0), asked(1), asked(2)],
        [
            json!(["gpt-5.4", "Be brief.", "low", 99]),
            json!(["gpt-5.4", "Be brief.", "low", 99]),
            json!(["gpt-5.6-luna", "Be brief.", "low", 99]),
        ]
    );
}

#[tokio::test]
async fn structured_output_is_asked_for_in_the_vendors_form() {
    let answer = json!({ "verdict": "approved", "note": null });
    let server =
        scripted([Turn::structured(answer), Turn::text("no JSON"), Turn::structured(json!({ "any": 1 }))]);
    let harness = ResponsesHarness::new(&server.base_url());
    let schema = json!({ "type": "object", "required": ["verdict"], "properties": {
        "verdict": { "type": "string", "minLength": 1 }, "note": { "type": "string" },
    } });
    let input = json!({ "prompt": "judge", "options": { "outputSchema": schema, "thinking": "xhigh" } });
    // Optional values are missing, and null means absent.
    let verdict = json!({ "verdict": "approved" });
    assert_eq!(harness.turn(input.clone()).await.1.unwrap().turn.structured_output, Some(verdict));
    assert_eq!(harness.turn(input).await.1.unwrap().turn.structured_output, None);
    let body = server.requests()[0].body.clone();
    let format = json!({ "type": "json_schema", "name": "output", "strict": true, "schema": {
        "type": "object", "required": ["note", "verdict"], "additionalProperties": false, "properties": {
            "verdict": { "type": "string", "description": "{minLength: 1}" },
            "note": { "anyOf": [{ "type": "string" }, { "type": "null" }] },
        },
    } });
    assert_eq!(body["text"], json!({ "format": format }));
    assert_eq!(body["reasoning"], json!({ "effort": "xhigh", "summary": "auto" }));
    // A schema that the vendor cannot enforce is requested anyway.
    let open = json!({ "type": "object", "additionalProperties": { "type": "integer" } });
    let (events, output) =
        harness.turn(json!({ "prompt": "count", "options": { "outputSchema": open } })).await;
    assert_eq!(output.unwrap().turn.structured_output, Some(json!({ "any": 1 })));
    assert!(matches!(&events[1], StreamEvent::Warning { code, .. } if code == "schemaNotStrict"));
    let asked = server.requests()[2].body["text"]["format"].clone();
    assert_eq!((&asked["strict"], &asked["schema"]), (&json!(false), &open));
}
