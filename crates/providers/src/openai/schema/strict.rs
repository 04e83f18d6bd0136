//! From JSON Schema to the part of it that the vendor holds a model to. What cannot be said there is told to the model
//! in descriptions where it only narrows an answer; where it would lose answers, the place is named instead.

use serde_json::{Map, Value, json};

use super::{DEFINITIONS, WRAP};

const FORMATS: [&str; 9] =
    ["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"];
/// What is held to as it is.
const KEPT: [&str; 9] = [
    "description",
    "title",
    "multipleOf",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "minItems",
    "maxItems",
];
/// What says nothing to a model.
const DROPPED: [&str; 5] = ["$schema", "$id", "$comment", "$anchor", "deprecated"];
/// How deep schemas may lie in each other.
const DEPTH: usize = 64;

/// The place that needs more, as a JSON pointer.
type Loose = String;

/// The schema in the vendor's part of JSON Schema.
pub(super) fn strict(schema: &Value) -> Result<Value, Loose> {
    part(schema, &mut Vec::new())
}

/// One schema within. `place` is the way to it.
fn part(schema: &Value, place: &mut Vec<String>) -> Result<Value, Loose> {
    let loose = |place: &[String]| place.iter().map(|step| format!("/{step}")).collect::<Loose>();
    // `true` and `{}` are schemas too, but take anything.
    let Value::Object(fields) = schema else { return Err(loose(place)) };
    if place.len() > DEPTH {
        return Err(loose(place));
    }
    let mut rest = fields.clone();
    let mut out = Map::new();
    rest.retain(|key, _| !DROPPED.contains(&key.as_str()));
    for definitions in DEFINITIONS {
        if let Some(Value::Object(parts)) = rest.remove(definitions) {
            out.insert(definitions.to_owned(), Value::Object(each(&parts, definitions, place)?));
        }
    }
    if let Some(reference) = rest.remove("$ref") {
        if !reference.as_str().is_some_and(is_kept_in_place) {
            return Err(loose(place));
        }
        // Nothing may stand beside a reference.
        if rest.is_empty() {
            out.insert("$ref".to_owned(), reference);
        } else {
            out.insert("anyOf".to_owned(), json!([{ "$ref": reference }]));
        }
        tell(&mut out, rest);
        return Ok(Value::Object(out));
    }
    if let Some(Value::Array(parts)) = rest.get("allOf") {
        // One is the schema itself; more would have to be made into one.
        let [Value::Object(only)] = parts.as_slice() else { return Err(loose(place)) };
        let only = only.clone();
        rest.remove("allOf");
        if only.keys().any(|key| rest.contains_key(key) && !matches!(key.as_str(), "title" | "description")) {
            return Err(loose(place));
        }
        for (key, value) in only {
            rest.entry(key).or_insert(value);
        }
        out.extend(rest);
        return part(&Value::Object(out), place);
    }
    for choice in ["anyOf", "oneOf"] {
        let Some(Value::Array(parts)) = rest.remove(choice) else { continue };
        if ["properties", "items", "$ref", "anyOf", "oneOf"].iter().any(|key| rest.contains_key(*key)) {
            return Err(loose(place));
        }
        // Its branches say what it is.
        rest.remove("type");
        let parts = parts
            .iter()
            .enumerate()
            .map(|(index, branch)| within(place, &[choice, &index.to_string()], |place| part(branch, place)));
        out.insert("anyOf".to_owned(), Value::Array(parts.collect::<Result<_, _>>()?));
        tell(&mut out, rest);
        return Ok(Value::Object(out));
    }
    if let Some(value) = rest.remove("const") {
        rest.insert("enum".to_owned(), json!([value]));
    }
    if let Some(values) = rest.remove("enum") {
        let values = values.as_array().filter(|values| !values.is_empty()).ok_or_else(|| loose(place))?;
        if values.iter().any(|value| value.is_object() || value.is_array()) {
            return Err(loose(place));
        }
        out.insert("type".to_owned(), rest.remove("type").unwrap_or_else(|| types_of(values)));
        out.insert("enum".to_owned(), json!(values));
        tell(&mut out, rest);
        return Ok(Value::Object(out));
    }
    let kind = rest.remove("type").or_else(|| implied(&rest)).ok_or_else(|| loose(place))?;
    let is = |wanted: &str| match &kind {
        Value::String(kind) => kind == wanted,
        Value::Array(kinds) => kinds.iter().any(|kind| kind == wanted),
        _ => false,
    };
    let (object, array, text) = (is("object"), is("array"), is("string"));
    out.insert("type".to_owned(), kind);
    if object {
        object_of(&mut out, &mut rest, place)?;
    }
    if array {
        let items = rest.remove("items").ok_or_else(|| loose(place))?;
        if rest.contains_key("prefixItems") {
            return Err(loose(place));
        }
        out.insert("items".to_owned(), within(place, &["items"], |place| part(&items, place))?);
    }
    if text {
        if rest.get("format").and_then(Value::as_str).is_some_and(|format| FORMATS.contains(&format)) {
            out.extend(rest.remove_entry("format"));
        }
        // The vendor takes no pattern that looks around.
        if rest.get("pattern").and_then(Value::as_str).is_some_and(|pattern| !pattern.contains("(?")) {
            out.extend(rest.remove_entry("pattern"));
        }
    }
    tell(&mut out, rest);
    Ok(Value::Object(out))
}

/// The parts of an object: closed, and all required. One that may be missing may be null instead.
fn object_of(
    out: &mut Map<String, Value>,
    rest: &mut Map<String, Value>,
    place: &mut Vec<String>,
) -> Result<(), Loose> {
    let loose = |place: &[String]| place.iter().map(|step| format!("/{step}")).collect::<Loose>();
    let properties = match rest.remove("properties") {
        Some(Value::Object(parts)) => parts,
        _ => Map::new(),
    };
    let any_keys = match rest.remove("additionalProperties") {
        Some(Value::Bool(false)) => false,
        // Closing it leaves the properties that are named, which is what was asked for, if any are.
        None | Some(Value::Bool(true)) => properties.is_empty(),
        Some(_) => true,
    };
    if any_keys || rest.contains_key("patternProperties") {
        return Err(loose(place));
    }
    let required: Vec<String> = match rest.remove("required") {
        Some(Value::Array(names)) => names.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
        _ => Vec::new(),
    };
    if required.iter().any(|name| !properties.contains_key(name)) {
        return Err(loose(place));
    }
    let mut parts = each(&properties, "properties", place)?;
    for (name, part) in &mut parts {
        if !required.contains(name) && !takes_null(part) {
            *part = json!({ "anyOf": [part.take(), { "type": "null" }] });
        }
    }
    out.insert("required".to_owned(), json!(parts.keys().collect::<Vec<_>>()));
    out.insert("properties".to_owned(), Value::Object(parts));
    out.insert("additionalProperties".to_owned(), json!(false));
    Ok(())
}

fn each(parts: &Map<String, Value>, key: &str, place: &mut Vec<String>) -> Result<Map<String, Value>, Loose> {
    let parts = parts.iter().map(|(name, one)| {
        let one = within(place, &[key, name], |place| part(one, place))?;
        Ok((name.clone(), one))
    });
    parts.collect()
}

fn within<T>(place: &mut Vec<String>, steps: &[&str], work: impl FnOnce(&mut Vec<String>) -> T) -> T {
    let length = place.len();
    place.extend(steps.iter().map(|step| (*step).to_owned()));
    let done = work(place);
    place.truncate(length);
    done
}

/// Whether a reference leads to what still stands there afterwards.
fn is_kept_in_place(reference: &str) -> bool {
    let root = reference == "#" || reference == format!("#/properties/{WRAP}");
    root || DEFINITIONS.iter().any(|name| {
        reference
            .strip_prefix(&format!("#/{name}/"))
            .is_some_and(|rest| !rest.is_empty() && !rest.contains('/'))
    })
}

/// Keeps what the vendor holds to, and tells the rest in words.
fn tell(out: &mut Map<String, Value>, rest: Map<String, Value>) {
    let (kept, told): (Vec<_>, Vec<_>) =
        rest.into_iter().partition(|(name, value)| KEPT.contains(&name.as_str()) && !value.is_null());
    out.extend(kept);
    if told.is_empty() {
        return;
    }
    let said: Vec<String> = told.iter().map(|(name, value)| format!("{name}: {value}")).collect();
    let told = format!("{{{}}}", said.join(", "));
    let description = match out.get("description").and_then(Value::as_str) {
        Some(description) => format!("{description}\n\n{told}"),
        None => told,
    };
    out.insert("description".to_owned(), json!(description));
}

/// The type that keywords stand for where none is given.
fn implied(rest: &Map<String, Value>) -> Option<Value> {
    let has = |keys: &[&str]| keys.iter().any(|key| rest.contains_key(*key));
    let kind = if has(&["properties", "required", "additionalProperties"]) {
        "object"
    } else if has(&["items", "minItems", "maxItems", "uniqueItems"]) {
        "array"
    } else if has(&["pattern", "format", "minLength", "maxLength"]) {
        "string"
    } else if has(&["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"]) {
        "number"
    } else {
        return None;
    };
    Some(json!(kind))
}

/// The types of some plain values.
fn types_of(values: &[Value]) -> Value {
    let mut types: Vec<&str> = values
        .iter()
        .map(|value| match value {
            Value::Null => "null",
            Value::Bool(_) => "boolean",
            Value::Number(number) if number.is_f64() => "number",
            Value::Number(_) => "integer",
            _ => "string",
        })
        .collect();
    types.sort_unstable();
    types.dedup();
    if let [only] = types[..] { json!(only) } else { json!(types) }
}

/// Whether a schema in the vendor's form takes null, as far as it shows; a reference does not show it.
fn takes_null(part: &Value) -> bool {
    let null = |kind: &Value| kind == "null";
    let typed = null(&part["type"]) || part["type"].as_array().is_some_and(|kinds| kinds.iter().any(null));
    let chosen = part["anyOf"].as_array().is_some_and(|branches| branches.iter().any(takes_null));
    chosen || typed && part["enum"].as_array().is_none_or(|values| values.contains(&Value::Null))
}
