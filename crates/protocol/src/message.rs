//! One message of a conversation in the common vocabulary. Each adapter translates it to its vendor's form.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Who speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Role {
    /// The person or the flow.
    User,
    /// The model.
    Assistant,
}

/// One message.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Message {
    /// Who speaks.
    pub role: Role,
    /// The content.
    pub content: Content,
}

/// What a message says: one text, or blocks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Content {
    /// One text.
    Text(String),
    /// Blocks in order.
    Blocks(Vec<ContentBlock>),
}

/// One block of a message.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[non_exhaustive]
pub enum ContentBlock {
    /// A text.
    Text {
        /// The text.
        text: String,
    },
    /// A picture, inline.
    Image {
        /// Its media type, such as `image/png`.
        media_type: String,
        /// Its bytes in base64.
        data: String,
    },
    /// A document, inline.
    Document {
        /// Its media type: `application/pdf` or `text/plain`.
        media_type: String,
        /// Its bytes in base64; of plain text, the text itself.
        data: String,
        /// What it is called.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        title: Option<String>,
    },
    /// A call of a tool.
    ToolUse {
        /// The vendor's id of the call.
        id: String,
        /// The tool.
        name: String,
        /// Its arguments.
        input: Value,
    },
    /// What a tool answered.
    ToolResult {
        /// The id of the call that is answered.
        tool_use_id: String,
        /// The answer.
        content: Value,
        /// Whether the tool failed.
        #[serde(default)]
        is_error: bool,
    },
}

impl Message {
    /// A message of the user that is one text.
    pub fn user(text: impl Into<String>) -> Self {
        Self { role: Role::User, content: Content::Text(text.into()) }
    }
}

impl Content {
    /// The text of all text blocks, in order, joined by line breaks.
    pub fn text(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Blocks(blocks) => {
                let texts: Vec<&str> = blocks
                    .iter()
                    .filter_map(|block| {
                        if let ContentBlock::Text { text } = block { Some(text.as_str()) } else { None }
                    })
                    .collect();
                texts.join("\n")
            }
        }
    }
}
