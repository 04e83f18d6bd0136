//! The commands that answer a question or go on with a session, exactly as a shell takes them.

use inspan_flow::SessionEntry;
use inspan_protocol::{PendingPrompt, PromptKind, SessionId};

use super::Standing;
use crate::invocation::Invocation;

/// Writes commands for one call of the program: they name the store if this call did.
pub(in crate::commands) struct Commands(String);

impl Commands {
    pub(in crate::commands) fn new(invocation: &Invocation) -> Self {
        let store = invocation.store.as_ref();
        Self(store.map(|file| format!(" --store {}", quoted(&file.to_string_lossy()))).unwrap_or_default())
    }

    /// A command about a session.
    pub(in crate::commands) fn command(&self, verb: &str, session: &SessionId, rest: &str) -> String {
        let rest = if rest.is_empty() { String::new() } else { format!(" {rest}") };
        format!("inspan {verb} {}{rest}{}", quoted(session.as_str()), self.0)
    }

    /// The commands that answer a question, one for each answer that it names.
    pub(in crate::commands) fn answers(&self, session: &SessionId, prompt: &PendingPrompt) -> Vec<String> {
        let id = quoted(prompt.prompt_id.as_str());
        if prompt.kind == PromptKind::Permission {
            return ["approve", "reject"].map(|verb| self.command(verb, session, &id)).to_vec();
        }
        let choices = prompt.choices.as_deref().unwrap_or_default();
        let mut commands: Vec<String> = choices
            .iter()
            .map(|choice| self.command("reply", session, &format!("{id} --choice {}", quoted(choice))))
            .collect();
        if prompt.allow_text.unwrap_or(choices.is_empty()) {
            commands.push(self.command("reply", session, &format!("{id} TEXT")));
        }
        commands
    }

    /// What can be done next about a session, its questions aside: each command with what it does.
    pub(in crate::commands) fn next(&self, entry: &SessionEntry) -> Vec<(String, &'static str)> {
        let id = &entry.session;
        let resume = || self.command("resume", id, "");
        match Standing::of(entry) {
            Standing::Running => vec![(self.command("logs", id, "-f"), "watches it")],
            Standing::Waiting if entry.owner.is_none() && entry.unanswered > 0 => {
                vec![(resume(), "takes what was kept and goes on")]
            }
            Standing::Waiting if entry.owner.is_none() => vec![(resume(), "goes on waiting for it")],
            Standing::Waiting => Vec::new(),
            Standing::Damaged => vec![(format!("inspan store verify{}", self.0), "says what is damaged")],
            Standing::Paused => vec![(resume(), "goes on")],
            Standing::Interrupted => {
                vec![(resume(), "goes on: the process that drove it is gone")]
            }
            Standing::Ended(inspan_protocol::Outcome::Success) => Vec::new(),
            Standing::Ended(_) => vec![
                (self.command("why", id, ""), "says why"),
                (
                    self.command("resume", id, "--edited"),
                    "begins again from what is done, with the flow mended",
                ),
            ],
        }
    }
}

/// A word as a POSIX shell takes it.
fn quoted(word: &str) -> String {
    let plain = |c: char| {
        c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '/' | ':' | '@' | '%' | '+' | ',')
    };
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_where_a_shell_would_take_them_apart() {
        let words = ["yes", "run it again", "", "it's", "$HOME", "a/b-c_d.e"].map(quoted);
        assert_eq!(words, ["yes", "'run it again'", "''", r"'it'\''s'", "'$HOME'", "a/b-c_d.e"]);
    }
}
