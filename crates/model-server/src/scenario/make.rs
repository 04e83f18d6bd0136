//! Short ways to write a scenario in Rust, for tests that need no file.
//! The types are in `scenario.rs`; every field stays open for struct update syntax.

use serde_json::Value;

use super::{
    After, Block, HttpError, Matcher, Scenario, Turn, fixed_signature, four_chunks, scripted_error,
    ten_minutes, ten_tokens, yes,
};

impl Scenario {
    /// A scenario of these turns, everything else as in an empty file.
    #[must_use]
    pub fn of(turns: impl IntoIterator<Item = Turn>) -> Self {
        Self {
            turns: turns.into_iter().collect(),
            after: After::default(),
            aux: Turn::title(),
            aux_detect: yes(),
            chunk_ms: 0,
            hold_limit_ms: ten_minutes(),
            count_tokens: ten_tokens(),
        }
    }
}

impl Turn {
    /// One text.
    #[must_use]
    pub fn text(text: impl Into<String>) -> Self {
        Self { blocks: vec![Block::text(text)], ..Self::default() }
    }

    /// One tool call.
    #[must_use]
    pub fn tool(name: impl Into<String>, input: Value) -> Self {
        Self { blocks: vec![Block::tool(name, input)], ..Self::default() }
    }

    /// A structured answer.
    #[must_use]
    pub fn structured(value: Value) -> Self {
        Self { structured: Some(value), ..Self::default() }
    }

    /// An HTTP error with the vendor's usual body for that status.
    #[must_use]
    pub fn error(status: u16) -> Self {
        let http_error = HttpError {
            status,
            kind: None,
            message: scripted_error(),
            headers: std::collections::BTreeMap::new(),
            body: None,
        };
        Self { http_error: Some(http_error), ..Self::default() }
    }

    /// The same turn as a rule for requests that fit.
    #[must_use]
    pub fn when(self, matcher: Matcher) -> Self {
        Self { when: Some(matcher), ..self }
    }

    /// What auxiliary requests get unless the scenario says otherwise.
    pub(super) fn title() -> Self {
        Self::text(r#"{"title":"Scripted title"}"#)
    }
}

impl Block {
    /// Text in the default number of pieces.
    #[must_use]
    pub fn text(text: impl Into<String>) -> Self {
        Self::Text { text: text.into(), chunks: four_chunks() }
    }

    /// Thinking in the default number of pieces.
    #[must_use]
    pub fn thinking(text: impl Into<String>) -> Self {
        Self::Thinking { text: text.into(), signature: fixed_signature(), chunks: four_chunks() }
    }

    /// A shell command, through whatever shell tool the request offers.
    #[must_use]
    pub fn shell(command: impl Into<String>) -> Self {
        Self::Shell { command: command.into(), id: None, chunks: four_chunks() }
    }

    /// A tool call with a counted id.
    #[must_use]
    pub fn tool(name: impl Into<String>, input: Value) -> Self {
        Self::ToolUse { name: name.into(), input, id: None, chunks: four_chunks() }
    }
}

impl Matcher {
    /// Fits if the last user message contains `part`.
    #[must_use]
    pub fn last(part: impl Into<String>) -> Self {
        Self { last_message_contains: Some(part.into()), ..Self::default() }
    }

    /// Fits if any user message contains `part`.
    #[must_use]
    pub fn any(part: impl Into<String>) -> Self {
        Self { any_message_contains: Some(part.into()), ..Self::default() }
    }
}
