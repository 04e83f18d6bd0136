//! From the vendor's errors to ours: the status and the vendor's code count first, its message last.

use std::time::Duration;

use inspan_protocol::{AgentError, ErrorCode, Timestamp, classify_status};
use reqwest::StatusCode;
use reqwest::header::HeaderMap;

use super::api::BASE_URL;
use super::wire;
use crate::api::stream::{page, redirected, sentence, status_error};
use crate::moment::{lifted_at, regained};
use inspan_transport::{http_date, retry_after};

/// The buckets whose fill the vendor reports.
const BUCKETS: [&str; 4] = ["requests", "tokens", "input-tokens", "output-tokens"];

/// The error for an `error` event within a stream, which comes after a status of success.
pub(super) fn within(failure: wire::AnthropicError) -> AgentError {
    let kind = failure.error.kind.unwrap_or_default();
    let status = match kind.as_str() {
        "invalid_request_error" => 400,
        _ => 500,
    };
    let words = failure.error.message.unwrap_or_default();
    let code = classify_status(status, Some(&kind), &words).unwrap_or(ErrorCode::Overloaded);
    let error =
        AgentError::new(code, sentence(code, &words)).with("vendorError", kind).with("inStream", true);
    limit(error, &words)
}

/// The error that a response with an error status means.
pub(super) fn response_error(status: StatusCode, headers: &HeaderMap, body: &[u8]) -> AgentError {
    if status.is_redirection() {
        return redirected(status, BASE_URL);
    }
    let failure: Option<wire::AnthropicError> = serde_json::from_slice(body).ok();
    let (kind, words, request) = match failure {
        Some(failure) => (failure.error.kind, failure.error.message.unwrap_or_default(), failure.request_id),
        None => (None, page(body), None),
    };
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).map(str::trim);
    let request = text("request-id").map(str::to_owned).or(request);
    let code = classify_status(status.as_u16(), kind.as_deref(), &words);
    let mut error = status_error(status, code, &words)
        .with("status", status.as_u16())
        .with("vendorError", kind)
        .with("requestId", request);
    if error.is_retryable() {
        error.retry_after = wait(&text);
    }
    if error.code == ErrorCode::RateLimited && text("anthropic-ratelimit-unified-status") == Some("rejected")
    {
        let reset = text("anthropic-ratelimit-unified-reset").and_then(|number| number.parse().ok());
        error.resets_at = reset.and_then(lifted_at);
    }
    limit(error, &words)
}

/// A limit that the account or its plan has set is reported as a bad request: only its message shows the limit and its
/// end.
fn limit(mut error: AgentError, words: &str) -> AgentError {
    let Some(moment) = regained(words) else { return error };
    error.code = ErrorCode::RateLimited;
    error.message = sentence(error.code, words);
    error.resets_at = moment;
    error
}

/// How long the vendor asks to wait, else the time until the last of the empty buckets is full again, by the server's
/// own clock.
fn wait<'a>(text: &impl Fn(&str) -> Option<&'a str>) -> Option<Duration> {
    if let Some(wait) = retry_after(text) {
        return Some(wait);
    }
    let now = text("date").and_then(http_date)?;
    let moments = BUCKETS.iter().filter_map(|bucket| {
        let empty = text(&format!("anthropic-ratelimit-{bucket}-remaining"))? == "0";
        let full: Timestamp = text(&format!("anthropic-ratelimit-{bucket}-reset"))?.parse().ok()?;
        empty.then(|| full.since(now))
    });
    moments.max()
}

#[cfg(test)]
mod tests {
    use super::*;

    type Headers<'a> = &'a [(&'a str, &'a str)];

    fn wait_for(headers: Headers<'_>) -> Option<Duration> {
        wait(&|name: &str| headers.iter().find(|(known, _)| *known == name).map(|(_, value)| *value))
    }

    #[test]
    fn the_servers_own_words_say_how_long_to_wait() {
        let date = ("date", "Sun, 22 Nov 2026 02:00:00 GMT");
        let full = ("anthropic-ratelimit-tokens-reset", "2026-11-22T02:00:42Z");
        let empty = ("anthropic-ratelimit-tokens-remaining", "0");
        let rows: [(Headers<'_>, Option<Duration>); 10] = [
            (&[], None),
            (&[("retry-after", "7")], Some(Duration::from_secs(7))),
            (&[("retry-after-ms", "1500"), ("retry-after", "7")], Some(Duration::from_millis(1500))),
            (&[("retry-after", "soon")], None),
            (&[("retry-after", "-1")], None),
            (&[("retry-after", "1e300")], None),
            (&[date, full, empty], Some(Duration::from_secs(42))),
            (&[full, empty], None),
            (&[date, full, ("anthropic-ratelimit-tokens-remaining", "1")], None),
            (&[("date", "Sun, 22 Nov 2026 02:01:00 GMT"), full, empty], Some(Duration::ZERO)),
        ];
        for (headers, expected) in rows {
            assert_eq!(wait_for(headers), expected, "{headers:?}");
        }
    }
}
