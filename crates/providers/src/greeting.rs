//! The free question by which a service tells whether it takes the key: what models it has.
//! Where it is asked, and what its errors mean, is left to the adapters.

use std::time::Duration;

use inspan_protocol::{AgentError, ErrorCode, ExecutionContext, Handshake, Redactor};
use reqwest::header::{ACCEPT, HeaderMap, HeaderValue};
use reqwest::{Method, StatusCode, Url};
use tokio::time::Instant;

use crate::transport::http::{Broken, Clocks, Http, Request};

/// How long the service may say nothing.
const STALL: Duration = Duration::from_secs(10);

/// Asks a service for its models. `of_answer` says what an answer means that is an error; none holds a secret.
pub(crate) async fn greet(
    http: &Http,
    url: Url,
    headers: HeaderMap,
    context: &ExecutionContext,
    of_answer: fn(StatusCode, &HeaderMap, &[u8]) -> AgentError,
) -> Result<Handshake, AgentError> {
    let greeted = ask(http, url, headers, context, of_answer).await;
    let redactor = Redactor::new(&context.env);
    greeted.map_err(|error| AgentError { message: redactor.text(&error.message), ..error })
}

async fn ask(
    http: &Http,
    url: Url,
    mut headers: HeaderMap,
    context: &ExecutionContext,
    of_answer: fn(StatusCode, &HeaderMap, &[u8]) -> AgentError,
) -> Result<Handshake, AgentError> {
    headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
    let clocks = Clocks {
        cancel: context.cancel.clone(),
        began: Instant::now(),
        deadline: context.deadline,
        stall: STALL,
    };
    let request = Request { method: Method::GET, url, headers, body: Vec::new() };
    let told = |broken| match broken {
        Broken::Cancelled => AgentError::new(ErrorCode::Aborted, "the service did not answer in time"),
        Broken::Failed(error) => error,
    };
    let answer = http.send(request, &context.env, clocks).await.map_err(told)?;
    let (status, headers) = (answer.status(), answer.headers().clone());
    match status {
        // A gateway need not have the list, and has looked at the key before it says so.
        status if status.is_success() => Ok(Handshake::Vendor),
        StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED => Ok(Handshake::Vendor),
        status => Err(of_answer(status, &headers, &answer.error_body().await.map_err(told)?)),
    }
}

#[cfg(test)]
mod tests;
