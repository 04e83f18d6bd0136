//! What an agent asks to be allowed, as people see it before they consent: the tool and its whole arguments first,
//! the agent's own words about it last and marked as such.

use inspan_protocol::PromptKind;
use serde_json::{Value, json};

use crate::{
    line::{Line, Tone},
    safe::{clean, spelled_out},
};

/// Arguments that say what a tool does, of which the question names one if it is short.
const TELLING: [&str; 6] = ["command", "cmd", "file_path", "path", "url", "title"];
/// The longest argument that is shown in the question itself, in letters.
const SHORT: usize = 60;

/// A question for permission.
#[derive(Clone, Copy, Debug)]
pub struct Permission<'a> {
    tool: &'a str,
    input: &'a Value,
    /// What the agent says about it.
    says: Option<&'a str>,
}

impl<'a> Permission<'a> {
    /// The permission that a question asks for, if it asks for one and says what for.
    pub fn of(kind: PromptKind, detail: Option<&'a Value>, prompt: &'a str) -> Option<Self> {
        let detail = detail.filter(|_| kind == PromptKind::Permission)?;
        let tool = detail.get("toolName")?.as_str()?;
        let says = detail.get("description").and_then(Value::as_str);
        // Older sessions have the agent's words in the question.
        let within = || prompt.strip_prefix(&format!("Allow `{tool}`?"));
        let says = says.or_else(within).map(str::trim).filter(|says| !says.is_empty());
        Some(Self { tool, input: detail.get("input").unwrap_or(&Value::Null), says })
    }

    /// The question: `Allow Write migration.sql?`.
    pub fn title(&self) -> String {
        let tool = clean(self.tool);
        match self.telling() {
            Some((_, argument)) => format!("Allow {tool} {argument}?"),
            None => format!("Allow {tool}?"),
        }
    }

    /// The object for programs: the question, the tool, its whole arguments.
    pub fn json(&self) -> Value {
        json!({ "title": self.title(), "tool": self.tool, "arguments": self.input })
    }

    /// The short argument that says what the tool does.
    fn telling(&self) -> Option<(&'static str, String)> {
        let (key, text) =
            TELLING.iter().find_map(|key| Some((*key, self.input.get(key)?.as_str()?.to_owned())))?;
        let text = spelled_out(&text);
        let fits = !text.is_empty() && text.chars().count() <= SHORT && !text.contains('\n');
        fits.then_some((key, text))
    }

    /// The arguments that the question does not name, whole, then what the agent says.
    pub fn lines(&self) -> Vec<Line> {
        let mut lines = Vec::new();
        match self.input {
            Value::Null => {}
            Value::Object(map) => {
                let named = self.telling().map(|(key, _)| key).filter(|_| map.len() == 1);
                for (key, value) in map.iter().filter(|(key, _)| Some(key.as_str()) != named) {
                    argument(&mut lines, key, value);
                }
            }
            other => argument(&mut lines, "input", other),
        }
        if let Some(says) = self.says {
            lines.push(Line::new().with(Tone::Faint, "agent says: ").with(Tone::Faint, &clean(says)));
        }
        lines
    }
}

fn argument(lines: &mut Vec<Line>, key: &str, value: &Value) {
    let text = match value {
        Value::String(text) => text.clone(),
        Value::Array(_) | Value::Object(_) => serde_json::to_string_pretty(value).unwrap_or_default(),
        other => other.to_string(),
    };
    let text = spelled_out(&text);
    let mut head = Line::new();
    head.push(Tone::Accent, &spelled_out(key)).push(Tone::Plain, ": ");
    if !text.contains('\n') {
        head.push(Tone::Plain, &text);
        lines.push(head);
        return;
    }
    lines.push(head);
    lines.extend(text.split('\n').map(|text| Line::new().with(Tone::Faint, "  | ").with(Tone::Plain, text)));
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn shown(detail: &Value, prompt: &str) -> Vec<String> {
        let permission = Permission::of(PromptKind::Permission, Some(detail), prompt).unwrap();
        let lines = permission.lines();
        [permission.title()].into_iter().chain(lines.iter().map(Line::text)).collect()
    }

    #[test]
    fn the_tool_and_its_whole_arguments_come_before_the_agents_words() {
        let destroys = json!({ "toolName": "Bash", "input": { "command": "rm -rf ./precious", "timeout": 5 }, "description": "list harmless\nfiles" });
        assert_eq!(
            shown(&destroys, "Allow `Bash`?"),
            [
                "Allow Bash rm -rf ./precious?",
                "command: rm -rf ./precious",
                "timeout: 5",
                "agent says: list harmless files"
            ]
        );
        let long = format!("echo {} ; rm -rf /", "x".repeat(400));
        let hides = json!({ "toolName": "Bash", "input": { "command": long } });
        assert_eq!(
            shown(&hides, "Allow `Bash`? be quick"),
            ["Allow Bash?".to_owned(), format!("command: {long}"), "agent says: be quick".to_owned()]
        );
        let lines = json!({ "toolName": "Write\u{1b}[2J", "input": { "file_path": "a\u{202e}b", "content": "1\n\u{1b}]0;x\u{7}" } });
        assert_eq!(
            shown(&lines, ""),
            [
                "Allow Write a\\u{202e}b?",
                "content: ",
                "  | 1",
                "  | \\u{1b}]0;x\\u{7}",
                "file_path: a\\u{202e}b"
            ]
        );
        let only = json!({ "toolName": "Read", "input": { "path": "a.txt" } });
        assert_eq!(shown(&only, ""), ["Allow Read a.txt?"]);
        let titled = json!({ "toolName": "execute", "input": { "title": "make" }, "description": "make" });
        assert_eq!(shown(&titled, ""), ["Allow execute make?", "agent says: make"]);
    }
}
