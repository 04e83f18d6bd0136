//! What interfaces may ask of a session, and how it is done: by the process that runs the session,
//! by a command that waits in the store, or by a new process that resumes it.

use inspan_flow::{Select, SessionEntry, StoreError};
use inspan_protocol::{
    Command, Event, MessageMode, NodeId, NodePath, Prompt, PromptKind, RunId, SessionId, SessionStatus,
};
use inspan_view::DisplayStatus;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    CommandResult, PersonAnswer, ResumeOptions, ResumeTo, SessionError, SessionErrorCode, SessionTarget,
    Sessions, finish, is_driven,
    keyed::{RequestKey, key_reused},
    question_line,
    target::{decided, is_id},
};

/// Of so many sessions, the newest, a server looks for those that wait with an answer when it starts.
const LISTED: usize = 1_000;

/// What becomes of a command that no process has applied.
const STORED: &str = "the command is stored; the process that resumes the session applies or refuses it";

/// What may be asked of a session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "camelCase", rename_all_fields = "camelCase", deny_unknown_fields)]
pub enum SessionCommand {
    /// The answer to a question of the flow. If no process runs the session, it is resumed with the answer.
    Reply {
        /// The question: its id, the beginning of it, or its node. The only open one if absent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        prompt: Option<String>,
        /// The answer; of a form a JSON mapping as text. It may be absent if `choice` is given.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        content: Option<String>,
        /// Which of the choices it is.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        choice: Option<String>,
    },
    /// Allows what an agent asks permission for.
    Approve {
        /// The question, by its id: what is open by the time of the command may be another one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schemars(required)]
        prompt: Option<String>,
        /// Also for the rest of the agent's run, without asking again.
        #[serde(default)]
        always: bool,
    },
    /// Denies what an agent asks permission for.
    Reject {
        /// The question; the only open one if absent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        prompt: Option<String>,
        /// What the agent is told, such as what it should do instead.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    },
    /// A message to all that listens in the session, to the agent of a node, or to one run.
    Send {
        /// The message.
        content: String,
        /// The node.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        node: Option<NodeId>,
        /// The run.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        run: Option<RunId>,
        /// When it is delivered.
        #[serde(default)]
        mode: MessageMode,
    },
    /// No more messages for a run.
    Close {
        /// The run or its node; the only active one if absent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        run: Option<String>,
    },
    /// Pauses the session.
    Pause {
        /// Why.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    },
    /// Resumes the session; one that has ended is continued by a new one that reuses finished work.
    Resume(ResumeOptions),
    /// Stops the session for good.
    Stop {
        /// Why.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    },
    /// Runs a node and all that depends on it again, in a new session that reuses the rest and continues this one. Refused
    /// while a process runs this one, or if another session continues it.
    Retry {
        /// The node.
        node: NodePath,
    },
}

impl SessionCommand {
    /// Whether this is the command that was posted to the store as that one.
    fn is_posted_as(&self, posted: &Command) -> bool {
        match (self, posted) {
            (
                Self::Reply { prompt, content, choice },
                Command::Reply { prompt: id, content: given, choice: chosen },
            ) => {
                is_named(id.as_str(), prompt.as_deref())
                    && content.as_deref().unwrap_or_default() == given
                    && choice == chosen
            }
            (Self::Approve { prompt, always }, Command::Reply { prompt: id, content, choice }) => {
                is_named(id.as_str(), prompt.as_deref())
                    && choice.as_ref().unwrap_or(content) == if *always { "always" } else { "allow" }
            }
            (Self::Reject { prompt, reason }, Command::Reply { prompt: id, content, choice }) => {
                is_named(id.as_str(), prompt.as_deref())
                    && choice.as_ref().is_none_or(|choice| choice == "deny")
                    && content == decided("deny", reason.as_deref())
            }
            (Self::Send { content, node: None, run: None, .. }, Command::Send { content: sent }) => {
                content == sent
            }
            (
                Self::Send { content, node, run: None, mode },
                Command::SendTo { content: sent, node: to, mode: sent_as },
            ) => content == sent && node.as_ref() == Some(to) && mode == sent_as,
            (
                Self::Send { content, run, mode, .. },
                Command::SendToRun { content: sent, run: to, mode: sent_as },
            ) => content == sent && run.as_ref() == Some(to) && mode == sent_as,
            (Self::Close { run }, Command::Close { run: id }) => is_named(id.as_str(), run.as_deref()),
            (Self::Pause { reason }, Command::Pause { reason: given })
            | (Self::Stop { reason }, Command::Abort { reason: given }) => reason == given,
            _ => false,
        }
    }
}

/// Whether a question or run may be meant by what it was called: its id or the beginning of it, or its node. An id begins
/// with the path of its node.
fn is_named(id: &str, named: Option<&str>) -> bool {
    let last = id.rsplit('/').next().unwrap_or(id);
    named.is_none_or(|named| id.starts_with(named) || last.starts_with(named))
}

/// The result of a command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Receipt {
    /// `accepted`: a refusal is an error.
    pub verdict: Accepted,
    /// The session in which it took effect; another than the one addressed if a new session continues that one.
    pub session_id: SessionId,
}

/// The verdict of a command that took effect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Accepted {
    /// It took effect.
    #[default]
    Accepted,
}

impl Receipt {
    fn of(session_id: SessionId) -> Self {
        Self { verdict: Accepted::Accepted, session_id }
    }
}

impl Sessions {
    /// Applies a command: returns once it took effect or a process has begun to apply it; a refusal is an error. What has
    /// begun goes on if the future is dropped.
    ///
    /// Must be called within a tokio runtime.
    pub async fn apply(
        &self,
        session: &SessionId,
        command: &SessionCommand,
        key: Option<&str>,
    ) -> Result<Receipt, SessionError> {
        let (sessions, session, command) = (self.clone(), session.clone(), command.clone());
        let key = key.map(str::to_owned);
        let applied =
            finish(async move { sessions.apply_once(&session, &command, key.as_deref()).await }).await;
        applied.map_err(|error| error.naming(&self.commands))
    }

    async fn apply_once(
        &self,
        session: &SessionId,
        command: &SessionCommand,
        key: Option<&str>,
    ) -> Result<Receipt, SessionError> {
        let request = key.map(|key| RequestKey::of(key, &(session, command))).transpose()?;
        let _alone = match &request {
            Some(request) => Some(self.keys.lock(request).await),
            None => None,
        };
        if let (Some(key), Some(request)) = (key, &request)
            && let Some(receipt) = self.applied(session, command, key, request).await?
        {
            return Ok(receipt);
        }
        match (self.perform(session, command, key, request.clone()).await, request) {
            // The same request came through another program too.
            (Err(_), Some(request)) if self.has_started(&request).await? => Ok(Receipt::of(request.session)),
            (result, _) => result,
        }
    }

    async fn perform(
        &self,
        session: &SessionId,
        command: &SessionCommand,
        key: Option<&str>,
        request: Option<RequestKey>,
    ) -> Result<Receipt, SessionError> {
        let mut target = self.target(session).await?.with_key(key);
        match command {
            SessionCommand::Reply { prompt, content, choice } => {
                let open = question(&target, prompt.as_deref(), false).await?;
                if content.is_none() && choice.is_none() {
                    let message = "the answer is missing: give `content` or `choice`";
                    return Err(SessionError::new(SessionErrorCode::InvalidAnswer, message));
                }
                let content = content.clone().unwrap_or_default();
                let answer = PersonAnswer { content, choice: choice.clone() };
                if !target.is_driven() {
                    self.launcher.check_resume(session, ResumeTo::Continue).await?;
                }
                let result = target.answer(&open, &answer).await?;
                self.receipt(&target, command, result).await
            }
            SessionCommand::Approve { prompt, always } => {
                let word = if *always { "always" } else { "allow" };
                let open = question(&target, prompt.as_deref(), true).await?;
                if !is_id(prompt.as_deref(), &open) {
                    let message = format!(
                        "`approve` needs the ID of its question as `prompt`; open is `{}`: {}",
                        open.prompt_id,
                        question_line(&open)
                    );
                    return Err(SessionError::new(SessionErrorCode::InvalidRequest, message));
                }
                decide(&target, &open, word, None).await
            }
            SessionCommand::Reject { prompt, reason } => {
                let open = question(&target, prompt.as_deref(), true).await?;
                decide(&target, &open, "deny", reason.as_deref()).await
            }
            SessionCommand::Send { content, node, run, mode } => {
                target.must_be_driven(|id| {
                    format!("`inspan resume {id} --message TEXT` resumes it with a message")
                })?;
                let message = match (node, run) {
                    (_, Some(run)) => {
                        Command::SendToRun { run: run.clone(), content: content.clone(), mode: *mode }
                    }
                    (Some(node), None) => {
                        target.message_to_node(node.as_str(), content.clone(), *mode).await?
                    }
                    (None, None) => Command::Send { content: content.clone() },
                };
                let result = target.post_and_wait(&message).await?;
                self.receipt(&target, command, result).await
            }
            SessionCommand::Close { run } => {
                target.must_be_driven(|id| format!("`inspan resume {id}` continues it"))?;
                let run = target.active_run(run.as_deref()).await?;
                let result = target.post_and_wait(&Command::Close { run }).await?;
                self.receipt(&target, command, result).await
            }
            SessionCommand::Pause { reason } => {
                if !is_paused(&target.entry) {
                    target.must_be_driven(|id| format!("`inspan resume {id}` continues it"))?;
                } else if key.is_none() || target.entry.continued_by.is_some() {
                    return Ok(Receipt::of(session.clone()));
                }
                // With a key it is posted also to a paused session: sent again after a resume, it pauses nothing.
                let result = target.post_and_wait(&Command::Pause { reason: reason.clone() }).await?;
                if result == CommandResult::Accepted {
                    target.paused().await?;
                }
                self.receipt(&target, command, result).await
            }
            SessionCommand::Stop { reason } => {
                if !target.is_driven() && !target.entry.digest.status.has_ended() {
                    self.launcher.check_resume(session, ResumeTo::Stop).await?;
                }
                let result = target.post_and_wait(&Command::Abort { reason: reason.clone() }).await?;
                self.receipt(&target, command, result).await?;
                target.stopped().await?;
                Ok(Receipt::of(session.clone()))
            }
            SessionCommand::Resume(options) => {
                self.resume(session, options.clone(), request).await.map(Receipt::of)
            }
            SessionCommand::Retry { node } => {
                let options = ResumeOptions { from: Some(node.clone()), ..ResumeOptions::default() };
                self.resume(session, options, request).await.map(Receipt::of)
            }
        }
    }

    /// Resumes the sessions that wait with an answer or a stop: another server stored it, and was killed before it
    /// resumed them. What a person has stored for later has no key. Returns each with the error if it cannot be resumed.
    pub async fn resume_answered(&self) -> Result<Vec<(SessionId, Option<SessionError>)>, SessionError> {
        let mut resumed = Vec::new();
        for entry in self.list(LISTED).await? {
            let may_be = entry.unanswered > 0 && entry.continued_by.is_none() && entry.damage.is_none();
            if !may_be || is_driven(&entry) {
                continue;
            }
            let stored = self.store().unanswered(&entry.session).await?;
            if !stored.iter().any(|posted| posted.key.is_some() && resumes(&posted.command)) {
                continue;
            }
            let options = ResumeOptions { in_place: true, ..ResumeOptions::default() };
            match self.launcher.resume(&entry.session, &options).await {
                // Another server did.
                Err(error) if error.code == SessionErrorCode::SessionHeld => {}
                result => resumed.push((entry.session, result.err())),
            }
        }
        Ok(resumed)
    }

    /// Whether a session that waits has an answer or a stop that is stored: the process that applies it may begin in a
    /// moment. One that is paused or interrupted goes on only if somebody resumes it.
    pub async fn is_about_to_continue(&self, entry: &SessionEntry) -> Result<bool, SessionError> {
        if entry.unanswered == 0 || DisplayStatus::of(entry) != DisplayStatus::Waiting {
            return Ok(false);
        }
        let stored = self.store().unanswered(&entry.session).await?;
        Ok(stored.iter().any(|posted| resumes(&posted.command)))
    }

    async fn resume(
        &self,
        session: &SessionId,
        mut options: ResumeOptions,
        request: Option<RequestKey>,
    ) -> Result<SessionId, SessionError> {
        if let Some(request) = &request {
            if options.session_id.is_some() {
                let message = "give a key or the session's id, not both";
                return Err(SessionError::new(SessionErrorCode::InvalidRequest, message));
            }
            options.session_id = Some(request.session.clone());
            options.request = Some(request.request.clone());
        }
        match (self.launcher.resume(session, &options).await, request) {
            // The same request may have resumed it, and a process that runs it is all that it asks for. What continues a
            // session that has ended is a new one.
            (Err(error), Some(request))
                if error.code == SessionErrorCode::SessionHeld && options.from.is_none() =>
            {
                if self.has_started(&request).await? {
                    return Ok(request.session);
                }
                let mut last = self.entry(session).await?;
                while let Some(by) = last.continued_by.take() {
                    last = self.entry(&by).await?;
                }
                // Nothing runs of one that another one continued and that has paused or ended.
                let runs = last.session == *session || is_driven(&last);
                if runs && self.has_resumed(&last.session, &options).await? {
                    Ok(last.session)
                } else {
                    Err(error)
                }
            }
            (result, _) => result,
        }
    }

    /// Whether a session has the message and the budgets of this resumption from the last one.
    async fn has_resumed(&self, session: &SessionId, options: &ResumeOptions) -> Result<bool, SessionError> {
        if options.message.is_none() && options.budget.is_empty() {
            return Ok(true);
        }
        let log = self.store.read(session, 1, Select::Names(&["flow:resumed"])).await?;
        Ok(log.last().is_some_and(|last| match &last.event {
            Event::FlowResumed { message, budget, .. } => {
                options.message.as_ref().is_none_or(|given| self.launcher.redacted(given) == *message)
                    && options.budget == budget.by_name()
            }
            _ => false,
        }))
    }

    /// The result of an earlier command with this key, if there was one: it is not applied again. The command of a key
    /// is in the store, so it outlives this process.
    async fn applied(
        &self,
        session: &SessionId,
        command: &SessionCommand,
        key: &str,
        request: &RequestKey,
    ) -> Result<Option<Receipt>, SessionError> {
        if let Some(posted) = self.store.posted_once(session, key).await? {
            if !command.is_posted_as(&posted.command) {
                return Err(key_reused());
            }
            let mut target = self.target(session).await?;
            let result = target.wait(posted.number).await?;
            if result == CommandResult::Accepted && self.is_pausing(session, command).await? {
                target.paused().await?;
            }
            let receipt = self.receipt(&target, command, result).await?;
            if matches!(command, SessionCommand::Stop { .. }) {
                target.stopped().await?;
            }
            return Ok(Some(receipt));
        }
        Ok(self.has_started(request).await?.then(|| Receipt::of(request.session.clone())))
    }

    /// Whether this is a pause, and the session has neither paused since it was last asked to nor been resumed.
    async fn is_pausing(&self, session: &SessionId, command: &SessionCommand) -> Result<bool, SessionError> {
        const PAUSES: &[&str] = &["session:pause", "flow:paused", "flow:resumed"];
        if !matches!(command, SessionCommand::Pause { .. }) {
            return Ok(false);
        }
        let log = self.store.read(session, 1, Select::Names(PAUSES)).await?;
        Ok(log.last().is_some_and(|last| matches!(last.event, Event::SessionPause { .. })))
    }

    /// The receipt for a posted command. If no process applied it, an answer and a stop resume the session, a pause has
    /// nothing left to do in a session that is paused, and what only a running session takes is refused.
    async fn receipt(
        &self,
        target: &SessionTarget,
        command: &SessionCommand,
        result: CommandResult,
    ) -> Result<Receipt, SessionError> {
        match (result, command) {
            (CommandResult::Accepted, _) => Ok(Receipt::of(target.id().clone())),
            // A session that is stopped so starts no node but what cleans up.
            (CommandResult::Stored(number), SessionCommand::Reply { .. } | SessionCommand::Stop { .. }) => {
                self.resume_with(target, number).await
            }
            // It had paused when the command came, and only its process had not ended.
            (CommandResult::Stored(_), SessionCommand::Pause { .. })
                if is_paused(&self.entry(target.id()).await?) =>
            {
                Ok(Receipt::of(target.id().clone()))
            }
            (CommandResult::Stored(_), _) => Err(not_applied(target)),
        }
    }

    /// Resumes a session so that a stored command of this number takes effect, and waits until it has.
    pub async fn resume_with(&self, target: &SessionTarget, number: u64) -> Result<Receipt, SessionError> {
        // Another session has no such command.
        let options = ResumeOptions { in_place: true, ..ResumeOptions::default() };
        match self.launcher.resume(target.id(), &options).await {
            // The process that resumes it has begun, and applies the command now.
            Ok(_) => match target.wait(number).await? {
                CommandResult::Accepted => Ok(Receipt::of(target.id().clone())),
                CommandResult::Stored(_) => Err(not_applied(target)),
            },
            // Another process may have resumed it first, and then that one applies or refuses the command.
            Err(error) => match target.wait(number).await? {
                CommandResult::Accepted => Ok(Receipt::of(target.id().clone())),
                CommandResult::Stored(_) if error.hint.is_none() => Err(error.with_hint(STORED)),
                CommandResult::Stored(_) => Err(error),
            },
        }
    }
}

/// Whether a session without a process continues with this command.
fn resumes(command: &Command) -> bool {
    matches!(command, Command::Reply { .. } | Command::Abort { .. })
}

/// Whether it is paused, and no process runs it any more.
fn is_paused(entry: &SessionEntry) -> bool {
    entry.digest.status == SessionStatus::Paused && !is_driven(entry)
}

fn not_applied(target: &SessionTarget) -> SessionError {
    let message = format!("session `{}` stopped running before the command was applied", target.id());
    SessionError::new(SessionErrorCode::NotRunning, message).with_hint(STORED)
}

async fn decide(
    target: &SessionTarget,
    open: &Prompt,
    word: &str,
    reason: Option<&str>,
) -> Result<Receipt, SessionError> {
    target.answer(open, &PersonAnswer::decision(open, word, reason)).await?;
    Ok(Receipt::of(target.id().clone()))
}

/// The open question that is meant, which must ask for permission or must not.
async fn question(
    target: &SessionTarget,
    named: Option<&str>,
    for_permission: bool,
) -> Result<Prompt, SessionError> {
    let fits = |open: &Prompt| (open.kind == PromptKind::Permission) == for_permission;
    let id = target.id();
    let open = match named {
        Some(prompt) => target.prompt(prompt, fits).await?,
        None => {
            let fits: Vec<_> = target.entry.digest.prompts.iter().filter(|open| fits(open)).collect();
            match fits.as_slice() {
                [one] => (*one).clone(),
                [] if target.entry.digest.status.has_ended() => {
                    return Err(StoreError::SessionEnded(id.clone()).into());
                }
                [] => {
                    let message = format!("session `{id}` has no open question of this kind");
                    return Err(SessionError::new(SessionErrorCode::UnknownPrompt, message)
                        .with_hint("`inspan inbox` lists the open questions"));
                }
                _ => {
                    let message = format!("several questions of session `{id}` are open: name one of them");
                    return Err(SessionError::new(SessionErrorCode::AmbiguousPrompt, message));
                }
            }
        }
    };
    match (for_permission, fits(&open)) {
        (_, true) => Ok(open),
        (true, false) => Err(SessionError::new(
            SessionErrorCode::InvalidAnswer,
            format!("`{}` is a question, not a permission: use `reply`", open.prompt_id),
        )),
        (false, false) => Err(SessionError::new(
            SessionErrorCode::InvalidAnswer,
            format!("`{}` asks for permission: use `approve` or `reject`", open.prompt_id),
        )),
    }
}
