//! The decoder of one streamed answer, as far as it is the same for all vendors: from bytes to events, to the end of the
//! answer or to where it broke off. What an event means is left to the adapters.

use std::borrow::Cow;

use inspan_protocol::{AgentError, ErrorCode, ErrorKind, StreamEvent};
use reqwest::StatusCode;
use reqwest::header::HeaderMap;
use serde::Deserialize;

use super::event::{protocol, read};
use crate::transport::sse::{Event, SseReader};

/// One thing that a stream says.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Decoded<S> {
    /// Something happened in the turn.
    Event(StreamEvent),
    /// The answer ended; nothing follows.
    End(Box<S>),
    /// The answer will not end, and the turn failed; nothing follows.
    Failed(AgentError),
}

/// Where an answer stands.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) enum State {
    #[default]
    Before,
    Within,
    Over,
}

/// Where a decoder stands in its answer.
#[derive(Debug, Default)]
pub(crate) struct Place {
    pub(crate) reader: SseReader,
    pub(crate) state: State,
}

/// The type of any event.
#[derive(Deserialize)]
struct Typed<'a> {
    #[serde(borrow, rename = "type")]
    kind: Cow<'a, str>,
}

/// A vendor's decoder of one answer: bytes in, what they mean out. It never waits.
pub(crate) trait Decode: Default {
    /// What was said, until some moment or in all.
    type Said: Default;

    /// Where it stands.
    fn place(&mut self) -> &mut Place;

    /// Takes an event of this type, while the answer is not over.
    fn decode(
        &mut self,
        kind: &str,
        data: &str,
        out: &mut Vec<Decoded<Self::Said>>,
    ) -> Result<(), AgentError>;

    /// The error that ends the answer, with what is known of it.
    fn failure(&self, error: AgentError) -> AgentError {
        error
    }

    /// What was said until now, for a turn that is not to go on.
    fn so_far(self) -> Self::Said;

    /// The error for an answer whose status is one.
    fn answered(status: StatusCode, headers: &HeaderMap, body: &[u8]) -> AgentError;

    /// Takes the bytes of one read, wherever it ended.
    fn push(&mut self, bytes: &[u8]) -> Vec<Decoded<Self::Said>> {
        let mut out = Vec::new();
        let mut reader = std::mem::take(&mut self.place().reader);
        let read = reader.push(bytes, |event| take(self, &event, &mut out));
        self.place().reader = reader;
        if let Err(fault) = read
            && self.place().state != State::Over
        {
            fail(self, protocol(fault.to_string()), &mut out);
        }
        out
    }

    /// The stream ended. Unless the answer did before, it is cut off.
    fn finish(&mut self) -> Vec<Decoded<Self::Said>> {
        let mut out = Vec::new();
        let Place { reader, state } = self.place();
        let place = match (*state, reader.is_midway()) {
            (State::Over, _) => return out,
            (_, true) => "within an event",
            (State::Before, _) => "before the answer began",
            (State::Within, _) => "before the answer did",
        };
        let error = AgentError::new(ErrorCode::Network, format!("the stream ended {place}"));
        fail(self, error.with_kind(ErrorKind::Truncated), &mut out);
        out
    }
}

fn take<D: Decode>(decoder: &mut D, event: &Event<'_>, out: &mut Vec<Decoded<D::Said>>) {
    if decoder.place().state == State::Over {
        return;
    }
    let done =
        read::<Typed<'_>>(event.data, "event").and_then(|typed| decoder.decode(&typed.kind, event.data, out));
    if let Err(error) = done {
        fail(decoder, error, out);
    }
}

fn fail<D: Decode>(decoder: &mut D, error: AgentError, out: &mut Vec<Decoded<D::Said>>) {
    decoder.place().state = State::Over;
    out.push(Decoded::Failed(decoder.failure(error)));
}
