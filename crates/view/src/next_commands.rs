//! The commands that answer a question or resume a session, quoted for a shell.

use std::path::Path;

use inspan_protocol::{FormField, Outcome, PauseCause, Prompt, PromptKind, SessionId};
use inspan_store::SessionEntry;

use crate::{entry::DisplayStatus, safe::is_unsafe};

/// The commands about stored sessions.
const OF_SESSIONS: [&str; 18] = [
    "close", "compare", "digest", "doctor", "fork", "graph", "inbox", "logs", "notify", "pause", "ps",
    "reply", "resume", "send", "show", "stop", "store", "why",
];

/// Writes commands of the program, quoted for a POSIX shell.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Commands(String);

impl Commands {
    /// Commands that name this store and this engine; without them they mean the user's own.
    pub fn new(store: Option<&Path>, engine: Option<&str>) -> Self {
        let store = store.map(|file| format!(" --store {}", quoted(&file.to_string_lossy())));
        let engine = engine.map(|url| format!(" --engine {}", quoted(url)));
        Self([store, engine].into_iter().flatten().collect())
    }

    /// A text for people whose commands about sessions mean those of this store and engine.
    pub fn complete(&self, text: &str) -> String {
        let mut parts = text.split('`');
        let mut whole = parts.next().unwrap_or_default().to_owned();
        for (number, part) in parts.enumerate() {
            whole.push('`');
            whole.push_str(part);
            let mut words = part.split(' ');
            let is_command = number % 2 == 0 && words.next() == Some("inspan");
            if is_command
                && !part.ends_with(&self.0)
                && words.next().is_some_and(|word| {
                    OF_SESSIONS.contains(&word) || (word == "test" && part.contains(" --from "))
                })
            {
                whole.push_str(&self.0);
            }
        }
        whole
    }

    /// A command about a session.
    pub fn command(&self, verb: &str, session: &SessionId, rest: &str) -> String {
        let rest = if rest.is_empty() { String::new() } else { format!(" {rest}") };
        format!("inspan {verb} {}{rest}{}", quoted(session.as_str()), self.0)
    }

    /// The commands that answer a question, one for each answer that it names.
    pub fn answers(&self, session: &SessionId, prompt: &Prompt) -> Vec<String> {
        let id = quoted(prompt.prompt_id.as_str());
        if prompt.kind == PromptKind::Permission {
            let mut commands = vec![self.command("approve", session, &id)];
            if prompt.choices.iter().flatten().any(|choice| choice == "always") {
                commands.push(self.command("approve", session, &format!("{id} --always")));
            }
            commands.push(self.command("reject", session, &id));
            return commands;
        }
        if let Some(form) = prompt.form() {
            let set = |field: &FormField| format!("--set {}", quoted(&format!("{}=VALUE", field.name)));
            let asked = form.fields().iter().filter(|field| field.is_required && field.default.is_none());
            let sets: Vec<String> = asked.map(set).collect();
            let rest = if sets.is_empty() { "'{}'".to_owned() } else { sets.join(" ") };
            return vec![self.command("reply", session, &format!("{id} {rest}"))];
        }
        let choices = prompt.choices.as_deref().unwrap_or_default();
        let mut commands: Vec<String> = choices
            .iter()
            .map(|choice| {
                // One that begins with a dash would be another option.
                let sign = if choice.starts_with('-') { '=' } else { ' ' };
                self.command("reply", session, &format!("{id} --choice{sign}{}", quoted(choice)))
            })
            .collect();
        if prompt.allow_text.unwrap_or(choices.is_empty()) {
            commands.push(self.command("reply", session, &format!("{id} TEXT")));
        }
        commands
    }

    /// The commands for an open question: those that answer it, or the one that resumes the session, once the time is up and
    /// no process runs it.
    pub fn for_question(&self, entry: &SessionEntry, prompt: &Prompt, is_late: bool) -> Vec<String> {
        match is_late {
            true => vec![self.command("resume", &entry.session, "")],
            false => self.answers(&entry.session, prompt),
        }
    }

    /// How a session continues that a budget paused or ended, and what that does: `limit` is what to raise, as the event names it.
    pub fn raise_budget(&self, session: &SessionId, limit: Option<&str>) -> (String, &'static str) {
        match limit {
            Some(limit) => {
                let limits = limit.replace(',', "=N,");
                let command = self.command("resume", session, &format!("--budget {limits}=N"));
                (command, "raise the budget and continue")
            }
            // No limit ended it, or a log of an older version does not say which.
            None => {
                let what =
                    "change the budget in the flow, or take `onUnknown: stop` out of it, then continue";
                (self.command("resume", session, "--edited"), what)
            }
        }
    }

    /// How a session continues that did not end well, in words that follow a full stop; nothing if it was stopped.
    pub fn after_failure(&self, session: &SessionId, outcome: Outcome) -> Option<String> {
        match outcome {
            Outcome::Success | Outcome::Stopped => None,
            Outcome::BudgetExceeded => {
                let show = self.command("show", session, "");
                Some(format!("`{show}` names the budget to raise, and the command that continues it."))
            }
            _ => {
                let resume = self.command("resume", session, "");
                Some(format!("Fix it, then run `{resume}`; finished work is reused."))
            }
        }
    }

    /// What can be done next about a session, its questions aside: each command with what it does.
    pub fn next(&self, entry: &SessionEntry) -> Vec<(String, &'static str)> {
        let id = &entry.session;
        let resume = || self.command("resume", id, "");
        if let Some(by) = &entry.continued_by {
            return vec![(self.command("show", by, ""), "see the session that continues it")];
        }
        match DisplayStatus::of(entry) {
            DisplayStatus::Running => vec![(self.command("logs", id, "-f"), "watch it")],
            DisplayStatus::Waiting if entry.owner.is_none() && entry.unanswered > 0 => {
                vec![(resume(), "apply the stored commands and continue")]
            }
            DisplayStatus::Waiting if entry.owner.is_none() => vec![(resume(), "wait for it again")],
            DisplayStatus::Waiting => Vec::new(),
            DisplayStatus::Damaged => vec![(self.command("show", id, ""), "see what is damaged")],
            DisplayStatus::Paused if entry.digest.paused_by == Some(PauseCause::Budget) => {
                vec![self.raise_budget(id, entry.digest.limit_to_raise.as_deref())]
            }
            DisplayStatus::Paused => vec![(resume(), "continue")],
            DisplayStatus::Interrupted => {
                vec![(resume(), "continue; the process that ran it is gone")]
            }
            DisplayStatus::Ended(Outcome::Success) | DisplayStatus::Continued => Vec::new(),
            DisplayStatus::Ended(_) => {
                let raise = entry.digest.limit_to_raise.as_deref();
                let raise = raise.map(|limit| self.raise_budget(id, Some(limit)));
                let why = (self.command("why", id, ""), "see why");
                let edited = (
                    self.command("resume", id, "--edited"),
                    "fix the flow, then run it again; finished work is reused",
                );
                [Some(why), raise, Some(edited)].into_iter().flatten().collect()
            }
        }
    }
}

/// A word as a POSIX shell takes it.
pub fn quoted(word: &str) -> String {
    let plain = |c: char| {
        c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '/' | ':' | '@' | '%' | '+' | ',')
    };
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    if !word.chars().any(|c| is_unsafe(c) || matches!(c, '\n' | '\t')) {
        return format!("'{}'", word.replace('\'', r"'\''"));
    }
    // What must not reach a terminal is written as bash and zsh read it.
    let mut quoted = "$'".to_owned();
    for c in word.chars() {
        match c {
            '\n' => quoted.push_str("\\n"),
            '\t' => quoted.push_str("\\t"),
            '\'' | '\\' => quoted.extend(['\\', c]),
            c if is_unsafe(c) => quoted.push_str(&format!("\\U{:08x}", u32::from(c))),
            c => quoted.push(c),
        }
    }
    quoted.push('\'');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_name_the_store_and_the_engine_of_the_call() {
        let url = "temporal://there/default?sessions=/srv/it";
        let commands = Commands::new(Some(Path::new("here.db")), Some(url));
        let command = commands.command("show", &SessionId::from("s"), "--all");
        assert_eq!(command, format!("inspan show s --all --store here.db --engine '{url}'"));
        let hint = format!("`inspan resume s` continues as `{command}` shows; `inspan help` and `s` help");
        let whole = "`inspan resume s --store here.db` continues as `inspan show s --store here.db` shows; `inspan help` and `s` help";
        let commands = Commands::new(Some(Path::new("here.db")), None);
        assert_eq!(commands.complete(&hint.replace(&command, "inspan show s --store here.db")), whole);
        assert_eq!(Commands::default().complete(&hint), hint);
        let hint =
            "`inspan test --from s`, `inspan notify deliver --once`, `inspan store gc s`, `inspan test`";
        let whole = "`inspan test --from s --store here.db`, `inspan notify deliver --once --store here.db`, \
                     `inspan store gc s --store here.db`, `inspan test`";
        assert_eq!(commands.complete(hint), whole);
    }

    #[test]
    fn a_choice_that_looks_like_an_option_is_still_a_choice() {
        let prompt = serde_json::json!({ "promptId": "p", "prompt": "Go?", "kind": "input", "choices": ["go", "--no"] });
        let prompt: Prompt = serde_json::from_value(prompt).unwrap();
        let answers = Commands::default().answers(&SessionId::from("s"), &prompt);
        assert_eq!(answers, ["inspan reply s p --choice go", "inspan reply s p --choice=--no"]);
    }

    #[test]
    fn words_are_quoted_where_a_shell_would_take_them_apart() {
        assert_eq!(quoted("a\u{1b}[2J'\n\u{202e}"), r"$'a\U0000001b[2J\'\n\U0000202e'");
        let words = ["yes", "run it again", "", "it's", "$HOME", "a/b-c_d.e"].map(quoted);
        assert_eq!(words, ["yes", "'run it again'", "''", r"'it'\''s'", "'$HOME'", "a/b-c_d.e"]);
    }
}
