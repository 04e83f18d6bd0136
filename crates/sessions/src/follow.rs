//! Following the log of a session: what is there, then what comes, whichever process writes it.

use std::{sync::Arc, time::Duration};

use futures::{StreamExt, stream::BoxStream};
use inspan_engine::Filter;
use inspan_flow::{RunStore, SessionEntry};
use inspan_protocol::{Envelope, Event, SessionId};
use inspan_view::DisplayStatus;
use tokio::{sync::Semaphore, time::timeout};

use crate::{SessionError, SessionErrorCode, error::near, is_driven};

/// How many events are read at once. A page is short, so that a follower that wants little does not wait long for its turn.
const PAGE: usize = 100;
/// How many followers of a program read at once. They are fewer than the readers of a store, so however many follow, who reads something
/// else does not wait behind them.
const READING: usize = 2;
/// How long a follower waits for a change of the session before it reads anyway. It also notices by then that the
/// process which ran the session is gone.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long it waits for more events before it checks whether they are the last for now.
const PAUSE: Duration = Duration::from_millis(100);

/// How names of events are written.
const HINT: &str = "as in `agent:*,task:failed`; docs/events.md lists the names";

/// How many of a program's followers read at once: they share it, and each waits until it may.
#[derive(Debug)]
pub(crate) struct ReadLimit(Semaphore);

impl Default for ReadLimit {
    fn default() -> Self {
        Self(Semaphore::new(READING))
    }
}

impl ReadLimit {
    /// Reads as soon as one more may.
    async fn read<T>(&self, reading: impl Future<Output = T>) -> T {
        // Nobody closes it.
        let _read = self.0.acquire().await;
        reading.await
    }
}

/// One reader of a session's log. It has a position and nothing else, so it can wait for any time.
pub struct Follower {
    store: Arc<dyn RunStore>,
    reads: Arc<ReadLimit>,
    session: SessionId,
    next: u64,
    changes: BoxStream<'static, ()>,
    /// Whether its reader knows that no process runs the session.
    knows_idle: bool,
    /// Whether the end of the session was among the events.
    saw_end: bool,
    /// Whether events were given since the last check whether a process runs the session.
    flows: bool,
}

/// What a follower finds next.
#[derive(Clone, Debug, PartialEq)]
pub enum Followed {
    /// The next events, in order.
    Events(Vec<Arc<Envelope>>),
    /// Nothing more comes for now: no process runs the session. Given once each time; a follower that is asked again
    /// waits until the session is resumed.
    Idle(Box<SessionEntry>),
    /// Nothing more comes: the session has ended, or another continues it.
    Ended(Box<SessionEntry>),
}

impl Follower {
    pub(crate) fn new(
        store: Arc<dyn RunStore>,
        reads: Arc<ReadLimit>,
        session: SessionId,
        from: u64,
    ) -> Self {
        let changes = store.changes_of(&session);
        let next = from.max(1);
        Self { store, reads, session, next, changes, knows_idle: false, saw_end: false, flows: false }
    }

    /// The next event that has not been given.
    pub fn position(&self) -> u64 {
        self.next
    }

    /// Waits for what comes next. A call that is dropped loses nothing.
    pub async fn next(&mut self) -> Result<Followed, SessionError> {
        loop {
            if let Some(events) = self.ready().await? {
                return Ok(Followed::Events(events));
            }
            // While events come one after the other, it only waits for the next one.
            if std::mem::take(&mut self.flows)
                && !self.saw_end
                && timeout(PAUSE, self.changes.next()).await.is_ok()
                && let Some(events) = self.ready().await?
            {
                return Ok(Followed::Events(events));
            }
            // A process that is found to be gone here has written everything before the log is read again.
            let entry = Box::new(self.reads.read(self.store.entry(&self.session)).await?);
            let is_driven = is_driven(&entry);
            let is_over = (self.saw_end || DisplayStatus::of(&entry).has_ended()) && !is_driven;
            if (is_over || !is_driven)
                && let Some(events) = self.ready().await?
            {
                return Ok(Followed::Events(events));
            }
            if is_over {
                return Ok(Followed::Ended(entry));
            }
            if !is_driven && !self.knows_idle {
                self.knows_idle = true;
                return Ok(Followed::Idle(entry));
            }
            self.knows_idle = !is_driven;
            // Even if the stream has ended or reports nothing, no event is missed.
            if let Ok(None) = timeout(PATIENCE, self.changes.next()).await {
                tokio::time::sleep(PATIENCE).await;
            }
        }
    }

    /// The next events that are there already; none if there are no more.
    pub async fn ready(&mut self) -> Result<Option<Vec<Arc<Envelope>>>, SessionError> {
        let events = self.reads.read(self.store.read_next(&self.session, self.next, PAGE)).await?;
        let Some(last) = events.last() else { return Ok(None) };
        self.next = last.seq + 1;
        self.flows = true;
        self.saw_end |= events.iter().any(|envelope| matches!(envelope.event, Event::HarnessComplete { .. }));
        Ok(Some(events))
    }
}

/// Reads the events that are wanted, as in `agent:*,task:failed`; a name that no event has is a mistake.
pub fn event_filter(text: &str) -> Result<Filter, SessionError> {
    let wrong = |message: String| SessionError::new(SessionErrorCode::InvalidRequest, message);
    let filter = Filter::parse(text).map_err(|error| wrong(error.to_string()).with_hint(HINT))?;
    match text.split(',').map(str::trim).find(|part| !Event::can_match(part)) {
        None => Ok(filter),
        Some(unknown) => {
            let hint = near(unknown, Event::NAMES).unwrap_or_else(|| HINT.to_owned());
            Err(wrong(format!("no event is called `{unknown}`")).with_hint(hint))
        }
    }
}
