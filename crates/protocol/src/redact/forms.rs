//! The forms in which a secret may appear: as it is, with `+` for spaces as in URLs, and within base64. Each of them may be in
//! a text with escapes, which is decoded before it is searched.

use base64::{Engine, engine::general_purpose::STANDARD_NO_PAD};

use super::decoded::{Decoded, TextEnd};
use super::names::SHORTEST;

/// A shorter part of a base64 text is too short to search for.
const SHORTEST_BASE64: usize = 8;

/// All forms of a secret, the plain one first.
pub(super) fn of(secret: &str) -> Vec<String> {
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
