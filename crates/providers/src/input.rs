//! The input of a turn: a prompt or messages, exactly one of them; the options that all adapters share; and what can be
//! wrong with them.

use std::time::Duration;

use inspan_protocol::{AgentError, Content, ContentBlock, InputProblem, Message, Role};
use serde_json::Value;

use crate::error::invalid;

const BOTH: &str = "`prompt` and `messages` are both given; give one of them";
const NEITHER: &str = "neither `prompt` nor `messages` is given";
const EMPTY: &str = "the prompt is empty";
const NO_MESSAGE: &str = "`messages` is empty";
const LAST: &str = "the last of `messages` has to be the user's";
const ASSISTANT: &str =
    "`messages` may hold messages of the user only; resume a conversation with `options.resume`";

const FORK_AT: &str = "`forkAt` is where a conversation is branched: it needs `fork: true`";

/// How long a vendor may say nothing during a turn, unless the options say otherwise.
const STALL: Duration = Duration::from_secs(300);

/// Which messages of the assistant a provider takes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Assistant {
    /// None: the program stores the conversation.
    Refused,
    /// Any but the last.
    Earlier,
}

/// What is wrong with the prompt, the messages or the branch of an input, as far as it shows before the input is used.
pub(crate) fn check(input: &Value, assistant: Assistant) -> Vec<InputProblem> {
    let mut problems = check_messages(input, assistant);
    if input.pointer("/options/forkAt").is_some_and(|at| !at.is_null()) && input["options"]["fork"] != true {
        problems.push(InputProblem::new("/options/forkAt", FORK_AT));
    }
    problems
}

fn check_messages(input: &Value, assistant: Assistant) -> Vec<InputProblem> {
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
        return vec![InputProblem::new("/messages", NO_MESSAGE)];
    }
    let refused = |(at, message): (usize, &Value)| {
        let is_last = at + 1 == messages.len();
        let message = match (message["role"] == "assistant", assistant) {
            (true, Assistant::Refused) => ASSISTANT,
            (true, Assistant::Earlier) if is_last => LAST,
            _ => return None,
        };
        Some(InputProblem::new(format!("/messages/{at}/role"), message))
    };
    messages.iter().enumerate().filter_map(refused).collect()
}

/// The blocks of one turn of the user, from an input's `prompt` or `messages`.
///
/// Several messages of the user become one, in their order. An earlier answer of the agent belongs to a
/// conversation that the vendor stores, so a message of the assistant is refused.
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
                blocks.extend(blocks_of(&message.content));
            }
            blocks
        }
        (Some(_), Some(_)) => return Err(invalid(BOTH)),
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

/// The messages of a turn that may include earlier ones of the assistant. The last one is the user's.
pub(crate) fn messages(
    prompt: Option<&str>,
    messages: Option<&[Message]>,
) -> Result<Vec<Message>, AgentError> {
    let messages = match (prompt, messages) {
        (Some(prompt), None) => vec![Message::user(prompt)],
        (None, Some(messages)) => messages.to_vec(),
        (Some(_), Some(_)) => return Err(invalid(BOTH)),
        (None, None) => return Err(invalid(NEITHER)),
    };
    match messages.last() {
        None => Err(invalid(NO_MESSAGE)),
        Some(last) if last.role != Role::User => Err(invalid(LAST)),
        Some(_) => Ok(messages),
    }
}

/// The blocks of one message.
pub(crate) fn blocks_of(content: &Content) -> Vec<ContentBlock> {
    match content {
        Content::Text(text) => vec![ContentBlock::Text { text: text.clone() }],
        Content::Blocks(blocks) => blocks.clone(),
    }
}

/// Checks the option `maxTurns`.
pub(crate) fn check_max_turns(max_turns: Option<u32>) -> Result<(), AgentError> {
    if max_turns == Some(0) { Err(invalid("`maxTurns` must be greater than 0")) } else { Ok(()) }
}

/// Checks the option `outputSchema`: agent CLIs ignore an invalid schema, or pass it on.
pub(crate) fn check_output_schema(schema: Option<&Value>) -> Result<(), AgentError> {
    let checked = schema.map(jsonschema::validator_for).transpose();
    checked.map(drop).map_err(|error| invalid(format!("`outputSchema` is not a JSON Schema: {error}")))
}

/// What the engine reads of an input's options.
macro_rules! input_facts {
    ($options:expr, $max_turns:expr) => {{
        use ::inspan_protocol::MultiTurn;
        ::inspan_protocol::InputFacts {
            model: $options.model.clone(),
            session: $options.resume.clone(),
            multi_turn: if $options.multi_turn == Some(true) { MultiTurn::On } else { MultiTurn::Off },
            idle_timeout: $options.idle_timeout_ms.map(::std::time::Duration::from_millis),
            max_turns: $max_turns,
            output_schema: $options.output_schema.clone(),
        }
    }};
}

/// Implements `ProviderInput` for an input that names its conversation by `options.resume`.
macro_rules! provider_input {
    ($input:ty, |$options:ident| $max_turns:expr $(, $at:ident)?) => {
        impl ::inspan_protocol::ProviderInput for $input {
            fn resume(&mut self, session: &::inspan_protocol::ProviderSessionId, message: &str) {
                self.messages = None;
                self.prompt = Some(message.to_owned());
                let options = self.options.get_or_insert_default();
                options.resume = Some(session.clone());
                options.fork = None;
                $(options.$at = None;)?
            }

            fn facts(&self) -> ::inspan_protocol::InputFacts {
                self.options.as_ref().map_or_else(::std::default::Default::default, |$options| {
                    $crate::input::input_facts!($options, $max_turns)
                })
            }
        }
    };
}

/// Implements `ProviderInput` for an input that names its conversation beside its options, and perhaps its model too.
macro_rules! provider_input_beside {
    ($input:ty, $session:ident $(, $model:ident)?) => {
        impl ::inspan_protocol::ProviderInput for $input {
            fn resume(&mut self, session: &::inspan_protocol::ProviderSessionId, message: &str) {
                self.messages = None;
                self.prompt = Some(message.to_owned());
                self.$session = Some(session.clone());
                if let Some(options) = &mut self.options {
                    options.resume = None;
                    options.fork = None;
                    options.fork_at = None;
                }
            }

            fn facts(&self) -> ::inspan_protocol::InputFacts {
                let options = self.options.clone().unwrap_or_default();
                let facts = $crate::input::input_facts!(options, options.max_turns);
                ::inspan_protocol::InputFacts {
                    session: self.$session.clone().or(facts.session),
                    $(model: self.$model.clone().or(facts.model),)?
                    ..facts
                }
            }
        }
    };
}

pub(crate) use {input_facts, provider_input, provider_input_beside};

/// How long a vendor may say nothing during a turn, by the option `stallTimeoutMs`.
pub(crate) fn stall(milliseconds: Option<u64>) -> Duration {
    milliseconds.map_or(STALL, Duration::from_millis)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_wrong_shows_before_anything_runs() {
        let returned = |role: &str| json!({ "role": role, "content": "x" });
        let rows = [
            (json!({ "prompt": "{{ a.text }}" }), vec![], vec![]),
            (json!({ "prompt": null, "messages": [returned("user")] }), vec![], vec![]),
            (json!({ "messages": 7 }), vec![], vec![]),
            (
                json!({ "prompt": "a", "options": { "forkAt": "7" } }),
                vec![("/options/forkAt", FORK_AT)],
                vec![("/options/forkAt", FORK_AT)],
            ),
            (json!({ "prompt": "a", "options": { "fork": true, "forkAt": "7" } }), vec![], vec![]),
            (json!({ "options": {} }), vec![("", NEITHER)], vec![("", NEITHER)]),
            (json!({ "prompt": " " }), vec![("/prompt", EMPTY)], vec![("/prompt", EMPTY)]),
            (json!({ "prompt": "a", "messages": [] }), vec![("/messages", BOTH)], vec![("/messages", BOTH)]),
            (
                json!({ "messages": [] }),
                vec![("/messages", "`messages` is empty")],
                vec![("/messages", "`messages` is empty")],
            ),
            (
                json!({ "messages": [returned("user"), returned("assistant"), returned("user")] }),
                vec![("/messages/1/role", ASSISTANT)],
                vec![],
            ),
            (
                json!({ "messages": [returned("user"), returned("assistant")] }),
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
            Err("`messages` may hold messages of the user only; resume a conversation with `options.resume` (CONFIG_INVALID)"),
            Err("`prompt` and `messages` are both given; give one of them (CONFIG_INVALID)"),
            Err("neither `prompt` nor `messages` is given (CONFIG_INVALID)"),
            Err("the prompt is empty (CONFIG_INVALID)"),
            Err("the prompt is empty (CONFIG_INVALID)"),
        ]
        .map(|result| result.map_err(str::to_owned));
        assert_eq!(seen, expected);
    }
}
