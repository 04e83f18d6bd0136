//! One session as the target of commands: posting one, waiting for the answer of the process that runs the session,
//! and finding the question or the agent run that is meant.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use futures::StreamExt;
use inspan_engine::Clock;
use inspan_flow::{Liveness, RunStore, Select, SessionEntry, StoreError, Verdict};
use inspan_protocol::{
    Command, Event, MessageMode, NodeId, NodePath, Outcome, Prompt, PromptId, PromptKind, RunId, SessionId,
    SessionStatus,
};
use inspan_view::{entry::DisplayStatus, label};

use crate::{SessionError, SessionErrorCode, is_driven, is_late};

/// How long the process that runs the session may take to answer.
pub const RESPONSE: Duration = Duration::from_secs(20);
/// After how long the store is read again, in case a change was missed.
pub const LOOK: Duration = Duration::from_millis(500);

/// So soon after a question came nobody has read it.
const NEW: Duration = Duration::from_secs(2);
/// So soon after a permission was decided another person may still be about to decide the same.
const CHANGED: Duration = Duration::from_secs(10);

/// The result of a posted command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandResult {
    /// It was applied.
    Accepted,
    /// No process runs the session; the command of this number is stored and waits for one.
    Stored(u64),
}

/// What a person answers to a question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PersonAnswer {
    /// The answer.
    pub content: String,
    /// Which of the choices it is.
    pub choice: Option<String>,
}

impl PersonAnswer {
    /// The decision on a permission: one of the question's choices, and what the agent is told with it.
    pub fn decision(open: &Prompt, word: &str, reason: Option<&str>) -> Self {
        let choice = open.choices.iter().flatten().find(|choice| *choice == word).cloned();
        Self { content: decided(word, reason).to_owned(), choice }
    }
}

/// The content of the answer that is this decision.
pub(crate) fn decided<'a>(word: &'a str, reason: Option<&'a str>) -> &'a str {
    reason.filter(|reason| !reason.trim().is_empty()).unwrap_or(word)
}

/// The session that a command is for.
pub struct SessionTarget {
    store: Arc<dyn RunStore>,
    clock: Arc<dyn Clock>,
    /// The caller's key: commands with the same key are posted once.
    key: Option<String>,
    /// Its list entry when it was last read.
    pub entry: SessionEntry,
}

impl SessionTarget {
    /// A session whose list entry was just read.
    pub fn new(store: Arc<dyn RunStore>, clock: Arc<dyn Clock>, entry: SessionEntry) -> Self {
        Self { store, clock, key: None, entry }
    }

    /// Under a key of the caller: a command that is posted again with it is the same command.
    #[must_use]
    pub fn with_key(mut self, key: Option<&str>) -> Self {
        self.key = key.map(str::to_owned);
        self
    }

    /// The session.
    pub fn id(&self) -> &SessionId {
        &self.entry.session
    }

    /// Whether a process ran it when it was last read.
    pub fn is_driven(&self) -> bool {
        is_driven(&self.entry)
    }

    /// An error unless a process runs it; the hint gives what to do instead.
    pub fn must_be_driven(&self, hint: impl Fn(&SessionId) -> String) -> Result<(), SessionError> {
        let id = self.id();
        if self.entry.digest.status.has_ended() {
            return Err(StoreError::SessionEnded(id.clone()).into());
        }
        if !self.is_driven() {
            let message = format!("no process runs session `{id}`");
            return Err(SessionError::new(SessionErrorCode::NotRunning, message).with_hint(hint(id)));
        }
        Ok(())
    }

    /// Stores a command for the process that runs the session now or later. Returns its number.
    pub async fn post(&self, command: &Command) -> Result<u64, SessionError> {
        let (id, now) = (self.id(), self.clock.now());
        if let Some(by) = &self.entry.continued_by {
            return Err(StoreError::Continued { session: id.clone(), by: by.clone() }.into());
        }
        Ok(self.store.post_once(id, self.key.as_deref(), command, now).await?)
    }

    /// Posts a command and waits for its verdict.
    pub async fn post_and_wait(&self, command: &Command) -> Result<CommandResult, SessionError> {
        let number = self.post(command).await?;
        self.wait(number).await
    }

    /// Waits for the verdict on a command, at most [`RESPONSE`].
    pub async fn wait(&self, number: u64) -> Result<CommandResult, SessionError> {
        let mut changes = self.store.changes();
        let answered = async {
            loop {
                // The process may end at this moment: this is checked first, so that no answer is missed.
                let entry = self.store.entry(self.id()).await?;
                match self.store.answer(self.id(), number).await? {
                    Some(Verdict::Accepted) => return Ok(CommandResult::Accepted),
                    Some(Verdict::Refused(why)) => {
                        return Err(SessionError::new(SessionErrorCode::CommandRefused, why));
                    }
                    None if !is_driven(&entry) => return Ok(CommandResult::Stored(number)),
                    None => {
                        // A change and the end of the time are handled in the same way.
                        let _ = tokio::time::timeout(LOOK, changes.next()).await;
                    }
                }
            }
        };
        tokio::time::timeout(RESPONSE, answered).await.unwrap_or_else(|_| {
            let owner = self.entry.owner.as_ref().map(ToString::to_string).unwrap_or_default();
            let message = format!("{owner} did not respond within {RESPONSE:?}");
            Err(SessionError::new(SessionErrorCode::NoResponse, message)
                .with_hint("the command is stored; the process applies or refuses it when it continues"))
        })
    }

    /// Waits until the session's entry fulfils this, at most [`RESPONSE`].
    pub async fn until(&mut self, is_so: impl Fn(&SessionEntry) -> bool) -> Result<(), SessionError> {
        let mut changes = self.store.changes();
        let came = async {
            loop {
                self.entry = self.store.entry(&self.entry.session).await?;
                if is_so(&self.entry) {
                    return Ok(());
                }
                let _ = tokio::time::timeout(LOOK, changes.next()).await;
            }
        };
        tokio::time::timeout(RESPONSE, came).await.unwrap_or_else(|_| {
            let message = format!("the command was accepted but is not done after {RESPONSE:?}");
            Err(SessionError::new(SessionErrorCode::NoResponse, message))
        })
    }

    /// Waits until the process of a session that takes a pause has left it, and fails if the session ended or was
    /// interrupted instead: it may have been about to.
    pub async fn paused(&mut self) -> Result<(), SessionError> {
        let owner = self.entry.owner.clone();
        let has_left = |entry: &SessionEntry| entry.owner != owner || entry.liveness == Liveness::Gone;
        self.until(|entry| entry.owner.is_none() || has_left(entry)).await?;
        let id = self.id();
        match self.entry.digest.status {
            SessionStatus::Paused => Ok(()),
            status if status.has_ended() => {
                let message = format!("session `{id}` ended before it could be paused");
                Err(SessionError::new(SessionErrorCode::SessionEnded, message))
            }
            // Another process has resumed it since.
            _ if self.is_driven() => Ok(()),
            _ => {
                let message = format!("the process of session `{id}` ended before it paused");
                Err(SessionError::new(SessionErrorCode::Failed, message)
                    .with_hint(format!("`inspan resume {id}` continues with what is stored")))
            }
        }
    }

    /// Waits until a session that takes a stop has ended, and fails if it ended by itself, since it may have been about to, or
    /// its process has died.
    pub async fn stopped(&mut self) -> Result<(), SessionError> {
        self.until(|entry| entry.digest.status.has_ended() || !is_driven(entry)).await?;
        let id = self.id();
        match DisplayStatus::of(&self.entry) {
            DisplayStatus::Ended(Outcome::Stopped) => Ok(()),
            _ if !self.entry.digest.status.has_ended() => {
                let message = format!("the process of session `{id}` ended before it stopped");
                Err(SessionError::new(SessionErrorCode::Failed, message)
                    .with_hint(format!("`inspan resume {id}` goes on to stop it")))
            }
            status => {
                let end = status.word();
                let message = format!("session `{id}` ended as {end} before it could be stopped");
                Err(SessionError::new(SessionErrorCode::SessionEnded, message))
            }
        }
    }

    /// Answers a question. Without a process that runs the session the answer is stored and waits for one.
    pub async fn answer(&self, open: &Prompt, answer: &PersonAnswer) -> Result<CommandResult, SessionError> {
        let PersonAnswer { content, choice } = answer;
        if let Err(why) = open.check(content.to_owned(), choice.clone()) {
            return Err(SessionError::new(SessionErrorCode::InvalidAnswer, why.to_string()));
        }
        self.check_time(open)?;
        let prompt = PromptId::clone(&open.prompt_id);
        let command = Command::Reply { prompt, content: content.clone(), choice: choice.clone() };
        let id = self.id();
        if self.is_driven() {
            match self.post_and_wait(&command).await? {
                CommandResult::Accepted => return Ok(CommandResult::Accepted),
                stored if open.kind == PromptKind::Input => return Ok(stored),
                CommandResult::Stored(_) => {}
            }
        } else if open.kind == PromptKind::Input {
            return Ok(CommandResult::Stored(self.post(&command).await?));
        }
        // The agent that asked is gone with its process, and what it asks next may be something else.
        let message = format!("no process runs session `{id}`, and the agent that asked has ended");
        let hint = format!("`inspan resume {id}` continues; the agent asks again if it still needs to");
        Err(SessionError::new(SessionErrorCode::NotRunning, message).with_hint(hint))
    }

    /// Refuses an answer to a question whose time is up. A process that runs the session refuses it itself.
    pub fn check_time(&self, open: &Prompt) -> Result<(), SessionError> {
        if is_late(&self.entry, open, self.clock.now()) { Err(self.expired(open)) } else { Ok(()) }
    }

    /// The time of a question is up, and what becomes of it when the session goes on.
    fn expired(&self, open: &Prompt) -> SessionError {
        let at = open.deadline.map(|at| format!(" at {at}")).unwrap_or_default();
        let message = format!("question `{}` expired{at}", open.prompt_id);
        let then = match &open.default {
            Some(default) => format!("its default `{default}` is then the answer"),
            None => "its node then fails".to_owned(),
        };
        let hint = format!("`inspan resume {}` continues; {then}", self.id());
        SessionError::new(SessionErrorCode::QuestionExpired, message).with_hint(hint)
    }

    /// The open question with this id, or of the node of this path.
    pub async fn prompt(&self, name: &str, fits: impl Fn(&Prompt) -> bool) -> Result<Prompt, SessionError> {
        let open = &self.entry.digest.prompts;
        let fitting = open.iter().filter(|open| fits(open) || open.prompt_id.as_str() == name);
        match by_name(fitting, name, |open| (open.prompt_id.as_str(), open.task.as_ref())).as_slice() {
            [one] => Ok((*one).clone()),
            [] => Err(self.unknown(name).await?),
            many => Err(SessionError::new(
                SessionErrorCode::AmbiguousPrompt,
                format!("`{name}` is not unique: {}", listed(many.iter().copied())),
            )),
        }
    }

    /// Whether a permission without its id may be meant for another question than the open one: this one was asked, or
    /// one for a permission was answered, so short a time ago that a person may not know it.
    pub async fn is_unseen(&self, open: &Prompt) -> Result<bool, SessionError> {
        let log = self.store.read(self.id(), 1, Select::Names(&["session:prompt", "session:reply"])).await?;
        let now = self.clock.now();
        let mut permissions = BTreeSet::new();
        Ok(log.iter().any(|envelope| {
            let age = now.since(envelope.timestamp);
            match &envelope.event {
                Event::SessionPrompt(asked) if asked.kind == PromptKind::Permission => {
                    permissions.insert(&asked.prompt_id);
                    asked.prompt_id == open.prompt_id && age < NEW
                }
                Event::SessionReply { prompt_id, .. } => permissions.contains(prompt_id) && age < CHANGED,
                _ => false,
            }
        }))
    }

    /// Why there is no open question with this id or of this node: it was answered already, or never asked.
    async fn unknown(&self, name: &str) -> Result<SessionError, SessionError> {
        let id = self.id();
        let log = self.store.read(id, 1, Select::Names(&["session:prompt", "session:reply"])).await?;
        let asked: Vec<_> = log
            .iter()
            .filter_map(|envelope| match &envelope.event {
                Event::SessionPrompt(asked) => Some((&asked.prompt_id, envelope.context.task.as_ref())),
                _ => None,
            })
            .collect();
        let asked = by_name(asked.iter(), name, |(prompt, task)| (prompt.as_str(), *task));
        let answer = log.iter().rev().find_map(|envelope| match &envelope.event {
            Event::SessionReply { prompt_id, content, choice, .. }
                if asked.iter().any(|(prompt, _)| *prompt == prompt_id) =>
            {
                Some((prompt_id, choice.as_ref().unwrap_or(content)))
            }
            _ => None,
        });
        Ok(match answer {
            Some((prompt, answer)) => SessionError::new(
                SessionErrorCode::AlreadyAnswered,
                format!("question `{prompt}` is already answered: {answer}"),
            ),
            None => SessionError::new(
                SessionErrorCode::UnknownPrompt,
                format!("session `{id}` has no open question `{name}`"),
            )
            .with_hint(match self.entry.digest.prompts.is_empty() {
                true => "`inspan inbox` lists the open questions".to_owned(),
                false => format!("open now: {}", listed(self.entry.digest.prompts.iter())),
            }),
        })
    }

    /// The agent run of this id, or of the node of this path; the only one if none is named.
    pub async fn active_run(&self, named: Option<&str>) -> Result<RunId, SessionError> {
        let active = self.active_runs().await?;
        let found = match named {
            None => active.iter().collect(),
            Some(name) => by_name(active.iter(), name, |(run, node)| (run.as_str(), Some(node))),
        };
        match found.as_slice() {
            [(run, _)] => Ok(run.clone()),
            [] => Err(self.no_run(named, &active)),
            _ => Err(ambiguous_run(&active)),
        }
    }

    /// The command that sends a message to the agent of a node, which is named by its id or by its path.
    pub async fn message_to_node(
        &self,
        name: &str,
        content: String,
        mode: MessageMode,
    ) -> Result<Command, SessionError> {
        let active = self.active_runs().await?;
        let mut of_node = by_name(active.iter(), name, |(_, node)| (node.as_str(), Some(node)));
        if of_node.is_empty() {
            of_node.extend(active.iter().filter(|(_, node)| node.node() == name));
        }
        match (of_node.as_slice(), NodeId::new(name)) {
            // It may be in its next attempt when the message comes, and then that one gets it.
            ([] | [_], Ok(node)) => Ok(Command::SendTo { node, content, mode }),
            ([(run, _)], Err(_)) => Ok(Command::SendToRun { run: run.clone(), content, mode }),
            ([], Err(_)) => Err(self.no_run(Some(name), &active)),
            _ => Err(ambiguous_run(&active)),
        }
    }

    /// The agent runs that have begun and not ended, with their nodes.
    async fn active_runs(&self) -> Result<Vec<(RunId, NodePath)>, SessionError> {
        let log = self.store.read(self.id(), 1, Select::Names(&["agent:start", "agent:complete"])).await?;
        let mut active = Vec::new();
        for envelope in &log {
            match (&envelope.event, &envelope.context.task) {
                (Event::AgentStart { run_id, .. }, Some(node)) => active.push((run_id.clone(), node.clone())),
                (Event::AgentComplete { run_id, .. }, _) => active.retain(|(run, _)| run != run_id),
                _ => {}
            }
        }
        Ok(active)
    }

    fn no_run(&self, named: Option<&str>, active: &[(RunId, NodePath)]) -> SessionError {
        let named = named.map(|name| format!(" `{name}`")).unwrap_or_default();
        let message = format!("session `{}` has no active run{named}", self.id());
        SessionError::new(SessionErrorCode::UnknownRun, message).with_hint(running(active))
    }

    /// How many received the message that was sent last; nothing where each receiver says so itself, as on a cluster.
    pub async fn receivers(&self) -> Result<Option<u32>, SessionError> {
        let log = self.store.read(self.id(), 1, Select::Names(&["session:message"])).await?;
        Ok(log.last().and_then(|envelope| match envelope.event {
            Event::SessionMessage { receivers, agent_name: None, .. } => receivers,
            _ => None,
        }))
    }
}

/// Whether this names the question by its id, and not by its node: that one asks several, one after the other.
pub fn is_id(named: Option<&str>, open: &Prompt) -> bool {
    named == Some(open.prompt_id.as_str())
}

fn listed<'p>(prompts: impl Iterator<Item = &'p Prompt>) -> String {
    prompts.map(|open| open.prompt_id.as_str()).collect::<Vec<_>>().join(", ")
}

/// What has this id, else what is of the node of this path. The beginning of an id names nothing, nor does the id of a node
/// in a frame: both may be those of another node, and what is answered or ended then was never seen.
fn by_name<'a, T>(
    all: impl Iterator<Item = &'a T>,
    name: &str,
    of: impl Fn(&'a T) -> (&'a str, Option<&'a NodePath>),
) -> Vec<&'a T> {
    let rank = |(id, node): (&str, Option<&NodePath>)| match node {
        _ if id == name => Some(0),
        Some(node) if node.as_str() == name || label(node) == name => Some(1),
        _ => None,
    };
    let ranked: Vec<_> = all.filter_map(|item| Some((rank(of(item))?, item))).collect();
    let best = ranked.iter().map(|(rank, _)| *rank).min();
    ranked.into_iter().filter(|(rank, _)| Some(*rank) == best).map(|(_, item)| item).collect()
}

fn ambiguous_run(active: &[(RunId, NodePath)]) -> SessionError {
    let message = "more than one agent runs: name the run, or its node by its path";
    SessionError::new(SessionErrorCode::AmbiguousRun, message).with_hint(running(active))
}

fn running(active: &[(RunId, NodePath)]) -> String {
    let runs: Vec<_> = active.iter().map(|(run, node)| format!("{run} ({})", label(node))).collect();
    if runs.is_empty() { "no agent runs now".to_owned() } else { format!("running now: {}", runs.join(", ")) }
}
