//! The hub: gives each event its place in the session's order, its identity, time and context, and delivers
//! it. Commands stand in `hub/session`, prompts in `hub/prompt`, queues in `hub/subscription`.
//!
//! One lock, the line, is held from the giving of a `seq` to the end of the delivery: that makes the order of
//! delivery to every subscriber the order of `seq`. Observers are called under it; an event that an observer
//! emits gets its `seq` at once and is delivered right after the present one. An observer must therefore not
//! wait for another thread that emits, and must not answer every event with one more.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
};

use inspan_protocol::{
    ENVELOPE_VERSION, Envelope, Event, EventContext, EventId, NodePath, RunId, SessionId, Timestamp,
};
use tokio_util::sync::CancellationToken;

use crate::clock::{Clock, EventIds, IdSource};

mod filter;
mod kept;
mod prompt;
mod session;
mod subscription;
mod table;

pub use filter::{Filter, InvalidFilter};
pub use prompt::{Asked, Prompt, Reply, Unanswered, check_reply};
pub use subscription::{BoundedSubscription, DEFAULT_SUBSCRIPTION_LIMIT, Lagged, Observer, Subscription};

pub use table::Callback;

pub(crate) use filter::run_of;
use kept::Kept;
use session::Session;
use subscription::{Queue, Registration, WhenFull};
use table::{Sink, Subscribers, Table};

/// A cheap handle to a session's hub. Clones share everything but the context.
#[derive(Clone)]
pub struct Hub {
    shared: Arc<Shared>,
    context: Arc<EventContext>,
}

pub(crate) struct Shared {
    session_id: SessionId,
    clock: Arc<dyn Clock>,
    ids: Arc<dyn IdSource>,
    event_ids: Option<EventIds>,
    subscribers: Subscribers,
    line: Mutex<Table>,
    /// The thread that holds the line, by the address of its mark; 0 if none.
    holder: AtomicUsize,
    /// The last `seq` given. Written only by the holder of the line.
    seq: AtomicU64,
    /// Events that observers emitted during the present delivery.
    pending: Mutex<VecDeque<Arc<Envelope>>>,
    has_pending: AtomicBool,
    session: Mutex<Session>,
    abort: CancellationToken,
    /// How far the events are kept.
    kept: Kept,
}

/// A panic under one of the engine's locks leaves nothing half done, so a poisoned lock is as good as new.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An address that no other live thread has.
fn thread_mark() -> usize {
    thread_local!(static MARK: u8 = const { 0 });
    MARK.with(|mark| std::ptr::from_ref(mark) as usize)
}

impl Hub {
    /// The hub of a new session.
    pub fn new(session_id: SessionId, clock: Arc<dyn Clock>, ids: Arc<dyn IdSource>) -> Self {
        Self::continuing(session_id, clock, ids, 0)
    }

    /// The hub of a session that continues after the event `last_seq`.
    pub fn continuing(
        session_id: SessionId,
        clock: Arc<dyn Clock>,
        ids: Arc<dyn IdSource>,
        last_seq: u64,
    ) -> Self {
        let context = Arc::new(EventContext::session(session_id.clone()));
        let shared = Shared {
            session_id,
            clock,
            event_ids: ids.event_ids(),
            ids,
            subscribers: Subscribers::default(),
            line: Mutex::default(),
            holder: AtomicUsize::new(0),
            seq: AtomicU64::new(last_seq),
            pending: Mutex::default(),
            has_pending: AtomicBool::new(false),
            session: Mutex::default(),
            abort: CancellationToken::new(),
            kept: Kept::default(),
        };
        Self { shared: Arc::new(shared), context }
    }

    /// Emits an event in this handle's context. Never fails and never waits for a subscriber's reader; when
    /// it returns, every observer has seen the event and every queue holds it (unless the caller is itself
    /// an observer: then right after the present event).
    ///
    /// A `session:message` is sent as [`Hub::send`] or [`Hub::send_to_run`] would send it; if it cannot be, the
    /// envelope that is returned holds the `session:rejected` that stands in its place.
    pub fn emit(&self, event: Event) -> Arc<Envelope> {
        if let Event::SessionMessage { content, run_id, mode, .. } = event {
            return self.emit_message(content, run_id, mode);
        }
        self.emit_as_is(event)
    }

    /// Emits an event and does nothing else.
    #[inline]
    fn emit_as_is(&self, event: Event) -> Arc<Envelope> {
        let Some(mut line) = self.line() else { return self.postpone(event) };
        let envelope = self.place().envelope(event);
        self.shared.deliver(&mut line.table, &envelope);
        envelope
    }

    /// Decides under the line whether to emit: what `decide` changes takes effect exactly at the event's
    /// place in the order.
    pub(crate) fn emit_when<E>(&self, decide: impl FnOnce() -> Result<Event, E>) -> Result<Arc<Envelope>, E> {
        let Some(mut line) = self.line() else { return Ok(self.postpone(decide()?)) };
        let event = decide()?;
        let envelope = self.place().envelope(event);
        self.shared.deliver(&mut line.table, &envelope);
        Ok(envelope)
    }

    /// Waits for the line and takes it; none if this thread holds it already.
    #[inline]
    fn line(&self) -> Option<Line<'_>> {
        let shared = &*self.shared;
        let mark = thread_mark();
        if shared.holder.load(Ordering::Relaxed) == mark {
            return None;
        }
        let table = lock(&shared.line);
        shared.holder.store(mark, Ordering::Relaxed);
        Some(Line { _release: Release(&shared.holder), table })
    }

    /// An event that an observer emits: it gets its place now and is delivered after the present one.
    #[cold]
    fn postpone(&self, event: Event) -> Arc<Envelope> {
        let envelope = self.place().envelope(event);
        lock(&self.shared.pending).push_back(Arc::clone(&envelope));
        self.shared.has_pending.store(true, Ordering::Relaxed);
        envelope
    }

    /// The next place in the order. Only the holder of the line may ask.
    #[inline]
    fn place(&self) -> Place<'_> {
        let shared = &*self.shared;
        let timestamp = shared.clock.now();
        let seq = shared.seq.load(Ordering::Relaxed) + 1;
        shared.seq.store(seq, Ordering::Relaxed);
        let id = match &shared.event_ids {
            Some(ids) => ids.of(timestamp, seq),
            None => shared.ids.event_id(timestamp),
        };
        Place { id, seq, timestamp, context: &self.context }
    }

    /// A handle whose events carry this context: what `context` does not say, this handle's says. The
    /// session stays the hub's own.
    pub fn scoped(&self, context: EventContext) -> Self {
        let own = &self.context;
        self.with_context(EventContext {
            session_id: own.session_id.clone(),
            phase: context.phase.or_else(|| own.phase.clone()),
            task: context.task.or_else(|| own.task.clone()),
            agent: context.agent.or_else(|| own.agent.clone()),
        })
    }

    /// A handle within a task.
    pub fn with_task(&self, task: NodePath) -> Self {
        self.with_context(self.context.with_task(task))
    }

    /// A handle within a phase.
    pub fn with_phase(&self, phase: impl Into<Arc<str>>) -> Self {
        self.with_context(self.context.with_phase(phase))
    }

    /// A handle within an agent run.
    pub fn with_agent(&self, run: RunId) -> Self {
        self.with_context(self.context.with_agent(run))
    }

    fn with_context(&self, context: EventContext) -> Self {
        Self { shared: Arc::clone(&self.shared), context: Arc::new(context) }
    }

    /// The context that this handle's events carry.
    pub fn context(&self) -> &Arc<EventContext> {
        &self.context
    }

    /// The session.
    pub fn session_id(&self) -> &SessionId {
        &self.shared.session_id
    }

    /// The session's clock.
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.shared.clock
    }

    /// The session's source of identifiers.
    pub fn ids(&self) -> &Arc<dyn IdSource> {
        &self.shared.ids
    }

    /// The `seq` of the newest event; 0 before the first.
    pub fn last_seq(&self) -> u64 {
        self.shared.seq.load(Ordering::Relaxed)
    }

    /// Calls a function with every wanted event, on the emitter's own thread and before `emit` returns. A
    /// panic of the function is logged and goes no further.
    pub fn observe(&self, filter: Filter, callback: Callback) -> Observer {
        let id = self.shared.subscribers.add(filter, Sink::Call(callback));
        Observer { _registration: self.registration(id) }
    }

    /// All wanted events from now on, none lost, up to [`DEFAULT_SUBSCRIPTION_LIMIT`] unread ones.
    pub fn subscribe(&self, filter: Filter) -> Subscription {
        self.subscribe_up_to(filter, DEFAULT_SUBSCRIPTION_LIMIT)
    }

    /// All wanted events from now on, none lost, up to `limit` unread ones.
    pub fn subscribe_up_to(&self, filter: Filter, limit: usize) -> Subscription {
        let queue = Queue::new(limit, WhenFull::End);
        let id = self.shared.subscribers.add(filter, Sink::Queue(Arc::clone(&queue)));
        Subscription { queue, _registration: self.registration(id) }
    }

    /// The wanted events from now on; of those unread the newest `capacity` are kept.
    pub fn subscribe_bounded(&self, filter: Filter, capacity: usize) -> BoundedSubscription {
        let queue = Queue::new(capacity, WhenFull::DropOldest);
        let id = self.shared.subscribers.add(filter, Sink::Queue(Arc::clone(&queue)));
        BoundedSubscription { queue, _registration: self.registration(id) }
    }

    fn registration(&self, id: u64) -> Registration {
        Registration { hub: Arc::downgrade(&self.shared), id }
    }
}

/// The place of an event in the session's order, and all that follows from it.
struct Place<'a> {
    id: EventId,
    seq: u64,
    timestamp: Timestamp,
    context: &'a Arc<EventContext>,
}

impl Place<'_> {
    /// Made where it stays: [`Arc::new`] makes it on the stack and copies it, and the copy waits for what was just
    /// written, a fifth of an emit.
    #[inline(always)]
    fn envelope(self, event: Event) -> Arc<Envelope> {
        let Self { id, seq, timestamp, context } = self;
        Arc::new_cyclic(|_| Envelope {
            v: ENVELOPE_VERSION,
            id,
            seq,
            timestamp,
            context: Arc::clone(context),
            event,
        })
    }
}

impl Shared {
    #[inline]
    fn deliver(&self, table: &mut Table, envelope: &Arc<Envelope>) {
        table.deliver(&self.subscribers, envelope);
        if self.has_pending.load(Ordering::Relaxed) {
            self.deliver_pending(table);
        }
    }

    #[cold]
    fn deliver_pending(&self, table: &mut Table) {
        loop {
            let next = lock(&self.pending).pop_front();
            let Some(next) = next else { break };
            table.deliver(&self.subscribers, &next);
        }
        self.has_pending.store(false, Ordering::Relaxed);
    }

    fn unsubscribe(&self, id: u64) {
        self.subscribers.remove(id);
        // Lets go of the subscriber now, since it may hold a handle of this hub; during a delivery the next
        // one does that.
        if let Ok(mut table) = self.line.try_lock() {
            table.refresh(&self.subscribers);
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.subscribers.end_all();
    }
}

/// The line, held. The fields go in their order: nobody else may hold it before it is said that nobody does.
struct Line<'a> {
    _release: Release<'a>,
    table: MutexGuard<'a, Table>,
}

/// Says that nobody holds the line, also when the holder panics.
struct Release<'a>(&'a AtomicUsize);

impl Drop for Release<'_> {
    fn drop(&mut self) {
        self.0.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
