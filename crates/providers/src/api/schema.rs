//! What the vendors' parts of JSON Schema have in common. A vendor enforces some keywords only; the others are put
//! into the description for the model to read.

use serde_json::{Map, Value, json};

/// Formats of strings that every vendor enforces.
pub(crate) const FORMATS: [&str; 9] =
    ["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"];
/// Where schemas that others refer to are.
pub(crate) const DEFINITIONS: [&str; 2] = ["$defs", "definitions"];

/// Whether the value of `type` includes a type.
pub(crate) fn has_type(kind: Option<&Value>, wanted: &str) -> bool {
    match kind {
        Some(Value::String(kind)) => kind == wanted,
        Some(Value::Array(kinds)) => kinds.iter().any(|kind| kind == wanted),
        _ => false,
    }
}

/// Adds the other keywords to the description.
pub(crate) fn describe(out: &mut Map<String, Value>, rest: Map<String, Value>) {
    if rest.is_empty() {
        return;
    }
    let keywords: Vec<String> = rest.iter().map(|(name, value)| format!("{name}: {value}")).collect();
    let keywords = format!("{{{}}}", keywords.join(", "));
    let description = match out.get("description").and_then(Value::as_str) {
        Some(description) => format!("{description}\n\n{keywords}"),
        None => keywords,
    };
    out.insert("description".to_owned(), json!(description));
}
