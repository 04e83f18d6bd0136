//! The envelope that the hub puts around each event: order, identity, time and place. The version
//! numbers of every stored format and the depth of their JSON are here too; a reader refuses what is newer than itself.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, de};
use serde_json::Value;

use crate::{Event, EventId, NodePath, RunId, SessionId, Timestamp};

/// Version of [`crate::Envelope`], written as `v`.
pub const ENVELOPE_VERSION: u16 = 1;
/// Version of [`crate::RunSnapshot`].
pub const SNAPSHOT_VERSION: u16 = 1;
/// Version of [`crate::SessionState`].
pub const SESSION_STATE_VERSION: u16 = 1;
/// Version of a recorded provider call.
pub const RECORDING_VERSION: u16 = 2;

/// The most levels of lists and objects within one another in JSON from outside. What is stored is some levels deeper in
/// its event or record, and a reader of JSON takes 128 levels and no more.
pub const DEEPEST: usize = 100;

/// One event of one session, live or recorded: the two are the same type.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Envelope {
    /// The version of this format.
    #[serde(deserialize_with = "known_version")]
    pub v: u16,
    /// The identity of the event.
    pub id: EventId,
    /// The place in the session's order, dense from 1; nothing else sorts events.
    pub seq: u64,
    /// When the hub took the event.
    pub timestamp: Timestamp,
    /// Where the event comes from.
    pub context: Arc<EventContext>,
    /// What happened.
    pub event: Event,
}

impl Envelope {
    /// The event at this place of its session's log.
    pub fn new(context: impl Into<Arc<EventContext>>, seq: u64, timestamp: Timestamp, event: Event) -> Self {
        let context = context.into();
        let id = EventId::of(&context.session_id, seq);
        Self { v: ENVELOPE_VERSION, id, seq, timestamp, context, event }
    }
}

fn known_version<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u16, D::Error> {
    let v = u16::deserialize(deserializer)?;
    if v == 0 || v > ENVELOPE_VERSION {
        return Err(de::Error::custom(format_args!(
            "the envelope has format version {v}, and this program reads up to {ENVELOPE_VERSION}"
        )));
    }
    Ok(v)
}

/// The place of an event: its session, and as far as known the phase, the task and the agent run.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EventContext {
    /// The session that the event belongs to.
    pub session_id: SessionId,
    /// The flow's phase.
    pub phase: Option<Arc<str>>,
    /// The node's place in the run.
    pub task: Option<NodePath>,
    /// The agent run.
    pub agent: Option<RunId>,
}

impl EventContext {
    /// The context of a session and nothing more.
    pub fn session(session_id: SessionId) -> Self {
        Self { session_id, phase: None, task: None, agent: None }
    }

    /// The same place within a phase.
    #[must_use]
    pub fn with_phase(&self, phase: impl Into<Arc<str>>) -> Self {
        Self { phase: Some(phase.into()), ..self.clone() }
    }

    /// The same place within a task.
    #[must_use]
    pub fn with_task(&self, task: NodePath) -> Self {
        Self { task: Some(task), ..self.clone() }
    }

    /// The same place within an agent run.
    #[must_use]
    pub fn with_agent(&self, run: RunId) -> Self {
        Self { agent: Some(run), ..self.clone() }
    }
}

/// Whether a value is nested deeper than it may be.
pub fn is_too_deep(value: &Value) -> bool {
    exceeds(value, DEEPEST)
}

fn exceeds(value: &Value, levels: usize) -> bool {
    match value {
        Value::Array(items) => levels == 0 || items.iter().any(|item| exceeds(item, levels - 1)),
        Value::Object(fields) => levels == 0 || fields.values().any(|field| exceeds(field, levels - 1)),
        _ => false,
    }
}

/// The first whole number of a JSON text that has more than 64 bits, and its place: it would become another number.
pub fn oversized_number(text: &str) -> Option<(usize, &str)> {
    let (mut at, bytes) = (0, text.as_bytes());
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'"' => {
                at += 1;
                while let Some(byte) = bytes.get(at).filter(|byte| **byte != b'"') {
                    at += if *byte == b'\\' { 2 } else { 1 };
                }
                at += 1;
            }
            b'-' | b'0'..=b'9' => {
                let is_part = |c: char| c.is_ascii_digit() || matches!(c, '-' | '+' | '.' | 'e' | 'E');
                let rest = &text[at..];
                let number = &rest[..rest.find(|c| !is_part(c)).unwrap_or(rest.len())];
                let is_whole = !number.contains(['.', 'e', 'E']);
                if is_whole && number.parse::<u64>().is_err() && number.parse::<i64>().is_err() {
                    return Some((at, number));
                }
                at += number.len();
            }
            _ => at += 1,
        }
    }
    None
}

/// The value, or its text if it is nested too deep.
pub fn flat(value: Value) -> Value {
    if is_too_deep(&value) { Value::String(value.to_string()) } else { value }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;
    use crate::{Event, NodeId};

    fn nested(levels: usize) -> Value {
        (0..levels).fold(
            json!(1),
            |value, level| if level % 2 == 0 { json!([value]) } else { json!({ "x": value }) },
        )
    }

    #[test]
    fn what_is_deep_enough_is_read_again_and_what_is_deeper_becomes_a_text() {
        let levels = [0, 1, DEEPEST, DEEPEST + 1, 500];
        assert_eq!(levels.map(|levels| is_too_deep(&nested(levels))), [false, false, false, true, true]);
        assert_eq!(flat(nested(DEEPEST)), nested(DEEPEST));
        assert_eq!(flat(nested(DEEPEST + 1)), Value::String(nested(DEEPEST + 1).to_string()));
        let event = Event::TaskComplete {
            task_id: NodeId::new("a").unwrap(),
            result: Arc::new(json!({ "structuredOutput": nested(DEEPEST - 1) })),
            duration_ms: 1,
        };
        let text = json!({ "lines": [{ "event": event }] }).to_string();
        assert!(serde_json::from_str::<Value>(&text).is_ok());
        assert!(serde_json::from_str::<Value>(&nested(128).to_string()).is_err());
    }
}
