//! The hub gives each event its place in the session's order, its identity, time and context, and delivers it.
//!
//! One re-entrant lock is held from the assignment of a `seq` to the end of the delivery, so each subscriber gets the
//! events in the order of `seq`. Observers are called under it. An event that an observer emits gets its `seq` at once
//! and waits in a queue until the current event is delivered. An observer must therefore not wait for another thread
//! that emits, and must not answer every event with one more.

use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
};

use inspan_protocol::{Envelope, Event, EventContext, NodePath, Redactor, RunId, SessionId};
use parking_lot::{Mutex, ReentrantMutex};
use tokio_util::sync::CancellationToken;

use crate::clock::{AttemptIds, Clock, IdSource};

mod dispatch;
mod filter;
mod prompt;
mod session;
mod stored;
mod subscription;

pub use dispatch::Callback;
pub use filter::{Filter, InvalidFilter};
pub use prompt::{PendingReply, Unanswered};
pub use subscription::{BoundedSubscription, DEFAULT_SUBSCRIPTION_LIMIT, Lagged, Observer, Subscription};

use dispatch::{Sink, Subscribers};
use session::HubSession;
use stored::StoredUpTo;
use subscription::{Queue, Registration, WhenFull};

/// A cheap handle to a session's hub. Clones share everything but the context, the source of ids and what
/// [`Hub::redacting`] adds.
#[derive(Clone)]
pub struct Hub {
    shared: Arc<Shared>,
    context: Arc<EventContext>,
    ids: Arc<dyn IdSource>,
    /// Takes the secrets out of what is emitted by this handle.
    redactor: Option<Arc<Redactor>>,
}

pub(crate) struct Shared {
    session_id: SessionId,
    clock: Arc<dyn Clock>,
    subscribers: Subscribers,
    delivery: ReentrantMutex<DeliveryQueue>,
    /// The last `seq` given. Written only under the delivery lock.
    seq: AtomicU64,
    session: Mutex<HubSession>,
    abort: CancellationToken,
    stored: StoredUpTo,
    redactor: OnceLock<Redactor>,
}

/// What the delivery lock protects.
#[derive(Default)]
struct DeliveryQueue {
    /// Whether a delivery is in progress. Then the holder of the lock is an observer that emits.
    running: Cell<bool>,
    /// Events that have a `seq` and are not delivered yet.
    pending: RefCell<VecDeque<Arc<Envelope>>>,
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
            subscribers: Subscribers::default(),
            delivery: ReentrantMutex::default(),
            seq: AtomicU64::new(last_seq),
            session: Mutex::default(),
            abort: CancellationToken::new(),
            stored: StoredUpTo::default(),
            redactor: OnceLock::new(),
        };
        Self { shared: Arc::new(shared), context, ids, redactor: None }
    }

    /// Emits an event in this handle's context. Never fails and never waits for a subscriber's reader; when
    /// it returns, every observer has seen the event and every queue holds it (unless the caller is itself
    /// an observer: then right after the current event).
    ///
    /// A `session:message` is sent as [`Hub::send`] or [`Hub::send_to_run`] would send it; if it cannot be, the
    /// envelope that is returned holds the `session:rejected` that replaces it.
    pub fn emit(&self, mut event: Event) -> Arc<Envelope> {
        if let Event::SessionMessage { content, run_id, mode, .. } = event {
            return self.emit_message(content, run_id, mode);
        }
        if let Some(redactor) = &self.redactor {
            redactor.emitted(&mut event);
        }
        self.emit_as_is(event)
    }

    /// From now on redacts secrets in events that carry messages and replies of people. Mailboxes and askers still receive the
    /// original text. Only the first redactor counts.
    pub fn redact(&self, redactor: &Redactor) {
        self.shared.redactor.get_or_init(|| redactor.clone());
    }

    /// A handle for code that may emit secrets: redacts each event and question separately, so a secret that is split over
    /// two events is not found.
    pub fn redacting(&self, redactor: &Redactor) -> Self {
        Self { redactor: Some(Arc::new(redactor.clone())), ..self.clone() }
    }

    /// A handle for code that takes the secrets out itself, before it emits: nothing looks for them again.
    pub fn as_redacted(&self) -> Self {
        Self { redactor: None, ..self.clone() }
    }

    /// Delivers an event of a session that runs elsewhere, as it is in that session's log. For a hub that emits nothing
    /// itself: what follows such a session through it sees the numbers and times of the log.
    pub fn relay(&self, envelope: &Arc<Envelope>) {
        let delivery = self.shared.delivery.lock();
        self.shared.seq.store(envelope.seq, Ordering::Relaxed);
        self.shared.deliver(&delivery, envelope);
    }

    /// Emits an event and does nothing else.
    fn emit_as_is(&self, event: Event) -> Arc<Envelope> {
        let delivery = self.shared.delivery.lock();
        let envelope = self.envelope(event);
        self.shared.deliver(&delivery, &envelope);
        envelope
    }

    /// Decides under the delivery lock whether to emit: what `decide` changes takes effect exactly at the event's place in
    /// the order.
    pub(crate) fn emit_when<E>(&self, decide: impl FnOnce() -> Result<Event, E>) -> Result<Arc<Envelope>, E> {
        let delivery = self.shared.delivery.lock();
        let envelope = self.envelope(decide()?);
        self.shared.deliver(&delivery, &envelope);
        Ok(envelope)
    }

    /// The text without the secrets that the redactor of [`Hub::redact`] knows.
    pub fn redacted(&self, text: String) -> String {
        match self.shared.redactor.get() {
            Some(redactor) => redactor.text(&text),
            None => text,
        }
    }

    /// Gives an event the next place in the order. Only under the delivery lock.
    fn envelope(&self, mut event: Event) -> Arc<Envelope> {
        let shared = &*self.shared;
        if let Some(redactor) = self.redactor.as_deref().or_else(|| shared.redactor.get()) {
            redactor.said(&mut event);
        }
        let timestamp = shared.clock.now();
        let seq = shared.seq.load(Ordering::Relaxed) + 1;
        shared.seq.store(seq, Ordering::Relaxed);
        Arc::new(Envelope::new(Arc::clone(&self.context), seq, timestamp, event))
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

    /// A handle within an attempt of a node: the runs and questions that begin through it are named after it. `used` is how
    /// many runs and questions the attempt has had elsewhere.
    pub fn with_attempt(&self, task: NodePath, attempt: u32, used: [u64; 2]) -> Self {
        let ids = Arc::new(AttemptIds::new(&task, attempt, used, self.ids.clone()));
        Self { ids, ..self.with_task(task) }
    }

    fn with_context(&self, context: EventContext) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
            context: Arc::new(context),
            ids: Arc::clone(&self.ids),
            redactor: self.redactor.clone(),
        }
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

    /// The source of identifiers: the attempt's within an attempt, else the session's.
    pub fn ids(&self) -> &Arc<dyn IdSource> {
        &self.ids
    }

    /// The `seq` of the newest event; 0 before the first.
    pub fn last_seq(&self) -> u64 {
        self.shared.seq.load(Ordering::Relaxed)
    }

    /// Calls a function with every wanted event, on the emitter's own thread and before `emit` returns. If the function
    /// panics, the panic is logged and the function is not called again.
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

    /// The wanted events from now on; of those unread the newest `capacity` remain.
    pub fn subscribe_bounded(&self, filter: Filter, capacity: usize) -> BoundedSubscription {
        let queue = Queue::new(capacity, WhenFull::DropOldest);
        let id = self.shared.subscribers.add(filter, Sink::Queue(Arc::clone(&queue)));
        BoundedSubscription { queue, _registration: self.registration(id) }
    }

    fn registration(&self, id: u64) -> Registration {
        Registration { hub: Arc::downgrade(&self.shared), id }
    }
}

impl Shared {
    /// Delivers an event and what observers emit meanwhile; leaves that to the delivery in progress if there is one.
    fn deliver(&self, delivery: &DeliveryQueue, envelope: &Arc<Envelope>) {
        if delivery.running.replace(true) {
            delivery.pending.borrow_mut().push_back(Arc::clone(envelope));
            return;
        }
        self.subscribers.deliver(envelope);
        loop {
            let next = delivery.pending.borrow_mut().pop_front();
            let Some(next) = next else { break };
            self.subscribers.deliver(&next);
        }
        delivery.running.set(false);
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.subscribers.end_all();
    }
}

#[cfg(test)]
mod tests;
