//! One event of a stream as JSON, read without quoting it.

use inspan_protocol::{AgentError, ErrorCode};
use serde::Deserialize;

pub(crate) use crate::decode::{Warned, head};

/// Reads an event. The message of the parser may quote it, so the error only says where it is wrong.
pub(crate) fn read<'a, T: Deserialize<'a>>(data: &'a str, kind: &str) -> Result<T, AgentError> {
    serde_json::from_str(data).map_err(|error| {
        let what = match error.classify() {
            serde_json::error::Category::Data => "does not have the shape that is known",
            _ => "is broken JSON",
        };
        let (length, column) = (data.len(), error.column());
        protocol(format!(
            "an event of the stream (`{}`, {length} bytes) {what} at column {column}",
            head(kind)
        ))
    })
}

/// The error for a server that breaks the protocol.
pub(crate) fn protocol(message: String) -> AgentError {
    AgentError::new(ErrorCode::Protocol, message)
}
