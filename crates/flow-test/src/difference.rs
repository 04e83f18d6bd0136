//! How two texts differ, for people.

use std::time::Duration;

use similar::TextDiff;

/// How long comparing two texts may take.
const LIMIT: Duration = Duration::from_millis(200);
/// How much of a difference is shown, in bytes.
const SHOWN: usize = 4_000;

/// The lines in which two texts differ, with two lines around each.
pub fn difference(name: &str, text: &str, other_name: &str, other: &str) -> String {
    let diff = TextDiff::configure().timeout(LIMIT).diff_lines(text, other);
    let mut shown = diff.unified_diff().context_radius(2).header(name, other_name).to_string();
    if shown.len() > SHOWN {
        shown.truncate(shown.floor_char_boundary(SHOWN));
        shown.push_str("\n…\n");
    }
    shown
}
