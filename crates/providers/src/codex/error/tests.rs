//! Tests of the verdicts beyond what the recorded transcripts show.

use serde_json::json;

use super::*;
use crate::program::exit::exited;

fn error(message: &str, info: Value) -> AgentError {
    let error =
        TurnError { message: message.to_owned(), codex_error_info: Some(info), additional_details: None };
    judge(&CodexTurnEnd { error: Some(error), ..CodexTurnEnd::default() }).unwrap_err()
}

fn verdict(message: &str, info: Value) -> (ErrorCode, Option<String>) {
    let error = error(message, info);
    let kind = error.detail.and_then(|detail| detail["kind"].as_str().map(str::to_owned));
    (error.code, kind)
}

#[test]
fn the_wait_that_the_vendor_asks_for_is_kept() {
    let wait = error("Please try again in 1m26.4s.", json!("rateLimitExceeded")).retry_after;
    assert_eq!(wait, Some(std::time::Duration::from_millis(86_400)));
}

#[test]
fn every_word_of_the_program_has_its_code() {
    let status = |status: Value| json!({ "responseStreamConnectionFailed": { "httpStatusCode": status } });
    let rows = [
        (json!("sessionBudgetExceeded"), ErrorCode::Billing, Some("sessionBudget")),
        (json!("usageLimitExceeded"), ErrorCode::RateLimited, Some("usageLimit")),
        (json!("rateLimitExceeded"), ErrorCode::RateLimited, None),
        (json!("flexUnavailable"), ErrorCode::Overloaded, None),
        (json!("policyCapacityUnavailable"), ErrorCode::Overloaded, None),
        (json!("cyberPolicy"), ErrorCode::Refused, None),
        (json!("misalignmentPolicyViolation"), ErrorCode::Refused, None),
        (json!("inferenceHookDenied"), ErrorCode::Refused, None),
        (json!("tooManyDenials"), ErrorCode::ToolDenied, None),
        (json!("unauthorized"), ErrorCode::Auth, None),
        (json!("badRequest"), ErrorCode::InvalidRequest, None),
        (json!("sandboxError"), ErrorCode::Process, Some("sandbox")),
        (status(json!(503)), ErrorCode::Overloaded, None),
        (status(json!(402)), ErrorCode::Billing, None),
        (status(Value::Null), ErrorCode::Network, None),
        (json!("aNewWord"), ErrorCode::InvalidRequest, None),
        (json!({ "aNewWord": 7 }), ErrorCode::InvalidRequest, None),
        (Value::Null, ErrorCode::InvalidRequest, None),
    ];
    for (info, code, kind) in rows {
        assert_eq!(verdict("it is so", info.clone()), (code, kind.map(str::to_owned)), "{info}");
    }
}

#[test]
fn a_failure_without_a_code_is_recognised_by_its_text() {
    let rows = [
        ("stream disconnected before completion: eof", ErrorCode::Network),
        ("Too many requests", ErrorCode::RateLimited),
        ("Missing environment variable: `MY_KEY`. Ask the admin.", ErrorCode::Auth),
        (r#"{"error":{"message":"too long","code":"context_length_exceeded"}}"#, ErrorCode::ContextLength),
        (
            r#"{"error":{"message":"no","type":"invalid_request_error","code":null}}"#,
            ErrorCode::InvalidRequest,
        ),
        ("", ErrorCode::InvalidRequest),
    ];
    for (message, code) in rows {
        assert_eq!(verdict(message, json!("other")).0, code, "{message}");
    }
}

#[test]
fn a_refused_request_is_recognised_by_its_words() {
    let rows = [
        ("no rollout found for thread id 1", -32600, ErrorCode::InvalidRequest, json!("sessionNotFound")),
        ("invalid session id: too short", -32600, ErrorCode::InvalidRequest, json!("sessionNotFound")),
        ("thread 1 already has an active writer", -32600, ErrorCode::InvalidRequest, json!("sessionBusy")),
        ("Server overloaded; retry later.", -32001, ErrorCode::Overloaded, Value::Null),
        ("unknown model provider", -32600, ErrorCode::ConfigInvalid, Value::Null),
    ];
    for (message, rpc, code, kind) in rows {
        let error = refused("thread/start", &RpcError { code: rpc, message: message.to_owned(), data: None });
        let seen = error.detail.map_or(Value::Null, |detail| detail["kind"].clone());
        assert_eq!((error.code, seen), (code, kind), "{message}");
    }
}

#[test]
fn a_death_is_explained_by_stderr() {
    let exit = |code| Exit { code: Some(code), signal: None };
    let rows = [
        (
            1,
            "Error: built-in providers cannot be overridden\nin `model_providers`\n",
            ErrorCode::ConfigInvalid,
        ),
        (2, "error: unexpected argument '--x' found\n\nFor more information", ErrorCode::ConfigInvalid),
        (101, "thread 'main' panicked", ErrorCode::Process),
        (0, "Error: nothing", ErrorCode::Process),
        (1, "", ErrorCode::Process),
    ];
    for (code, stderr, expected) in rows {
        assert_eq!(exited(exit(code), stderr, explain_exit).code, expected, "{stderr}");
    }
}
