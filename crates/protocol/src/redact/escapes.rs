//! Text without the escapes of URLs: `%2F` and `%2f` are `/`, and whoever writes a URL decides what is escaped.

use std::ops::Range;

/// A text in which each `%` with two hexadecimal digits is the byte that it stands for.
pub(super) struct Unescaped {
    pub(super) bytes: Vec<u8>,
    /// Where each byte begins in the text, and then the text's end.
    starts: Vec<usize>,
}

impl Unescaped {
    /// None if the text has no escape.
    pub(super) fn of(text: &str) -> Option<Self> {
        let first = text.find('%')?;
        let text = text.as_bytes();
        let mut at = first;
        let (mut bytes, mut starts) = (text[..first].to_vec(), Vec::from_iter(0..first));
        while let Some(&byte) = text.get(at) {
            starts.push(at);
            let escaped = if byte == b'%' { escape(&text[at + 1..]) } else { None };
            bytes.push(escaped.unwrap_or(byte));
            at += if escaped.is_some() { 3 } else { 1 };
        }
        starts.push(text.len());
        (bytes.len() < text.len()).then_some(Self { bytes, starts })
    }

    /// Where these bytes are in the text. What is found is valid UTF-8, so its ends are between characters.
    pub(super) fn in_text(&self, bytes: Range<usize>) -> Range<usize> {
        self.starts[bytes.start]..self.starts[bytes.end]
    }
}

/// The text without an escape at its end that more text may complete.
pub(super) fn without_unfinished(text: &str) -> &str {
    let start = text.len() - text.len().min(2);
    match text.as_bytes()[start..] {
        [.., b'%'] => &text[..text.len() - 1],
        [b'%', digit] if digit.is_ascii_hexdigit() => &text[..start],
        _ => text,
    }
}

fn escape(after: &[u8]) -> Option<u8> {
    let digit = |at: usize| char::from(*after.get(at)?).to_digit(16);
    u8::try_from(digit(0)? * 16 + digit(1)?).ok()
}
