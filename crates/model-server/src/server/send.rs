//! Sends a planned answer over one connection, and records how that ended.
//! What to send is decided in `plan.rs`.

use std::future::pending;
use std::io;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::Response;
use futures::Stream;
use tokio::time::{Instant, sleep, sleep_until};

use super::shared::Exchange;
use crate::plan::{Headers, Plan, PlanStep, Reply};
use crate::record::ExchangeState;

/// Waits as planned and answers. If the client goes away meanwhile, this is dropped, and `exchange` with it.
pub(super) async fn send(plan: Plan, mut exchange: Exchange) -> Response {
    sleep(plan.first).await;
    match plan.reply {
        Reply::Whole { status, headers, body } => {
            exchange.end(ExchangeState::Complete);
            respond(status, headers, Body::from(body))
        }
        Reply::Steps { headers, steps } => {
            respond(200, headers, Body::from_stream(carry_out(steps, exchange)))
        }
        Reply::Silence { limit } => {
            exchange.stalled();
            sleep(limit).await;
            exchange.end(ExchangeState::Stalled);
            // A body that fails at once ends the connection; the head may or may not get out before.
            respond(200, Headers::new(), Body::from_stream(carry_out_cut()))
        }
    }
}

fn carry_out(steps: Vec<PlanStep>, mut exchange: Exchange) -> impl Stream<Item = io::Result<Bytes>> + Send {
    async_stream::stream! {
        for step in steps {
            match step {
                PlanStep::Send(text) => {
                    exchange.sent_event();
                    yield Ok(Bytes::from(text));
                }
                PlanStep::Wait(wait) => sleep(wait).await,
                PlanStep::Cut => {
                    // Gives the connection a turn to flush what was sent so far.
                    tokio::task::yield_now().await;
                    exchange.end(ExchangeState::Truncated);
                    yield Err(cut());
                    return;
                }
                PlanStep::Hold { ping, limit } => {
                    exchange.stalled();
                    let end = Instant::now() + limit;
                    let (every, text) = ping.unwrap_or((Duration::MAX, String::new()));
                    loop {
                        tokio::select! {
                            () = sleep_until(end) => break,
                            () = beat(every) => {
                                exchange.sent_event();
                                yield Ok(Bytes::from(text.clone()));
                            }
                        }
                    }
                    exchange.end(ExchangeState::Stalled);
                    yield Err(cut());
                    return;
                }
            }
        }
        exchange.end(ExchangeState::Complete);
    }
}

fn carry_out_cut() -> impl Stream<Item = io::Result<Bytes>> + Send {
    futures::stream::iter([Err(cut())])
}

/// An error in a body makes hyper close without the body's end.
fn cut() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionAborted, "cut by the scenario")
}

async fn beat(every: Duration) {
    match every {
        Duration::MAX => pending().await,
        every => sleep(every).await,
    }
}

/// Names and values were checked with the scenario; what still cannot be sent is left out.
pub(super) fn respond(status: u16, headers: Headers, body: Body) -> Response {
    let mut response = Response::new(body);
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    for (name, value) in headers {
        if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::try_from(value)) {
            response.headers_mut().insert(name, value);
        }
    }
    response
}
