//! From the program's own words for how a turn ended, and from how it exited, to an outcome or a typed error.

use std::time::Duration;

use inspan_protocol::{
    AgentError, ErrorCode, ErrorKind, StopReason, Timestamp, classify_status, classify_text,
};
use inspan_transport::retry_after;
use serde::Deserialize;

use super::decode::OpenCodeTurnEnd;
use super::wire::{FailureData, OpenCodeFailure};
use crate::error::sentence;
use crate::output::TurnOutput;
use crate::program::exit::last_line;
use crate::program::{self, Cancelled};

impl program::TurnEnd for OpenCodeTurnEnd {
    fn judge(&self, cancelled: Cancelled) -> Result<StopReason, AgentError> {
        match judge(self)? {
            // A turn whose last message calls tools was to continue.
            StopReason::Complete if cancelled == Cancelled::Yes && !is_whole(self) => Ok(StopReason::Aborted),
            reason => Ok(reason),
        }
    }

    fn output(self, reason: StopReason) -> TurnOutput {
        // A request that was under way has no price.
        let is_priced = match reason {
            StopReason::Aborted => false,
            // The program may have asked the model again before it was stopped.
            StopReason::MaxTurns => self.finish.is_some() && self.error.is_none(),
            _ => true,
        };
        let mut output = self.output.ended(reason, self.full_text);
        output.cost_usd = output.cost_usd.filter(|_| is_priced);
        if let (true, Some(structured)) = (output.text.is_empty(), &output.structured_output) {
            output.text = structured.to_string();
        }
        output
    }
}

/// Whether the last message is all that there was to say.
fn is_whole(end: &OpenCodeTurnEnd) -> bool {
    end.output.structured_output.is_some()
        || end.finish.as_deref().is_some_and(|finish| finish != "tool-calls")
}

/// Judges the end of a turn.
///
/// | what the program says | outcome |
/// |---|---|
/// | no error | `complete`; `maxTokens` where the last message was cut off (`length`) |
/// | `MessageAbortedError` | output with `aborted` |
/// | `MessageOutputLengthError` | output with `maxTokens` |
/// | `StructuredOutputError` | output without the structured output, which the engine requests again |
/// | `ContentFilterError`, or a message that ended so | `REFUSED` |
/// | `ContextOverflowError` | `CONTEXT_LENGTH` |
/// | `ProviderAuthError` | `AUTH` |
/// | `APIError` | by the HTTP status, the vendor's own code and its words |
/// | `UnknownError` | by its words; an unknown model is `MODEL_NOT_FOUND` |
fn judge(end: &OpenCodeTurnEnd) -> Result<StopReason, AgentError> {
    let by_finish = match end.finish.as_deref() {
        Some("length") => StopReason::MaxTokens,
        Some("content-filter") if end.error.is_none() => {
            return Err(AgentError::new(ErrorCode::Refused, lead(ErrorCode::Refused)));
        }
        _ => StopReason::Complete,
    };
    let Some(failure) = &end.error else { return Ok(by_finish) };
    match failure.name.as_str() {
        "MessageAbortedError" => Ok(StopReason::Aborted),
        "MessageOutputLengthError" => Ok(StopReason::MaxTokens),
        "StructuredOutputError" => Ok(by_finish),
        _ => Err(failed(failure)),
    }
}

fn failed(failure: &OpenCodeFailure) -> AgentError {
    let words = failure.data.message.as_deref().unwrap_or_default();
    let code = match failure.name.as_str() {
        "ProviderAuthError" => ErrorCode::Auth,
        "ContextOverflowError" => ErrorCode::ContextLength,
        "ContentFilterError" => ErrorCode::Refused,
        "APIError" => api(&failure.data, words),
        _ if words.contains("Model not found") || words.contains("ModelNotFound") => ErrorCode::ModelNotFound,
        _ if words.contains("Agent not found") || words.contains("agent not found") => {
            ErrorCode::ConfigInvalid
        }
        // A denied `doom_loop` ends its turn.
        _ if words.contains("The user rejected permission") => ErrorCode::ToolDenied,
        _ => classify_text(words),
    };
    let mut error = AgentError::new(code, sentence(lead(code), words))
        .with("vendorError", failure.name.as_str())
        .with("status", failure.data.status_code);
    if error.is_retryable() {
        error.retry_after = wait(&failure.data);
    }
    error
}

fn api(data: &FailureData, words: &str) -> ErrorCode {
    /// The vendors' own form of an error, as far as it holds their code.
    #[derive(Deserialize)]
    struct OpenCodeErrorBody {
        error: Words,
    }
    #[derive(Deserialize)]
    struct Words {
        #[serde(rename = "type")]
        kind: Option<String>,
        code: Option<serde_json::Value>,
    }
    let body =
        data.response_body.as_deref().and_then(|body| serde_json::from_str::<OpenCodeErrorBody>(body).ok());
    let own = body.and_then(|body| {
        let code = body.error.code.and_then(|code| code.as_str().map(str::to_owned));
        code.or(body.error.kind)
    });
    match data.status_code.and_then(|status| classify_status(status, own.as_deref(), words)) {
        Some(code) => code,
        // Without a status the vendor never answered.
        None => match classify_text(words) {
            ErrorCode::Aborted => ErrorCode::Network,
            code => code,
        },
    }
}

/// How long the vendor asks to wait.
fn wait(data: &FailureData) -> Option<Duration> {
    let headers = &data.response_headers;
    retry_after(&|name| Some(headers.iter().find(|(key, _)| key.eq_ignore_ascii_case(name))?.1.as_str()))
}

/// The longest that the program waits before its first retry unless the vendor requests more.
const OWN_WAIT: Duration = Duration::from_millis(2600);

/// The error for a request that the program would try again by itself. It reports neither the status nor the vendor's
/// code then, so that the words are all there is.
pub(super) fn retrying(message: &str, reason: Option<&str>, next: Option<i64>, now: Timestamp) -> AgentError {
    let wait = next.map(|next| Timestamp::from_millis(next).since(now));
    // The vendor requested whole seconds, of which some milliseconds have passed.
    let asked = wait
        .filter(|wait| *wait > OWN_WAIT)
        .map(|wait| Duration::from_secs(wait.as_secs_f64().ceil() as u64));
    let text = message.to_lowercase();
    let any = |words: &[&str]| words.iter().any(|word| text.contains(word));
    let code = if reason.is_some() || any(&["rate limit", "rate_limit", "usage limit", "too many requests"]) {
        ErrorCode::RateLimited
    } else if text.contains("json parsing") {
        ErrorCode::Protocol
    } else if any(&["overloaded", "internal", "server error", "unavailable"]) {
        ErrorCode::Overloaded
    } else if any(&["connect", "socket", "network", "fetch", "econn", "reset", "terminated", "getaddrinfo"]) {
        ErrorCode::Network
    } else if any(&["timeout", "timed out"]) {
        ErrorCode::Timeout
    } else if asked.is_some() {
        ErrorCode::RateLimited
    } else {
        // What is left are the vendor's words for its own fault.
        ErrorCode::Overloaded
    };
    let mut error = AgentError::new(code, sentence(lead(code), message)).with_retry_after(asked);
    if let Some(reason) = reason {
        error = error.with("vendorError", reason);
        error.resets_at = next.map(Timestamp::from_millis);
    }
    error
}

/// The error for a conversation that stays too long however often the program shortens it.
pub(super) fn overflow(failure: &OpenCodeFailure) -> AgentError {
    failed(failure).with("shortened", true)
}

/// The error for a response of the server whose status is one.
pub(super) fn refused(what: &str, status: u16, body: &[u8]) -> AgentError {
    let failure: Option<OpenCodeFailure> = serde_json::from_slice(body).ok();
    let words = failure.and_then(|failure| failure.data.message).unwrap_or_default();
    let code = match status {
        401 | 403 => ErrorCode::Protocol,
        400..500 => ErrorCode::InvalidRequest,
        _ => ErrorCode::Protocol,
    };
    let lead = format!("the program's server refused to {what} (status {status})");
    AgentError::new(code, sentence(&lead, &words)).with("status", status)
}

/// The error that these words on stderr mean.
pub(super) fn explain_exit(stderr: &str) -> Option<AgentError> {
    let configuration = ["Configuration is invalid", "ConfigInvalidError"];
    configuration.iter().any(|words| stderr.contains(words)).then(|| {
        let message = format!("the program does not take its configuration: {}", last_line(stderr));
        AgentError::new(ErrorCode::ConfigInvalid, message).with_kind(ErrorKind::Configuration)
    })
}

fn lead(code: ErrorCode) -> &'static str {
    match code {
        ErrorCode::Auth => "no key or login is accepted (log in with `opencode auth login`)",
        ErrorCode::Refused => "the model refused",
        code => crate::error::lead(code),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::TurnEnd as _;

    #[test]
    fn the_price_of_a_turn_that_is_cut_short_is_unknown() {
        let output = TurnOutput { cost_usd: Some(0.5), ..TurnOutput::default() };
        let begun = OpenCodeTurnEnd { output, ..OpenCodeTurnEnd::default() };
        let error = OpenCodeFailure { name: "MessageAbortedError".to_owned(), ..OpenCodeFailure::default() };
        let ended = OpenCodeTurnEnd { finish: Some("tool-calls".to_owned()), ..begun.clone() };
        let aborted = OpenCodeTurnEnd { error: Some(error), ..ended.clone() };
        let rows = [
            (&begun, StopReason::Complete, Some(0.5)),
            (&begun, StopReason::Aborted, None),
            (&ended, StopReason::MaxTurns, Some(0.5)),
            // Another message had begun.
            (&begun, StopReason::MaxTurns, None),
            (&aborted, StopReason::MaxTurns, None),
        ];
        for (end, reason, expected) in rows {
            assert_eq!(end.clone().output(reason).cost_usd, expected, "{reason:?} {end:?}");
        }
    }

    #[test]
    fn words_tell_what_the_program_would_try_again() {
        let now = Timestamp::from_millis(1_000_000);
        let in_ms = |ms: i64| Some(1_000_000 + ms);
        let rows = [
            ("Provider is overloaded", None, in_ms(2100), ErrorCode::Overloaded, None),
            ("internal", None, in_ms(2100), ErrorCode::Overloaded, None),
            ("Too Many Requests", None, in_ms(2100), ErrorCode::RateLimited, None),
            ("slow down", None, in_ms(6997), ErrorCode::RateLimited, Some(7)),
            ("slow down", None, in_ms(2400), ErrorCode::Overloaded, None),
            ("Connection reset by server", None, in_ms(2100), ErrorCode::Network, None),
            ("JSON parsing failed: Text: {", None, in_ms(2100), ErrorCode::Protocol, None),
            (
                "Unable to connect. Is the computer able to access the url?",
                None,
                None,
                ErrorCode::Network,
                None,
            ),
            ("The operation timed out.", None, None, ErrorCode::Timeout, None),
            ("Free usage exceeded", Some("free_tier_limit"), in_ms(9000), ErrorCode::RateLimited, Some(9)),
        ];
        for (message, reason, next, code, wait) in rows {
            let error = retrying(message, reason, next, now);
            assert_eq!((error.code, error.retry_after.map(|wait| wait.as_secs())), (code, wait), "{message}");
        }
    }

    #[test]
    fn a_failure_is_recognised_by_its_name_then_its_status_and_code_and_last_its_words() {
        let failure = |name: &str, status: Option<u16>, message: &str, body: &str| OpenCodeFailure {
            name: name.to_owned(),
            data: FailureData {
                message: Some(message.to_owned()),
                status_code: status,
                response_body: Some(body.to_owned()),
                ..FailureData::default()
            },
        };
        let rows = [
            (failure("APIError", Some(401), "no", ""), ErrorCode::Auth),
            (
                failure("APIError", Some(429), "no", r#"{"error":{"code":"insufficient_quota"}}"#),
                ErrorCode::Billing,
            ),
            (failure("APIError", Some(400), "Your credit balance is too low", ""), ErrorCode::Billing),
            (
                failure("APIError", Some(400), "bad", r#"{"error":{"type":"invalid_request_error"}}"#),
                ErrorCode::InvalidRequest,
            ),
            (failure("APIError", None, "Unable to connect", ""), ErrorCode::Network),
            (failure("ProviderAuthError", None, "", ""), ErrorCode::Auth),
            (failure("ContextOverflowError", None, "", ""), ErrorCode::ContextLength),
            (failure("ContentFilterError", None, "", ""), ErrorCode::Refused),
            (failure("UnknownError", None, "Model not found: a/b.", ""), ErrorCode::ModelNotFound),
        ];
        for (failure, code) in rows {
            let end = OpenCodeTurnEnd { error: Some(failure), ..OpenCodeTurnEnd::default() };
            let error = judge(&end).unwrap_err();
            assert_eq!(error.code, code, "{end:?}");
        }
    }
}
