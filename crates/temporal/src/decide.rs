//! Decisions about a session: reads what is new in its log, applies it to the pilot, and appends what follows. Any worker
//! may decide at any time; a decision that another one has overtaken is dropped and made again.

mod live;
mod mail;
mod waits;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use futures::{FutureExt, future::BoxFuture};
use inspan_engine::{Clock, LaterClock, ProviderRegistry};
use inspan_flow::{AttemptContext, NodeRegistry};
use inspan_flow_core::{AttemptSpec, Graph, Reusable, SessionRecord};
use inspan_protocol::{AgentError, Envelope, ErrorCode, Event, ProviderSessionId, SessionId, Timestamp};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::log::{AttemptKey, LogError, LogPosition, Segment, SharedLog, Writer};
use live::Live;

/// How many sessions a worker remembers; one that it has forgotten is read from its log again.
const REMEMBERED: usize = 64;

/// What a host knows about a session that its log does not say.
pub struct HostedSession {
    /// What its flow compiles to.
    pub graph: Arc<Graph>,
    /// The node types.
    pub nodes: Arc<NodeRegistry>,
    /// What is the same for all its attempts.
    pub context: Arc<AttemptContext>,
    /// How many attempts may run at once, instead of what the flow says.
    pub max_concurrency: Option<u32>,
}

/// A session for one attempt.
pub struct HostedAttempt {
    /// The session.
    pub session: HostedSession,
    /// What its agents are run by. It is shut down after the attempt: a program that waits for the next turn would not
    /// know what the same conversation says meanwhile on another worker.
    pub providers: ProviderRegistry,
}

/// Makes sessions known by their records runnable on this machine.
pub trait SessionHost: Send + Sync {
    /// What it takes to decide about a session, or why that cannot be done here.
    fn session(&self, record: &SessionRecord) -> Result<HostedSession, AgentError>;

    /// What it takes to run an attempt of a session, or why that cannot be done here.
    fn attempt(&self, record: &SessionRecord) -> Result<HostedAttempt, AgentError>;
}

/// An attempt that runs, or is to run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RunningAttempt {
    pub(crate) key: AttemptKey,
    /// Where the log says what it is to do.
    pub(crate) begun: LogPosition,
    /// The only machine that can run it: its agent's conversation is there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) machine: Option<String>,
    /// The pool of machines that may run it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) pool: Option<Arc<str>>,
    /// Whether it waits for a person, a time or an event, and needs no worker.
    #[serde(skip)]
    pub(crate) only_waits: bool,
}

impl RunningAttempt {
    /// Its name: the place of its node, and which try it is.
    pub fn name(&self) -> String {
        self.key.to_string()
    }
}

/// An attempt whose worker is gone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LostAttempt {
    /// The attempt.
    pub attempt: RunningAttempt,
    /// Why it is given up, if it was lost too often to be tried again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub given_up: Option<String>,
    /// Whether it was to end, and no worker had taken it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub never_began: bool,
    /// Whether the machine that took it has not begun it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_unfit: bool,
    /// Why machines have refused it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<Refused>,
    /// Whether its worker stops and has ended it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_stopped: bool,
    /// Whether its machine has not taken it in time: it is given up if the machine is gone, and waits on if that is busy.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub not_taken: bool,
}

/// Why machines that took an attempt could not run it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Refused {
    /// What the newest of them says.
    pub why: String,
    /// The code of that.
    pub code: ErrorCode,
    /// The names of all of them.
    pub by: BTreeSet<String>,
    /// How often they have refused it.
    pub times: u32,
    /// Whether the newest of them has a full disk.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_full: bool,
}

impl From<RunningAttempt> for LostAttempt {
    /// One that was at work, and is tried again.
    fn from(attempt: RunningAttempt) -> Self {
        Self {
            attempt,
            given_up: None,
            never_began: false,
            is_unfit: false,
            refused: None,
            is_stopped: false,
            not_taken: false,
        }
    }
}

/// What is to be done for a session now.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Decision {
    /// The attempts that must be running.
    pub running: Vec<RunningAttempt>,
    /// The names of those of them that are to end. A worker that runs one knows it from the log; one that no worker has
    /// taken yet must not be taken any more.
    pub ending: Vec<String>,
    /// After which time to decide again even if nothing happens.
    pub wake_in: Option<Duration>,
    /// Whether the session has ended.
    pub has_ended: bool,
}

/// Why nothing was decided.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DecideError {
    /// The log was not read or written.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The session cannot run on this machine.
    #[error("session `{session}` cannot run here: {error}")]
    Host {
        /// The session.
        session: SessionId,
        /// Why.
        error: AgentError,
    },
}

/// What a session takes over from the one that it comes from.
#[derive(Clone, Default)]
struct Before {
    reusable: Option<Arc<Reusable>>,
    machines: Machines,
}

/// The machine that has each conversation.
#[derive(Clone, Default)]
struct Machines(BTreeMap<ProviderSessionId, String>);

impl Machines {
    /// Takes the names of the conversations in a segment; one of an attempt comes from a machine.
    fn note(&mut self, segment: &Segment) {
        let Some(machine) = &segment.header.machine else { return };
        for event in &segment.events {
            if let Event::AgentSession { session_id, .. } = &event.event {
                self.0.insert(session_id.clone(), machine.clone());
            }
        }
    }

    /// The machine on which an attempt has to run: its agent continues or branches a conversation there.
    fn of(&self, spec: &AttemptSpec) -> Option<String> {
        let known = spec.conversation.as_ref().or(spec.branches.as_ref());
        let named = || spec.input["options"]["resume"].as_str().map(ProviderSessionId::from);
        self.0.get(&known.map(|known| known.session_id.clone()).or_else(named)?).cloned()
    }
}

/// Decides for sessions, one decision of a session at a time.
pub struct Decider {
    log: SharedLog,
    host: Arc<dyn SessionHost>,
    clock: Arc<dyn Clock>,
    sessions: Mutex<HashMap<SessionId, Slot>>,
}

/// A session that this process decides for, and its state after the last decision, if it was remembered.
type Slot = Arc<tokio::sync::Mutex<Option<Live>>>;

impl Decider {
    /// Decides on a log, with what a machine has.
    pub fn new(log: SharedLog, host: Arc<dyn SessionHost>, clock: Arc<dyn Clock>) -> Self {
        Self { log, host, clock, sessions: Mutex::default() }
    }

    /// Takes all that is new in a session's log, appends what follows, and says what is to be done.
    pub async fn decide(
        &self,
        session: &SessionId,
        lost: &[LostAttempt],
        stop: Option<&str>,
    ) -> Result<Decision, DecideError> {
        let slot = self.slot(session);
        let mut slot = slot.lock().await;
        let mut live = match slot.take() {
            Some(live) => live,
            None => self.open(session).await?,
        };
        let (mut lost, mut stop) = (lost, stop);
        loop {
            live.pull(&self.log).await?;
            let now = self.now(&mut live);
            let mut step = Segment::new(Writer::Decider, live.position);
            live.take_requests(&self.log, &mut step, now).await?;
            live.take_lost(lost, &mut step, now);
            if let Some(reason) = stop {
                live.stop(reason, &mut step, now);
            }
            live.settle(&mut step, now);
            if step.is_empty() {
                break;
            }
            match self.store(&mut live, step).await? {
                Stored::AsDecided => (lost, stop) = (&[], None),
                Stored::BehindOthers => {
                    stop = None;
                    // What this process remembers is in another order than the log.
                    live = self.reopen(live)?;
                }
                Stored::Overtaken => live = self.open(session).await?,
            }
        }
        let now = self.now(&mut live);
        let decision = live.decision(now);
        if !decision.has_ended {
            *slot = Some(live);
        }
        Ok(decision)
    }

    /// Forgets what is remembered of a session: its log is read anew.
    pub async fn forget(&self, session: &SessionId) {
        let slot = self.slot(session);
        drop(slot.lock().await.take());
    }

    fn slot(&self, session: &SessionId) -> Slot {
        let mut sessions = self.sessions.lock();
        if sessions.len() >= REMEMBERED && !sessions.contains_key(session) {
            // One that is in use right now stays with its user.
            sessions.retain(|_, slot| Arc::strong_count(slot) > 1);
        }
        Arc::clone(sessions.entry(session.clone()).or_default())
    }

    /// The time, which never goes back within a session: where the clock of another machine is ahead, it continues from the
    /// last event.
    fn now(&self, live: &mut Live) -> Timestamp {
        if live.clock.now() < live.last_at {
            live.clock = LaterClock::not_before(live.last_at, Arc::clone(&self.clock));
        }
        live.clock.now()
    }

    async fn open(&self, session: &SessionId) -> Result<Live, DecideError> {
        let record = self.log.record(session).await?;
        let host = |error| DecideError::Host { session: session.clone(), error };
        let hosted = self.host.session(&record).map_err(host)?;
        let before = self.before(&record, &hosted.graph).await?;
        Live::new(record, hosted, before, Arc::clone(&self.clock)).map_err(host)
    }

    /// The same session from the facts that it has read.
    fn reopen(&self, live: Live) -> Result<Live, DecideError> {
        let host = |error| DecideError::Host { session: live.record.session.clone(), error };
        let mut again = Live::new(live.record.clone(), live.hosted, live.before, live.clock).map_err(host)?;
        for segment in live.read {
            again.apply(segment);
        }
        // What was read is stored without the events that decide nothing.
        (again.position, again.summary) = (live.position, live.summary);
        again.untaken.retain(|key| live.untaken.has(key));
        Ok(again)
    }

    /// What a session that continues another one takes over from it; `now` is the session's own flow.
    fn before<'a>(
        &'a self,
        record: &'a SessionRecord,
        now: &'a Graph,
    ) -> BoxFuture<'a, Result<Before, DecideError>> {
        self.before_of_parent(record, now).boxed()
    }

    async fn before_of_parent(&self, record: &SessionRecord, now: &Graph) -> Result<Before, DecideError> {
        let Some(parent) = &record.parent else { return Ok(Before::default()) };
        let of = match self.log.record(&parent.session).await {
            Ok(of) => of,
            // It was deleted meanwhile: what was not reused by then is done again.
            Err(LogError::UnknownSession(_)) => return Ok(Before::default()),
            Err(error) => return Err(error.into()),
        };
        let host = |error| DecideError::Host { session: record.session.clone(), error };
        let graph = self.host.session(&of).map_err(host)?.graph;
        let segments = self.log.segments(&parent.session, 1).await?;
        let Before { reusable: older, mut machines } = self.before(&of, &graph).await?;
        segments.iter().for_each(|segment| machines.note(segment));
        let log: Vec<_> = segments.into_iter().flat_map(|segment| segment.events).collect();
        Ok(Before { reusable: Some(Arc::new(parent.reusable(&of, &graph, &log, older, now))), machines })
    }

    /// Appends what was decided.
    async fn store(&self, live: &mut Live, mut segment: Segment) -> Result<Stored, DecideError> {
        let session = live.record.session.clone();
        let mut stored = Stored::AsDecided;
        while !self.log.append(&session, &segment).await? {
            let Some(other) = self.log.segment(&session, segment.position).await? else { continue };
            // An attempt that counts as lost, or is given up, may have ended meanwhile.
            let loses = |event: &Envelope| match (&event.event, &other.header.by) {
                (Event::TaskInterrupted { .. }, _) => true,
                (Event::TaskFailed { .. }, Writer::Attempt(key)) => {
                    event.context.task.as_ref() == Some(&key.path)
                }
                _ => false,
            };
            let is_overtaken =
                || other.header.done.is_some() && segment.events.iter().any(|event| loses(event));
            if other.header.by == Writer::Decider || is_overtaken() {
                return Ok(Stored::Overtaken);
            }
            stored = Stored::BehindOthers;
            let next = other.next();
            live.summary.apply(&other);
            live.read.push(Arc::new(other));
            segment.renumber(&session, next);
        }
        live.position = segment.next();
        live.summary.apply(&segment);
        live.begun(&segment);
        live.read.push(Arc::new(segment));
        if matches!(stored, Stored::AsDecided) {
            self.log.put_summary(&session, &live.summary).await?;
        }
        Ok(stored)
    }
}

/// How a decision was stored.
enum Stored {
    /// Nothing came in between.
    AsDecided,
    /// Attempts have appended something before it.
    BehindOthers,
    /// Not at all: another process has decided.
    Overtaken,
}
