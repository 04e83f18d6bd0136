//! Problem documents (RFC 9457): why a request was not answered, with the codes, sentences and hints that the command
//! line has too.

use axum::{
    Json,
    http::{
        HeaderValue, StatusCode,
        header::{CONTENT_TYPE, WWW_AUTHENTICATE},
    },
    response::{IntoResponse, Response},
};
use inspan_sessions::{SessionError, SessionErrorCode};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

/// The media type of a problem document.
pub(crate) const PROBLEM_JSON: &str = "application/problem+json";

/// Why a request was not answered.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Problem {
    /// `urn:inspan:problem:` and the code.
    #[serde(rename = "type")]
    pub kind: String,
    /// What the code means.
    pub title: &'static str,
    /// The status of the answer.
    pub status: u16,
    /// What went wrong, in one sentence.
    pub detail: Box<str>,
    /// The code that programs rely on.
    pub code: &'static str,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<Box<str>>,
    /// The problems of a flow, each as `inspan check --json` reports it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub diagnostics: Vec<Value>,
}

/// The codes that only this server has: the word, the status, the meaning.
const OWN: &[(&str, u16, &str)] = &[
    ("hostNotAllowed", 403, "the request names a host that this server does not answer for"),
    ("originNotAllowed", 403, "the request comes from a page of another origin"),
    ("crossSite", 403, "the request was sent by another page"),
    ("tokenMissing", 401, "the token is missing or wrong"),
    ("notJson", 415, "the content type is not `application/json`"),
    ("tooLarge", 413, "the body is too large"),
    ("notFound", 404, "there is nothing at this path"),
    ("methodNotAllowed", 405, "the path does not take this method"),
    ("tooManyStreams", 503, "too many event streams or sockets are open"),
    ("timeout", 504, "the answer took too long"),
];

/// Every code of a problem document: the word, the status of the answer, the meaning.
pub fn problem_codes() -> Vec<(&'static str, u16, &'static str)> {
    let shared = SessionErrorCode::ALL.iter().map(|code| (code.word(), status(*code), code.meaning()));
    OWN.iter().copied().chain(shared).collect()
}

fn status(code: SessionErrorCode) -> u16 {
    match code {
        SessionErrorCode::UnknownSession
        | SessionErrorCode::UnknownNode
        | SessionErrorCode::UnknownPrompt
        | SessionErrorCode::UnknownRun
        | SessionErrorCode::UnknownFlow => 404,
        SessionErrorCode::AmbiguousSession
        | SessionErrorCode::AmbiguousPrompt
        | SessionErrorCode::AmbiguousRun
        | SessionErrorCode::SessionExists
        | SessionErrorCode::SessionEnded
        | SessionErrorCode::SessionContinued
        | SessionErrorCode::SessionHeld
        | SessionErrorCode::NotRunning
        | SessionErrorCode::AlreadyAnswered
        | SessionErrorCode::QuestionExpired
        | SessionErrorCode::CommandRefused
        | SessionErrorCode::KeyReused => 409,
        SessionErrorCode::InvalidAnswer | SessionErrorCode::InvalidFlow | SessionErrorCode::InvalidInput => {
            422
        }
        SessionErrorCode::InvalidRequest => 400,
        SessionErrorCode::CannotStart => 501,
        SessionErrorCode::StoreUnavailable => 503,
        SessionErrorCode::NoResponse => 504,
        SessionErrorCode::FlowOfOtherVersion
        | SessionErrorCode::Configuration
        | SessionErrorCode::StoreDamaged
        | SessionErrorCode::Failed => 500,
    }
}

impl Problem {
    /// A problem with one of the known codes.
    pub(crate) fn new(code: &str, detail: impl Into<String>) -> Self {
        let all = problem_codes();
        let known = all.iter().find(|(word, ..)| *word == code);
        debug_assert!(known.is_some(), "no problem has the code {code}");
        let (code, status, title) = known.copied().unwrap_or(("failed", 500, "something failed"));
        Self {
            kind: format!("urn:inspan:problem:{code}"),
            title,
            status,
            detail: detail.into().into_boxed_str(),
            code,
            hint: None,
            diagnostics: Vec::new(),
        }
    }

    /// A request that makes no sense.
    pub(crate) fn invalid(detail: impl Into<String>) -> Self {
        Self::new("invalidRequest", detail)
    }

    #[must_use]
    pub(crate) fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into().into_boxed_str());
        self
    }
}

impl From<SessionError> for Problem {
    fn from(error: SessionError) -> Self {
        let plain = Self::new(error.code.word(), error.message);
        Self { hint: error.hint.map(String::into_boxed_str), diagnostics: error.diagnostics, ..plain }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = (status, Json(self)).into_response();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(PROBLEM_JSON));
        if status == StatusCode::UNAUTHORIZED {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

pub(crate) async fn method_not_allowed() -> Problem {
    Problem::new("methodNotAllowed", "the path does not take this method")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_there_once_with_a_status_of_an_error() {
        let all = problem_codes();
        let words: std::collections::BTreeSet<_> = all.iter().map(|(word, ..)| word).collect();
        assert_eq!(words.len(), all.len());
        assert!(all.iter().all(|(_, status, meaning)| *status >= 400 && !meaning.is_empty()));
    }

    #[test]
    fn the_manual_lists_every_code() {
        let manual = include_str!("../../../docs/server.md");
        let listed: Vec<&str> =
            manual.lines().filter(|line| line.starts_with("| `") && line.matches('|').count() == 4).collect();
        let rows: Vec<String> = problem_codes()
            .into_iter()
            .map(|(code, status, meaning)| format!("| `{code}` | {status} | {meaning} |"))
            .collect();
        assert_eq!(listed, rows);
    }

    #[test]
    fn an_error_of_a_session_keeps_its_code_hint_and_diagnostics() {
        let mut error = SessionError::new(SessionErrorCode::UnknownSession, "no session ID starts with `x`")
            .with_hint("look");
        error.diagnostics = vec![Value::Null];
        let problem = serde_json::to_value(Problem::from(error)).unwrap();
        let expected = serde_json::json!({
            "type": "urn:inspan:problem:unknownSession", "title": "no session has this id", "status": 404,
            "detail": "no session ID starts with `x`", "code": "unknownSession", "hint": "look",
            "diagnostics": [null],
        });
        assert_eq!(problem, expected);
    }
}
