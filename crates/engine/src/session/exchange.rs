//! One chat: the runs it takes, what is tried again, and the guarantee that its caller gets the whole result, or an
//! error with what was done before it.

use std::{
    future::Future,
    pin::pin,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use futures::FutureExt;
use inspan_protocol::{AgentError, ErrorCode, ErrorKind, Message, StopReason, Timestamp};
use serde_json::Value;
use tokio::{
    sync::oneshot,
    time::{Instant, sleep, sleep_until},
};
use tokio_util::sync::CancellationToken;

use super::{
    SessionCore,
    hooks::{HookedProvider, call_hook},
    inbox::Role,
    input::message,
    options::{Chat, RetryOptions},
    queue::{QueueEnd, QueueInput, QueueOutput},
    result::{AgentResult, ChatError},
    transcript::retell,
};
use crate::run::{AgentRun, Mail, RunEnd, Undelivered};

/// How long the hook at the end may take once the chat was aborted or its time is up.
const LAST_HOOK: Duration = Duration::from_secs(10);

/// The end of a chat.
pub(super) type ChatEnd = Result<AgentResult, ChatError>;

/// A chat in progress. If it is dropped before its end, the session is idle again and no message is lost.
pub(super) struct ActiveChat {
    open: Arc<SessionCore>,
    token: CancellationToken,
    provider: Arc<HookedProvider>,
    undelivered: Undelivered,
    began: Timestamp,
    /// When its time is up.
    deadline: Option<Instant>,
    ended: bool,
}

/// The end of a chat, and the chats that joined it.
type SettledChat = Box<(ChatEnd, Vec<oneshot::Sender<ChatEnd>>)>;

/// How the runs of a chat ended.
enum ChatOutcome {
    Finished(Box<RunEnd>),
    Aborted,
    Failed(AgentError),
}

impl SessionCore {
    /// Sends a prompt and waits for the end of the chat.
    pub(super) async fn chat(self: Arc<Self>, chat: Chat) -> ChatEnd {
        let cancelled = |token: &CancellationToken| token.is_cancelled();
        let own = chat.cancel.clone();
        if cancelled(&self.options.cancel)
            || own.as_ref().is_some_and(cancelled)
            || cancelled(&self.hub.aborted())
        {
            return Err(self.aborted().into());
        }
        match self.join_or_lead(&chat)? {
            Role::Joins(end) => {
                let own = async {
                    match &own {
                        Some(token) => token.cancelled().await,
                        None => std::future::pending().await,
                    }
                };
                tokio::select! {
                    end = end => end.unwrap_or_else(|_| Err(self.aborted().into())),
                    () = own => Err(self.aborted().into()),
                }
            }
            Role::Leads(driving, waiting) => {
                let (session, token) = (self.options.cancel.clone(), driving.token.clone());
                linked(session, own, token, driving.drive(chat, waiting)).await
            }
        }
    }

    pub(super) fn aborted(&self) -> AgentError {
        self.error(ErrorCode::Aborted, "it was cancelled before it had answered")
    }

    pub(super) fn invalid(&self, why: &str) -> AgentError {
        self.error(ErrorCode::ConfigInvalid, why)
    }

    fn error(&self, code: ErrorCode, message: &str) -> AgentError {
        AgentError::new(code, message).from_provider(&self.provider_type)
    }
}

/// Does the work, and cancels it by its own token as soon as one of the others is cancelled.
async fn linked<T>(
    session: CancellationToken,
    chat: Option<CancellationToken>,
    token: CancellationToken,
    work: impl Future<Output = T>,
) -> T {
    let mut work = pin!(work);
    let chat = async {
        match chat {
            Some(chat) => chat.cancelled().await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        end = &mut work => return end,
        () = session.cancelled() => {}
        () = chat => {}
    }
    token.cancel();
    work.await
}

impl ActiveChat {
    pub(super) fn new(open: Arc<SessionCore>, token: CancellationToken) -> Self {
        let hooks = open.options.hooks.clone();
        let provider = HookedProvider::new(
            Arc::clone(&open.provider),
            Arc::clone(&open.transcript),
            hooks,
            open.hub.clone(),
        );
        let began = open.hub.clock().now();
        let (provider, undelivered) = (Arc::new(provider), Undelivered::default());
        let deadline = open.options.timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        Self { open, token, provider, undelivered, began, deadline, ended: false }
    }

    async fn drive(mut self, chat: Chat, waiting: Vec<Mail>) -> ChatEnd {
        self.open.transcript.lock().begin();
        let said = said(&waiting, &chat);
        let input = self.input(waiting, &chat)?;
        let (end, waiters) = *self.runs(input, &said, &chat).boxed().await;
        let end = self.hooked(end).await;
        for waiter in waiters {
            // A chat that was dropped no longer waits.
            let _ = waiter.send(end.clone());
        }
        end
    }

    /// The provider's input for the prompt and the queued messages. On an error the messages stay queued.
    fn input(&self, waiting: Vec<Mail>, chat: &Chat) -> Result<Value, AgentError> {
        match self.composed(&waiting, chat) {
            Ok((input, said)) => {
                self.provider.set_next(said, waiting);
                Ok(input)
            }
            Err(error) => {
                self.open.inbox.lock().queue.apply(QueueInput::Returned(waiting));
                Err(error)
            }
        }
    }

    fn composed(&self, waiting: &[Mail], chat: &Chat) -> Result<(Value, Message), AgentError> {
        let open = &self.open;
        let said = said(waiting, chat);
        if said.trim().is_empty() && chat.attachments.is_empty() {
            return Err(open.invalid("the prompt is empty"));
        }
        let (session, before) = {
            let transcript = open.transcript.lock();
            (transcript.session().cloned(), transcript.messages())
        };
        // Without a conversation of the vendor, the prompt repeats what was said before.
        let text = match &session {
            None if !before.is_empty() => format!("{}\n\n{said}", retell(&before)),
            _ => said.clone(),
        };
        let mut input = open.form.say(open.base.clone(), &text, &chat.attachments)?;
        if let Some(session) = &session {
            input = open.provider.resume(input, session, &text)?;
            if !chat.attachments.is_empty() {
                input = open.form.say(input, &text, &chat.attachments)?;
            }
        }
        open.provider.input_facts(&input)?;
        Ok((input, message(&said, &chat.attachments)))
    }

    /// One run after the other, as long as something fails that may be tried again, or messages wait that came when
    /// a run took no more.
    async fn runs(&mut self, mut input: Value, said: &str, chat: &Chat) -> SettledChat {
        let (deadline, retry) = (self.deadline, self.open.options.retry);
        let mut attempt = 1;
        loop {
            let end = self.run(input.clone(), deadline).await;
            self.take_back();
            if let Err(error) = &end
                && let Some(again) = self.retell_input(error, said, chat)
            {
                input = match again {
                    Ok(input) => input,
                    Err(error) => return self.fail(error),
                };
                continue;
            }
            let outcome = match end {
                _ if self.token.is_cancelled() => ChatOutcome::Aborted,
                Ok(end) if end.facts.stop_reason == StopReason::Aborted => ChatOutcome::Aborted,
                Ok(end) => {
                    self.open.restored.store(false, Ordering::Relaxed);
                    ChatOutcome::Finished(Box::new(end))
                }
                Err(error) => {
                    let now = self.open.hub.clock().now();
                    let wait = wait_before(retry, attempt, &error, now)
                        .filter(|wait| deadline.is_none_or(|deadline| Instant::now() + *wait < deadline));
                    match wait {
                        None => ChatOutcome::Failed(error),
                        Some(wait) if self.token.run_until_cancelled(sleep(wait)).await.is_none() => {
                            ChatOutcome::Aborted
                        }
                        Some(_) => {
                            attempt += 1;
                            // The turn that failed, which need not be the first.
                            input = self.provider.last_input().unwrap_or(input);
                            continue;
                        }
                    }
                }
            };
            let late = match self.settle(outcome) {
                Ok(late) => late,
                Err(settled) => return settled,
            };
            attempt = 1;
            input = match self.input(late, &Chat::default()) {
                Ok(input) => input,
                Err(error) => return self.fail(error),
            };
        }
    }

    /// The input that repeats the whole conversation, if the provider does not know a restored one.
    fn retell_input(&self, error: &AgentError, said: &str, chat: &Chat) -> Option<Result<Value, AgentError>> {
        let open = &self.open;
        if !open.restored.swap(false, Ordering::Relaxed) || !error.is(ErrorKind::SessionNotFound) {
            return None;
        }
        let text = {
            let mut transcript = open.transcript.lock();
            transcript.forget_session();
            if transcript.before().is_empty() {
                said.to_owned()
            } else {
                format!("{}\n\n{said}", retell(transcript.before()))
            }
        };
        open.retelling.store(true, Ordering::Relaxed);
        Some(open.form.say(open.base.clone(), &text, &chat.attachments))
    }

    async fn run(&self, input: Value, deadline: Option<Instant>) -> Result<RunEnd, AgentError> {
        let open = &self.open;
        let options = &open.options;
        let run_id = open.hub.ids().run_id();
        open.runs.lock().insert(run_id.clone());
        let turns = open.transcript.lock().turns() + u32::from(self.provider.has_next());
        let provider: Arc<HookedProvider> = Arc::clone(&self.provider);
        let mut run = AgentRun::new(open.hub.clone(), open.name.clone(), provider, input)
            .run_id(run_id)
            .host(options.host.clone())
            .cancel(self.token.clone())
            .first_turn(turns.max(1))
            .undelivered(Arc::clone(&self.undelivered));
        if let Some(deadline) = deadline {
            run = run.deadline(deadline.saturating_duration_since(Instant::now()));
        }
        run.execute().await
    }

    /// Puts back into the queue what a run was given and did not deliver.
    fn take_back(&self) {
        let mut returned = self.provider.take_undelivered();
        returned.append(&mut self.undelivered.lock());
        self.open.inbox.lock().queue.apply(QueueInput::Returned(returned));
    }

    /// Ends the chat; from here on the session is idle. But if the chat finished and messages came when no run took
    /// them any more, the chat continues with these.
    fn settle(&mut self, outcome: ChatOutcome) -> Result<Vec<Mail>, SettledChat> {
        let open = Arc::clone(&self.open);
        let mut inbox = open.inbox.lock();
        let end = match &outcome {
            ChatOutcome::Finished(end) if end.facts.stop_reason == StopReason::Complete => QueueEnd::Finished,
            _ => QueueEnd::CutShort,
        };
        if let QueueOutput::Take(late) = inbox.queue.apply(QueueInput::Ended(end)) {
            return Ok(late);
        }
        self.ended = true;
        let end = match outcome {
            ChatOutcome::Finished(run) => Ok(self.result(Some(*run), StopReason::Complete)),
            ChatOutcome::Aborted => Err(self.result(None, StopReason::Aborted).before(open.aborted())),
            ChatOutcome::Failed(error) => {
                let error = error.from_provider(&open.provider_type);
                Err(self.result(None, StopReason::Error).before(error))
            }
        };
        Err(Box::new((end, std::mem::take(&mut inbox.waiters))))
    }

    fn fail(&mut self, error: AgentError) -> SettledChat {
        match self.settle(ChatOutcome::Failed(error.clone())) {
            Err(settled) => settled,
            // A chat that failed never continues.
            Ok(_) => Box::new((Err(error.into()), Vec::new())),
        }
    }

    /// What was done; `stop_reason` is why, if no run says it.
    fn result(&self, end: Option<RunEnd>, stop_reason: StopReason) -> AgentResult {
        let open = &self.open;
        let transcript = open.transcript.lock();
        let named = end.as_ref().and_then(|end| end.output.get("model")?.as_str().map(str::to_owned));
        if named.is_some() {
            open.model.lock().clone_from(&named);
        }
        let (text, structured_output, stop_reason) = match end {
            Some(end) => (end.facts.text, end.facts.structured_output, end.facts.stop_reason),
            None => (transcript.turn_text(), None, stop_reason),
        };
        AgentResult {
            text,
            structured_output,
            messages: transcript.newest().to_vec(),
            tool_calls: transcript.calls().to_vec(),
            usage: transcript.usage(),
            cost_usd: transcript.cost_usd(),
            provider: open.provider_type.clone(),
            model: named.or_else(|| open.known_model()),
            session_id: transcript.session().cloned(),
            stop_reason,
            duration_ms: open.hub.clock().now().since(self.began).as_millis().try_into().unwrap_or(u64::MAX),
        }
    }

    /// The end after the hook has seen it.
    async fn hooked(&self, end: ChatEnd) -> ChatEnd {
        let Some(hooks) = &self.open.options.hooks else { return end };
        let called = tokio::select! {
            biased;
            called = call_hook(&self.open.hub, "atEnd", || hooks.at_end(end.as_ref())) => called,
            error = self.last_hook_is_late() => Err(error),
        };
        match (called, end) {
            (Ok(()), end) => end,
            (Err(failed), Ok(result)) => Err(result.before(failed)),
            // An abort always arrives as one, and so does the first of two failures.
            (Err(_), Err(error)) => Err(error),
        }
    }

    /// Waits until the hook at the end may take no longer: the chat is aborted, or its time is up. If that came before,
    /// the hook has a while for what it must do then.
    async fn last_hook_is_late(&self) -> AgentError {
        if self.token.is_cancelled() || self.deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            sleep(LAST_HOOK).await;
            return self.open.error(ErrorCode::HookFailed, "the hook `atEnd` did not end");
        }
        let time_is_up = async {
            match self.deadline {
                Some(deadline) => sleep_until(deadline).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = self.token.cancelled() => self.open.aborted(),
            () = time_is_up => self.open.error(ErrorCode::Timeout, "the hook `atEnd` did not end in time"),
        }
    }
}

impl Drop for ActiveChat {
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        self.take_back();
        let mut inbox = self.open.inbox.lock();
        inbox.queue.apply(QueueInput::Ended(QueueEnd::CutShort));
        let waiters = std::mem::take(&mut inbox.waiters);
        drop(inbox);
        // The chats that joined see the end of their channels.
        drop(waiters);
    }
}

/// All messages of a chat: those that waited for it, then its own.
fn said(waiting: &[Mail], chat: &Chat) -> String {
    let texts = waiting.iter().map(|mail| mail.content.as_str()).chain([chat.text.as_str()]);
    texts.filter(|text| !text.is_empty()).collect::<Vec<_>>().join("\n\n")
}

/// How long to wait before the next attempt, if there may be one.
fn wait_before(retry: RetryOptions, attempt: u32, error: &AgentError, now: Timestamp) -> Option<Duration> {
    if !error.is_retryable() || attempt >= retry.attempts {
        return None;
    }
    let backoff = retry.backoff.saturating_mul(2_u32.saturating_pow(attempt - 1)).min(retry.longest);
    let asked = error.retry_after.or_else(|| error.resets_at.map(|moment| moment.since(now).max(backoff)));
    Some(asked.unwrap_or(backoff)).filter(|wait| *wait <= retry.longest)
}
