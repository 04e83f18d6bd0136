//! Tests of what is special about this vendor; `api/tests` has those that hold for all.

use std::sync::Arc;

use inspan_protocol::{ProviderSessionId, Usage};
use inspan_testkit::{corrupt, random_chunks};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::Wanted;
use super::api::Messages;
use super::decode::{Decoded, Decoder, Response};
use super::history::History;
use super::{AnthropicInput, AnthropicProvider};
use crate::api::stream::ResponseDecoder;
use crate::api::tests::harness;
use crate::api::tests::replay::Case;
use crate::conversation::ConversationStore;
use crate::output::TurnOutput;

mod conversations;
mod tools;

/// A harness in which the Messages API is asked.
type Harness = harness::Harness<TestApi>;

/// The adapter under the checks.
struct TestApi;

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
    const GARBAGE: &'static str = "data: {\"type\":\"content_bl\n\n";
    const REPEATS: &'static str = "invalid x-api-key";

    fn history(case: &Case) -> History {
        let wanted = if case.structured { Wanted::Structured } else { Wanted::Text };
        History::new("s".into(), vec![], vec![], wanted)
    }

    fn stored(messages: &[Value]) -> Value {
        messages.first().map_or(json!([]), |message| message["content"].clone())
    }

    fn new() -> AnthropicProvider {
        AnthropicProvider::new()
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
        let block = |block: &Value| match block["type"].as_str() {
            Some("text") => block["text"].as_str().unwrap_or_default().to_owned(),
            other => format!("<{}>", other.unwrap_or("none")),
        };
        let message = |message: &Value| {
            let blocks: Vec<String> = message["content"].as_array().unwrap().iter().map(block).collect();
            format!("{}: {}", message["role"].as_str().unwrap(), blocks.join(" | "))
        };
        body["messages"].as_array().unwrap().iter().map(message).collect()
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

crate::api::tests::vendor_tests!(TestApi);

/// The streams of the recorded cases.
fn streams() -> &'static [Vec<u8>] {
    static ALL: std::sync::LazyLock<Vec<Vec<u8>>> =
        std::sync::LazyLock::new(|| crate::replay::transcripts("anthropic"));
    &ALL
}

/// The output of these reads, and what is stored of the answer.
fn reported(chunks: &[&[u8]]) -> (Vec<Decoded>, Response) {
    let mut decoder = Decoder::default();
    let mut decoded: Vec<Decoded> = chunks.iter().flat_map(|chunk| decoder.push(chunk)).collect();
    decoded.extend(decoder.finish());
    (decoded, decoder.partial())
}

proptest! {
    /// No panic, no difference by the cuts, one end at most and nothing after it, and no more output than input.
    #[test]
    fn no_stream_breaks_the_decoder(
        case in any::<prop::sample::Index>(),
        seed in any::<u64>(),
        noise in prop::option::weighted(0.2, prop::collection::vec(any::<u8>(), 0..400)),
    ) {
        let bytes = noise.unwrap_or_else(|| corrupt(case.get::<Vec<u8>>(streams()), seed));
        let whole = reported(&[&bytes]);
        prop_assert_eq!(&reported(&random_chunks(&bytes, seed)), &whole);
        let ends = |decoded: &Decoded| !matches!(decoded, Decoded::Event(_));
        let first = whole.0.iter().position(ends);
        prop_assert!(first.is_none_or(|first| first + 1 == whole.0.len()), "something follows the end");
        let returned = format!("{whole:?}").len();
        prop_assert!(returned <= 64 * bytes.len() + 8192, "{returned} bytes said of {}", bytes.len());
    }
}
