//! The format of Google's Gemini API (`streamGenerateContent`, `generateContent`): reads its requests, writes its
//! events, bodies and errors. The model and whether the answer is streamed are in the path, not in the body.

use std::time::Duration;

use serde_json::{Value, json};

mod request;

use crate::scenario::{ErrorEvent, Turn, Usage};
use crate::speech::{Spoken, pieces, spoken, text_of};
use crate::wire::{Beat, Complaint, Wire};
use crate::wire::{Delivery, RequestView};

/// What comes before the name of a model in a path.
const MODELS: [&str; 3] = ["/v1beta/models/", "/v1/models/", "/v1alpha/models/"];

/// A scenario's name for an error, the status with which the vendor reports it, and the vendor's name.
/// The usual one of a status comes before others of that status.
const ERRORS: [(&str, u16, &str); 13] = [
    ("invalid_request_error", 400, "INVALID_ARGUMENT"),
    ("context_length_exceeded", 400, "INVALID_ARGUMENT"),
    ("authentication_error", 401, "UNAUTHENTICATED"),
    ("billing_error", 402, "FAILED_PRECONDITION"),
    ("permission_error", 403, "PERMISSION_DENIED"),
    ("not_found_error", 404, "NOT_FOUND"),
    ("request_too_large", 413, "INVALID_ARGUMENT"),
    ("rate_limit_error", 429, "RESOURCE_EXHAUSTED"),
    ("insufficient_quota", 429, "RESOURCE_EXHAUSTED"),
    ("api_error", 500, "INTERNAL"),
    ("overloaded_error", 503, "UNAVAILABLE"),
    ("timeout_error", 504, "DEADLINE_EXCEEDED"),
    ("overloaded_error", 529, "UNAVAILABLE"),
];

/// What a path of this API requests.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Method {
    /// An answer of the model.
    Generate(Gemini),
    /// The number of tokens of a prompt.
    CountTokens,
}

/// The format for one request: all of it that the path says.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Gemini {
    pub(crate) model: String,
    pub(crate) delivery: Delivery,
}

/// What a path requests, if it is one of this API.
pub(crate) fn method(path: &str) -> Option<Method> {
    let rest = MODELS.iter().find_map(|prefix| path.strip_prefix(prefix))?;
    let (model, method) = rest.rsplit_once(':').filter(|(model, _)| !model.is_empty())?;
    let generate = |delivery| Method::Generate(Gemini { model: model.to_owned(), delivery });
    match method {
        "streamGenerateContent" => Some(generate(Delivery::Stream)),
        "generateContent" => Some(generate(Delivery::Whole)),
        "countTokens" => Some(Method::CountTokens),
        _ => None,
    }
}

/// The answer to [`Method::CountTokens`].
pub(crate) fn counted(tokens: u64) -> Value {
    json!({ "totalTokens": tokens })
}

impl Wire for Gemini {
    fn view(&self, body: &Value) -> Result<RequestView, Complaint> {
        request::view(body, &self.model, self.delivery)
    }

    fn beats(&self, turn: &Turn, request: &RequestView, stem: &str) -> Vec<Beat> {
        let event = |parts| Beat::Event(frame(&answer(turn, request, stem, parts)));
        let mut beats = Vec::new();
        for block in spoken(turn, request) {
            match block {
                Spoken::Pause { ms } => beats.push(Beat::Pause(Duration::from_millis(ms))),
                Spoken::Text { text, chunks } => {
                    beats.extend(pieces(&text, chunks).map(|text| event(vec![text_part(&text)])));
                }
                Spoken::Thinking { text, chunks, .. } => {
                    beats.extend(pieces(&text, chunks).map(|text| event(vec![thought(&text)])));
                }
                Spoken::ToolUse { name, input, id, .. } => beats.push(event(vec![call(&name, &input, id)])),
            }
        }
        let mut end = answer(turn, request, stem, vec![text_part("")]);
        finish(&mut end, turn);
        beats.push(Beat::Event(frame(&end)));
        beats
    }

    fn whole(&self, turn: &Turn, request: &RequestView, stem: &str) -> String {
        let parts = spoken(turn, request).into_iter().filter_map(|block| match block {
            Spoken::Pause { .. } => None,
            Spoken::Text { text, .. } => Some(text_part(&text)),
            Spoken::Thinking { text, .. } => Some(thought(&text)),
            Spoken::ToolUse { name, input, id, .. } => Some(call(&name, &input, id)),
        });
        let mut answer = answer(turn, request, stem, parts.collect());
        finish(&mut answer, turn);
        text_of(&answer)
    }

    fn error_body(&self, status: u16, kind: Option<&str>, message: &str, _stem: &str) -> String {
        text_of(&error(status, kind, message))
    }

    fn error_status(&self, kind: &str) -> u16 {
        ERRORS
            .iter()
            .find(|(word, _, own)| *word == kind || *own == kind)
            .map_or(500, |(_, status, _)| *status)
    }

    fn error_event(&self, event: &ErrorEvent, _sent: usize) -> String {
        frame(&error(self.error_status(&event.kind), Some(&event.kind), &event.message))
    }

    fn ping(&self) -> String {
        "data: {\"candidates\":[]}\r\n\r\n".to_owned()
    }

    fn garbage(&self) -> String {
        "data: {\"candidates\":[\r\n\r\n".to_owned()
    }

    fn headers(&self, _stem: &str) -> Vec<(&'static str, String)> {
        Vec::new()
    }
}

fn answer(turn: &Turn, request: &RequestView, stem: &str, parts: Vec<Value>) -> Value {
    json!({
        "candidates": [{ "content": { "parts": parts, "role": "model" }, "index": 0 }],
        "modelVersion": request.model,
        "responseId": turn.message_id.clone().unwrap_or_else(|| format!("resp_{stem}")),
    })
}

/// Only the last event says why the model stops and what was used.
fn finish(answer: &mut Value, turn: &Turn) {
    answer["candidates"][0]["finishReason"] = finish_reason(turn).into();
    answer["usageMetadata"] = usage(&turn.usage);
}

fn finish_reason(turn: &Turn) -> String {
    let word = match turn.stop_reason.as_deref() {
        None | Some("end_turn" | "tool_use" | "stop_sequence" | "pause_turn") => "STOP",
        Some("max_tokens" | "max_output_tokens" | "model_context_window_exceeded") => "MAX_TOKENS",
        Some("refusal" | "content_filter") => "SAFETY",
        Some(own) => own,
    };
    word.to_owned()
}

fn text_part(text: &str) -> Value {
    json!({ "text": text })
}

fn thought(text: &str) -> Value {
    json!({ "text": text, "thought": true })
}

/// A call comes whole, in streams too.
fn call(name: &str, input: &Value, id: Option<String>) -> Value {
    let mut call = json!({ "name": name, "args": input });
    if let Some(id) = id {
        call["id"] = id.into();
    }
    json!({ "functionCall": call })
}

/// The prompt includes the cached tokens, and the candidates leave out the thoughts, unlike in the scenario.
fn usage(usage: &Usage) -> Value {
    let prompt = usage.input_tokens + usage.cache_read_tokens + usage.cache_creation_tokens;
    json!({
        "promptTokenCount": prompt,
        "cachedContentTokenCount": usage.cache_read_tokens,
        "candidatesTokenCount": usage.output_tokens.saturating_sub(usage.reasoning_tokens),
        "thoughtsTokenCount": usage.reasoning_tokens,
        "totalTokenCount": prompt + usage.output_tokens,
    })
}

fn error(status: u16, kind: Option<&str>, message: &str) -> Value {
    let of_kind = kind.map(|kind| {
        let known = ERRORS.iter().find(|(word, _, _)| *word == kind);
        known.map_or_else(|| kind.to_owned(), |(_, _, own)| (*own).to_owned())
    });
    let of_status = || ERRORS.iter().find(|(_, known, _)| *known == status);
    let usual =
        || of_status().map_or(if status < 500 { "INVALID_ARGUMENT" } else { "INTERNAL" }, |row| row.2);
    let word = of_kind.unwrap_or_else(|| usual().to_owned());
    json!({ "error": { "code": status, "message": message, "status": word } })
}

/// Lines end as the vendor ends them.
fn frame(value: &Value) -> String {
    format!("data: {}\r\n\r\n", text_of(value))
}

#[cfg(test)]
mod tests;
