//! The form of calls and results in the vendor's requests, and calls in conversations that the vendor stores.

use inspan_model_server::{Block, Turn};
use inspan_protocol::{ErrorCode, ProviderSessionId, StopReason, StreamEvent};
use serde_json::{Value, json};
use wiremock::matchers::{body_partial_json, method};
use wiremock::{Mock, MockServer, ResponseTemplate};

use super::server::TestApi;
use crate::api::tests::harness::{scripted, spoken};
use crate::api::tests::tools::{Tools, free};

#[tokio::test]
async fn a_call_and_its_result_are_items_of_the_next_request() {
    let blocks =
        vec![Block::thinking("hm"), Block::text("I look."), Block::tool("count", json!({ "of": "oxen" }))];
    let server = scripted([Turn { blocks, ..Turn::default() }, Turn::text("One ox.")]);
    let tools = Tools::<TestApi>::new(&server.base_url());
    let (events, output) = tools.turn(free("how many", json!({}))).await;
    assert_eq!(output.unwrap().content, "One ox.");
    let id = server.requests()[1].body["input"][3]["call_id"].clone();
    let called = events.iter().map(|event| json!(event)).filter(|event| event["toolUseId"] == id);
    assert_eq!(
        called.collect::<Vec<_>>(),
        [
            json!({ "type": "toolStart", "toolName": "count", "toolUseId": id, "input": { "of": "oxen" } }),
            json!({ "type": "toolComplete", "toolUseId": id, "result": "1 oxen", "isError": false }),
        ]
    );
    let parameters = json!({ "type": "object", "properties": { "of": { "type": "string" } } });
    let offered = json!([{ "type": "function", "name": "count", "description": "Counts.", "strict": false, "parameters": parameters }]);
    assert_eq!(server.requests()[0].body["tools"], offered);
    let returned =
        ["user: how many", "<reasoning>", "assistant: I look.", r#"> count{"of":"oxen"}"#, "= 1 oxen"];
    assert_eq!(spoken::<TestApi>(&server, 1), returned);
}

fn recorded(call: &str, response: &str) -> ResponseTemplate {
    let events = [
        json!({ "type": "response.created", "response": { "id": response, "model": "m" } }),
        json!({ "type": "response.completed", "response": { "id": response, "output": [match call {
            "" => json!({ "type": "message", "content": [{ "type": "output_text", "text": "Done." }] }),
            call => json!({ "type": "function_call", "call_id": call, "name": "count", "arguments": "{}" }),
        }] } }),
    ];
    let text: String = events.iter().map(|event| format!("data: {event}\n\n")).collect();
    ResponseTemplate::new(200).set_body_raw(text, "text/event-stream")
}

/// A vendor that stores conversations: it answers what follows `resp_0` with a call, and what follows that with the rest.
async fn keeping(rest: ResponseTemplate) -> MockServer {
    let server = MockServer::start().await;
    for (before, answer) in [("resp_0", recorded("c1", "resp_1")), ("resp_1", rest)] {
        let known = body_partial_json(json!({ "previous_response_id": before }));
        Mock::given(method("POST")).and(known).respond_with(answer).expect(1).mount(&server).await;
    }
    server
}

#[tokio::test]
async fn an_answer_that_the_vendor_keeps_is_answered_alone() {
    let server = keeping(recorded("", "resp_2")).await;
    let tools = Tools::<TestApi>::new(&server.uri());
    let mut input = free("go", json!({}));
    input["threadId"] = json!("resp_0");
    let output = tools.turn(input).await.1.unwrap();
    assert_eq!(
        (output.content.as_str(), output.thread_id),
        ("Done.", Some(ProviderSessionId::from("resp_2")))
    );
    let sent: Vec<Value> = server
        .received_requests()
        .await
        .unwrap()
        .iter()
        .map(|request| serde_json::from_slice::<Value>(&request.body).unwrap()["input"].clone())
        .collect();
    assert_eq!(sent[0][0]["content"][0]["text"], "go");
    assert_eq!(sent[1], json!([{ "type": "function_call_output", "call_id": "c1", "output": "1 ?" }]));
}

#[tokio::test]
async fn a_call_that_the_vendor_keeps_open_is_not_continued() {
    // The answer to the call never arrived, so the name before it is the one that can be resumed.
    let server = keeping(ResponseTemplate::new(500)).await;
    let tools = Tools::<TestApi>::new(&server.uri());
    let mut input = free("go", json!({}));
    input["threadId"] = json!("resp_0");
    let error = tools.turn(input).await.1.unwrap_err();
    assert_eq!((error.code, &error.detail.unwrap()["sessionId"]), (ErrorCode::Overloaded, &json!("resp_0")));
}

#[tokio::test]
async fn calls_that_stay_open_in_a_conversation_of_the_vendors_are_reported() {
    let server = MockServer::start().await;
    Mock::given(method("POST")).respond_with(recorded("c1", "resp_1")).expect(2).mount(&server).await;
    let tools = Tools::<TestApi>::new(&server.uri());
    let warning = StreamEvent::warning(
        "callsUnanswered",
        "the conversation that the vendor stores has calls of tools without answers; it may not be gone on with",
    );
    // By its last answer, the one before the call can still be resumed.
    for (thread, expected) in [("conv_1", vec![warning]), ("resp_0", vec![])] {
        let mut input = free("go", json!({}));
        input["threadId"] = json!(thread);
        input["options"]["maxTurns"] = json!(1);
        let (events, output) = tools.turn(input).await;
        let output = output.unwrap();
        let session = Some(ProviderSessionId::from(thread));
        assert_eq!((output.turn.stop_reason, output.thread_id), (StopReason::MaxTurns, session));
        let reported: Vec<StreamEvent> =
            events.into_iter().filter(|event| matches!(event, StreamEvent::Warning { .. })).collect();
        assert_eq!(reported, expected, "{thread}");
    }
}
