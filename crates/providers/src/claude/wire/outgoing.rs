//! The lines that Claude Code reads: our requests, answers to its requests, and what the user says.

use inspan_protocol::{AgentError, ContentBlock, ErrorCode};
use serde_json::{Value, json};

/// A request of ours.
pub(in super::super) fn control_request(id: &str, request: Value) -> Value {
    json!({ "type": "control_request", "request_id": id, "request": request })
}

/// The answer to a request of the program.
pub(in super::super) fn control_success(id: &str, response: Value) -> Value {
    json!({ "type": "control_response", "response": { "subtype": "success", "request_id": id, "response": response } })
}

/// The refusal of a request of the program.
pub(in super::super) fn control_error(id: &str, error: &str) -> Value {
    json!({ "type": "control_response", "response": { "subtype": "error", "request_id": id, "error": error } })
}

/// How a prompt is passed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in super::super) enum Rewriting {
    /// The model reads it as it was written.
    #[default]
    Defeated,
    /// The program may take `/word` for a command and `@path` for a file to include.
    Wanted,
}

/// One message of the user.
///
/// The program looks for `/` and `@` in the last text block alone, and leaves out empty blocks in its requests
/// to the model. So an empty block at the end leaves the others as they were written, in the transcript and
/// after a resume too.
pub(in super::super) fn user_message(
    blocks: &[ContentBlock],
    rewriting: Rewriting,
) -> Result<Value, AgentError> {
    let mut content = blocks.iter().map(content_block).collect::<Result<Vec<_>, _>>()?;
    if rewriting == Rewriting::Defeated {
        content.push(json!({ "type": "text", "text": "" }));
    }
    Ok(json!({
        "type": "user",
        "message": { "role": "user", "content": content },
        "parent_tool_use_id": null,
        "session_id": "",
    }))
}

fn content_block(block: &ContentBlock) -> Result<Value, AgentError> {
    match block {
        ContentBlock::Text { text } => Ok(json!({ "type": "text", "text": text })),
        ContentBlock::Image { media_type, data } => Ok(json!({
            "type": "image",
            "source": { "type": "base64", "media_type": media_type, "data": data },
        })),
        _ => Err(AgentError::new(
            ErrorCode::ConfigInvalid,
            "a message to this provider may hold texts and images only",
        )),
    }
}
