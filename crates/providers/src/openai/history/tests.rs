//! Results that are added after a crash, and results that are more than a text.

use super::*;

fn call(id: &str) -> Value {
    json!({ "type": "function_call", "call_id": id, "name": "n", "arguments": "{}" })
}

fn user(text: &str) -> Value {
    json!({ "type": "message", "role": "user", "content": [{ "type": "input_text", "text": text }] })
}

fn begun(items: Vec<Value>) -> Vec<Value> {
    ResponsesHistory::new(Thread::of(ProviderSessionId::from("s")), items, vec![user("on")], None)
        .state
        .messages
}

#[test]
fn calls_that_were_unanswered_calls_are_answered_behind_the_others() {
    let answer = |id: &str, text: &str| output_item(&ToolResult::error(id, text));
    let open = |id: &str| output_item(&ToolResult::interrupted(id));
    let rows = [
        (vec![], vec![user("on")]),
        (vec![user("a"), call("1")], vec![user("a"), call("1"), open("1"), user("on")]),
        (
            vec![call("1"), call("2"), answer("1", "x")],
            vec![call("1"), call("2"), answer("1", "x"), open("2"), user("on")],
        ),
        // A message that came after the crash stays behind the answers.
        (vec![call("1"), user("b")], vec![call("1"), open("1"), user("b"), user("on")]),
        (
            vec![call("1"), answer("1", "x"), user("b")],
            vec![call("1"), answer("1", "x"), user("b"), user("on")],
        ),
    ];
    for (items, expected) in rows {
        assert_eq!(begun(items.clone()), expected, "{items:?}");
    }
}

#[test]
fn answers_take_the_vendors_form() {
    let text = |text: &str| ContentBlock::Text { text: text.to_owned() };
    let image = ContentBlock::Image { media_type: "image/png".to_owned(), data: "aGk=".to_owned() };
    let rows = [
        (vec![], json!("")),
        (vec![text("a")], json!("a")),
        (
            vec![text("a"), image],
            json!([
                { "type": "input_text", "text": "a" },
                { "type": "input_image", "image_url": "data:image/png;base64,aGk=", "detail": "auto" },
            ]),
        ),
    ];
    for (content, expected) in rows {
        let item = output_item(&ToolResult { id: "1".to_owned(), content, is_error: false });
        assert_eq!(item, json!({ "type": "function_call_output", "call_id": "1", "output": expected }));
    }
}
