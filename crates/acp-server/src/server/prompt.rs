//! A prompt: what it starts, answers or sends, and the turn that shows the result.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use inspan_protocol::{MessageMode, Outcome, PauseCause, PromptId, SessionId};
use inspan_sessions::{
    RegisteredFlow, ResumeOptions, SessionCommand, SessionError, SessionErrorCode, Sessions, StartOptions,
    UNREAD, is_driven, question_text,
};
use inspan_view::DisplayStatus;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::Server;
use crate::chat::{ActiveTurn, Chat, CurrentSession};
use crate::input::{command, flow_command, flow_input, text_of};
use crate::questions::{in_words, typed};
use crate::turn::show;
use crate::wire::{self, StopReason, params};

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
        let arrived = Instant::now();
        let cancelled = CancellationToken::new();
        let turn = ActiveTurn { request: id.clone(), cancelled: cancelled.clone(), session: None };
        // Noted before the next message is read, which may cancel it.
        let running = chat.begin_turn(turn);
        let server = Arc::clone(self);
        work.spawn(async move {
            let result = match running {
                Some(turn) => server.steer(&chat, &turn, text, arrived).await,
                None => {
                    let result = server.turn(&chat, &text, arrived, &cancelled).await;
                    *chat.turn.lock() = None;
                    result
                }
            };
            let result = match result {
                Ok(stop) => stop,
                Err(error) => {
                    let hint = error.hint.as_deref().map(|hint| format!("\n\n{hint}")).unwrap_or_default();
                    chat.tell(&server.client, &format!("{}{hint}\n", error.message)).await;
                    StopReason::EndTurn
                }
            };
            server.client.answer(&id, Ok(json!({ "stopReason": result }))).await;
            server.watch(&chat);
        });
    }

    /// A prompt while a turn is in progress answers the open question, or is a message to the agents that listen.
    async fn steer(
        &self,
        chat: &Chat,
        turn: &ActiveTurn,
        text: String,
        arrived: Instant,
    ) -> Result<StopReason, SessionError> {
        let early = || {
            let message = "Your message was not taken: the one before it has not taken effect yet.";
            SessionError::new(SessionErrorCode::NotRunning, message).with_hint("Send it again in a moment.")
        };
        let session = turn.session.as_ref().ok_or_else(early)?;
        if let Some((flow, _)) = flow_command(&chat.sessions.launcher().flows().await?, &text) {
            let message = format!("`/{}` starts a flow, and one runs in this conversation", flow.id);
            let hint =
                "cancel the turn, or wait for its end; what is an answer or a message begins otherwise";
            return Err(SessionError::new(SessionErrorCode::InvalidInput, message).with_hint(hint));
        }
        if answer(chat, session, &text, arrived).await?.is_none() {
            send(&chat.sessions, session, text).await?;
        }
        Ok(StopReason::EndTurn)
    }

    async fn turn(
        &self,
        chat: &Chat,
        text: &str,
        arrived: Instant,
        cancelled: &CancellationToken,
    ) -> Result<StopReason, SessionError> {
        let mut held = chat.run.lock().await;
        let went_on = match held.as_mut() {
            Some(run) => run.go_on(chat).await,
            None => Ok(false),
        };
        let flows = chat.sessions.launcher().flows().await?;
        let mut answered = None;
        let next = match (flow_command(&flows, text), held.as_mut()) {
            (Some((flow, rest)), run) => {
                if let Some(run) = run {
                    check_free(chat, run, flow).await?;
                }
                Some(self.start(chat, flow, rest).await?)
            }
            (None, Some(run)) => {
                went_on?;
                match self.continued(chat, run, text, arrived, &mut answered).await? {
                    Continued::Same => None,
                    Continued::By(session) => Some(session),
                    Continued::Over => Some(self.start_only(chat, &flows, text).await?),
                }
            }
            (None, None) => Some(self.start_only(chat, &flows, text).await?),
        };
        if let Some(session) = next {
            let mut run = CurrentSession::open(&chat.sessions, session, &flows).await?;
            run.updates.know_command();
            *held = Some(run);
        }
        let Some(run) = held.as_mut() else { return Ok(StopReason::EndTurn) };
        chat.set_session(&run.session);
        let shows_forms = self.shows_forms.load(Ordering::Relaxed);
        show(&self.client, chat, run, shows_forms, answered, cancelled).await
    }

    /// Starts a flow.
    async fn start(&self, chat: &Chat, flow: &RegisteredFlow, rest: &str) -> Result<SessionId, SessionError> {
        let input =
            flow_input(flow, rest).map_err(|why| SessionError::new(SessionErrorCode::InvalidInput, why))?;
        let options = StartOptions {
            session_id: chat.next_id().await?,
            cwd: Some(chat.cwd.clone()),
            ..StartOptions::default()
        };
        chat.sessions.launcher().start(&flow.id, &input, &options).await
    }

    /// Starts the only flow there is with a text that is not a command.
    async fn start_only(
        &self,
        chat: &Chat,
        flows: &[RegisteredFlow],
        text: &str,
    ) -> Result<SessionId, SessionError> {
        if let Some((name, _)) = command(text) {
            let message = format!("There is no flow `{name}`.");
            return Err(SessionError::new(SessionErrorCode::UnknownFlow, message).with_hint(listed(flows)));
        }
        let runnable: Vec<_> = flows.iter().filter(|flow| flow.graph.is_some()).collect();
        match runnable.as_slice() {
            [one] => self.start(chat, one, text).await,
            _ => Err(SessionError::new(SessionErrorCode::UnknownFlow, listed(flows))),
        }
    }

    /// What a text means for the newest session: an answer, a message, or that it is resumed.
    async fn continued(
        &self,
        chat: &Chat,
        run: &mut CurrentSession,
        text: &str,
        arrived: Instant,
        answered: &mut Option<PromptId>,
    ) -> Result<Continued, SessionError> {
        let entry = chat.sessions.entry(&run.session).await?;
        if let Some(by) = &entry.continued_by {
            // It has begun just now, or cannot be read; to start the flow once more would repeat its work.
            let message = format!("Session `{by}` continues this one.");
            let hint = format!("send the text again; `inspan show {by}` shows that session");
            return Err(SessionError::new(SessionErrorCode::SessionContinued, message).with_hint(hint));
        }
        let status = DisplayStatus::of(&entry);
        if let DisplayStatus::Ended(outcome) = status {
            let is_read = run.end_shown.is_some_and(|shown| arrived >= shown + UNREAD);
            if outcome == Outcome::Success && is_read {
                return Ok(Continued::Over);
            }
            // The text may be meant for this session, and to start the flow once more would repeat its work. Who is told so knows
            // that it has ended.
            run.end_shown.get_or_insert_with(Instant::now);
            let message =
                format!("Session `{}` ended as `{}`, and takes no message.", run.session, status.word());
            let next = chat.sessions.commands().after_failure(&run.session, outcome);
            let next = next.map(|next| format!("{next} ")).unwrap_or_default();
            let hint = format!("{next}The flow's command starts it from the beginning.");
            return Err(SessionError::new(SessionErrorCode::SessionEnded, message).with_hint(hint));
        }
        if let Some((question, session)) = answer(chat, &run.session, text, arrived).await? {
            *answered = Some(question);
            return Ok(Continued::of(run, session));
        }
        if is_driven(&entry) {
            send(&chat.sessions, &run.session, text.to_owned()).await?;
            return Ok(Continued::Same);
        }
        if entry.digest.paused_by == Some(PauseCause::Budget) {
            let holdup = chat.sessions.output(&run.session).await?.holdup.unwrap_or_default();
            let message = format!("The session {holdup}");
            return Err(SessionError::new(SessionErrorCode::NotRunning, message));
        }
        let options = ResumeOptions { message: Some(text.to_owned()), ..ResumeOptions::default() };
        let session = chat.sessions.launcher().resume(&run.session, &options).await?;
        Ok(Continued::of(run, session))
    }
}

/// Refuses a command while the session of the conversation needs the person or runs: nothing here would show it any more.
async fn check_free(chat: &Chat, run: &CurrentSession, flow: &RegisteredFlow) -> Result<(), SessionError> {
    let id = &run.session;
    let entry = match chat.sessions.entry(id).await {
        Ok(entry) if !DisplayStatus::of(&entry).has_ended() => entry,
        // One that cannot be read is no reason to start nothing.
        _ => return Ok(()),
    };
    let open = chat.sessions.questions(std::slice::from_ref(&entry));
    let (does, first) = match open.iter().find(|open| !open.is_late) {
        Some(open) => (format!("waits for you: {}", question_text(&open.prompt)), "answer it"),
        None if is_driven(&entry) => ("runs".to_owned(), "wait for its end"),
        None => return Ok(()),
    };
    let message = format!("`/{}` starts a flow, and session `{id}` of this conversation {does}", flow.id);
    let hint = format!("{first}, end it with `inspan stop {id}`, or start the flow in another conversation");
    Err(SessionError::new(SessionErrorCode::InvalidInput, message).with_hint(hint))
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
    chat: &Chat,
    session: &SessionId,
    text: &str,
    arrived: Instant,
) -> Result<Option<(PromptId, SessionId)>, SessionError> {
    let refused = |why: String| SessionError::new(SessionErrorCode::InvalidAnswer, why);
    match chat.sessions.output(session).await?.questions.as_slice() {
        [] => Ok(None),
        [one] if chat.is_unread(&one.prompt_id, arrived) => {
            // The refusal says it.
            chat.note_shown(&one.prompt_id);
            let message = format!(
                "Your message does not answer this question, which has just come:\n\n{}",
                in_words(one)
            );
            Err(refused(message).with_hint("Answer it once you have read it."))
        }
        [one] => {
            let command = typed(one, text).map_err(refused)?;
            let receipt = chat.sessions.apply(session, &command, None).await?;
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
