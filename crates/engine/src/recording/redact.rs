//! Keeps secrets out of recordings: the values of environment variables that look like keys are replaced by
//! their names, also where a secret straddles two deltas. What is recorded at all is left to `key`.

use std::ops::Range;

use inspan_protocol::{AgentError, Chunk, Environment, ProviderSessionId, StreamEvent};
use serde_json::{Map, Value};

use super::store::{End, RecordedEvent};

/// Shorter values are ordinary words, and replacing them would garble the recording.
const SHORTEST_SECRET: usize = 8;
const ENDINGS: &[&str] = &["_KEY", "_TOKEN", "_SECRET", "_PASSWORD"];

pub(super) struct Redactor {
    /// Secret and replacement, longest secret first, so that none hides within another.
    secrets: Vec<(String, String)>,
}

impl Redactor {
    pub(super) fn new(env: &Environment) -> Self {
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

    pub(super) fn text(&self, text: &str) -> String {
        let found = self.find(text);
        cut(text, 0..text.len(), &found)
    }

    /// All strings of the value, names of fields included.
    pub(super) fn value(&self, value: Value) -> Value {
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

    pub(super) fn end(&self, end: End) -> End {
        match end {
            End::Output(output) => End::Output(self.value(output)),
            End::Error(error) => End::Error(AgentError {
                message: self.text(&error.message),
                detail: error.detail.map(|detail| Box::new(self.value(*detail))),
                ..error
            }),
        }
    }

    pub(super) fn events(&self, events: &mut [RecordedEvent]) {
        if self.secrets.is_empty() {
            return;
        }
        for recorded in &mut *events {
            self.event(&mut recorded.event);
        }
        self.deltas(events, |event| match event {
            StreamEvent::Text { content, chunk: Chunk::Delta } => Some(content),
            _ => None,
        });
        self.deltas(events, |event| match event {
            StreamEvent::Thinking { content, chunk: Chunk::Delta } => Some(content),
            _ => None,
        });
    }

    fn event(&self, event: &mut StreamEvent) {
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

    /// The pieces of one text, looked at as the whole that a reader sees.
    fn deltas(&self, events: &mut [RecordedEvent], piece: fn(&mut StreamEvent) -> Option<&mut String>) {
        let mut whole = String::new();
        let mut pieces: Vec<(Range<usize>, &mut String)> = Vec::new();
        for recorded in events {
            if let Some(content) = piece(&mut recorded.event) {
                let start = whole.len();
                whole.push_str(content);
                pieces.push((start..whole.len(), content));
            }
        }
        let found = self.find(&whole);
        for (range, content) in pieces {
            *content = cut(&whole, range, &found);
        }
    }

    /// Where secrets stand, in order, none within another.
    fn find(&self, text: &str) -> Vec<(Range<usize>, &str)> {
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
fn cut(text: &str, part: Range<usize>, found: &[(Range<usize>, &str)]) -> String {
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
