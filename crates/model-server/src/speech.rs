//! What a turn says to one request, in terms that every format shares: blocks, ids, pieces, a fixed time.

use serde_json::{Value, json};

use crate::scenario::{Block, Turn};
use crate::wire::RequestView;
use crate::wire::sorted;

/// The tool through which a structured answer is given.
const STRUCTURED_TOOL: &str = "StructuredOutput";

/// The shell tool of Droid, which requires a risk level.
const DROID_SHELL: &str = "Execute";

/// What agents call the tool that runs a shell command, and the key of its command.
const SHELL_TOOLS: [(&str, &str); 6] = [
    ("Bash", "command"),
    ("bash", "command"),
    ("exec_command", "cmd"),
    ("shell_command", "command"),
    ("run_shell_command", "command"),
    (DROID_SHELL, "command"),
];

/// A block as one request can take it: what a scenario leaves open is decided.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Spoken {
    Pause { ms: u64 },
    Text { text: String, chunks: usize },
    Thinking { text: String, signature: String, chunks: usize },
    ToolUse { name: String, input: Value, id: Option<String>, chunks: usize },
}

/// The blocks of a turn, the structured answer after them in the form that this request can take.
pub(crate) fn spoken(turn: &Turn, request: &RequestView) -> Vec<Spoken> {
    let structured = turn.structured.as_ref().map(|value| match request.offers(STRUCTURED_TOOL) {
        true => Block::tool(STRUCTURED_TOOL, value.clone()),
        false => Block::text(text_of(value)),
    });
    turn.blocks.iter().cloned().chain(structured).map(|block| decided(block, request)).collect()
}

/// Whether a tool is called.
pub(crate) fn calls_a_tool(spoken: &[Spoken]) -> bool {
    spoken.iter().any(|block| matches!(block, Spoken::ToolUse { .. }))
}

fn decided(block: Block, request: &RequestView) -> Spoken {
    match block {
        Block::Pause { ms } => Spoken::Pause { ms },
        Block::Text { text, chunks } => Spoken::Text { text, chunks },
        Block::Thinking { text, signature, chunks } => Spoken::Thinking { text, signature, chunks },
        Block::ToolUse { name, input, id, chunks } => Spoken::ToolUse { name, input, id, chunks },
        Block::Shell { command, id, chunks } => {
            let offered = SHELL_TOOLS.into_iter().find(|(name, _)| request.offers(name));
            // Without such a tool the call still goes out, as a model's mistake would.
            let (name, key) = offered.unwrap_or(SHELL_TOOLS[0]);
            let returned = "Scripted command";
            let input = match (name, key) {
                (DROID_SHELL, _) => json!({
                    "command": command, "riskLevel": "medium", "riskLevelReason": returned, "summary": returned
                }),
                // Some agents refuse a call without a description, and the others pass it over.
                (_, "command") => json!({ "command": command, "description": returned }),
                (_, key) => json!({ key: command }),
            };
            Spoken::ToolUse { name: name.to_owned(), input, id, chunks }
        }
    }
}

/// `count` pieces of nearly equal length, cut between characters; one empty piece for an empty text.
pub(crate) fn pieces(text: &str, count: usize) -> impl Iterator<Item = String> + use<> {
    let letters: Vec<char> = text.chars().collect();
    let count = count.clamp(1, letters.len().max(1));
    (0..count).map(move |piece| {
        let start = piece * letters.len() / count;
        let end = (piece + 1) * letters.len() / count;
        letters[start..end].iter().collect()
    })
}

/// The value with sorted keys, as text.
pub(crate) fn text_of(value: &Value) -> String {
    sorted(value).to_string()
}

/// An event of a format that repeats its `type` on the `event:` line.
pub(crate) fn typed_event(event: &Value) -> String {
    format!("event: {}\ndata: {}\n\n", event["type"].as_str().unwrap_or_default(), text_of(event))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_command_takes_the_form_of_the_tool_at_hand() {
        let turn = Turn { blocks: vec![Block::shell("ls")], ..Turn::default() };
        let returned = |tools: &[&str]| {
            let tools = tools.iter().map(|&tool| tool.to_owned()).collect();
            let request = RequestView { tools, ..RequestView::default() };
            match spoken(&turn, &request).remove(0) {
                Spoken::ToolUse { name, input, .. } => format!("{name} {input}"),
                other => format!("{other:?}"),
            }
        };
        let described = r#"{"command":"ls","description":"Scripted command"}"#;
        assert_eq!(returned(&["exec_command", "view_image"]), r#"exec_command {"cmd":"ls"}"#);
        assert_eq!(returned(&["read", "bash"]), format!("bash {described}"));
        assert_eq!(returned(&["run_shell_command"]), format!("run_shell_command {described}"));
        assert_eq!(
            returned(&["Read", "Execute"]),
            r#"Execute {"command":"ls","riskLevel":"medium","riskLevelReason":"Scripted command","summary":"Scripted command"}"#
        );
        assert_eq!(returned(&["Read"]), format!("Bash {described}"));
    }

    #[test]
    fn pieces_are_nearly_equal_and_never_empty() {
        let cut = |text: &str, count| pieces(text, count).collect::<Vec<_>>();
        assert_eq!(cut("abcdefg", 3), ["ab", "cd", "efg"]);
        assert_eq!(cut("äöü", 2), ["ä", "öü"]);
        assert_eq!(cut("ab", 9), ["a", "b"]);
        assert_eq!(cut("ab", 0), ["ab"]);
        assert_eq!(cut("", 4), [""]);
    }
}
