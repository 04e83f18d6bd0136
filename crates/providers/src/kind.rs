//! The word by which a program tells one error of a code from another, kept in the error's detail.
//! Which words there are is left to the adapters and their documents.

use inspan_protocol::AgentError;
use serde_json::{Map, Value};

/// Adds to an error's detail.
pub(crate) trait Kind {
    /// The same error with `kind` in its detail.
    #[must_use]
    fn kind(self, kind: &str) -> Self;

    /// The same error with one more field in its detail.
    #[must_use]
    fn with(self, key: &str, value: impl Into<Value>) -> Self;
}

impl Kind for AgentError {
    fn kind(self, kind: &str) -> Self {
        self.with("kind", kind)
    }

    fn with(mut self, key: &str, value: impl Into<Value>) -> Self {
        let mut detail = match self.detail.take().map(|detail| *detail) {
            Some(Value::Object(map)) => map,
            _ => Map::new(),
        };
        detail.insert(key.to_owned(), value.into());
        self.with_detail(Value::Object(detail))
    }
}
