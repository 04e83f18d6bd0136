//! That the chunks add up to the whole body, and that every end of a turn has its own name.
//! The exact bytes are in `fixtures/scenarios/answers/`.

use serde_json::json;

use super::*;
use crate::scenario::Block;

fn request(counts_tokens: bool) -> RequestView {
    let tools = vec!["bash".to_owned()];
    RequestView { model: "gpt-test".to_owned(), tools, counts_tokens, ..RequestView::default() }
}

/// The data of each chunk; the last line has to be the word that ends the stream.
fn chunks_of(turn: &Turn, counts_tokens: bool) -> Vec<Value> {
    let beats = ChatCompletions.beats(turn, &request(counts_tokens), "main_7");
    let events: Vec<String> = beats
        .into_iter()
        .filter_map(|beat| match beat {
            Beat::Event(event) => Some(event),
            Beat::Pause(_) => None,
        })
        .collect();
    let (end, chunks) = events.split_last().unwrap();
    assert_eq!(end, "data: [DONE]\n\n");
    let data = chunks.iter().map(|event| event.strip_prefix("data: ").unwrap());
    data.map(|data| serde_json::from_str(data).unwrap()).collect()
}

#[test]
fn the_whole_body_is_what_the_chunks_add_up_to() {
    let blocks = vec![
        Block::thinking("let me think"),
        Block::text("One. "),
        Block::Pause { ms: 5 },
        Block::text("Two."),
        Block::shell("ls"),
        Block::tool("read", json!({"path": "a"})),
    ];
    let turn = Turn { blocks, ..Turn::default() };
    let whole: Value = serde_json::from_str(&ChatCompletions.whole(&turn, &request(true), "main_7")).unwrap();
    let mut message = json!({"role": null, "content": "", "refusal": null, "reasoning_content": ""});
    let mut calls: Vec<Value> = Vec::new();
    let chunks = chunks_of(&turn, true);
    for delta in chunks.iter().map(|chunk| &chunk["choices"][0]["delta"]) {
        if let Some(role) = delta.get("role") {
            message["role"] = role.clone();
        }
        for key in ["content", "reasoning_content"] {
            let more = delta[key].as_str().unwrap_or_default();
            message[key] = format!("{}{more}", message[key].as_str().unwrap()).into();
        }
        for call in delta["tool_calls"].as_array().into_iter().flatten() {
            let index = usize::try_from(call["index"].as_u64().unwrap()).unwrap();
            let function = &call["function"];
            match calls.get_mut(index) {
                None => calls.push(json!({"id": call["id"], "type": call["type"], "function": function})),
                Some(known) => {
                    let more = function["arguments"].as_str().unwrap();
                    let known = &mut known["function"]["arguments"];
                    *known = format!("{}{more}", known.as_str().unwrap()).into();
                }
            }
        }
    }
    message["tool_calls"] = calls.into();
    assert_eq!(whole["choices"], json!([{"index": 0, "message": message, "finish_reason": "tool_calls"}]));
    let (counted, others) = chunks.split_last().unwrap();
    assert_eq!((&counted["choices"], &counted["usage"]), (&json!([]), &whole["usage"]));
    assert_eq!(others.last().unwrap()["choices"][0]["finish_reason"], "tool_calls");
    assert!(others.iter().all(|chunk| chunk.get("usage") == Some(&Value::Null)));
}

#[test]
fn tokens_are_counted_for_who_asks() {
    let chunks = chunks_of(&Turn::text("a"), false);
    assert!(chunks.iter().all(|chunk| chunk.get("usage").is_none() && chunk["choices"][0].is_object()));
}

#[test]
fn every_stop_reason_has_its_word() {
    let end = |reason: &str| {
        let turn = Turn { stop_reason: Some(reason.to_owned()), ..Turn::text("a") };
        let chunks = chunks_of(&turn, false);
        let choice = |index: usize| &chunks[index]["choices"][0];
        let kind = if choice(1)["delta"].get("refusal").is_some() { "refusal" } else { "content" };
        format!("{} {kind}", choice(chunks.len() - 1)["finish_reason"].as_str().unwrap())
    };
    let reasons =
        ["end_turn", "tool_use", "max_tokens", "model_context_window_exceeded", "refusal", "content_filter"];
    let expected = [
        "stop content",
        "tool_calls content",
        "length content",
        "length content",
        "stop refusal",
        "content_filter content",
    ];
    assert_eq!(reasons.map(end), expected);
}

#[test]
fn a_refusal_stands_beside_the_content() {
    let turn = Turn { stop_reason: Some("refusal".to_owned()), ..Turn::text("No.") };
    let whole: Value = serde_json::from_str(&ChatCompletions.whole(&turn, &request(true), "main_7")).unwrap();
    assert_eq!(
        whole["choices"][0]["message"],
        json!({"role": "assistant", "content": null, "refusal": "No."})
    );
}
