//! The messages of a session and the chats that wait for their end: the queue, the mailbox of the run that takes messages
//! now, and the chats that joined another.

use std::sync::Arc;

use inspan_protocol::{AgentError, MessageMode, RunId};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::{
    AgentSessionStatus, SessionCore, closed,
    exchange::{ActiveChat, ChatEnd},
    options::Chat,
    queue::{Queue, QueueInput, QueueOutput, QueueStage, Refusal},
};
use crate::run::Mail;

/// The queue, who else waits for the chat in progress, and what aborts it.
pub(super) struct Inbox {
    pub(super) queue: Queue,
    pub(super) waiters: Vec<oneshot::Sender<ChatEnd>>,
    pub(super) abort: CancellationToken,
}

/// The role of a chat in its session.
pub(super) enum Role {
    /// It is the one in progress; these messages waited for it.
    Leads(ActiveChat, Vec<Mail>),
    /// Its message joined the one in progress, and both end together.
    Joins(oneshot::Receiver<ChatEnd>),
}

impl Inbox {
    /// An inbox in which these messages wait.
    pub(super) fn of(waiting: impl IntoIterator<Item = String>) -> Self {
        let follow = |content| Mail { content, mode: MessageMode::FollowUp };
        let queue = Queue::of(waiting.into_iter().map(follow));
        Self { queue, waiters: Vec::new(), abort: CancellationToken::new() }
    }
}

impl SessionCore {
    pub(super) fn join_or_lead(self: &Arc<Self>, chat: &Chat) -> Result<Role, AgentError> {
        loop {
            let mut inbox = self.inbox.lock();
            match inbox.queue.apply(QueueInput::Begin) {
                QueueOutput::Take(waiting) => {
                    inbox.abort = self.hub.aborted();
                    let token = inbox.abort.clone();
                    drop(inbox);
                    return Ok(Role::Leads(ActiveChat::new(Arc::clone(self), token), waiting));
                }
                QueueOutput::Refused(Refusal::Closed) => return Err(closed()),
                _ => drop(inbox),
            }
            if !chat.attachments.is_empty() {
                return Err(self.invalid("a message to an agent at work is text, and has no attachments"));
            }
            let (sender, end) = oneshot::channel();
            if self.post(&chat.text, chat.mode, Some(sender))? {
                return Ok(Role::Joins(end));
            }
        }
    }

    /// Puts a message into the queue, or into the mailbox of the run that takes it now. With a waiter it is only put
    /// there while a chat is in progress, whose end the waiter receives; else false is returned.
    pub(super) fn post(
        &self,
        content: &str,
        mode: MessageMode,
        waiter: Option<oneshot::Sender<ChatEnd>>,
    ) -> Result<bool, AgentError> {
        /// Why a message was not taken.
        enum Not {
            Idle,
            Refused(AgentError),
        }
        let mail = Mail { content: content.to_owned(), mode };
        let posted = self.hub.post_when(content.to_owned(), mode, |hub| {
            let mut inbox = self.inbox.lock();
            if waiter.is_some() && *inbox.queue.stage() == QueueStage::Idle {
                return Err(Not::Idle);
            }
            let run = match inbox.queue.apply(QueueInput::Message(mail)) {
                QueueOutput::HandOver(run, mail) => match hub.deliver(&run, mail) {
                    Ok(()) => Some(run),
                    Err(mail) => {
                        inbox.queue.apply(QueueInput::Returned(vec![mail]));
                        None
                    }
                },
                QueueOutput::Refused(Refusal::Full) => {
                    return Err(Not::Refused(self.invalid("too many messages wait for the agent")));
                }
                QueueOutput::Refused(_) => return Err(Not::Refused(closed())),
                QueueOutput::Nothing | QueueOutput::Take(_) => None,
            };
            inbox.waiters.extend(waiter);
            Ok(run)
        });
        match posted {
            Ok(()) => Ok(true),
            Err(Not::Idle) => Ok(false),
            Err(Not::Refused(error)) => Err(error),
        }
    }

    /// A run has opened its mailbox: it gets what waits.
    pub(super) fn hand_over(&self, run: &RunId) {
        let mut inbox = self.inbox.lock();
        let QueueOutput::Take(waiting) = inbox.queue.apply(QueueInput::Started(run.clone())) else { return };
        let refused: Vec<Mail> =
            waiting.into_iter().filter_map(|mail| self.hub.deliver(run, mail).err()).collect();
        if !refused.is_empty() {
            inbox.queue.apply(QueueInput::Returned(refused));
        }
    }

    /// Takes back what no turn has delivered yet.
    pub(super) fn drain(&self) -> Vec<String> {
        let mut inbox = self.inbox.lock();
        let mut mail = match inbox.queue.stage() {
            QueueStage::Running(run) => self.hub.take_mail(run),
            _ => Vec::new(),
        };
        if let QueueOutput::Take(waiting) = inbox.queue.apply(QueueInput::Drain) {
            mail.extend(waiting);
        }
        mail.into_iter().map(|mail| mail.content).collect()
    }

    /// The state of the session, and what waits.
    pub(super) fn queued(&self) -> (AgentSessionStatus, Vec<String>) {
        let inbox = self.inbox.lock();
        let handed = match inbox.queue.stage() {
            QueueStage::Running(run) => self.hub.waiting_mail(run),
            _ => Vec::new(),
        };
        let status = match inbox.queue.stage() {
            QueueStage::Busy | QueueStage::Running(_) => AgentSessionStatus::Running,
            QueueStage::Idle | QueueStage::Closed => AgentSessionStatus::Idle,
        };
        let mail = handed.iter().chain(inbox.queue.waiting());
        (status, mail.map(|mail| mail.content.clone()).collect())
    }
}
