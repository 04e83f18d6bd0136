//! The sessions that have viewers. Each has one fold, which one task keeps up to date, however many
//! viewers there are. Once a viewer has asked for the past, there are also folds of earlier
//! moments, so that each moment has one nearby. A session without viewers is dropped.

mod derived;
mod past;
mod ticks;

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use axum::extract::ws::Utf8Bytes;
use futures::{
    FutureExt, StreamExt,
    future::{BoxFuture, Shared},
};
use inspan_flow::{Graph, SessionRecord, StoreError};
use inspan_protocol::{Envelope, Environment, NodePath, Redactor, SessionId};
use inspan_sessions::{SessionError, SessionErrorCode, Sessions, is_driven};
use inspan_view::{
    DisplayStatus, Drawing, LIVE_TEXT, PageFold, PagePatch, PageSession, PageState, SessionResults, Spending,
    shown,
};
use serde_json::{Map, Value};
use tokio::{
    sync::{OnceCell, broadcast, mpsc},
    time::{Instant, sleep_until, timeout},
};

use self::ticks::{Tick, WatchEnd};
use self::{derived::Derived, past::Past};

/// Events that are read at once.
const PAGE: usize = 1_000;
/// Pages that are read ahead while a flow is compiled.
const PAGES: usize = 64;
/// Viewers are sent at most one patch in this time.
const PACE: Duration = Duration::from_millis(10);
/// After how long the session is read again without a notification: a process that is gone changes no store.
const PATIENCE: Duration = Duration::from_secs(2);
/// After how long without an event it is checked whether a process still runs the session,
const PAUSE: Duration = Duration::from_millis(100);
/// and how often that is checked while events come.
const SELDOM: Duration = Duration::from_millis(500);
/// Patches that wait for a slow viewer; of more it is sent the state again.
const TICKS: usize = 64;
/// Sessions that are held at once beside those that a socket follows.
const HELD: usize = 16;
/// How long a session without viewers stays in memory.
const LINGER: Duration = Duration::from_secs(60);

/// The sessions that have viewers.
#[derive(Default)]
pub(crate) struct Watches(Mutex<HashMap<SessionId, Slot>>);

#[derive(Clone)]
struct Slot {
    flow: Arc<OnceCell<Arc<SessionFlow>>>,
    watch: Arc<OnceCell<Arc<Watch>>>,
    used: Instant,
}

/// What a session runs. It does not change, and is known before the log is read.
pub(crate) struct SessionFlow {
    graph: Arc<Graph>,
    /// The drawing, which another thread places.
    drawing: Shared<BoxFuture<'static, Arc<Drawing>>>,
}

/// A session that has viewers.
pub(crate) struct Watch {
    pub(crate) id: SessionId,
    pub(crate) flow: Arc<SessionFlow>,
    sessions: Sessions,
    /// Held while the store is read, so that each event is taken once.
    reading: tokio::sync::Mutex<()>,
    now: Mutex<Now>,
    ticks: broadcast::Sender<Arc<Tick>>,
    past: Past,
    derived: Derived,
}

/// The newest that is known of a session.
struct Now {
    fold: PageFold,
    session: Arc<PageSession>,
    /// The head of the state that viewers have.
    head: Map<String, Value>,
    /// How many viewers have opened each frame.
    open: HashMap<String, usize>,
    /// Whether no more events come.
    is_over: bool,
    /// Whether a task keeps it up to date. It ends when no more events come, and when the store cannot be read.
    is_followed: bool,
}

impl Watches {
    /// A session with its fold. The first that asks waits until its log is read.
    pub(crate) async fn get(&self, sessions: &Sessions, id: &SessionId) -> Result<Arc<Watch>, SessionError> {
        let slot = self.current(id).await?;
        let open =
            || async { Ok::<_, SessionError>(Arc::new(Watch::open(sessions, id, &slot.flow, None).await?)) };
        let found = slot.watch.get_or_try_init(open).await.cloned();
        match &found {
            Ok(watch) => watch.keep_up(&mut watch.lock()),
            Err(_) => drop(self.lock().remove(id)),
        }
        found
    }

    /// What a session runs, without its log.
    pub(crate) async fn flow(
        &self,
        sessions: &Sessions,
        id: &SessionId,
    ) -> Result<Arc<SessionFlow>, SessionError> {
        let slot = self.current(id).await?;
        let open = || async { SessionFlow::open(sessions, Arc::new(sessions.record(id).await?)).await };
        slot.flow.get_or_try_init(open).await.cloned()
    }

    /// The place of a session as it is now: who has done something to it reads the effect. Another session may have
    /// got its id after it was deleted.
    async fn current(&self, id: &SessionId) -> Result<Slot, SessionError> {
        let slot = self.slot(id);
        let Some(watch) = slot.watch.get() else { return Ok(slot) };
        match watch.advance(Look::All).await {
            Ok(_) => Ok(slot),
            Err(error) if error.code == SessionErrorCode::UnknownSession => {
                self.lock().remove(id);
                Ok(self.slot(id))
            }
            // Its viewers may have it still.
            Err(error) => Err(error),
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<SessionId, Slot>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The place of a session; those without viewers for a long time are dropped.
    fn slot(&self, id: &SessionId) -> Slot {
        let now = Instant::now();
        let mut slots = self.lock();
        slots.retain(|other, slot| {
            other == id || now.duration_since(slot.used) < LINGER || slot.is_followed()
        });
        while slots.len() >= HELD && !slots.contains_key(id) {
            let idle = slots.iter().filter(|(_, slot)| !slot.is_followed()).min_by_key(|(_, slot)| slot.used);
            let Some(oldest) = idle.map(|(id, _)| id.clone()) else { break };
            slots.remove(&oldest);
        }
        let slot = slots.entry(id.clone()).or_insert_with(|| Slot {
            flow: Arc::default(),
            watch: Arc::default(),
            used: now,
        });
        slot.used = now;
        slot.clone()
    }
}

impl Slot {
    /// Whether a socket follows the session.
    fn is_followed(&self) -> bool {
        self.watch.get().is_some_and(|watch| watch.ticks.receiver_count() > 0)
    }
}

impl SessionFlow {
    async fn open(sessions: &Sessions, record: Arc<SessionRecord>) -> Result<Arc<Self>, SessionError> {
        let graph = compiled(sessions, &record).await?;
        Ok(Arc::new(Self { drawing: placed(&graph), graph }))
    }

    /// Takes the secrets of this environment, and those that the flow names, out of what is passed on.
    pub(crate) fn redactor(&self, environment: &Environment) -> Redactor {
        Redactor::new(&environment.clone().mark(&self.graph.secrets))
    }

    /// The drawing of the flow with the place of everything in it.
    pub(crate) async fn drawing(&self) -> Arc<Drawing> {
        self.drawing.clone().await
    }
}

impl Watch {
    /// With an environment, for what is passed on: without its secrets in the names of items.
    pub(crate) async fn open(
        sessions: &Sessions,
        id: &SessionId,
        flow: &OnceCell<Arc<SessionFlow>>,
        passed_on: Option<&Environment>,
    ) -> Result<Self, SessionError> {
        let (entry, record) = (sessions.entry(id).await?, Arc::new(sessions.record(id).await?));
        let (first, last) = (record.first_seq(), entry.digest.last_seq);
        let log = read_ahead(sessions, id, first);
        let open = || SessionFlow::open(sessions, Arc::clone(&record));
        let flow = Arc::clone(flow.get_or_try_init(open).await?);
        let mut fold = PageFold::new(&record, &flow.graph);
        if let Some(environment) = passed_on {
            fold = fold.redacting(flow.redactor(environment));
        }
        let session = PageSession {
            artifacts: sessions.artifacts(id),
            record,
            entry,
            commands: sessions.commands().clone(),
        };
        let watch = Self {
            id: id.clone(),
            flow,
            sessions: sessions.clone(),
            reading: tokio::sync::Mutex::default(),
            past: Past::new(fold.clone(), (last + 1).saturating_sub(first)),
            now: Mutex::new(Now {
                fold,
                session: Arc::new(session),
                head: Map::new(),
                open: HashMap::new(),
                is_over: false,
                is_followed: false,
            }),
            ticks: broadcast::Sender::new(TICKS),
            derived: Derived::new(first),
        };
        watch.catch_up(log).await?;
        Ok(watch)
    }

    /// Takes all that is in the log, without what agents wrote that have ended.
    async fn catch_up(
        &self,
        mut log: mpsc::Receiver<Result<Events, SessionError>>,
    ) -> Result<(), SessionError> {
        while let Some(events) = log.recv().await {
            let mut now = self.lock();
            events?.iter().for_each(|envelope| now.fold.apply(envelope));
        }
        let (open, newest) = {
            let now = self.lock();
            (now.fold.view().open_runs_since(), now.fold.seq())
        };
        if let Some(since) = open {
            let mut again = |envelope: &Envelope| self.lock().fold.apply_again(envelope);
            self.events(since - 1, newest, &mut again).await?;
        }
        // What came meanwhile, and not what comes from here on: a busy session has no end of that.
        let newest = self.sessions.entry(&self.id).await?.digest.last_seq;
        while self.next_seq() <= newest && self.advance(Look::Events).await? > 0 {}
        self.advance(Look::All).await.map(drop)
    }

    /// Sees to it that a task keeps this up to date while events may come.
    fn keep_up(self: &Arc<Self>, now: &mut Now) {
        if !now.is_over && !now.is_followed {
            now.is_followed = true;
            tokio::spawn(follow(Arc::downgrade(self)));
        }
    }

    fn lock(&self) -> MutexGuard<'_, Now> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The first event that is not in the fold yet.
    fn next_seq(&self) -> u64 {
        let now = self.lock();
        (now.fold.seq() + 1).max(now.session.record.first_seq())
    }

    /// Takes the next events, and what else is new if that is wanted. How many events there were.
    async fn advance(&self, look: Look) -> Result<usize, SessionError> {
        let _reading = self.reading.lock().await;
        let events = self.sessions.events(&self.id, self.next_seq(), PAGE).await?;
        // What the entry says is at least as new as the events.
        let entry = match look {
            Look::Events => None,
            Look::All => Some(self.sessions.entry(&self.id).await?),
        };
        let mut now = self.lock();
        if entry.as_ref().is_some_and(|entry| entry.created_at != now.session.entry.created_at) {
            return Err(StoreError::UnknownSession(self.id.clone()).into());
        }
        let mut is_new = !events.is_empty();
        events.iter().for_each(|envelope| now.fold.apply(envelope));
        if let Some(entry) = entry {
            now.is_over = DisplayStatus::of(&entry).has_ended()
                && !is_driven(&entry)
                && now.fold.seq() >= entry.digest.last_seq;
            if now.session.entry != entry {
                is_new = true;
                let artifacts = now.session.artifacts.clone().or_else(|| self.sessions.artifacts(&self.id));
                now.session = Arc::new(PageSession { entry, artifacts, ..PageSession::clone(&now.session) });
            }
        }
        if is_new {
            self.send(&mut now);
        }
        Ok(events.len())
    }

    /// Sends viewers what is new. Without viewers, it stays in the fold.
    fn send(&self, now: &mut Now) {
        if self.ticks.receiver_count() == 0 {
            return;
        }
        let tick = now.tick(&self.id);
        if !tick.is_empty() {
            // The last viewer may just have left.
            let _ = self.ticks.send(Arc::new(tick));
        }
    }

    /// What the session runs.
    pub(crate) fn graph(&self) -> &Arc<Graph> {
        &self.flow.graph
    }

    /// What was stored when the session began.
    pub(crate) fn record(&self) -> Arc<SessionRecord> {
        Arc::clone(&self.lock().session.record)
    }

    /// The number of the newest event that is known.
    pub(crate) fn seq(&self) -> u64 {
        self.lock().fold.seq()
    }

    /// Whether the flow has a node at this place, whatever the frames and passes.
    pub(crate) fn has_node(&self, path: &NodePath) -> bool {
        let mut body = Some(self.flow.graph.flow());
        path.parts().count() > 0
            && path.parts().all(|part| {
                let found = body.and_then(|body| Some((body, body.find(part.node)?)));
                body = found
                    .and_then(|(body, ix)| Some(self.flow.graph.body(body.node(ix).frames.as_ref()?.body)));
                found.is_some()
            })
    }

    /// Reads the fold as it was at an event, or as it is now.
    pub(crate) async fn read<R>(
        &self,
        at: Option<u64>,
        read: impl FnOnce(&PageFold, &PageSession) -> R,
    ) -> Result<R, SessionError> {
        let session = {
            let now = self.lock();
            if at.is_none_or(|at| at >= now.fold.seq()) {
                return Ok(read(&now.fold, &now.session));
            }
            Arc::clone(&now.session)
        };
        let at = at.unwrap_or_default();
        let mut fold = self.past.nearest(at);
        let after = fold.seq();
        let mut take = |envelope: &Envelope| {
            fold.apply(envelope);
            self.past.note(&fold);
        };
        self.events(after, at, &mut take).await?;
        let result = read(&fold, &session);
        self.past.keep(fold);
        Ok(result)
    }

    /// The state at an event, or now.
    pub(crate) async fn state(
        &self,
        at: Option<u64>,
        open: &BTreeSet<String>,
    ) -> Result<PageState, SessionError> {
        self.read(at, |fold, session| fold.state(session, open)).await
    }

    /// The drawing of the flow with what the session had made of it at an event, or has now.
    pub(crate) async fn drawing(&self, at: Option<u64>) -> Result<Drawing, SessionError> {
        let mut drawing = Drawing::clone(&*self.flow.drawing().await);
        let drawn = self.read(at, |fold, session| {
            let entry = fold.entry(session);
            let status = DisplayStatus::of(&entry);
            let results = SessionResults {
                session_id: entry.session.to_string(),
                status: status.word().to_owned(),
                duration_ms: fold.duration_ms(&entry),
                spent: Spending::of(fold.view().spent()),
            };
            drawing.add_session(results, fold.view(), &|row| shown(row, status));
            drawing
        });
        drawn.await
    }

    /// What leads from the state at an event to the one at another, or to the newest.
    pub(crate) async fn patch(
        &self,
        from: u64,
        to: Option<u64>,
        open: &BTreeSet<String>,
    ) -> Result<PagePatch, SessionError> {
        let (session, newest) = {
            let now = self.lock();
            (Arc::clone(&now.session), now.fold.seq())
        };
        let to = to.unwrap_or(newest).min(newest);
        // A copy of the past is nearer to a place far away than what is before it.
        if to < from || to - from > PAGE as u64 {
            let before = self.state(Some(from), open).await?;
            let after = self.state(Some(to), open).await?;
            return Ok(PagePatch::between(&before, &after));
        }
        // Forwards a fold knows itself what changes.
        let mut fold = self.past.nearest(from);
        let take = |envelope: &Envelope, fold: &mut PageFold| {
            fold.apply(envelope);
            self.past.note(fold);
        };
        let after = fold.seq();
        self.events(after, from, &mut |envelope| take(envelope, &mut fold)).await?;
        let mut head = fold.begin_patch(&session);
        self.events(from, to, &mut |envelope| take(envelope, &mut fold)).await?;
        let (mut patch, frames) = fold.patch(&session, open, &mut head);
        patch.set.extend(frames.into_values().flatten());
        self.past.keep(fold);
        Ok(patch)
    }

    /// The state before the first event, and what leads from there to the newest, in steps of so many events.
    pub(crate) async fn patches(&self, step: u64) -> Result<(PageState, Vec<PagePatch>), SessionError> {
        let (session, newest) = {
            let now = self.lock();
            (Arc::clone(&now.session), now.fold.seq())
        };
        let none = BTreeSet::new();
        let mut fold = self.past.nearest(0);
        let (start, mut head) = (fold.state(&session, &none), fold.begin_patch(&session));
        let mut patches = Vec::new();
        let mut at = start.seq;
        while at < newest {
            let next = (at + step).min(newest);
            self.events(at, next, &mut |envelope| fold.apply(envelope)).await?;
            patches.push(fold.patch(&session, &none, &mut head).0);
            at = next;
        }
        Ok((start, patches))
    }

    /// Gives the events after one and up to another, in order.
    async fn events(
        &self,
        after: u64,
        until: u64,
        apply: &mut (dyn FnMut(&Envelope) + Send),
    ) -> Result<(), SessionError> {
        let mut next = after + 1;
        while next <= until {
            let most = usize::try_from(until - next + 1).unwrap_or(PAGE).min(PAGE);
            let events = self.sessions.events(&self.id, next, most).await?;
            let Some(last) = events.last() else { break };
            next = last.seq + 1;
            events.iter().filter(|envelope| envelope.seq <= until).for_each(|envelope| apply(envelope));
        }
        Ok(())
    }
}

/// Events of a session in their order.
type Events = Vec<Arc<Envelope>>;

/// Reads a log, without what agents wrote, ahead of who folds it: the flow is compiled meanwhile, and each page is folded while the
/// next is read.
fn read_ahead(
    sessions: &Sessions,
    id: &SessionId,
    first: u64,
) -> mpsc::Receiver<Result<Events, SessionError>> {
    let (pages, log) = mpsc::channel(PAGES);
    let (sessions, id, mut next) = (sessions.clone(), id.clone(), first);
    tokio::spawn(async move {
        loop {
            let page = sessions.events_except(&id, next, PAGE, LIVE_TEXT).await;
            let newest = page.as_ref().ok().map(|events| events.last().map(|newest| newest.seq));
            match newest {
                Some(None) => return,
                Some(Some(newest)) => next = newest + 1,
                None => {}
            }
            // The caller may be gone.
            if pages.send(page).await.is_err() || newest.is_none() {
                return;
            }
        }
    });
    log
}

/// The flow of a session. A large one takes a while, which other sessions do not wait for.
async fn compiled(sessions: &Sessions, record: &Arc<SessionRecord>) -> Result<Arc<Graph>, SessionError> {
    let (sessions, record) = (sessions.clone(), Arc::clone(record));
    let compiling = tokio::task::spawn_blocking(move || sessions.graph(&record));
    compiling.await.unwrap_or_else(|panic| {
        let message = format!("the flow cannot be compiled: {panic}");
        Err(SessionError::new(SessionErrorCode::FlowOfOtherVersion, message))
    })
}

/// What is looked for in the store.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Look {
    /// New events alone.
    Events,
    /// Also who runs the session, what waits for it, and what continues it.
    All,
}

/// The drawing of a flow, which another thread places from now on.
pub(crate) fn placed(graph: &Arc<Graph>) -> Shared<BoxFuture<'static, Arc<Drawing>>> {
    let graph = Arc::clone(graph);
    let placing = tokio::task::spawn_blocking(move || {
        let mut drawing = Drawing::from(&*graph);
        drawing.place();
        Arc::new(drawing)
    });
    placing.map(Result::unwrap_or_default).boxed().shared()
}

/// Keeps a session up to date as long as it is in use.
async fn follow(watch: Weak<Watch>) {
    let changes = watch.upgrade().map(|watch| watch.sessions.store().changes_of(&watch.id));
    let Some(mut changes) = changes else { return };
    // While events come one after the other, they alone are looked for.
    let mut flows = false;
    let mut looked = Instant::now();
    loop {
        let Some(watch) = watch.upgrade() else { return };
        let began = Instant::now();
        let look = if flows && began < looked + SELDOM { Look::Events } else { Look::All };
        if look == Look::All {
            looked = began;
        }
        let count = match watch.advance(look).await {
            Ok(count) => count,
            Err(error) => return watch.lock().end(&watch.ticks, WatchEnd::Failed(error)),
        };
        {
            let mut now = watch.lock();
            if now.is_over {
                return now.end(&watch.ticks, WatchEnd::Over);
            }
        }
        drop(watch);
        if count > 0 {
            // What follows at once goes into the next patch.
            flows = true;
            sleep_until(began + PACE).await;
            continue;
        }
        let came = timeout(if flows { PAUSE } else { PATIENCE }, changes.next()).await;
        flows &= matches!(came, Ok(Some(())));
        if came == Ok(None) {
            tokio::time::sleep(PATIENCE).await;
        }
    }
}

/// A text of a message, shared by all that are sent it.
pub(crate) type Text = Utf8Bytes;

#[cfg(test)]
mod tests;
