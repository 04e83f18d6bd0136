//! Streams that break: cut, silent, garbled, or refused from the beginning.

use std::net::TcpListener;

use inspan_model_server::{Block, ErrorEvent, Turn};
use inspan_protocol::{ErrorCode, ErrorKind};

use super::answers::WORDS;
use crate::finding::{CheckResult, Difference, check_code, check_requests, same};
use crate::target::ConformanceTarget;
use crate::test_case::{TestCase, TurnRequest};

/// How long a stream may be silent, in milliseconds.
const STALL: u32 = 1_500;

/// An answer in many pieces, so that a fault is in the middle of it in every vendor's form.
fn pieces() -> Turn {
    Turn { blocks: vec![Block::Text { text: WORDS.to_owned(), chunks: 20 }], ..Turn::default() }
}

/// Events before the fault.
const MIDDLE: usize = 12;

pub(super) fn error_in_stream(_: &ConformanceTarget) -> Vec<Turn> {
    let event =
        ErrorEvent { after: MIDDLE, kind: "overloaded_error".to_owned(), message: "Overloaded".to_owned() };
    vec![Turn { error_event_after: Some(event), ..pieces() }]
}

pub(super) fn truncated(_: &ConformanceTarget) -> Vec<Turn> {
    vec![Turn { truncate_after: Some(MIDDLE), ..pieces() }]
}

pub(super) fn garbage(_: &ConformanceTarget) -> Vec<Turn> {
    vec![Turn { garbage_after: Some(MIDDLE), ..pieces() }]
}

pub(super) async fn overloaded(case: &TestCase) -> CheckResult {
    fails(case, TurnRequest::new(WORDS), ErrorCode::Overloaded).await
}

pub(super) async fn network(case: &TestCase) -> CheckResult {
    fails(case, TurnRequest::new(WORDS), ErrorCode::Network).await
}

pub(super) async fn protocol(case: &TestCase) -> CheckResult {
    fails(case, TurnRequest::new(WORDS), ErrorCode::Protocol).await
}

pub(super) async fn stall(case: &TestCase) -> CheckResult {
    let turn = case.turn(TurnRequest::new(WORDS).option("stallTimeoutMs", STALL)).await?;
    check_code(turn.error()?, ErrorCode::Timeout)?;
    same("the kind", &turn.error()?.kind(), &Some(ErrorKind::Stall))
}

pub(super) async fn refused(case: &TestCase) -> CheckResult {
    // The port was free a moment ago, and nothing listens there now.
    let address = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    let address = address.map_err(|error| Difference::from("there is not a port").with(error.to_string()))?;
    let env = case.worker().environment(&format!("http://{address}"));
    let turn = case.turn(TurnRequest { env: Some(env), ..TurnRequest::new(WORDS) }).await?;
    let error = turn.error()?;
    check_code(error, ErrorCode::Network)
}

async fn fails(case: &TestCase, request: TurnRequest, code: ErrorCode) -> CheckResult {
    let turn = case.turn(request).await?;
    let error = turn.error()?;
    check_code(error, code)?;
    check_requests(case.requests().len(), 1)
}
