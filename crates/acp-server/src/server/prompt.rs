//! A prompt: what it starts, answers or sends, and the turn that shows the result.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use inspan_protocol::{MessageMode, PromptId, SessionId};
use inspan_sessions::{
    RegisteredFlow, ResumeOptions, SessionCommand, SessionError, SessionErrorCode, Sessions, StartOptions,
    is_driven,
};
use inspan_view::DisplayStatus;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::Server;
use crate::chat::{ActiveTurn, Chat, CurrentSession};
use crate::input::{command, flow_input, text_of};
use crate::questions::typed;
use crate::turn::show;
use crate::wire::{self, StopReason, params, says};

impl Server {
    /// Works on a prompt beside the next message.
    pub(super) async fn prompt(self: &Arc<Self>, work: &mut JoinSet<()>, id: Value, given: Value) {
        let read = params(given).and_then(|wire::Prompted { session_id, prompt }| {
            Ok((self.chat(&session_id)?, text_of(&prompt)?))
        });
        let (chat, text) = match read {
            Ok(read) => read,
            Err(error) => return self.client.answer(&id, Err(error)).await,
        };
        // The turn shows what happens from here on.
        chat.stop_watching();
        let cancelled = CancellationToken::new();
        let running = {
            // Noted before the next message is read, which may cancel it.
            let mut turn = chat.turn.lock();
            let running = turn.clone();
            if running.is_none() {
                *turn = Some(ActiveTurn { request: id.clone(), cancelled: cancelled.clone(), session: None });
            }
            running
        };
        let server = Arc::clone(self);
        work.spawn(async move {
            let result = match running {
                Some(turn) => server.steer(&chat, &turn, text).await,
                None => {
                    let result = server.turn(&chat, &text, &cancelled).await;
                    *chat.turn.lock() = None;
                    result
                }
            };
            let result = match result {
                Ok(stop) => stop,
                Err(error) => {
                    let hint = error.hint.as_deref().map(|hint| format!("\n\n{hint}")).unwrap_or_default();
                    server.update(&chat, says(&format!("{}{hint}\n", error.message))).await;
                    StopReason::EndTurn
                }
            };
            server.client.answer(&id, Ok(json!({ "stopReason": result }))).await;
        });
    }

    /// A prompt while a turn is in progress answers the open question, or is a message to the agents that listen.
    async fn steer(&self, chat: &Chat, turn: &ActiveTurn, text: String) -> Result<StopReason, SessionError> {
        let early = || SessionError::new(SessionErrorCode::NotRunning, "the flow has not started yet");
        let session = turn.session.as_ref().ok_or_else(early)?;
        if let Some((name, _)) = command(&text)
            && chat.sessions.launcher().flows().await?.iter().any(|flow| flow.id == name)
        {
            let message = format!("`/{name}` starts a flow, and one runs in this conversation");
            let hint =
                "cancel the turn, or wait for its end; what is an answer or a message begins otherwise";
            return Err(SessionError::new(SessionErrorCode::InvalidInput, message).with_hint(hint));
        }
        if answer(&chat.sessions, session, &text).await?.is_none() {
            send(&chat.sessions, session, text).await?;
        }
        Ok(StopReason::EndTurn)
    }

    async fn turn(
        &self,
        chat: &Chat,
        text: &str,
        cancelled: &CancellationToken,
    ) -> Result<StopReason, SessionError> {
        let mut held = chat.run.lock().await;
        let flows = chat.sessions.launcher().flows().await?;
        let mut answered = None;
        let next = match command(text) {
            Some((name, rest)) => self.start(chat, &flows, name, rest).await?,
            None => match held.as_ref() {
                Some(run) => match self.continued(chat, run, text, &mut answered).await? {
                    Continued::Same => None,
                    Continued::By(session) => Some(session),
                    Continued::Over => self.start_only(chat, &flows, text).await?,
                },
                None => self.start_only(chat, &flows, text).await?,
            },
        };
        if let Some(session) = next {
            let opened = chat.sessions.open(&session).await?;
            *held = Some(CurrentSession::new(session, &opened));
        }
        let Some(run) = held.as_mut() else { return Ok(StopReason::EndTurn) };
        chat.set_session(&run.session);
        let shows_forms = self.shows_forms.load(Ordering::Relaxed);
        show(&self.client, chat, run, shows_forms, answered, cancelled).await
    }

    /// Starts a flow by its name.
    async fn start(
        &self,
        chat: &Chat,
        flows: &[RegisteredFlow],
        name: &str,
        rest: &str,
    ) -> Result<Option<SessionId>, SessionError> {
        let Some(flow) = flows.iter().find(|flow| flow.id == name) else {
            let message = format!("There is no flow `{name}`.");
            return Err(SessionError::new(SessionErrorCode::UnknownFlow, message).with_hint(listed(flows)));
        };
        let input =
            flow_input(flow, rest).map_err(|why| SessionError::new(SessionErrorCode::InvalidInput, why))?;
        let options = StartOptions {
            session_id: chat.next_id().await?,
            cwd: Some(chat.cwd.clone()),
            ..StartOptions::default()
        };
        chat.sessions.launcher().start(&flow.id, &input, &options).await.map(Some)
    }

    /// Starts the only flow there is.
    async fn start_only(
        &self,
        chat: &Chat,
        flows: &[RegisteredFlow],
        text: &str,
    ) -> Result<Option<SessionId>, SessionError> {
        let runnable: Vec<_> = flows.iter().filter(|flow| flow.graph.is_some()).collect();
        match runnable.as_slice() {
            [one] => self.start(chat, flows, &one.id, text).await,
            _ => Err(SessionError::new(SessionErrorCode::UnknownFlow, listed(flows))),
        }
    }

    /// What a text means for the newest session: an answer, a message, or that it is resumed.
    async fn continued(
        &self,
        chat: &Chat,
        run: &CurrentSession,
        text: &str,
        answered: &mut Option<PromptId>,
    ) -> Result<Continued, SessionError> {
        let entry = chat.sessions.entry(&run.session).await?;
        if DisplayStatus::of(&entry).has_ended() {
            return Ok(Continued::Over);
        }
        if let Some((question, session)) = answer(&chat.sessions, &run.session, text).await? {
            *answered = Some(question);
            return Ok(Continued::of(run, session));
        }
        if is_driven(&entry) {
            send(&chat.sessions, &run.session, text.to_owned()).await?;
            return Ok(Continued::Same);
        }
        let options = ResumeOptions { message: Some(text.to_owned()), ..ResumeOptions::default() };
        let session = chat.sessions.launcher().resume(&run.session, &options).await?;
        Ok(Continued::of(run, session))
    }
}

/// The result of a text that was typed to a session.
enum Continued {
    Same,
    By(SessionId),
    Over,
}

impl Continued {
    fn of(run: &CurrentSession, session: SessionId) -> Self {
        if session == run.session { Self::Same } else { Self::By(session) }
    }
}

/// Answers the only open question of a session: which, and the session in which the answer took effect.
async fn answer(
    sessions: &Sessions,
    session: &SessionId,
    text: &str,
) -> Result<Option<(PromptId, SessionId)>, SessionError> {
    match sessions.output(session).await?.questions.as_slice() {
        [] => Ok(None),
        [one] => {
            let command =
                typed(one, text).map_err(|why| SessionError::new(SessionErrorCode::InvalidAnswer, why))?;
            let receipt = sessions.apply(session, &command, None).await?;
            Ok(Some((one.prompt_id.clone(), receipt.session_id)))
        }
        _ => {
            let message = "Several questions are open: answer them in a shell, `inspan inbox` shows how.";
            Err(SessionError::new(SessionErrorCode::AmbiguousPrompt, message))
        }
    }
}

async fn send(sessions: &Sessions, session: &SessionId, content: String) -> Result<(), SessionError> {
    let command = SessionCommand::Send { content, node: None, run: None, mode: MessageMode::default() };
    sessions.apply(session, &command, None).await.map(drop)
}

/// The flows there are, in words.
fn listed(flows: &[RegisteredFlow]) -> String {
    let line = |flow: &RegisteredFlow| {
        let about =
            flow.description.as_deref().map(|about| format!(" - {}", about.trim())).unwrap_or_default();
        format!("- `/{}`{about}", flow.id)
    };
    let lines: Vec<String> = flows.iter().filter(|flow| flow.graph.is_some()).map(line).collect();
    if lines.is_empty() {
        return "There is no flow in this folder: `inspan init` creates one.".to_owned();
    }
    format!("Start a flow with its command:\n\n{}", lines.join("\n"))
}
