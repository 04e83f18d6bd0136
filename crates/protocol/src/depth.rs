//! How deep JSON from outside may be nested. What is stored is some levels deeper in its event or record, and a
//! reader of JSON takes 128 levels and no more.

use serde_json::Value;

/// The most levels of lists and objects within one another.
pub const DEEPEST: usize = 100;

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
