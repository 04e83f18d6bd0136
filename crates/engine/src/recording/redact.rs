//! Keeps secrets out of recordings, also where a secret spans two deltas.

use inspan_protocol::{Chunk, Redactor, StreamEvent};

use super::store::{RecordedEnd, RecordedEvent};

/// How a call ended, without secrets.
pub(super) fn end(redactor: &Redactor, end: RecordedEnd) -> RecordedEnd {
    match end {
        RecordedEnd::Output(output) => RecordedEnd::Output(redactor.value(output)),
        RecordedEnd::Error(error) => RecordedEnd::Error(redactor.error(error)),
    }
}

/// What the provider reported, without secrets.
pub(super) fn events(redactor: &Redactor, events: &mut [RecordedEvent]) {
    redactor.pieces(events.iter_mut().filter_map(|recorded| match &mut recorded.event {
        StreamEvent::Text { content, chunk: Chunk::Delta } => Some(content),
        _ => None,
    }));
    redactor.pieces(events.iter_mut().filter_map(|recorded| match &mut recorded.event {
        StreamEvent::Thinking { content, chunk: Chunk::Delta } => Some(content),
        _ => None,
    }));
    for recorded in events {
        redactor.event(&mut recorded.event);
    }
}
