//! From JSON Schema to the part of it that the vendor enforces. A keyword outside that part goes into the description if it
//! only narrows an answer. If answers would be lost without it, the conversion fails and names the place.

use serde_json::{Map, Value, json};

use crate::api::schema::{DEFINITIONS, FORMATS, describe, has_type};
use crate::root::WRAP;

/// Keywords that the vendor enforces.
const ENFORCED: [&str; 9] = [
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
/// Keywords that mean nothing to a model.
const DROPPED: [&str; 5] = ["$schema", "$id", "$comment", "$anchor", "deprecated"];
/// How deep schemas may be nested.
const DEPTH: usize = 64;

/// The place that the vendor cannot enforce, as a JSON pointer.
type NotStrict = String;
type StrictFields = Map<String, Value>;

/// The schema in the vendor's part of JSON Schema.
pub(super) fn strict(schema: &Value) -> Result<Value, NotStrict> {
    Converter { place: Vec::new() }.convert(schema)
}

/// Converts one schema after the other. Each step moves keywords from the author's fields to the vendor's.
struct Converter {
    /// The path from the root to the current schema.
    place: Vec<String>,
}

impl Converter {
    fn not_strict(&self) -> NotStrict {
        self.place.iter().map(|step| format!("/{step}")).collect()
    }

    fn convert(&mut self, schema: &Value) -> Result<Value, NotStrict> {
        // `true` and `{}` are schemas too, but they allow anything.
        let Value::Object(fields) = schema else { return Err(self.not_strict()) };
        if self.place.len() > DEPTH {
            return Err(self.not_strict());
        }
        let mut rest = fields.clone();
        let mut out = Map::new();
        rest.retain(|key, _| !DROPPED.contains(&key.as_str()));
        for definitions in DEFINITIONS {
            if let Some(Value::Object(parts)) = rest.remove(definitions) {
                out.insert(definitions.to_owned(), Value::Object(self.each(&parts, definitions)?));
            }
        }
        let is_list = |name: &&str| rest.get(*name).is_some_and(Value::is_array);
        if rest.contains_key("$ref") {
            self.reference(&mut out, &mut rest)?;
        } else if is_list(&"allOf") {
            return self.all_of(out, rest);
        } else if let Some(name) = ["anyOf", "oneOf"].into_iter().find(is_list) {
            self.choice(name, &mut out, &mut rest)?;
        } else if rest.contains_key("enum") || rest.contains_key("const") {
            self.literals(&mut out, &mut rest)?;
        } else {
            self.typed(&mut out, &mut rest)?;
        }
        let (enforced, rest): (StrictFields, StrictFields) =
            rest.into_iter().partition(|(name, value)| ENFORCED.contains(&name.as_str()) && !value.is_null());
        out.extend(enforced);
        describe(&mut out, rest);
        Ok(Value::Object(out))
    }

    fn reference(&self, out: &mut StrictFields, rest: &mut StrictFields) -> Result<(), NotStrict> {
        let reference = rest.remove("$ref").filter(|reference| reference.as_str().is_some_and(is_kept));
        let reference = reference.ok_or_else(|| self.not_strict())?;
        // A reference may have no siblings.
        if rest.is_empty() {
            out.insert("$ref".to_owned(), reference);
        } else {
            out.insert("anyOf".to_owned(), json!([{ "$ref": reference }]));
        }
        Ok(())
    }

    /// One schema in `allOf` is merged with its parent; several would have to be made into one.
    fn all_of(&mut self, mut out: StrictFields, mut rest: StrictFields) -> Result<Value, NotStrict> {
        let only = match rest.remove("allOf") {
            Some(Value::Array(mut parts)) if parts.len() == 1 => parts.remove(0),
            _ => Value::Null,
        };
        let Value::Object(only) = only else { return Err(self.not_strict()) };
        if only.keys().any(|key| rest.contains_key(key) && !matches!(key.as_str(), "title" | "description")) {
            return Err(self.not_strict());
        }
        for (key, value) in only {
            rest.entry(key).or_insert(value);
        }
        out.extend(rest);
        self.convert(&Value::Object(out))
    }

    fn choice(
        &mut self,
        name: &str,
        out: &mut StrictFields,
        rest: &mut StrictFields,
    ) -> Result<(), NotStrict> {
        let branches = rest.remove(name);
        if ["properties", "items", "$ref", "anyOf", "oneOf"].iter().any(|key| rest.contains_key(*key)) {
            return Err(self.not_strict());
        }
        // The branches have their own types.
        rest.remove("type");
        let mut converted = Vec::new();
        for (index, branch) in branches.iter().filter_map(Value::as_array).flatten().enumerate() {
            converted.push(self.within(&[name, &index.to_string()], branch)?);
        }
        out.insert("anyOf".to_owned(), Value::Array(converted));
        Ok(())
    }

    fn literals(&self, out: &mut StrictFields, rest: &mut StrictFields) -> Result<(), NotStrict> {
        if let Some(value) = rest.remove("const") {
            rest.insert("enum".to_owned(), json!([value]));
        }
        let values = match rest.remove("enum") {
            Some(Value::Array(values)) if !values.is_empty() => values,
            _ => return Err(self.not_strict()),
        };
        if values.iter().any(|value| value.is_object() || value.is_array()) {
            return Err(self.not_strict());
        }
        out.insert("type".to_owned(), rest.remove("type").unwrap_or_else(|| types_of(&values)));
        out.insert("enum".to_owned(), json!(values));
        Ok(())
    }

    fn typed(&mut self, out: &mut StrictFields, rest: &mut StrictFields) -> Result<(), NotStrict> {
        let kind = rest.remove("type").or_else(|| implied(rest)).ok_or_else(|| self.not_strict())?;
        out.insert("type".to_owned(), kind.clone());
        if has_type(Some(&kind), "object") {
            self.object(out, rest)?;
        }
        if has_type(Some(&kind), "array") {
            let items = rest.remove("items").ok_or_else(|| self.not_strict())?;
            if rest.contains_key("prefixItems") {
                return Err(self.not_strict());
            }
            out.insert("items".to_owned(), self.within(&["items"], &items)?);
        }
        if has_type(Some(&kind), "string") {
            let text = |name: &str| rest.get(name).and_then(Value::as_str);
            let format = text("format").is_some_and(|format| FORMATS.contains(&format));
            // The vendor refuses patterns that look around.
            let pattern = text("pattern").is_some_and(|pattern| !pattern.contains("(?"));
            out.extend(format.then(|| rest.remove_entry("format")).flatten());
            out.extend(pattern.then(|| rest.remove_entry("pattern")).flatten());
        }
        Ok(())
    }

    /// Objects are closed, and all properties are required. An optional property may be null instead.
    fn object(&mut self, out: &mut StrictFields, rest: &mut StrictFields) -> Result<(), NotStrict> {
        let properties = match rest.remove("properties") {
            Some(Value::Object(parts)) => parts,
            _ => Map::new(),
        };
        let any_keys = match rest.remove("additionalProperties") {
            Some(Value::Bool(false)) => false,
            // An object with named properties can be closed; one without them would be empty.
            None | Some(Value::Bool(true)) => properties.is_empty(),
            Some(_) => true,
        };
        if any_keys || rest.contains_key("patternProperties") {
            return Err(self.not_strict());
        }
        let required: Vec<String> = match rest.remove("required") {
            Some(Value::Array(names)) => names.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
            _ => Vec::new(),
        };
        if required.iter().any(|name| !properties.contains_key(name)) {
            return Err(self.not_strict());
        }
        let mut parts = self.each(&properties, "properties")?;
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

    fn each(&mut self, parts: &StrictFields, key: &str) -> Result<StrictFields, NotStrict> {
        parts.iter().map(|(name, part)| Ok((name.clone(), self.within(&[key, name], part)?))).collect()
    }

    fn within(&mut self, steps: &[&str], schema: &Value) -> Result<Value, NotStrict> {
        let length = self.place.len();
        self.place.extend(steps.iter().map(|step| (*step).to_owned()));
        let converted = self.convert(schema);
        self.place.truncate(length);
        converted
    }
}

/// Whether the target of a reference stays where it is.
fn is_kept(reference: &str) -> bool {
    let root = reference == "#" || reference == format!("#/properties/{WRAP}");
    root || DEFINITIONS.iter().any(|name| {
        reference
            .strip_prefix(&format!("#/{name}/"))
            .is_some_and(|rest| !rest.is_empty() && !rest.contains('/'))
    })
}

/// The type that keywords imply where none is given.
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
