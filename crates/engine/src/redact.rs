//! Takes secrets out of what leaves a provider or a program: the values of environment variables that look like keys
//! are replaced by their names. Which texts are looked at is left to those who pass them on.

use std::ops::Range;

use inspan_protocol::{AgentError, Environment, ProviderSessionId, StreamEvent};
use serde_json::{Map, Value};

/// Shorter values are ordinary words, and replacing them would garble what is said.
const SHORTEST_SECRET: usize = 8;
const ENDINGS: &[&str] = &["_KEY", "_TOKEN", "_SECRET", "_PASSWORD"];

/// Knows the secrets of one environment.
#[derive(Clone, Default)]
pub struct Redactor {
    /// Secret and replacement, longest secret first, so that none hides within another.
    secrets: Vec<(String, String)>,
}

impl std::fmt::Debug for Redactor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Redactor({} secrets)", self.secrets.len())
    }
}

impl Redactor {
    /// Learns the secrets by the names of the variables.
    pub fn new(env: &Environment) -> Self {
        let secret = |name: &str| {
            let name = name.to_ascii_uppercase();
            ENDINGS.iter().any(|ending| name.ends_with(ending) || name == ending[1..])
        };
        let mut secrets: Vec<_> = env
            .iter()
            .filter(|(name, value)| secret(name) && value.len() >= SHORTEST_SECRET)
            .map(|(name, value)| (value.to_owned(), format!("[redacted {name}]")))
            .collect();
        secrets.sort_by_key(|(secret, _)| std::cmp::Reverse(secret.len()));
        Self { secrets }
    }

    /// Whether there is anything to look for.
    pub fn is_idle(&self) -> bool {
        self.secrets.is_empty()
    }

    /// The text without secrets.
    pub fn text(&self, text: &str) -> String {
        let found = self.find(text);
        cut(text, 0..text.len(), &found)
    }

    /// All strings of the value, names of fields included.
    pub fn value(&self, value: Value) -> Value {
        if self.secrets.is_empty() {
            return value;
        }
        match value {
            Value::String(text) => Value::String(self.text(&text)),
            Value::Array(items) => items.into_iter().map(|item| self.value(item)).collect(),
            Value::Object(fields) => {
                let fields = fields.into_iter().map(|(name, value)| (self.text(&name), self.value(value)));
                Value::Object(fields.collect::<Map<_, _>>())
            }
            other => other,
        }
    }

    /// The error without secrets.
    pub fn error(&self, error: AgentError) -> AgentError {
        if self.is_idle() {
            return error;
        }
        AgentError {
            message: self.text(&error.message),
            detail: error.detail.map(|detail| Box::new(self.value(*detail))),
            ..error
        }
    }

    /// How much of the text's end may be the beginning of a secret, in bytes.
    pub(crate) fn held(&self, text: &str) -> usize {
        let begins = |secret: &str| {
            let longest = text.len().min(secret.len() - 1);
            (1..=longest).rev().find(|&length| text.as_bytes().ends_with(&secret.as_bytes()[..length]))
        };
        self.secrets.iter().filter_map(|(secret, _)| begins(secret)).max().unwrap_or_default()
    }

    /// Takes the secrets out of what a provider says.
    pub(crate) fn event(&self, event: &mut StreamEvent) {
        match event {
            StreamEvent::Session { session_id } => {
                *session_id = ProviderSessionId::from(self.text(session_id.as_str()));
            }
            StreamEvent::Text { content, .. } | StreamEvent::Thinking { content, .. } => {
                *content = self.text(content);
            }
            StreamEvent::ToolStart { tool_name, tool_use_id, input } => {
                *tool_name = self.text(tool_name);
                *tool_use_id = self.text(tool_use_id);
                *input = self.value(input.take());
            }
            StreamEvent::ToolComplete { tool_use_id, result, .. } => {
                *tool_use_id = self.text(tool_use_id);
                *result = self.value(result.take());
            }
            StreamEvent::Warning { code, message } => {
                *code = self.text(code);
                *message = self.text(message);
            }
            _ => {}
        }
    }

    /// Where secrets stand, in order, none within another.
    pub(crate) fn find(&self, text: &str) -> Vec<(Range<usize>, &str)> {
        let mut found: Vec<(Range<usize>, &str)> = Vec::new();
        for (secret, replacement) in &self.secrets {
            for (start, _) in text.match_indices(secret.as_str()) {
                let range = start..start + secret.len();
                if found.iter().all(|(other, _)| range.end <= other.start || other.end <= range.start) {
                    found.push((range, replacement));
                }
            }
        }
        found.sort_by_key(|(range, _)| range.start);
        found
    }
}

/// A part of a text without what was found in the text; a replacement stands where its secret begins.
pub(crate) fn cut(text: &str, part: Range<usize>, found: &[(Range<usize>, &str)]) -> String {
    let mut kept = String::new();
    let mut position = part.start;
    for (secret, replacement) in found {
        if secret.end <= part.start || secret.start >= part.end {
            continue;
        }
        if secret.start >= part.start {
            kept.push_str(&text[position..secret.start]);
            kept.push_str(replacement);
        }
        position = secret.end.min(part.end);
    }
    kept.push_str(&text[position..part.end]);
    kept
}
