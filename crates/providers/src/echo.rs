//! The provider `echo`: answers every prompt with the prompt itself, word by word. It needs nothing, so the first
//! flow of a new project and many tests run on it.

use std::time::Duration;

use futures::StreamExt;
use inspan_protocol::{
    AgentError, Chunk, ExecutionContext, InputFacts, InputProblem, Message, MultiTurn, Provider,
    ProviderCapabilities, ProviderDescriptor, ProviderInput, ProviderItem, ProviderSessionId, ProviderStream,
    StopReason, StreamEvent, Usage,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_with::skip_serializing_none;

use crate::input::{self, Assistant};
use crate::output::TurnOutput;
use crate::scripted_turn::{ScriptedTurn, WaitEnd, turn_after, words};

/// The provider's type.
const TYPE: &str = "echo";

/// The input of one turn: exactly one of `prompt` and `messages`.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct EchoInput {
    /// The text, which comes back.
    pub prompt: Option<String>,
    /// The same in several messages of the user.
    pub messages: Option<Vec<Message>>,
    /// How it is done.
    pub options: Option<EchoOptions>,
}

/// How the echo is done.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct EchoOptions {
    /// The conversation to continue: the `sessionId` of an earlier output.
    pub resume: Option<ProviderSessionId>,
    /// The model that the output names.
    pub model: Option<String>,
    /// A wait before each word, in milliseconds.
    pub delay_ms: Option<u64>,
    /// Whether the run waits for messages between turns.
    pub multi_turn: Option<bool>,
    /// How long it waits for one, in milliseconds.
    pub idle_timeout_ms: Option<u64>,
    /// Turns that a run may have in all.
    pub max_turns: Option<u32>,
}

impl ProviderInput for EchoInput {
    fn resume(&mut self, session: &ProviderSessionId, message: &str) {
        self.messages = None;
        self.prompt = Some(message.to_owned());
        self.options.get_or_insert_default().resume = Some(session.clone());
    }

    fn facts(&self) -> InputFacts {
        let Some(options) = &self.options else { return InputFacts::default() };
        InputFacts {
            model: options.model.clone(),
            session: options.resume.clone(),
            multi_turn: if options.multi_turn == Some(true) { MultiTurn::On } else { MultiTurn::Off },
            idle_timeout: options.idle_timeout_ms.map(Duration::from_millis),
            max_turns: options.max_turns,
            output_schema: None,
        }
    }
}

/// Answers every prompt with the prompt. A conversation is `echo-N` after its N-th turn, and needs no memory.
#[derive(Clone, Copy, Debug, Default)]
pub struct EchoProvider;

impl Provider for EchoProvider {
    type Input = EchoInput;
    type Output = TurnOutput;

    fn descriptor(&self) -> ProviderDescriptor {
        ProviderDescriptor {
            provider_type: TYPE.to_owned(),
            display_name: "Echo".to_owned(),
            capabilities: ProviderCapabilities {
                streaming: true,
                cost: true,
                ..ProviderCapabilities::default()
            },
        }
    }

    fn check_input(&self, input: &Value) -> Vec<InputProblem> {
        input::check(input, Assistant::Refused)
    }

    fn execute(&self, input: EchoInput, context: ExecutionContext) -> ProviderStream<TurnOutput> {
        let stream = async_stream::try_stream! {
            let options = input.options.unwrap_or_default();
            let blocks = input::blocks(input.prompt.as_deref(), input.messages.as_deref())?;
            let text = input::text(&blocks);
            let turn = turn_after(TYPE, options.resume.as_ref())?;
            let session_id = ProviderSessionId::from(format!("{TYPE}-{turn}"));
            let mut playback = ScriptedTurn::new(context);
            let mut output = TurnOutput {
                session_id: Some(session_id.clone()),
                model: options.model,
                num_turns: 1,
                ..TurnOutput::new(StopReason::Complete)
            };
            yield ProviderItem::Event(StreamEvent::Session { session_id });
            for word in words(&text) {
                if playback.wait(options.delay_ms.map(Duration::from_millis)).await? == WaitEnd::Cancelled {
                    output.stop_reason = StopReason::Aborted;
                    break;
                }
                output.text.push_str(word);
                yield ProviderItem::Event(StreamEvent::Text { content: word.to_owned(), chunk: Chunk::Delta });
            }
            let count = |text: &str| text.split_whitespace().count() as u64;
            output.usage = Usage {
                input_tokens: count(&text),
                output_tokens: count(&output.text),
                ..Usage::default()
            };
            output.cost_usd = Some(0.0);
            output.duration_ms = playback.waited_ms();
            yield ProviderItem::Event(StreamEvent::Usage { usage: output.usage, cost_usd: output.cost_usd });
            yield ProviderItem::Output(output);
        };
        stream.map(|item: Result<_, AgentError>| item.map_err(|error| error.from_provider(TYPE))).boxed()
    }
}

#[cfg(test)]
mod tests {
    use futures::StreamExt;
    use inspan_protocol::{DynProvider, Erased, ErrorCode};
    use serde_json::{Value, json};

    use super::*;

    async fn play(input: Value, context: ExecutionContext) -> Vec<Value> {
        let input: EchoInput = serde_json::from_value(input).unwrap();
        let items = EchoProvider.execute(input, context).collect::<Vec<_>>().await;
        let line = |item: Result<ProviderItem<TurnOutput>, AgentError>| match item {
            Ok(ProviderItem::Event(event)) => json!({ "event": event }),
            Ok(ProviderItem::Output(output)) => json!({ "output": output }),
            Err(error) => json!({ "error": error.code }),
        };
        items.into_iter().map(line).collect()
    }

    #[test]
    fn a_whole_number_of_an_option_may_be_written_as_a_float() {
        let facts = |turns| {
            Erased(EchoProvider).input_facts(&json!({ "prompt": "x", "options": { "maxTurns": turns } }))
        };
        assert_eq!(facts(json!(1e3)).unwrap().max_turns, Some(1_000));
        assert!(facts(json!(1.5)).is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn it_answers_in_words_and_counts_its_turns() {
        let input = json!({ "prompt": "hello  big harness", "options": { "delayMs": 5, "model": "m", "resume": "echo-2" } });
        let usage = json!({
            "inputTokens": 3, "outputTokens": 3, "cacheReadTokens": 0, "cacheCreationTokens": 0, "reasoningTokens": 0,
        });
        assert_eq!(
            play(input, ExecutionContext::default()).await,
            [
                json!({ "event": { "type": "session", "sessionId": "echo-3" } }),
                json!({ "event": { "type": "text", "content": "hello  ", "chunk": "delta" } }),
                json!({ "event": { "type": "text", "content": "big ", "chunk": "delta" } }),
                json!({ "event": { "type": "text", "content": "harness", "chunk": "delta" } }),
                json!({ "event": { "type": "usage", "usage": usage, "costUsd": 0.0 } }),
                json!({ "output": {
                    "text": "hello  big harness", "sessionId": "echo-3", "usage": usage, "costUsd": 0.0, "model": "m",
                    "numTurns": 1, "stopReason": "complete", "durationMs": 15,
                } }),
            ]
        );
    }

    #[tokio::test(start_paused = true)]
    async fn it_stops_when_it_is_cancelled() {
        let context = ExecutionContext::default();
        context.cancel.cancel();
        let returned = play(json!({ "prompt": "hello" }), context).await;
        assert_eq!((returned.len(), &returned[2]["output"]["stopReason"]), (3, &json!("aborted")));
        assert_eq!(
            (&returned[2]["output"]["text"], &returned[2]["output"]["sessionId"]),
            (&json!(""), &json!("echo-1"))
        );
    }

    #[tokio::test(start_paused = true)]
    async fn it_keeps_to_its_deadline() {
        let context =
            ExecutionContext { deadline: Some(Duration::from_millis(12)), ..ExecutionContext::default() };
        let returned = play(json!({ "prompt": "a b c", "options": { "delayMs": 5 } }), context).await;
        assert_eq!((returned.len(), &returned[3]), (4, &json!({ "error": ErrorCode::Timeout })));
    }
}
