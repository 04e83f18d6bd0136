//! The OpenAI Chat Completions format: reads its requests, writes its chunks, bodies and errors.

use std::time::Duration;

use serde::Serialize;
use serde_json::Value;

mod message;
mod request;

use self::message::{
    ChatInputDetails, ChatMessage, ChatOutputDetails, ChatToolCall, ChatUsage, Choice, Chunk, ChunkChoice,
    Completion, Delta, Function,
};
use super::{CREATED, ErrorBody, error_body, error_of, error_status, headers, ping};
use crate::scenario::{ErrorEvent, Turn, Usage};
use crate::speech::{Spoken, calls_a_tool, pieces, spoken, text_of};
use crate::wire::RequestView;
use crate::wire::{Beat, Complaint, Wire, sorted};

/// The format itself; it holds nothing.
pub(crate) struct ChatCompletions;

impl Wire for ChatCompletions {
    fn view(&self, body: &Value) -> Result<RequestView, Complaint> {
        request::view(body)
    }

    fn beats(&self, turn: &Turn, request: &RequestView, stem: &str) -> Vec<Beat> {
        let chunk = |choices: Vec<ChunkChoice>, usage: Option<ChatUsage>| Chunk {
            id: id(turn, stem),
            object: "chat.completion.chunk",
            created: CREATED,
            model: request.model.clone(),
            choices,
            usage: request.counts_tokens.then_some(usage),
        };
        let says =
            |delta: Delta| data(&chunk(vec![ChunkChoice { index: 0, delta, finish_reason: None }], None));
        let begin = Delta { role: Some("assistant"), content: Some(String::new()), ..Delta::default() };
        let mut beats = vec![says(begin)];
        let returned = spoken(turn, request);
        let finish_reason = Some(finish_reason(turn, &returned));
        let mut calls = 0;
        for block in returned {
            match block {
                Spoken::Pause { ms } => beats.push(Beat::Pause(Duration::from_millis(ms))),
                Spoken::Text { text, chunks } => beats.extend(pieces(&text, chunks).map(|text| {
                    says(match refuses(turn) {
                        true => Delta { refusal: Some(text), ..Delta::default() },
                        false => Delta { content: Some(text), ..Delta::default() },
                    })
                })),
                Spoken::Thinking { text, chunks, .. } => beats.extend(
                    pieces(&text, chunks)
                        .map(|text| says(Delta { reasoning_content: Some(text), ..Delta::default() })),
                ),
                Spoken::ToolUse { name, input, id, chunks } => {
                    let calls_with = |call| says(Delta { tool_calls: vec![call], ..Delta::default() });
                    let id = Some(id.unwrap_or_else(|| call_id(stem, calls)));
                    let function = Function { name: Some(name), arguments: String::new() };
                    let kind = Some("function");
                    beats.push(calls_with(ChatToolCall { index: Some(calls), id, kind, function }));
                    beats.extend(pieces(&sorted(&input).to_string(), chunks).map(|arguments| {
                        let function = Function { name: None, arguments };
                        calls_with(ChatToolCall { index: Some(calls), id: None, kind: None, function })
                    }));
                    calls += 1;
                }
            }
        }
        let end = ChunkChoice { index: 0, delta: Delta::default(), finish_reason };
        beats.push(data(&chunk(vec![end], None)));
        if request.counts_tokens {
            beats.push(data(&chunk(Vec::new(), Some(usage(&turn.usage)))));
        }
        beats.push(Beat::Event("data: [DONE]\n\n".to_owned()));
        beats
    }

    fn whole(&self, turn: &Turn, request: &RequestView, stem: &str) -> String {
        let returned = spoken(turn, request);
        let finish_reason = finish_reason(turn, &returned);
        let mut message = ChatMessage { role: "assistant", ..ChatMessage::default() };
        for block in returned {
            match block {
                Spoken::Pause { .. } => {}
                Spoken::Text { text, .. } => {
                    let place = if refuses(turn) { &mut message.refusal } else { &mut message.content };
                    place.get_or_insert_default().push_str(&text);
                }
                Spoken::Thinking { text, .. } => {
                    message.reasoning_content.get_or_insert_default().push_str(&text);
                }
                Spoken::ToolUse { name, input, id, .. } => {
                    let id = Some(id.unwrap_or_else(|| call_id(stem, message.tool_calls.len())));
                    let function = Function { name: Some(name), arguments: sorted(&input).to_string() };
                    message.tool_calls.push(ChatToolCall {
                        index: None,
                        id,
                        kind: Some("function"),
                        function,
                    });
                }
            }
        }
        text_of(&Completion {
            id: id(turn, stem),
            object: "chat.completion",
            created: CREATED,
            model: request.model.clone(),
            choices: vec![Choice { index: 0, message, finish_reason }],
            usage: usage(&turn.usage),
        })
    }

    fn error_body(&self, status: u16, kind: Option<&str>, message: &str, _stem: &str) -> String {
        error_body(status, kind, message)
    }

    fn error_status(&self, kind: &str) -> u16 {
        error_status(kind)
    }

    fn error_event(&self, error: &ErrorEvent, _sent: usize) -> String {
        frame(&ErrorBody { error: error_of(0, Some(&error.kind), &error.message) })
    }

    fn ping(&self) -> String {
        ping()
    }

    fn garbage(&self) -> String {
        "data: {\"id\":\"chatcmpl-\n\n".to_owned()
    }

    fn headers(&self, stem: &str) -> Vec<(&'static str, String)> {
        headers(stem)
    }
}

fn finish_reason(turn: &Turn, returned: &[Spoken]) -> String {
    let word = match turn.stop_reason.as_deref() {
        None if calls_a_tool(returned) => "tool_calls",
        None | Some("end_turn" | "refusal" | "stop_sequence" | "pause_turn") => "stop",
        Some("tool_use") => "tool_calls",
        Some("max_tokens" | "max_output_tokens" | "model_context_window_exceeded") => "length",
        Some(own) => own,
    };
    word.to_owned()
}

fn refuses(turn: &Turn) -> bool {
    turn.stop_reason.as_deref() == Some("refusal")
}

fn id(turn: &Turn, stem: &str) -> String {
    turn.message_id.clone().unwrap_or_else(|| format!("chatcmpl-{stem}"))
}

fn call_id(stem: &str, index: usize) -> String {
    format!("call_{stem}_{index}")
}

fn usage(usage: &Usage) -> ChatUsage {
    let prompt_tokens = usage.input_tokens + usage.cache_read_tokens + usage.cache_creation_tokens;
    ChatUsage {
        prompt_tokens,
        completion_tokens: usage.output_tokens,
        total_tokens: prompt_tokens + usage.output_tokens,
        prompt_tokens_details: ChatInputDetails { cached_tokens: usage.cache_read_tokens },
        completion_tokens_details: ChatOutputDetails { reasoning_tokens: usage.reasoning_tokens },
    }
}

fn data(chunk: &Chunk) -> Beat {
    Beat::Event(frame(chunk))
}

fn frame(value: &impl Serialize) -> String {
    format!("data: {}\n\n", text_of(value))
}

#[cfg(test)]
mod tests;
