//! Questions that wait for a person: the inbox of all sessions, and those of one session that is followed.

use std::{collections::HashSet, sync::Arc};

use inspan_flow::{SessionEntry, SessionFacts};
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
    facts: SessionFacts,
    /// The questions that were open when an event was last applied.
    known: Vec<PromptId>,
    /// The nodes that run.
    running: HashSet<NodePath>,
    /// No process runs the session.
    is_idle: bool,
}

impl OpenQuestions {
    /// The questions, the oldest first.
    pub fn prompts(&self) -> &[Prompt] {
        &self.facts.prompts
    }

    /// Whether nothing runs until a person answers, and each open question is one of these.
    pub fn waits_only_for(&self, is_one: impl Fn(&Prompt) -> bool) -> bool {
        let is_blocked = self.facts.waits.is_some_and(|waits| waits.on == WaitingOn::Input);
        (self.is_idle || is_blocked || self.all_ask())
            && !self.prompts().is_empty()
            && self.prompts().iter().all(is_one)
    }

    /// Whether each node that runs has asked. An agent that asks for a permission runs, and no event says that all waits for it.
    fn all_ask(&self) -> bool {
        let owners: HashSet<NodePath> = self.running.iter().filter_map(NodePath::owner).collect();
        let asking: HashSet<&NodePath> =
            self.prompts().iter().filter_map(|open| open.task.as_ref()).collect();
        let waits = |node: &NodePath| owners.contains(node) || asking.contains(node);
        !self.running.is_empty() && self.running.iter().all(waits)
    }

    /// Applies the next event; gives the questions that are closed since the last one.
    pub fn apply(&mut self, envelope: &Envelope) -> Vec<PromptId> {
        self.is_idle = false;
        self.facts.apply(envelope);
        let task = envelope.context.task.as_ref();
        match &envelope.event {
            Event::SessionPrompt(prompt) if !self.known.contains(&prompt.prompt_id) => {
                self.known.push(prompt.prompt_id.clone());
            }
            Event::TaskStart { .. } => self.running.extend(task.cloned()),
            Event::FlowResumed { .. } => self.running.clear(),
            Event::TaskComplete { .. }
            | Event::TaskFailed { .. }
            | Event::TaskCancelled { .. }
            | Event::TaskInterrupted { .. } => {
                self.running.retain(|node| Some(node) != task);
            }
            _ => {}
        }
        // Of a node that a pause has cut it is asked again when the session goes on.
        if let Event::TaskCancelled { .. } = &envelope.event {
            self.facts.prompts.retain(|open| open.task.is_none() || open.task.as_ref() != task);
        }
        if self.known.len() == self.facts.prompts.len() {
            return Vec::new();
        }
        let open: HashSet<&PromptId> = self.facts.prompts.iter().map(|open| &open.prompt_id).collect();
        self.known.extract_if(.., |id| !open.contains(id)).collect()
    }

    /// No process runs the session: an agent that asked for a permission is gone, a question whose time is up is over, and
    /// nothing runs. An answer that is stored may be applied in a moment.
    pub fn lose_process(&mut self, now: Timestamp) {
        self.facts.prompts.retain(|prompt| prompt.kind == PromptKind::Input && !prompt.is_over(now));
        self.running.clear();
        self.is_idle = true;
    }
}

#[cfg(test)]
mod tests {
    use inspan_protocol::EventContext;
    use serde_json::json;

    use super::*;

    fn apply(open: &mut OpenQuestions, event: Value) -> Vec<PromptId> {
        let context = EventContext { task: Some(NodePath::new("fix")), ..EventContext::session("s1".into()) };
        let event = serde_json::from_value(event).unwrap();
        open.apply(&Envelope::new(context, 1, Timestamp::default(), event))
    }

    #[test]
    fn the_permission_of_an_agent_that_is_gone_is_waited_for_no_longer() {
        let starts = json!({ "type": "task:start", "taskId": "fix", "nodeType": "agent", "attempt": 1, "path": "fix" });
        let asks = json!({ "type": "session:prompt", "promptId": "fix.1", "kind": "permission", "prompt": "Allow?" });
        let ends = [
            json!({ "type": "task:agent", "taskId": "fix", "agent": "two", "reason": "failed", "after": "one" }),
            json!({ "type": "limit:wait", "provider": "p", "until": "2026-01-07T12:00:00.000Z" }),
            json!({ "type": "agent:turn", "runId": "fix.1", "turn": 2 }),
            json!({ "type": "task:reused", "taskId": "fix", "result": {}, "from": "s0" }),
            json!({ "type": "task:interrupted", "taskId": "fix", "attempt": 1 }),
            json!({ "type": "task:cancelled", "taskId": "fix" }),
            json!({ "type": "flow:resumed", "nodeIds": [], "message": "" }),
        ];
        for end in ends {
            let mut open = OpenQuestions::default();
            assert!(apply(&mut open, starts.clone()).is_empty());
            assert!(apply(&mut open, asks.clone()).is_empty());
            assert!(open.waits_only_for(|_| true), "before {end}");
            assert_eq!(apply(&mut open, end.clone()), [PromptId::from("fix.1")], "{end}");
            assert!(!open.waits_only_for(|_| true) && open.prompts().is_empty(), "{end}");
        }
    }
}
