//! Conversations that the vendor stores: what is sent to it, which id they have afterwards, and unknown ones.

use inspan_model_server::Turn;
use inspan_protocol::{ErrorCode, ProviderSessionId, StreamEvent};
use serde_json::{Value, json};
use wiremock::matchers::{method, path};
use wiremock::{Mock, MockServer, ResponseTemplate};

use super::server::ResponsesHarness;
use crate::api::tests::harness::{reported, scripted};
use crate::replay::transcript;

async fn vendor(answer: ResponseTemplate) -> MockServer {
    let server = MockServer::start().await;
    Mock::given(method("POST")).and(path("/v1/responses")).respond_with(answer).mount(&server).await;
    server
}

async fn asked(server: &MockServer) -> Value {
    let requests = server.received_requests().await.unwrap();
    serde_json::from_slice(&requests[0].body).unwrap()
}

fn stream(case: &str) -> ResponseTemplate {
    ResponseTemplate::new(200).set_body_raw(transcript("openai", case), "text/event-stream")
}

fn sessions(events: &[StreamEvent]) -> Vec<String> {
    let sessions = events.iter().filter_map(|event| match event {
        StreamEvent::Session { session_id } => Some(session_id.to_string()),
        _ => None,
    });
    sessions.collect()
}

#[tokio::test]
async fn an_answer_that_the_vendor_keeps_is_continued_by_the_next() {
    let server = vendor(stream("phases_and_thoughts")).await;
    let harness = ResponsesHarness::new(&server.uri());
    let (events, output) = harness.turn(json!({ "prompt": "more", "threadId": "resp_0" })).await;
    let output = output.unwrap();
    // From its end on it is another one; a turn that is cut short before has nothing to go on with, and is asked again.
    assert_eq!(sessions(&events), ["resp_1"]);
    assert_eq!(output.thread_id, Some(ProviderSessionId::from("resp_1")));
    assert_eq!(output.content, "Ünïcode \"q\"\n✓");
    let body = asked(&server).await;
    assert_eq!(
        [
            &body["store"],
            &body["previous_response_id"],
            &body["input"][0]["content"][0]["text"],
            &body["input"][1]
        ],
        [&json!(true), &json!("resp_0"), &json!("more"), &Value::Null]
    );
    assert_eq!(harness.stored(), "");
}

#[tokio::test]
async fn a_conversation_that_the_vendor_keeps_keeps_its_name() {
    let server = vendor(stream("text")).await;
    let harness = ResponsesHarness::new(&server.uri());
    let (events, output) = harness.turn(json!({ "prompt": "more", "options": { "resume": "conv_1" } })).await;
    assert_eq!(sessions(&events), ["conv_1"]);
    assert_eq!(output.unwrap().thread_id, Some(ProviderSessionId::from("conv_1")));
    let body = asked(&server).await;
    assert_eq!((&body["conversation"], &body["store"]), (&json!("conv_1"), &Value::Null));
    assert_eq!(harness.stored(), "");
}

#[tokio::test]
async fn an_answer_that_failed_leaves_the_name_as_it_was() {
    let server = vendor(stream("failed")).await;
    let harness = ResponsesHarness::new(&server.uri());
    let (events, output) = harness.turn(json!({ "prompt": "more", "threadId": "resp_0" })).await;
    let error = output.unwrap_err();
    assert_eq!(sessions(&events), [""; 0]);
    assert_eq!((error.code, &error.detail.unwrap()["sessionId"]), (ErrorCode::Overloaded, &json!("resp_0")));
}

#[tokio::test]
async fn a_conversation_that_the_vendor_does_not_have_is_named() {
    let never = scripted([Turn::text("never")]);
    let harness = ResponsesHarness::new(&never.base_url());
    let turn = harness.turn(json!({ "prompt": "more", "threadId": "resp_0" })).await;
    assert_eq!(reported(&turn), (ErrorCode::InvalidRequest, "sessionNotFound".to_owned(), String::new()));
    let body = transcript("openai", "http_404_conversation");
    let server = vendor(ResponseTemplate::new(404).set_body_bytes(body)).await;
    let harness = ResponsesHarness::new(&server.uri());
    let turn = harness.turn(json!({ "prompt": "more", "threadId": "conv_1" })).await;
    assert_eq!(reported(&turn), (ErrorCode::InvalidRequest, "sessionNotFound".to_owned(), String::new()));
    assert_eq!(turn.1.unwrap_err().message, "no such conversation: conv_1");
    // One that is not the vendor's has to be one of ours.
    let turn = harness.turn(json!({ "prompt": "more", "threadId": "thread_1" })).await;
    assert_eq!(reported(&turn), (ErrorCode::InvalidRequest, "sessionNotFound".to_owned(), String::new()));
    assert_eq!(server.received_requests().await.unwrap().len(), 1);
}
