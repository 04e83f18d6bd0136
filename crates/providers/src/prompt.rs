//! What a turn says to an agent: a prompt or messages, exactly one of them, as blocks.
//! The vendor's form of a block is left to the adapters.

use inspan_protocol::{AgentError, Content, ContentBlock, ErrorCode, Message, Role};

/// The blocks of one turn of the user, from an input's `prompt` or `messages`.
///
/// Several messages of the user become one, in their order. An earlier answer of the agent belongs to a
/// conversation that the vendor keeps, so a message of the assistant is refused.
pub(crate) fn blocks(
    prompt: Option<&str>,
    messages: Option<&[Message]>,
) -> Result<Vec<ContentBlock>, AgentError> {
    let blocks = match (prompt, messages) {
        (Some(prompt), None) => vec![ContentBlock::Text { text: prompt.to_owned() }],
        (None, Some(messages)) => {
            let mut blocks = Vec::new();
            for message in messages {
                if message.role != Role::User {
                    return Err(invalid(
                        "`messages` may hold messages of the user only; go on in a conversation with `options.resume`",
                    ));
                }
                match &message.content {
                    Content::Text(text) => blocks.push(ContentBlock::Text { text: text.clone() }),
                    Content::Blocks(more) => blocks.extend(more.iter().cloned()),
                }
            }
            blocks
        }
        (Some(_), Some(_)) => {
            return Err(invalid("`prompt` and `messages` are both given; give one of them"));
        }
        (None, None) => return Err(invalid("neither `prompt` nor `messages` is given")),
    };
    let says = |block: &ContentBlock| !matches!(block, ContentBlock::Text { text } if text.trim().is_empty());
    if !blocks.iter().any(says) {
        return Err(invalid("the prompt is empty"));
    }
    Ok(blocks)
}

/// The text of the blocks, joined by line breaks.
pub(crate) fn text(blocks: &[ContentBlock]) -> String {
    Content::Blocks(blocks.to_vec()).text()
}

fn invalid(message: &str) -> AgentError {
    AgentError::new(ErrorCode::ConfigInvalid, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exactly_one_of_prompt_and_messages() {
        let user = [Message::user("a"), Message::user("b")];
        let answer = [Message { role: Role::Assistant, content: Content::Text("x".to_owned()) }];
        let seen = [
            blocks(Some("hi"), None),
            blocks(None, Some(&user)),
            blocks(None, Some(&answer)),
            blocks(Some("hi"), Some(&user)),
            blocks(None, None),
            blocks(Some(" \n"), None),
            blocks(None, Some(&[])),
        ]
        .map(|result| result.map(|blocks| text(&blocks)).map_err(|error| error.to_string()));
        let expected = [
            Ok("hi".to_owned()),
            Ok("a\nb".to_owned()),
            Err("`messages` may hold messages of the user only; go on in a conversation with `options.resume` (CONFIG_INVALID)"),
            Err("`prompt` and `messages` are both given; give one of them (CONFIG_INVALID)"),
            Err("neither `prompt` nor `messages` is given (CONFIG_INVALID)"),
            Err("the prompt is empty (CONFIG_INVALID)"),
            Err("the prompt is empty (CONFIG_INVALID)"),
        ]
        .map(|result| result.map_err(str::to_owned));
        assert_eq!(seen, expected);
    }
}
