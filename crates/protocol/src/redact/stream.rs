//! Takes secrets out of a text that comes piece by piece, also where one stands across several pieces.

use super::{Redactor, cut};

/// More than this is never held back: no secret is as long.
const MOST_HELD: usize = 64 * 1024;

/// One text that is still coming.
#[derive(Debug)]
pub struct StreamRedactor {
    redactor: Redactor,
    /// The end of the text that may be the beginning of a secret.
    held: String,
}

impl StreamRedactor {
    /// A text that begins now.
    pub fn new(redactor: Redactor) -> Self {
        Self { redactor, held: String::new() }
    }

    /// The next piece; gives what is certain by now.
    pub fn push(&mut self, piece: &str) -> String {
        self.held.push_str(piece);
        let found = self.redactor.find(&self.held);
        let mut certain = match self.redactor.decided(&self.held) {
            _ if self.held.len() > MOST_HELD => self.held.len(),
            certain => certain,
        };
        // A secret is given out whole.
        if let Some(secret) = found.iter().find(|secret| secret.range.contains(&certain)) {
            certain = secret.range.start;
        }
        let clean = cut(&self.held, 0..certain, &found);
        drop(self.held.drain(..certain));
        clean
    }

    /// The rest of the text, which has ended.
    pub fn finish(&mut self) -> String {
        self.redactor.text(&std::mem::take(&mut self.held))
    }
}
