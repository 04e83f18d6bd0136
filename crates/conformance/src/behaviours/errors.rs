//! Errors that the server reports by a status: their code, how long to wait, and that there is one request.

use std::collections::BTreeMap;
use std::time::Duration;

use inspan_engine::Recorder;
use inspan_model_server::{HttpError, Turn};
use inspan_protocol::ErrorCode;

use super::answers::WORDS;
use crate::finding::{CheckResult, Deviation, Difference, check_code, check_requests, holds, same};
use crate::target::ConformanceTarget;
use crate::test_case::{TestCase, TurnRequest};
use crate::worker::{PLANTED, no_key_below};

/// A status, and the error that it must become.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StatusError {
    status: u16,
    message: &'static str,
    headers: &'static [(&'static str, &'static str)],
    code: ErrorCode,
    retry_after: Option<Duration>,
}

const fn status(status: u16, message: &'static str, code: ErrorCode) -> StatusError {
    StatusError { status, message, headers: &[], code, retry_after: None }
}

pub(crate) const STATUS_400: StatusError =
    status(400, "messages: this is no message", ErrorCode::InvalidRequest);
pub(crate) const STATUS_401: StatusError = status(401, "the key is not valid", ErrorCode::Auth);
pub(crate) const STATUS_403: StatusError = status(403, "the key may not use this", ErrorCode::Auth);
pub(crate) const STATUS_404: StatusError = status(404, "model: no-such-model", ErrorCode::ModelNotFound);
pub(crate) const STATUS_413: StatusError = status(413, "the request is too large", ErrorCode::ContextLength);
pub(crate) const STATUS_429: StatusError = status(429, "too many of them", ErrorCode::RateLimited);
pub(crate) const STATUS_429_RETRY_AFTER: StatusError =
    StatusError { headers: &[("retry-after", "7")], retry_after: Some(Duration::from_secs(7)), ..STATUS_429 };
pub(crate) const STATUS_500: StatusError = status(500, "something broke", ErrorCode::Overloaded);
pub(crate) const STATUS_529: StatusError = status(529, "Overloaded", ErrorCode::Overloaded);

impl StatusError {
    /// The answer of the server. A second one would be the vendor's own retry.
    pub(crate) fn turn(self) -> Turn {
        let headers = self.headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let http_error = HttpError {
            status: self.status,
            kind: None,
            message: self.message.to_owned(),
            headers: headers.collect::<BTreeMap<_, _>>(),
            body: None,
        };
        Turn { http_error: Some(http_error), ..Turn::default() }
    }
}

pub(crate) async fn check(case: &TestCase, fault: StatusError) -> CheckResult {
    let turn = case.turn(TurnRequest::new(WORDS)).await?;
    let error = turn.error()?;
    check_code(error, fault.code)?;
    same("the requested wait", &error.retry_after, &fault.retry_after)
        .map_err(|finding| finding.deviation(Deviation::NoRetryAfter))?;
    check_requests(case.requests().len(), 1)
}

/// A server that puts the key into its error.
pub(super) fn repeats_the_key(_: &ConformanceTarget) -> Vec<Turn> {
    let http_error = HttpError {
        status: 401,
        kind: None,
        message: format!("invalid x-api-key: {PLANTED} is not valid"),
        headers: BTreeMap::new(),
        body: None,
    };
    vec![Turn { http_error: Some(http_error), ..Turn::default() }, Turn::text("All is well.")]
}

pub(super) async fn key_nowhere(case: &TestCase) -> CheckResult {
    let stored = case.worker().stored();
    let recorder = Recorder::new(stored.join("recordings"))
        .map_err(|error| Difference::from("nothing can be recorded").with(error.to_string()))?;
    let provider = recorder.record(case.worker().provider());
    let turn = case.turn(TurnRequest::new(WORDS)).await?;
    check_code(turn.error()?, ErrorCode::Auth)?;
    for _ in 0..2 {
        // The test case checks the log of the run and its end.
        drop(case.run(&case.hub(), TurnRequest::new(WORDS), provider.clone()).await?);
    }
    holds(stored.join("recordings").read_dir().is_ok_and(|mut files| files.next().is_some()), || {
        "nothing is recorded".to_owned()
    })?;
    no_key_below(&stored)
}
