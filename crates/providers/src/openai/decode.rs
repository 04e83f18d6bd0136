//! The decoder of one streamed response: bytes in, events out.
//!
//! | state | event | becomes |
//! |---|---|---|
//! | any | `response.created`, `.queued`, `.in_progress` | the answer begins; its id and model |
//! | within | `response.output_item.added`, `.done` | an item of the response; it is stored for the next request |
//! | within | the deltas of texts, summaries of thoughts and refusals | text and thinking as they come |
//! | within | `response.completed`, `.incomplete` | the tokens, the end |
//! | any | `response.failed`, `error` | the vendor's error |
//! | any | pieces of what an item says again as a whole | nothing |
//! | any | what is not known | nothing but a warning |
//! | any | anything else | a fault: nothing after it can be relied on |

use std::collections::BTreeMap;

use inspan_protocol::{AgentError, Chunk, StreamEvent, Usage};
use reqwest::StatusCode;
use reqwest::header::HeaderMap;
use serde_json::Value;

use super::error;
use super::wire;
use crate::api::stream::{self, DecoderState, ResponseDecoder, ResponseProgress};
use crate::api::stream::{protocol, read};
use crate::decode::{Warned, head};
use crate::tools::ToolCall;

mod item;

use item::DecodedItem;
pub(super) use item::{MessagePhase, MessageText, message};

/// What the stream says.
pub(super) type OpenAiDecoded = stream::Decoded<PartialResponse>;

/// The most items that one answer may have.
const ITEMS: usize = 4096;

/// The response, or the part of it that has arrived.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct PartialResponse {
    /// The messages, in their order.
    pub(super) messages: Vec<MessageText>,
    /// Why the model refuses, if it does.
    pub(super) refusal: Option<String>,
    /// The functions that it wants called, in their order.
    pub(super) calls: Vec<ToolCall>,
    /// The items as the next request has to hold them if the vendor stores none.
    pub(super) items: Vec<Value>,
    /// The vendor's id of the response.
    pub(super) id: Option<String>,
    pub(super) model: Option<String>,
    pub(super) usage: Usage,
    pub(super) ending: AnswerEnding,
}

/// How an answer ended.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) enum AnswerEnding {
    /// Not yet.
    #[default]
    None,
    /// The model was done.
    Completed,
    /// It is incomplete, perhaps for this reason.
    Incomplete(Option<String>),
}

/// Events that are errors before the response has begun.
const ORDERED: [&str; 8] = [
    "response.output_item.added",
    "response.output_item.done",
    "response.output_text.delta",
    "response.refusal.delta",
    "response.reasoning_summary_text.delta",
    "response.reasoning_text.delta",
    "response.completed",
    "response.incomplete",
];
/// Events whose content `response.output_item.done` repeats.
const REPEATED: [&str; 12] = [
    "keepalive",
    "response.content_part.added",
    "response.content_part.done",
    "response.output_text.done",
    "response.output_text.annotation.added",
    "response.refusal.done",
    "response.reasoning_summary_part.added",
    "response.reasoning_summary_part.done",
    "response.reasoning_summary_text.done",
    "response.reasoning_text.done",
    "response.function_call_arguments.delta",
    "response.function_call_arguments.done",
];

/// The decoder of one response.
#[derive(Debug, Default)]
pub(super) struct Decoder {
    state: DecoderState,
    items: BTreeMap<u64, DecodedItem>,
    /// The message whose text was streamed last.
    speaking: Option<u64>,
    /// The item and part whose thoughts were streamed last.
    thinking: Option<(u64, u64)>,
    response: Option<String>,
    model: Option<String>,
    usage: Usage,
    ending: AnswerEnding,
    warned: Warned,
}

type Done = Result<(), AgentError>;

impl ResponseDecoder for Decoder {
    const SIGNS_OF_LIFE: &'static [&'static str] =
        &["keepalive", "response.created", "response.queued", "response.in_progress"];

    type Response = PartialResponse;

    fn state(&mut self) -> &mut DecoderState {
        &mut self.state
    }

    fn decode(&mut self, kind: &str, data: &str, out: &mut Vec<OpenAiDecoded>) -> Done {
        if ORDERED.contains(&kind) && self.state.progress != ResponseProgress::Begun {
            return Err(protocol(format!("the event `{kind}` came out of order")));
        }
        match kind {
            "error" => Err(error::within(read::<wire::ErrorEvent>(data, kind)?.into())),
            "response.created" | "response.queued" | "response.in_progress" => {
                let event: wire::ResponseEvent = read(data, kind)?;
                self.state.progress = ResponseProgress::Begun;
                self.begin(&event.response);
                Ok(())
            }
            "response.failed" => {
                let event: wire::ResponseEvent = read(data, kind)?;
                self.tokens(event.response.usage, out);
                Err(error::within(event.response.error.unwrap_or_default()))
            }
            "response.output_item.added" => self.added(read(data, kind)?),
            "response.output_item.done" => {
                let event: wire::ItemEvent = read(data, kind)?;
                self.done(event.output_index, event.item, out)
            }
            "response.output_text.delta" => self.text(&read(data, kind)?, out),
            "response.refusal.delta" => {
                let event: wire::DeltaEvent<'_> = read(data, kind)?;
                let item = self.open(event.output_index)?;
                item.refuse(&event.delta).ok_or_else(|| misfit(event.output_index))
            }
            "response.reasoning_summary_text.delta" | "response.reasoning_text.delta" => {
                self.thought(&read(data, kind)?, out)
            }
            "response.completed" | "response.incomplete" => {
                let event: wire::ResponseEvent = read(data, kind)?;
                self.end(kind, event.response, out)
            }
            _ => {
                if !REPEATED.contains(&kind) {
                    let warning =
                        self.warned.once("unknownEvent", kind, "ignored an event of the unknown type");
                    out.extend(warning.map(OpenAiDecoded::Event));
                }
                // Broken JSON is an error even where nothing of it is used.
                read::<serde::de::IgnoredAny>(data, kind).map(drop)
            }
        }
    }

    fn failure(&self, error: AgentError) -> AgentError {
        error.with("responseId", self.response.as_deref().map(head))
    }

    fn partial(self) -> PartialResponse {
        let items: Vec<DecodedItem> = self.items.into_values().collect();
        PartialResponse {
            messages: items.iter().filter_map(DecodedItem::words).collect(),
            refusal: items.iter().find_map(DecodedItem::refusal),
            calls: items.iter().filter_map(DecodedItem::call).collect(),
            items: item::stored(&items),
            id: self.response,
            model: self.model,
            usage: self.usage,
            ending: self.ending,
        }
    }

    fn response_error(status: StatusCode, headers: &HeaderMap, body: &[u8]) -> AgentError {
        error::response_error(status, headers, body)
    }

    fn body_error(body: &[u8]) -> Option<AgentError> {
        serde_json::from_slice::<wire::OpenAiError>(body).ok().map(|failure| error::within(failure.error))
    }
}

impl Decoder {
    fn text(&mut self, event: &wire::DeltaEvent<'_>, out: &mut Vec<OpenAiDecoded>) -> Done {
        self.open(event.output_index)?.add_text(&event.delta).ok_or_else(|| misfit(event.output_index))?;
        self.speak(event.output_index, &event.delta, out);
        Ok(())
    }

    fn thought(&mut self, event: &wire::DeltaEvent<'_>, out: &mut Vec<OpenAiDecoded>) -> Done {
        self.open(event.output_index)?.think().ok_or_else(|| misfit(event.output_index))?;
        self.think((event.output_index, event.summary_index), &event.delta, out);
        Ok(())
    }

    fn begin(&mut self, response: &wire::Response) {
        self.response = response.id.clone().or(self.response.take());
        self.model = response.model.clone().or(self.model.take());
    }

    fn added(&mut self, event: wire::ItemEvent) -> Done {
        let index = event.output_index;
        if self.items.contains_key(&index) {
            return Err(protocol(format!("the item {index} began twice")));
        }
        let item = DecodedItem::begun(&event.item)
            .ok_or_else(|| protocol(format!("the item {index} has no type")))?;
        self.insert(index, item)
    }

    fn insert(&mut self, index: u64, item: DecodedItem) -> Done {
        if self.items.len() >= ITEMS {
            return Err(protocol(format!("the answer has more than {ITEMS} items")));
        }
        self.items.insert(index, item);
        Ok(())
    }

    /// Takes an item as a whole, and reports the part that was not streamed.
    fn done(&mut self, index: u64, value: Value, out: &mut Vec<OpenAiDecoded>) -> Done {
        let before = self.items.remove(&index);
        if matches!(before, Some(DecodedItem::Done(_))) {
            return Err(protocol(format!("the item {index} ended twice")));
        }
        let kind =
            DecodedItem::kind_of(&value).ok_or_else(|| protocol(format!("the item {index} has no type")))?;
        if !item::KNOWN.contains(&kind) {
            let warning = self.warned.once("unknownItem", kind, "stored an item of the unknown type");
            out.extend(warning.map(OpenAiDecoded::Event));
        }
        let item = DecodedItem::Done(value);
        if let Some(call) = item.call() {
            let known = self.items.values().filter_map(DecodedItem::call).any(|other| other.id == call.id);
            if call.id.is_empty() || call.name.is_empty() {
                let message = format!("the item {index} calls a function without a name or an id");
                return Err(protocol(message));
            }
            if known {
                let message = format!("the item {index} calls a function with the id of another call");
                return Err(protocol(message));
            }
        }
        let (streamed, thought) = match &before {
            Some(DecodedItem::Open { text, thought, .. }) => (text.as_str(), *thought),
            _ => ("", item::Thought::No),
        };
        if let Some(words) = item.words() {
            match words.text.strip_prefix(streamed) {
                Some(rest) => self.speak(index, rest, out),
                None => {
                    let message = "a message ended with another text than was streamed of it";
                    out.push(OpenAiDecoded::Event(StreamEvent::warning("textDiffers", message)));
                }
            }
        }
        if thought == item::Thought::No {
            for (part, text) in item.thoughts().into_iter().enumerate() {
                self.think((index, part as u64), &text, out);
            }
        }
        self.insert(index, item)
    }

    fn open(&mut self, index: u64) -> Result<&mut DecodedItem, AgentError> {
        let item = self.items.get_mut(&index).filter(|item| matches!(item, DecodedItem::Open { .. }));
        item.ok_or_else(|| protocol(format!("the item {index} is not open")))
    }

    /// Messages are apart from each other by a blank line, as they are in the output.
    fn speak(&mut self, index: u64, piece: &str, out: &mut Vec<OpenAiDecoded>) {
        if piece.is_empty() {
            return;
        }
        let apart = if self.speaking.is_some_and(|last| last != index) { "\n\n" } else { "" };
        self.speaking = Some(index);
        let event = StreamEvent::Text { content: format!("{apart}{piece}"), chunk: Chunk::Delta };
        out.push(OpenAiDecoded::Event(event));
    }

    fn think(&mut self, place: (u64, u64), piece: &str, out: &mut Vec<OpenAiDecoded>) {
        if piece.is_empty() {
            return;
        }
        let apart = if self.thinking.is_some_and(|last| last != place) { "\n\n" } else { "" };
        self.thinking = Some(place);
        let event = StreamEvent::Thinking { content: format!("{apart}{piece}"), chunk: Chunk::Delta };
        out.push(OpenAiDecoded::Event(event));
    }

    fn tokens(&mut self, usage: Option<wire::ApiUsage>, out: &mut Vec<OpenAiDecoded>) {
        if let Some(usage) = usage {
            self.state.counted = true;
            self.usage = usage.into();
            out.push(OpenAiDecoded::Event(StreamEvent::Usage { usage: self.usage, cost_usd: None }));
        }
    }

    fn end(&mut self, kind: &str, response: wire::Response, out: &mut Vec<OpenAiDecoded>) -> Done {
        self.begin(&response);
        // Some servers send items only here.
        for (index, value) in response.output.unwrap_or_default().into_iter().enumerate() {
            let index = index as u64;
            if !matches!(self.items.get(&index), Some(DecodedItem::Done(_))) {
                self.done(index, value, out)?;
            }
        }
        self.tokens(response.usage, out);
        self.ending = match kind {
            "response.completed" => AnswerEnding::Completed,
            _ => AnswerEnding::Incomplete(response.incomplete_details.and_then(|details| details.reason)),
        };
        if self.ending == AnswerEnding::Completed
            && self.items.values().any(|item| !matches!(item, DecodedItem::Done(_)))
        {
            return Err(protocol("the answer ended within an item".to_owned()));
        }
        let response = std::mem::take(self).partial();
        self.state.progress = ResponseProgress::Ended;
        out.push(OpenAiDecoded::End(Box::new(response)));
        Ok(())
    }
}

fn misfit(index: u64) -> AgentError {
    protocol(format!("a piece of the item {index} is of another kind than the item"))
}

#[cfg(test)]
mod tests;
