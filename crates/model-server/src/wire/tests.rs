//! What holds for every format: no request makes it fail, and the content of a turn is unchanged in the
//! output. The exact bytes of each format are compared in `server/tests/scenarios.rs`.

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::anthropic::Anthropic;
use crate::gemini::Gemini;
use crate::openai::{ChatCompletions, Responses};
use crate::plan::{PlanStep, Reply, plan};
use crate::scenario::{Block, Scenario};
use crate::script::Script;
use crate::wire::Delivery;

fn formats() -> [Box<dyn Wire>; 4] {
    let gemini = Gemini { model: "m".to_owned(), delivery: Delivery::Stream };
    [Box::new(Anthropic), Box::new(Responses), Box::new(ChatCompletions), Box::new(gemini)]
}

/// Keys and words that the readers look for, so that random bodies get far into them.
const KEYS: [&str; 26] = [
    "contents",
    "parts",
    "functionDeclarations",
    "functionResponse",
    "response",
    "systemInstruction",
    "model",
    "messages",
    "input",
    "role",
    "content",
    "type",
    "text",
    "tools",
    "function",
    "name",
    "system",
    "instructions",
    "stream",
    "stream_options",
    "include_usage",
    "output",
    "previous_response_id",
    "max_tokens",
    "store",
    "?",
];
const WORDS: [&str; 14] = [
    "user",
    "assistant",
    "system",
    "developer",
    "tool",
    "text",
    "tool_result",
    "input_text",
    "custom",
    "namespace",
    "function_call_output",
    "custom_tool_call_output",
    "Bash",
    "",
];

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        prop::sample::select(&WORDS[..]).prop_map(Value::from),
        any::<String>().prop_map(Value::from),
    ];
    leaf.prop_recursive(6, 64, 8, |inner| {
        let key = prop_oneof![prop::sample::select(&KEYS[..]).prop_map(str::to_owned), any::<String>()];
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..8).prop_map(Value::from),
            prop::collection::btree_map(key, inner, 0..8)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

/// Something that may be a message, a tool result or a tool, with anything in the places that hold its parts.
fn any_item() -> impl Strategy<Value = Value> {
    let word = || prop::sample::select(&WORDS[..]);
    (word(), word(), any_json(), any_json()).prop_map(|(role, kind, content, output)| {
        json!({ "role": role, "type": kind, "name": role, "content": content, "parts": content, "functionDeclarations": output, "output": output, "tools": output,
                "function": content })
    })
}

/// A body that looks like a request.
fn any_request() -> impl Strategy<Value = Value> {
    let items = || prop::collection::vec(any_item(), 0..6).prop_map(Value::from);
    let parts = || prop_oneof![items(), any_json()];
    (parts(), parts(), any_json(), any_json()).prop_map(|(messages, tools, system, stream)| {
        json!({
            "model": "m", "messages": messages, "input": messages, "contents": messages, "systemInstruction": system, "tools": tools, "system": system,
            "instructions": system, "stream": stream, "stream_options": stream
        })
    })
}

/// The whole text of a plan's body.
fn body_of(reply: Reply) -> String {
    match reply {
        Reply::Silence { .. } => String::new(),
        Reply::Whole { body, .. } => body,
        Reply::Steps { steps, .. } => steps
            .into_iter()
            .filter_map(|step| match step {
                PlanStep::Send(text) => Some(text),
                _ => None,
            })
            .collect(),
    }
}

/// Every JSON value of a stream.
fn data_of(stream: &str) -> Vec<Value> {
    let data = stream.lines().filter_map(|line| line.strip_prefix("data: ")).filter(|data| *data != "[DONE]");
    data.map(|data| serde_json::from_str(data).expect("data is JSON")).collect()
}

/// Thoughts, text and the arguments of a call, each put together again from the pieces of a stream.
fn put_together(events: &[Value]) -> [String; 3] {
    let mut parts = [const { String::new() }; 3];
    for event in events {
        // The Gemini API says by a key what a text is, and sends arguments whole.
        for part in
            event.pointer("/candidates/0/content/parts").and_then(Value::as_array).into_iter().flatten()
        {
            parts[usize::from(part["thought"] != true)].push_str(part["text"].as_str().unwrap_or_default());
            parts[2].push_str(&part.pointer("/functionCall/args").map(Value::to_string).unwrap_or_default());
        }
        // In the Responses format the type of an event says what its delta is, in the others the key does.
        let kind = event["type"].as_str().unwrap_or_default();
        let keys = [
            (
                "response.reasoning_summary_text.delta",
                "/delta/thinking",
                "/choices/0/delta/reasoning_content",
            ),
            ("response.output_text.delta", "/delta/text", "/choices/0/delta/content"),
            (
                "response.function_call_arguments.delta",
                "/delta/partial_json",
                "/choices/0/delta/tool_calls/0/function/arguments",
            ),
        ];
        for (part, (responses, anthropic, chat)) in parts.iter_mut().zip(keys) {
            let place = if kind == responses { "/delta" } else { anthropic };
            let piece = event.pointer(place).or_else(|| event.pointer(chat)).and_then(Value::as_str);
            part.push_str(piece.unwrap_or_default());
        }
    }
    parts
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_body_makes_a_reader_stumble(body in prop_oneof![any_json(), any_request()]) {
        for format in formats() {
            match format.view(&body) {
                Err(complaint) => prop_assert!(!complaint.message.is_empty()),
                Ok(view) => {
                    let scenario = Scenario::of([Turn::text("a").when(crate::Matcher::any("user")), Turn::text("b")]);
                    let choice = Script::new(scenario.clone()).choose(&view);
                    let body = body_of(plan(&*format, &scenario, &choice.turn, &view, &choice.stem).reply);
                    prop_assert!(!body.is_empty());
                }
            }
        }
    }

    #[test]
    fn what_a_turn_says_comes_out_of_every_format(
        text in any::<String>(),
        thought in any::<String>(),
        input in prop::collection::btree_map(any::<String>(), any_json(), 0..4),
        chunks in 0..9_usize,
    ) {
        let input = sorted(&Value::Object(input.into_iter().collect()));
        let blocks = vec![
            Block::Thinking { text: thought.clone(), signature: "s".to_owned(), chunks },
            Block::Text { text: text.clone(), chunks },
            Block::ToolUse { name: "t".to_owned(), input: input.clone(), id: None, chunks },
        ];
        let turn = Turn { blocks, ..Turn::default() };
        let view = |delivery| RequestView { model: "m".to_owned(), delivery, ..RequestView::default() };
        let scenario = Scenario::of([]);
        for format in formats() {
            let played = |delivery| body_of(plan(&*format, &scenario, &turn, &view(delivery), "main_1").reply);
            let [thoughts, texts, arguments] = put_together(&data_of(&played(Delivery::Stream)));
            prop_assert_eq!((thoughts, texts), (thought.clone(), text.clone()));
            prop_assert_eq!(serde_json::from_str::<Value>(&arguments).ok(), Some(input.clone()));
            prop_assert!(serde_json::from_str::<Value>(&played(Delivery::Whole)).is_ok());
        }
    }
}
