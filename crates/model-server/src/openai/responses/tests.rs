//! That the stream adds up to the whole body, and that every end of a turn has its form.
//! The exact bytes are in `fixtures/scenarios/answers/`.

use serde_json::{Value, json};

use super::*;
use crate::scenario::Block;
use crate::wire::Delivery;

fn request(tools: &[&str]) -> RequestView {
    RequestView {
        model: "gpt-test".to_owned(),
        delivery: Delivery::Stream,
        tools: tools.iter().map(|&tool| tool.to_owned()).collect(),
        ..RequestView::default()
    }
}

fn stream_of(turn: &Turn) -> String {
    let beats = Responses.beats(turn, &request(&["exec_command"]), "main_7");
    beats
        .into_iter()
        .map(|beat| match beat {
            Beat::Event(event) => event,
            Beat::Pause(wait) => format!("({wait:?})\n"),
        })
        .collect()
}

/// The data of each event.
fn events_of(turn: &Turn) -> Vec<Value> {
    let stream = stream_of(turn);
    let data = stream.lines().filter_map(|line| line.strip_prefix("data: "));
    data.map(|data| serde_json::from_str(data).unwrap()).collect()
}

#[test]
fn the_whole_body_is_what_the_stream_adds_up_to() {
    let blocks = vec![Block::thinking("hm"), Block::text("yes"), Block::shell("ls")];
    let turn = Turn { blocks, ..Turn::default() };
    let events = events_of(&turn);
    let whole: Value =
        serde_json::from_str(&Responses.whole(&turn, &request(&["exec_command"]), "main_7")).unwrap();
    let last = events.last().unwrap();
    assert_eq!((&last["type"], &last["response"]), (&json!("response.completed"), &whole));
    let done: Vec<&Value> = events
        .iter()
        .filter(|event| event["type"] == "response.output_item.done")
        .map(|event| &event["item"])
        .collect();
    assert_eq!(done, whole["output"].as_array().unwrap().iter().collect::<Vec<_>>());
    let numbers: Vec<Value> = events.iter().map(|event| event["sequence_number"].clone()).collect();
    assert_eq!(numbers, (0..events.len()).map(|number| json!(number)).collect::<Vec<_>>());
}

#[test]
fn every_stop_reason_has_its_end() {
    let end = |reason: &str, details: Option<Value>| {
        let stop_reason = Some(reason.to_owned());
        let turn = Turn { stop_reason, stop_details: details, ..Turn::text("a") };
        let last = events_of(&turn).pop().unwrap();
        let response = &last["response"];
        let reason = &response["incomplete_details"]["reason"];
        let words = [&last["type"], &response["output"][0]["status"], reason, &response["error"]["code"]];
        words.map(|word| word.as_str().unwrap_or("-").to_owned()).join(" ")
    };
    assert_eq!(end("end_turn", None), "response.completed completed - -");
    assert_eq!(end("max_tokens", None), "response.incomplete incomplete max_output_tokens -");
    assert_eq!(end("content_filter", None), "response.incomplete incomplete content_filter -");
    assert_eq!(
        end("model_context_window_exceeded", None),
        "response.failed completed - context_length_exceeded"
    );
    assert_eq!(end("failed", None), "response.failed completed - server_error");
    let details = json!({"code": "rate_limit_exceeded", "message": "m"});
    assert_eq!(end("failed", Some(details)), "response.failed completed - rate_limit_exceeded");
}

#[test]
fn a_refusal_is_a_part_of_its_own_kind() {
    let refusing = |turn: Turn| Turn { stop_reason: Some("refusal".to_owned()), ..turn };
    let content =
        |turn: Turn| events_of(&refusing(turn)).pop().unwrap()["response"]["output"][0]["content"].clone();
    assert_eq!(content(Turn::text("No.")), json!([{"type": "refusal", "refusal": "No."}]));
    assert_eq!(content(Turn::default()), json!([{"type": "refusal", "refusal": "Scripted refusal."}]));
}
