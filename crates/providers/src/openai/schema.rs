//! The form in which structured output is requested, and the way back from an answer in that form to the author's schema.
//! The engine validates the output against the author's schema.
//!
//! The vendor enforces a part of JSON Schema only: an object at the root, closed objects, all properties required. A schema
//! that needs more, such as an object with any keys, is requested without being enforced, and the author is warned.

use inspan_protocol::StreamEvent;
use serde_json::{Map, Value, json};

use crate::api::schema::{DEFINITIONS, not_strict};

mod back;
mod strict;

/// The property that holds an answer that is not an object.
const WRAP: &str = "value";

/// A schema in the vendor's form.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct VendorSchema {
    /// What is sent.
    pub(super) schema: Value,
    author: Value,
    root: Root,
    /// Why the vendor cannot enforce it: the first place that needs more than the vendor's part of JSON Schema.
    loose: Option<String>,
}

/// The form of the root of the answer.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Root {
    /// The structured output itself.
    Output,
    /// An object whose one property is the answer.
    Wrapped,
}

impl VendorSchema {
    /// The form for an author's schema.
    pub(super) fn of(author: &Value) -> Self {
        let plain = ["anyOf", "oneOf", "allOf", "$ref", "enum", "const", "not", "if"];
        let is_object =
            author["type"] == "object" || author["type"].is_null() && author["properties"].is_object();
        let root = match is_object && plain.iter().all(|key| author.get(key).is_none()) {
            true => Root::Output,
            false => Root::Wrapped,
        };
        let placed = if root == Root::Wrapped { wrapped(author) } else { author.clone() };
        let (schema, loose) = match strict::strict(&placed) {
            Ok(schema) => (schema, None),
            Err(place) => (placed, Some(place)),
        };
        Self { schema, author: author.clone(), root, loose }
    }

    /// Whether the vendor holds the model to it.
    pub(super) fn is_strict(&self) -> bool {
        self.loose.is_none()
    }

    /// What the author should know about it.
    pub(super) fn warning(&self) -> Option<StreamEvent> {
        self.loose.as_deref().map(not_strict)
    }

    /// The structured output in the author's schema, if the text is JSON.
    pub(super) fn structured(&self, text: &str) -> Option<Value> {
        let mut value: Value = serde_json::from_str(text).ok()?;
        if self.root == Root::Wrapped {
            value = value.get_mut(WRAP)?.take();
        }
        if self.is_strict() {
            back::without_nulls(&mut value, &self.author);
        }
        Some(value)
    }
}

/// An object whose one property has the schema. References lead to where things are now.
fn wrapped(author: &Value) -> Value {
    let mut inner = rebased(author, &format!("#/properties/{WRAP}"), &DEFINITIONS);
    let mut root = Map::new();
    if let Value::Object(fields) = &mut inner {
        fields.remove("$schema");
        for definitions in DEFINITIONS {
            root.extend(fields.remove_entry(definitions));
        }
    }
    root.insert("type".to_owned(), json!("object"));
    root.insert("properties".to_owned(), json!({ WRAP: inner }));
    root.insert("required".to_owned(), json!([WRAP]));
    root.insert("additionalProperties".to_owned(), json!(false));
    Value::Object(root)
}

/// A schema for another place than the root of its document, without the parts that stay there.
fn rebased(schema: &Value, place: &str, but: &[&str]) -> Value {
    let mut schema = schema.clone();
    rebase(&mut schema, place, but);
    schema
}

fn rebase(schema: &mut Value, place: &str, but: &[&str]) {
    match schema {
        Value::Object(fields) => {
            for (key, value) in fields {
                match (key.as_str(), value) {
                    ("$ref", Value::String(reference)) => {
                        let stays = but.iter().any(|name| reference.starts_with(&format!("#/{name}/")));
                        if let Some(rest) = reference.strip_prefix('#').filter(|_| !stays) {
                            *reference = format!("{place}{rest}");
                        }
                    }
                    // Here the keys are names of the author's.
                    ("properties" | "patternProperties" | "$defs" | "definitions", Value::Object(parts)) => {
                        parts.values_mut().for_each(|part| rebase(part, place, but));
                    }
                    // A value, not a schema, even if it looks like one.
                    ("enum" | "const" | "default" | "examples", _) => {}
                    (_, value) => rebase(value, place, but),
                }
            }
        }
        Value::Array(values) => values.iter_mut().for_each(|value| rebase(value, place, but)),
        _ => {}
    }
}

#[cfg(test)]
mod tests;
