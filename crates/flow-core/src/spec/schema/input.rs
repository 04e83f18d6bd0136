//! The input schema of a node type in a flow file: values may be templates, and files may replace values.

use serde_json::{Value, json};

use crate::spec::is_schema_key;

/// The schema of an input in a flow file, for `#/$defs/<name>`.
pub(super) fn as_written(schema: &Value, name: &str) -> Value {
    let mut schema = schema.clone();
    move_references(&mut schema, name);
    files(&mut schema, Level::Input);
    if let Some(options) = schema.pointer_mut("/properties/options") {
        files(options, Level::Options);
    }
    bindings(&mut schema);
    schema
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Level {
    Input,
    Options,
}

fn move_references(schema: &mut Value, name: &str) {
    match schema {
        Value::Object(map) => {
            if let Some(Value::String(target)) = map.get_mut("$ref")
                && let Some(path) = target.strip_prefix('#')
            {
                *target = format!("#/$defs/{name}{path}");
            }
            map.values_mut().for_each(|part| move_references(part, name));
        }
        Value::Array(parts) => parts.iter_mut().for_each(|part| move_references(part, name)),
        _ => {}
    }
}

/// Adds `…SchemaFile` beside `…Schema`, and lets `promptFile` of the node replace `prompt`.
fn files(schema: &mut Value, level: Level) {
    let Some(properties) = schema.get_mut("properties").and_then(Value::as_object_mut) else { return };
    properties.retain(|_, value| value.get("x-compiler").is_none());
    if level == Level::Options
        && let Some(servers) = properties.get_mut("mcpServers")
    {
        let names = json!({
            "type": "array", "items": { "type": "string" }, "description": "Names among the flow's `mcpServers`.",
        });
        *servers = json!({ "anyOf": [servers.take(), names] });
    }
    let schemas: Vec<String> = properties.keys().filter(|key| is_schema_key(key)).cloned().collect();
    for key in schemas {
        let file = json!({ "type": "string", "description": format!("A file that holds `{key}`.") });
        properties.insert(format!("{key}File"), file);
    }
    if level == Level::Input {
        if let Some(required) = schema.get_mut("required").and_then(Value::as_array_mut) {
            // A file may give either.
            required.retain(|key| key != "prompt" && key != "schema");
        }
        for word in ["anyOf", "oneOf"] {
            let needs_prompt = |branch: &Value| branch.get("required") == Some(&json!(["prompt"]));
            let branches = schema.get(word).and_then(Value::as_array);
            if branches.is_some_and(|branches| branches.iter().any(needs_prompt))
                && let Some(map) = schema.as_object_mut()
            {
                map.remove(word);
            }
        }
    }
}

/// Lets each value be a template, a condition, or anything, as its type allows.
fn bindings(schema: &mut Value) {
    let Some(map) = schema.as_object_mut() else { return };
    if let Some(properties) = map.get_mut("properties").and_then(Value::as_object_mut) {
        properties.values_mut().for_each(value);
    }
    for word in ["items", "additionalProperties"] {
        if let Some(part) = map.get_mut(word).filter(|part| part.is_object()) {
            value(part);
        }
    }
    for word in ["anyOf", "oneOf", "allOf"] {
        if let Some(branches) = map.get_mut(word).and_then(Value::as_array_mut) {
            branches.iter_mut().for_each(bindings);
        }
    }
}

fn value(schema: &mut Value) {
    if schema.get("x-when").is_some() {
        *schema = json!({ "$ref": "#/$defs/condition" });
        return;
    }
    if schema.get("x-time").is_some() {
        let time = json!({ "$ref": "#/$defs/duration" });
        let template = json!({ "type": "string", "pattern": "\\{[{%]" });
        let description = schema.get("description").cloned();
        *schema = json!({ "anyOf": [time, template] });
        describe(schema, description);
        return;
    }
    if schema.get("x-raw").is_some() {
        *schema = json!({});
        return;
    }
    bindings(schema);
    let plain_text = schema.get("type") == Some(&json!("string"))
        && ["enum", "const", "pattern", "format", "maxLength"].iter().all(|word| schema.get(word).is_none());
    let anything = schema.as_object().is_none_or(serde_json::Map::is_empty);
    if !(plain_text || anything) {
        let description = schema.get("description").cloned();
        *schema = json!({ "anyOf": [schema.take(), { "type": "string", "pattern": "\\{[{%]" }] });
        describe(schema, description);
    }
}

fn describe(schema: &mut Value, description: Option<Value>) {
    if let (Some(description), Some(map)) = (description, schema.as_object_mut()) {
        map.insert("description".to_owned(), description);
    }
}
