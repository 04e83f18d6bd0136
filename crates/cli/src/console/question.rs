//! A question as it is put to a person at the terminal, and what the line they type means.

use inspan_protocol::{Prompt, Timestamp};
use inspan_view::{Line, Permission, Tone, format, label, safe::clean, safe::harmless};

/// A question, ready to be answered on the line below.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct QuestionBlock {
    /// Who asks what.
    pub(crate) head: Vec<Line>,
    /// What is to be known before it is answered: the arguments of a tool.
    pub(crate) detail: Vec<Line>,
    /// The answers, and how one is given.
    pub(crate) how: Vec<Line>,
}

impl QuestionBlock {
    /// All of it.
    pub(crate) fn whole(self) -> Vec<Line> {
        let Self { head, detail, how } = self;
        [head, detail, how].concat()
    }

    /// As much of it as fits into so many columns and rows: of the detail what there is room for, and a count of the
    /// rest, which was printed before.
    pub(crate) fn fit(self, columns: usize, rows: usize) -> Vec<Line> {
        let Self { head, detail, how } = self;
        let [mut lines, mut detail, how] = [head, detail, how].map(|lines| wrapped(lines, columns));
        let room = rows.saturating_sub(lines.len() + how.len()).max(1);
        if detail.len() > room {
            let hidden = detail.len() - (room - 1);
            detail.truncate(room - 1);
            let rest = format!("… {hidden} more lines; all of it is above");
            detail.push(indented(&rest, Tone::Warning).clip(columns));
        }
        lines.extend(detail);
        lines.extend(how);
        lines
    }
}

/// Lines of a question in so many columns.
pub(super) fn wrapped(lines: Vec<Line>, columns: usize) -> Vec<Line> {
    lines.into_iter().flat_map(|line| line.wrap(columns, 4)).collect()
}

/// The question, ready to be answered on the line below.
pub(crate) fn block(question: &Prompt, now: Timestamp) -> QuestionBlock {
    let mut head = vec![titled(question, Tone::Warning)];
    let asked = permission(question);
    let mut detail = Vec::new();
    match &asked {
        Some(permission) => {
            detail.extend(permission.lines().iter().map(|line| line.indented(4)));
        }
        None => head.extend(question.prompt.lines().skip(1).map(|text| indented(text, Tone::Plain))),
    }
    let mut lines = Vec::new();
    for (at, choice) in choices(question).iter().enumerate() {
        let mut line = Line::new();
        line.push(Tone::Accent, &format!("  {}", at + 1)).push(Tone::Plain, &format!("  {}", clean(choice)));
        if asked.is_some() && choice == "always" {
            line.push(Tone::Faint, ": this tool for the rest of the run");
        }
        if question.default.as_ref() == Some(choice) {
            line.push(Tone::Faint, " (default)");
        }
        if asked.is_some() && choice == "deny" {
            line.push(Tone::Faint, ": with `n REASON` the agent is told why");
        }
        lines.push(line);
    }
    let mut how = match (choices(question).is_empty(), question.allows_text()) {
        (true, _) => "type an answer".to_owned(),
        (false, false) => "type a number or a word".to_owned(),
        (false, true) => "type a number, a word or your own answer".to_owned(),
    };
    if let Some(default) = &question.default {
        how.push_str(&format!("; Enter answers `{}`", clean(default)));
    }
    how.push_str(&expiry(question, now));
    lines.push(indented(&how, Tone::Faint));
    QuestionBlock { head, detail, how: lines }
}

/// What happens to the question without an answer in time, to follow a sentence.
pub(super) fn expiry(question: &Prompt, now: Timestamp) -> String {
    let Some(deadline) = question.deadline else { return String::new() };
    let left = format::duration(deadline.since(now));
    match &question.default {
        Some(default) => {
            format!("; without an answer by {} (in {left}): `{}`", format::clock(deadline), clean(default))
        }
        None => format!("; expires at {} (in {left})", format::clock(deadline)),
    }
}

/// The question itself, in one line.
pub(super) fn titled(question: &Prompt, tone: Tone) -> Line {
    let mut line = Line::new();
    line.push(tone, "? ");
    if let Some(task) = &question.task {
        line.push(Tone::Strong, &clean(label(task))).push(Tone::Plain, ": ");
    }
    line.push(Tone::Strong, &title(question));
    line
}

/// A line below the question.
pub(super) fn indented(text: &str, tone: Tone) -> Line {
    Line::new().with(Tone::Plain, "  ").with(tone, harmless(text).trim_end())
}

/// The answers to choose from.
pub(crate) fn choices(question: &Prompt) -> &[String] {
    question.choices.as_deref().unwrap_or_default()
}

/// The permission that a question asks for, if it does.
pub(crate) fn permission(question: &Prompt) -> Option<Permission<'_>> {
    Permission::of(question.kind, question.detail.as_ref(), &question.prompt)
}

/// The question in one line.
pub(crate) fn title(question: &Prompt) -> String {
    match permission(question) {
        Some(permission) => permission.title(),
        None => clean(question.prompt.lines().next().unwrap_or_default()),
    }
}

/// The question and its answer as they are in the log.
pub(crate) fn settled(question: &Prompt, how: &str) -> Line {
    let mut line = titled(question, Tone::Good);
    line.push(Tone::Plain, " ").push(Tone::Accent, &clean(how));
    line
}

#[cfg(test)]
mod tests {
    use inspan_protocol::{PromptKind, Reply};
    use inspan_sessions::read_answer;
    use serde_json::json;

    use super::*;

    fn question(choices: &[&str], default: Option<&str>, allow_text: bool) -> Prompt {
        Prompt {
            choices: Some(choices.iter().map(|choice| (*choice).to_owned()).collect()),
            allow_text: Some(allow_text),
            default: default.map(str::to_owned),
            ..Prompt::new("p", PromptKind::Input, "Continue?")
        }
    }

    fn texts(lines: &[Line]) -> Vec<String> {
        lines.iter().map(Line::text).collect()
    }

    #[test]
    fn a_line_chooses_by_number_word_or_beginning() {
        let chosen = |text: &str| Ok(Reply { content: text.to_owned(), choice: Some(text.to_owned()) });
        let free = |text: &str| Ok(Reply { content: text.to_owned(), choice: None });
        let refused = || Err("not a valid answer; type 1-3".to_owned());
        let closed = question(&["Yes", "no", "now"], Some("no"), false);
        let rows =
            ["1", "yes", "Y", "no", "n", "4", "0", "", "maybe"].map(|typed| read_answer(&closed, typed));
        let expected = [
            chosen("Yes"),
            chosen("Yes"),
            chosen("Yes"),
            chosen("no"),
            refused(),
            refused(),
            refused(),
            chosen("no"),
            refused(),
        ];
        assert_eq!(rows, expected);
        let open = question(&["yes"], None, true);
        assert_eq!(
            ["1", "y", ""].map(|typed| read_answer(&open, typed)),
            [chosen("yes"), free("y"), Err("type an answer".to_owned())]
        );
        let numbers = question(&["2", "1"], None, false);
        assert_eq!(["1", "2"].map(|typed| read_answer(&numbers, typed)), [chosen("1"), chosen("2")]);
    }

    #[test]
    fn a_permission_shows_the_tool_and_takes_yes_and_no() {
        let mut asked = question(&["allow", "always", "deny"], Some("deny"), false);
        asked.kind = PromptKind::Permission;
        asked.prompt = "Allow `Bash`? make a file".to_owned();
        asked.deadline = Some(Timestamp::from_millis(90_000));
        asked.detail = Some(json!({ "toolName": "Bash", "input": { "command": "touch f1", "timeout": 5 } }));
        let shown = texts(&block(&asked, Timestamp::from_millis(0)).whole());
        let expected = [
            "? Allow Bash touch f1?",
            "    command: touch f1",
            "    timeout: 5",
            "    agent says: make a file",
            "  1  allow",
            "  2  always: this tool for the rest of the run",
            "  3  deny (default): with `n REASON` the agent is told why",
            "  type a number or a word; Enter answers `deny`; without an answer by 00:01:30 (in 1m 30s): `deny`",
        ];
        assert_eq!(shown, expected);
        let fitted = texts(&block(&asked, Timestamp::from_millis(0)).fit(60, 8));
        let expected = [
            "? Allow Bash touch f1?",
            "    command: touch f1",
            "  … 2 more lines; all of it is above",
            "  1  allow",
            "  2  always: this tool for the rest of the run",
            "  3  deny (default): with `n REASON` the agent is told why",
            "  type a number or a word; Enter answers `deny`; without an ",
            "    answer by 00:01:30 (in 1m 30s): `deny`",
        ];
        assert_eq!(fitted, expected);
        let words =
            ["y", "yes", "allow", "n", "", "x"].map(|typed| read_answer(&asked, typed).map(|a| a.content));
        let [allow, deny] = ["allow", "deny"].map(|word| Ok(word.to_owned()));
        let refused = Err("not a valid answer; type 1-3".to_owned());
        assert_eq!(words, [allow.clone(), allow.clone(), allow, deny.clone(), deny, refused]);
        let told = |typed: &str| read_answer(&asked, typed).map(|reply| (reply.content, reply.choice));
        let denied = |why: &str| Ok((why.to_owned(), Some("deny".to_owned())));
        let why = "use `./tmp`, not /tmp";
        assert_eq!(
            ["n use `./tmp`, not /tmp", "No, use `./tmp`, not /tmp", "deny: use `./tmp`, not /tmp"].map(told),
            [denied(why), denied(why), denied(why)]
        );
        assert_eq!(told("n,"), denied("deny"));
        // Consent is a word alone, and no part of a denial.
        assert_eq!(["y but not now", "yes, later", "n allow"].map(|typed| told(typed).is_err()), [true; 3]);
    }
}
