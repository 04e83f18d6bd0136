//! The digest as text for people: plain, or as Markdown.

use std::fmt::Write as _;

use inspan_view::{
    format,
    safe::{clean, markdown},
};

use super::{Digest, DigestSession, Money};

/// How many lines one part lists.
const MOST: usize = 50;

/// The form of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DigestForm {
    /// For a terminal, a mail or a message.
    Text,
    /// For a page.
    Markdown,
}

impl Digest {
    /// One line about all of it.
    pub fn title(&self) -> String {
        let span = format::age(self.until.since(self.since));
        let [failed, waiting, done] = [self.failed.len(), self.waiting.len(), self.done.len()];
        format!("{span}: {failed} failed, {waiting} waiting for you, {done} done, {}", money(&self.spent))
    }

    /// All of it.
    pub fn text(&self, form: DigestForm) -> String {
        let mut page = Page { text: String::new(), form };
        page.sessions("Failed", &self.failed);
        page.title("Money", None);
        page.item(&money(&self.spent));
        for flow in &self.spent.flows {
            let part = Money {
                usd: flow.usd,
                is_complete: flow.is_complete,
                tokens: flow.tokens,
                flows: Vec::new(),
            };
            page.more(&format!("{}: {}", page.safe(&flow.flow), money(&part)));
        }
        page.title("Waits for you", Some(self.waiting.len()));
        for item in self.waiting.iter().take(MOST) {
            let node = item.node.as_ref().map(|node| format!(" › {node}")).unwrap_or_default();
            page.item(&format!("{} {}{}", item.session, item.flow, node));
            let deadline = item.deadline.map(|at| format!(" (until {})", format::moment(at)));
            page.more(&format!("{}{}", page.safe(&item.what), deadline.unwrap_or_default()));
            item.commands.iter().for_each(|command| page.command(command));
        }
        page.rest(self.waiting.len());
        page.sessions("Done", &self.done);
        if !self.running.is_empty() {
            page.sessions("Running", &self.running);
        }
        page.text.trim_end().to_owned() + "\n"
    }
}

/// What was spent, and whether that is all.
fn money(money: &Money) -> String {
    let usd = format::dollars(money.usd);
    // Not every agent counts its tokens.
    let tokens = match money.tokens {
        0 => String::new(),
        tokens => format!(" for {} tokens", format::count(tokens)),
    };
    match money.is_complete {
        true if money.usd == 0.0 && tokens.is_empty() => "nothing spent".to_owned(),
        true => format!("{usd}{tokens}"),
        false => format!("more than {usd}{tokens}; not every price is known"),
    }
}

struct Page {
    text: String,
    form: DigestForm,
}

impl Page {
    /// Text that is not ours, so that it formats nothing.
    fn safe(&self, text: &str) -> String {
        match self.form {
            DigestForm::Text => clean(text),
            DigestForm::Markdown => markdown(text),
        }
    }

    fn put(&mut self, line: &str) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.text, "{line}");
    }

    fn title(&mut self, title: &str, count: Option<usize>) {
        let count = count.map(|count| format!(" ({count})")).unwrap_or_default();
        let gap = if self.text.is_empty() || self.text.ends_with("\n\n") { "" } else { "\n" };
        match self.form {
            DigestForm::Text => self.put(&format!("{gap}{title}{count}")),
            DigestForm::Markdown => self.put(&format!("{gap}## {title}{count}\n")),
        }
    }

    fn item(&mut self, text: &str) {
        match self.form {
            DigestForm::Text => self.put(&format!("  {text}")),
            DigestForm::Markdown => {
                let text = self.safe(text);
                self.put(&format!("- {text}"));
            }
        }
    }

    /// More about an item, made safe already.
    fn more(&mut self, text: &str) {
        match self.form {
            DigestForm::Text => self.put(&format!("    {text}")),
            DigestForm::Markdown => self.put(&format!("  - {text}")),
        }
    }

    fn command(&mut self, command: &str) {
        match self.form {
            DigestForm::Text => self.put(&format!("    {command}")),
            // A command has no line break; a backtick in it would end the code.
            DigestForm::Markdown => self.put(&format!("  - `` {command} ``")),
        }
    }

    fn rest(&mut self, count: usize) {
        if count > MOST {
            self.item(&format!("and {} more", count - MOST));
        }
    }

    fn sessions(&mut self, title: &str, sessions: &[DigestSession]) {
        self.title(title, Some(sessions.len()));
        for session in sessions.iter().take(MOST) {
            let mut facts = vec![session.state.to_owned()];
            facts.extend(session.duration_ms.map(|ms| format!("after {}", format::millis(ms))));
            match session.finished_nodes {
                0 => {}
                1 => facts.push("1 node finished".to_owned()),
                many => facts.push(format!("{many} nodes finished")),
            }
            match session.denied_calls {
                0 => {}
                1 => facts.push("1 tool call was denied".to_owned()),
                many => facts.push(format!("{many} tool calls were denied")),
            }
            facts.extend(session.cost_usd.filter(|usd| *usd > 0.0).map(format::dollars));
            self.item(&format!("{} {}: {}", session.session, session.flow, facts.join(", ")));
            if let Some(damage) = &session.damage {
                self.more(&self.safe(damage));
            }
            if let Some(error) = &session.error {
                self.more(&self.safe(error));
            }
            for failed in &session.errors {
                self.more(&format!("{}: {}", self.safe(failed.node.as_str()), self.safe(&failed.error)));
            }
            if session.more_errors > 0 {
                self.more(&format!("and {} more failed nodes", session.more_errors));
            }
            session.commands.iter().for_each(|command| self.command(command));
        }
        self.rest(sessions.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_spent_is_said_with_what_is_known_of_it() {
        let rows = [
            ((0.0, true, 0), "nothing spent"),
            ((1.25, true, 0), "$1.25"),
            ((0.0, true, 98), "$0 for 98 tokens"),
            ((1.25, false, 0), "more than $1.25; not every price is known"),
        ];
        for ((usd, is_complete, tokens), expected) in rows {
            assert_eq!(money(&Money { usd, is_complete, tokens, flows: Vec::new() }), expected);
        }
    }
}
