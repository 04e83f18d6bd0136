//! Questions to a person: asked with an event, answered by a reply, a default at the deadline, or not at all.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use inspan_protocol::{Event, NodePath, PendingPrompt, PromptId, PromptKind, Rejection, Timestamp};
use serde_json::Value;
use tokio::{sync::oneshot, time::Sleep};

use crate::clock::LONGEST_SLEEP;

use super::{
    Hub, lock,
    session::{Session, Stage},
};

/// A question to a person.
#[derive(Clone, Debug, PartialEq)]
pub struct Prompt {
    /// Its id; a fresh one if absent. A question that is asked again after a pause keeps its own.
    pub prompt_id: Option<PromptId>,
    /// The question.
    pub prompt: String,
    /// The answers to choose from.
    pub choices: Option<Vec<String>>,
    /// Whether a free text is an answer; if absent, exactly when there are no choices.
    pub allow_text: Option<bool>,
    /// Whether a flow asks for input or an agent for permission.
    pub kind: PromptKind,
    /// More about it.
    pub detail: Option<Value>,
    /// When the default is taken, or the question expires without one.
    pub deadline: Option<Timestamp>,
    /// The answer taken at the deadline.
    pub default: Option<String>,
}

impl Prompt {
    /// A question that takes a free text and waits without end.
    pub fn new(kind: PromptKind, prompt: impl Into<String>) -> Self {
        Self {
            prompt_id: None,
            prompt: prompt.into(),
            choices: None,
            allow_text: None,
            kind,
            detail: None,
            deadline: None,
            default: None,
        }
    }
}

/// The answer to a [`Prompt`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The answer.
    pub content: String,
    /// Which of the choices it is.
    pub choice: Option<String>,
}

/// Why a [`Prompt`] has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unanswered {
    /// The deadline passed and there is no default.
    #[error("nobody answered prompt `{prompt}` by {deadline}")]
    Expired {
        /// The question.
        prompt: PromptId,
        /// Its deadline.
        deadline: Timestamp,
    },
    /// The session ended, or the question was asked again elsewhere.
    #[error("prompt `{0}` was withdrawn")]
    Withdrawn(PromptId),
}

pub(super) struct OpenPrompt {
    /// Tells two questions of one id apart.
    number: u64,
    id: PromptId,
    prompt: Prompt,
    task: Option<NodePath>,
    answer: oneshot::Sender<Reply>,
}

/// The wait for the answer. Dropped, the question is withdrawn and can no longer be answered.
#[must_use = "a question that is dropped is withdrawn"]
pub struct Asked {
    hub: Hub,
    number: u64,
    id: PromptId,
    deadline: Option<Timestamp>,
    answer: oneshot::Receiver<Reply>,
    timer: Option<Pin<Box<Sleep>>>,
}

impl Hub {
    /// Asks a person: emits `session:prompt` in this handle's context and waits for the reply. Asking again
    /// under the id of an open question withdraws the older.
    pub fn ask(&self, prompt: Prompt) -> Asked {
        let id = prompt.prompt_id.clone().unwrap_or_else(|| self.shared.ids.prompt_id());
        let (sender, answer) = oneshot::channel();
        let deadline = prompt.deadline;
        let mut number = 0;
        let event = prompt.event(&id);
        let asked = self.emit_when(|| {
            let mut session = lock(&self.shared.session);
            if session.stage == Stage::Ended {
                return Err(());
            }
            session.asked += 1;
            number = session.asked;
            session.prompts.retain(|open| open.id != id);
            session.answered.remove(&id);
            let task = self.context.task.clone();
            session.prompts.push(OpenPrompt { number, id: id.clone(), prompt, task, answer: sender });
            Ok(event)
        });
        if asked.is_err() {
            tracing::debug!(prompt = %id, "asked after the end of the session");
        }
        Asked { hub: self.clone(), number, id, deadline, answer, timer: None }
    }

    /// The questions that wait for an answer, oldest first.
    pub fn open_prompts(&self) -> Vec<PendingPrompt> {
        let session = lock(&self.shared.session);
        let pending = |open: &OpenPrompt| PendingPrompt {
            prompt_id: open.id.clone(),
            prompt: open.prompt.prompt.clone(),
            choices: open.prompt.choices.clone(),
            allow_text: open.prompt.allow_text,
            kind: open.prompt.kind,
            detail: open.prompt.detail.clone(),
            task: open.task.clone(),
            deadline: open.prompt.deadline,
            default: open.prompt.default.clone(),
        };
        session.prompts.iter().map(pending).collect()
    }
}

impl Session {
    pub(super) fn reply(
        &mut self,
        id: PromptId,
        content: String,
        choice: Option<String>,
    ) -> Result<Event, Rejection> {
        let Some(place) = self.prompts.iter().position(|open| open.id == id) else {
            let answered = self.answered.contains(&id);
            return Err(if answered { Rejection::AlreadyAnswered(id) } else { Rejection::UnknownPrompt(id) });
        };
        let reply = self.prompts[place].prompt.check(&id, content, choice)?;
        Ok(self.answer(place, reply))
    }

    fn answer(&mut self, place: usize, reply: Reply) -> Event {
        let open = self.prompts.remove(place);
        self.answered.insert(open.id.clone());
        let event = Event::SessionReply {
            prompt_id: open.id,
            content: reply.content.clone(),
            choice: reply.choice.clone(),
        };
        // Nobody may be waiting any more; the answer stands in the log all the same.
        drop(open.answer.send(reply));
        event
    }

    /// What the deadline does to a question that is still open: its default answers it, or it is gone.
    fn expire(&mut self, number: u64) -> Result<Event, Late> {
        let place = self.prompts.iter().position(|open| open.number == number).ok_or(Late::Settled)?;
        match self.prompts[place].prompt.default.clone() {
            Some(default) => {
                let is_choice =
                    self.prompts[place].prompt.choices.iter().flatten().any(|choice| *choice == default);
                let choice = is_choice.then(|| default.clone());
                Ok(self.answer(place, Reply { content: default, choice }))
            }
            None => {
                self.prompts.remove(place);
                Err(Late::Expired)
            }
        }
    }
}

enum Late {
    /// A reply or a withdrawal came first.
    Settled,
    Expired,
}

impl Prompt {
    fn event(&self, id: &PromptId) -> Event {
        Event::SessionPrompt {
            prompt_id: id.clone(),
            prompt: self.prompt.clone(),
            choices: self.choices.clone(),
            allow_text: self.allow_text,
            kind: self.kind,
            detail: self.detail.clone(),
            deadline: self.deadline,
            default: self.default.clone(),
        }
    }

    /// Whether the reply answers the question. A text that is one of the choices is that choice.
    fn check(&self, id: &PromptId, content: String, choice: Option<String>) -> Result<Reply, Rejection> {
        let choices = self.choices.as_deref().unwrap_or_default();
        match choice {
            Some(choice) if choices.contains(&choice) => {
                let content = if content.is_empty() { choice.clone() } else { content };
                Ok(Reply { content, choice: Some(choice) })
            }
            Some(choice) => {
                Err(Rejection::NotAChoice { prompt: id.clone(), choice, choices: choices.join(", ") })
            }
            None if choices.contains(&content) => Ok(Reply { choice: Some(content.clone()), content }),
            None if self.allow_text.unwrap_or(choices.is_empty()) => Ok(Reply { content, choice: None }),
            None => Err(Rejection::TextNotAllowed(id.clone())),
        }
    }
}

/// Whether a reply answers an open question, before it is sent.
pub fn check_reply(open: &PendingPrompt, content: &str, choice: Option<&str>) -> Result<Reply, Rejection> {
    let prompt = Prompt {
        choices: open.choices.clone(),
        allow_text: open.allow_text,
        ..Prompt::new(open.kind, open.prompt.clone())
    };
    prompt.check(&open.prompt_id, content.to_owned(), choice.map(str::to_owned))
}

impl Asked {
    /// The question's id.
    pub fn prompt_id(&self) -> &PromptId {
        &self.id
    }

    fn poll_answer(&mut self, cx: &mut Context<'_>) -> Poll<Result<Reply, Unanswered>> {
        Pin::new(&mut self.answer).poll(cx).map_err(|_| Unanswered::Withdrawn(self.id.clone()))
    }
}

impl Future for Asked {
    type Output = Result<Reply, Unanswered>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        if let Poll::Ready(answer) = this.poll_answer(cx) {
            return Poll::Ready(answer);
        }
        let Some(deadline) = this.deadline else { return Poll::Pending };
        // The clock may be set, and the machine may sleep: it is looked at again and again.
        loop {
            let left = deadline.since(this.hub.shared.clock.now());
            let nap = left.min(LONGEST_SLEEP);
            let timer = this.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep(nap)));
            if timer.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            this.timer = None;
            if left.is_zero() {
                break;
            }
        }
        let hub = &this.hub;
        match hub.emit_when(|| lock(&hub.shared.session).expire(this.number)) {
            Err(Late::Expired) => Poll::Ready(Err(Unanswered::Expired { prompt: this.id.clone(), deadline })),
            Ok(_) | Err(Late::Settled) => this.poll_answer(cx),
        }
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        lock(&self.hub.shared.session).prompts.retain(|open| open.number != self.number);
    }
}

#[cfg(test)]
mod tests;
