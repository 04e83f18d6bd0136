//! What the tests of this crate share: recorded logs, and values as lines.

use inspan_protocol::Envelope;
use inspan_testkit::{fixture_dir, read_jsonl};
use serde::Serialize;
use serde_json::{Map, Value, json};

/// The log of a flow fixture.
pub(crate) fn flow_log(name: &str) -> Vec<Envelope> {
    read_jsonl(fixture_dir().join("flows").join(name).join("events.jsonl")).unwrap()
}

/// The log of a session that an older version stored: `crashed`, `failed`, `finished` or `waiting`.
pub(crate) fn stored_log(name: &str) -> Vec<Envelope> {
    let path = fixture_dir().join("stores/format-2/exports").join(format!("{name}.jsonl"));
    let lines: Vec<Value> = read_jsonl(path).unwrap();
    lines
        .into_iter()
        .filter(|line| line.get("seq").is_some())
        .map(|line| serde_json::from_value(line).unwrap())
        .collect()
}

/// A value with one line for each entry of its lists, so that a difference is seen.
pub(crate) fn lines(value: &impl Serialize) -> String {
    let value = json!(value);
    let empty = Map::new();
    let mut lines = Vec::new();
    for (key, field) in value.as_object().unwrap_or(&empty) {
        match field {
            Value::Array(entries) => lines.extend(entries.iter().map(|entry| format!("{key}: {entry}"))),
            other => lines.push(format!("{key}: {other}")),
        }
    }
    lines.join("\n")
}
