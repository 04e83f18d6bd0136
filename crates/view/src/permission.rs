//! What an agent asks to be allowed, as people see it before they consent: the tool and its whole arguments first,
//! the agent's own words about it last and marked as such.

use inspan_protocol::PromptKind;
use serde_json::{Value, json};

use crate::{
    line::{Line, Tone},
    safe::{clean, spelled_out},
};

/// Arguments that say what a tool does, of which the question names one if it is short.
const TELLING: [&str; 9] =
    ["command", "cmd", "file_path", "filePath", "filepath", "notebook_path", "path", "url", "title"];
/// The longest argument that is shown in the question itself, in letters.
const SHORT: usize = 60;
/// The longest argument that comes before the long ones, in letters.
const BRIEF: usize = 200;

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

    /// The object for programs: the question, the tool, its whole arguments, and these as lines.
    pub fn json(&self) -> Value {
        let lines: Vec<String> = self.lines().iter().map(Line::text).collect();
        json!({ "title": self.title(), "tool": self.tool, "arguments": self.input, "lines": lines })
    }

    /// The files that the tool is to change, if it has a list of changes.
    fn changed_files(&self) -> impl Iterator<Item = &str> {
        let changes = self.input.get("changes").and_then(Value::as_array);
        changes.into_iter().flatten().filter_map(|change| change.get("path")?.as_str())
    }

    /// The short argument that says what the tool does.
    fn telling(&self) -> Option<(&'static str, String)> {
        let argument = TELLING.iter().find_map(|key| Some((*key, self.input.get(key)?.as_str()?)));
        let mut changed = self.changed_files();
        let (key, text) = match (argument, changed.next(), changed.next()) {
            (None, Some(only), None) => ("", only),
            (argument, ..) => argument?,
        };
        let text = spelled_out(text);
        let fits = !text.is_empty() && text.chars().count() <= SHORT && !text.contains('\n');
        fits.then_some((key, text))
    }

    /// The arguments that the question does not name, whole and the short ones first, then what the agent says.
    pub fn lines(&self) -> Vec<Line> {
        let mut lines = Vec::new();
        self.changed_files().for_each(|path| argument(&mut lines, "changes", &Value::from(path)));
        match self.input {
            Value::Null => {}
            Value::Object(map) => {
                let named = self.telling().map(|(key, _)| key).filter(|_| map.len() == 1);
                let others = map.iter().filter(|(key, _)| Some(key.as_str()) != named);
                let (brief, long): (Vec<_>, Vec<_>) = others.partition(|(_, value)| is_brief(value));
                for (key, value) in brief.into_iter().chain(long) {
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

/// Whether an argument is one short line. A long one could push the others out of sight.
fn is_brief(value: &Value) -> bool {
    match value {
        Value::String(text) => text.len() <= BRIEF && !text.contains('\n'),
        Value::Array(_) | Value::Object(_) => false,
        _ => true,
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
                "file_path: a\\u{202e}b",
                "content: ",
                "  | 1",
                "  | \\u{1b}]0;x\\u{7}"
            ]
        );
        let hook = json!({ "toolName": "write", "input": { "content": "x".repeat(300), "filePath": ".git/hooks/a" } });
        assert_eq!(shown(&hook, "")[..2], ["Allow write .git/hooks/a?", "filePath: .git/hooks/a"]);
        let change = |path: &str| json!({ "diff": "+x\n", "path": path });
        let changes = |paths: &[&str]| {
            let changes: Vec<_> = paths.iter().map(|path| change(path)).collect();
            shown(&json!({ "toolName": "fileChange", "input": { "changes": changes } }), "")
        };
        assert_eq!(changes(&["a\u{3164}"])[..2], ["Allow fileChange a\\u{3164}?", "changes: a\\u{3164}"]);
        assert_eq!(changes(&["a", "b"])[..3], ["Allow fileChange?", "changes: a", "changes: b"]);
        let only = json!({ "toolName": "Read", "input": { "path": "a.txt" } });
        assert_eq!(shown(&only, ""), ["Allow Read a.txt?"]);
        let titled = json!({ "toolName": "execute", "input": { "title": "make" }, "description": "make" });
        assert_eq!(shown(&titled, ""), ["Allow execute make?", "agent says: make"]);
    }
}
