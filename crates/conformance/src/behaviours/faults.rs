//! Streams that break: cut, silent, garbled, or refused from the beginning.

use std::net::TcpListener;

use inspan_model_server::{Block, ErrorEvent, Turn};
use inspan_protocol::{ErrorCode, ErrorKind};

use super::answers::WORDS;
use crate::finding::{Finding, Proof, check_code, check_requests, same};
use crate::rig::ConformanceTarget;
use crate::scene::{Ask, Scene};

/// How long a stream may be silent, in milliseconds.
const STALL: u32 = 1_500;

/// An answer in many pieces, so that a fault lies in the middle of it in every vendor's form.
fn pieces() -> Turn {
    Turn { blocks: vec![Block::Text { text: WORDS.to_owned(), chunks: 20 }], ..Turn::default() }
}

/// Events before the fault.
const MIDDLE: usize = 12;

pub(super) fn error_in_stream(_: &dyn ConformanceTarget) -> Vec<Turn> {
    let event =
        ErrorEvent { after: MIDDLE, kind: "overloaded_error".to_owned(), message: "Overloaded".to_owned() };
    vec![Turn { error_event_after: Some(event), ..pieces() }]
}

pub(super) fn truncated(_: &dyn ConformanceTarget) -> Vec<Turn> {
    vec![Turn { truncate_after: Some(MIDDLE), ..pieces() }]
}

pub(super) fn garbage(_: &dyn ConformanceTarget) -> Vec<Turn> {
    vec![Turn { garbage_after: Some(MIDDLE), ..pieces() }]
}

pub(super) async fn overloaded(scene: &Scene) -> Proof {
    fails(scene, Ask::new(WORDS), ErrorCode::Overloaded).await
}

pub(super) async fn network(scene: &Scene) -> Proof {
    fails(scene, Ask::new(WORDS), ErrorCode::Network).await
}

pub(super) async fn protocol(scene: &Scene) -> Proof {
    fails(scene, Ask::new(WORDS), ErrorCode::Protocol).await
}

pub(super) async fn stall(scene: &Scene) -> Proof {
    let said = scene.turn(Ask::new(WORDS).option("stallTimeoutMs", STALL)).await?;
    check_code(said.error()?, ErrorCode::Timeout)?;
    same("the kind", &said.error()?.kind(), &Some(ErrorKind::Stall))
}

pub(super) async fn refused(scene: &Scene) -> Proof {
    // The port was free a moment ago, and nobody listens there now.
    let address = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    let address = address.map_err(|error| Finding::from("there is no port").with(error.to_string()))?;
    let env = scene.lane().environment(&format!("http://{address}"));
    let said = scene.turn(Ask::new(WORDS).env(env)).await?;
    let error = said.error()?;
    check_code(error, ErrorCode::Network)
}

async fn fails(scene: &Scene, ask: Ask, code: ErrorCode) -> Proof {
    let said = scene.turn(ask).await?;
    let error = said.error()?;
    check_code(error, code)?;
    check_requests(scene.requests().len(), 1)
}
