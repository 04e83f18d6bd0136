//! The hash of all that the author wrote.

use std::borrow::Cow;

use sha2::{Digest, Sha256};

use crate::source::{Drawn, Loaded};

/// SHA-256 over the flow's text, each file that it draws in and each change made for the run, each with its length before it, so that no
/// two flows run together into the same bytes. Line ends do not count.
pub(super) fn of(loaded: &Loaded) -> String {
    let mut hash = Sha256::new();
    let mut add = |text: &str| {
        let text = if text.contains('\r') { text.replace("\r\n", "\n").into() } else { Cow::Borrowed(text) };
        hash.update((text.len() as u64).to_be_bytes());
        hash.update(text.as_bytes());
    };
    add(&loaded.text);
    for (path, drawn) in &loaded.files {
        if let Drawn::Text(text) = drawn {
            add(path);
            add(text);
        }
    }
    for change in &loaded.changes {
        add(&serde_json::to_string(change).unwrap_or_default());
    }
    let digits = hash.finalize().into_iter().flat_map(|byte| [byte >> 4, byte & 0xf]);
    digits.filter_map(|digit| char::from_digit(digit.into(), 16)).collect()
}
