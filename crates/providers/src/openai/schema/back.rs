//! From an answer whose optional properties are null to one that leaves them out, as the author's schema has it.
//! A null that the author allows stays.

use std::collections::HashMap;

use inspan_protocol::BoundedValidator;
use serde_json::{Value, json};

use crate::root::rebased;

/// How deep answers and references are followed.
const DEPTH: usize = 128;
/// Where the author's schema is while parts of an answer are validated against parts of it.
const PLACE: &str = "#/$defs/author";

/// Removes the nulls that mean that a value is absent.
pub(super) fn without_nulls(value: &mut Value, author: &Value) {
    let author = rebased(author, PLACE, &[]);
    let mut remover = NullRemover { author: &author, validators: HashMap::new() };
    remover.clear(value, &author, DEPTH);
}

/// Removes the nulls of one answer.
struct NullRemover<'a> {
    author: &'a Value,
    /// By the address of the part in the author's schema.
    validators: HashMap<*const Value, Option<BoundedValidator>>,
}

impl<'a> NullRemover<'a> {
    fn clear(&mut self, value: &mut Value, schema: &'a Value, depth: usize) {
        let Some(depth) = depth.checked_sub(1) else { return };
        if !value.is_object() && !value.is_array() {
            return;
        }
        if let Some(reference) = schema["$ref"].as_str() {
            let target = reference.strip_prefix(PLACE).and_then(|pointer| self.author.pointer(pointer));
            return target.into_iter().for_each(|target| self.clear(value, target, depth));
        }
        for part in schema["allOf"].as_array().into_iter().flatten() {
            self.clear(value, part, depth);
        }
        for branches in ["anyOf", "oneOf"] {
            // Only the branch that it is meant for shows which nulls mean that a value is absent.
            for branch in schema[branches].as_array().into_iter().flatten() {
                let mut tried = value.clone();
                self.clear(&mut tried, branch, depth);
                if self.fits(&tried, branch) {
                    *value = tried;
                    break;
                }
            }
        }
        match value {
            Value::Object(fields) => {
                let Some(properties) = schema["properties"].as_object() else { return };
                let required = schema["required"].as_array().map(Vec::as_slice).unwrap_or_default();
                fields.retain(|name, field| match properties.get(name) {
                    Some(part) if field.is_null() => {
                        required.iter().any(|required| required == name) || self.fits(&Value::Null, part)
                    }
                    _ => true,
                });
                for (name, field) in fields {
                    if let Some(part) = properties.get(name) {
                        self.clear(field, part, depth);
                    }
                }
            }
            Value::Array(items) => {
                items.iter_mut().for_each(|item| self.clear(item, &schema["items"], depth))
            }
            _ => {}
        }
    }

    /// Whether a value fits a part of the author's schema.
    fn fits(&mut self, value: &Value, part: &'a Value) -> bool {
        let author = self.author;
        let validator = self.validators.entry(std::ptr::from_ref(part)).or_insert_with(|| {
            BoundedValidator::new(&json!({ "$defs": { "author": author }, "allOf": [part] })).ok()
        });
        validator.as_ref().is_some_and(|validator| validator.is_valid(value) == Some(true))
    }
}
