//! What a turn says to an agent: a prompt or messages, exactly one of them, as blocks; and what can be wrong with them.

use inspan_protocol::{AgentError, Content, ContentBlock, ErrorCode, InputProblem, Message, Role};
use serde_json::Value;

const BOTH: &str = "`prompt` and `messages` are both given; give one of them";
const NEITHER: &str = "neither `prompt` nor `messages` is given";
const EMPTY: &str = "the prompt is empty";
const ASSISTANT: &str =
    "`messages` may hold messages of the user only; go on in a conversation with `options.resume`";

/// Which messages of the assistant a provider takes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Assistant {
    /// None: the program keeps the conversation.
    Refused,
    /// Any but the last.
    Earlier,
}

/// What is wrong with the prompt or the messages of an input, as far as it shows before the input is used.
pub(crate) fn check(input: &Value, assistant: Assistant) -> Vec<InputProblem> {
    let given = |name: &str| input.get(name).filter(|value| !value.is_null());
    let messages = match (given("prompt"), given("messages")) {
        (Some(_), Some(_)) => return vec![InputProblem::new("/messages", BOTH)],
        (None, None) => return vec![InputProblem::new("", NEITHER)],
        (Some(prompt), None) => {
            let is_empty = prompt.as_str().is_some_and(|text| text.trim().is_empty());
            return is_empty.then(|| InputProblem::new("/prompt", EMPTY)).into_iter().collect();
        }
        (None, Some(Value::Array(messages))) => messages,
        // Of another type, as the schema says.
        (None, Some(_)) => return Vec::new(),
    };
    if messages.is_empty() {
        return vec![InputProblem::new("/messages", "`messages` is empty")];
    }
    let refused = |(at, message): (usize, &Value)| {
        let is_last = at + 1 == messages.len();
        let message = match (message["role"] == "assistant", assistant) {
            (true, Assistant::Refused) => ASSISTANT,
            (true, Assistant::Earlier) if is_last => "the last of `messages` has to be the user's",
            _ => return None,
        };
        Some(InputProblem::new(format!("/messages/{at}/role"), message))
    };
    messages.iter().enumerate().filter_map(refused).collect()
}

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
                    return Err(invalid(ASSISTANT));
                }
                match &message.content {
                    Content::Text(text) => blocks.push(ContentBlock::Text { text: text.clone() }),
                    Content::Blocks(more) => blocks.extend(more.iter().cloned()),
                }
            }
            blocks
        }
        (Some(_), Some(_)) => {
            return Err(invalid(BOTH));
        }
        (None, None) => return Err(invalid(NEITHER)),
    };
    let says = |block: &ContentBlock| !matches!(block, ContentBlock::Text { text } if text.trim().is_empty());
    if !blocks.iter().any(says) {
        return Err(invalid(EMPTY));
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
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_wrong_shows_before_anything_runs() {
        let said = |role: &str| json!({ "role": role, "content": "x" });
        let rows = [
            (json!({ "prompt": "{{ a.text }}" }), vec![], vec![]),
            (json!({ "prompt": null, "messages": [said("user")] }), vec![], vec![]),
            (json!({ "messages": 7 }), vec![], vec![]),
            (json!({ "options": {} }), vec![("", NEITHER)], vec![("", NEITHER)]),
            (json!({ "prompt": " " }), vec![("/prompt", EMPTY)], vec![("/prompt", EMPTY)]),
            (json!({ "prompt": "a", "messages": [] }), vec![("/messages", BOTH)], vec![("/messages", BOTH)]),
            (
                json!({ "messages": [] }),
                vec![("/messages", "`messages` is empty")],
                vec![("/messages", "`messages` is empty")],
            ),
            (
                json!({ "messages": [said("user"), said("assistant"), said("user")] }),
                vec![("/messages/1/role", ASSISTANT)],
                vec![],
            ),
            (
                json!({ "messages": [said("user"), said("assistant")] }),
                vec![("/messages/1/role", ASSISTANT)],
                vec![("/messages/1/role", "the last of `messages` has to be the user's")],
            ),
        ];
        for (input, refused, earlier) in rows {
            for (assistant, expected) in [(Assistant::Refused, refused), (Assistant::Earlier, earlier)] {
                let expected: Vec<_> =
                    expected.into_iter().map(|(at, message)| InputProblem::new(at, message)).collect();
                assert_eq!(check(&input, assistant), expected, "{input} {assistant:?}");
            }
        }
    }

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
