//! Questions that wait for a person: the inbox of all sessions, and those of one session that is followed.

use std::{collections::HashSet, sync::Arc};

use inspan_flow::SessionEntry;
use inspan_protocol::{Envelope, Event, NodePath, Prompt, PromptId, PromptKind, Timestamp, WaitingOn};
use inspan_view::{Commands, DisplayStatus, entry::open_questions, question};
use serde_json::Value;

use crate::is_driven;

/// A question that waits for a person.
#[derive(Clone, Debug, PartialEq)]
pub struct Question {
    /// The session that asks; all its questions share it, as it has them all.
    pub entry: Arc<SessionEntry>,
    /// What it asks.
    pub prompt: Prompt,
    /// Whether its time is up, and no process runs the session.
    pub is_late: bool,
}

/// Whether no answer to a question of a session counts at this time. If a process runs the session, that one decides: its
/// clock is another one, and may show something else.
pub fn is_late(entry: &SessionEntry, prompt: &Prompt, now: Timestamp) -> bool {
    !is_driven(entry) && prompt.is_over(now)
}

/// The questions of these sessions that are not answered. The one whose time is up first comes first; those
/// without a deadline follow in the order of the sessions.
pub fn questions(entries: &[SessionEntry], now: Timestamp) -> Vec<Question> {
    let open = entries.iter().filter(|entry| !DisplayStatus::of(entry).has_ended());
    let mut questions = Vec::new();
    for entry in open.filter(|entry| open_questions(entry).next().is_some()) {
        let shared = Arc::new(entry.clone());
        questions.extend(open_questions(entry).map(|prompt| Question {
            entry: Arc::clone(&shared),
            prompt: prompt.clone(),
            is_late: is_late(entry, prompt, now),
        }));
    }
    questions.sort_by_key(|question| (question.prompt.deadline.is_none(), question.prompt.deadline));
    questions
}

impl Question {
    /// The object for programs, with the commands that answer it, or once its time is up the one that resumes the session.
    pub fn json(&self, commands: &Commands) -> Value {
        question(&self.entry, &self.prompt, commands, self.is_late)
    }
}

/// The open questions of a session, for an interface that follows its events from the first.
#[derive(Clone, Debug, Default)]
pub struct OpenQuestions {
    prompts: Vec<Prompt>,
    /// The nodes that run.
    running: HashSet<NodePath>,
    /// Nothing runs until a person answers.
    is_blocked: bool,
}

impl OpenQuestions {
    /// The questions, the oldest first.
    pub fn prompts(&self) -> &[Prompt] {
        &self.prompts
    }

    /// Whether nothing runs until a person answers, and each open question is one of these.
    pub fn waits_only_for(&self, is_one: impl Fn(&Prompt) -> bool) -> bool {
        (self.is_blocked || self.all_ask()) && !self.prompts.is_empty() && self.prompts.iter().all(is_one)
    }

    /// Whether each node that runs has asked. An agent that asks for a permission runs, and no event says that all waits for it.
    fn all_ask(&self) -> bool {
        let owners: HashSet<NodePath> = self.running.iter().filter_map(NodePath::owner).collect();
        let asks = |node: &NodePath| self.prompts.iter().any(|prompt| prompt.task.as_ref() == Some(node));
        !self.running.is_empty() && self.running.iter().all(|node| owners.contains(node) || asks(node))
    }

    /// Applies the next event; gives the questions that it closed.
    pub fn apply(&mut self, envelope: &Envelope) -> Vec<PromptId> {
        match &envelope.event {
            Event::SessionPrompt(prompt) => {
                // A process that resumes the session asks again.
                self.prompts.retain(|open| open.prompt_id != prompt.prompt_id);
                self.prompts.push(Prompt { task: envelope.context.task.clone(), ..prompt.clone() });
            }
            Event::SessionReply { prompt_id, .. } => {
                self.is_blocked = false;
                return self.close(|prompt| prompt.prompt_id == *prompt_id);
            }
            Event::TaskStart { .. } => {
                self.is_blocked = false;
                self.running.extend(envelope.context.task.clone());
            }
            Event::FlowResumed { .. } => {
                self.is_blocked = false;
                self.running.clear();
                // The agents that asked are gone.
                return self.close(|prompt| prompt.kind != PromptKind::Input);
            }
            Event::FlowWaiting { on, .. } => self.is_blocked = *on == WaitingOn::Input,
            Event::TaskInterrupted { .. } => {
                self.running.retain(|node| Some(node) != envelope.context.task.as_ref());
            }
            // A question ends with its node.
            Event::TaskComplete { .. } | Event::TaskFailed { .. } | Event::TaskCancelled { .. } => {
                let task = &envelope.context.task;
                self.running.retain(|node| Some(node) != task.as_ref());
                return self.close(|prompt| prompt.task.is_some() && prompt.task == *task);
            }
            Event::HarnessComplete { .. } => return self.close(|_| true),
            _ => {}
        }
        Vec::new()
    }

    /// No process runs the session: an agent that asked for a permission is gone, a question whose time is up is over, and
    /// nothing runs. An answer that is stored may be applied in a moment.
    pub fn lose_process(&mut self, now: Timestamp) {
        self.prompts.retain(|prompt| prompt.kind == PromptKind::Input && !prompt.is_over(now));
        self.running.clear();
        self.is_blocked = true;
    }

    fn close(&mut self, is_closed: impl Fn(&Prompt) -> bool) -> Vec<PromptId> {
        self.prompts.extract_if(.., |prompt| is_closed(prompt)).map(|prompt| prompt.prompt_id).collect()
    }
}
