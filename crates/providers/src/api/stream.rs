//! One request whose response is streamed: its events as they arrive, until it is complete, fails or is cancelled.

use std::collections::VecDeque;
use std::time::Duration;

use inspan_protocol::{AgentError, Environment, ErrorCode, ErrorKind, StreamEvent};
use reqwest::StatusCode;
use serde::Deserialize;
use tokio::time::Instant;

use inspan_transport::{Answer, Broken, Clocks, Http, Request};

use crate::decode::head;

mod decode;

pub(crate) use decode::{Decoded, DecoderState, ResponseDecoder, ResponseProgress};

/// The response in progress.
pub(crate) struct ResponseStream<D: ResponseDecoder> {
    body: Answer,
    decoder: D,
    next: VecDeque<Decoded<D::Response>>,
    /// How long nothing but signs of life has come, and may.
    idle: Duration,
    patience: Duration,
    came: Came,
}

/// How much of a response has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Came {
    Nothing,
    /// A part; it took more tokens than it has said.
    Part,
    /// All its tokens are known.
    Count,
}

/// What comes next in a response.
pub(crate) enum StreamStep<R> {
    /// Something happened.
    Event(StreamEvent),
    /// The response ended.
    End(ResponseEnd<R>),
}

/// How a response ended.
pub(crate) enum ResponseEnd<R> {
    /// It is complete.
    Complete(R),
    /// The caller cancelled it after this part.
    Cancelled(R),
    /// It failed.
    Failed(AgentError),
}

impl<R: Default> From<Broken> for ResponseEnd<R> {
    fn from(broken: Broken) -> Self {
        match broken {
            Broken::Cancelled => Self::Cancelled(R::default()),
            Broken::Failed(error) => Self::Failed(error),
        }
    }
}

impl<D: ResponseDecoder> ResponseStream<D> {
    /// Sends the request, and waits for the head of a stream.
    pub(crate) async fn begin(
        http: &Http,
        request: Request,
        environment: &Environment,
        clocks: Clocks,
        patience: Duration,
    ) -> Result<Self, ResponseEnd<D::Response>> {
        let answer = http.send(request, environment, clocks).await?;
        let status = answer.status();
        if !status.is_success() {
            let headers = answer.headers().clone();
            let body = answer.error_body().await?;
            return Err(ResponseEnd::Failed(D::response_error(status, &headers, &body)));
        }
        let form = answer.headers().get("content-type").and_then(|form| form.to_str().ok()).unwrap_or("none");
        let form: String = form.split(';').next().unwrap_or_default().trim().chars().take(60).collect();
        if !form.eq_ignore_ascii_case("text/event-stream") {
            let body = if is_json(&form) { answer.error_body().await? } else { Vec::new() };
            let message = format!("the server answers with {form} in place of a stream of events");
            let error = || AgentError::new(ErrorCode::Protocol, message).with_kind(ErrorKind::ContentType);
            let error = D::body_error(&body).unwrap_or_else(|| error().with("contentType", form));
            return Err(ResponseEnd::Failed(error));
        }
        let (idle, came) = (Duration::ZERO, Came::Nothing);
        Ok(Self { body: answer, decoder: D::default(), next: VecDeque::new(), idle, patience, came })
    }

    /// The next step, until the response ends.
    pub(crate) async fn next(&mut self) -> StreamStep<D::Response> {
        loop {
            match self.next.pop_front() {
                Some(Decoded::Event(event)) => return StreamStep::Event(event),
                Some(Decoded::End(response)) => return StreamStep::End(ResponseEnd::Complete(*response)),
                Some(Decoded::Failed(error)) => return StreamStep::End(ResponseEnd::Failed(error)),
                None => {}
            }
            let began = Instant::now();
            match self.body.chunk().await {
                Ok(Some(bytes)) => {
                    self.next.extend(self.decoder.push(bytes.as_ref()));
                    if let Some(error) = self.idled(began.elapsed()) {
                        return StreamStep::End(ResponseEnd::Failed(error));
                    }
                }
                Ok(None) => self.next.extend(self.decoder.finish()),
                Err(Broken::Failed(error)) => return StreamStep::End(ResponseEnd::Failed(error)),
                Err(Broken::Cancelled) => {
                    return StreamStep::End(ResponseEnd::Cancelled(
                        std::mem::take(&mut self.decoder).partial(),
                    ));
                }
            }
        }
    }
}

impl<D: ResponseDecoder> ResponseStream<D> {
    /// How much of it has come.
    pub(crate) fn came(&self) -> Came {
        self.came
    }

    /// Counts the time in which nothing but signs of life came. One wait alone is not too long: the program may have been stopped
    /// during it, and what came meanwhile is still to be read.
    fn idled(&mut self, waited: Duration) -> Option<AgentError> {
        let state = self.decoder.state();
        let carries = std::mem::take(&mut state.carries);
        // A large event comes in many pieces.
        let is_idle = !carries && !state.reader.is_midway();
        if carries && self.came == Came::Nothing {
            self.came = Came::Part;
        }
        if state.counted {
            self.came = Came::Count;
        }
        self.idle = if is_idle { self.idle + waited.min(self.patience / 2) } else { Duration::ZERO };
        if self.idle < self.patience || !self.next.is_empty() {
            return None;
        }
        let message =
            format!("the server sent nothing but signs of life for {} ms", self.patience.as_millis());
        Some(AgentError::new(ErrorCode::Timeout, message).with_kind(ErrorKind::Stall))
    }
}

/// Whether this content type is JSON.
pub(crate) fn is_json(form: &str) -> bool {
    form.eq_ignore_ascii_case("application/json")
}

/// Reads an event. The message of the parser may quote it, so the error only says where it is wrong.
pub(crate) fn read<'a, T: Deserialize<'a>>(data: &'a str, kind: &str) -> Result<T, AgentError> {
    serde_json::from_str(data).map_err(|error| {
        let what = match error.classify() {
            serde_json::error::Category::Data => "does not have the shape that is known",
            _ => "is broken JSON",
        };
        let (length, column) = (data.len(), error.column());
        protocol(format!(
            "an event of the stream (`{}`, {length} bytes) {what} at column {column}",
            head(kind)
        ))
    })
}

/// The error for a server that breaks the protocol.
pub(crate) fn protocol(message: String) -> AgentError {
    AgentError::new(ErrorCode::Protocol, message)
}

/// The error for a response with this status: by its code, if the status and the vendor's words have one.
pub(crate) fn status_error(status: StatusCode, code: Option<ErrorCode>, words: &str) -> AgentError {
    match code {
        Some(code) => AgentError::new(code, sentence(code, words)),
        None => protocol(format!("the server answers with the status {}", status.as_u16())),
    }
}

/// The error for a redirect.
pub(crate) fn redirected(status: StatusCode, variable: &str) -> AgentError {
    let message = format!(
        "the server sends the request elsewhere (status {}), where the key must not go; check {variable}",
        status.as_u16()
    );
    AgentError::new(ErrorCode::Protocol, message)
        .with_kind(ErrorKind::Redirect)
        .with("status", status.as_u16())
}

/// The message of a response whose error is not in the vendor's form.
pub(crate) fn page(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(body);
    let text = text.trim();
    if text.is_empty() {
        "the server gives no reason".to_owned()
    } else if text.starts_with('<') {
        "the server answers with a page".to_owned()
    } else {
        text.lines().next().unwrap_or_default().to_owned()
    }
}

/// Our text for a code, and the vendor's message after it.
pub(crate) fn sentence(code: ErrorCode, vendor: &str) -> String {
    let lead = match code {
        ErrorCode::Auth => "the key is not accepted",
        ErrorCode::Refused => "the vendor refused to answer",
        code => crate::error::lead(code),
    };
    crate::error::sentence(lead, vendor)
}
