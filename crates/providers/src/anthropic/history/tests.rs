//! What a conversation contains after each way in which a turn can end, and which results are added
//! after a crash.

use inspan_protocol::Usage;

use super::*;
use crate::api::History as _;

fn user(text: &str) -> Value {
    json!({ "role": "user", "content": [{ "type": "text", "text": text }] })
}

fn call(id: &str) -> Value {
    json!({ "type": "tool_use", "id": id, "name": "say", "input": {} })
}

fn called(ids: &[&str]) -> Value {
    json!({ "role": "assistant", "content": ids.iter().map(|id| call(id)).collect::<Vec<_>>() })
}

fn result(id: &str) -> Value {
    json!({ "type": "tool_result", "tool_use_id": id, "content": [{ "type": "text", "text": "moo" }] })
}

fn results(blocks: &[Value]) -> Value {
    json!({ "role": "user", "content": blocks })
}

fn interrupted(id: &str) -> Value {
    result_block(&ToolResult::interrupted(id))
}

fn answer(id: &str) -> ToolResult {
    ToolResult {
        id: id.to_owned(),
        content: vec![ContentBlock::Text { text: "moo".to_owned() }],
        is_error: false,
    }
}

fn returned(text: &str, content: Vec<Value>) -> PartialResponse {
    let usage = Usage { input_tokens: 10, output_tokens: 1, ..Usage::default() };
    PartialResponse {
        text: text.to_owned(),
        content,
        usage,
        model: Some("m".to_owned()),
        ..PartialResponse::default()
    }
}

/// The text before the vendor paused.
fn paused(text: &str, content: Vec<Value>) -> PartialResponse {
    PartialResponse { stop_reason: Some(PAUSE.to_owned()), ..returned(text, content) }
}

fn begun(messages: Vec<Value>, returned: Vec<Value>) -> MessagesHistory {
    MessagesHistory::new(ProviderSessionId::from("s"), messages, returned, OutputKind::Text)
}

/// What stays of a turn that failed.
fn failed(mut history: MessagesHistory) -> Vec<Value> {
    history.state.roll_back(false);
    history.state.messages
}

fn text(text: &str) -> Value {
    json!({ "type": "text", "text": text })
}

#[test]
fn what_was_unanswered_calls_is_answered_and_nothing_else_is_touched() {
    let go = user("go on");
    let rows = [
        (vec![], vec![]),
        (vec![user("a")], vec![user("a")]),
        (
            vec![user("a"), called(&["1"]), results(&[result("1")])],
            vec![user("a"), called(&["1"]), results(&[result("1")])],
        ),
        (
            vec![user("a"), called(&["1", "2"])],
            vec![user("a"), called(&["1", "2"]), results(&[interrupted("1"), interrupted("2")])],
        ),
        // One of two was answered before the crash, and stays.
        (
            vec![user("a"), called(&["1", "2"]), results(&[result("2")])],
            vec![user("a"), called(&["1", "2"]), results(&[result("2"), interrupted("1")])],
        ),
        // Answers come first in their message.
        (
            vec![called(&["1"]), user("more")],
            vec![called(&["1"]), results(&[interrupted("1"), text("more")])],
        ),
    ];
    for (stored, expected) in rows {
        let history = begun(stored.clone(), vec![go.clone()]);
        let expected: Vec<Value> = expected.into_iter().chain([go.clone()]).collect();
        assert_eq!(history.state.messages, expected, "{stored:?}");
        // A failure leaves the conversation one that the next turn fixes in the same way.
        let failed = failed(history);
        assert_eq!(begun(failed, vec![go.clone()]).state.messages, expected, "{stored:?}");
    }
}

#[test]
fn a_turn_with_tools_counts_all_of_its_messages() {
    let mut history = begun(vec![], vec![user("a")]);
    history.add_response(returned("I look.", vec![text("I look."), call("1"), call("2")]));
    history.set_results([answer("2")].iter());
    history.set_results([answer("1"), answer("2")].iter());
    history.state.commit();
    let so_far = history.state.total_usage(Usage { input_tokens: 5, ..Usage::default() });
    assert_eq!((so_far.input_tokens, so_far.output_tokens), (15, 1));
    let output = history.finish(returned("Done.", vec![text("Done.")]), StopReason::Complete);
    assert_eq!((output.text.as_str(), output.num_turns, output.usage.input_tokens), ("Done.", 2, 20));
    let expected = [
        user("a"),
        json!({ "role": "assistant", "content": [text("I look."), call("1"), call("2")] }),
        results(&[result("1"), result("2")]),
        json!({ "role": "assistant", "content": [text("Done.")] }),
    ];
    assert_eq!(history.state.messages, expected);
}

#[test]
fn a_turn_that_is_cut_short_tells_all_that_was_said_and_leaves_no_call_open() {
    let with_tool = || {
        let mut history = begun(vec![user("0")], vec![user("a")]);
        history.add_response(returned("I look.", vec![call("1")]));
        history.set_results([answer("1")].iter());
        history.state.commit();
        history
    };
    let mut history = with_tool();
    let output = history.finish(returned("And th", vec![text("And th"), call("2")]), StopReason::MaxTokens);
    assert_eq!(output.text, "I look.\n\nAnd th");
    assert_eq!(
        history.state.messages.last(),
        Some(&json!({ "role": "assistant", "content": [text("And th")] }))
    );
    // A cancelled answer without text leaves the tool's.
    let mut history = with_tool();
    let output = history.finish(PartialResponse::default(), StopReason::Aborted);
    assert_eq!((output.text.as_str(), output.num_turns), ("I look.", 1));
    assert_eq!(history.state.messages.last(), Some(&results(&[result("1")])));
    // A failure takes back what came after, and before any tool the whole turn.
    let mut history = with_tool();
    history.add_response(paused("Wait", vec![text("Wait")]));
    assert!(history.state.is_committed());
    assert_eq!(failed(history), [user("0"), user("a"), called(&["1"]), results(&[result("1")])]);
    let mut history = begun(vec![user("0")], vec![user("a")]);
    history.add_response(paused("Wait", vec![text("Wait")]));
    assert!(!history.state.is_committed());
    assert_eq!(failed(history), [user("0")]);
}

#[test]
fn an_answer_continues_after_a_pause() {
    let mut history =
        MessagesHistory::new(ProviderSessionId::from("s"), vec![], vec![user("a")], OutputKind::Structured);
    history.add_response(paused("{\"n\"", vec![text("{\"n\"")]));
    let output = history.finish(returned(": 1}", vec![text(": 1}")]), StopReason::Complete);
    assert_eq!((output.text.as_str(), output.structured_output), ("{\"n\": 1}", Some(json!({ "n": 1 }))));
    let mut history = begun(vec![], vec![user("a")]);
    history.add_response(paused("a bit", vec![text("a bit")]));
    assert_eq!(history.stop(StopReason::MaxTurns).text, "a bit");
}

#[test]
fn pictures_and_documents_are_answers_too() {
    let content = vec![
        ContentBlock::Image { media_type: "image/png".to_owned(), data: "aGk=".to_owned() },
        ContentBlock::Document {
            media_type: "application/pdf".to_owned(),
            data: "JVBE".to_owned(),
            title: None,
        },
        ContentBlock::Text { text: " \n".to_owned() },
    ];
    let block = result_block(&ToolResult { id: "1".to_owned(), content, is_error: false });
    let source =
        |media_type: &str, data: &str| json!({ "type": "base64", "media_type": media_type, "data": data });
    let expected = json!({ "type": "tool_result", "tool_use_id": "1", "content": [
        { "type": "image", "source": source("image/png", "aGk=") },
        { "type": "document", "source": source("application/pdf", "JVBE") },
    ] });
    assert_eq!(block, expected);
    let silent = result_block(&ToolResult { id: "1".to_owned(), content: vec![], is_error: true });
    assert_eq!(silent, json!({ "type": "tool_result", "tool_use_id": "1", "is_error": true }));
}
