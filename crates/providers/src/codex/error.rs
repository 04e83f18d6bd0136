//! From the program's own words for how a turn failed, from what it answers to a request, and from how it exited, to an
//! outcome or a typed error.

use inspan_protocol::{
    AgentError, ErrorCode, ErrorKind, StopReason, Timestamp, classify_status, classify_text,
};
use inspan_transport::wait_in;
use serde_json::Value;

use super::decode::{CodexTurnEnd, Status};
use super::wire::{AnswerForm, TurnError};
use crate::error::{first_line, in_use, lead, not_found, sentence};
use crate::json_rpc::RpcError;
use crate::output::TurnOutput;
use crate::program::exit::Exit;
use crate::program::{self, Cancelled};

impl program::TurnEnd for CodexTurnEnd {
    fn judge(&self, _: Cancelled) -> Result<StopReason, AgentError> {
        judge(self)
    }

    fn output(self, reason: StopReason) -> TurnOutput {
        // The program passes on what the model wrote, and checks nothing.
        let json = reason == StopReason::Complete && self.answer == AnswerForm::Json;
        let output = self.output.ended(reason, self.full_text);
        TurnOutput {
            structured_output: json.then(|| serde_json::from_str(&output.text).ok()).flatten(),
            ..output
        }
    }
}

/// Judges the end of a turn.
///
/// | what the program says | outcome |
/// |---|---|
/// | completed | `complete`; a message that began and was never completed is `REFUSED` |
/// | interrupted | output with `aborted` |
/// | failed, because the answer was cut at the token limit | output with `maxTokens` |
/// | failed otherwise | by its error word, then the HTTP status, then the text |
fn judge(end: &CodexTurnEnd) -> Result<StopReason, AgentError> {
    match end.status {
        Status::Completed if end.unanswered => {
            Err(AgentError::new(ErrorCode::Refused, "the model refused: it began an answer and gave none"))
        }
        Status::Completed => Ok(StopReason::Complete),
        Status::Interrupted => Ok(StopReason::Aborted),
        Status::Failed => {
            let unknown = TurnError::default();
            let error = end.error.as_ref().unwrap_or(&unknown);
            if error.message.contains("reason: max_output_tokens") {
                return Ok(StopReason::MaxTokens);
            }
            Err(failed(error, end.resets_at))
        }
    }
}

/// The error of a failed turn.
fn failed(error: &TurnError, resets_at: Option<Timestamp>) -> AgentError {
    let info = Info::of(error);
    let text = vendor_text(&error.message);
    let (code, kind) = code(&info, error, &text);
    let mut out = AgentError::new(code, sentence(lead(code), &text))
        .with("vendorError", info.word)
        .with("status", info.status);
    if let Some(kind) = kind {
        out = out.with_kind(kind);
    }
    if code == ErrorCode::RateLimited {
        out.resets_at = resets_at;
        out.retry_after = wait_in(&error.message);
    }
    out
}

/// The program's code for the error, without the status that it may contain.
struct Info<'a> {
    word: Option<&'a str>,
    status: Option<u16>,
}

impl<'a> Info<'a> {
    fn of(error: &'a TurnError) -> Self {
        match &error.codex_error_info {
            Some(Value::String(word)) => Self { word: Some(word), status: None },
            Some(Value::Object(map)) => {
                let first = map.iter().next();
                let status = first.and_then(|(_, fields)| fields["httpStatusCode"].as_u64());
                Self {
                    word: first.map(|(word, _)| word.as_str()),
                    status: status.and_then(|status| status.try_into().ok()),
                }
            }
            _ => Self { word: None, status: None },
        }
    }
}

fn code(info: &Info<'_>, error: &TurnError, text: &str) -> (ErrorCode, Option<ErrorKind>) {
    let plain = |code| (code, None);
    match info.word {
        Some("contextWindowExceeded") => plain(ErrorCode::ContextLength),
        Some("sessionBudgetExceeded") => (ErrorCode::Billing, Some(ErrorKind::SessionBudget)),
        // An account that cannot pay gets the same word as one that has to wait.
        Some("usageLimitExceeded") if error.message.starts_with("Quota exceeded") => {
            plain(ErrorCode::Billing)
        }
        Some("usageLimitExceeded") => (ErrorCode::RateLimited, Some(ErrorKind::UsageLimit)),
        Some("rateLimitExceeded") => plain(ErrorCode::RateLimited),
        Some(
            "flexUnavailable" | "serverOverloaded" | "internalServerError" | "policyCapacityUnavailable",
        ) => plain(ErrorCode::Overloaded),
        Some("modelNotFound") => plain(ErrorCode::ModelNotFound),
        Some("cyberPolicy" | "misalignmentPolicyViolation" | "inferenceHookDenied") => {
            plain(ErrorCode::Refused)
        }
        Some("tooManyDenials") => plain(ErrorCode::ToolDenied),
        Some("unauthorized") => plain(ErrorCode::Auth),
        Some("badRequest" | "threadRollbackFailed") => plain(ErrorCode::InvalidRequest),
        Some("sandboxError") => (ErrorCode::Process, Some(ErrorKind::Sandbox)),
        Some(
            "httpConnectionFailed"
            | "responseStreamConnectionFailed"
            | "responseStreamDisconnected"
            | "responseTooManyFailedAttempts",
        ) => {
            let by_status = info.status.and_then(|status| classify_status(status, None, text));
            plain(by_status.unwrap_or(ErrorCode::Network))
        }
        _ => plain(by_words(error, text)),
    }
}

/// The code of a failure for which the program has no word.
fn by_words(error: &TurnError, text: &str) -> ErrorCode {
    if let Some(body) = vendor_error(&error.message) {
        // The body of an answer with the status 400 comes as it is.
        let code = body["code"].as_str().or_else(|| body["type"].as_str());
        return classify_status(400, code, text).unwrap_or(ErrorCode::InvalidRequest);
    }
    let broken = ["stream disconnected", "Connection failed", "error sending request", "network error"];
    if error.message.contains("reason: content_filter") {
        return ErrorCode::Refused;
    }
    if error.message.contains("idle timeout") {
        return ErrorCode::Timeout;
    }
    // The key of a `model_provider` of the user's own.
    if error.message.starts_with("Missing environment variable") {
        return ErrorCode::Auth;
    }
    if broken.iter().any(|words| error.message.contains(words)) {
        return ErrorCode::Network;
    }
    // A text that says nothing is taken for the network's fault there, and would be tried again for nothing.
    match classify_text(text) {
        ErrorCode::Network => ErrorCode::InvalidRequest,
        code => code,
    }
}

/// The error in the body of a vendor's answer.
fn vendor_error(message: &str) -> Option<Value> {
    let mut body: Value = serde_json::from_str(message).ok()?;
    body.get_mut("error").map(Value::take).filter(Value::is_object)
}

/// The sentence for people.
fn vendor_text(message: &str) -> String {
    let inner = vendor_error(message).and_then(|error| error["message"].as_str().map(str::to_owned));
    inner.unwrap_or_else(|| message.to_owned())
}

/// The error for a request that the program refused.
pub(super) fn refused(method: &str, error: &RpcError) -> AgentError {
    let words = first_line(&error.message);
    if words.contains("no rollout found") || words.contains("invalid session id") {
        return not_found(words);
    }
    if words.contains("already has an active writer") {
        return in_use(&words);
    }
    // What JSON-RPC leaves to the server, this one uses to say that it has too much to do.
    if error.code == -32001 {
        return AgentError::new(ErrorCode::Overloaded, format!("the program is overloaded: {words}"));
    }
    let message = format!("the program refused `{method}`: {words}");
    let code = if method == "turn/start" { ErrorCode::InvalidRequest } else { ErrorCode::ConfigInvalid };
    AgentError::new(code, message).with("rpcCode", error.code)
}

/// The error that an exit and these words on stderr mean.
pub(super) fn explain_exit(exit: Exit, stderr: &str) -> Option<AgentError> {
    // Faults of the configuration are reported in the first line, with advice after it.
    let mut lines = stderr.lines().map(str::trim);
    let cause = lines.find(|line| line.starts_with("Error") || line.starts_with("error:"));
    let cause = cause.filter(|_| exit.code.is_some_and(|code| code > 0))?;
    let message = format!("the program does not take its configuration: {}", first_line(cause));
    Some(AgentError::new(ErrorCode::ConfigInvalid, message).with_kind(ErrorKind::OptionRefused))
}

#[cfg(test)]
mod tests;
