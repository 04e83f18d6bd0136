//! Whether it is known what a turn took.

use inspan_protocol::{StreamEvent, Usage};

/// Whether a turn has said what it took.
#[derive(Debug, Default)]
pub(crate) struct TurnCount {
    is_known: bool,
}

impl TurnCount {
    /// Notes an event of the turn.
    pub(crate) fn note(&mut self, event: &StreamEvent) {
        self.is_known |= matches!(event, StreamEvent::Usage { .. });
    }

    /// What a turn says before its error if its prompt was sent and nothing is known of what it took.
    pub(crate) fn unknown(&self) -> Option<StreamEvent> {
        (!self.is_known).then(|| StreamEvent::Usage { usage: Usage::default(), cost_usd: None })
    }
}
