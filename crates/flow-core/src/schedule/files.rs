//! Files that a session takes over from the one whose work it reuses: its outputs name them where they were, and here they
//! are in the folder of this session.

use std::cmp::Reverse;

use serde_json::Value;

use super::Run;

impl Run {
    /// A value of an earlier session with the paths that its files have in this one; nothing if it names none.
    pub(super) fn with_own_files(&self, value: &Value) -> Option<Value> {
        let own = self.flow["artifacts"].as_str()?;
        let mut paths = [own, &self.artifacts_named];
        // One path may end as the other does: the longer one is looked for first.
        paths.sort_unstable_by_key(|path| Reverse(path.len()));
        let mut found = None;
        for all in paths.iter().filter_map(|path| path.strip_suffix(self.session.as_str())) {
            for session in self.reusable.iter().flat_map(|reusable| reusable.sessions()) {
                let folder = format!("{all}{session}");
                let seen = found.as_ref().unwrap_or(value);
                if has_text(seen, &folder) {
                    found = Some(moved(seen, &folder, own));
                }
            }
        }
        found
    }
}

/// Whether a text is anywhere in a value.
fn has_text(value: &Value, part: &str) -> bool {
    match value {
        Value::String(text) => text.contains(part),
        Value::Array(items) => items.iter().any(|item| has_text(item, part)),
        Value::Object(fields) => {
            fields.iter().any(|(name, field)| name.contains(part) || has_text(field, part))
        }
        _ => false,
    }
}

/// The value with another path for a folder and what is in it.
pub(crate) fn moved(value: &Value, from: &str, to: &str) -> Value {
    match value {
        Value::String(text) => Value::String(moved_text(text, from, to)),
        Value::Array(items) => items.iter().map(|item| moved(item, from, to)).collect(),
        Value::Object(fields) => {
            let field =
                |(name, field): (&String, &Value)| (moved_text(name, from, to), moved(field, from, to));
            fields.iter().map(field).collect()
        }
        other => other.clone(),
    }
}

fn moved_text(text: &str, from: &str, to: &str) -> String {
    let mut parts = text.split(from);
    let mut moved = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        // Another session may have an id that begins with this one; a dot at the end is that of a sentence.
        let mut next = part.chars();
        let goes_on = match next.next() {
            Some('.') => next.next().is_some_and(char::is_alphanumeric),
            next => next.is_some_and(|next| next.is_ascii_alphanumeric() || matches!(next, '-' | '_')),
        };
        moved.push_str(if goes_on { from } else { to });
        moved.push_str(part);
    }
    moved
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_path_of_another_session_whose_id_begins_the_same_stays() {
        let value =
            json!({ "/all/a/x": "/all/a.", "two": ["at /all/a, /all/a2/y, /all/a.b and /all/a-1", 7] });
        let expected =
            json!({ "/all/b/x": "/all/b.", "two": ["at /all/b, /all/a2/y, /all/a.b and /all/a-1", 7] });
        assert!(has_text(&value, "/all/a2"));
        assert_eq!(moved(&value, "/all/a", "/all/b"), expected);
    }
}
