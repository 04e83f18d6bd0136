//! The OpenAI Chat Completions format: reads its requests, writes its chunks, bodies and errors.

use std::time::Duration;

use serde_json::{Value, json};

mod request;

use super::{CREATED, error_body, error_of, error_status, headers, ping};
use crate::scenario::{ErrorEvent, Turn, Usage};
use crate::speech::{Spoken, calls_a_tool, pieces, spoken, text_of};
use crate::wire::RequestView;
use crate::wire::{Beat, Complaint, Wire};

/// The key of the thinking. It is not OpenAI's own: servers of this format that show their thinking agreed on it.
const THINKING: &str = "reasoning_content";

/// The format itself; it holds nothing.
pub(crate) struct ChatCompletions;

impl Wire for ChatCompletions {
    fn view(&self, body: &Value) -> Result<RequestView, Complaint> {
        request::view(body)
    }

    fn beats(&self, turn: &Turn, request: &RequestView, stem: &str) -> Vec<Beat> {
        let chunk = |choices: Value, usage: Value| {
            let mut chunk = head("chat.completion.chunk", turn, request, stem);
            chunk["choices"] = choices;
            // Absent unless the client asks for it; then null until the end.
            if request.counts_tokens {
                chunk["usage"] = usage;
            }
            Beat::Event(frame(&chunk))
        };
        let choice = |delta: Value, finish_reason: Option<&str>| {
            let choice = json!({ "index": 0, "delta": delta, "finish_reason": finish_reason });
            chunk(json!([choice]), Value::Null)
        };
        let says = |delta| choice(delta, None);
        let mut beats = vec![says(json!({ "role": "assistant", "content": "" }))];
        let returned = spoken(turn, request);
        let finish_reason = finish_reason(turn, &returned);
        let mut calls = 0;
        for block in returned {
            match block {
                Spoken::Pause { ms } => beats.push(Beat::Pause(Duration::from_millis(ms))),
                Spoken::Text { text, chunks } => {
                    let key = text_key(turn);
                    beats.extend(pieces(&text, chunks).map(|text| says(json!({ key: text }))));
                }
                Spoken::Thinking { text, chunks, .. } => {
                    beats.extend(pieces(&text, chunks).map(|text| says(json!({ THINKING: text }))));
                }
                Spoken::ToolUse { name, input, id, chunks } => {
                    let mut first = tool_call(id, stem, calls, &name, "");
                    first["index"] = calls.into();
                    beats.push(says(json!({ "tool_calls": [first] })));
                    beats.extend(pieces(&text_of(&input), chunks).map(|arguments| {
                        let more = json!({ "index": calls, "function": { "arguments": arguments } });
                        says(json!({ "tool_calls": [more] }))
                    }));
                    calls += 1;
                }
            }
        }
        beats.push(choice(json!({}), Some(&finish_reason)));
        if request.counts_tokens {
            beats.push(chunk(json!([]), usage(&turn.usage)));
        }
        beats.push(Beat::Event("data: [DONE]\n\n".to_owned()));
        beats
    }

    fn whole(&self, turn: &Turn, request: &RequestView, stem: &str) -> String {
        let returned = spoken(turn, request);
        let finish_reason = finish_reason(turn, &returned);
        let mut message = json!({ "role": "assistant", "content": null, "refusal": null });
        let mut calls = Vec::new();
        for block in returned {
            match block {
                Spoken::Pause { .. } => {}
                Spoken::Text { text, .. } => add_text(&mut message, text_key(turn), &text),
                Spoken::Thinking { text, .. } => add_text(&mut message, THINKING, &text),
                Spoken::ToolUse { name, input, id, .. } => {
                    calls.push(tool_call(id, stem, calls.len(), &name, &text_of(&input)));
                }
            }
        }
        if !calls.is_empty() {
            message["tool_calls"] = calls.into();
        }
        let mut completion = head("chat.completion", turn, request, stem);
        completion["choices"] = json!([{ "index": 0, "message": message, "finish_reason": finish_reason }]);
        completion["usage"] = usage(&turn.usage);
        text_of(&completion)
    }

    fn error_body(&self, status: u16, kind: Option<&str>, message: &str, _stem: &str) -> String {
        error_body(status, kind, message)
    }

    fn error_status(&self, kind: &str) -> u16 {
        error_status(kind)
    }

    fn error_event(&self, error: &ErrorEvent, _sent: usize) -> String {
        frame(&json!({ "error": error_of(0, Some(&error.kind), &error.message) }))
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

/// The key of the text.
fn text_key(turn: &Turn) -> &'static str {
    if turn.stop_reason.as_deref() == Some("refusal") { "refusal" } else { "content" }
}

fn add_text(message: &mut Value, key: &str, more: &str) {
    let known = message[key].as_str().unwrap_or_default();
    message[key] = format!("{known}{more}").into();
}

/// What a chunk and a whole answer begin with.
fn head(object: &str, turn: &Turn, request: &RequestView, stem: &str) -> Value {
    let id = turn.message_id.clone().unwrap_or_else(|| format!("chatcmpl-{stem}"));
    json!({ "id": id, "object": object, "created": CREATED, "model": request.model })
}

fn tool_call(id: Option<String>, stem: &str, index: usize, name: &str, arguments: &str) -> Value {
    let id = id.unwrap_or_else(|| format!("call_{stem}_{index}"));
    json!({ "id": id, "type": "function", "function": { "name": name, "arguments": arguments } })
}

/// The prompt includes the cached tokens, unlike in the scenario.
fn usage(usage: &Usage) -> Value {
    let prompt_tokens = usage.input_tokens + usage.cache_read_tokens + usage.cache_creation_tokens;
    json!({
        "prompt_tokens": prompt_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": prompt_tokens + usage.output_tokens,
        "prompt_tokens_details": { "cached_tokens": usage.cache_read_tokens },
        "completion_tokens_details": { "reasoning_tokens": usage.reasoning_tokens },
    })
}

fn frame(value: &Value) -> String {
    format!("data: {}\n\n", text_of(value))
}

#[cfg(test)]
mod tests;
