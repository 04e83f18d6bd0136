//! One request whose response is streamed: its events as they arrive, until it is complete, fails or is cancelled.

use std::collections::VecDeque;

use inspan_protocol::{AgentError, Environment, ErrorCode, ErrorKind, StreamEvent};

use inspan_transport::{Answer, Broken, Clocks, Http, Request};

mod decode;
pub(crate) mod event;
pub(crate) mod failure;

pub(crate) use decode::{Decoded, DecoderState, ResponseDecoder, ResponseProgress};

/// The response in progress.
pub(crate) struct ResponseStream<D: ResponseDecoder> {
    body: Answer,
    decoder: D,
    next: VecDeque<Decoded<D::Response>>,
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
            let message = format!("the server answers with {form} in place of a stream of events");
            return Err(ResponseEnd::Failed(
                AgentError::new(ErrorCode::Protocol, message).with_kind(ErrorKind::ContentType),
            ));
        }
        Ok(Self { body: answer, decoder: D::default(), next: VecDeque::new() })
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
            match self.body.chunk().await {
                Ok(Some(bytes)) => self.next.extend(self.decoder.push(bytes.as_ref())),
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
