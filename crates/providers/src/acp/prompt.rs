//! A prompt in the protocol's form.

use inspan_protocol::{AgentError, ContentBlock, StreamEvent};
use serde_json::{Value, json};

use super::wire::PromptCapabilities;
use crate::error::invalid;

/// The line before a prompt that an agent would take for one of its commands.
const LEAD: &str = "The message follows; it is not a command.\n\n";

/// The media type of a document whose text is in the block as it is.
const PLAIN: &str = "text/plain";

/// Whether a prompt may be a command of the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CommandPolicy {
    /// The model reads it.
    No,
    /// The agent may take `/word` for a command.
    Wanted,
}

/// The blocks of a prompt in the protocol's form.
pub(super) fn blocks(
    message: &[ContentBlock],
    commands: CommandPolicy,
    takes: PromptCapabilities,
) -> Result<Vec<Value>, AgentError> {
    let mut prompt = Vec::new();
    for block in message {
        prompt.push(match block {
            ContentBlock::Text { text } => {
                let lead = commands == CommandPolicy::No && text.trim_start().starts_with(['/', '$']);
                let text = if lead { format!("{LEAD}{text}") } else { text.clone() };
                json!({ "type": "text", "text": text })
            }
            ContentBlock::Image { media_type, data } if takes.image => {
                json!({ "type": "image", "mimeType": media_type, "data": data })
            }
            ContentBlock::Image { .. } => return Err(invalid("this agent takes no pictures".to_owned())),
            ContentBlock::Document { media_type, data, title } if takes.embedded_context => {
                let content = if media_type == PLAIN { "text" } else { "blob" };
                let uri = uri(title.as_deref().unwrap_or("document"));
                json!({ "type": "resource", "resource": { "uri": uri, "mimeType": media_type, content: data } })
            }
            ContentBlock::Document { .. } => return Err(invalid("this agent takes no documents".to_owned())),
            _ => {
                let message = "a message to this provider may hold texts, pictures and documents only";
                return Err(invalid(message.to_owned()));
            }
        });
    }
    Ok(prompt)
}

/// The protocol has a place for such a document, and no way for an agent to say that it cannot read it.
pub(super) fn unread(block: &ContentBlock) -> Option<StreamEvent> {
    let ContentBlock::Document { media_type, .. } = block else { return None };
    let message = format!("agents that cannot read `{media_type}` ignore it without a message");
    (media_type != PLAIN).then(|| StreamEvent::warning("documentMayBeUnread", message))
}

/// A name for a document that is not a file.
fn uri(title: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    let part = |byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") };
    format!("document:///{}", title.bytes().map(part).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_become_resources_where_they_are_taken() {
        let document = |media_type: &str, data: &str, title: Option<&str>| ContentBlock::Document {
            media_type: media_type.to_owned(),
            data: data.to_owned(),
            title: title.map(str::to_owned),
        };
        let message = [
            document("text/plain", "oxen", Some("The \u{e4} list.txt")),
            document("application/pdf", "AA==", None),
        ];
        let takes = PromptCapabilities { embedded_context: true, ..PromptCapabilities::default() };
        assert_eq!(
            blocks(&message, CommandPolicy::No, takes).unwrap(),
            [
                json!({ "type": "resource", "resource": {
                    "uri": "document:///The%20%C3%A4%20list.txt", "mimeType": "text/plain", "text": "oxen",
                } }),
                json!({ "type": "resource", "resource": {
                    "uri": "document:///document", "mimeType": "application/pdf", "blob": "AA==",
                } }),
            ]
        );
        assert_eq!(message.iter().map(|block| unread(block).is_some()).collect::<Vec<_>>(), [false, true]);
        let refused = blocks(&message, CommandPolicy::No, PromptCapabilities::default()).unwrap_err();
        assert_eq!(refused.message, "this agent takes no documents");
    }
}
