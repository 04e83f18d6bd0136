//! What reading a request has in common in the OpenAI formats.

use serde_json::Value;

use crate::wire::Complaint;

/// The user's messages and tool results as they come. Adjacent results answer one turn of the model,
/// and are one message.
#[derive(Debug, Default)]
pub(super) struct AnsweredResults {
    pub(super) messages: Vec<String>,
    results: bool,
}

impl AnsweredResults {
    pub(super) fn message(&mut self, text: String) {
        self.messages.push(text);
        self.results = false;
    }

    pub(super) fn result(&mut self, text: String) {
        match self.messages.last_mut().filter(|_| self.results) {
            Some(last) => {
                last.push('\n');
                last.push_str(&text);
            }
            None => self.messages.push(text),
        }
        self.results = true;
    }

    /// Something of neither kind is between.
    pub(super) fn other(&mut self) {
        self.results = false;
    }
}

/// The text of a string, or of a list of parts.
pub(super) fn text_of(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        Value::Array(parts) => {
            let texts: Vec<&str> = parts.iter().filter_map(|part| part["text"].as_str()).collect();
            texts.join("\n")
        }
        _ => String::new(),
    }
}

pub(super) fn missing(name: &str) -> Complaint {
    let message = format!("Missing required parameter: '{name}'.");
    Complaint { kind: Some("missing_required_parameter"), message }
}
