//! Stores a session's log: facts before anything follows from them, the rest soon after it happens; waits for a store
//! that is full or locked, renews the lease, and reads the commands that others posted.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures::{FutureExt, StreamExt, future::BoxFuture, stream::BoxStream};
use inspan_engine::{Hub, Subscription};
use inspan_protocol::{Envelope, Event, PauseCause};
use tokio::{
    runtime::Handle,
    task,
    time::{Instant, sleep, sleep_until},
};

use crate::error::RunError;
use inspan_flow_core::is_fact;
use inspan_store::{Batch, CommandAnswer, LEASE, Lease, PostedCommand, RunStore, StoreError, Verdict};

/// Shows a person a line that is not an event of the session.
pub(super) type Notice = Arc<dyn Fn(&str) + Send + Sync>;

/// Events that are no facts are stored at most once in this time. The store syncs nothing for them, so what this costs is
/// the processor's time.
const FLUSH_PACE: Duration = Duration::from_millis(5);
/// How many events make a batch.
const BATCH: usize = 256;
/// How long renewing the lease may fail before the session is given up.
const RENEW_LIMIT: Duration = LEASE;
/// How long finished work is held in memory while the store is full or locked.
const HOLD_LIMIT: Duration = Duration::from_secs(60);
/// The same, once the session is to be paused or stopped.
const HOLD_LIMIT_AT_END: Duration = Duration::from_secs(5);
/// The delay between two attempts to write to a full store.
const RETRY_DELAY: Duration = Duration::from_millis(250);

/// A lease. Its writer and each running attempt share it; the last that is dropped releases it, so that no other owner
/// begins while something of this one still runs.
pub(super) struct HeldLease {
    pub(super) store: Arc<dyn RunStore>,
    pub(super) lease: Lease,
    /// Commands up to this number were posted before the lease was taken.
    pub(super) posted_before: u64,
    is_released: AtomicBool,
}

impl HeldLease {
    pub(super) fn new(store: Arc<dyn RunStore>, lease: Lease, posted_before: u64) -> Arc<Self> {
        Arc::new(Self { store, lease, posted_before, is_released: AtomicBool::new(false) })
    }

    pub(super) async fn release(&self) -> Result<(), StoreError> {
        self.store.release(&self.lease).await?;
        self.is_released.store(true, Ordering::Relaxed);
        Ok(())
    }
}

impl Drop for HeldLease {
    fn drop(&mut self) {
        if *self.is_released.get_mut() {
            return;
        }
        let (store, lease) = (self.store.clone(), self.lease.clone());
        // It is asked for here and now, whatever the budget of the task: who opens the session next finds it free.
        let mut release = task::unconstrained(async move { store.release(&lease).await }).boxed();
        if (&mut release).now_or_never().is_none()
            && let Ok(runtime) = Handle::try_current()
        {
            runtime.spawn(release);
        }
    }
}

/// Writes the events of one session to its store.
pub(super) struct EventWriter {
    pub(super) held: Arc<HeldLease>,
    log: Subscription,
    /// Is notified how far the log is stored.
    hub: Hub,
    /// A batch that the store has not acknowledged yet.
    writing: Option<Writing>,
    /// Events that were taken from the hub and not yet given to the store.
    pending: Vec<Arc<Envelope>>,
    answers: Vec<CommandAnswer>,
    has_facts: bool,
    /// When the pending events must be stored at the latest.
    due: Option<Instant>,
    /// When the next events that are no facts may be stored.
    next_flush: Instant,
    posts: BoxStream<'static, ()>,
    check_commands: bool,
    renew_at: Instant,
    renewed: Instant,
    notice: Option<Notice>,
    /// Whether attempts are running, whose ends could not be stored.
    pub(super) in_flight: bool,
    /// Whether a store that could not be written still failed after the wait.
    gave_up: bool,
}

/// A batch on its way into the store.
struct Writing {
    batch: Arc<(Vec<Arc<Envelope>>, Vec<CommandAnswer>)>,
    done: BoxFuture<'static, Result<(), StoreError>>,
}

impl EventWriter {
    pub(super) fn new(held: Arc<HeldLease>, log: Subscription, hub: Hub, notice: Option<Notice>) -> Self {
        hub.expect_store();
        let posts = held.store.posts();
        let now = Instant::now();
        Self {
            log,
            hub,
            held,
            writing: None,
            pending: Vec::new(),
            answers: Vec::new(),
            has_facts: false,
            due: None,
            next_flush: now,
            posts,
            check_commands: true,
            renew_at: now + LEASE / 3,
            renewed: now,
            notice,
            in_flight: false,
            gave_up: false,
        }
    }

    fn push(&mut self, event: Arc<Envelope>) {
        self.pending.push(event);
        self.note(self.pending.len() - 1);
    }

    /// Notes the pending events from this index on.
    fn note(&mut self, from: usize) {
        if let new @ [_, ..] = &self.pending[from..] {
            self.has_facts |= new.iter().any(|event| is_fact(&event.event));
            self.due.get_or_insert(self.next_flush);
        }
    }

    /// Takes the events that the hub has emitted since the last call.
    fn take(&mut self) -> Result<(), RunError> {
        let known = self.pending.len();
        let overflow = self.log.take_all(&mut self.pending);
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
        self.await_batch().await?;
        if self.pending.is_empty() && self.answers.is_empty() {
            return Ok(());
        }
        self.write();
        self.await_batch().await
    }

    /// Holds the pending events in memory and retries until they are stored or the time has passed.
    async fn hold(&mut self, mut error: StoreError) -> Result<(), RunError> {
        let began = Instant::now();
        let mut until = began + HOLD_LIMIT;
        let mut reported = false;
        while self.is_worth_waiting(&error) && Instant::now() < until {
            if !std::mem::replace(&mut reported, true) {
                let left = until.saturating_duration_since(Instant::now()).as_secs();
                self.notify(&format!(
                    "{error}; finished work is held in memory and stored when this ends, within {left} s"
                ));
            }
            sleep(RETRY_DELAY).await;
            self.take()?;
            if self.is_to_end() {
                until = until.min(Instant::now() + HOLD_LIMIT_AT_END);
            }
            match self.try_flush().await {
                Ok(()) => {
                    self.notify(&format!(
                        "the session is stored again, after {} s",
                        began.elapsed().as_secs()
                    ));
                    return Ok(());
                }
                Err(next) => error = next,
            }
        }
        self.gave_up = true;
        Err(error.into())
    }

    /// Whether the store may soon be writable again, and finished or running work would otherwise be lost.
    fn is_worth_waiting(&self, error: &StoreError) -> bool {
        let ends = |event: &Arc<Envelope>| event.event.is_end();
        match error {
            _ if self.gave_up => false,
            StoreError::Locked { .. } | StoreError::Unreachable(_) => true,
            StoreError::Full { .. } => self.in_flight || self.pending.iter().any(ends),
            _ => false,
        }
    }

    /// Whether someone has asked that the session ends or pauses. A session without room pauses itself, and nobody waits
    /// for that.
    fn is_to_end(&self) -> bool {
        let ends = |event: &Event| match event {
            Event::SessionPause { cause, .. } => *cause != Some(PauseCause::Store),
            Event::SessionAbort { .. } => true,
            _ => false,
        };
        self.pending.iter().any(|event| ends(&event.event))
    }

    pub(super) fn notify(&self, line: &str) {
        if let Some(notice) = &self.notice {
            notice(line);
        }
    }

    /// Why no attempt may begin: there is no room to store its end.
    pub(super) fn lacks_room(&self) -> Option<StoreError> {
        self.held.store.room().err()
    }

    /// Called periodically by a run that never waits: starts to write a full batch, and checks for new commands. The
    /// effects of the batch must not begin before a [`EventWriter::flush`]. Waits if the store is slower than the run.
    pub(super) async fn poll(&mut self) -> Result<(), RunError> {
        self.check_commands |= self.posts.next().now_or_never().flatten().is_some();
        self.take()?;
        if self.pending.len() < BATCH {
            return Ok(());
        }
        let started = match self.await_batch().await {
            Ok(()) => {
                self.write();
                // The store has the batch once it was asked; it writes while the run continues.
                self.await_batch().now_or_never().unwrap_or(Ok(()))
            }
            error => error,
        };
        match started {
            Ok(()) => Ok(()),
            Err(error) => self.hold(error).await,
        }
    }

    /// Gives all pending events to the store.
    fn write(&mut self) {
        let held = self.held.clone();
        let batch = Arc::new((std::mem::take(&mut self.pending), std::mem::take(&mut self.answers)));
        let stored = batch.clone();
        let done = async move {
            held.store.append(&held.lease, Batch { events: &stored.0, answers: &stored.1 }).await
        };
        self.writing = Some(Writing { batch, done: done.boxed() });
        self.has_facts = false;
        self.due = None;
        self.next_flush = Instant::now() + FLUSH_PACE;
    }

    /// Waits until the batch is stored. Events that the store refuses are pending again.
    async fn await_batch(&mut self) -> Result<(), StoreError> {
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
                self.pending.splice(..0, events.iter().cloned());
                self.answers.splice(..0, answers.iter().cloned());
                Err(error)
            }
        }
    }

    /// Stores every event so far if there are facts among them, or the others have waited long enough.
    pub(super) async fn settle(&mut self) -> Result<(), RunError> {
        self.take()?;
        let due = self.due.is_some_and(|due| due <= Instant::now());
        let full = self.pending.len() >= BATCH;
        if self.has_facts || due || full || !self.answers.is_empty() || self.writing.is_some() {
            self.flush().await?;
        }
        Ok(())
    }

    /// Waits until there is something to do: an event to store, a command to read, a lease to renew.
    pub(super) async fn wakeup(&mut self) {
        let due = self.due.unwrap_or(self.renew_at).min(self.renew_at);
        tokio::select! {
            biased;
            event = self.log.next() => {
                if let Some(event) = event {
                    self.push(event);
                }
            }
            Some(()) = self.posts.next() => self.check_commands = true,
            () = sleep_until(due) => {}
        }
    }

    /// Renews the lease when it is due. Failures are retried for a while; a store that fenced this process ends the run.
    pub(super) async fn renew(&mut self, hub: &Hub) -> Result<(), RunError> {
        let now = Instant::now();
        if now < self.renew_at {
            return Ok(());
        }
        self.renew_at = now + LEASE / 3;
        match self.held.store.renew(&self.held.lease, hub.clock().wall()).await {
            Ok(()) => {
                self.renewed = now;
                Ok(())
            }
            Err(error @ (StoreError::Fenced { .. } | StoreError::Moved { .. })) => Err(error.into()),
            Err(error) if now.saturating_duration_since(self.renewed) > RENEW_LIMIT => Err(error.into()),
            Err(_) => Ok(()),
        }
    }

    /// All open commands, if there may be new ones.
    pub(super) async fn commands(&mut self) -> Result<Option<Vec<PostedCommand>>, RunError> {
        if !std::mem::take(&mut self.check_commands) {
            return Ok(None);
        }
        Ok(Some(self.held.store.unanswered(&self.held.lease.session).await?))
    }

    /// Lets the next call of [`EventWriter::commands`] read the store.
    pub(super) fn recheck_commands(&mut self) {
        self.check_commands = true;
    }

    /// Answers a command; the answer is stored with the event that the command became.
    pub(super) fn answer(&mut self, number: u64, verdict: Verdict) {
        self.answers.push(CommandAnswer { number, verdict });
    }

    pub(super) async fn release(&mut self) -> Result<(), StoreError> {
        self.held.release().await
    }
}
