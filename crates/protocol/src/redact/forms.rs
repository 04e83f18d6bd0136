//! The forms in which a secret may appear: as it is, as JSON escapes it, with `+` for spaces as in URLs, and within
//! base64. Each of them may be in a URL: see `escapes`.

use base64::{Engine, engine::general_purpose::STANDARD_NO_PAD};

/// A shorter part of a base64 text is too short to search for.
const SHORTEST_BASE64: usize = 12;

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

/// What a base64 text certainly has in it when the secret follows so many bytes (of three): its ends depend on what
/// is beside the secret.
fn base64(secret: &str, before: usize) -> Option<String> {
    let mut bytes = vec![0; before];
    bytes.extend_from_slice(secret.as_bytes());
    let text = STANDARD_NO_PAD.encode(&bytes[..bytes.len() / 3 * 3]);
    let own = if before == 0 { 0 } else { 4 };
    text.get(own..).filter(|text| text.len() >= SHORTEST_BASE64).map(str::to_owned)
}
