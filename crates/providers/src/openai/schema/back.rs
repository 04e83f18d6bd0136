//! From an answer whose optional properties are null to one that leaves them out, as the author's schema has it.
//! What null means where the author allows it, it goes on to mean.

use serde_json::{Map, Value};

use super::DEFINITIONS;

/// How deep answers and references are followed.
const DEPTH: usize = 128;

/// Takes the nulls away that stand for what is not there.
pub(super) fn without_nulls(value: &mut Value, author: &Value) {
    clear(value, author, author, DEPTH);
}

fn clear(value: &mut Value, schema: &Value, author: &Value, depth: usize) {
    let Some(depth) = depth.checked_sub(1) else { return };
    if !value.is_object() && !value.is_array() {
        return;
    }
    if let Some(reference) = schema["$ref"].as_str() {
        let target = reference.strip_prefix('#').and_then(|pointer| author.pointer(pointer));
        return target.into_iter().for_each(|target| clear(value, target, author, depth));
    }
    for part in schema["allOf"].as_array().into_iter().flatten() {
        clear(value, part, author, depth);
    }
    for branches in ["anyOf", "oneOf"] {
        let branches = schema[branches].as_array().into_iter().flatten();
        // Only the branch that it is meant for tells which nulls are none.
        let fitting = branches.into_iter().find_map(|branch| {
            let mut tried = value.clone();
            clear(&mut tried, branch, author, depth);
            fits(&tried, branch, author).then_some(tried)
        });
        if let Some(fitting) = fitting {
            *value = fitting;
        }
    }
    match value {
        Value::Object(fields) => {
            let Some(properties) = schema["properties"].as_object() else { return };
            let required = schema["required"].as_array().map(Vec::as_slice).unwrap_or_default();
            fields.retain(|name, field| {
                let part = properties.get(name).filter(|_| field.is_null());
                part.is_none_or(|part| {
                    required.iter().any(|required| required == name) || fits(&Value::Null, part, author)
                })
            });
            for (name, field) in fields {
                if let Some(part) = properties.get(name) {
                    clear(field, part, author, depth);
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| clear(item, &schema["items"], author, depth)),
        _ => {}
    }
}

/// Whether a value fits a part of the author's schema.
fn fits(value: &Value, part: &Value, author: &Value) -> bool {
    let mut whole = Map::new();
    for definitions in DEFINITIONS {
        if let Some(parts) = author.get(definitions) {
            whole.insert(definitions.to_owned(), parts.clone());
        }
    }
    match part {
        Value::Object(fields) => whole.extend(fields.clone()),
        part => return part == &Value::Bool(true),
    }
    jsonschema::validator_for(&Value::Object(whole)).is_ok_and(|validator| validator.is_valid(value))
}
