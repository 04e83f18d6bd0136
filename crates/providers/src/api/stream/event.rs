//! One event of a stream as JSON: reading it without quoting it, and the warnings for what is not known, each said
//! once. What an event means is left to the decoders.

use std::collections::BTreeSet;

use inspan_protocol::{AgentError, ErrorCode, StreamEvent};
use serde::Deserialize;

/// Kinds that are warned of at most; beyond that the server is talking nonsense.
const WARNED_LIMIT: usize = 32;

/// What was warned of in one answer.
#[derive(Debug, Default)]
pub(crate) struct Warned(BTreeSet<String>);

impl Warned {
    /// The warning that something of a kind was met, unless it was said before.
    pub(crate) fn once(&mut self, code: &str, kind: &str, what: &str) -> Option<StreamEvent> {
        let kind = head(kind);
        let said = self.0.len() < WARNED_LIMIT && self.0.insert(format!("{code} {kind}"));
        said.then(|| StreamEvent::Warning { code: code.to_owned(), message: format!("{what} `{kind}`") })
    }
}

/// Reads an event. The words of the parser may quote it, so only the place is told.
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

/// The error for a server that says what it should not.
pub(crate) fn protocol(message: String) -> AgentError {
    AgentError::new(ErrorCode::Protocol, message)
}

/// The part of a vendor's word that may stand in a message.
pub(crate) fn head(word: &str) -> String {
    word.chars().filter(|c| c.is_alphanumeric() || "_-./".contains(*c)).take(40).collect()
}
