//! The form of calls and results in the vendor's requests, and answers that the vendor pauses.

use inspan_model_server::{Block, Turn};
use inspan_protocol::{StopReason, StreamEvent};
use serde_json::{Value, json};

use super::server::{MessagesHarness, TestApi};
use crate::api::tests::harness::{scripted, spoken};
use crate::api::tests::tools::{Tools, free};

#[tokio::test]
async fn results_are_one_message_and_the_mark_for_the_cache_is_at_the_last() {
    let count = || Block::tool("count", json!({ "of": "oxen" }));
    let blocks = vec![
        Block::thinking("hm"),
        Block::text("I count."),
        count(),
        count(),
        Block::tool("none", json!({})),
    ];
    let server = scripted([Turn { blocks, ..Turn::default() }, Turn::text("Two.")]);
    let tools = Tools::<TestApi>::new(&server.base_url());
    let (events, output) = tools.turn(free("how many?", json!({ "thinking": "low" }))).await;
    assert_eq!(output.unwrap().text, "Two.");
    let body = server.requests()[1].body.clone();
    let marked = json!({ "type": "ephemeral" });
    let schema = json!({ "type": "object", "properties": { "of": { "type": "string" } } });
    let tool =
        json!({ "name": "count", "description": "Counts.", "cache_control": marked, "input_schema": schema });
    assert_eq!(body["tools"], json!([tool]));
    let kinds = |message: usize| -> Vec<Value> {
        body["messages"][message]["content"]
            .as_array()
            .unwrap()
            .iter()
            .map(|block| block["type"].clone())
            .collect()
    };
    assert_eq!(body["messages"].as_array().unwrap().len(), 3);
    assert_eq!(kinds(1), ["thinking", "text", "tool_use", "tool_use", "tool_use"]);
    assert_eq!(kinds(2), ["tool_result", "tool_result", "tool_result"]);
    assert!(body["messages"][1]["content"][0]["signature"].is_string());
    let results = &body["messages"][2]["content"];
    // The mark is at the results, where the new part of the next request begins, and not at the calls.
    assert_eq!([0, 1, 2].map(|n| results[n]["cache_control"] == marked), [false, false, true]);
    assert_eq!([0, 1, 2].map(|n| results[n]["is_error"] == true), [false, false, true]);
    assert!(body["messages"][0]["content"][0].get("cache_control").is_none());
    let usages = events.iter().filter_map(|event| match event {
        StreamEvent::Usage { usage, .. } => Some(usage.total()),
        _ => None,
    });
    assert_eq!(usages.collect::<Vec<_>>(), [101, 120, 221, 240]);
}

#[tokio::test]
async fn what_was_called_is_named_where_no_tool_is_given() {
    let server = scripted([Turn::tool("count", json!({})), Turn::text("One."), Turn::text("Back.")]);
    let tools = Tools::<TestApi>::new(&server.base_url());
    let session = tools.turn(free("how many?", json!({}))).await.1.unwrap().session_id;
    let resumed = json!({ "prompt": "go on", "options": { "resume": session } });
    tools.harness.turn(resumed).await.1.unwrap();
    let body = server.requests()[2].body.clone();
    assert_eq!(
        (&body["tools"][0]["name"], &body["tool_choice"]),
        (&json!("count"), &json!({ "type": "none" }))
    );
}

#[tokio::test]
async fn a_call_is_answered_whatever_reason_the_answer_gives_for_its_end() {
    for reason in ["end_turn", "stop_sequence"] {
        let call =
            Turn { stop_reason: Some(reason.to_owned()), ..Turn::tool("count", json!({ "of": "oxen" })) };
        let server = scripted([call, Turn::text("One.")]);
        let tools = Tools::<TestApi>::new(&server.base_url());
        let output = tools.turn(free("how many?", json!({}))).await.1.unwrap();
        assert_eq!((output.text.as_str(), output.num_turns), ("One.", 2), "{reason}");
        let said = spoken::<TestApi>(&server, 1);
        assert_eq!(said[..2], ["user: how many?", "> count{\"of\":\"oxen\"}"], "{reason}");
        assert!(said[2].starts_with("= "), "{said:?}");
    }
}

#[tokio::test]
async fn a_turn_continues_after_a_pause() {
    let paused = Turn { stop_reason: Some("pause_turn".to_owned()), ..Turn::text("One, ") };
    let server = scripted([paused.clone(), Turn::text("two."), paused]);
    let harness = MessagesHarness::new(&server.base_url());
    let output = harness.turn(json!({ "prompt": "count" })).await.1.unwrap();
    assert_eq!((output.text.as_str(), output.num_turns), ("One, two.", 2));
    assert_eq!(spoken::<TestApi>(&server, 1), ["user: count", "assistant: One, "]);
    let marked = server.requests()[1].body["messages"][0]["content"][0]["cache_control"].clone();
    assert_eq!(marked, json!({ "type": "ephemeral" }));
    // One that never ends is ended.
    let output = harness.turn(json!({ "prompt": "count", "options": { "maxTurns": 3 } })).await.1.unwrap();
    assert_eq!((output.stop_reason, output.num_turns), (StopReason::MaxTurns, 3));
}
