//! JSON Schemas as declarations of TypeScript, against which the scripts of the page are checked. Only what our own
//! schemas use is known.

use serde_json::{Map, Value};

/// The types of these definitions in a namespace.
pub(crate) fn namespace(name: &str, about: &str, definitions: &Map<String, Value>) -> String {
    let mut text = format!("/** {about} */\ndeclare namespace {name} {{\n");
    for (name, schema) in definitions {
        text.push_str(&comment(schema, "  "));
        text.push_str(&format!("  type {name} = {};\n", of(schema, 2)));
    }
    text.push_str("}\n");
    text
}

fn comment(schema: &Value, indent: &str) -> String {
    let about = schema["description"].as_str().unwrap_or_default().replace('\n', " ").replace("*/", "* /");
    if about.is_empty() { String::new() } else { format!("{indent}/** {about} */\n") }
}

/// The type of a schema; `depth` is how far its lines are indented.
fn of(schema: &Value, depth: usize) -> String {
    let Some(schema) = schema.as_object().filter(|schema| !schema.is_empty()) else {
        return if schema == &Value::Bool(false) { "never".to_owned() } else { "any".to_owned() };
    };
    if let Some(target) = schema.get("$ref").and_then(Value::as_str) {
        return target.rsplit('/').next().unwrap_or_default().to_owned();
    }
    if let Some(value) = schema.get("const") {
        return value.to_string();
    }
    if let Some(values) = schema.get("enum").and_then(Value::as_array) {
        return join(values.iter().map(Value::to_string), " | ");
    }
    let list = |key: &str| schema.get(key).and_then(Value::as_array);
    let mut parts: Vec<String> = Vec::new();
    for key in ["oneOf", "anyOf"] {
        parts.extend(list(key).map(|all| join(all.iter().map(|one| of(one, depth)), " | ")));
    }
    parts.extend(list("allOf").map(|all| join(all.iter().map(|one| of(one, depth)), " & ")));
    if schema.contains_key("properties") || parts.is_empty() {
        parts.push(match schema.get("type") {
            Some(Value::Array(types)) => join(types.iter().map(|one| simple(schema, one, depth)), " | "),
            Some(one) => simple(schema, one, depth),
            None => "any".to_owned(),
        });
    }
    match parts.as_slice() {
        [one] => one.clone(),
        several => join(several.iter().map(|one| format!("({one})")), " & "),
    }
}

fn simple(schema: &Map<String, Value>, name: &Value, depth: usize) -> String {
    match name.as_str().unwrap_or_default() {
        "integer" => "number".to_owned(),
        "array" => format!("Array<{}>", schema.get("items").map_or("any".to_owned(), |one| of(one, depth))),
        "object" => object(schema, depth),
        known @ ("string" | "number" | "boolean" | "null") => known.to_owned(),
        _ => "any".to_owned(),
    }
}

fn object(schema: &Map<String, Value>, depth: usize) -> String {
    let more = schema.get("additionalProperties").filter(|more| **more != Value::Bool(false));
    let Some(properties) = schema.get("properties").and_then(Value::as_object) else {
        return format!("Record<string, {}>", more.map_or("any".to_owned(), |one| of(one, depth)));
    };
    let required: Vec<&str> = schema
        .get("required")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    let indent = " ".repeat(depth + 2);
    let mut text = String::from("{\n");
    for (name, one) in properties {
        let mark = if required.contains(&name.as_str()) { "" } else { "?" };
        text.push_str(&comment(one, &indent));
        text.push_str(&format!("{indent}{name}{mark}: {};\n", of(one, depth + 2)));
    }
    if more.is_some() {
        text.push_str(&format!("{indent}[key: string]: any;\n"));
    }
    text.push_str(&format!("{}}}", " ".repeat(depth)));
    text
}

fn join(parts: impl Iterator<Item = String>, between: &str) -> String {
    parts.collect::<Vec<_>>().join(between)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::namespace;

    #[test]
    fn schemas_become_types() {
        let schemas = json!({
            "Item": {
                "description": "One item.",
                "oneOf": [
                    { "type": "object", "properties": { "kind": { "const": "a" } }, "required": ["kind"] },
                    { "$ref": "#/components/schemas/Other" },
                ],
                "properties": { "at": { "type": "integer", "description": "When." } },
                "required": ["at"],
                "type": "object",
            },
            "Other": {
                "type": "object",
                "properties": { "kind": { "enum": ["b", "c"] }, "rows": { "type": "array", "items": {} } },
                "required": ["kind"],
                "additionalProperties": true,
            },
            "Texts": { "type": "object", "additionalProperties": { "type": ["string", "null"] } },
        });
        let expected = "\
/** What it is. */
declare namespace Api {
  /** One item. */
  type Item = ({
    kind: \"a\";
  } | Other) & ({
    /** When. */
    at: number;
  });
  type Other = {
    kind: \"b\" | \"c\";
    rows?: Array<any>;
    [key: string]: any;
  };
  type Texts = Record<string, string | null>;
}
";
        assert_eq!(namespace("Api", "What it is.", schemas.as_object().unwrap()), expected);
    }
}
