//! From a JSON Schema as an author writes it to the part of JSON Schema that the vendor takes; it refuses the rest.
//! Whether an answer fits the author's own schema is judged by those who called.
//!
//! The rules are those of the vendor's own client library: objects are closed, `oneOf` becomes `anyOf`, and what the
//! vendor cannot hold the model to is told to it in the description.

use serde_json::{Map, Value, json};

const FORMATS: &[&str] =
    &["date-time", "time", "date", "duration", "email", "hostname", "uri", "ipv4", "ipv6", "uuid"];

/// The schema in the vendor's form.
pub(super) fn strict(schema: &Value) -> Value {
    let Value::Object(schema) = schema else {
        // `true` and `false` are schemas too, but none that says what to answer.
        return json!({ "type": "object", "properties": {}, "additionalProperties": false });
    };
    let mut rest = schema.clone();
    let mut out = Map::new();
    rest.remove("$schema");
    for definitions in ["$defs", "definitions"] {
        if let Some(Value::Object(parts)) = rest.remove(definitions) {
            out.insert(definitions.to_owned(), each(&parts));
        }
    }
    if let Some(reference) = rest.remove("$ref") {
        out.insert("$ref".to_owned(), reference);
        return Value::Object(out);
    }
    let plain = |value: &Value| !value.is_object() && !value.is_array();
    let literals = match (rest.get("enum"), rest.get("const")) {
        (Some(Value::Array(values)), _) if !values.is_empty() && values.iter().all(plain) => Some("enum"),
        (_, Some(value)) if plain(value) => Some("const"),
        _ => None,
    };
    let kind = rest.remove("type");
    let choices =
        ["anyOf", "oneOf", "allOf"].into_iter().find(|name| rest.get(*name).is_some_and(Value::is_array));
    if let Some(name) = literals {
        out.extend(rest.remove_entry(name));
    } else if let Some(name) = choices {
        if let Some(Value::Array(parts)) = rest.remove(name) {
            let name = if name == "oneOf" { "anyOf" } else { name };
            out.insert(name.to_owned(), parts.iter().map(strict).collect());
        }
    } else {
        let shape = if rest.contains_key("items") { "array" } else { "object" };
        out.insert("type".to_owned(), kind.clone().unwrap_or_else(|| json!(shape)));
    }
    for name in ["description", "title"] {
        out.extend(rest.remove_entry(name));
    }
    let is = |wanted: &str| match out.get("type") {
        Some(Value::String(kind)) => kind == wanted,
        Some(Value::Array(kinds)) => kinds.iter().any(|kind| kind == wanted),
        _ => false,
    };
    let (object, text, array) = (is("object"), is("string"), is("array"));
    if object {
        let properties = match rest.remove("properties") {
            Some(Value::Object(parts)) => each(&parts),
            _ => json!({}),
        };
        out.insert("properties".to_owned(), properties);
        rest.remove("additionalProperties");
        out.insert("additionalProperties".to_owned(), json!(false));
        out.extend(rest.remove_entry("required"));
    }
    if text && rest.get("format").and_then(Value::as_str).is_some_and(|format| FORMATS.contains(&format)) {
        out.extend(rest.remove_entry("format"));
    }
    if array {
        if let Some(items) = rest.remove("items") {
            out.insert("items".to_owned(), strict(&items));
        }
        if rest.get("minItems").and_then(Value::as_u64).is_some_and(|least| least <= 1) {
            out.extend(rest.remove_entry("minItems"));
        }
    }
    if !rest.is_empty() {
        let said: Vec<String> = rest.iter().map(|(name, value)| format!("{name}: {value}")).collect();
        let told = format!("{{{}}}", said.join(", "));
        let description = match out.get("description").and_then(Value::as_str) {
            Some(description) => format!("{description}\n\n{told}"),
            None => told,
        };
        out.insert("description".to_owned(), json!(description));
    }
    Value::Object(out)
}

fn each(parts: &Map<String, Value>) -> Value {
    Value::Object(parts.iter().map(|(name, part)| (name.clone(), strict(part))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schemas_take_the_vendors_form() {
        let rows = [
            (
                json!({ "$schema": "x", "type": "object", "required": ["a"], "additionalProperties": true,
                    "properties": { "a": { "type": "integer", "minimum": 1, "description": "how many" } } }),
                json!({ "type": "object", "required": ["a"], "additionalProperties": false,
                    "properties": { "a": { "type": "integer", "description": "how many\n\n{minimum: 1}" } } }),
            ),
            (
                json!({ "type": "array", "minItems": 2, "items": { "type": "object" } }),
                json!({ "type": "array", "description": "{minItems: 2}",
                    "items": { "type": "object", "properties": {}, "additionalProperties": false } }),
            ),
            (json!({ "type": "array", "minItems": 1 }), json!({ "type": "array", "minItems": 1 })),
            (json!({ "type": "string", "enum": ["a", "b"] }), json!({ "enum": ["a", "b"] })),
            (json!({ "const": 1 }), json!({ "const": 1 })),
            (
                json!({ "oneOf": [{ "type": "string", "format": "uuid" }, { "type": "null" }] }),
                json!({ "anyOf": [{ "type": "string", "format": "uuid" }, { "type": "null" }] }),
            ),
            (
                json!({ "type": "string", "format": "color" }),
                json!({ "type": "string", "description": "{format: \"color\"}" }),
            ),
            (
                json!({ "$defs": { "n": { "type": "object" } }, "$ref": "#/$defs/n" }),
                json!({ "$defs": { "n": { "type": "object", "properties": {}, "additionalProperties": false } },
                    "$ref": "#/$defs/n" }),
            ),
            (
                json!({ "properties": { "a": { "items": { "type": "string" } } } }),
                json!({ "type": "object", "additionalProperties": false,
                    "properties": { "a": { "type": "array", "items": { "type": "string" } } } }),
            ),
            (json!(true), json!({ "type": "object", "properties": {}, "additionalProperties": false })),
        ];
        for (schema, expected) in rows {
            assert_eq!(strict(&schema), expected, "{schema}");
        }
    }
}
