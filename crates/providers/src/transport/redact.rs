//! Takes secrets out of texts that leave an adapter: errors and warnings.
//! Which texts those are is left to the adapters; what an agent itself says is not touched.

use inspan_protocol::Environment;

/// Stands where a secret stood.
const REDACTED: &str = "[redacted]";
/// A variable whose name has one of these parts holds a secret.
const SECRET_NAMES: &[&str] =
    &["KEY", "TOKEN", "SECRET", "PASSWORD", "PASSWD", "CREDENTIAL", "AUTH", "COOKIE", "HEADERS"];
/// Values shorter than this are words rather than secrets, and would tear holes into every text.
const SHORTEST_SECRET: usize = 8;
/// A word that begins so is a secret whoever set it.
const SECRET_STARTS: &[&str] = &["sk-", "ghp_", "gho_", "github_pat_", "xoxb-", "AKIA", "eyJ"];
/// The word after one of these, in any case, is a secret.
const SECRET_LEADS: &[&str] = &["bearer ", "api-key: ", "api-key=", "api_key="];

/// Knows the secrets of one environment.
#[derive(Clone, Default)]
pub(crate) struct Redactor {
    secrets: Vec<String>,
}

impl std::fmt::Debug for Redactor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Redactor({} secrets)", self.secrets.len())
    }
}

impl Redactor {
    /// Learns the secrets by the names of the variables.
    pub(crate) fn new(environment: &Environment) -> Self {
        let mut secrets: Vec<String> = environment
            .iter()
            .filter(|(name, _)| SECRET_NAMES.iter().any(|part| name.to_ascii_uppercase().contains(part)))
            .flat_map(|(_, value)| value.lines().map(|line| line.split_once(": ").map_or(line, |(_, v)| v)))
            .filter(|value| value.len() >= SHORTEST_SECRET)
            .map(str::to_owned)
            .collect();
        // A secret that contains another one has to go first, or its rest would stay.
        secrets.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
        Self { secrets }
    }

    /// Knows these secrets too, whatever they are called.
    #[must_use]
    pub(crate) fn with(mut self, secrets: impl IntoIterator<Item = String>) -> Self {
        self.secrets.extend(secrets.into_iter().filter(|secret| secret.len() >= SHORTEST_SECRET));
        self.secrets.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
        self
    }

    /// The text without the secrets that are known, and otherwise as it is.
    pub(crate) fn known(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for secret in &self.secrets {
            if text.contains(secret.as_str()) {
                text = text.replace(secret.as_str(), REDACTED);
            }
        }
        text
    }

    /// The text without secrets.
    pub(crate) fn redact(&self, text: &str) -> String {
        let mut text = self.known(text);
        for lead in SECRET_LEADS {
            text = after_lead(&text, lead);
        }
        for start in SECRET_STARTS {
            text = word_starts(&text, start);
        }
        text
    }
}

fn is_end(c: char) -> bool {
    c.is_whitespace() || matches!(c, '"' | '\'' | ',' | ';' | ')' | ']' | '}')
}

/// Replaces the word after each `lead`.
fn after_lead(text: &str, lead: &str) -> String {
    let lower = text.to_ascii_lowercase();
    let mut out = String::with_capacity(text.len());
    let mut done = 0;
    while let Some(found) = lower[done..].find(lead) {
        let word = done + found + lead.len();
        let end = text[word..].find(is_end).map_or(text.len(), |end| word + end);
        out.push_str(&text[done..word]);
        if end > word {
            out.push_str(REDACTED);
        }
        done = end;
    }
    out.push_str(&text[done..]);
    out
}

/// Replaces each word of some length that begins with `start`.
fn word_starts(text: &str, start: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut done = 0;
    while let Some(found) = text[done..].find(start) {
        let word = done + found;
        let end = text[word..].find(is_end).map_or(text.len(), |end| word + end);
        let inside = text[..word].chars().next_back().is_some_and(char::is_alphanumeric);
        let secret = !inside && end - word >= start.len() + SHORTEST_SECRET;
        out.push_str(&text[done..word]);
        out.push_str(if secret { REDACTED } else { &text[word..end] });
        done = end;
    }
    out.push_str(&text[done..]);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_leave_every_text() {
        let environment: Environment = [
            ("ANTHROPIC_API_KEY", "planted-secret-1"),
            ("MY_TOKEN", "planted-secret-1-longer"),
            ("ANTHROPIC_CUSTOM_HEADERS", "X-One: header-value-1\nX-Two: header-value-2"),
            ("SHORT_KEY", "fake"),
            ("HOME", "/home/dev/plain"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into_iter()
        .collect();
        let redactor = Redactor::new(&environment);
        let rows = [
            ("key planted-secret-1-longer, planted-secret-1.", "key [redacted], [redacted]."),
            ("sent header-value-1 and header-value-2", "sent [redacted] and [redacted]"),
            ("a fake key in /home/dev/plain", "a fake key in /home/dev/plain"),
            ("Authorization: Bearer abc.def, then", "Authorization: Bearer [redacted], then"),
            ("{\"x-api-key: whatever\"}", "{\"x-api-key: [redacted]\"}"),
            ("it was sk-ant-api03-abcdefgh!", "it was [redacted]"),
            ("task-abcdefghijkl and sk-1", "task-abcdefghijkl and sk-1"),
            ("nothing at all", "nothing at all"),
        ];
        assert_eq!(rows.map(|(text, _)| redactor.redact(text)), rows.map(|(_, text)| text.to_owned()));
        assert_eq!(format!("{redactor:?}"), "Redactor(4 secrets)");
    }
}
