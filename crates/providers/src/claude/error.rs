//! From the program's own words for how a turn ended, and from how it exited, to an outcome or a typed error.
//! Neither `subtype` nor the exit code distinguishes success from failure: every failed request says `success`.

use inspan_protocol::{
    AgentError, ErrorCode, ErrorKind, StopReason, Timestamp, classify_status, classify_text,
};

use super::decode::ClaudeTurnEnd;
use crate::error::{in_use, not_found, sentence};
use crate::moment::{lifted_at, regained};
use crate::output::{PermissionDenial, TurnOutput};
use crate::program::exit::last_line;
use crate::program::{self, Cancelled};

impl program::TurnEnd for ClaudeTurnEnd {
    fn judge(&self, _: Cancelled) -> Result<StopReason, AgentError> {
        judge(self)
    }

    fn take_denials(&mut self) -> Vec<PermissionDenial> {
        std::mem::take(&mut self.output.permission_denials)
    }

    fn output(self, reason: StopReason) -> TurnOutput {
        self.output.ended(reason, self.full_text)
    }
}

/// Judges the end of a turn.
///
/// | what the program says | outcome |
/// |---|---|
/// | not an error, and the last message broke off | `NETWORK` |
/// | not an error | `complete`, `maxTokens` by its stop reason, refusal as `REFUSED` |
/// | `error_max_turns` | output with `maxTurns` |
/// | `terminal_reason` aborted_… | output with `aborted` |
/// | `max_output_tokens` | output with `maxTokens`; the full context as `CONTEXT_LENGTH` |
/// | stop reason refusal | `REFUSED` |
/// | `error_max_budget_usd` | `BILLING`, kind `maxBudget` |
/// | `error_max_structured_output_retries` | `OUTPUT_INVALID`, kind `structuredOutput` |
/// | unknown session | `INVALID_REQUEST`, kind `sessionNotFound` |
/// | anything else | by the program's error word, then the HTTP status, then the text |
fn judge(end: &ClaudeTurnEnd) -> Result<StopReason, AgentError> {
    let stop = end.stop_reason.as_deref();
    if stop == Some("refusal") {
        return Err(error(ErrorCode::Refused, "the model refused", end));
    }
    if end.broke_off {
        return Err(AgentError::new(
            ErrorCode::Network,
            "the connection broke off before the model's answer was complete",
        ));
    }
    if !end.is_error {
        return Ok(if stop == Some("max_tokens") { StopReason::MaxTokens } else { StopReason::Complete });
    }
    match (end.subtype.as_str(), end.terminal_reason.as_deref()) {
        ("error_max_turns", _) | (_, Some("max_turns")) => return Ok(StopReason::MaxTurns),
        (_, Some("aborted_streaming" | "aborted_tools")) => return Ok(StopReason::Aborted),
        ("error_max_budget_usd", _) => {
            return Err(error(ErrorCode::Billing, "the budget of the call is spent", end)
                .with_kind(ErrorKind::MaxBudget));
        }
        ("error_max_structured_output_retries", _) => {
            let lead = "the model gave no output that fits the schema";
            return Err(error(ErrorCode::OutputInvalid, lead, end).with_kind(ErrorKind::StructuredOutput));
        }
        _ => {}
    }
    if end.error.as_deref() == Some("max_output_tokens") {
        let full =
            stop == Some("model_context_window_exceeded") || end.output.text.contains("context window");
        if !full {
            return Ok(StopReason::MaxTokens);
        }
    }
    if is_unknown_session(&end.output.text) {
        let error = error(ErrorCode::InvalidRequest, "no such conversation", end);
        return Err(error.with_kind(ErrorKind::SessionNotFound));
    }
    let code = code(end);
    Err(error(code, lead(code), end))
}

/// The code of a failed turn.
fn code(end: &ClaudeTurnEnd) -> ErrorCode {
    if is_usage_limit(&end.output.text) {
        return ErrorCode::RateLimited;
    }
    let by_status = || end.status.and_then(|status| classify_status(status, None, &end.output.text));
    match end.error.as_deref() {
        Some("authentication_failed" | "oauth_org_not_allowed") => ErrorCode::Auth,
        Some("billing_error") => ErrorCode::Billing,
        Some("rate_limit") => ErrorCode::RateLimited,
        Some("overloaded") => ErrorCode::Overloaded,
        Some("model_not_found") => ErrorCode::ModelNotFound,
        Some("max_output_tokens") => ErrorCode::ContextLength,
        Some("invalid_request") if end.terminal_reason.as_deref() == Some("prompt_too_long") => {
            ErrorCode::ContextLength
        }
        Some("invalid_request") => by_status().unwrap_or(ErrorCode::InvalidRequest),
        // Without a status the server never answered.
        Some("server_error") => by_status().unwrap_or_else(|| match classify_text(&end.output.text) {
            ErrorCode::Timeout => ErrorCode::Timeout,
            _ => ErrorCode::Network,
        }),
        _ => by_status().unwrap_or_else(|| classify_text(&end.output.text)),
    }
}

fn lead(code: ErrorCode) -> &'static str {
    match code {
        ErrorCode::Auth => {
            "no key or login is accepted (log in by running `claude`, or set ANTHROPIC_API_KEY)"
        }
        code => crate::error::lead(code),
    }
}

fn error(code: ErrorCode, lead: &str, end: &ClaudeTurnEnd) -> AgentError {
    let mut error = AgentError::new(code, sentence(lead, &end.output.text))
        .with("vendorError", end.error.as_deref())
        .with("status", end.status)
        .with("terminalReason", end.terminal_reason.as_deref())
        .with("stopReason", end.stop_reason.as_deref());
    if code == ErrorCode::RateLimited {
        error.resets_at = end.resets_at.or_else(|| reset_in(&end.output.text));
    }
    error
}

fn is_unknown_session(text: &str) -> bool {
    let words = ["No conversation found with session ID", "No message found with message.uuid"];
    words.iter().any(|words| text.starts_with(words)) || text.contains("requires a valid session ID")
}

/// The words for the limit of a subscription, which comes without an error word in some versions, or for that of an API account.
fn is_usage_limit(text: &str) -> bool {
    if regained(text).is_some() {
        return true;
    }
    let text = text.to_lowercase();
    ["hit your limit", "usage limit reached", "hit your session limit", "hit your weekly limit"]
        .iter()
        .any(|words| text.contains(words))
}

/// The moment in `…limit reached|1767780000`, or `You will regain access on 2026-12-01 at 00:00 UTC.`. A wall-clock time such as
/// `resets 3pm` names no zone and is no moment.
fn reset_in(text: &str) -> Option<Timestamp> {
    if let Some(moment) = regained(text) {
        return moment;
    }
    let (_, rest) = text.split_once('|')?;
    let digits = rest.trim().split(|c: char| !c.is_ascii_digit()).next()?;
    let seconds: i64 = digits.parse().ok()?;
    lifted_at(seconds).filter(|_| digits.len() >= 10)
}

/// The error that these words on stderr mean.
pub(super) fn explain_exit(stderr: &str) -> Option<AgentError> {
    let last = last_line(stderr);
    if stderr.contains("is already in use") && stderr.contains("Session ID") {
        return Some(in_use(&last));
    }
    if is_unknown_session(stderr) {
        return Some(not_found(last));
    }
    if last.contains("unknown option") || last.contains("cannot be used with root") {
        let message = format!("the program does not take these options: {last}");
        return Some(AgentError::new(ErrorCode::ConfigInvalid, message).with_kind(ErrorKind::OptionRefused));
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::exit::{Exit, exited};

    fn code_of(end: ClaudeTurnEnd) -> (ErrorCode, Option<Timestamp>) {
        match judge(&ClaudeTurnEnd { is_error: true, subtype: "success".to_owned(), ..end }) {
            Err(error) => (error.code, error.resets_at),
            Ok(reason) => panic!("an output with {reason:?}"),
        }
    }

    #[test]
    fn usage_limits_are_recognised_by_their_words() {
        let text = |text: &str| ClaudeTurnEnd {
            output: TurnOutput { text: text.to_owned(), ..TurnOutput::default() },
            ..ClaudeTurnEnd::default()
        };
        let moment = Timestamp::from_millis(1_767_780_000_000);
        let rows = [
            (text("You've hit your limit · resets 3pm (Europe/Berlin)"), None),
            (
                text("Claude AI usage limit reached|1767780000"),
                Some(moment + std::time::Duration::from_secs(5)),
            ),
            (
                ClaudeTurnEnd {
                    resets_at: Some(moment),
                    ..text("You've hit your weekly limit · resets Oct 9")
                },
                Some(moment),
            ),
            (
                ClaudeTurnEnd {
                    error: Some("invalid_request".to_owned()),
                    status: Some(400),
                    ..text(
                        "API Error: 400 You have reached your specified API usage limits. You will regain access on 2026-01-07 at 10:00 UTC.",
                    )
                },
                Some(moment),
            ),
            (
                ClaudeTurnEnd {
                    error: Some("rate_limit".to_owned()),
                    status: Some(429),
                    ..text("slow down")
                },
                None,
            ),
        ];
        for (end, resets_at) in rows {
            let name = end.output.text.clone();
            assert_eq!(code_of(end), (ErrorCode::RateLimited, resets_at), "{name}");
        }
    }

    #[test]
    fn a_death_is_explained_by_stderr() {
        let exit = Exit { code: Some(1), signal: None };
        let rows = [
            ("Error: Session ID 1 is already in use.\n", ErrorCode::InvalidRequest, "sessionBusy"),
            ("No conversation found with session ID: 1", ErrorCode::InvalidRequest, "sessionNotFound"),
            ("error: unknown option '--x'", ErrorCode::ConfigInvalid, "optionRefused"),
            ("Segmentation fault", ErrorCode::Process, "processDied"),
            ("", ErrorCode::Process, "processDied"),
        ];
        let seen = rows.map(|(stderr, ..)| {
            let error = exited(exit, stderr, |_, stderr| explain_exit(stderr));
            (stderr, error.code, error.detail.unwrap()["kind"].as_str().unwrap().to_owned())
        });
        assert_eq!(seen, rows.map(|(stderr, code, kind)| (stderr, code, kind.to_owned())));
    }
}
