//! Session mode: which commands are taken, from the start of a session to its end, and what each does.
//! The protocol defines the commands and their refusals; messages are in the runs' mailboxes.
//!
//! A command is checked and executed under the lock of the hub, so a message gets into its mailbox
//! exactly when its event takes its place in the order.

use std::sync::Arc;

use inspan_protocol::{
    Command, CommandKind, Envelope, Event, MessageMode, MultiTurn, NodeId, PauseCause, Prompt, PromptId,
    Rejection, RunId,
};
use rustc_hash::{FxHashMap, FxHashSet};
use tokio_util::sync::CancellationToken;

use super::{Hub, prompt::OpenPrompt};
use crate::run::mailbox::{Mail, Mailbox, MessageQueue, PostResult};

#[derive(Default)]
pub(crate) struct HubSession {
    pub(super) stage: SessionStage,
    runs: FxHashMap<RunId, ActiveRun>,
    opened: u64,
    ended: FxHashSet<RunId>,
    pub(super) prompts: Vec<OpenPrompt>,
    pub(super) asked: u64,
    pub(super) answered: FxHashSet<PromptId>,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum SessionStage {
    #[default]
    New,
    Active,
    Ended,
}

struct ActiveRun {
    order: u64,
    agent_name: String,
    node: Option<String>,
    reads: Reads,
    queue: Arc<MessageQueue>,
}

/// How the agent of a run gets its messages.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reads {
    /// From its mailbox.
    Mailbox(MultiTurn),
    /// By a subscription to `session:message`; what comes while it has none is put into the mailbox.
    Events,
}

/// Who is subscribed to messages, as [`Subscribers::of_messages`](super::table::Subscribers) gives it.
struct Listeners(Vec<Option<RunId>>);

impl Listeners {
    /// Those that want every message.
    fn of_all(&self) -> usize {
        self.0.iter().filter(|run| run.is_none()).count()
    }

    fn of_run(&self, run: &RunId) -> bool {
        self.0.iter().any(|wanted| wanted.as_ref() == Some(run))
    }

    /// Whether some subscription delivers a message to this run.
    fn hears(&self, id: &RunId, run: &ActiveRun) -> bool {
        run.reads == Reads::Events && (self.of_run(id) || self.of_all() > 0)
    }
}

impl Hub {
    /// From now on commands are taken. A session that has ended stays ended.
    pub fn start_session(&self) {
        let mut session = self.shared.session.lock();
        if session.stage == SessionStage::New {
            session.stage = SessionStage::Active;
        }
    }

    /// From now on commands are refused, and prompts that are still open are withdrawn.
    pub fn end_session(&self) {
        let mut session = self.shared.session.lock();
        session.stage = SessionStage::Ended;
        session.prompts.clear();
    }

    /// Whether [`Hub::start_session`] was called.
    pub fn session_has_begun(&self) -> bool {
        self.shared.session.lock().stage != SessionStage::New
    }

    /// Whether [`Hub::end_session`] was called.
    pub fn session_has_ended(&self) -> bool {
        self.shared.session.lock().stage == SessionStage::Ended
    }

    /// Whether a message has a receiver now; any other command needs none.
    pub fn has_taker(&self, command: &Command) -> bool {
        let listeners = Listeners(self.shared.subscribers.of_messages());
        let session = self.shared.session.lock();
        let mut open = session.runs.iter().filter(|(_, run)| run.queue.is_open());
        match command {
            Command::Send { .. } => {
                listeners.of_all() > 0
                    || open.any(|(id, run)| match run.reads {
                        Reads::Mailbox(multi_turn) => multi_turn == MultiTurn::On,
                        Reads::Events => listeners.of_run(id),
                    })
            }
            Command::SendTo { node, .. } => open.any(|(_, run)| run.node.as_deref() == Some(node.as_str())),
            _ => true,
        }
    }

    /// Executes a command, or refuses it; a refusal also leaves a `session:rejected` event.
    pub fn command(&self, command: Command) -> Result<(), Rejection> {
        self.carry_out(command).map(drop).map_err(|(rejection, _)| rejection)
    }

    /// The event of the command, or the refusal with its event.
    fn carry_out(&self, command: Command) -> Result<Arc<Envelope>, (Rejection, Arc<Envelope>)> {
        let kind = command.kind();
        self.emit_or_refuse(kind, || {
            let listeners = Listeners(self.shared.subscribers.of_messages());
            self.shared.session.lock().accept(command, &listeners, &self.shared.abort)
        })
    }

    fn emit_or_refuse(
        &self,
        kind: CommandKind,
        accept: impl FnOnce() -> Result<Event, Rejection>,
    ) -> Result<Arc<Envelope>, (Rejection, Arc<Envelope>)> {
        self.emit_when(accept).map_err(|rejection| {
            let reason = rejection.to_string();
            let refused = self.emit_as_is(Event::SessionRejected { command: kind, reason });
            (rejection, refused)
        })
    }

    /// Sends what was emitted as a message.
    #[cold]
    pub(super) fn emit_message(
        &self,
        content: String,
        run: Option<RunId>,
        mode: Option<MessageMode>,
    ) -> Arc<Envelope> {
        let command = match run {
            Some(run) => Command::SendToRun { run, content, mode: mode.unwrap_or_default() },
            None => Command::Send { content },
        };
        self.carry_out(command).unwrap_or_else(|(_, refused)| refused)
    }

    /// A message to everything in the session that listens for one: multi-turn runs, nodes that wait for
    /// `session:message`, subscribers of it. Gives how many there are; with none it is refused.
    ///
    /// # Errors
    /// [`Rejection::NotActive`], [`Rejection::EmptyMessage`], [`Rejection::NoListener`], and [`Rejection::MailboxFull`]
    /// if one of them has too many messages: then none gets it.
    pub fn send(&self, content: impl Into<String>) -> Result<u32, Rejection> {
        match self.carry_out(Command::Send { content: content.into() }) {
            Ok(sent) => Ok(match sent.event {
                Event::SessionMessage { receivers, .. } => receivers.unwrap_or_default(),
                _ => 0,
            }),
            Err((rejection, _)) => Err(rejection),
        }
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
    ///
    /// # Errors
    /// [`Rejection::NotActive`], [`Rejection::UnknownPrompt`] and [`Rejection::AlreadyAnswered`];
    /// [`Rejection::NotAChoice`], [`Rejection::TextNotAllowed`] and [`Rejection::Misfit`] if the answer does not fit.
    pub fn reply(
        &self,
        prompt: PromptId,
        content: impl Into<String>,
        choice: Option<String>,
    ) -> Result<(), Rejection> {
        self.command(Command::Reply { prompt, content: content.into(), choice })
    }

    /// The answer to a question that an earlier process of this session asked. One that was not asked again here is
    /// answered in the log alone, for the node that would ask it again.
    pub fn reply_to(
        &self,
        asked: &Prompt,
        content: impl Into<String>,
        choice: Option<String>,
    ) -> Result<(), Rejection> {
        let accept = || self.shared.session.lock().reply_to(asked, content.into(), choice);
        self.emit_or_refuse(CommandKind::Reply, accept).map(drop).map_err(|(rejection, _)| rejection)
    }

    /// No more messages for a run: it ends when those it has are done.
    pub fn close(&self, run: RunId) -> Result<(), Rejection> {
        self.command(Command::Close { run })
    }

    /// Stops the session for good; its runner watches [`Hub::aborted`].
    pub fn abort(&self, reason: Option<String>) -> Result<(), Rejection> {
        self.command(Command::Abort { reason })
    }

    /// Pauses the session; its runner sees the event.
    pub fn pause(&self, reason: Option<String>) -> Result<(), Rejection> {
        self.command(Command::Pause { reason })
    }

    /// Pauses the session because of something that no person and no program asked for.
    pub fn pause_because(&self, cause: PauseCause, reason: String) -> Result<(), Rejection> {
        let accept = || match self.shared.session.lock().stage {
            SessionStage::Active => Ok(Event::SessionPause { reason: Some(reason), cause: Some(cause) }),
            _ => Err(Rejection::NotActive),
        };
        self.emit_or_refuse(CommandKind::Pause, accept).map(drop).map_err(|(rejection, _)| rejection)
    }

    /// A token that is cancelled when the session is aborted. Cancelling it by hand aborts nothing.
    pub fn aborted(&self) -> CancellationToken {
        self.shared.abort.child_token()
    }

    /// Makes an agent run known and opens its mailbox. The node is that of this handle's context.
    pub fn open_mailbox(&self, run_id: &RunId, agent_name: &str, multi_turn: MultiTurn) -> Mailbox {
        self.open_run(run_id, agent_name, Reads::Mailbox(multi_turn))
    }

    /// As [`Hub::open_mailbox`], for an agent that may subscribe to its messages instead.
    pub(crate) fn open_run_of_code(&self, run_id: &RunId, agent_name: &str) -> Mailbox {
        self.open_run(run_id, agent_name, Reads::Events)
    }

    fn open_run(&self, run_id: &RunId, agent_name: &str, reads: Reads) -> Mailbox {
        let mut session = self.shared.session.lock();
        session.opened += 1;
        // The messages of a run that is known already stay as they are.
        let known = session.runs.remove(run_id).map(|run| run.queue);
        let queue = known.unwrap_or_default();
        let run = ActiveRun {
            order: session.opened,
            agent_name: agent_name.to_owned(),
            node: self.context.task.as_ref().map(|task| task.node().to_owned()),
            reads,
            queue: Arc::clone(&queue),
        };
        session.runs.insert(run_id.clone(), run);
        Mailbox::new(self.clone(), run_id.clone(), queue)
    }

    /// A message for an agent session, which has its own queue: `keep` decides, at the place of the message's event, which run
    /// has it now, if any. A refusal leaves no event.
    pub(crate) fn post_when<E>(
        &self,
        content: String,
        mode: MessageMode,
        keep: impl FnOnce(&Self) -> Result<Option<RunId>, E>,
    ) -> Result<(), E> {
        let decide = || {
            let run_id = keep(self)?;
            let (mode, receivers) = (Some(mode), None);
            Ok(Event::SessionMessage { content, run_id, agent_name: None, mode, receivers })
        };
        self.emit_when(decide).map(drop)
    }

    /// Puts a message into a run's mailbox; the caller emits its event.
    pub(crate) fn deliver(&self, run_id: &RunId, mail: Mail) -> Result<(), Mail> {
        let session = self.shared.session.lock();
        let queue = session.runs.get(run_id).map(|run| Arc::clone(&run.queue));
        drop(session);
        match queue.map(|queue| queue.post(mail.clone())) {
            Some(PostResult::Accepted) => Ok(()),
            _ => Err(mail),
        }
    }

    /// What waits in a run's mailbox.
    pub(crate) fn waiting_mail(&self, run_id: &RunId) -> Vec<Mail> {
        let session = self.shared.session.lock();
        session.runs.get(run_id).map(|run| run.queue.waiting()).unwrap_or_default()
    }

    /// Takes back what waits in a run's mailbox.
    pub(crate) fn take_mail(&self, run_id: &RunId) -> Vec<Mail> {
        let session = self.shared.session.lock();
        session.runs.get(run_id).map(|run| run.queue.take()).unwrap_or_default()
    }

    pub(crate) fn forget_run(&self, run_id: &RunId) {
        let mut session = self.shared.session.lock();
        if session.runs.remove(run_id).is_some() {
            session.ended.insert(run_id.clone());
        }
    }

    /// The runs that take messages, oldest first.
    pub fn active_runs(&self) -> Vec<RunId> {
        let session = self.shared.session.lock();
        let mut runs: Vec<_> = session.runs.iter().filter(|(_, run)| run.queue.is_open()).collect();
        runs.sort_unstable_by_key(|(_, run)| run.order);
        runs.into_iter().map(|(id, _)| id.clone()).collect()
    }
}

impl HubSession {
    fn accept(
        &mut self,
        command: Command,
        listeners: &Listeners,
        abort: &CancellationToken,
    ) -> Result<Event, Rejection> {
        if self.stage != SessionStage::Active {
            return Err(Rejection::NotActive);
        }
        command.check_text()?;
        match command {
            Command::Send { content } => self.send(content, listeners),
            Command::SendTo { node, content, mode } => self.send_to(&node, content, mode, listeners),
            Command::SendToRun { run, content, mode } => self.send_to_run(run, content, mode, listeners),
            Command::Reply { prompt, content, choice } => self.reply(prompt, content, choice),
            Command::TakeDefault { prompt } => self.take_default(prompt),
            Command::Close { run } => {
                self.run(&run)?.queue.close_soon();
                Ok(Event::SessionClose { run_id: run })
            }
            Command::Pause { reason } => Ok(Event::SessionPause { reason, cause: None }),
            Command::Abort { reason } => {
                abort.cancel();
                Ok(Event::SessionAbort { reason })
            }
        }
    }

    fn run(&self, id: &RunId) -> Result<&ActiveRun, Rejection> {
        match self.runs.get(id) {
            Some(run) if run.queue.is_open() => Ok(run),
            Some(_) => Err(Rejection::RunEnded(id.clone())),
            None if self.ended.contains(id) => Err(Rejection::RunEnded(id.clone())),
            None => Err(Rejection::UnknownRun(id.clone())),
        }
    }

    /// To all or to none: a full mailbox refuses the message for everyone.
    fn send(&self, content: String, listeners: &Listeners) -> Result<Event, Rejection> {
        let open: Vec<_> = self.runs.iter().filter(|(_, run)| run.queue.is_open()).collect();
        let by_mail: Vec<_> =
            open.iter().filter(|(_, run)| run.reads == Reads::Mailbox(MultiTurn::On)).collect();
        if let Some((id, _)) = by_mail.iter().find(|(_, run)| run.queue.is_full()) {
            return Err(Rejection::MailboxFull((*id).clone()));
        }
        let mail = || Mail { content: content.clone(), mode: MessageMode::FollowUp };
        // A run may have closed its mailbox since the check; it then no longer listens.
        let posted = by_mail.iter().filter(|(_, run)| run.queue.post(mail()) == PostResult::Accepted).count();
        let by_event =
            open.iter().filter(|(id, run)| run.reads == Reads::Events && listeners.of_run(id)).count();
        let receivers = posted + by_event + listeners.of_all();
        if receivers == 0 {
            return Err(Rejection::NoListener);
        }
        let receivers = Some(u32::try_from(receivers).unwrap_or(u32::MAX));
        Ok(Event::SessionMessage { content, run_id: None, agent_name: None, mode: None, receivers })
    }

    fn send_to(
        &self,
        node: &NodeId,
        content: String,
        mode: MessageMode,
        listeners: &Listeners,
    ) -> Result<Event, Rejection> {
        let of_node = |run: &ActiveRun| run.node.as_deref() == Some(node.as_str()) && run.queue.is_open();
        let newest = self.runs.iter().filter(|(_, run)| of_node(run)).max_by_key(|(_, run)| run.order);
        let Some((id, run)) = newest else { return Err(Rejection::NoRunOfNode(node.clone())) };
        post(id, run, Mail { content: content.clone(), mode }, listeners)?;
        let (agent_name, mode) = (Some(run.agent_name.clone()), Some(mode));
        Ok(Event::SessionMessage { content, run_id: Some(id.clone()), agent_name, mode, receivers: None })
    }

    fn send_to_run(
        &self,
        id: RunId,
        content: String,
        mode: MessageMode,
        listeners: &Listeners,
    ) -> Result<Event, Rejection> {
        post(&id, self.run(&id)?, Mail { content: content.clone(), mode }, listeners)?;
        let mode = Some(mode);
        Ok(Event::SessionMessage { content, run_id: Some(id), agent_name: None, mode, receivers: None })
    }
}

fn post(id: &RunId, run: &ActiveRun, mail: Mail, listeners: &Listeners) -> Result<(), Rejection> {
    if listeners.hears(id, run) {
        return Ok(());
    }
    match run.queue.post(mail) {
        PostResult::Accepted => Ok(()),
        PostResult::Full => Err(Rejection::MailboxFull(id.clone())),
        PostResult::Closed => Err(Rejection::RunEnded(id.clone())),
    }
}

#[cfg(test)]
mod tests;
