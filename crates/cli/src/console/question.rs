//! A question as it is put to a person at the terminal, and what the line they type means. Reading the line
//! and sending the answer are left to `asker`.

use inspan_protocol::{PromptKind, Timestamp};
use serde_json::Value;

use super::{
    agent::call,
    format,
    line::{Line, Tone, clean, harmless},
    look,
    state::{Question, label},
};

/// Lines of arguments that are shown of a tool call.
const ARGUMENTS: usize = 20;

/// What a typed line means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) content: String,
    pub(crate) choice: Option<String>,
}

/// The question, ready to be answered on the line below.
pub(crate) fn block(question: &Question, now: Timestamp) -> Vec<Line> {
    let mut lines = Vec::new();
    let mut head = Line::new();
    head.push(Tone::Warning, "? ");
    if let Some(task) = &question.task {
        head.push(Tone::Strong, &clean(label(task))).push(Tone::Plain, ": ");
    }
    let mut paragraphs = question.text.lines();
    head.push(Tone::Strong, &clean(paragraphs.next().unwrap_or_default()));
    lines.push(head);
    lines.extend(paragraphs.map(|text| indented(text, Tone::Plain)));
    lines.extend(arguments(question));
    for (at, choice) in question.choices.iter().enumerate() {
        let mut line = Line::new();
        line.push(Tone::Accent, &format!("  {}", at + 1)).push(Tone::Plain, &format!("  {}", clean(choice)));
        if question.default.as_ref() == Some(choice) {
            line.push(Tone::Faint, " (default)");
        }
        lines.push(line);
    }
    let mut how = match (question.choices.is_empty(), question.allow_text) {
        (true, _) => "type an answer".to_owned(),
        (false, false) => "type a number or a word".to_owned(),
        (false, true) => "type a number, a word or an answer of your own".to_owned(),
    };
    if let Some(default) = &question.default {
        how.push_str(&format!("; Enter takes `{}`", clean(default)));
    }
    if let Some(deadline) = question.deadline {
        let left = format::duration(deadline.since(now));
        how.push_str(&match &question.default {
            Some(_) => format!(", and so does waiting until {} UTC ({left})", format::clock(deadline)),
            None => format!("; the question expires at {} UTC (in {left})", format::clock(deadline)),
        });
    }
    lines.push(indented(&how, Tone::Faint));
    lines
}

/// The tool and its arguments, of a question for permission.
fn arguments(question: &Question) -> Vec<Line> {
    let Some(detail) = question.detail.as_ref().filter(|_| question.kind == PromptKind::Permission) else {
        return Vec::new();
    };
    let tool = detail.get("toolName").and_then(Value::as_str).unwrap_or("tool");
    let input = detail.get("input").unwrap_or(&Value::Null);
    let mut lines = vec![indented(&format!("⚙ {}", call(tool, input)), Tone::Accent)];
    let text = serde_json::to_string_pretty(input).unwrap_or_default();
    let all: Vec<&str> = text.lines().collect();
    if input.as_object().is_some_and(|map| map.len() > 1) {
        lines.extend(all.iter().take(ARGUMENTS).map(|text| indented(text, Tone::Faint)));
        if all.len() > ARGUMENTS {
            lines.push(indented(&format!("… {} lines more", all.len() - ARGUMENTS), Tone::Faint));
        }
    }
    lines
}

fn indented(text: &str, tone: Tone) -> Line {
    let mut line = Line::new();
    line.push(Tone::Plain, "  ").push(tone, harmless(text).trim_end());
    line
}

/// What a line means as an answer, or why it is none.
pub(crate) fn read(question: &Question, typed: &str) -> Result<Answer, String> {
    let typed = typed.trim();
    let chosen = |choice: &String| Answer { content: choice.clone(), choice: Some(choice.clone()) };
    if typed.is_empty() {
        return match &question.default {
            Some(default) if question.choices.contains(default) => Ok(chosen(default)),
            Some(default) => Ok(Answer { content: default.clone(), choice: None }),
            None => Err("an answer is needed".to_owned()),
        };
    }
    let word = match (question.kind, typed.to_lowercase().as_str()) {
        (PromptKind::Permission, "y" | "yes") => "allow".to_owned(),
        (PromptKind::Permission, "n" | "no") => "deny".to_owned(),
        (_, word) => word.to_owned(),
    };
    let exact = question.choices.iter().find(|choice| choice.to_lowercase() == word);
    let numbered = || typed.parse::<usize>().ok().and_then(|n| question.choices.get(n.checked_sub(1)?));
    if let Some(choice) = exact.or_else(numbered) {
        return Ok(chosen(choice));
    }
    if question.allow_text {
        return Ok(Answer { content: typed.to_owned(), choice: None });
    }
    let mut begins = question.choices.iter().filter(|choice| choice.to_lowercase().starts_with(&word));
    match (begins.next(), begins.next()) {
        (Some(choice), None) => Ok(chosen(choice)),
        _ => Err(format!("`{}` is none of the answers", clean(typed))),
    }
}

impl Question {
    /// The answer that is taken where nobody can be asked.
    pub(crate) fn unattended(&self) -> Option<Answer> {
        self.default.as_ref().and_then(|_| read(self, "").ok())
    }
}

/// How the question and its answer stand in the log.
pub(crate) fn settled(question: &Question, how: &str) -> Line {
    let mut line = Line::new();
    line.push(Tone::Good, "? ");
    if let Some(task) = &question.task {
        line.push(Tone::Strong, &clean(label(task))).push(Tone::Plain, ": ");
    }
    line.push(Tone::Plain, &clean(&question.text)).push(Tone::Accent, &format!(" {}", clean(how)));
    if let Some(answers) = look::answers(question).filter(|_| how.is_empty()) {
        line.push(Tone::Faint, &format!(" ({answers})"));
    }
    line
}

#[cfg(test)]
mod tests {
    use inspan_protocol::PromptId;
    use serde_json::json;

    use super::*;

    fn question(choices: &[&str], default: Option<&str>, allow_text: bool) -> Question {
        Question {
            id: PromptId::from("p"),
            task: None,
            text: "Go on?".to_owned(),
            choices: choices.iter().map(|choice| (*choice).to_owned()).collect(),
            allow_text,
            kind: PromptKind::Input,
            detail: None,
            deadline: None,
            default: default.map(str::to_owned),
        }
    }

    fn texts(lines: &[Line]) -> Vec<String> {
        lines.iter().map(Line::text).collect()
    }

    #[test]
    fn a_line_chooses_by_number_word_or_beginning() {
        let chosen = |text: &str| Ok(Answer { content: text.to_owned(), choice: Some(text.to_owned()) });
        let free = |text: &str| Ok(Answer { content: text.to_owned(), choice: None });
        let refused = |text: &str| Err(format!("`{text}` is none of the answers"));
        let closed = question(&["Yes", "no", "now"], Some("no"), false);
        let rows = ["1", "yes", "Y", "no", "n", "4", "0", "", "maybe"].map(|typed| read(&closed, typed));
        let expected = [
            chosen("Yes"),
            chosen("Yes"),
            chosen("Yes"),
            chosen("no"),
            refused("n"),
            refused("4"),
            refused("0"),
            chosen("no"),
            refused("maybe"),
        ];
        assert_eq!(rows, expected);
        let open = question(&["yes"], None, true);
        assert_eq!(
            ["1", "y", ""].map(|typed| read(&open, typed)),
            [chosen("yes"), free("y"), Err("an answer is needed".to_owned()),]
        );
        let numbers = question(&["2", "1"], None, false);
        assert_eq!(["1", "2"].map(|typed| read(&numbers, typed)), [chosen("1"), chosen("2")]);
    }

    #[test]
    fn a_permission_shows_the_tool_and_takes_yes_and_no() {
        let mut asked = question(&["allow", "deny"], Some("deny"), false);
        asked.kind = PromptKind::Permission;
        asked.text = "Allow `Bash`? make a file".to_owned();
        asked.deadline = Some(Timestamp::from_millis(90_000));
        asked.detail = Some(json!({ "toolName": "Bash", "input": { "command": "touch f1", "timeout": 5 } }));
        let shown = texts(&block(&asked, Timestamp::from_millis(0)));
        let expected = [
            "? Allow `Bash`? make a file",
            "  ⚙ Bash touch f1",
            "  {",
            "    \"command\": \"touch f1\",",
            "    \"timeout\": 5",
            "  }",
            "  1  allow",
            "  2  deny (default)",
            "  type a number or a word; Enter takes `deny`, and so does waiting until 00:01:30 UTC (1m 30s)",
        ];
        assert_eq!(shown, expected);
        let words = ["y", "yes", "allow", "n", "", "x"].map(|typed| read(&asked, typed).map(|a| a.content));
        let [allow, deny] = ["allow", "deny"].map(|word| Ok(word.to_owned()));
        let refused = Err("`x` is none of the answers".to_owned());
        assert_eq!(words, [allow.clone(), allow.clone(), allow, deny.clone(), deny, refused]);
    }
}
