//! Keeps secrets out of recordings, also where a secret straddles two deltas. What is recorded at all is left to
//! `key`, what a secret is to the engine's redactor.

use std::ops::Range;

use inspan_protocol::{Chunk, StreamEvent};

use super::store::{End, RecordedEvent};
use crate::redact::{Redactor, cut};

/// How a call ended, without secrets.
pub(super) fn end(redactor: &Redactor, end: End) -> End {
    match end {
        End::Output(output) => End::Output(redactor.value(output)),
        End::Error(error) => End::Error(redactor.error(error)),
    }
}

/// What the provider said, without secrets.
pub(super) fn events(redactor: &Redactor, events: &mut [RecordedEvent]) {
    if redactor.is_idle() {
        return;
    }
    for recorded in &mut *events {
        redactor.event(&mut recorded.event);
    }
    deltas(redactor, events, |event| match event {
        StreamEvent::Text { content, chunk: Chunk::Delta } => Some(content),
        _ => None,
    });
    deltas(redactor, events, |event| match event {
        StreamEvent::Thinking { content, chunk: Chunk::Delta } => Some(content),
        _ => None,
    });
}

/// The pieces of one text, looked at as the whole that a reader sees.
fn deltas(
    redactor: &Redactor,
    events: &mut [RecordedEvent],
    piece: fn(&mut StreamEvent) -> Option<&mut String>,
) {
    let mut whole = String::new();
    let mut pieces: Vec<(Range<usize>, &mut String)> = Vec::new();
    for recorded in events {
        if let Some(content) = piece(&mut recorded.event) {
            let start = whole.len();
            whole.push_str(content);
            pieces.push((start..whole.len(), content));
        }
    }
    let found = redactor.find(&whole);
    for (range, content) in pieces {
        *content = cut(&whole, range, &found);
    }
}
