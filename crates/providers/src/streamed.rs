//! One request whose answer is streamed: what it says as it comes, until it ends, fails or is cancelled.
//! What the bytes mean is left to the decoders, what a conversation keeps of it to the adapters.

use std::collections::VecDeque;

use inspan_protocol::{AgentError, Environment, ErrorCode, ErrorKind, StreamEvent};

use crate::transport::http::{Answer, Broken, Clocks, Http, Post};

mod decode;
pub(crate) mod event;
pub(crate) mod failure;

pub(crate) use decode::{Decode, Decoded, Place, State};

/// The answer in progress.
pub(crate) struct Streamed<D: Decode> {
    answer: Answer,
    decoder: D,
    next: VecDeque<Decoded<D::Said>>,
}

/// What comes of waiting for the answer.
pub(crate) enum Step<S> {
    /// Something happened.
    Event(StreamEvent),
    /// The answer is over.
    Over(Over<S>),
}

/// How an answer ended.
pub(crate) enum Over<S> {
    /// It is whole.
    Ended(S),
    /// Its caller cancelled it after this.
    Cancelled(S),
    /// It failed.
    Failed(AgentError),
}

impl<S: Default> From<Broken> for Over<S> {
    fn from(broken: Broken) -> Self {
        match broken {
            Broken::Cancelled => Self::Cancelled(S::default()),
            Broken::Failed(error) => Self::Failed(error),
        }
    }
}

impl<D: Decode> Streamed<D> {
    /// Sends the request, and waits for the head of a stream.
    pub(crate) async fn begin(
        http: &Http,
        post: Post,
        environment: &Environment,
        clocks: Clocks,
    ) -> Result<Self, Over<D::Said>> {
        let answer = http.post(post, environment, clocks).await?;
        let status = answer.status();
        if !status.is_success() {
            let headers = answer.headers().clone();
            let body = answer.error_body().await?;
            return Err(Over::Failed(D::answered(status, &headers, &body)));
        }
        let form = answer.headers().get("content-type").and_then(|form| form.to_str().ok()).unwrap_or("none");
        let form: String = form.split(';').next().unwrap_or_default().trim().chars().take(60).collect();
        if !form.eq_ignore_ascii_case("text/event-stream") {
            let message = format!("the server answers with {form} in place of a stream of events");
            return Err(Over::Failed(
                AgentError::new(ErrorCode::Protocol, message).with_kind(ErrorKind::ContentType),
            ));
        }
        Ok(Self { answer, decoder: D::default(), next: VecDeque::new() })
    }

    /// The next step. After the answer is over there is none.
    pub(crate) async fn next(&mut self) -> Step<D::Said> {
        loop {
            match self.next.pop_front() {
                Some(Decoded::Event(event)) => return Step::Event(event),
                Some(Decoded::End(said)) => return Step::Over(Over::Ended(*said)),
                Some(Decoded::Failed(error)) => return Step::Over(Over::Failed(error)),
                None => {}
            }
            match self.answer.chunk().await {
                Ok(Some(bytes)) => self.next.extend(self.decoder.push(bytes.as_ref())),
                Ok(None) => self.next.extend(self.decoder.finish()),
                Err(Broken::Failed(error)) => return Step::Over(Over::Failed(error)),
                Err(Broken::Cancelled) => {
                    return Step::Over(Over::Cancelled(std::mem::take(&mut self.decoder).so_far()));
                }
            }
        }
    }
}
