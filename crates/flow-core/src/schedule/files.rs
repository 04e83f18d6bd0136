//! Files that a session takes over from the one whose work it reuses: its outputs name them where they were, and here they
//! are in the folder of this session.

use serde_json::Value;

use super::Run;

impl Run {
    /// A value of an earlier session with the paths that its files have in this one; nothing if it names none.
    pub(super) fn with_own_files(&self, value: &Value) -> Option<Value> {
        let own = self.flow["artifacts"].as_str()?;
        let all = own.strip_suffix(self.session.as_str())?;
        let mut found = None;
        for session in self.reusable.iter().flat_map(|reusable| reusable.sessions()) {
            let folder = format!("{all}{session}");
            let seen = found.as_ref().unwrap_or(value);
            if has_text(seen, &folder) {
                found = Some(moved(seen, &folder, own));
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
        Value::Object(fields) => fields.values().any(|field| has_text(field, part)),
        _ => false,
    }
}

/// The value with another path for a folder and what is in it.
fn moved(value: &Value, from: &str, to: &str) -> Value {
    match value {
        Value::String(text) => {
            let mut parts = text.split(from);
            let mut moved = parts.next().unwrap_or_default().to_owned();
            for part in parts {
                // Another session may have an id that begins with this one.
                let goes_on = part.starts_with(|c: char| c.is_ascii_alphanumeric() || "-_.".contains(c));
                moved.push_str(if goes_on { from } else { to });
                moved.push_str(part);
            }
            Value::String(moved)
        }
        Value::Array(items) => items.iter().map(|item| moved(item, from, to)).collect(),
        Value::Object(fields) => {
            fields.iter().map(|(name, field)| (name.clone(), moved(field, from, to))).collect()
        }
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_path_of_another_session_whose_id_begins_the_same_stays() {
        let value =
            json!({ "file": "/all/a/x", "two": ["at /all/a, /all/a2/y and /all/a-1", 7], "/all/a": null });
        let expected =
            json!({ "file": "/all/b/x", "two": ["at /all/b, /all/a2/y and /all/a-1", 7], "/all/a": null });
        assert!(has_text(&value, "/all/a2"));
        assert_eq!(moved(&value, "/all/a", "/all/b"), expected);
    }
}
