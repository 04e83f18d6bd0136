//! One turn: what a session does until it ends, is idle or needs the person, as updates and questions of the editor.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt};
use inspan_protocol::{Envelope, Event, PromptId};
use inspan_sessions::{Followed, SessionCommand, SessionError, SessionErrorCode};
use inspan_view::DisplayStatus;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::chat::{Chat, CurrentSession};
use crate::questions::{FormAnswer, ask, can_be_shown, in_words};
use crate::rpc::Client;
use crate::updates::InputEcho;
use crate::wire::StopReason;

/// How long a session may take to pause before the turn ends anyway.
const PAUSES: Duration = Duration::from_secs(30);
/// How long nothing may happen before the person is told that all waits for them: after a node has ended, the next one starts
/// within this time.
const SETTLES: Duration = Duration::from_millis(500);
/// The most questions of one turn that are shown.
const MOST_QUESTIONS: usize = 100;

/// A question that is shown, and its answer.
type Shown = BoxFuture<'static, (PromptId, FormAnswer)>;

/// Shows the newest session of a conversation until it ends, is idle or waits for the person; pauses it when the turn
/// is cancelled.
pub(crate) async fn show(
    client: &Client,
    chat: &Chat,
    run: &mut CurrentSession,
    shows_forms: bool,
    answered: Option<PromptId>,
    cancelled: &CancellationToken,
) -> Result<StopReason, SessionError> {
    let mut turn = Showing { answered, ..Showing::new(client, chat, shows_forms, InputEcho::Shown) };
    // What was left open before is asked once more.
    run.unanswered.clear();
    let mut follower = chat.sessions.follow(&run.session, run.next);
    let mut pausing: Option<Instant> = None;
    turn.show_questions(run);
    while !turn.is_over {
        tokio::select! {
            biased;
            () = cancelled.cancelled(), if pausing.is_none() => {
                pausing = Some(Instant::now() + PAUSES);
                turn.withdraw_all();
                turn.pause(run).await;
            }
            () = sleep_until(pausing.unwrap_or_else(Instant::now)), if pausing.is_some() => break,
            Some((prompt, command)) = turn.shown.next(), if !turn.shown.is_empty() => {
                turn.answered(run, prompt, command).await;
            }
            followed = follower.next() => turn.take(followed?, run, pausing.is_some()).await?,
            () = sleep(SETTLES), if turn.waits_for_person(run) => turn.tell_questions(run).await,
        }
    }
    Ok(if pausing.is_some() { StopReason::Cancelled } else { StopReason::EndTurn })
}

/// Shows what the session of a conversation does beside turns, and asks what is open and was not left open here, until `end`: a shell
/// or another interface may control the session.
pub(crate) async fn watch(client: Client, chat: Arc<Chat>, shows_forms: bool, end: CancellationToken) {
    let mut held = chat.run.lock().await;
    let Some(run) = held.as_mut() else { return };
    // What cannot be read now is reported by the next turn.
    while let Ok(true) = watch_one(&client, &chat, run, shows_forms, &end).await {}
}

/// Watches one session. Whether another one continues it, which is the conversation's newest from then on.
async fn watch_one(
    client: &Client,
    chat: &Chat,
    run: &mut CurrentSession,
    shows_forms: bool,
    end: &CancellationToken,
) -> Result<bool, SessionError> {
    // What people write to it is written elsewhere.
    let mut watch = Showing::new(client, chat, shows_forms, InputEcho::Replayed);
    let mut follower = chat.sessions.follow(&run.session, run.next);
    let mut has_news = false;
    loop {
        watch.show_questions(run);
        tokio::select! {
            biased;
            () = end.cancelled() => return Ok(false),
            Some((prompt, command)) = watch.shown.next(), if !watch.shown.is_empty() => {
                watch.answered(run, prompt, command).await;
            }
            followed = follower.next() => match followed? {
                Followed::Events(events) => {
                    watch.see(&events, run).await;
                    has_news = true;
                }
                Followed::Idle(entry) => {
                    let status = DisplayStatus::of(&entry);
                    let idle_message = watch.idle_message(status, run).await?;
                    if let Some(idle_message) = idle_message.filter(|_| std::mem::take(&mut has_news)) {
                        chat.tell(client, &idle_message).await;
                    }
                }
                Followed::Ended(_) => return run.go_on(chat).await,
            },
            () = sleep(SETTLES), if !run.has_told && watch.waits_for_person(run) => watch.tell_questions(run).await,
        }
    }
}

struct Showing<'a> {
    client: &'a Client,
    chat: &'a Chat,
    shows_forms: bool,
    typed: InputEcho,
    /// Questions that were shown, each with what takes it back.
    asked: HashMap<PromptId, CancellationToken>,
    shown: FuturesUnordered<Shown>,
    /// The question that the person has just answered. A process may have to begin before that takes effect.
    answered: Option<PromptId>,
    is_over: bool,
}

impl<'a> Showing<'a> {
    fn new(client: &'a Client, chat: &'a Chat, shows_forms: bool, typed: InputEcho) -> Self {
        Self {
            client,
            chat,
            shows_forms,
            typed,
            asked: HashMap::new(),
            shown: FuturesUnordered::new(),
            answered: None,
            is_over: false,
        }
    }

    async fn take(
        &mut self,
        followed: Followed,
        run: &mut CurrentSession,
        is_pausing: bool,
    ) -> Result<(), SessionError> {
        match followed {
            Followed::Events(events) => {
                self.see(&events, run).await;
                if !is_pausing {
                    self.show_questions(run);
                }
            }
            Followed::Ended(_) => {
                run.end_shown = Some(Instant::now());
                self.is_over = true;
            }
            Followed::Idle(entry) => {
                if let Some(idle_message) = self.idle_message(DisplayStatus::of(&entry), run).await? {
                    self.chat.tell(self.client, &idle_message).await;
                    self.is_over = true;
                }
            }
        }
        Ok(())
    }

    /// No process runs the session any more: why, and what continues it, unless it waits for an answer.
    async fn idle_message(
        &mut self,
        status: DisplayStatus,
        run: &mut CurrentSession,
    ) -> Result<Option<String>, SessionError> {
        run.open.lose_process(self.chat.sessions.clock().now());
        for each in run.updates.process_lost() {
            self.chat.update(self.client, each).await;
        }
        run.unanswered.extend(self.answered.take());
        let id = &run.session;
        let idle_message = match (status, self.chat.sessions.output(id).await?.holdup) {
            (DisplayStatus::Waiting, _) if !run.open.prompts().is_empty() => return Ok(None),
            (_, Some(holdup)) => format!("The session {holdup}"),
            (DisplayStatus::Paused, None) => {
                format!("Paused. A message continues it, and so does `inspan resume {id}`.")
            }
            (DisplayStatus::Interrupted, None) => format!(
                "Interrupted: its process is gone. A message continues it, and so does `inspan resume {id}`."
            ),
            _ if run.open.prompts().is_empty() => {
                format!("It waits without a process. `inspan resume {id}` continues it.")
            }
            _ => return Ok(None),
        };
        Ok(Some(format!("\n\n{idle_message}\n")))
    }

    /// Sends what events say to the editor, and takes back the questions that they close.
    async fn see(&mut self, events: &[Arc<Envelope>], run: &mut CurrentSession) {
        for envelope in events {
            let closed = run.open.apply(envelope);
            for shown in closed.iter().filter_map(|closed| self.asked.get(closed)) {
                shown.cancel();
            }
            let updates = run.updates.of(envelope, self.typed);
            for each in updates.into_iter().chain(run.updates.closed(&closed)) {
                self.chat.update(self.client, each).await;
            }
            if let Event::SessionPrompt(prompt) = &envelope.event {
                self.chat.note_shown(&prompt.prompt_id);
            }
            run.next = envelope.seq + 1;
            run.has_told = false;
        }
    }

    fn withdraw_all(&self) {
        self.asked.values().for_each(CancellationToken::cancel);
    }

    fn show_questions(&mut self, run: &mut CurrentSession) {
        for prompt in run.open.prompts() {
            let id = &prompt.prompt_id;
            let is_answered = self.answered.as_ref() == Some(id);
            if is_answered || self.asked.contains_key(id) || run.unanswered.contains(id) {
                continue;
            }
            if !can_be_shown(prompt, self.shows_forms) || self.asked.len() >= MOST_QUESTIONS {
                run.unanswered.insert(id.clone());
                continue;
            }
            let withdrawn = CancellationToken::new();
            self.asked.insert(id.clone(), withdrawn.clone());
            let (client, session) = (self.client.clone(), self.chat.id.clone());
            let prompt = prompt.clone();
            self.chat.note_shown(&prompt.prompt_id);
            let shown = async move {
                let command = tokio::select! {
                    () = withdrawn.cancelled() => Err(None),
                    command = ask(&client, &session, &prompt) => command,
                };
                (prompt.prompt_id, command)
            };
            self.shown.push(shown.boxed());
        }
    }

    async fn answered(&mut self, run: &mut CurrentSession, prompt: PromptId, answer: FormAnswer) {
        let taken = match answer {
            Ok(command) => {
                let applied = self.chat.sessions.apply(&run.session, &command, None).await;
                applied.map(drop).map_err(|error| Some(error.message))
            }
            Err(why) => Err(why),
        };
        let Err(why) = taken else { return };
        if let Some(why) = why {
            self.chat.tell(self.client, &format!("\n\nThe answer was not taken: {why}\n\n")).await;
        }
        run.unanswered.insert(prompt);
    }

    /// Whether only questions are left that stay open.
    fn waits_for_person(&self, run: &CurrentSession) -> bool {
        run.open.waits_only_for(|prompt| run.unanswered.contains(&prompt.prompt_id))
    }

    /// Says what waits for the person, which ends a turn.
    async fn tell_questions(&mut self, run: &mut CurrentSession) {
        let asked: Vec<String> =
            run.open.prompts().iter().map(|prompt| format!("- {}", in_words(prompt))).collect();
        let how = if run.open.prompts().len() == 1 { "Answer with your next message, or" } else { "Answer" };
        let text =
            format!("\n\nThis waits for you:\n\n{}\n\n{how} in a shell: `inspan inbox`.\n", asked.join("\n"));
        self.chat.tell(self.client, &text).await;
        run.open.prompts().iter().for_each(|prompt| self.chat.note_shown(&prompt.prompt_id));
        run.has_told = true;
        self.is_over = true;
    }

    /// Pauses the session; what keeps it from pausing is shown.
    async fn pause(&mut self, run: &CurrentSession) {
        let reason = Some("cancelled in the editor".to_owned());
        let paused = self.chat.sessions.apply(&run.session, &SessionCommand::Pause { reason }, None).await;
        if let Err(error) = paused {
            self.is_over = true;
            // It is idle already, or it ended just now.
            if matches!(error.code, SessionErrorCode::NotRunning | SessionErrorCode::SessionEnded) {
                return;
            }
            let text = match error.code {
                SessionErrorCode::NoResponse => format!(
                    "It has not paused yet: {}. The pause is stored, and takes effect when the process continues.",
                    error.message
                ),
                _ => format!("It was not paused: {}", error.message),
            };
            self.chat.tell(self.client, &format!("\n\n{text}\n")).await;
        }
    }
}
