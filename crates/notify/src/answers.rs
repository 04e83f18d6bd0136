//! Answers that come back through a channel: checked against the open question, stored once, and the session resumed if
//! no process runs it.

use std::sync::Arc;

use inspan_protocol::{Command, Event, Prompt, PromptId, PromptKind, SessionId};
use inspan_sessions::{CommandResult, SessionError, SessionErrorCode, SessionTarget, Sessions};
use inspan_store::Select;
use tokio::sync::Mutex;

use crate::{
    deliver::{ChannelSource, FolderChannel},
    send::NotificationChannel,
};

/// Why an answer was not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum AnswerError {
    /// It never can be, for this reason.
    #[error("{0}")]
    Refused(String),
    /// The store failed, and the same answer may be given again; or the session has not taken it yet.
    #[error("{0}")]
    Failed(String),
}

impl From<SessionError> for AnswerError {
    fn from(error: SessionError) -> Self {
        match error.code {
            SessionErrorCode::StoreUnavailable
            | SessionErrorCode::StoreDamaged
            | SessionErrorCode::Failed => Self::Failed(error.message),
            _ => Self::Refused(error.message),
        }
    }
}

/// An answer that is in the store.
pub(crate) struct StoredAnswer {
    target: SessionTarget,
    number: u64,
}

/// Takes answers for the sessions of a store.
pub struct Answers {
    sessions: Sessions,
    source: Arc<dyn ChannelSource>,
    /// One at a time, so that two clicks are not both the first.
    posting: Mutex<()>,
}

impl Answers {
    /// The launcher of these sessions resumes those that no process runs. The source has the channels that ask.
    pub fn new(sessions: Sessions, source: Arc<dyn ChannelSource>) -> Self {
        Self { sessions, source, posting: Mutex::new(()) }
    }

    /// The channel that asked a question of a session, as it is set where the session's flow is, now: it says who may
    /// answer, whichever connection an answer comes through.
    pub(crate) async fn asker(
        &self,
        session: &SessionId,
        name: &str,
    ) -> Result<NotificationChannel, AnswerError> {
        let flow = self.sessions.store().record(session).await.map_err(SessionError::from)?.flow;
        let channels = self.source.channels(&flow.folder).map_err(AnswerError::Refused)?;
        let is_it =
            |channel: &&FolderChannel| channel.name == name && channel.settings.wants_flow(&flow.name);
        let unknown = || AnswerError::Refused(format!("the flow no longer has channel `{name}`"));
        let found = channels.iter().find(is_it).ok_or_else(unknown)?;
        self.source.open(found).map_err(|why| AnswerError::Refused(format!("channel `{name}`: {why}")))
    }

    /// The question, if an answer can still reach it.
    pub(crate) async fn question(
        &self,
        session: &SessionId,
        prompt: &PromptId,
    ) -> Result<Prompt, AnswerError> {
        let (target, open) = self.find(session, prompt).await?;
        drop(target);
        Ok(open)
    }

    async fn find(
        &self,
        session: &SessionId,
        prompt: &PromptId,
    ) -> Result<(SessionTarget, Prompt), AnswerError> {
        let answered = || AnswerError::Refused("the question is already answered".to_owned());
        let target = self.sessions.target(session).await?;
        let open = target.entry.digest.prompts.iter().find(|open| open.prompt_id == *prompt).cloned();
        let Some(open) = open else {
            let names = Select::Names(&["session:prompt", "session:reply"]);
            let log = self.sessions.store().read(session, 1, names).await.map_err(SessionError::from)?;
            let is_asked =
                |event: &Event| matches!(event, Event::SessionPrompt(other) if other.prompt_id == *prompt);
            let is_answered =
                |event: &Event| matches!(event, Event::SessionReply { prompt_id, .. } if prompt_id == prompt);
            let has = |is_it: &dyn Fn(&Event) -> bool| log.iter().any(|envelope| is_it(&envelope.event));
            return Err(match (has(&is_answered), has(&is_asked)) {
                (true, _) => answered(),
                (false, true) => AnswerError::Refused("the question is no longer open".to_owned()),
                (false, false) => AnswerError::Refused(format!("the session has no question `{prompt}`")),
            });
        };
        if open.kind != PromptKind::Input && !target.is_driven() {
            let why = "the agent that asked has ended; it asks again once the session is resumed";
            return Err(AnswerError::Refused(why.to_owned()));
        }
        let replies =
            |command: &Command| matches!(command, Command::Reply { prompt: other, .. } if other == prompt);
        let waiting = self.sessions.store().unanswered(session).await.map_err(SessionError::from)?;
        if waiting.iter().any(|posted| replies(&posted.command)) {
            return Err(answered());
        }
        target.check_time(&open)?;
        Ok((target, open))
    }

    /// Stores an answer, at most one for each question. Returns once it survives the end of the process. With a key it is
    /// the same answer if it comes again, and the next process resumes the session if this one is killed before.
    pub(crate) async fn post(
        &self,
        session: &SessionId,
        prompt: &PromptId,
        content: String,
        choice: Option<String>,
        key: &str,
    ) -> Result<StoredAnswer, AnswerError> {
        let _one = self.posting.lock().await;
        let known = self.sessions.store().posted_once(session, key).await.map_err(SessionError::from)?;
        if let Some(posted) = known {
            let target = self.sessions.target(session).await?;
            return Ok(StoredAnswer { target, number: posted.number });
        }
        let (target, open) = self.find(session, prompt).await?;
        let reply = open.check(content, choice).map_err(|why| AnswerError::Refused(why.to_string()))?;
        let command = Command::Reply { prompt: prompt.clone(), content: reply.content, choice: reply.choice };
        let target = target.with_key(Some(key));
        let number = target.post(&command).await?;
        Ok(StoredAnswer { target, number })
    }

    /// Waits until the session has taken a stored answer; resumes the session if no process runs it.
    pub(crate) async fn settle(&self, stored: StoredAnswer) -> Result<(), AnswerError> {
        let StoredAnswer { target, number } = stored;
        let result = match target.wait(number).await {
            Ok(CommandResult::Accepted) => Ok(()),
            Ok(CommandResult::Stored(_)) => self.sessions.resume_with(&target, number).await.map(drop),
            Err(error) => Err(error),
        };
        result.map_err(|error| match error.code {
            SessionErrorCode::CommandRefused
            | SessionErrorCode::SessionEnded
            | SessionErrorCode::SessionContinued => AnswerError::Refused(error.message),
            SessionErrorCode::NoResponse => {
                AnswerError::Failed("stored; the session has not taken it yet".to_owned())
            }
            _ => {
                let next = format!("stored; `inspan resume {}` continues with it", target.id());
                AnswerError::Failed(format!("{next}: {error}"))
            }
        })
    }

    /// The answer to a question as the session has taken it, without the session's secrets.
    pub(crate) async fn taken(&self, session: &SessionId, prompt: &PromptId) -> Option<String> {
        let log = self.sessions.store().read(session, 1, Select::Names(&["session:reply"])).await.ok()?;
        log.iter().rev().find_map(|envelope| match &envelope.event {
            Event::SessionReply { prompt_id, content, choice, .. } if prompt_id == prompt => {
                Some(choice.as_ref().unwrap_or(content).clone())
            }
            _ => None,
        })
    }
}
