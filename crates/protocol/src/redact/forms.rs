//! The forms in which a secret may appear: as it is, as JSON escapes it, with `+` for spaces as in URLs, and within
//! base64. Each of them may be in a URL, where any character may be escaped.

use std::ops::Range;

use base64::{Engine, engine::general_purpose::STANDARD_NO_PAD};

/// A shorter part of a base64 text is too short to search for.
const SHORTEST_BASE64: usize = 8;

/// All forms of a secret, the plain one first.
pub(super) fn of(secret: &str) -> Vec<String> {
    let mut forms = vec![secret.to_owned()];
    // JSON within JSON within JSON: what a tool gives is in an event, which a program may print.
    let mut escaped = secret.to_owned();
    for _ in 0..3 {
        escaped = json(&escaped, Escape::Least);
        forms.push(escaped.clone());
    }
    forms.extend([json(secret, Escape::All), secret.replace(' ', "+")]);
    for before in 0..3 {
        let plain = base64(secret, before);
        forms.extend(plain.iter().map(|text| text.replace('+', "-").replace('/', "_")));
        forms.extend(plain);
    }
    let mut seen = std::collections::BTreeSet::new();
    forms.retain(|form| seen.insert(form.clone()));
    forms
}

#[derive(Clone, Copy, PartialEq)]
enum Escape {
    /// What JSON requires.
    Least,
    /// All that is not ASCII, too.
    All,
}

/// The inside of a JSON string.
fn json(text: &str, escape: Escape) -> String {
    let quoted = serde_json::Value::from(text).to_string();
    let inside = &quoted[1..quoted.len() - 1];
    if escape == Escape::Least {
        return inside.to_owned();
    }
    let mut ascii = String::new();
    for c in inside.chars() {
        if c.is_ascii() {
            ascii.push(c);
        } else {
            for unit in c.encode_utf16(&mut [0; 2]) {
                ascii.push_str(&format!("\\u{unit:04x}"));
            }
        }
    }
    ascii
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

/// A text without the escapes of URLs: each `%` with two hexadecimal digits is the byte that it stands for. `%2F`
/// and `%2f` are `/`, and whoever writes a URL decides what is escaped.
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
            let escaped = if byte == b'%' { url_escape(&text[at + 1..]) } else { None };
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

/// The byte that two digits after a `%` stand for.
fn url_escape(after: &[u8]) -> Option<u8> {
    let digit = |at: usize| char::from(*after.get(at)?).to_digit(16);
    u8::try_from(digit(0)? * 16 + digit(1)?).ok()
}
