//! The form in which structured output is requested, and the way back from an answer in that form to the author's schema.
//! The engine validates the output against the author's schema.
//!
//! The vendor enforces a part of JSON Schema only: an object at the root, closed objects, all properties required. A schema
//! that needs more, such as an object with any keys, is requested without being enforced, and the author is warned.

use inspan_protocol::StreamEvent;
use serde_json::Value;

use crate::api::schema::not_strict;
use crate::root::Root;

mod back;
mod strict;

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

impl VendorSchema {
    /// The form for an author's schema.
    pub(super) fn of(author: &Value) -> Self {
        let root = Root::of(author);
        let placed = root.place(author);
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
        let mut value = self.root.output(serde_json::from_str(text).ok()?)?;
        if self.is_strict() {
            back::without_nulls(&mut value, &self.author);
        }
        Some(value)
    }
}

#[cfg(test)]
mod tests;
