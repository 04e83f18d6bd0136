//! A span as a value: what the fold makes, what the wire sends and what tests compare.

use inspan_protocol::{SpanId, Timestamp, TraceId};
use serde::{Serialize, Serializer};
use serde_json::Value;

/// The most characters of one text; of content more may be sent, see [`MOST_CONTENT`].
const MOST_TEXT: usize = 1024;
/// The most characters of one piece of content.
const MOST_CONTENT: usize = 16 * 1024;
/// The most events of one span; of more the oldest stay.
pub(crate) const MOST_EVENTS: usize = 128;

/// A piece of work that has ended.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Span {
    /// The session's trace.
    #[serde(serialize_with = "shown")]
    pub trace_id: TraceId,
    /// The span itself.
    #[serde(serialize_with = "shown")]
    pub span_id: SpanId,
    /// The span that it is part of; the session's has none.
    #[serde(serialize_with = "shown_if_any", skip_serializing_if = "Option::is_none")]
    pub parent: Option<SpanId>,
    /// What kind of work, with few different values.
    pub name: String,
    /// Whether it is a call to another program.
    pub kind: SpanKind,
    /// When it began.
    pub start: Timestamp,
    /// When it ended, not before it began.
    pub end: Timestamp,
    /// More about it, each key once.
    pub attributes: Attributes,
    /// What happened meanwhile, in order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub events: Vec<SpanEvent>,
    /// How many events were left out.
    #[serde(skip_serializing_if = "is_zero")]
    pub dropped_events: u32,
    /// Spans of other traces that it follows.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub links: Vec<Link>,
    /// Whether it is an error.
    #[serde(skip_serializing_if = "SpanStatus::is_unset")]
    pub status: SpanStatus,
}

/// Whether a span is a call to another program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum SpanKind {
    /// Work of this session.
    Internal,
    /// A request to a service.
    Client,
}

/// How a span ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum SpanStatus {
    /// Without an error.
    #[default]
    Unset,
    /// With this error.
    Error(String),
}

impl SpanStatus {
    /// Whether there is no error.
    pub fn is_unset(&self) -> bool {
        *self == Self::Unset
    }

    /// An error with a message, which is cut where it is long.
    pub(crate) fn error(message: &str) -> Self {
        Self::Error(cut(message, MOST_TEXT))
    }
}

/// Something at one moment of a span.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SpanEvent {
    /// What happened.
    pub name: &'static str,
    /// When.
    pub at: Timestamp,
    /// More about it.
    pub attributes: Attributes,
}

/// A span of another trace.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Link {
    /// Its trace.
    #[serde(serialize_with = "shown")]
    pub trace_id: TraceId,
    /// The span.
    #[serde(serialize_with = "shown")]
    pub span_id: SpanId,
    /// What it is to this one.
    pub attributes: Attributes,
}

/// Attributes in the order in which they were set: texts, numbers, flags and lists of texts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Attributes(Vec<(&'static str, Value)>);

impl Attributes {
    /// The attributes in order.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &Value)> {
        self.0.iter().map(|(key, value)| (*key, value))
    }

    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.0.iter().find(|(known, _)| *known == key).map(|(_, value)| value)
    }

    /// Sets a key, replacing its old value.
    pub(crate) fn set(&mut self, key: &'static str, value: impl Into<Value>) {
        let value = match value.into() {
            Value::String(text) => Value::from(cut(&text, MOST_TEXT)),
            other => other,
        };
        self.put(key, value);
    }

    /// Sets a key to a piece of content, which may be longer than other texts.
    pub(crate) fn set_content(&mut self, key: &'static str, text: &str) {
        self.put(key, cut(text, MOST_CONTENT).into());
    }

    fn put(&mut self, key: &'static str, value: Value) {
        match self.0.iter_mut().find(|(known, _)| *known == key) {
            Some((_, old)) => *old = value,
            None => self.0.push((key, value)),
        }
    }

    /// With one key set.
    #[must_use]
    pub(crate) fn with(mut self, key: &'static str, value: impl Into<Value>) -> Self {
        self.set(key, value);
        self
    }

    /// With one key set, if there is a value.
    #[must_use]
    pub(crate) fn with_some(self, key: &'static str, value: Option<impl Into<Value>>) -> Self {
        match value {
            Some(value) => self.with(key, value),
            None => self,
        }
    }
}

impl Serialize for Attributes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter())
    }
}

fn cut(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

fn shown<S: Serializer>(id: &impl std::fmt::Display, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(id)
}

fn shown_if_any<S: Serializer>(id: &Option<SpanId>, serializer: S) -> Result<S::Ok, S::Error> {
    match id {
        Some(id) => serializer.collect_str(id),
        None => serializer.serialize_none(),
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}
