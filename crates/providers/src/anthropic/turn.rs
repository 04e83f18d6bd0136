//! One request and its answer: what the stream says as it comes, until it ends, fails or is cancelled.
//! What the conversation keeps of it is left to `anthropic.rs`.

use std::collections::VecDeque;

use inspan_protocol::{AgentError, Environment, ErrorCode, StreamEvent};

use super::decode::{Decoded, Decoder, Said};
use super::error::answered;
use crate::kind::Kind;
use crate::transport::http::{Answer, Broken, Clocks, Http, Post};

/// The turn in progress.
pub(super) struct Turn {
    answer: Answer,
    decoder: Decoder,
    next: VecDeque<Decoded>,
}

/// What comes of waiting for the turn.
pub(super) enum Step {
    /// Something happened.
    Event(StreamEvent),
    /// The turn is over.
    Over(Over),
}

/// How a turn ended.
pub(super) enum Over {
    /// The answer is whole.
    Ended(Said),
    /// Its caller cancelled it after this.
    Cancelled(Said),
    /// It failed.
    Failed(AgentError),
}

impl From<Broken> for Over {
    fn from(broken: Broken) -> Self {
        match broken {
            Broken::Cancelled => Self::Cancelled(Said::default()),
            Broken::Failed(error) => Self::Failed(error),
        }
    }
}

impl Turn {
    /// Sends the request, and waits for the head of a stream.
    pub(super) async fn begin(
        http: &Http,
        post: Post,
        environment: &Environment,
        clocks: Clocks,
    ) -> Result<Self, Over> {
        let answer = http.post(post, environment, clocks).await?;
        let status = answer.status();
        if !status.is_success() {
            let headers = answer.headers().clone();
            let body = answer.error_body().await?;
            return Err(Over::Failed(answered(status, &headers, &body)));
        }
        let form = answer.headers().get("content-type").and_then(|form| form.to_str().ok()).unwrap_or("none");
        let form: String = form.split(';').next().unwrap_or_default().trim().chars().take(60).collect();
        if !form.eq_ignore_ascii_case("text/event-stream") {
            let message = format!("the server answers with {form} in place of a stream of events");
            return Err(Over::Failed(AgentError::new(ErrorCode::Protocol, message).kind("contentType")));
        }
        Ok(Self { answer, decoder: Decoder::default(), next: VecDeque::new() })
    }

    /// The next step. After the turn is over there is none.
    pub(super) async fn next(&mut self) -> Step {
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
