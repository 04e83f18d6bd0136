//! The inbox: questions that wait for a person.

use inspan_flow::SessionEntry;
use inspan_protocol::Prompt;
use inspan_view::{Commands, DisplayStatus, Permission, entry::open_questions};
use serde_json::{Value, json};

/// A question that waits for a person.
#[derive(Clone, Debug, PartialEq)]
pub struct Question {
    /// The session that asks.
    pub entry: SessionEntry,
    /// What it asks.
    pub prompt: Prompt,
}

/// The questions of these sessions that an answer can still reach. The one whose time is up first comes first; those
/// without a deadline follow in the order of the sessions.
pub fn questions(entries: &[SessionEntry]) -> Vec<Question> {
    let open = entries.iter().filter(|entry| !DisplayStatus::of(entry).has_ended());
    let mut questions: Vec<Question> = open
        .flat_map(|entry| {
            open_questions(entry).map(|prompt| Question { entry: entry.clone(), prompt: prompt.clone() })
        })
        .collect();
    questions.sort_by_key(|question| (question.prompt.deadline.is_none(), question.prompt.deadline));
    questions
}

impl Question {
    /// The object for programs, with the commands that answer it.
    pub fn json(&self, commands: &Commands) -> Value {
        let Self { entry, prompt } = self;
        let mut value = json!(prompt);
        value["sessionId"] = json!(entry.session);
        value["flow"] = json!(entry.flow);
        value["state"] = json!(DisplayStatus::of(entry).word());
        value["commands"] = json!(commands.answers(&entry.session, prompt));
        if let Some(permission) = Permission::of(prompt.kind, prompt.detail.as_ref(), &prompt.prompt) {
            value["permission"] = permission.json();
        }
        value
    }
}
