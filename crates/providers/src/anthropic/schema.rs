//! From a JSON Schema as an author writes it to the part of JSON Schema that the vendor accepts. The rules are those of the
//! vendor's own client library: objects are closed, `oneOf` becomes `anyOf`, and keywords that the vendor does not enforce
//! go into the description. The engine validates the output against the author's schema.

use serde_json::{Map, Value, json};

use crate::api::schema::{DEFINITIONS, FORMATS, describe, has_type};

/// The schema in the vendor's form.
pub(super) fn strict(schema: &Value) -> Value {
    let Value::Object(fields) = schema else {
        // `true` and `false` are schemas too, but they do not say what to answer.
        return json!({ "type": "object", "properties": {}, "additionalProperties": false });
    };
    let mut rest = fields.clone();
    let mut out = Map::new();
    rest.remove("$schema");
    for definitions in DEFINITIONS {
        if let Some(Value::Object(parts)) = rest.remove(definitions) {
            out.insert(definitions.to_owned(), each(&parts));
        }
    }
    if let Some(reference) = rest.remove("$ref") {
        out.insert("$ref".to_owned(), reference);
        return Value::Object(out);
    }
    let kind = rest.remove("type");
    if !literals(&mut out, &mut rest) && !choices(&mut out, &mut rest) {
        let implied = if rest.contains_key("items") { "array" } else { "object" };
        out.insert("type".to_owned(), kind.unwrap_or_else(|| json!(implied)));
    }
    for name in ["description", "title"] {
        out.extend(rest.remove_entry(name));
    }
    let kind = out.get("type").cloned();
    if has_type(kind.as_ref(), "object") {
        object(&mut out, &mut rest);
    }
    if has_type(kind.as_ref(), "string")
        && rest
            .get("format")
            .and_then(Value::as_str)
            .is_some_and(|format| format == "uri" || FORMATS.contains(&format))
    {
        out.extend(rest.remove_entry("format"));
    }
    if has_type(kind.as_ref(), "array") {
        array(&mut out, &mut rest);
    }
    describe(&mut out, rest);
    Value::Object(out)
}

/// Takes `enum` or `const`, if their values are plain.
fn literals(out: &mut Map<String, Value>, rest: &mut Map<String, Value>) -> bool {
    let plain = |value: &Value| !value.is_object() && !value.is_array();
    let name = match (rest.get("enum"), rest.get("const")) {
        (Some(Value::Array(values)), _) if !values.is_empty() && values.iter().all(plain) => "enum",
        (_, Some(value)) if plain(value) => "const",
        _ => return false,
    };
    out.extend(rest.remove_entry(name));
    true
}

/// Takes the first of `anyOf`, `oneOf` and `allOf`.
fn choices(out: &mut Map<String, Value>, rest: &mut Map<String, Value>) -> bool {
    let is_list = |name: &&str| rest.get(*name).is_some_and(Value::is_array);
    let Some(name) = ["anyOf", "oneOf", "allOf"].into_iter().find(is_list) else { return false };
    if let Some(Value::Array(parts)) = rest.remove(name) {
        let name = if name == "oneOf" { "anyOf" } else { name };
        out.insert(name.to_owned(), parts.iter().map(strict).collect());
    }
    true
}

fn object(out: &mut Map<String, Value>, rest: &mut Map<String, Value>) {
    let properties = match rest.remove("properties") {
        Some(Value::Object(parts)) => each(&parts),
        _ => json!({}),
    };
    out.insert("properties".to_owned(), properties);
    rest.remove("additionalProperties");
    out.insert("additionalProperties".to_owned(), json!(false));
    out.extend(rest.remove_entry("required"));
}

fn array(out: &mut Map<String, Value>, rest: &mut Map<String, Value>) {
    if let Some(items) = rest.remove("items") {
        out.insert("items".to_owned(), strict(&items));
    }
    if rest.get("minItems").and_then(Value::as_u64).is_some_and(|least| least <= 1) {
        out.extend(rest.remove_entry("minItems"));
    }
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
