//! Session mode: which commands are taken, from the start of a session to its end, and what each does.
//! The commands and their refusals are the protocol's; messages lie in the runs' mailboxes.
//!
//! A command is checked and carried out under the line of the hub, so a message lies in its mailbox exactly
//! when its event takes its place in the order.

use std::sync::Arc;

use inspan_protocol::{Command, Event, MessageMode, MultiTurn, NodeId, PromptId, Rejection, RunId};
use rustc_hash::{FxHashMap, FxHashSet};
use tokio_util::sync::CancellationToken;

use super::{Hub, lock, prompt::OpenPrompt};
use crate::run::mailbox::{Inbox, Mail, Mailbox, Posted};

#[derive(Default)]
pub(crate) struct Session {
    pub(super) stage: Stage,
    runs: FxHashMap<RunId, ActiveRun>,
    opened: u64,
    ended: FxHashSet<RunId>,
    pub(super) prompts: Vec<OpenPrompt>,
    pub(super) asked: u64,
    pub(super) answered: FxHashSet<PromptId>,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Stage {
    #[default]
    New,
    Active,
    Ended,
}

struct ActiveRun {
    order: u64,
    agent_name: String,
    node: Option<String>,
    multi_turn: MultiTurn,
    inbox: Arc<Inbox>,
}

impl Hub {
    /// From now on commands are taken. A session that has ended stays ended.
    pub fn start_session(&self) {
        let mut session = lock(&self.shared.session);
        if session.stage == Stage::New {
            session.stage = Stage::Active;
        }
    }

    /// From now on commands are refused, and prompts that are still open are withdrawn.
    pub fn end_session(&self) {
        let mut session = lock(&self.shared.session);
        session.stage = Stage::Ended;
        session.prompts.clear();
    }

    /// Carries a command out, or refuses it; a refusal also leaves a `session:rejected` event.
    pub fn command(&self, command: Command) -> Result<(), Rejection> {
        let kind = command.kind();
        let abort = &self.shared.abort;
        match self.emit_when(|| lock(&self.shared.session).accept(command, abort)) {
            Ok(_) => Ok(()),
            Err(rejection) => {
                self.emit(Event::SessionRejected { command: kind, reason: rejection.to_string() });
                Err(rejection)
            }
        }
    }

    /// A message to every active multi-turn run.
    pub fn send(&self, content: impl Into<String>) -> Result<(), Rejection> {
        self.command(Command::Send { content: content.into() })
    }

    /// A message to the newest active run of a node.
    pub fn send_to(
        &self,
        node: NodeId,
        content: impl Into<String>,
        mode: MessageMode,
    ) -> Result<(), Rejection> {
        self.command(Command::SendTo { node, content: content.into(), mode })
    }

    /// A message to one run.
    pub fn send_to_run(
        &self,
        run: RunId,
        content: impl Into<String>,
        mode: MessageMode,
    ) -> Result<(), Rejection> {
        self.command(Command::SendToRun { run, content: content.into(), mode })
    }

    /// The answer to a prompt.
    pub fn reply(
        &self,
        prompt: PromptId,
        content: impl Into<String>,
        choice: Option<String>,
    ) -> Result<(), Rejection> {
        self.command(Command::Reply { prompt, content: content.into(), choice })
    }

    /// No more messages for a run: it ends when those it has are done.
    pub fn close(&self, run: RunId) -> Result<(), Rejection> {
        self.command(Command::Close { run })
    }

    /// Stops the session for good; whoever runs it watches [`Hub::aborted`].
    pub fn abort(&self, reason: Option<String>) -> Result<(), Rejection> {
        self.command(Command::Abort { reason })
    }

    /// Pauses the session; whoever runs it sees the event.
    pub fn pause(&self, reason: Option<String>) -> Result<(), Rejection> {
        self.command(Command::Pause { reason })
    }

    /// A token that is cancelled when the session is aborted. Cancelling it by hand aborts nothing.
    pub fn aborted(&self) -> CancellationToken {
        self.shared.abort.child_token()
    }

    /// Makes an agent run known and opens its mailbox. The node is that of this handle's context.
    pub fn open_mailbox(&self, run_id: &RunId, agent_name: &str, multi_turn: MultiTurn) -> Mailbox {
        let inbox = Arc::new(Inbox::default());
        let mut session = lock(&self.shared.session);
        session.opened += 1;
        let run = ActiveRun {
            order: session.opened,
            agent_name: agent_name.to_owned(),
            node: self.context.task.as_ref().map(|task| task.node().to_owned()),
            multi_turn,
            inbox: Arc::clone(&inbox),
        };
        session.runs.insert(run_id.clone(), run);
        Mailbox::new(self.clone(), run_id.clone(), inbox)
    }

    /// A message of whoever keeps a queue of its own: `keep` decides, at the place of the message's event, which run
    /// has it now, if any. A refusal leaves no event.
    pub(crate) fn post_when<E>(
        &self,
        content: String,
        mode: MessageMode,
        keep: impl FnOnce(&Self) -> Result<Option<RunId>, E>,
    ) -> Result<(), E> {
        let decide = || {
            let run_id = keep(self)?;
            Ok(Event::SessionMessage { content, run_id, agent_name: None, mode: Some(mode) })
        };
        self.emit_when(decide).map(drop)
    }

    /// Lays a message into a run's mailbox; its event is the caller's affair.
    pub(crate) fn deliver(&self, run_id: &RunId, mail: Mail) -> Result<(), Mail> {
        let session = lock(&self.shared.session);
        let inbox = session.runs.get(run_id).map(|run| Arc::clone(&run.inbox));
        drop(session);
        match inbox.map(|inbox| inbox.post(mail.clone())) {
            Some(Posted::Taken) => Ok(()),
            _ => Err(mail),
        }
    }

    /// What waits in a run's mailbox.
    pub(crate) fn waiting_mail(&self, run_id: &RunId) -> Vec<Mail> {
        let session = lock(&self.shared.session);
        session.runs.get(run_id).map(|run| run.inbox.waiting()).unwrap_or_default()
    }

    /// Takes back what waits in a run's mailbox.
    pub(crate) fn take_mail(&self, run_id: &RunId) -> Vec<Mail> {
        let session = lock(&self.shared.session);
        session.runs.get(run_id).map(|run| run.inbox.take()).unwrap_or_default()
    }

    pub(crate) fn forget_run(&self, run_id: &RunId) {
        let mut session = lock(&self.shared.session);
        if session.runs.remove(run_id).is_some() {
            session.ended.insert(run_id.clone());
        }
    }

    /// The runs that take messages, oldest first.
    pub fn active_runs(&self) -> Vec<RunId> {
        let session = lock(&self.shared.session);
        let mut runs: Vec<_> = session.runs.iter().filter(|(_, run)| run.inbox.is_open()).collect();
        runs.sort_unstable_by_key(|(_, run)| run.order);
        runs.into_iter().map(|(id, _)| id.clone()).collect()
    }
}

impl Session {
    fn accept(&mut self, command: Command, abort: &CancellationToken) -> Result<Event, Rejection> {
        if self.stage != Stage::Active {
            return Err(Rejection::NotActive);
        }
        match command {
            Command::Send { content } => self.send(content),
            Command::SendTo { node, content, mode } => self.send_to(&node, content, mode),
            Command::SendToRun { run, content, mode } => self.send_to_run(run, content, mode),
            Command::Reply { prompt, content, choice } => self.reply(prompt, content, choice),
            Command::Close { run } => {
                self.run(&run)?.inbox.close_soon();
                Ok(Event::SessionClose { run_id: run })
            }
            Command::Pause { reason } => Ok(Event::SessionPause { reason }),
            Command::Abort { reason } => {
                abort.cancel();
                Ok(Event::SessionAbort { reason })
            }
        }
    }

    fn run(&self, id: &RunId) -> Result<&ActiveRun, Rejection> {
        match self.runs.get(id) {
            Some(run) if run.inbox.is_open() => Ok(run),
            Some(_) => Err(Rejection::RunEnded(id.clone())),
            None if self.ended.contains(id) => Err(Rejection::RunEnded(id.clone())),
            None => Err(Rejection::UnknownRun(id.clone())),
        }
    }

    /// To all or to none: a full mailbox refuses the message for everyone.
    fn send(&self, content: String) -> Result<Event, Rejection> {
        let listens = |run: &ActiveRun| run.multi_turn == MultiTurn::On && run.inbox.is_open();
        let listeners: Vec<_> = self.runs.iter().filter(|(_, run)| listens(run)).collect();
        if let Some((id, _)) = listeners.iter().find(|(_, run)| run.inbox.is_full()) {
            return Err(Rejection::MailboxFull((*id).clone()));
        }
        let mail = || Mail { content: content.clone(), mode: MessageMode::FollowUp };
        // A run may have closed its mailbox since it was looked at; it then no longer listens.
        let posted = listeners.iter().filter(|(_, run)| run.inbox.post(mail()) == Posted::Taken).count();
        if posted == 0 {
            return Err(Rejection::NoListener);
        }
        Ok(Event::SessionMessage { content, run_id: None, agent_name: None, mode: None })
    }

    fn send_to(&self, node: &NodeId, content: String, mode: MessageMode) -> Result<Event, Rejection> {
        let of_node = |run: &ActiveRun| run.node.as_deref() == Some(node.as_str()) && run.inbox.is_open();
        let newest = self.runs.iter().filter(|(_, run)| of_node(run)).max_by_key(|(_, run)| run.order);
        let Some((id, run)) = newest else { return Err(Rejection::NoRunOfNode(node.clone())) };
        post(id, run, Mail { content: content.clone(), mode })?;
        let agent_name = Some(run.agent_name.clone());
        Ok(Event::SessionMessage { content, run_id: Some(id.clone()), agent_name, mode: Some(mode) })
    }

    fn send_to_run(&self, id: RunId, content: String, mode: MessageMode) -> Result<Event, Rejection> {
        post(&id, self.run(&id)?, Mail { content: content.clone(), mode })?;
        Ok(Event::SessionMessage { content, run_id: Some(id), agent_name: None, mode: Some(mode) })
    }
}

fn post(id: &RunId, run: &ActiveRun, mail: Mail) -> Result<(), Rejection> {
    match run.inbox.post(mail) {
        Posted::Taken => Ok(()),
        Posted::Full => Err(Rejection::MailboxFull(id.clone())),
        Posted::Closed => Err(Rejection::RunEnded(id.clone())),
    }
}

#[cfg(test)]
mod tests;
