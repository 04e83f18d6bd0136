//! Errors that the server says by a status: their code, how long to wait, and that it is asked once.

use std::collections::BTreeMap;
use std::time::Duration;

use inspan_engine::Recorder;
use inspan_model_server::{HttpError, Turn};
use inspan_protocol::ErrorCode;

use super::answers::WORDS;
use crate::finding::{Deviation, Finding, Proof, check_code, check_requests, holds, same};
use crate::rig::ConformanceTarget;
use crate::scene::{Ask, Scene};
use crate::secret::{self, PLANTED};

/// A status, and the error it must come to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fault {
    status: u16,
    message: &'static str,
    headers: &'static [(&'static str, &'static str)],
    code: ErrorCode,
    retry_after: Option<Duration>,
}

const fn fault(status: u16, message: &'static str, code: ErrorCode) -> Fault {
    Fault { status, message, headers: &[], code, retry_after: None }
}

pub(crate) const STATUS_400: Fault = fault(400, "messages: this is no message", ErrorCode::InvalidRequest);
pub(crate) const STATUS_401: Fault = fault(401, "the key is not valid", ErrorCode::Auth);
pub(crate) const STATUS_403: Fault = fault(403, "the key may not use this", ErrorCode::Auth);
pub(crate) const STATUS_404: Fault = fault(404, "model: no-such-model", ErrorCode::ModelNotFound);
pub(crate) const STATUS_413: Fault = fault(413, "the request is too large", ErrorCode::ContextLength);
pub(crate) const STATUS_429: Fault = fault(429, "too many of them", ErrorCode::RateLimited);
pub(crate) const STATUS_429_RETRY_AFTER: Fault =
    Fault { headers: &[("retry-after", "7")], retry_after: Some(Duration::from_secs(7)), ..STATUS_429 };
pub(crate) const STATUS_500: Fault = fault(500, "something broke", ErrorCode::Overloaded);
pub(crate) const STATUS_529: Fault = fault(529, "Overloaded", ErrorCode::Overloaded);

impl Fault {
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

pub(crate) async fn prove(scene: &Scene, fault: Fault) -> Proof {
    let said = scene.turn(Ask::new(WORDS)).await?;
    let error = said.error()?;
    check_code(error, fault.code)?;
    same("the wait that is asked for", &error.retry_after, &fault.retry_after)
        .map_err(|finding| finding.deviation(Deviation::NoRetryAfter))?;
    check_requests(scene.requests().len(), 1)
}

/// A server that puts the key into its error.
pub(super) fn repeats_the_key(_: &dyn ConformanceTarget) -> Vec<Turn> {
    let http_error = HttpError {
        status: 401,
        kind: None,
        message: format!("invalid x-api-key: {PLANTED} is not valid"),
        headers: BTreeMap::new(),
        body: None,
    };
    vec![Turn { http_error: Some(http_error), ..Turn::default() }, Turn::text("All is well.")]
}

pub(super) async fn key_nowhere(scene: &Scene) -> Proof {
    let kept = scene.lane().kept();
    let recorder = Recorder::new(kept.join("recordings"))
        .map_err(|error| Finding::from("nothing can be recorded").with(error.to_string()))?;
    let provider = recorder.record(scene.lane().provider());
    let said = scene.turn(Ask::new(WORDS)).await?;
    check_code(said.error()?, ErrorCode::Auth)?;
    for _ in 0..2 {
        // What is looked at is the log of the run and its end, in the scene.
        drop(scene.run(&scene.hub(), Ask::new(WORDS), provider.clone()).await?);
    }
    holds(kept.join("recordings").read_dir().is_ok_and(|mut files| files.next().is_some()), || {
        "nothing is recorded".to_owned()
    })?;
    secret::none_below(&kept)
}
