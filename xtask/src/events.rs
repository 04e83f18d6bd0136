//! The tables of `docs/events.md`, drawn from the schema of the event type.
//! The types describe the events; the text around the tables is in the document.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::{Map, Value};

use inspan_protocol::Event;

use crate::schema;

/// One table for each family of events, in the order of the type.
pub(crate) fn events() -> String {
    draw_events(&schema::of::<Event>())
}

/// What the payloads are made of.
pub(crate) fn types() -> String {
    draw_types(&schema::of::<Event>())
}

fn draw_events(schema: &Value) -> String {
    let mut text = String::new();
    let mut family = "";
    for event in list(schema, "oneOf") {
        let properties = &event["properties"];
        let name = properties["type"]["const"].as_str().unwrap_or_default();
        let first = name.split(':').next().unwrap_or_default();
        if first != family {
            family = first;
            // Writing to a string cannot fail.
            let _ = write!(text, "\n### {family}\n\n| Event | Payload | Meaning |\n|---|---|---|\n");
        }
        // An event whose payload is a separate type refers to that type.
        let reference = event["$ref"].as_str().and_then(|reference| reference.strip_prefix('#'));
        let payload = reference.and_then(|reference| schema.pointer(reference)).unwrap_or(event);
        let payload = fields(payload, |field| field != "type");
        let _ = writeln!(text, "| `{name}` | {} | {} |", payload.join("<br>"), description(event));
    }
    text.trim().to_owned()
}

fn draw_types(schema: &Value) -> String {
    let none = Map::new();
    let types = schema["$defs"].as_object().unwrap_or(&none);
    let mut text = "| Type | Is | Meaning |\n|---|---|---|\n".to_owned();
    for (name, of) in types {
        let is = match (list(of, "oneOf"), list(of, "enum")) {
            ([], []) if of["properties"].is_object() => fields(of, |_| true).join("<br>"),
            ([], []) => kind(of),
            (variants, plain) => {
                let listed = variants.iter().flat_map(|variant| match list(variant, "enum") {
                    [] => std::slice::from_ref(&variant["const"]),
                    several => several,
                });
                let words: Vec<String> =
                    listed.chain(plain).filter_map(Value::as_str).map(|word| format!("`{word}`")).collect();
                words.join(", ")
            }
        };
        let _ = writeln!(text, "| `{name}` | {is} | {} |", description(of));
    }
    text
}

/// The fields of an object, the required ones first, each as `name: type`.
fn fields(object: &Value, wanted: impl Fn(&str) -> bool) -> Vec<String> {
    let required: Vec<&str> = list(object, "required").iter().filter_map(Value::as_str).collect();
    let none = Map::new();
    let properties = object["properties"].as_object().unwrap_or(&none);
    let mut ranked = BTreeMap::new();
    for (name, of) in properties.iter().filter(|(name, _)| wanted(name)) {
        let place = required.iter().position(|required| required == name);
        let mark = if place.is_some() { "" } else { "?" };
        ranked.insert((place.unwrap_or(usize::MAX), name), format!("`{name}{mark}: {}`", kind(of)));
    }
    ranked.into_values().collect()
}

/// The type of a field in a word or two. What may be null may be absent, and says so by its `?`.
fn kind(of: &Value) -> String {
    if let Some(name) = of["$ref"].as_str() {
        return name.rsplit('/').next().unwrap_or(name).to_owned();
    }
    if let Some(some) = list(of, "anyOf").iter().find(|option| option["type"] != "null") {
        return kind(some);
    }
    let named = match &of["type"] {
        Value::Array(names) => names.iter().filter_map(Value::as_str).find(|name| *name != "null"),
        name => name.as_str(),
    };
    match named {
        Some("array") => format!("{}[]", kind(&of["items"])),
        Some(name) => name.to_owned(),
        None => "any".to_owned(),
    }
}

fn description(of: &Value) -> String {
    let text = of["description"].as_str().unwrap_or_default().replace('\n', " ");
    text.replace("[`", "`").replace("`]", "`").replace('|', "\\|")
}

fn list<'a>(of: &'a Value, key: &str) -> &'a [Value] {
    of[key].as_array().map(Vec::as_slice).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{draw_events, draw_types};

    #[test]
    fn draws_families_and_payloads() {
        let schema = json!({"oneOf": [
            {
                "description": "A thing\nbegan.",
                "properties": {
                    "type": {"const": "thing:start"}, "why": {"type": ["string", "null"]},
                    "name": {"$ref": "#/$defs/Name"}, "all": {"type": "array", "items": {"type": "string"}},
                    "input": true, "until": {"anyOf": [{"$ref": "#/$defs/Time"}, {"type": "null"}]},
                },
                "required": ["type", "name", "all", "input"],
            },
            {"description": "It ended.", "properties": {"type": {"const": "thing:end"}}, "$ref": "#/$defs/End"},
            {"description": "Said.", "properties": {"type": {"const": "log"}}, "required": ["type"]},
        ], "$defs": {"End": {"properties": {"at": {"type": "integer"}}}}});
        let expected = "### thing\n\n| Event | Payload | Meaning |\n|---|---|---|\n\
            | `thing:start` | `name: Name`<br>`all: string[]`<br>`input: any`<br>`until?: Time`<br>`why?: string` | \
            A thing began. |\n| `thing:end` | `at?: integer` | It ended. |\n\n### log\n\n| Event | Payload | Meaning |\n|---|---|---|\n\
            | `log` |  | Said. |";
        assert_eq!(draw_events(&schema), expected);
    }

    #[test]
    fn draws_types() {
        let schema = json!({"$defs": {
            "Name": {"type": "string", "description": "A name, as [`Event`] has it."},
            "Usage": {"type": "object", "properties": {"tokens": {"type": "integer"}}, "description": "Tokens."},
            "Why": {"oneOf": [{"const": "a"}, {"enum": ["b", "c"]}], "description": "Why."},
            "How": {"enum": ["x", "y"], "description": "How."},
        }});
        let expected = "| Type | Is | Meaning |\n|---|---|---|\n| `How` | `x`, `y` | How. |\n\
            | `Name` | string | A name, as `Event` has it. |\n| `Usage` | `tokens?: integer` | Tokens. |\n\
            | `Why` | `a`, `b`, `c` | Why. |\n";
        assert_eq!(draw_types(&schema), expected);
    }
}
