//! Takes secrets out of a text that comes piece by piece, also where one spans several pieces.

use super::{Redactor, cut};

/// More than this is never held back: no secret is as long.
const MOST_HELD: usize = 64 * 1024;
/// How much of what was given out is remembered, in bytes: a token of a known shape is recognised by its first letters
/// (`sk-`), which are not secret and not buffered. No such beginning is longer.
const MEMORY: usize = 16;

/// One text that is still coming.
#[derive(Debug)]
pub struct StreamRedactor {
    redactor: Redactor,
    /// The end of what was given out, as it came, and then what may be the beginning of a secret.
    text: String,
    /// How much of the text was given out.
    given: usize,
}

impl StreamRedactor {
    /// A text that begins now.
    pub fn new(redactor: Redactor) -> Self {
        Self { redactor, text: String::new(), given: 0 }
    }

    /// The next piece; gives what is certain by now.
    pub fn push(&mut self, piece: &str) -> String {
        self.text.push_str(piece);
        // A piece may be longer, and is searched as a whole.
        let certain = match self.redactor.decided(&self.text) {
            certain if self.text.len() - certain > MOST_HELD => self.text.len(),
            certain => certain,
        };
        self.give(certain)
    }

    /// The rest of the text, which has ended.
    pub fn finish(&mut self) -> String {
        let rest = self.give(self.text.len());
        self.text.clear();
        self.given = 0;
        rest
    }

    /// Returns the text up to here, or to the beginning of a secret that spans this place.
    fn give(&mut self, certain: usize) -> String {
        let mut certain = certain.max(self.given);
        let mut found = self.redactor.find(&self.text);
        found.retain(|secret| secret.range.end > self.given);
        for secret in &mut found {
            secret.range.start = secret.range.start.max(self.given);
        }
        if let Some(secret) = found.iter().find(|secret| secret.range.contains(&certain)) {
            certain = secret.range.start;
        }
        let clean = cut(&self.text, self.given..certain, &found);
        // What was replaced is not remembered.
        let replaced = found.iter().map(|secret| secret.range.end).filter(|end| *end <= certain).max();
        let start =
            self.text.floor_char_boundary(certain.saturating_sub(MEMORY)).max(replaced.unwrap_or_default());
        drop(found);
        drop(self.text.drain(..start));
        self.given = certain - start;
        clean
    }
}
