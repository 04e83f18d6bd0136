//! Waiting for a session on behalf of a client: its progress, its questions, its end. Nothing here
//! delays or ends the session.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt};
use inspan_protocol::{Envelope, Event, NodePath, Prompt, PromptId, SessionId};
use inspan_sessions::{Followed, OpenQuestions, SessionCommand, SessionError, SessionOutput, Sessions};
use inspan_view::DisplayStatus;
use rmcp::model::{
    CancelledNotificationParam, ClientResult, ElicitRequest, ProgressNotificationParam, ProgressToken,
    ServerRequest,
};
use rmcp::service::{Peer, PeerRequestOptions, RoleServer};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use crate::questions::{came_second, command_of, elicitation, note};

/// Progress is reported at most this often.
const PROGRESS_EVERY: Duration = Duration::from_secs(1);
/// How long a person may take to fill in a form. The question stays open after that.
const ELICITATION: Duration = Duration::from_secs(15 * 60);
/// How long a client may take to be sent that forms are taken back.
const WITHDRAWAL: Duration = Duration::from_secs(2);
/// The most forms that one call shows.
const MOST_FORMS: usize = 100;

/// How a client is asked.
pub(crate) enum Ask {
    /// It is not: it finds the questions in the answer.
    Never,
    /// By our requests while its call waits.
    Elicit(Peer<RoleServer>),
    /// By an answer that it repeats its call with.
    Return,
}

/// How a call waits.
pub(crate) struct Waiting {
    pub(crate) most: Duration,
    pub(crate) ask: Ask,
    pub(crate) progress: Option<(Peer<RoleServer>, ProgressToken)>,
    pub(crate) cancelled: CancellationToken,
    /// Questions that the client knows, and leaves open: they are no news.
    pub(crate) known: HashSet<PromptId>,
    /// The answers that it gives with its call; to leave a question open is none.
    pub(crate) answers: Vec<(PromptId, Option<SessionCommand>)>,
    /// Why earlier answers of it were not taken.
    pub(crate) refused: Vec<SessionError>,
}

/// What a call found.
pub(crate) enum CallOutcome {
    /// The state of the session, and why answers of the client were not taken.
    Output(Box<SessionOutput>, Vec<SessionError>),
    /// It asks these questions, and the client is to repeat its call with the answers; and why earlier ones were not taken.
    Questions(Vec<Prompt>, Vec<SessionError>),
}

/// A form that is shown, and its answer.
type Form = BoxFuture<'static, (PromptId, Option<SessionCommand>)>;

/// Waits until the session ends, needs a person, or the time is up.
pub(crate) async fn watch(
    sessions: &Sessions,
    session: &SessionId,
    mut waiting: Waiting,
) -> Result<CallOutcome, SessionError> {
    let answers = std::mem::take(&mut waiting.answers);
    let mut watch = CallWatch::new(sessions, session, waiting);
    for (prompt, command) in answers {
        watch.answered(prompt, command).await;
    }
    let mut follower = sessions.follow(session, 1);
    let mut ticks = interval(PROGRESS_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while !watch.is_over {
        if let Some(questions) = watch.questions_to_return() {
            return Ok(CallOutcome::Questions(questions, watch.refused));
        }
        let cancelled = watch.waiting.cancelled.clone();
        tokio::select! {
            () = cancelled.cancelled() => break,
            Some((prompt, command)) = watch.forms.next(), if !watch.forms.is_empty() => {
                watch.answered(prompt, command).await;
            }
            followed = follower.next() => watch.take(followed?).await?,
            _ = ticks.tick() => watch.report().await,
            () = sleep_until(watch.deadline), if watch.forms.is_empty() => break,
        }
    }
    watch.withdraw_forms().await;
    Ok(CallOutcome::Output(Box::new(sessions.output(session).await?), watch.refused))
}

struct CallWatch<'a> {
    sessions: &'a Sessions,
    session: &'a SessionId,
    waiting: Waiting,
    deadline: Instant,
    open: OpenQuestions,
    /// Questions that were put to the client, each with what takes its form back.
    asked: HashMap<PromptId, CancellationToken>,
    forms: FuturesUnordered<Form>,
    /// Questions that were answered. A process may have to begin before the answer takes effect.
    answered: HashSet<PromptId>,
    /// Why answers of the client were not taken.
    refused: Vec<SessionError>,
    is_over: bool,
    progress: SessionProgress,
}

impl<'a> CallWatch<'a> {
    fn new(sessions: &'a Sessions, session: &'a SessionId, mut waiting: Waiting) -> Self {
        Self {
            sessions,
            session,
            deadline: Instant::now() + waiting.most,
            refused: std::mem::take(&mut waiting.refused),
            waiting,
            open: OpenQuestions::default(),
            asked: HashMap::new(),
            forms: FuturesUnordered::new(),
            answered: HashSet::new(),
            is_over: false,
            progress: SessionProgress::default(),
        }
    }

    async fn take(&mut self, followed: Followed) -> Result<(), SessionError> {
        match followed {
            Followed::Events(events) => {
                for envelope in &events {
                    self.see(envelope);
                }
            }
            Followed::Ended(_) => self.is_over = true,
            Followed::Idle(entry) => {
                self.open.lose_process(self.sessions.clock().now());
                self.answered.extend(entry.answered.iter().cloned());
                if !self.sessions.is_about_to_continue(&entry).await? {
                    self.waiting.known.extend(self.answered.drain());
                    let is_answered = |prompt: &Prompt| entry.answered.contains(&prompt.prompt_id);
                    self.is_over = self.open.prompts().iter().all(is_answered)
                        || DisplayStatus::of(&entry) == DisplayStatus::Paused;
                }
            }
        }
        self.show_forms();
        // A client that is not asked is notified of a new question at once, and so is one whose person declined the
        // last.
        match self.waiting.ask {
            Ask::Never => self.is_over |= self.open.prompts().iter().any(|prompt| self.is_news(prompt)),
            Ask::Elicit(_) | Ask::Return => self.check_declined(),
        }
        Ok(())
    }

    /// It is over if only questions are left that the person has declined.
    fn check_declined(&mut self) {
        let known = |prompt: &Prompt| self.waiting.known.contains(&prompt.prompt_id);
        self.is_over |= self.open.waits_only_for(known);
    }

    fn is_news(&self, prompt: &Prompt) -> bool {
        !self.waiting.known.contains(&prompt.prompt_id) && !self.answered.contains(&prompt.prompt_id)
    }

    fn see(&mut self, envelope: &Envelope) {
        self.progress.see(envelope);
        for closed in self.open.apply(envelope) {
            if let Some(form) = self.asked.get(&closed) {
                form.cancel();
            }
        }
    }

    /// The open questions, if the client is asked by an answer.
    fn questions_to_return(&self) -> Option<Vec<Prompt>> {
        let news: Vec<_> =
            self.open.prompts().iter().filter(|prompt| self.is_news(prompt)).cloned().collect();
        (matches!(self.waiting.ask, Ask::Return) && !news.is_empty()).then_some(news)
    }

    /// Shows a form for each question that has none yet.
    fn show_forms(&mut self) {
        let Ask::Elicit(peer) = &self.waiting.ask else { return };
        for prompt in self.open.prompts() {
            let is_done = self.answered.contains(&prompt.prompt_id);
            if is_done || self.asked.contains_key(&prompt.prompt_id) || self.asked.len() >= MOST_FORMS {
                continue;
            }
            let withdrawn = CancellationToken::new();
            self.asked.insert(prompt.prompt_id.clone(), withdrawn.clone());
            self.forms.push(form(peer.clone(), prompt.clone(), withdrawn));
        }
    }

    async fn answered(&mut self, prompt: PromptId, command: Option<SessionCommand>) {
        // The wait for the person does not count; the session gets its whole time.
        self.deadline = Instant::now() + self.waiting.most;
        if let Some(command) = command {
            let refused = self.sessions.answer_once(self.session, &command).await.err();
            let is_done = refused.as_ref().is_none_or(came_second);
            note(&mut self.refused, refused);
            if is_done {
                self.answered.insert(prompt);
                return;
            }
        }
        self.waiting.known.insert(prompt);
        self.check_declined();
    }

    /// Withdraws the forms that no call waits for any more.
    async fn withdraw_forms(&mut self) {
        self.asked.values().for_each(CancellationToken::cancel);
        let withdrawn = async { while self.forms.next().await.is_some() {} };
        // A client that does not read is not waited for.
        let _ = timeout(WITHDRAWAL, withdrawn).await;
    }

    async fn report(&mut self) {
        let Some((peer, token)) = &self.waiting.progress else { return };
        let Some((progress, message)) = self.progress.news(self.open.prompts().first()) else { return };
        let progress = ProgressNotificationParam::new(token.clone(), progress).with_message(message);
        // It fails only if the client is gone.
        let _ = peer.notify_progress(progress).await;
    }
}

/// Shows a form until it is filled in, taken back, or too old.
fn form(peer: Peer<RoleServer>, prompt: Prompt, withdrawn: CancellationToken) -> Form {
    async move {
        let id = prompt.prompt_id.clone();
        (id, filled(&peer, &prompt, &withdrawn).await)
    }
    .boxed()
}

async fn filled(
    peer: &Peer<RoleServer>,
    prompt: &Prompt,
    withdrawn: &CancellationToken,
) -> Option<SessionCommand> {
    let request = ServerRequest::ElicitRequest(ElicitRequest::new(elicitation(prompt)?));
    let options = PeerRequestOptions::with_timeout(ELICITATION);
    let shown = peer.send_cancellable_request(request, options).await.ok()?;
    let id = shown.id.clone();
    tokio::select! {
        biased;
        answer = shown.await_response() => match answer {
            Ok(ClientResult::ElicitResult(answer)) => command_of(prompt, &answer),
            _ => None,
        },
        () = withdrawn.cancelled() => {
            let reason = Some("the question is no longer open here".to_owned());
            // It fails only if the client is gone.
            let _ = peer.notify_cancelled(CancelledNotificationParam::new(Some(id), reason)).await;
            None
        }
    }
}

/// How far a session is, in few words.
#[derive(Default)]
struct SessionProgress {
    seq: u64,
    reported: u64,
    done: u64,
    running: BTreeSet<NodePath>,
}

impl SessionProgress {
    /// The most nodes that are named.
    const NAMED: usize = 5;

    fn see(&mut self, envelope: &Envelope) {
        self.seq = envelope.seq;
        let Some(task) = &envelope.context.task else { return };
        match &envelope.event {
            Event::TaskStart { .. } => {
                self.running.insert(task.clone());
            }
            Event::TaskComplete { .. } | Event::TaskReused { .. } => {
                self.running.remove(task);
                self.done += 1;
            }
            Event::TaskFailed { .. } | Event::TaskCancelled { .. } | Event::TaskInterrupted { .. } => {
                self.running.remove(task);
            }
            _ => {}
        }
    }

    /// A number that grows and a sentence, if something has happened since the last one.
    #[expect(clippy::cast_precision_loss, reason = "no session has so many events")]
    fn news(&mut self, question: Option<&Prompt>) -> Option<(f64, String)> {
        if self.seq == self.reported {
            return None;
        }
        self.reported = self.seq;
        let named: Vec<_> = self.running.iter().take(Self::NAMED).map(NodePath::as_str).collect();
        let more = self.running.len().saturating_sub(Self::NAMED);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let done = if self.done == 1 {
            "1 node is done".to_owned()
        } else {
            format!("{} nodes are done", self.done)
        };
        let running =
            if named.is_empty() { String::new() } else { format!("; running: {}{more}", named.join(", ")) };
        let asks =
            question.map(|prompt| format!("; waits for a person: {}", prompt.prompt)).unwrap_or_default();
        Some((self.seq as f64, format!("{done}{running}{asks}")))
    }
}
