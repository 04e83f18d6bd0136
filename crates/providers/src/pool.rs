//! The sessions of a provider: one process per conversation, lent to one turn at a time, and kept warm for a while
//! between turns. What a session is and what happens in a turn is left to the adapters.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use inspan_protocol::{AgentError, ErrorCode, ProviderSessionId};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::kind::Kind;

/// How long a turn waits for another turn of the same conversation, usually.
pub(crate) const BUSY_LIMIT: Duration = Duration::from_secs(10);
/// How long a shutdown waits in all: an interrupted turn and then every step of the ladder.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(15);

/// A session that can be kept between turns. Dropping it kills its process and everything that it started.
pub(crate) trait Keep: Send + Sync + std::fmt::Debug + 'static {
    /// All that its process was started with; turns with the same can share it.
    type Launch: PartialEq + Send + Sync + std::fmt::Debug + 'static;

    /// Whether another turn can begin.
    fn is_ready(&mut self) -> bool;

    /// Ends its process, whatever it does. When it returns nothing of it is left.
    fn end(self) -> impl Future<Output = ()> + Send;
}

/// The limits of a pool.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// How long a process is kept after a turn.
    pub(crate) warm_for: Duration,
    /// Processes kept at once.
    pub(crate) warm: usize,
    /// How long a turn waits for another turn of the same conversation.
    pub(crate) busy: Duration,
}

/// All sessions of one provider.
#[derive(Debug)]
pub(crate) struct Pool<S: Keep> {
    limits: Limits,
    slots: Mutex<HashMap<ProviderSessionId, Slot<S>>>,
    freed: Notify,
    /// Cancelled when the provider is shut down; turns listen to it.
    closing: CancellationToken,
    /// Turns and closings under way.
    work: TaskTracker,
    us: Weak<Self>,
}

#[derive(Debug)]
enum Slot<S: Keep> {
    /// A turn uses it, or its process is being ended.
    Busy,
    Warm(Box<Warm<S>>),
}

#[derive(Debug)]
struct Warm<S: Keep> {
    session: S,
    launch: S::Launch,
    since: Instant,
}

/// The right to use one conversation. Dropping it ends the process, and only then lets others at the conversation.
#[derive(Debug)]
pub(crate) struct Lease<S: Keep> {
    pool: Arc<Pool<S>>,
    id: ProviderSessionId,
    session: Option<S>,
    holds: Holds,
}

/// Whether a lease still holds its conversation.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Holds {
    Yes,
    No,
}

impl<S: Keep> Pool<S> {
    pub(crate) fn new(limits: Limits) -> Arc<Self> {
        Arc::new_cyclic(|us| Self {
            limits,
            slots: Mutex::default(),
            freed: Notify::new(),
            closing: CancellationToken::new(),
            work: TaskTracker::new(),
            us: us.clone(),
        })
    }

    /// The token that turns listen to beside their own.
    pub(crate) fn closing(&self) -> CancellationToken {
        self.closing.clone()
    }

    /// Takes a conversation for a turn. If its process is warm and was started as this turn would start it, the
    /// lease holds it; a process started otherwise is ended first. Waits for another turn of the conversation.
    pub(crate) async fn lease(
        &self,
        id: &ProviderSessionId,
        launch: &S::Launch,
    ) -> Result<Lease<S>, AgentError> {
        let until = Instant::now() + self.limits.busy;
        loop {
            if self.closing.is_cancelled() {
                return Err(AgentError::new(ErrorCode::Aborted, "the provider was shut down"));
            }
            let freed = self.freed.notified();
            if let Some((mut lease, warm)) = self.take(id) {
                if let Some(warm) = warm {
                    lease.session = Some(warm.session);
                    let fits = warm.launch == *launch;
                    if !fits || !lease.session.as_mut().is_some_and(Keep::is_ready) {
                        lease.end().await;
                    }
                }
                return Ok(lease);
            }
            if timeout_at(until, freed).await.is_err() {
                return Err(busy(id));
            }
        }
    }

    /// Takes a conversation that was only just begun, with the session that began it.
    pub(crate) fn adopt(self: &Arc<Self>, id: ProviderSessionId, session: S) -> Lease<S> {
        self.slots().insert(id.clone(), Slot::Busy);
        Lease { pool: Arc::clone(self), id, session: Some(session), holds: Holds::Yes }
    }

    fn take(&self, id: &ProviderSessionId) -> Option<(Lease<S>, Option<Warm<S>>)> {
        let pool = self.us.upgrade()?;
        let mut slots = self.slots();
        let warm = match slots.remove(id) {
            Some(Slot::Busy) => {
                slots.insert(id.clone(), Slot::Busy);
                return None;
            }
            Some(Slot::Warm(warm)) => Some(*warm),
            None => None,
        };
        slots.insert(id.clone(), Slot::Busy);
        Some((Lease { pool, id: id.clone(), session: None, holds: Holds::Yes }, warm))
    }

    /// Keeps a session for a while, in place of the one that was used longest ago if there are too many.
    fn keep(&self, id: ProviderSessionId, session: S, launch: S::Launch) {
        let since = Instant::now();
        let mut slots = self.slots();
        slots.insert(id.clone(), Slot::Warm(Box::new(Warm { session, launch, since })));
        let mut warm: Vec<(Instant, ProviderSessionId)> = slots
            .iter()
            .filter_map(|(id, slot)| match slot {
                Slot::Warm(warm) => Some((warm.since, id.clone())),
                Slot::Busy => None,
            })
            .collect();
        drop(slots);
        self.freed.notify_waiters();
        warm.sort();
        let surplus = warm.len().saturating_sub(self.limits.warm);
        for (since, id) in warm.into_iter().take(surplus) {
            self.cool(&id, since);
        }
        let (us, warm_for) = (self.us.clone(), self.limits.warm_for);
        let closing = self.closing();
        tokio::spawn(async move {
            let over = closing.run_until_cancelled(sleep(warm_for)).await;
            if let (Some(()), Some(pool)) = (over, us.upgrade()) {
                pool.cool(&id, since);
            }
        });
    }

    /// Ends a warm session, if it has not been used since.
    fn cool(&self, id: &ProviderSessionId, since: Instant) {
        let mut slots = self.slots();
        let unused = matches!(slots.get(id), Some(Slot::Warm(warm)) if warm.since == since);
        if let (true, Some(pool)) = (unused, self.us.upgrade())
            && let Some(Slot::Warm(warm)) = slots.insert(id.clone(), Slot::Busy)
        {
            drop(Lease { pool, id: id.clone(), session: Some(warm.session), holds: Holds::Yes });
        }
    }

    /// Ends every session: warm ones at once, busy ones when their turns have been cancelled.
    pub(crate) async fn shut_down(&self) {
        self.closing.cancel();
        let until = Instant::now() + SHUTDOWN_LIMIT;
        let warm: Vec<(ProviderSessionId, Instant)> = self
            .slots()
            .iter()
            .filter_map(|(id, slot)| match slot {
                Slot::Warm(warm) => Some((id.clone(), warm.since)),
                Slot::Busy => None,
            })
            .collect();
        for (id, since) in warm {
            self.cool(&id, since);
        }
        loop {
            let freed = self.freed.notified();
            if self.slots().is_empty() {
                break;
            }
            if timeout_at(until, freed).await.is_err() {
                tracing::warn!("some processes of a provider did not end in time");
                break;
            }
        }
        self.work.close();
        let _in_time = timeout_at(until, self.work.wait()).await;
    }

    fn slots(&self) -> MutexGuard<'_, HashMap<ProviderSessionId, Slot<S>>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn free(&self, id: &ProviderSessionId) {
        self.slots().remove(id);
        self.freed.notify_waiters();
    }
}

impl<S: Keep> Lease<S> {
    /// The session, if one is at hand.
    pub(crate) fn session(&mut self) -> Option<&mut S> {
        self.session.as_mut()
    }

    /// Puts a new session into the lease.
    pub(crate) fn hold(&mut self, session: S) {
        self.session = Some(session);
    }

    /// Ends the session and keeps the conversation.
    pub(crate) async fn end(&mut self) {
        if let Some(session) = self.session.take() {
            session.end().await;
        }
    }

    /// The turn is over: keeps the session warm if it can serve another one.
    pub(crate) fn give_back(mut self, launch: S::Launch) {
        let warm = !self.pool.closing.is_cancelled();
        let Some(mut session) = self.session.take() else { return };
        if warm && session.is_ready() {
            self.holds = Holds::No;
            self.pool.keep(self.id.clone(), session, launch);
        } else {
            self.session = Some(session);
        }
    }
}

impl<S: Keep> Drop for Lease<S> {
    fn drop(&mut self) {
        if self.holds == Holds::No {
            return;
        }
        let (pool, id) = (Arc::clone(&self.pool), self.id.clone());
        let Some(session) = self.session.take() else { return pool.free(&id) };
        // Outside of a runtime nothing runs that could wait; the drop of the session kills its process.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let work = pool.work.clone();
            work.spawn_on(
                async move {
                    session.end().await;
                    pool.free(&id);
                },
                &runtime,
            );
        } else {
            drop(session);
            pool.free(&id);
        }
    }
}

/// The error for a conversation that another turn has.
pub(crate) fn busy(session: &ProviderSessionId) -> AgentError {
    let message = format!("the conversation {session} is busy with another turn");
    AgentError::new(ErrorCode::InvalidRequest, message).kind("sessionBusy")
}
