//! Warnings of what a decoder does not know, each given once in a turn.

use std::collections::BTreeSet;

use inspan_protocol::StreamEvent;

/// Kinds that are warned of at most; beyond that the vendor's output is nonsense.
pub(crate) const LIMIT: usize = 32;

/// What was warned of in one turn.
#[derive(Debug, Default)]
pub(crate) struct Warned(BTreeSet<String>);

impl Warned {
    /// The warning that something of a kind was met, unless it was given before.
    pub(crate) fn once(&mut self, code: &str, kind: &str, what: &str) -> Option<StreamEvent> {
        let kind = head(kind);
        let message = if kind.is_empty() { what.to_owned() } else { format!("{what} `{kind}`") };
        self.message_once(code, &kind, message)
    }

    /// This warning, unless one was given with this code for this kind.
    pub(crate) fn message_once(&mut self, code: &str, kind: &str, message: String) -> Option<StreamEvent> {
        let is_new = self.0.len() < LIMIT && self.0.insert(format!("{code} {kind}"));
        is_new.then(|| StreamEvent::Warning { code: code.to_owned(), message })
    }
}

/// The part of a vendor's word that may stand in a message.
pub(crate) fn head(word: &str) -> String {
    word.chars().filter(|c| c.is_alphanumeric() || "_-./".contains(*c)).take(60).collect()
}
