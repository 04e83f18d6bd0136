//! From the vendor's words for what failed to a typed error: its status and its own code first, its words last.
//! How an answer that did not fail ended is left to `outcome.rs`.

use std::time::Duration;

use inspan_protocol::{AgentError, ErrorCode, Timestamp, classify_status};
use reqwest::StatusCode;
use reqwest::header::HeaderMap;

use super::wire;
use crate::kind::Kind;

/// The buckets whose fill the vendor tells.
const BUCKETS: [&str; 4] = ["requests", "tokens", "input-tokens", "output-tokens"];

/// The error for an `error` event within a stream, which comes after a status that said success.
pub(super) fn within(failure: wire::Failure) -> AgentError {
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

/// The error for an answer whose status is one.
pub(super) fn answered(status: StatusCode, headers: &HeaderMap, body: &[u8]) -> AgentError {
    if status.is_redirection() {
        let message = format!(
            "the server sends the request elsewhere (status {}), where the key must not go; check ANTHROPIC_BASE_URL",
            status.as_u16()
        );
        return AgentError::new(ErrorCode::Protocol, message)
            .kind("redirect")
            .with("status", status.as_u16());
    }
    let failure: Option<wire::Failure> = serde_json::from_slice(body).ok();
    let (kind, words, request) = match failure {
        Some(failure) => (failure.error.kind, failure.error.message.unwrap_or_default(), failure.request_id),
        None => (None, page(body), None),
    };
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).map(str::trim);
    let request = text("request-id").map(str::to_owned).or(request);
    let mut error = match classify_status(status.as_u16(), kind.as_deref(), &words) {
        Some(code) => AgentError::new(code, sentence(code, &words)),
        None => {
            let message = format!("the server answers with the status {}", status.as_u16());
            AgentError::new(ErrorCode::Protocol, message)
        }
    };
    error = error.with("status", status.as_u16());
    if let Some(kind) = kind {
        error = error.with("vendorError", kind);
    }
    if let Some(request) = request {
        error = error.with("requestId", request);
    }
    if error.is_retryable() {
        error.retry_after = wait(&text);
    }
    if error.code == ErrorCode::RateLimited && text("anthropic-ratelimit-unified-status") == Some("rejected")
    {
        let seconds =
            text("anthropic-ratelimit-unified-reset").and_then(|seconds| seconds.parse::<i64>().ok());
        error.resets_at = seconds.map(|seconds| Timestamp::from_millis(seconds.saturating_mul(1000)));
    }
    limit(error, &words)
}

/// A limit that the account has set itself, or its plan has, comes as a bad request: only its words tell it, and its
/// end.
fn limit(mut error: AgentError, words: &str) -> AgentError {
    let Some((_, rest)) = words.split_once("You will regain access on ") else { return error };
    error.code = ErrorCode::RateLimited;
    error.message = sentence(error.code, words);
    error.resets_at = rest
        .split_once(" at ")
        .and_then(|(day, time)| format!("{day}T{}:00Z", time.split(' ').next()?).parse().ok());
    error
}

/// How long the vendor asks to wait: what it says itself, else until the last of the empty buckets is full again. No
/// clock but the server's own is looked at.
fn wait<'a>(text: &impl Fn(&str) -> Option<&'a str>) -> Option<Duration> {
    let number = |name: &str| text(name)?.parse::<f64>().ok().filter(|number| *number >= 0.0);
    let said = number("retry-after-ms").map(|ms| ms / 1000.0).or_else(|| number("retry-after"));
    if let Some(said) = said {
        return Duration::try_from_secs_f64(said).ok();
    }
    let now = text("date").and_then(http_date)?;
    let moments = BUCKETS.iter().filter_map(|bucket| {
        let empty = text(&format!("anthropic-ratelimit-{bucket}-remaining"))? == "0";
        let full: Timestamp = text(&format!("anthropic-ratelimit-{bucket}-reset"))?.parse().ok()?;
        empty.then(|| full.since(now))
    });
    moments.max()
}

/// The one form of a date that servers send: `Sun, 06 Nov 1994 08:49:37 GMT`.
fn http_date(text: &str) -> Option<Timestamp> {
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let parts: Vec<&str> = text.split(' ').collect();
    let [_, day, month, year, time, "GMT"] = parts[..] else { return None };
    let month = MONTHS.iter().position(|name| *name == month)? + 1;
    format!("{year}-{month:02}-{day}T{time}Z").parse().ok()
}

/// The words of an answer that has no error in the vendor's form.
fn page(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(body);
    let text = text.trim();
    if text.is_empty() {
        "the server gives no reason".to_owned()
    } else if text.starts_with('<') {
        "the server answers with a page".to_owned()
    } else {
        text.lines().next().unwrap_or_default().to_owned()
    }
}

fn sentence(code: ErrorCode, words: &str) -> String {
    let lead = match code {
        ErrorCode::Auth => "the key is not accepted",
        ErrorCode::Billing => "the account cannot pay",
        ErrorCode::RateLimited => "too many requests or a usage limit",
        ErrorCode::Overloaded => "the vendor's server failed",
        ErrorCode::ModelNotFound => "no such model",
        ErrorCode::ContextLength => "the conversation is too long for the model",
        ErrorCode::Timeout => "the vendor did not answer in time",
        ErrorCode::InvalidRequest => "the vendor refused the request",
        _ => "the turn failed",
    };
    let words: String = words.lines().next().unwrap_or_default().trim().chars().take(500).collect();
    if words.is_empty() { lead.to_owned() } else { format!("{lead}: {words}") }
}

#[cfg(test)]
mod tests;
