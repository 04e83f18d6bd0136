//! What the OpenAI formats share: errors, the headers of an answer, the list of models.

use serde_json::{Value, json};

use crate::speech::text_of;
use crate::wire::Complaint;

mod chat;
mod responses;

pub(crate) use self::chat::ChatCompletions;
pub(crate) use self::responses::Responses;

/// When everything was made, in Unix seconds: the first moment of 2025, so that the bytes stay the same.
const CREATED: u64 = 1_735_689_600;

/// What a kind of error is called here. A kind may be given in the scenario's word or in the vendor's code.
struct Named {
    word: &'static str,
    /// Under which the vendor reports it.
    status: u16,
    kind: &'static str,
    code: Option<&'static str>,
}

const fn named(word: &'static str, status: u16, kind: &'static str, code: Option<&'static str>) -> Named {
    Named { word, status, kind, code }
}

/// The usual one of a status comes before others of that status.
const ERRORS: [Named; 14] = [
    named("invalid_request_error", 400, "invalid_request_error", None),
    named("context_length_exceeded", 400, "invalid_request_error", Some("context_length_exceeded")),
    named("previous_response_not_found", 400, "invalid_request_error", Some("previous_response_not_found")),
    named("missing_required_parameter", 400, "invalid_request_error", Some("missing_required_parameter")),
    named("authentication_error", 401, "invalid_request_error", Some("invalid_api_key")),
    named("permission_error", 403, "invalid_request_error", Some("insufficient_permissions")),
    named("not_found_error", 404, "invalid_request_error", Some("model_not_found")),
    named("request_too_large", 413, "invalid_request_error", None),
    named("rate_limit_error", 429, "requests", Some("rate_limit_exceeded")),
    named("billing_error", 429, "insufficient_quota", Some("insufficient_quota")),
    named("api_error", 500, "server_error", Some("server_error")),
    named("overloaded_error", 503, "service_unavailable_error", Some("server_is_overloaded")),
    named("timeout_error", 504, "server_error", Some("server_error")),
    named("overloaded_error", 529, "service_unavailable_error", Some("server_is_overloaded")),
];

fn known(kind: &str) -> Option<&'static Named> {
    ERRORS.iter().find(|named| named.word == kind || named.code == Some(kind))
}

fn usual(status: u16) -> Option<&'static Named> {
    let fallback = if status < 500 { 400 } else { 500 };
    let of = |status: u16| ERRORS.iter().find(|named| named.status == status);
    of(status).or_else(|| of(fallback))
}

/// The error object of this kind, or of this status if no kind is given.
fn error_of(status: u16, kind: Option<&str>, message: &str) -> Value {
    let named = match kind {
        Some(kind) => known(kind),
        None => usual(status),
    };
    let (kind, code) = match (named, kind) {
        (Some(named), _) => (named.kind, named.code),
        // An unknown word is the vendor's own, and may be expected in either place.
        (None, kind) => (kind.unwrap_or("server_error"), kind),
    };
    json!({ "message": message, "type": kind, "param": null, "code": code })
}

pub(crate) fn error_body(status: u16, kind: Option<&str>, message: &str) -> String {
    text_of(&json!({ "error": error_of(status, kind, message) }))
}

fn error_status(kind: &str) -> u16 {
    known(kind).map_or(500, |named| named.status)
}

fn headers(stem: &str) -> Vec<(&'static str, String)> {
    vec![("x-request-id", format!("req_{stem}"))]
}

/// A comment: the vendor has no event that says nothing, and its proxies send comments.
fn ping() -> String {
    ": ping\n\n".to_owned()
}

/// The entry of a model in the list of models.
pub(crate) fn model(id: &str) -> Value {
    json!({ "id": id, "object": "model", "created": CREATED, "owned_by": "inspan" })
}

/// The list of models.
pub(crate) fn models(ids: &[&str]) -> Value {
    json!({ "object": "list", "data": ids.iter().map(|id| model(id)).collect::<Vec<_>>() })
}

/// The user's messages and tool results as they come. Adjacent results answer one turn of the model,
/// and are one message.
#[derive(Debug, Default)]
struct AnsweredResults {
    messages: Vec<String>,
    results: bool,
}

impl AnsweredResults {
    fn message(&mut self, text: String) {
        self.messages.push(text);
        self.results = false;
    }

    fn result(&mut self, text: String) {
        match self.messages.last_mut().filter(|_| self.results) {
            Some(last) => {
                last.push('\n');
                last.push_str(&text);
            }
            None => self.messages.push(text),
        }
        self.results = true;
    }

    /// Something of neither kind is between.
    fn other(&mut self) {
        self.results = false;
    }
}

/// The text of a string, or of a list of parts.
fn plain_text(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        Value::Array(parts) => {
            let texts: Vec<&str> = parts.iter().filter_map(|part| part["text"].as_str()).collect();
            texts.join("\n")
        }
        _ => String::new(),
    }
}

fn missing(name: &str) -> Complaint {
    let message = format!("Missing required parameter: '{name}'.");
    Complaint { kind: Some("missing_required_parameter"), message }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_carry_the_vendors_words_whoever_the_scenario_quotes() {
        let rows = [
            (400, None, "invalid_request_error", None),
            (401, None, "invalid_request_error", Some("invalid_api_key")),
            (418, None, "invalid_request_error", None),
            (429, None, "requests", Some("rate_limit_exceeded")),
            (429, Some("insufficient_quota"), "insufficient_quota", Some("insufficient_quota")),
            (400, Some("context_length_exceeded"), "invalid_request_error", Some("context_length_exceeded")),
            (500, None, "server_error", Some("server_error")),
            (529, None, "service_unavailable_error", Some("server_is_overloaded")),
            (599, None, "server_error", Some("server_error")),
            (500, Some("overloaded_error"), "service_unavailable_error", Some("server_is_overloaded")),
            (400, Some("odd_error"), "odd_error", Some("odd_error")),
        ];
        for (status, word, kind, code) in rows {
            let body: Value = serde_json::from_str(&error_body(status, word, "m")).unwrap();
            let expected = json!({"error": {"message": "m", "type": kind, "param": null, "code": code}});
            assert_eq!(body, expected, "{status} {word:?}");
        }
    }

    #[test]
    fn a_kind_has_its_status() {
        let statuses = ["rate_limit_error", "insufficient_quota", "server_is_overloaded", "odd_error"];
        assert_eq!(statuses.map(error_status), [429, 429, 503, 500]);
    }
}
