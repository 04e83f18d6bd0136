//! From a JSON Schema as an author writes it to the part of JSON Schema that the vendor accepts. The rules are those of the
//! vendor's own client library: objects are closed, `oneOf` becomes `anyOf`, and keywords that the vendor does not enforce
//! go into the description. The engine validates the output against the author's schema.

use serde_json::{Map, Value, json};

use crate::api::schema::{DEFINITIONS, FORMATS, describe, has_type};

/// Keywords with a list of schemas.
const CHOICES: [&str; 3] = ["anyOf", "oneOf", "allOf"];

/// The first place, as a JSON pointer, that allows answers which the vendor's form cannot: any value, an object with any keys, or
/// properties beside a choice. Closed, such a place would leave the model nothing but `{}`.
pub(super) fn open_place(schema: &Value) -> Option<String> {
    open_below(schema, String::new())
}

fn open_below(schema: &Value, place: String) -> Option<String> {
    let Value::Object(fields) = schema else { return Some(place) };
    let has = |names: &[&str]| names.iter().any(|name| fields.contains_key(*name));
    let is_choice = has(&CHOICES);
    let kind = fields.get("type");
    let is_plain = has(&["$ref", "enum", "const"]);
    let is_object = has_type(kind, "object") || kind.is_none() && has(&["properties"]);
    let parts = |name: &str| fields.get(name).and_then(Value::as_object);
    let is_open = match (is_plain, is_choice) {
        (true, _) => false,
        (false, true) => has(&["properties", "patternProperties"]),
        (false, false) if is_object => {
            let rest = fields.get("additionalProperties");
            let is_empty = parts("properties").is_none_or(Map::is_empty);
            rest.is_some_and(Value::is_object)
                || has(&["patternProperties"])
                || is_empty && rest != Some(&json!(false))
        }
        (false, false) => kind.is_none() && !has(&["items"]),
    };
    if is_open {
        return Some(place);
    }
    let named = ["properties", DEFINITIONS[0], DEFINITIONS[1]].into_iter();
    let named = named.filter_map(|name| Some((name, parts(name)?)));
    let named = named.flat_map(|(name, parts)| {
        let place = &place;
        parts.iter().map(move |(key, part)| (format!("{place}/{name}/{key}"), part))
    });
    let lists = CHOICES.into_iter().filter_map(|name| Some((name, fields.get(name)?.as_array()?)));
    let lists = lists.flat_map(|(name, parts)| {
        let place = &place;
        parts.iter().enumerate().map(move |(at, part)| (format!("{place}/{name}/{at}"), part))
    });
    let items = fields.get("items").map(|items| (format!("{place}/items"), items));
    named.chain(lists).chain(items).find_map(|(place, part)| open_below(part, place))
}

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
    let Some(name) = CHOICES.into_iter().find(is_list) else { return false };
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
    fn what_would_be_closed_and_may_hold_more_is_found() {
        let text = json!({ "type": "string" });
        let map = json!({ "type": "object", "additionalProperties": { "type": "integer" } });
        let fix = json!([{ "required": ["fix"] }, { "required": ["reason"] }]);
        let of = |part: &Value| json!({ "type": "object", "properties": { "a": part } });
        let rows = [
            (text.clone(), None),
            (of(&text), None),
            (
                json!({ "properties": { "a": { "type": ["integer", "null"] } }, "additionalProperties": true }),
                None,
            ),
            (json!({ "type": "object", "additionalProperties": false }), None),
            (json!({ "anyOf": [of(&text), { "const": 1 }] }), None),
            (json!({ "$defs": { "n": of(&text) }, "$ref": "#/$defs/n" }), None),
            (json!(true), Some("")),
            (json!({ "description": "anything" }), Some("")),
            (json!({ "type": "object" }), Some("")),
            (of(&map), Some("/properties/a")),
            (json!({ "type": "array", "items": of(&json!({})) }), Some("/items/properties/a")),
            (json!({ "oneOf": [text, map] }), Some("/oneOf/1")),
            (json!({ "properties": { "fix": { "type": "string" } }, "anyOf": fix }), Some("")),
        ];
        for (schema, place) in rows {
            assert_eq!(open_place(&schema).as_deref(), place, "{schema}");
        }
    }

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
