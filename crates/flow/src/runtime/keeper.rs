//! Stores a session's log: facts before anything follows from them, the rest in batches; waits for a store that is
//! full or locked, renews the lease, and reads the commands that others posted.

use std::{sync::Arc, time::Duration};

use futures::{FutureExt, StreamExt, future::BoxFuture, stream::BoxStream};
use inspan_engine::{Hub, Subscription};
use inspan_protocol::{Command, Envelope, Event};
use tokio::time::{Instant, sleep, sleep_until};

use crate::error::RunError;
use inspan_flow_core::FACTS;
use inspan_store::{Answered, Batch, LEASE, Lease, PostedCommand, RunStore, StoreError, Verdict};

/// Shows a person a line that is no event of the session.
pub(super) type Notice = Arc<dyn Fn(&str) + Send + Sync>;

/// How long events that are no facts may wait to be kept.
const LINGER: Duration = Duration::from_millis(50);
/// How many of them may.
const MOST: usize = 256;
/// How long a store may fail to renew a lease before the session is given up.
const PATIENCE: Duration = LEASE;
/// How long finished work is held in memory while the store is full or locked.
const HOLD: Duration = Duration::from_secs(60);
/// How long still, once the session is to be paused or stopped.
const HASTE: Duration = Duration::from_secs(5);
/// How long until a store that is full is tried again.
const AGAIN: Duration = Duration::from_millis(250);

pub(super) struct Keeper {
    pub(super) store: Arc<dyn RunStore>,
    lease: Lease,
    log: Subscription,
    /// It is told how far the log is kept.
    hub: Hub,
    /// A batch that was handed to the store and is not known to be kept.
    writing: Option<Writing>,
    /// Events that were taken from the log and not yet handed to the store.
    unkept: Vec<Arc<Envelope>>,
    answers: Vec<Answered>,
    has_facts: bool,
    /// When what is unkept is to be kept at the latest.
    due: Option<Instant>,
    posts: BoxStream<'static, ()>,
    look: bool,
    renew_at: Instant,
    renewed: Instant,
    notice: Option<Notice>,
    /// Whether attempts are at work, whose ends could not be stored.
    pub(super) in_flight: bool,
    /// Whether a store that could not be written was waited for in vain.
    gave_up: bool,
}

/// A batch on its way into the store.
struct Writing {
    batch: Arc<(Vec<Arc<Envelope>>, Vec<Answered>)>,
    done: BoxFuture<'static, Result<(), StoreError>>,
}

impl Keeper {
    pub(super) fn new(
        store: Arc<dyn RunStore>,
        lease: Lease,
        log: Subscription,
        hub: Hub,
        notice: Option<Notice>,
    ) -> Self {
        hub.expect_store();
        let posts = store.posts();
        let now = Instant::now();
        Self {
            log,
            hub,
            store,
            lease,
            writing: None,
            unkept: Vec::new(),
            answers: Vec::new(),
            has_facts: false,
            due: None,
            posts,
            look: true,
            renew_at: now + LEASE / 3,
            renewed: now,
            notice,
            in_flight: false,
            gave_up: false,
        }
    }

    fn push(&mut self, event: Arc<Envelope>) {
        self.unkept.push(event);
        self.note(self.unkept.len() - 1);
    }

    /// Takes note of the unkept events from this place on.
    fn note(&mut self, from: usize) {
        if let new @ [_, ..] = &self.unkept[from..] {
            self.has_facts |= new.iter().any(|event| is_fact(&event.event));
            self.due.get_or_insert_with(|| Instant::now() + LINGER);
        }
    }

    /// Takes what the hub has given out since the last time.
    fn take(&mut self) -> Result<(), RunError> {
        let known = self.unkept.len();
        let overflow = self.log.take_all(&mut self.unkept);
        self.note(known);
        match overflow {
            Some(seq) => Err(RunError::Overflow { seq }),
            None => Ok(()),
        }
    }

    /// Stores every event so far. A store that is full or locked is waited for, so that finished work is not lost.
    pub(super) async fn flush(&mut self) -> Result<(), RunError> {
        self.take()?;
        match self.try_flush().await {
            Ok(()) => Ok(()),
            Err(error) => self.hold(error).await,
        }
    }

    async fn try_flush(&mut self) -> Result<(), StoreError> {
        self.written().await?;
        if self.unkept.is_empty() && self.answers.is_empty() {
            return Ok(());
        }
        self.write();
        self.written().await
    }

    /// Holds what could not be stored, and tries again until it is stored or the time for that is over.
    async fn hold(&mut self, mut error: StoreError) -> Result<(), RunError> {
        let began = Instant::now();
        let mut until = began + HOLD;
        let mut told = false;
        while self.is_worth_waiting(&error) && Instant::now() < until {
            if !std::mem::replace(&mut told, true) {
                let left = until.saturating_duration_since(Instant::now()).as_secs();
                self.tell(&format!(
                    "{error}; finished work is held in memory and stored when this ends, within {left} s"
                ));
            }
            sleep(AGAIN).await;
            self.take()?;
            if self.is_to_end() {
                until = until.min(Instant::now() + HASTE);
            }
            match self.try_flush().await {
                Ok(()) => {
                    self.tell(&format!("the session is stored again, after {} s", began.elapsed().as_secs()));
                    return Ok(());
                }
                Err(next) => error = next,
            }
        }
        self.gave_up = true;
        Err(error.into())
    }

    /// Whether the store may soon be writable again, and something is lost that has finished or is at work if not.
    fn is_worth_waiting(&self, error: &StoreError) -> bool {
        let ends = |event: &Arc<Envelope>| event.event.is_end();
        match error {
            _ if self.gave_up => false,
            StoreError::Locked { .. } => true,
            StoreError::Full { .. } => self.in_flight || self.unkept.iter().any(ends),
            _ => false,
        }
    }

    fn is_to_end(&self) -> bool {
        let ends = |event: &Event| matches!(event, Event::SessionPause { .. } | Event::SessionAbort { .. });
        self.unkept.iter().any(|event| ends(&event.event))
    }

    fn tell(&self, line: &str) {
        if let Some(notice) = &self.notice {
            notice(line);
        }
    }

    /// Why no attempt may begin: there is no room to store its end.
    pub(super) fn lacks_room(&self) -> Option<StoreError> {
        self.store.room().err()
    }

    /// What a run that never waits asks for now and then: hands all that is unkept to the store, without waiting, if it
    /// is enough for a batch, and looks whether a command came. What follows from the batch must not begin before a
    /// [`Keeper::flush`]. A store that is slower than the run is waited for.
    pub(super) async fn keep_up(&mut self) -> Result<(), RunError> {
        self.look |= self.posts.next().now_or_never().flatten().is_some();
        self.take()?;
        if self.unkept.len() < MOST {
            return Ok(());
        }
        let handed = match self.written().await {
            Ok(()) => {
                self.write();
                // The store has the batch once it was asked; it works on it while the run goes on.
                self.written().now_or_never().unwrap_or(Ok(()))
            }
            error => error,
        };
        match handed {
            Ok(()) => Ok(()),
            Err(error) => self.hold(error).await,
        }
    }

    /// Hands all that is unkept to the store.
    fn write(&mut self) {
        let (store, lease) = (self.store.clone(), self.lease.clone());
        let batch = Arc::new((std::mem::take(&mut self.unkept), std::mem::take(&mut self.answers)));
        let handed = batch.clone();
        let done = async move { store.append(&lease, Batch { events: &handed.0, answers: &handed.1 }).await };
        self.writing = Some(Writing { batch, done: done.boxed() });
        self.has_facts = false;
        self.due = None;
    }

    /// Waits until what was handed to the store is kept. What it refuses is unkept again.
    async fn written(&mut self) -> Result<(), StoreError> {
        let Some(writing) = &mut self.writing else { return Ok(()) };
        let done = (&mut writing.done).await;
        let Some(Writing { batch, .. }) = self.writing.take() else { return Ok(()) };
        let (events, answers) = &*batch;
        match done {
            Ok(()) => {
                if let Some(last) = events.last() {
                    self.hub.mark_stored(last.seq);
                }
                Ok(())
            }
            Err(error) => {
                self.unkept.splice(..0, events.iter().cloned());
                self.answers.splice(..0, answers.iter().cloned());
                Err(error)
            }
        }
    }

    /// Keeps every event so far if there are facts among them, or the rest has waited long enough.
    pub(super) async fn settle(&mut self) -> Result<(), RunError> {
        self.take()?;
        let due = self.due.is_some_and(|due| due <= Instant::now());
        let full = self.unkept.len() >= MOST;
        if self.has_facts || due || full || !self.answers.is_empty() || self.writing.is_some() {
            self.flush().await?;
        }
        Ok(())
    }

    /// Waits until there is something to do here: an event to keep, a command to look for, a lease to renew.
    pub(super) async fn wakeup(&mut self) {
        let due = self.due.unwrap_or(self.renew_at).min(self.renew_at);
        tokio::select! {
            biased;
            event = self.log.next() => {
                if let Some(event) = event {
                    self.push(event);
                }
            }
            Some(()) = self.posts.next() => self.look = true,
            () = sleep_until(due) => {}
        }
    }

    /// Renews the lease when it is time. A store that cannot for a while is told again; one that fenced us ends
    /// the run.
    pub(super) async fn renew(&mut self, hub: &Hub) -> Result<(), RunError> {
        let now = Instant::now();
        if now < self.renew_at {
            return Ok(());
        }
        self.renew_at = now + LEASE / 3;
        match self.store.renew(&self.lease, hub.clock().wall()).await {
            Ok(()) => {
                self.renewed = now;
                Ok(())
            }
            Err(error @ (StoreError::Fenced { .. } | StoreError::Moved { .. })) => Err(error.into()),
            Err(error) if now.saturating_duration_since(self.renewed) > PATIENCE => Err(error.into()),
            Err(_) => Ok(()),
        }
    }

    /// All commands that are open, if there may be some that were not seen yet.
    pub(super) async fn commands(&mut self) -> Result<Option<Vec<PostedCommand>>, RunError> {
        if !std::mem::take(&mut self.look) {
            return Ok(None);
        }
        Ok(Some(self.store.unanswered(&self.lease.session).await?))
    }

    /// Lets the next look read the commands again.
    pub(super) fn look_again(&mut self) {
        self.look = true;
    }

    /// Carries a command out and lays its answer beside the event that it became.
    pub(super) fn carry_out(&mut self, number: u64, command: Command, hub: &Hub) {
        let verdict = match hub.command(command) {
            Ok(()) => Verdict::Accepted,
            Err(rejection) => Verdict::Refused(rejection.to_string()),
        };
        self.answers.push(Answered { number, verdict });
    }

    /// Answers a command that has its effect already.
    pub(super) fn accept(&mut self, number: u64) {
        self.answers.push(Answered { number, verdict: Verdict::Accepted });
    }

    pub(super) async fn release(&mut self) -> Result<(), StoreError> {
        self.store.release(&self.lease).await
    }
}

fn is_fact(event: &Event) -> bool {
    static TABLE: std::sync::LazyLock<Vec<bool>> = std::sync::LazyLock::new(|| {
        Event::NAMES.iter().map(|name| FACTS.contains(name)).chain([false]).collect()
    });
    TABLE.get(event.kind()).copied().unwrap_or_default()
}
