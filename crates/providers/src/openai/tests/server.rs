//! What the tests of all APIs need to know about this one.

use std::sync::Arc;

use inspan_protocol::{ProviderSessionId, Usage};
use serde_json::{Value, json};

use super::super::api::Responses;
use super::super::history::ResponsesHistory;
use super::super::request::Thread;
use super::super::schema::VendorSchema;
use super::super::{OpenAiInput, OpenAiOutput, OpenAiProvider};
use crate::api::tests::harness;
use crate::api::tests::replay::RecordedResponse;
use crate::conversation::ConversationStore;

/// A harness in which the Responses API is asked.
pub(super) type ResponsesHarness = harness::Harness<TestApi>;

/// The adapter under the checks.
pub(super) struct TestApi;

impl harness::Vendor for TestApi {
    type Api = Responses;
    type Provider = OpenAiProvider;
    type Input = OpenAiInput;
    type Output = OpenAiOutput;

    const KEY: (&'static str, &'static str) = ("OPENAI_API_KEY", "sk-proj-planted-0123456789");
    const PATH: &'static str = "/v1/responses";
    const HEADER: (&'static str, &'static str) = ("authorization", "Bearer ");
    const BEGUN: &'static str = concat!(
        "data: {\"type\":\"response.created\",\"response\":{\"id\":\"resp_1\",\"model\":\"m\"}}\n\n",
        "data: {\"type\":\"response.output_item.added\",\"output_index\":0,\"item\":{\"type\":\"message\"}}\n\n",
        "data: {\"type\":\"response.output_text.delta\",\"output_index\":0,\"delta\":\"so far\"}\n\n",
    );
    const SIGN: &'static str =
        "data: {\"type\":\"response.in_progress\",\"response\":{\"id\":\"resp_1\"}}\n\n";
    const GARBAGE: &'static str = "data: {\"type\":\"response.out\n\n";
    const REPEATS: &'static str = "Incorrect API key provided:";

    fn history(case: &RecordedResponse) -> ResponsesHistory {
        ResponsesHistory::new(
            Thread::Own("s".into()),
            vec![],
            vec![],
            case.schema.as_ref().map(VendorSchema::of),
        )
    }

    fn stored(messages: &[Value]) -> Value {
        json!(messages)
    }

    fn with_store(store: Arc<dyn ConversationStore>) -> OpenAiProvider {
        OpenAiProvider::with_store(store)
    }

    fn base_url(server: &str) -> String {
        format!("{server}/v1")
    }

    fn resumed(prompt: &str, session: &str) -> Value {
        json!({ "prompt": prompt, "threadId": session })
    }

    fn unaskable() -> Vec<Value> {
        vec![
            json!({ "messages": [{ "role": "assistant", "content": [{ "type": "image", "media_type": "image/png", "data": "" }] }, { "role": "user", "content": "a" }] }),
            json!({ "prompt": "a", "model": "a", "options": { "model": "b" } }),
            json!({ "prompt": "a", "threadId": "a", "options": { "resume": "b" } }),
        ]
    }

    fn spoken(body: &Value) -> Vec<String> {
        let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let item = |item: &Value| match item["type"].as_str().unwrap() {
            "message" => format!("{}: {}", word(&item["role"]), word(&item["content"][0]["text"])),
            "function_call" => format!("> {}{}", word(&item["name"]), word(&item["arguments"])),
            "function_call_output" if item["output"].is_array() => {
                format!("= {}", word(&item["output"][0]["text"]))
            }
            "function_call_output" => format!("= {}", word(&item["output"])),
            other => format!("<{other}>"),
        };
        body["input"].as_array().unwrap().iter().map(item).collect()
    }

    fn user(text: &str) -> Value {
        json!({ "type": "message", "role": "user", "content": [{ "type": "input_text", "text": text }] })
    }

    fn returned(output: &OpenAiOutput) -> (&str, Option<&ProviderSessionId>) {
        (&output.content, output.thread_id.as_ref())
    }

    /// The vendor counts tokens at the end only.
    fn usage_when_cut() -> Usage {
        Usage::default()
    }
}
