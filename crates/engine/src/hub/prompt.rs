//! Questions to a person: asked with an event, answered by a reply, a default at the deadline, or not at all.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use inspan_protocol::{Event, Prompt, PromptId, PromptKind, Rejection, Reply, Timestamp};
use tokio::{sync::oneshot, time::Sleep};
use tokio_util::sync::CancellationToken;

use crate::clock::LONGEST_SLEEP;

use super::{
    Hub,
    session::{HubSession, SessionStage},
};

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
    prompt: Prompt,
    reply: oneshot::Sender<Reply>,
}

/// The wait for the reply to a question. Dropped, the question is withdrawn and can no longer be answered.
#[must_use = "a question that is dropped is withdrawn"]
pub struct PendingReply {
    hub: Hub,
    number: u64,
    id: PromptId,
    deadline: Option<Timestamp>,
    reply: oneshot::Receiver<Reply>,
    timer: Option<Pin<Box<Sleep>>>,
    /// Unless this is cancelled, a question that is dropped is answered by its default.
    settles_unless: Option<CancellationToken>,
}

impl Hub {
    /// A question with a fresh id, which takes a free text and has no deadline.
    pub fn new_prompt(&self, kind: PromptKind, prompt: impl Into<String>) -> Prompt {
        Prompt::new(self.ids.prompt_id(), kind, prompt)
    }

    /// Asks a person: emits `session:prompt` in this handle's context and waits for the reply. Asking again
    /// under the id of an open question withdraws the older.
    pub fn ask(&self, mut prompt: Prompt) -> PendingReply {
        if let Some(redactor) = &self.redactor {
            redactor.prompt(&mut prompt);
        }
        let (sender, reply) = oneshot::channel();
        let (id, deadline) = (prompt.prompt_id.clone(), prompt.deadline);
        let mut number = 0;
        let asked = self.emit_when(|| {
            let mut session = self.shared.session.lock();
            if session.stage == SessionStage::Ended {
                return Err(());
            }
            session.asked += 1;
            number = session.asked;
            session.prompts.retain(|open| open.prompt.prompt_id != id);
            session.answered.remove(&id);
            let open = Prompt { task: self.context.task.clone(), ..prompt.clone() };
            session.prompts.push(OpenPrompt { number, prompt: open, reply: sender });
            Ok(Event::SessionPrompt(Prompt { task: None, ..prompt }))
        });
        if asked.is_err() {
            tracing::debug!(prompt = %id, "asked after the end of the session");
        }
        PendingReply { hub: self.clone(), number, id, deadline, reply, timer: None, settles_unless: None }
    }

    /// The questions that wait for an answer, oldest first.
    pub fn open_prompts(&self) -> Vec<Prompt> {
        self.shared.session.lock().prompts.iter().map(|open| open.prompt.clone()).collect()
    }
}

impl HubSession {
    pub(super) fn reply(
        &mut self,
        id: PromptId,
        content: String,
        choice: Option<String>,
    ) -> Result<Event, Rejection> {
        let place = self.open_place(&id)?;
        let reply = self.prompts[place].prompt.check(content, choice)?;
        Ok(self.answer(place, reply, AnsweredBy::Somebody))
    }

    /// Where an open question stands.
    fn open_place(&self, id: &PromptId) -> Result<usize, Rejection> {
        let place = self.prompts.iter().position(|open| open.prompt.prompt_id == *id);
        place.ok_or_else(|| match self.answered.contains(id) {
            true => Rejection::AlreadyAnswered(id.clone()),
            false => Rejection::UnknownPrompt(id.clone()),
        })
    }

    /// Nobody can be asked: the default of an open question is its answer.
    pub(super) fn take_default(&mut self, id: PromptId) -> Result<Event, Rejection> {
        let place = self.open_place(&id)?;
        let reply = self.prompts[place].prompt.default_reply().ok_or(Rejection::NoDefault(id))?;
        Ok(self.answer(place, reply, AnsweredBy::Default))
    }

    pub(super) fn reply_to(
        &mut self,
        asked: &Prompt,
        content: String,
        choice: Option<String>,
    ) -> Result<Event, Rejection> {
        let id = &asked.prompt_id;
        if self.stage != SessionStage::Active {
            return Err(Rejection::NotActive);
        }
        if self.answered.contains(id) || self.prompts.iter().any(|open| open.prompt.prompt_id == *id) {
            return self.reply(id.clone(), content, choice);
        }
        let Reply { content, choice } = asked.check(content, choice)?;
        self.answered.insert(id.clone());
        Ok(Event::SessionReply { prompt_id: id.clone(), content, choice, is_default: false })
    }

    fn answer(&mut self, place: usize, reply: Reply, by: AnsweredBy) -> Event {
        let open = self.prompts.remove(place);
        let prompt_id = open.prompt.prompt_id;
        self.answered.insert(prompt_id.clone());
        let Reply { content, choice } = reply.clone();
        // The receiver may be gone; the answer is in the log anyway.
        drop(open.reply.send(reply));
        Event::SessionReply { prompt_id, content, choice, is_default: by == AnsweredBy::Default }
    }

    /// What the deadline does to a question that is still open: its default answers it, or it is gone.
    fn expire(&mut self, number: u64) -> Result<Event, Late> {
        let place = self.prompts.iter().position(|open| open.number == number).ok_or(Late::Settled)?;
        let Some(default) = self.prompts[place].prompt.default_reply() else {
            self.prompts.remove(place);
            return Err(Late::Expired);
        };
        Ok(self.answer(place, default, AnsweredBy::Default))
    }
}

/// Where an answer comes from.
#[derive(Clone, Copy, PartialEq, Eq)]
enum AnsweredBy {
    Somebody,
    Default,
}

enum Late {
    /// A reply or a withdrawal came first.
    Settled,
    Expired,
}

impl PendingReply {
    /// The question's id.
    pub fn prompt_id(&self) -> &PromptId {
        &self.id
    }

    /// If it is dropped, its default answers it, unless the agent that asked was cancelled: then it ends with the agent.
    pub(crate) fn settled_unless(mut self, cancel: CancellationToken) -> Self {
        self.settles_unless = Some(cancel);
        self
    }

    fn poll_reply(&mut self, cx: &mut Context<'_>) -> Poll<Result<Reply, Unanswered>> {
        Pin::new(&mut self.reply).poll(cx).map_err(|_| Unanswered::Withdrawn(self.id.clone()))
    }
}

impl Future for PendingReply {
    type Output = Result<Reply, Unanswered>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        if let Poll::Ready(reply) = this.poll_reply(cx) {
            return Poll::Ready(reply);
        }
        let Some(deadline) = this.deadline else { return Poll::Pending };
        // The clock may be set and the machine may sleep, so the clock is read again and again.
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
        match hub.emit_when(|| hub.shared.session.lock().expire(this.number)) {
            Err(Late::Expired) => Poll::Ready(Err(Unanswered::Expired { prompt: this.id.clone(), deadline })),
            Ok(_) | Err(Late::Settled) => this.poll_reply(cx),
        }
    }
}

impl Drop for PendingReply {
    fn drop(&mut self) {
        if self.settles_unless.as_ref().is_some_and(|cancel| !cancel.is_cancelled()) {
            let session = &self.hub.shared.session;
            let settle = || {
                let mut session = session.lock();
                if session.stage == SessionStage::Active {
                    session.expire(self.number)
                } else {
                    Err(Late::Settled)
                }
            };
            drop(self.hub.emit_when(settle));
        }
        self.hub.shared.session.lock().prompts.retain(|open| open.number != self.number);
    }
}

#[cfg(test)]
mod tests;
