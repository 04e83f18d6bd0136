//! The part of decoding a streamed response that is the same for all vendors: from bytes to events, to the end of the
//! response or to where it broke off.

use std::borrow::Cow;

use inspan_protocol::{AgentError, ErrorCode, ErrorKind, StreamEvent};
use reqwest::StatusCode;
use reqwest::header::HeaderMap;
use serde::Deserialize;

use super::{protocol, read};
use crate::sse::{SseEvent, SseReader};

/// What a stream says.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Decoded<R> {
    /// Something happened in the turn.
    Event(StreamEvent),
    /// The response is complete; nothing follows.
    End(Box<R>),
    /// The response failed; nothing follows.
    Failed(AgentError),
}

/// How far a response has come.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) enum ResponseProgress {
    #[default]
    NotBegun,
    Begun,
    Ended,
}

/// The state that every decoder has.
#[derive(Debug, Default)]
pub(crate) struct DecoderState {
    pub(crate) reader: SseReader,
    pub(crate) progress: ResponseProgress,
    /// Whether an event came that is more than a sign of life, since somebody looked.
    pub(crate) carries: bool,
    /// Whether all tokens of the response are known.
    pub(crate) counted: bool,
}

/// The type of any event.
#[derive(Deserialize)]
struct EventType<'a> {
    #[serde(borrow, rename = "type")]
    kind: Cow<'a, str>,
}

/// A vendor's decoder of one response: bytes in, events out. It never waits.
pub(crate) trait ResponseDecoder: Default {
    /// Events that only say that the vendor is still there.
    const SIGNS_OF_LIFE: &'static [&'static str];

    /// The response, or the part of it that has arrived.
    type Response: Default;

    /// Its state.
    fn state(&mut self) -> &mut DecoderState;

    /// Decodes an event of this type, unless the response has ended.
    fn decode(
        &mut self,
        kind: &str,
        data: &str,
        out: &mut Vec<Decoded<Self::Response>>,
    ) -> Result<(), AgentError>;

    /// The error that ends the response, with what is known of it.
    fn failure(&self, error: AgentError) -> AgentError {
        error
    }

    /// The part of the response that has arrived, for a turn that is cancelled.
    fn partial(self) -> Self::Response;

    /// The error that a response with an error status means.
    fn response_error(status: StatusCode, headers: &HeaderMap, body: &[u8]) -> AgentError;

    /// The error in a body that came with a status of success, if it is one.
    fn body_error(body: &[u8]) -> Option<AgentError>;

    /// Takes the bytes of one read, wherever it ended.
    fn push(&mut self, bytes: &[u8]) -> Vec<Decoded<Self::Response>> {
        let mut out = Vec::new();
        let mut reader = std::mem::take(&mut self.state().reader);
        let read = reader.push(bytes, |event| take(self, &event, &mut out));
        self.state().reader = reader;
        if let Err(fault) = read
            && self.state().progress != ResponseProgress::Ended
        {
            fail(self, protocol(fault.to_string()), &mut out);
        }
        out
    }

    /// The stream ended. Unless the response did before, it is truncated.
    fn finish(&mut self) -> Vec<Decoded<Self::Response>> {
        let mut out = Vec::new();
        let DecoderState { reader, progress, .. } = self.state();
        let place = match (*progress, reader.is_midway()) {
            (ResponseProgress::Ended, _) => return out,
            (_, true) => "within an event",
            (ResponseProgress::NotBegun, _) => "before the answer began",
            (ResponseProgress::Begun, _) => "before the answer did",
        };
        let error = AgentError::new(ErrorCode::Network, format!("the stream ended {place}"));
        fail(self, error.with_kind(ErrorKind::Truncated), &mut out);
        out
    }
}

fn take<D: ResponseDecoder>(decoder: &mut D, event: &SseEvent<'_>, out: &mut Vec<Decoded<D::Response>>) {
    if decoder.state().progress == ResponseProgress::Ended {
        return;
    }
    let done = read::<EventType<'_>>(event.data, "event").and_then(|typed| {
        decoder.decode(&typed.kind, event.data, out)?;
        decoder.state().carries |= !D::SIGNS_OF_LIFE.contains(&&*typed.kind);
        Ok(())
    });
    if let Err(error) = done {
        fail(decoder, error, out);
    }
}

fn fail<D: ResponseDecoder>(decoder: &mut D, error: AgentError, out: &mut Vec<Decoded<D::Response>>) {
    decoder.state().progress = ResponseProgress::Ended;
    out.push(Decoded::Failed(decoder.failure(error)));
}
