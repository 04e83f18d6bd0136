//! From an agent's own words for how a turn ended to an outcome or a typed error.
//! The code of an error says little: nearly all are `internal error`, and their data says more.

use std::path::Path;

use inspan_protocol::{
    AgentError, ErrorCode, ErrorKind, ProviderSessionId, StopReason, classify_status, classify_text,
};
use serde_json::Value;

use super::decode::AcpTurnEnd;
use super::wire::AuthMethod;
use crate::error::{first_line, sentence};
use crate::instructed;
use crate::json_rpc::{METHOD_NOT_FOUND, RpcError, UNREADABLE};
use crate::output::TurnOutput;
use crate::program::{self, Cancelled};

/// The protocol's code for a missing login.
const AUTH_REQUIRED: i64 = -32000;
/// The protocol's code for what is not there.
const NOT_FOUND: i64 = -32002;
/// The protocol's code for a request that was cancelled.
const CANCELLED: i64 = -32800;
/// JSON-RPC's code for parameters that do not fit.
const INVALID_PARAMS: i64 = -32602;

/// Parts of sentences that replace a status: two of Droid's and one of Qwen Code's.
const SENTENCES: &[(&str, ErrorCode)] = &[
    ("content moderation policy", ErrorCode::Refused),
    ("model was not found", ErrorCode::ModelNotFound),
    ("exceeds the endpoint request-body limit", ErrorCode::ContextLength),
];

impl program::TurnEnd for AcpTurnEnd {
    /// An agent that is cancelled within a request to its model, or between two, may say `end_turn` all the same, so that
    /// the word tells nothing once it was asked to cancel. Without that, the end had arrived before.
    fn judge(&self, _: Cancelled) -> Result<StopReason, AgentError> {
        match judge(self)? {
            StopReason::Complete if self.cancelled => Ok(StopReason::Aborted),
            reason => Ok(reason),
        }
    }

    fn output(self, reason: StopReason) -> TurnOutput {
        let wanted = self.wanted.filter(|_| reason == StopReason::Complete);
        let output = self.output.ended(reason, self.full_text);
        TurnOutput {
            structured_output: wanted.and_then(|wanted| instructed::extract(&output.text, wanted)),
            // The request that was under way has no price.
            cost_usd: output.cost_usd.filter(|_| reason != StopReason::Aborted),
            ..output
        }
    }
}

/// Judges the end of a turn.
///
/// | what the agent says | outcome |
/// |---|---|
/// | `end_turn` | `complete`; output with `aborted` after the agent was asked to cancel |
/// | `max_tokens`, `max_turn_requests`, `cancelled` | output with `maxTokens`, `maxTurns`, `aborted` |
/// | `refusal` | `REFUSED` |
/// | another stop reason | as `end_turn`, with a warning: the turn ended, and the word is newer than we are |
/// | `end_turn` at a denial, again and again | `TOOL_DENIED` |
/// | an error | by its code, then its data, then its words |
fn judge(end: &AcpTurnEnd) -> Result<StopReason, AgentError> {
    if let Some(error) = &end.error {
        let error = refused(error);
        let resets_at = end.resets_at.filter(|_| error.code == ErrorCode::RateLimited);
        return Err(AgentError { resets_at, ..error });
    }
    if end.only_denied {
        let message =
            "the agent ended its turn at every denial of a tool, although it was told to continue without it";
        return Err(AgentError::new(ErrorCode::ToolDenied, message));
    }
    match end.stop_reason.as_deref() {
        Some("max_tokens") => Ok(StopReason::MaxTokens),
        Some("max_turn_requests") => Ok(StopReason::MaxTurns),
        Some("cancelled") => Ok(StopReason::Aborted),
        Some("refusal") => {
            let error = AgentError::new(ErrorCode::Refused, "the model refused");
            Err(error.with("stopReason", "refusal"))
        }
        _ => Ok(StopReason::Complete),
    }
}

/// The error for an answer that is one.
///
/// | what it is | code |
/// |---|---|
/// | -32000 | `AUTH` |
/// | -32800 | `ABORTED` |
/// | data with a word for the error, as of Claude (`errorKind`) or OpenCode (`errorName`) | by the word |
/// | data with a status, or a status in the place of the code, as of Gemini, or in the words of Claude Code | by the status |
/// | -32601, -32700 | `PROTOCOL` |
/// | -32602, -32002 | `INVALID_REQUEST` |
/// | anything else | by the text |
pub(super) fn refused(error: &RpcError) -> AgentError {
    let words = words(error);
    let code = code(error, &words);
    AgentError::new(code, sentence(lead(code), &words))
        .with("rpcCode", error.code)
        .with("vendorError", word(error))
        .with("status", status(error))
}

fn code(error: &RpcError, words: &str) -> ErrorCode {
    match error.code {
        AUTH_REQUIRED => return ErrorCode::Auth,
        CANCELLED => return ErrorCode::Aborted,
        _ => {}
    }
    let by_status = || status(error).and_then(|status| classify_status(status, None, words));
    let by_word = match word(error) {
        Some("authentication_failed" | "oauth_org_not_allowed" | "ProviderAuthError") => {
            Some(ErrorCode::Auth)
        }
        Some("billing_error") => Some(ErrorCode::Billing),
        Some("rate_limit") => Some(ErrorCode::RateLimited),
        Some("overloaded") => Some(ErrorCode::Overloaded),
        Some("model_not_found" | "ProviderModelNotFoundError") => Some(ErrorCode::ModelNotFound),
        Some("max_output_tokens" | "ContextOverflowError" | "MessageOutputLengthError") => {
            Some(ErrorCode::ContextLength)
        }
        Some("MessageAbortedError") => Some(ErrorCode::Aborted),
        Some("invalid_request") => Some(match by_status().unwrap_or_else(|| classify_text(words)) {
            ErrorCode::ContextLength => ErrorCode::ContextLength,
            _ => ErrorCode::InvalidRequest,
        }),
        _ => None,
    };
    let by_sentence = || {
        let known = SENTENCES.iter().find(|(part, _)| words.contains(part));
        known.map(|(_, code)| *code)
    };
    by_word.or_else(by_status).or_else(by_sentence).unwrap_or_else(|| match error.code {
        METHOD_NOT_FOUND | UNREADABLE => ErrorCode::Protocol,
        INVALID_PARAMS | NOT_FOUND => ErrorCode::InvalidRequest,
        _ => classify_text(words),
    })
}

/// The vendor's word for the error.
fn word(error: &RpcError) -> Option<&str> {
    let data = error.data.as_ref()?;
    data["errorKind"].as_str().or_else(|| data["errorName"].as_str())
}

/// The HTTP status behind the error, where the agent reports it.
fn status(error: &RpcError) -> Option<u16> {
    let data = error.data.as_ref();
    let reported = data.and_then(|data| data["statusCode"].as_u64().or_else(|| data["status"].as_u64()));
    let reported = reported.or_else(|| u64::try_from(error.code).ok()).or_else(|| returned(&error.message));
    let reported = reported.or_else(|| quoted(beside(error)?).0)?;
    u16::try_from(reported).ok().filter(|status| (400..600).contains(status))
}

/// The status in the words of Claude Code: `API Error: 500 Internal server error`.
fn returned(words: &str) -> Option<u64> {
    let (_, rest) = words.split_once("API Error: ")?;
    rest.get(..3)?.parse().ok()
}

/// The status and the sentence in what an agent quotes of its vendor's answer: `401 {"error": {"message": …}}` as Droid,
/// `401 sentence` as Qwen, or the body alone as Gemini.
fn quoted(text: &str) -> (Option<u64>, String) {
    let (status, rest) = match text.split_once(' ') {
        Some((status, rest)) if status.len() == 3 => (status.parse().ok(), rest),
        _ => (None, text),
    };
    let rest = if status.is_some() { rest } else { text };
    let body: Option<Value> = serde_json::from_str(rest).ok();
    let sentence =
        body.as_ref().and_then(|body| body.pointer("/error/message").or_else(|| body.get("message")));
    (status, sentence.and_then(Value::as_str).unwrap_or(rest).to_owned())
}

/// The text that comes with the error.
fn beside(error: &RpcError) -> Option<&str> {
    let data = error.data.as_ref()?;
    data.as_str().or_else(|| data["details"].as_str()).filter(|text| !text.trim().is_empty())
}

/// The agent's sentence, and not the page that may follow it. Where a text comes with the error, that says what
/// happened, and the message only that something did.
fn words(error: &RpcError) -> String {
    let reported = error.message.strip_prefix("Internal error").unwrap_or(&error.message);
    let reported = reported.trim_start_matches(':').trim();
    let text = beside(error).unwrap_or(if reported.is_empty() { &error.message } else { reported });
    let (_, text) = quoted(text);
    first_line(&text)
}

fn lead(code: ErrorCode) -> &'static str {
    match code {
        ErrorCode::Auth => "the agent has no login or key that is accepted",
        ErrorCode::Network => "the agent could not ask its model",
        ErrorCode::InvalidRequest => "the request was refused",
        ErrorCode::Billing
        | ErrorCode::RateLimited
        | ErrorCode::Overloaded
        | ErrorCode::ModelNotFound
        | ErrorCode::ContextLength
        | ErrorCode::Timeout => crate::error::lead(code),
        _ => "the agent gave up",
    }
}

/// Says what to do about a missing login.
pub(super) fn log_in(error: AgentError, methods: &[AuthMethod], log_in: &str) -> AgentError {
    if error.code != ErrorCode::Auth {
        return error;
    }
    let ways: Vec<String> = methods
        .iter()
        .map(|method| {
            let name = method.name.as_deref().unwrap_or(&method.id);
            let about = method.description.as_deref().map(|about| format!(": {about}")).unwrap_or_default();
            format!("{name}{about} (`authMethod: {}`)", method.id)
        })
        .collect();
    let mut message = format!("{}; {log_in}", error.message);
    if !ways.is_empty() {
        message.push_str(&format!("; the agent offers {}", ways.join(", ")));
    }
    AgentError { message: message.chars().take(1000).collect(), ..error }
}

/// The error for a conversation that the agent loaded without anything in it. It may know it in another folder than `root`.
pub(super) fn loaded_empty(session: &ProviderSessionId, root: &Path) -> AgentError {
    let root = root.display();
    let message = format!(
        "the agent does not know the conversation {session} in the folder {root}: it loaded an empty one"
    );
    AgentError::new(ErrorCode::InvalidRequest, message).with_kind(ErrorKind::SessionNotFound)
}

/// The error for a conversation that cannot be resumed in the folder `root`. Some agents know it only where it began.
///
/// Agents have no common code for an unknown one, so an unclassified error is taken for that, unless it is an internal one
/// that speaks of nothing of the kind: the same conversation may be there a moment later.
pub(super) fn not_resumed(session: &ProviderSessionId, root: &Path, error: &RpcError) -> AgentError {
    const INTERNAL: i64 = -32603;
    let refused = refused(error);
    let data = error.data.as_ref().map(Value::to_string).unwrap_or_default();
    let said = format!("{} {data}", error.message).to_lowercase();
    let tells = ["session", "conversation", "not found", "no such", "unknown", "resume", "service failure"]
        .iter()
        .any(|word| said.contains(word));
    match refused.code {
        _ if error.code == INTERNAL && !tells => refused,
        ErrorCode::Network | ErrorCode::InvalidRequest | ErrorCode::Protocol => {
            let (root, words) = (root.display(), words(error));
            let message =
                format!("the agent cannot resume the conversation {session} in the folder {root}: {words}");
            let error = AgentError::new(ErrorCode::InvalidRequest, message);
            AgentError { detail: refused.detail, ..error }.with_kind(ErrorKind::SessionNotFound)
        }
        _ => refused,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn error(code: i64, message: &str, data: Value) -> RpcError {
        RpcError { code, message: message.to_owned(), data: (!data.is_null()).then_some(data) }
    }

    #[test]
    fn codes_come_before_data_and_data_before_words() {
        use ErrorCode::*;
        let kind = |kind: &str| json!({ "errorKind": kind });
        let name = |name: &str| json!({ "service": "session", "errorName": name });
        let rows = [
            (error(-32000, "Authentication required", Value::Null), Auth),
            (error(-32800, "Request cancelled", Value::Null), Aborted),
            (error(-32603, "Internal error: API Error: 401 bad key", kind("authentication_failed")), Auth),
            (error(-32603, "Internal error", kind("billing_error")), Billing),
            (error(-32603, "Internal error: slow down", kind("rate_limit")), RateLimited),
            (error(-32603, "Internal error", kind("overloaded")), Overloaded),
            (error(-32603, "Internal error", kind("model_not_found")), ModelNotFound),
            (error(-32603, "Internal error: odd", kind("invalid_request")), InvalidRequest),
            (error(-32603, "Internal error: maximum context length", kind("invalid_request")), ContextLength),
            (error(-32603, "Internal error: no key", name("ProviderAuthError")), Auth),
            (error(-32603, "Internal error: full", name("ContextOverflowError")), ContextLength),
            (error(-32603, "Internal error: bad key", name("APIError")), Network),
            (
                error(-32603, "Internal error", json!({ "errorName": "APIError", "statusCode": 429 })),
                RateLimited,
            ),
            (error(-32603, "Internal error", json!({ "status": 529 })), Overloaded),
            (error(429, "Rate limit exceeded. Try again later.", Value::Null), RateLimited),
            (error(500, "Unknown stream execution error.", Value::Null), Overloaded),
            (error(-32601, "Method not found", Value::Null), Protocol),
            (error(-32602, "Invalid params", Value::Null), InvalidRequest),
            (error(-32002, "Resource not found", Value::Null), InvalidRequest),
            (error(-32603, "Internal error", json!({ "details": "Too many requests" })), RateLimited),
            (error(-32603, "Internal error: fetch failed", Value::Null), Network),
            (error(-32603, "Internal error", json!({ "details": "404 no such model" })), ModelNotFound),
            (error(400, "{\"error\":{\"message\":\"bad\"}}", Value::Null), InvalidRequest),
            (
                error(-32603, "Internal error: Agent error", json!("401 {\"error\":{\"message\":\"no\"}}")),
                Auth,
            ),
            (error(-32603, "Internal error: Agent error", json!("400 {\"message\":\"no\"}")), InvalidRequest),
            (
                error(
                    -32603,
                    "Internal error: Agent error",
                    json!("Requested model was not found on the API provider"),
                ),
                ModelNotFound,
            ),
            (
                error(
                    -32603,
                    "Internal error: Agent error",
                    json!("triggering the model provider's content moderation policy"),
                ),
                Refused,
            ),
            (
                error(
                    -32603,
                    "Internal error: Model request exceeds the endpoint request-body limit (HTTP 413)",
                    Value::Null,
                ),
                ContextLength,
            ),
            (error(0, "", Value::Null), Network),
        ];
        for (given, expected) in rows {
            assert_eq!(refused(&given).code, expected, "{given:?}");
        }
    }

    #[test]
    fn a_text_beside_the_error_says_what_happened() {
        let rows = [
            (json!("401 {\"error\":{\"message\":\"invalid x-api-key\"}}"), "invalid x-api-key"),
            (json!("the model is away"), "the model is away"),
            (json!("401 {\"odd\":1}"), "{\"odd\":1}"),
            (json!({ "details": "404 no such model" }), "no such model"),
            (json!({ "details": "the model is away" }), "the model is away"),
            (json!(" "), "Agent error"),
            (Value::Null, "Agent error"),
        ];
        for (data, expected) in rows {
            assert_eq!(
                words(&error(-32603, "Internal error: Agent error", data.clone())),
                expected,
                "{data}"
            );
        }
    }

    #[test]
    fn a_missing_login_says_what_to_do() {
        let method = AuthMethod {
            id: "opencode-login".to_owned(),
            name: Some("Login with opencode".to_owned()),
            description: Some("Run `opencode auth login` in the terminal".to_owned()),
        };
        let refused = refused(&error(-32000, "Authentication required", Value::Null));
        assert_eq!(
            log_in(refused, &[method], "log it in").message,
            "the agent has no login or key that is accepted: Authentication required; log it in; the agent offers \
             Login with opencode: Run `opencode auth login` in the terminal (`authMethod: opencode-login`)"
        );
        let other = AgentError::new(ErrorCode::Network, "no");
        assert_eq!(log_in(other.clone(), &[], "log it in"), other);
    }

    #[test]
    fn an_unknown_conversation_is_distinguished_from_a_missing_login() {
        let session = ProviderSessionId::from("ses_nope");
        let rows = [
            (
                error(-32603, "Internal error: OpenCode service failure", json!({ "service": "session" })),
                true,
            ),
            (error(-32602, "Invalid session identifier format.", Value::Null), true),
            (error(-32002, "Resource not found: ses_nope", Value::Null), true),
            (
                error(
                    -32603,
                    "Internal error",
                    json!({ "details": "No conversation found with ID ses_nope" }),
                ),
                true,
            ),
            (error(-32603, "Internal error: database is locked", Value::Null), false),
            (error(-32601, "Method not found", Value::Null), true),
            (error(-32000, "Authentication required", Value::Null), false),
            (error(429, "too many requests", Value::Null), false),
        ];
        for (given, unknown) in rows {
            let refused = not_resumed(&session, Path::new("/work"), &given);
            let kind = refused.detail.as_ref().map(|detail| detail["kind"].clone());
            assert_eq!(kind == Some(json!("sessionNotFound")), unknown, "{refused:?}");
        }
    }
}
