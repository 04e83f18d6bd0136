//! One chat, from what is said to what comes of it: the runs it takes, what is tried again, and the promise that it
//! reaches its caller whole, as far as it came, or as `ABORTED`. Turns are left to the engine's runs; who has which
//! message, to `queue`.

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
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;

use super::{
    Open,
    desk::Part,
    hooks::{HookedProvider, call_hook},
    input::message,
    options::{Chat, Retry},
    queue::{End, Input, Output},
    result::{AgentResult, ChatError},
    transcript::retold,
};
use crate::run::{AgentRun, Left, Mail, RunEnd};

/// What a chat comes to.
pub(super) type ChatEnd = Result<AgentResult, ChatError>;

/// A chat in progress. Dropped before its end, the session is free again and no message is lost.
pub(super) struct Driving {
    open: Arc<Open>,
    token: CancellationToken,
    provider: Arc<HookedProvider>,
    left: Left,
    began: Timestamp,
    ended: bool,
}

/// What a chat comes to, and who else is to be told.
type Settled = Box<(ChatEnd, Vec<oneshot::Sender<ChatEnd>>)>;

/// How the runs of a chat ended.
enum Runs {
    Whole(Box<RunEnd>),
    Aborted,
    Failed(AgentError),
}

impl Open {
    /// Says something, and waits for what comes of it.
    pub(super) async fn chat(self: Arc<Self>, chat: Chat) -> ChatEnd {
        let cancelled = |token: &CancellationToken| token.is_cancelled();
        let own = chat.cancel.clone();
        if cancelled(&self.options.cancel)
            || own.as_ref().is_some_and(cancelled)
            || cancelled(&self.hub.aborted())
        {
            return Err(self.aborted().into());
        }
        match self.take_part(&chat)? {
            Part::Joins(end) => {
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
            Part::Drives(driving, waiting) => {
                let (session, token) = (self.options.cancel.clone(), driving.token.clone());
                linked(session, own, token, driving.drive(chat, waiting)).await
            }
        }
    }

    pub(super) fn aborted(&self) -> AgentError {
        self.error(ErrorCode::Aborted, "the chat was aborted")
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

impl Driving {
    pub(super) fn new(open: Arc<Open>, token: CancellationToken) -> Self {
        let hooks = open.options.hooks.clone();
        let provider = HookedProvider::new(
            Arc::clone(&open.provider),
            Arc::clone(&open.transcript),
            hooks,
            open.hub.clone(),
        );
        let began = open.hub.clock().now();
        let (provider, left) = (Arc::new(provider), Left::default());
        Self { open, token, provider, left, began, ended: false }
    }

    async fn drive(mut self, chat: Chat, waiting: Vec<Mail>) -> ChatEnd {
        self.open.transcript.lock().begin();
        let said = said(&waiting, &chat);
        let input = self.input(waiting, &chat)?;
        let (end, waiters) = *self.runs(input, &said, &chat).boxed().await;
        let end = self.hooked(end).await;
        for waiter in waiters {
            // Who no longer waits need not be told.
            let _ = waiter.send(end.clone());
        }
        end
    }

    /// What the provider is given for what is said; of what cannot be said, the messages of the queue wait on.
    fn input(&self, waiting: Vec<Mail>, chat: &Chat) -> Result<Value, AgentError> {
        match self.composed(&waiting, chat) {
            Ok((input, said)) => {
                self.provider.set_next(said, waiting);
                Ok(input)
            }
            Err(error) => {
                self.open.desk.lock().queue.apply(Input::Returned(waiting));
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
        // An agent that keeps no conversation, or another one, is told what was said.
        let text = match &session {
            None if !before.is_empty() => format!("{}\n\n{said}", retold(&before)),
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
    async fn runs(&mut self, mut input: Value, said: &str, chat: &Chat) -> Settled {
        let options = &self.open.options;
        let deadline = options.timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let retry = options.retry;
        let mut attempt = 1;
        loop {
            let end = self.run(input.clone(), deadline).await;
            self.take_back();
            if let Err(error) = &end
                && let Some(again) = self.told_again(error, said, chat)
            {
                input = match again {
                    Ok(input) => input,
                    Err(error) => return self.fail(error),
                };
                continue;
            }
            let runs = match end {
                _ if self.token.is_cancelled() => Runs::Aborted,
                Ok(end) if end.facts.stop_reason == StopReason::Aborted => Runs::Aborted,
                Ok(end) => {
                    self.open.elsewhere.store(false, Ordering::Relaxed);
                    Runs::Whole(Box::new(end))
                }
                Err(error) => {
                    let now = self.open.hub.clock().now();
                    let wait = wait_before(retry, attempt, &error, now)
                        .filter(|wait| deadline.is_none_or(|deadline| Instant::now() + *wait < deadline));
                    match wait {
                        None => Runs::Failed(error),
                        Some(wait) if self.token.run_until_cancelled(sleep(wait)).await.is_none() => {
                            Runs::Aborted
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
            let late = match self.settle(runs) {
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

    /// The input that tells the whole conversation to the provider, if it does not know the one that began elsewhere.
    fn told_again(&self, error: &AgentError, said: &str, chat: &Chat) -> Option<Result<Value, AgentError>> {
        let open = &self.open;
        if !open.elsewhere.swap(false, Ordering::Relaxed) || !error.is(ErrorKind::SessionNotFound) {
            return None;
        }
        let text = {
            let mut transcript = open.transcript.lock();
            transcript.forget_session();
            if transcript.before().is_empty() {
                said.to_owned()
            } else {
                format!("{}\n\n{said}", retold(transcript.before()))
            }
        };
        open.retells.store(true, Ordering::Relaxed);
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
            .env(options.env.clone())
            .permissions(options.permissions)
            .supervisor(options.supervisor.clone())
            .tools(options.host_tools.clone())
            .cancel(self.token.clone())
            .first_turn(turns.max(1))
            .left(Arc::clone(&self.left));
        if let Some(cwd) = &options.cwd {
            run = run.cwd(cwd);
        }
        if let Some(deadline) = deadline {
            run = run.deadline(deadline.saturating_duration_since(Instant::now()));
        }
        run.execute().await
    }

    /// Puts back what a run was given and did not deliver.
    fn take_back(&self) {
        let mut returned = self.provider.take_undelivered();
        returned.append(&mut self.left.lock());
        self.open.desk.lock().queue.apply(Input::Returned(returned));
    }

    /// The chat is over, and from here on the session is free. But if it ended well and messages came when no run
    /// took them any more, it goes on with these.
    fn settle(&mut self, runs: Runs) -> Result<Vec<Mail>, Settled> {
        let open = Arc::clone(&self.open);
        let mut desk = open.desk.lock();
        let end = match &runs {
            Runs::Whole(end) if end.facts.stop_reason == StopReason::Complete => End::Well,
            _ => End::Short,
        };
        if let Output::Take(late) = desk.queue.apply(Input::Ended(end)) {
            return Ok(late);
        }
        self.ended = true;
        let end = match runs {
            Runs::Whole(run) => Ok(self.result(Some(*run), StopReason::Complete)),
            Runs::Aborted => Err(self.result(None, StopReason::Aborted).before(open.aborted())),
            Runs::Failed(error) => {
                let error = error.from_provider(&open.provider_type);
                Err(self.result(None, StopReason::Error).before(error))
            }
        };
        Err(Box::new((end, std::mem::take(&mut desk.waiters))))
    }

    fn fail(&mut self, error: AgentError) -> Settled {
        match self.settle(Runs::Failed(error.clone())) {
            Err(settled) => settled,
            // What failed never goes on.
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
        let called = call_hook(&self.open.hub, "atEnd", || hooks.at_end(end.as_ref())).await;
        match (called, end) {
            (Ok(()), end) => end,
            (Err(failed), Ok(result)) => Err(result.before(failed)),
            // An abort always arrives as one, and so does the first of two failures.
            (Err(_), Err(error)) => Err(error),
        }
    }
}

impl Drop for Driving {
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        self.take_back();
        let mut desk = self.open.desk.lock();
        desk.queue.apply(Input::Ended(End::Short));
        let waiters = std::mem::take(&mut desk.waiters);
        drop(desk);
        // They hear of it by their senders' end.
        drop(waiters);
    }
}

/// All that is said by a chat: the messages that waited for it, then its own.
fn said(waiting: &[Mail], chat: &Chat) -> String {
    let texts = waiting.iter().map(|mail| mail.content.as_str()).chain([chat.text.as_str()]);
    texts.filter(|text| !text.is_empty()).collect::<Vec<_>>().join("\n\n")
}

/// How long to wait before the next attempt, if there may be one.
fn wait_before(retry: Retry, attempt: u32, error: &AgentError, now: Timestamp) -> Option<Duration> {
    if !error.is_retryable() || attempt >= retry.attempts {
        return None;
    }
    let backoff = retry.backoff.saturating_mul(2_u32.saturating_pow(attempt - 1)).min(retry.longest);
    let asked = error.retry_after.or_else(|| error.resets_at.map(|moment| moment.since(now)));
    Some(asked.unwrap_or(backoff)).filter(|wait| *wait <= retry.longest)
}
