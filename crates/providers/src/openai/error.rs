//! From the vendor's errors to ours: the status and the vendor's code count first, its message last.

use std::time::Duration;

use inspan_protocol::{AgentError, ErrorCode, ErrorKind, classify_status};
use reqwest::StatusCode;
use reqwest::header::HeaderMap;

use super::api::BASE_URL;
use super::wire::{ErrorEvent, FailureWords, OpenAiError};
use crate::api::stream::{page, redirected, sentence, status_error};
use inspan_transport::{duration, retry_after, wait_in};

/// The buckets whose fill the vendor reports.
const BUCKETS: [&str; 2] = ["requests", "tokens"];

impl From<ErrorEvent> for FailureWords {
    fn from(event: ErrorEvent) -> Self {
        let flat = Self { kind: None, code: event.code, message: event.message, param: event.param };
        event.error.unwrap_or(flat)
    }
}

/// The error for one within a stream, which comes after a status of success.
pub(super) fn within(failure: FailureWords) -> AgentError {
    let status = match failure.kind.as_deref().or(failure.word()) {
        Some("invalid_request_error") => 400,
        _ => 500,
    };
    let words = failure.message.clone().unwrap_or_default();
    let code = code(status, &failure).unwrap_or(ErrorCode::Overloaded);
    let mut error =
        with_details(AgentError::new(code, sentence(code, &words)), &failure).with("inStream", true);
    if error.is_retryable() {
        error.retry_after = wait_in(&words);
    }
    error
}

/// The error that a response with an error status means.
pub(super) fn response_error(status: StatusCode, headers: &HeaderMap, body: &[u8]) -> AgentError {
    if status.is_redirection() {
        return redirected(status, BASE_URL);
    }
    let failure: Option<OpenAiError> = serde_json::from_slice(body).ok();
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).map(str::trim);
    let error = match failure {
        // The vendor reports what it does not find in its own form. Another server has no such address.
        None if status == StatusCode::NOT_FOUND => {
            let message = format!("there is no Responses API at the address; check {BASE_URL}");
            AgentError::new(ErrorCode::ConfigInvalid, message).with_kind(ErrorKind::Address)
        }
        failure => {
            let failure = failure.map_or_else(
                || FailureWords { message: Some(page(body)), ..FailureWords::default() },
                |failure| failure.error,
            );
            let words = failure.message.clone().unwrap_or_default();
            let error = status_error(status, code(status.as_u16(), &failure), &words);
            let mut error = with_details(error, &failure);
            if error.is_retryable() {
                error.retry_after = wait(&text).or_else(|| wait_in(&words));
            }
            error
        }
    };
    error.with("status", status.as_u16()).with("requestId", text("x-request-id"))
}

/// Adds the vendor's code and parameter to the details.
fn with_details(error: AgentError, failure: &FailureWords) -> AgentError {
    let error = error.with("vendorError", failure.word()).with("param", failure.param.as_deref());
    match failure.word() {
        Some("previous_response_not_found") => error.with_kind(ErrorKind::SessionNotFound),
        Some("conversation_locked") => error.with_kind(ErrorKind::SessionBusy),
        _ => error,
    }
}

/// The code for an error: by this vendor's own codes, else by those that all vendors share.
fn code(status: u16, failure: &FailureWords) -> Option<ErrorCode> {
    let own = failure.word().and_then(|word| match word {
        "billing_hard_limit_reached" | "billing_not_active" => Some(ErrorCode::Billing),
        "slow_down" => Some(ErrorCode::Overloaded),
        "vector_store_timeout" => Some(ErrorCode::Timeout),
        "string_above_max_length" => Some(ErrorCode::ContextLength),
        "content_filter" => Some(ErrorCode::Refused),
        word if word.ends_with("_policy") || word.ends_with("_policy_violation") => Some(ErrorCode::Refused),
        "invalid_prompt"
        | "previous_response_not_found"
        | "conversation_locked"
        | "data_residency_mismatch"
        | "failed_to_download_image" => Some(ErrorCode::InvalidRequest),
        word if word.contains("image") => Some(ErrorCode::InvalidRequest),
        _ => None,
    });
    let words = failure.message.as_deref().unwrap_or_default();
    // A conversation may be missing as well; only the message shows it.
    let unsaid = status == 404 && failure.word() == Some("invalid_request_error");
    let other = (unsaid && !words.contains("model")).then_some(ErrorCode::InvalidRequest);
    own.or(other).or_else(|| classify_status(status, failure.word(), words))
}

/// How long the vendor asks to wait by its headers, else the time until the last of the empty buckets is full again.
fn wait<'a>(text: &impl Fn(&str) -> Option<&'a str>) -> Option<Duration> {
    retry_after(text).or_else(|| {
        let waits = BUCKETS.iter().filter_map(|bucket| {
            let empty = text(&format!("x-ratelimit-remaining-{bucket}"))? == "0";
            let full = duration(text(&format!("x-ratelimit-reset-{bucket}"))?)?;
            empty.then_some(full)
        });
        waits.max()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_the_last_resort() {
        type Headers<'a> = &'a [(&'a str, &'a str)];
        let empty = ("x-ratelimit-remaining-tokens", "0");
        let rows: [(Headers<'_>, Option<u64>); 6] = [
            (&[], None),
            (&[("retry-after", "7")], Some(7000)),
            (&[("retry-after", "7"), ("retry-after-ms", "20")], Some(20)),
            (&[empty, ("x-ratelimit-reset-tokens", "6m0s")], Some(360_000)),
            (&[("x-ratelimit-remaining-tokens", "1"), ("x-ratelimit-reset-tokens", "6m0s")], None),
            (&[empty, ("x-ratelimit-reset-tokens", "soon")], None),
        ];
        for (headers, expected) in rows {
            let text = |name: &str| headers.iter().find(|(known, _)| *known == name).map(|(_, value)| *value);
            assert_eq!(wait(&text), expected.map(Duration::from_millis), "{headers:?}");
        }
    }
}
