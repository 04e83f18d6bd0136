//! The root of structured output, for vendors that take the schema of an object only: any other schema is wrapped in one, and
//! the answer is unwrapped.

use serde_json::{Map, Value, json};

use crate::api::schema::DEFINITIONS;

/// The property that holds an answer that is not an object.
pub(crate) const WRAP: &str = "value";

/// The form of the root of the answer.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) enum Root {
    /// The structured output itself.
    #[default]
    Output,
    /// An object whose one property is the answer.
    Wrapped,
}

impl Root {
    /// The form for an author's schema.
    pub(crate) fn of(author: &Value) -> Self {
        let plain = ["anyOf", "oneOf", "allOf", "$ref", "enum", "const", "not", "if"];
        let is_object =
            author["type"] == "object" || author["type"].is_null() && author["properties"].is_object();
        match is_object && plain.iter().all(|key| author.get(key).is_none()) {
            true => Self::Output,
            false => Self::Wrapped,
        }
    }

    /// The author's schema in this form.
    pub(crate) fn place(self, author: &Value) -> Value {
        if self == Self::Wrapped { wrapped(author) } else { author.clone() }
    }

    /// The author's output of an answer in this form.
    pub(crate) fn output(self, mut answer: Value) -> Option<Value> {
        if self == Self::Wrapped { Some(answer.get_mut(WRAP)?.take()) } else { Some(answer) }
    }
}

/// An object whose one property has the schema. References lead to where things are now.
fn wrapped(author: &Value) -> Value {
    let mut inner = rebased(author, &format!("#/properties/{WRAP}"), &DEFINITIONS);
    let mut root = Map::new();
    if let Value::Object(fields) = &mut inner {
        // References would begin at a root of its own.
        fields.remove("$id");
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
pub(crate) fn rebased(schema: &Value, place: &str, but: &[&str]) -> Value {
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
                        // A name for a place, as `#node`, holds wherever that place is.
                        let is_path = |rest: &&str| rest.is_empty() || rest.starts_with('/');
                        if let Some(rest) = reference.strip_prefix('#').filter(is_path)
                            && !stays
                        {
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
mod tests {
    use super::*;

    #[test]
    fn an_answer_fits_its_schema_in_either_form() {
        let tree = json!({ "type": "array", "items": { "$ref": "#" } });
        let rows = [
            (json!({ "type": "object" }), json!({ "a": 1 }), json!(1)),
            (json!({ "type": "array", "items": { "type": "integer" } }), json!([1, 2]), json!(["a"])),
            (json!({ "enum": ["yes", "no"] }), json!("yes"), json!("maybe")),
            (tree, json!([[], [[]]]), json!([[1]])),
            (
                json!({ "$id": "https://a.example/b", "anyOf": [{ "$ref": "#/$defs/n" }], "$defs": { "n": { "const": 7 } } }),
                json!(7),
                json!(8),
            ),
            (
                json!({ "type": "array", "items": { "$ref": "#n" }, "$defs": { "n": { "$anchor": "n", "const": 7 } } }),
                json!([7]),
                json!([8]),
            ),
        ];
        for (author, fits, misfits) in rows {
            let root = Root::of(&author);
            let validator = jsonschema::validator_for(&root.place(&author)).unwrap();
            let answer = |value: &Value| match root {
                Root::Output => value.clone(),
                Root::Wrapped => json!({ WRAP: value }),
            };
            assert_eq!(
                [&fits, &misfits].map(|value| validator.is_valid(&answer(value))),
                [true, false],
                "{author}"
            );
            assert_eq!(root.output(answer(&fits)), Some(fits));
        }
    }
}
