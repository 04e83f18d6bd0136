//! The sessions of one provider: one process per conversation, used by one turn at a time, and warm for a while
//! between turns. A program that can hold more than one conversation serves the next one.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use inspan_protocol::{AgentError, Environment, ErrorCode, ExecutionContext, ProviderSessionId};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until, timeout, timeout_at};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use super::Agent;
use super::session::{Session, too_long};
use crate::conversation::ConversationLock;
use crate::error::busy;

/// How long a process stays after a turn. An idle one holds some 200 MB and saves the next turn 650 ms.
const WARM_FOR: Duration = Duration::from_secs(60);
/// How often an idle process is looked at, which is ended if it does anything by itself.
const LOOK: Duration = Duration::from_secs(1);
/// Idle processes at once.
const WARM_LIMIT: usize = 4;
/// How long a turn waits for another turn of the same conversation.
const BUSY_LIMIT: Duration = Duration::from_secs(10);
/// How long a shutdown waits in all: an interrupted turn and then every step of the ladder.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(15);

/// Whether a process may serve more than one turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reuse {
    /// It may.
    Warm,
    /// One turn only: one of its limits counts over its life.
    Once,
}

/// The limits of a pool.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) warm_for: Duration,
    pub(crate) warm: usize,
    pub(crate) busy: Duration,
}

impl Limits {
    /// Those of most programs.
    pub(crate) const DEFAULT: Self = Self { warm_for: WARM_FOR, warm: WARM_LIMIT, busy: BUSY_LIMIT };
}

/// All sessions of one provider.
pub(crate) struct Pool<A: Agent> {
    limits: Limits,
    slots: Mutex<HashMap<ProviderSessionId, Slot<A>>>,
    freed: Notify,
    /// Cancelled when the provider is shut down; turns listen to it.
    closing: CancellationToken,
    /// Turns and closings under way.
    work: TaskTracker,
    us: Weak<Self>,
}

enum Slot<A: Agent> {
    /// A turn uses it, or its process is being ended.
    Busy,
    Warm(Box<Warm<A>>),
}

struct Warm<A: Agent> {
    session: Session<A>,
    launch: A::Launch,
    since: Instant,
    /// The lock of its last turn, released.
    lock: Option<ConversationLock>,
}

/// The right to use one conversation. Dropping it ends the process, and only then releases the conversation.
pub(crate) struct Lease<A: Agent> {
    pool: Arc<Pool<A>>,
    id: ProviderSessionId,
    session: Option<Session<A>>,
    /// Until when it waits for other turns of the conversation.
    until: Instant,
    /// Keeps other processes from the conversation.
    lock: Option<ConversationLock>,
    holds: Holds,
}

/// Whether a lease still holds its conversation.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Holds {
    Yes,
    No,
}

impl<A: Agent> Pool<A> {
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

    /// The context of a turn, whose token is also cancelled when the provider is shut down, until the guard is
    /// dropped.
    pub(crate) fn listen(&self, context: ExecutionContext) -> (ExecutionContext, DropGuard) {
        let cancel = context.cancel.child_token();
        let (closing, turn) = (self.closing.clone(), cancel.clone());
        tokio::spawn(async move {
            if turn.run_until_cancelled(closing.cancelled()).await.is_some() {
                turn.cancel();
            }
        });
        let over = cancel.clone().drop_guard();
        (ExecutionContext { cancel, ..context }, over)
    }

    /// Takes a conversation for a turn. If its process is warm and was started as this turn would start it, the
    /// lease holds it; a process started otherwise is ended first. Waits for another turn of the conversation.
    pub(crate) async fn lease(
        &self,
        id: &ProviderSessionId,
        launch: &A::Launch,
    ) -> Result<Lease<A>, AgentError> {
        let until = Instant::now() + self.limits.busy;
        loop {
            if self.closing.is_cancelled() {
                return Err(AgentError::new(ErrorCode::Aborted, "the provider was shut down"));
            }
            let freed = self.freed.notified();
            if let Some((mut lease, warm)) = self.take(id, until) {
                if let Some(warm) = warm {
                    (lease.session, lease.lock) = (Some(warm.session), warm.lock);
                    let fits = warm.launch == *launch && A::reuse(launch) == Reuse::Warm;
                    if !fits || !lease.session.as_mut().is_some_and(Session::is_ready) {
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

    fn take(&self, id: &ProviderSessionId, until: Instant) -> Option<(Lease<A>, Option<Warm<A>>)> {
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
        let lease = Lease { pool, id: id.clone(), session: None, until, lock: None, holds: Holds::Yes };
        Some((lease, warm))
    }

    /// Takes the least recently used warm process away from its conversation, if it can hold another one and was started as
    /// this turn would start it.
    pub(crate) async fn spare(&self, launch: &A::Launch) -> Option<Session<A>> {
        if !A::MANY_CONVERSATIONS || A::reuse(launch) == Reuse::Once {
            return None;
        }
        let mut session = {
            let mut slots = self.slots();
            let fits = slots.iter().filter_map(|(id, slot)| match slot {
                Slot::Warm(warm) if warm.launch == *launch => Some((warm.since, id.clone())),
                _ => None,
            });
            let (_, id) = fits.min()?;
            let Some(Slot::Warm(warm)) = slots.remove(&id) else { return None };
            warm.session
        };
        if session.is_ready() {
            return Some(session);
        }
        session.end().await;
        None
    }

    /// Keeps a session for a while; it replaces the least recently used one if there are too many.
    fn keep(
        &self,
        id: ProviderSessionId,
        session: Session<A>,
        launch: A::Launch,
        lock: Option<ConversationLock>,
    ) {
        let since = Instant::now();
        let mut slots = self.slots();
        slots.insert(id.clone(), Slot::Warm(Box::new(Warm { session, launch, since, lock })));
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
        let (us, until) = (self.us.clone(), since + self.limits.warm_for);
        let closing = self.closing.clone();
        tokio::spawn(async move {
            let ready = async {
                while Instant::now() < until && us.upgrade().is_some_and(|pool| pool.is_ready(&id, since)) {
                    sleep_until(until.min(Instant::now() + LOOK)).await;
                }
            };
            let _over = closing.run_until_cancelled(ready).await;
            if let Some(pool) = us.upgrade() {
                pool.cool(&id, since);
            }
        });
    }

    /// Whether a warm session has not been used since, and could serve a turn. Nobody would see, nor pay for, what a program does
    /// between turns.
    fn is_ready(&self, id: &ProviderSessionId, since: Instant) -> bool {
        match self.slots().get_mut(id) {
            Some(Slot::Warm(warm)) if warm.since == since => warm.session.is_ready(),
            _ => false,
        }
    }

    /// Ends a warm session, if it has not been used since.
    fn cool(&self, id: &ProviderSessionId, since: Instant) {
        let mut slots = self.slots();
        let unused = matches!(slots.get(id), Some(Slot::Warm(warm)) if warm.since == since);
        if let (true, Some(pool)) = (unused, self.us.upgrade())
            && let Some(Slot::Warm(warm)) = slots.insert(id.clone(), Slot::Busy)
        {
            let Warm { session, lock, .. } = *warm;
            let (id, until) = (id.clone(), since);
            drop(Lease { pool, id, session: Some(session), until, lock, holds: Holds::Yes });
        }
    }

    /// Waits until every session has ended: warm ones end at once, busy ones when their turns have been cancelled.
    pub(crate) async fn shut_down(&self) {
        self.closing.cancel();
        let until = Instant::now() + SHUTDOWN_LIMIT;
        loop {
            let freed = self.freed.notified();
            if self.slots().is_empty() {
                break;
            }
            if timeout_at(until, freed).await.is_err() {
                tracing::warn!("some processes did not end in time");
                break;
            }
        }
        self.work.close();
        let _in_time = timeout_at(until, self.work.wait()).await;
    }

    fn slots(&self) -> MutexGuard<'_, HashMap<ProviderSessionId, Slot<A>>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn free(&self, id: &ProviderSessionId) {
        self.slots().remove(id);
        self.freed.notify_waiters();
    }
}

impl<A: Agent> Lease<A> {
    /// The session, if one is warm.
    pub(crate) fn session(&mut self) -> Option<&mut Session<A>> {
        self.session.as_mut()
    }

    /// The vendor chose another id for the conversation.
    pub(crate) fn rename(&mut self, id: ProviderSessionId) {
        let mut slots = self.pool.slots();
        slots.remove(&self.id);
        slots.insert(id.clone(), Slot::Busy);
        drop(slots);
        self.id = id;
    }

    /// Waits until no other process uses the conversation, and keeps others from it as long as the lease. A warm session that
    /// does not know what another process has done in the conversation is ended.
    pub(super) async fn lock(&mut self, environment: &Environment) -> Result<(), AgentError> {
        if let Some(lock) = self.lock.take() {
            if lock.take_again() {
                self.lock = Some(lock);
                return Ok(());
            }
            self.end().await;
        }
        self.lock = ConversationLock::take(&self.id, environment, self.until).await?;
        Ok(())
    }

    /// Puts a new session into the lease.
    pub(crate) fn hold(&mut self, session: Session<A>) {
        self.session = Some(session);
    }

    /// Ends the session, and still holds the conversation.
    pub(crate) async fn end(&mut self) {
        if let Some(mut session) = self.session.take() {
            session.end().await;
        }
    }

    /// The turn is over: the session stays warm if it can serve another one.
    pub(crate) fn give_back(mut self, launch: A::Launch) {
        let warm = A::reuse(&launch) == Reuse::Warm && !self.pool.closing.is_cancelled();
        if let Some(session) = self.session.take_if(|session| warm && session.is_ready()) {
            self.holds = Holds::No;
            let lock = self.lock.take().inspect(ConversationLock::release);
            self.pool.keep(self.id.clone(), session, launch, lock);
        }
    }
}

impl<A: Agent> Drop for Lease<A> {
    fn drop(&mut self) {
        if self.holds == Holds::No {
            return;
        }
        let (pool, id) = (Arc::clone(&self.pool), self.id.clone());
        let lock = self.lock.take();
        let Some(mut session) = self.session.take() else { return pool.free(&id) };
        // Outside of a runtime nothing runs that could wait; the drop of the session kills its process.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let work = pool.work.clone();
            work.spawn_on(
                async move {
                    session.end().await;
                    drop((session, lock));
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

/// The result of the work, or `TIMEOUT` if it takes longer than the turn may.
pub(crate) async fn within<T>(
    limit: Option<Duration>,
    work: impl Future<Output = Result<T, AgentError>>,
) -> Result<T, AgentError> {
    let Some(limit) = limit else { return work.await };
    timeout(limit, work).await.unwrap_or_else(|_| Err(too_long(limit)))
}
