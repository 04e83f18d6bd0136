//! What the tests of all APIs need to know about this one.

use std::sync::Arc;

use inspan_protocol::{ProviderSessionId, Usage};
use serde_json::{Value, json};

use super::super::api::Messages;
use super::super::history::MessagesHistory;
use super::super::outcome::OutputKind;
use super::super::{AnthropicInput, AnthropicProvider};
use crate::api::tests::harness;
use crate::api::tests::replay::RecordedResponse;
use crate::conversation::ConversationStore;
use crate::output::TurnOutput;

/// A harness in which the Messages API is asked.
pub(super) type MessagesHarness = harness::Harness<TestApi>;

/// The adapter under the checks.
pub(super) struct TestApi;

impl harness::Vendor for TestApi {
    type Api = Messages;
    type Provider = AnthropicProvider;
    type Input = AnthropicInput;
    type Output = TurnOutput;

    const KEY: (&'static str, &'static str) = ("ANTHROPIC_API_KEY", "sk-ant-planted-0123456789");
    const PATH: &'static str = "/v1/messages";
    const HEADER: (&'static str, &'static str) = ("x-api-key", "");
    const BEGUN: &'static str = concat!(
        "data: {\"type\":\"message_start\",\"message\":{\"model\":\"m\",\"usage\":{\"input_tokens\":3}}}\n\n",
        "data: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"text\",\"text\":\"\"}}\n\n",
        "data: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"so far\"}}\n\n",
    );
    const SIGN: &'static str = "event: ping\ndata: {\"type\": \"ping\"}\n\n";
    const GARBAGE: &'static str = "data: {\"type\":\"content_bl\n\n";
    const REPEATS: &'static str = "invalid x-api-key";

    fn history(case: &RecordedResponse) -> MessagesHistory {
        let wanted = if case.structured { OutputKind::Structured } else { OutputKind::Text };
        MessagesHistory::new("s".into(), vec![], vec![], wanted)
    }

    fn stored(messages: &[Value]) -> Value {
        messages.first().map_or(json!([]), |message| message["content"].clone())
    }

    fn with_store(store: Arc<dyn ConversationStore>) -> AnthropicProvider {
        AnthropicProvider::with_store(store)
    }

    fn base_url(server: &str) -> String {
        server.to_owned()
    }

    fn resumed(prompt: &str, session: &str) -> Value {
        json!({ "prompt": prompt, "options": { "resume": session } })
    }

    fn unaskable() -> Vec<Value> {
        vec![
            json!({ "prompt": "a", "options": { "thinking": "low", "maxThinkingTokens": 2000 } }),
            json!({ "prompt": "a", "options": { "maxTokens": 1000, "maxThinkingTokens": 1024 } }),
            json!({ "prompt": "a", "options": { "maxThinkingTokens": 10 } }),
        ]
    }

    /// Without marks for the cache.
    fn spoken(body: &Value) -> Vec<String> {
        let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let block = |role: &Value, block: &Value| match block["type"].as_str().unwrap() {
            "text" => format!("{}: {}", word(role), word(&block["text"])),
            "tool_use" => format!("> {}{}", word(&block["name"]), block["input"]),
            "tool_result" => format!("= {}", word(&block["content"][0]["text"])),
            other => format!("<{other}>"),
        };
        let message = |message: &Value| -> Vec<String> {
            message["content"].as_array().unwrap().iter().map(|one| block(&message["role"], one)).collect()
        };
        body["messages"].as_array().unwrap().iter().flat_map(message).collect()
    }

    fn user(text: &str) -> Value {
        json!({ "role": "user", "content": [{ "type": "text", "text": text }] })
    }

    fn returned(output: &TurnOutput) -> (&str, Option<&ProviderSessionId>) {
        (&output.text, output.session_id.as_ref())
    }

    fn usage_when_cut() -> Usage {
        Usage { input_tokens: 100, output_tokens: 1, ..Usage::default() }
    }
}
