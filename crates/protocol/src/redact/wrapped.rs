//! Text without the line breaks of base64: `base64` begins a line after 76 characters, PEM after 64, and YAML indents
//! them.

use std::ops::Range;

/// A line of base64 is at least so long. Most words of a text are shorter, so most texts are read once only.
const SHORTEST_LINE: usize = 8;

/// A text without the breaks between lines of base64.
pub(super) struct Unwrapped {
    pub(super) bytes: Vec<u8>,
    /// Where they are in the text.
    breaks: Vec<Range<usize>>,
}

/// Whether more text may follow.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum TextEnd {
    Last,
    /// A break at the end may be one within base64.
    Open,
}

impl Unwrapped {
    /// None if the text has no such break.
    pub(super) fn of(text: &str, ending: TextEnd) -> Option<Self> {
        let all = text.as_bytes();
        let ends_a_line = |end: usize| {
            let line = all[..end].iter().rev().take(SHORTEST_LINE);
            line.take_while(|byte| is_base64(**byte)).count() == SHORTEST_LINE
        };
        let mut breaks = Vec::new();
        for (at, _) in text.match_indices('\n') {
            let end = at - usize::from(all[..at].ends_with(b"\r"));
            let indent = all[at + 1..].iter().take_while(|byte| matches!(byte, b' ' | b'\t')).count();
            let next = at + 1 + indent;
            let goes_on = all.get(next).map_or(ending == TextEnd::Open, |byte| is_base64(*byte));
            if goes_on && ends_a_line(end) {
                breaks.push(end..next);
            }
        }
        if ending == TextEnd::Open && text.ends_with('\r') && ends_a_line(all.len() - 1) {
            breaks.push(all.len() - 1..all.len());
        }
        let first = breaks.first()?;
        let mut bytes = all[..first.start].to_vec();
        for (at, known) in breaks.iter().enumerate() {
            let end = breaks.get(at + 1).map_or(all.len(), |next| next.start);
            bytes.extend_from_slice(&all[known.end..end]);
        }
        Some(Self { bytes, breaks })
    }

    /// Where a byte is in the text.
    pub(super) fn place(&self, byte: usize) -> usize {
        self.breaks.iter().fold(byte, |at, known| if known.start <= at { at + known.len() } else { at })
    }

    /// Where these bytes are in the text; a break after them is not among them.
    pub(super) fn in_text(&self, bytes: Range<usize>) -> Range<usize> {
        self.place(bytes.start)..self.place(bytes.end - 1) + 1
    }
}

fn is_base64(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/' | b'-' | b'_')
}
