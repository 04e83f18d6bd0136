//! A text without its escapes, and without the line breaks of base64, and the forms in which a secret may appear in it. In
//! JSON and in URLs the writer decides what is escaped and how: `/` may be `\/`, `\u002f` or `%2F`. `base64` begins a line
//! after 76 characters, PEM after 64, and YAML indents them.

use std::ops::Range;

use base64::{Engine, engine::general_purpose::STANDARD_NO_PAD};
use memchr::memchr3;

use super::names::SHORTEST;

/// A line of base64 is at least so long. Most words of a text are shorter, so most texts are read once only.
const SHORTEST_LINE: usize = 8;
/// How often a text is decoded: JSON in JSON in JSON (what a tool gives is in an event, which a program may print), with
/// lines of base64 in it.
pub(super) const STEPS: usize = 4;
/// A shorter part of a base64 text is too short to search for.
const SHORTEST_BASE64: usize = 8;

/// All forms of a secret, the plain one first: as it is, with `+` for spaces as in URLs, and within base64. Each of them may be
/// in a text with escapes, which is decoded before it is searched.
pub(super) fn forms(secret: &str) -> Vec<String> {
    let mut forms = vec![secret.to_owned()];
    // What looks like an escape in the secret itself, such as in the address of a database, is decoded with the text.
    forms.extend(decoded(secret).filter(|text| text.len() >= SHORTEST));
    forms.push(secret.replace(' ', "+"));
    for before in 0..3 {
        let plain = base64(secret, before);
        forms.extend(plain.iter().map(|text| text.replace('+', "-").replace('/', "_")));
        forms.extend(plain);
    }
    let mut seen = std::collections::BTreeSet::new();
    forms.retain(|form| seen.insert(form.clone()));
    forms
}

/// A text without its escapes, if it has any.
pub(super) fn decoded(text: &str) -> Option<String> {
    Decoded::of(text.as_bytes(), TextEnd::Last).and_then(|decoded| String::from_utf8(decoded.bytes).ok())
}

/// What a base64 text certainly has in it when the secret follows so many bytes (of three). The characters at its ends
/// depend on what is beside the secret too, and have less than a character of the secret.
fn base64(secret: &str, before: usize) -> Option<String> {
    /// Bits of a character.
    const BITS: usize = 6;
    let mut bytes = vec![0; before];
    bytes.extend_from_slice(secret.as_bytes());
    let text = STANDARD_NO_PAD.encode(&bytes);
    text.get((before * 8).div_ceil(BITS)..bytes.len() * 8 / BITS)
        .filter(|text| text.len() >= SHORTEST_BASE64)
        .map(str::to_owned)
}

/// A text after one step of decoding.
pub(super) struct Decoded {
    pub(super) bytes: Vec<u8>,
    /// In order.
    edits: Vec<Edit>,
    /// Whether there may be more to decode.
    pub(super) is_nested: bool,
}

/// A piece of the text that stands for something else.
struct Edit {
    /// What it stands for; a line break stands for nothing.
    bytes: Range<usize>,
    /// Where the text goes on after it.
    after: usize,
}

/// Whether more text may follow.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum TextEnd {
    Last,
    /// An escape at the end may be incomplete, and is left out; a break there may be one within base64.
    Open,
}

/// What is at a place of a text.
enum Piece {
    Plain,
    /// The text ends before it shows.
    Unfinished,
    Byte(Range<usize>, u8),
    Char(Range<usize>, char),
    Break(Range<usize>),
}

impl Decoded {
    /// None if there is nothing to decode.
    pub(super) fn of(text: &[u8], ending: TextEnd) -> Option<Self> {
        let mut decoded = Self { bytes: Vec::new(), edits: Vec::new(), is_nested: false };
        let (mut at, mut end, mut kept) = (0, text.len(), 0);
        while let Some(found) = memchr3(b'%', b'\\', b'\n', &text[at..]) {
            at += found;
            let piece = match text[at] {
                b'%' => url_escape(text, at),
                b'\\' => json_escape(text, at),
                _ => line_break(text, at, ending),
            };
            let range = match &piece {
                Piece::Unfinished if ending == TextEnd::Open => {
                    end = at;
                    break;
                }
                Piece::Plain | Piece::Unfinished => {
                    at += 1;
                    continue;
                }
                Piece::Byte(range, _) | Piece::Char(range, _) | Piece::Break(range) => range.clone(),
            };
            decoded.bytes.extend_from_slice(&text[kept..range.start]);
            decoded.push(&piece, range.end);
            (at, kept) = (range.end, range.end);
        }
        if end == text.len() && ending == TextEnd::Open && text.ends_with(b"\r") && ends_a_line(text, end - 1)
        {
            decoded.bytes.extend_from_slice(&text[kept..end - 1]);
            decoded.push(&Piece::Plain, end);
            kept = end;
        }
        if decoded.edits.is_empty() && end == text.len() {
            return None;
        }
        decoded.bytes.extend_from_slice(&text[kept..end]);
        Some(decoded)
    }

    fn push(&mut self, piece: &Piece, after: usize) {
        let start = self.bytes.len();
        match piece {
            Piece::Byte(_, byte) => self.bytes.push(*byte),
            Piece::Char(_, char) => self.bytes.extend_from_slice(char.encode_utf8(&mut [0; 4]).as_bytes()),
            Piece::Break(_) | Piece::Plain | Piece::Unfinished => {}
        }
        self.is_nested |= matches!(self.bytes[start..], [b'%' | b'\\' | b'\n' | b'\r']);
        self.edits.push(Edit { bytes: start..self.bytes.len(), after });
    }

    /// Where a byte is in the text.
    pub(super) fn place(&self, byte: usize) -> usize {
        let before = self.edits.partition_point(|edit| edit.bytes.end <= byte);
        self.edits[..before].last().map_or(byte, |edit| edit.after + byte - edit.bytes.end)
    }

    /// Where these bytes are in the text; a break after them is not among them. What is found is valid UTF-8, so its ends
    /// are between characters.
    pub(super) fn in_text(&self, bytes: Range<usize>) -> Range<usize> {
        let before = self.edits.partition_point(|edit| edit.bytes.start < bytes.end);
        let end =
            self.edits[..before].last().map_or(bytes.end, |edit| edit.after + bytes.end - edit.bytes.end);
        self.place(bytes.start)..end
    }
}

/// Each `%` with two hexadecimal digits is the byte that it stands for.
fn url_escape(text: &[u8], at: usize) -> Piece {
    match hexadecimal(text, at + 1, 2) {
        Ok(byte) => Piece::Byte(at..at + 3, byte.to_le_bytes()[0]),
        Err(other) => other,
    }
}

fn json_escape(text: &[u8], at: usize) -> Piece {
    let char = match text.get(at + 1) {
        None => return Piece::Unfinished,
        Some(b'u') => return unicode_escape(text, at),
        Some(byte @ (b'"' | b'\\' | b'/')) => char::from(*byte),
        Some(b'b') => '\u{8}',
        Some(b'f') => '\u{c}',
        Some(b'n') => '\n',
        Some(b'r') => '\r',
        Some(b't') => '\t',
        Some(_) => return Piece::Plain,
    };
    Piece::Char(at..at + 2, char)
}

/// `\u` with four digits; a character beyond the first 65536 is two of them.
fn unicode_escape(text: &[u8], at: usize) -> Piece {
    let high = match hexadecimal(text, at + 2, 4) {
        Ok(high) => high,
        Err(other) => return other,
    };
    if let Some(char) = char::from_u32(high) {
        return Piece::Char(at..at + 6, char);
    }
    let next = &text[at + 6..];
    if !next.starts_with(b"\\u") {
        return if b"\\u".starts_with(next) { Piece::Unfinished } else { Piece::Plain };
    }
    match hexadecimal(text, at + 8, 4) {
        Ok(low @ 0xdc00..0xe000) if high < 0xdc00 => {
            let char = char::from_u32(0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00));
            char.map_or(Piece::Plain, |char| Piece::Char(at..at + 12, char))
        }
        Ok(_) => Piece::Plain,
        Err(other) => other,
    }
}

/// So many hexadecimal digits.
fn hexadecimal(text: &[u8], from: usize, count: usize) -> Result<u32, Piece> {
    let mut value = 0;
    for at in from..from + count {
        let byte = text.get(at).ok_or(Piece::Unfinished)?;
        value = value * 16 + char::from(*byte).to_digit(16).ok_or(Piece::Plain)?;
    }
    Ok(value)
}

/// A break within base64, with the indent of the next line.
fn line_break(text: &[u8], at: usize, ending: TextEnd) -> Piece {
    let end = at - usize::from(text[..at].ends_with(b"\r"));
    let indent = text[at + 1..].iter().take_while(|byte| matches!(byte, b' ' | b'\t')).count();
    let next = at + 1 + indent;
    let goes_on = text.get(next).map_or(ending == TextEnd::Open, |byte| is_base64(*byte));
    if goes_on && ends_a_line(text, end) { Piece::Break(end..next) } else { Piece::Plain }
}

fn ends_a_line(text: &[u8], end: usize) -> bool {
    let line = text[..end].iter().rev().take(SHORTEST_LINE);
    line.take_while(|byte| is_base64(**byte)).count() == SHORTEST_LINE
}

fn is_base64(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/' | b'-' | b'_')
}
