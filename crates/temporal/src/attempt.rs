//! An attempt on a worker: its node runs on its own hub, whose events are appended to the session's
//! log, and the node gets answers, messages and its end from the log.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    path::PathBuf,
    sync::{Arc, OnceLock},
    time::Duration,
};

use futures::future::BoxFuture;
use inspan_engine::{Clock, Filter, Hub, LaterClock, RandomIds};
use inspan_flow::{LocalBackend, Progress, RunStore, run_attempt};
use inspan_flow_core::{AttemptDone, AttemptEnd, AttemptSpec};
use inspan_protocol::{AgentError, ErrorCode, ErrorKind, SessionId, Timestamp};
use inspan_store::room_at;
use tokio::{
    task,
    time::{Instant, timeout},
};
use tokio_util::sync::CancellationToken;

use crate::{
    decide::{HostedAttempt, RunningAttempt, SessionHost},
    lock::{AttemptLock, Locked},
    log::{AttemptKey, LogError, SharedLog, unique},
    seen::SeenLog,
    store::SharedStore,
};

mod follower;

use follower::{AttemptFollower, LogSilence};

/// How many events may wait while the log cannot be written.
const BACKLOG: usize = 100_000;
/// How long an attempt waits for another worker of its machine that still runs its node.
const LONGEST_LOCK: Duration = Duration::from_secs(30 * 60);
/// How often it looks whether that worker has ended.
const LOCK_LOOK: Duration = Duration::from_millis(500);

/// Why an attempt has no end in the log. Its worker is of no use to it any longer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AttemptError {
    /// The log was not read or written.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The log does not say what the attempt is to do.
    #[error("the log of session `{session}` has no attempt `{attempt}`")]
    Unknown {
        /// The session.
        session: SessionId,
        /// The attempt.
        attempt: String,
    },
    /// The session counts the attempt as lost.
    #[error("the session has given the attempt up")]
    GivenUp,
    /// Another worker has begun it. What that one has done is known only if the log has its end.
    #[error("another worker has begun it already")]
    BegunElsewhere,
    /// The worker stops.
    #[error("the worker stops")]
    WorkerStops,
    /// The worker stops, and has not begun it.
    #[error("the worker stopped before it started the attempt")]
    NeverBegan,
    /// This machine cannot run it; another one perhaps can.
    #[error("machine `{machine}` cannot run it: {why}")]
    Unfit {
        /// The machine.
        machine: String,
        /// Why.
        why: AgentError,
    },
}

/// Runs attempts on this machine.
pub struct AttemptRunner {
    log: SharedLog,
    seen: SeenLog,
    store: Arc<SharedStore>,
    /// The name of this machine: conversations are on the machine where they began.
    machine: String,
    host: Arc<dyn SessionHost>,
    clock: Arc<dyn Clock>,
    /// Called when a session may have to decide something.
    notify: Arc<dyn Fn(SessionId) -> BoxFuture<'static, ()> + Send + Sync>,
    /// The folder of the locks of this machine.
    locks: PathBuf,
}

impl AttemptRunner {
    /// Runs attempts of the sessions of a log on the machine of this name. `notify` is called when a session may have to
    /// decide something. `locks` is a folder of the machine: of several workers that share it, one at a time runs a node.
    pub fn new(
        log: SharedLog,
        machine: impl Into<String>,
        host: Arc<dyn SessionHost>,
        clock: Arc<dyn Clock>,
        notify: Arc<dyn Fn(SessionId) -> BoxFuture<'static, ()> + Send + Sync>,
        locks: impl Into<PathBuf>,
    ) -> Self {
        let store = Arc::new(SharedStore::new(log.clone(), "the workers"));
        let seen = SeenLog::new(log.clone());
        Self { log, seen, store, machine: machine.into(), host, clock, notify, locks: locks.into() }
    }

    /// Waits until no other worker of this machine runs the node: one that was frozen or has lost the server may still be
    /// in its conversation.
    async fn lock(
        &self,
        spec: &AttemptSpec,
        cancel: &CancellationToken,
    ) -> Result<Result<AttemptLock, AttemptEnd>, AttemptError> {
        let failed = |why: String| AgentError::new(ErrorCode::Process, why);
        let full = |why: &dyn std::fmt::Display| {
            let folder = self.locks.display();
            let why = format!("it cannot write {folder}: {why}; it runs nothing until there is space");
            self.unfit(failed(why).with_kind(ErrorKind::DiskFull))
        };
        if room_at(&self.locks).is_err() {
            return Err(full(&"the disk is full"));
        }
        let (since, mut is_reported) = (Instant::now(), false);
        loop {
            if cancel.is_cancelled() {
                return Ok(Err(AttemptEnd::NeverBegan));
            }
            let holder = match AttemptLock::take(&self.locks, &spec.session, &spec.path) {
                Ok(Locked::Taken(lock)) => return Ok(Ok(lock)),
                Ok(Locked::Held(holder)) => holder,
                Err(error)
                    if matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded) =>
                {
                    return Err(full(&error));
                }
                Err(error) => {
                    let folder = self.locks.display();
                    return Err(
                        self.unfit(failed(format!("the attempt was not locked in {folder}: {error}")))
                    );
                }
            };
            if since.elapsed() >= LONGEST_LOCK {
                return Ok(Err(AttemptEnd::Error(failed(format!(
                    "another worker of this machine has been running it for {LONGEST_LOCK:?}: {holder}"
                )))));
            }
            if !std::mem::replace(&mut is_reported, true) {
                tracing::warn!(session = %spec.session, node = %spec.path, %holder, "another worker of this machine still runs it");
            }
            let _cancelled = timeout(LOCK_LOOK, cancel.cancelled()).await;
        }
    }

    fn unfit(&self, why: AgentError) -> AttemptError {
        AttemptError::Unfit { machine: self.machine.clone(), why }
    }

    /// Runs an attempt to its end, which is in the log when this returns. `leave` ends it without one: another worker
    /// runs it then.
    pub async fn run(
        &self,
        session: &SessionId,
        attempt: &RunningAttempt,
        leave: CancellationToken,
    ) -> Result<(), AttemptError> {
        let began = Arc::default();
        let ended = self.run_here(session, attempt, leave, &began).await;
        // Nobody is asked about an effect of what its machine could not begin.
        ended.map_err(|error| match error {
            error if began.get().is_some() => error,
            AttemptError::WorkerStops => AttemptError::NeverBegan,
            error @ (AttemptError::Log(_) | AttemptError::Unknown { .. }) => {
                self.unfit(AgentError::new(ErrorCode::Process, error.to_string()))
            }
            error => error,
        })
    }

    /// The same; `began` has when its node began.
    async fn run_here(
        &self,
        session: &SessionId,
        attempt: &RunningAttempt,
        leave: CancellationToken,
        began: &Arc<OnceLock<Timestamp>>,
    ) -> Result<(), AttemptError> {
        let unknown = || AttemptError::Unknown { session: session.clone(), attempt: attempt.name() };
        let record = self.log.record(session).await?;
        let begun = self.log.segment(session, attempt.begun).await?.ok_or_else(unknown)?;
        let spec = begun.header.begin.iter().find(|spec| AttemptKey::of(spec) == attempt.key);
        let spec = spec.cloned().ok_or_else(unknown)?;
        let given = begun.events.last().map_or(Timestamp::default(), |event| event.timestamp);
        let clock: Arc<dyn Clock> = LaterClock::not_before(given, Arc::clone(&self.clock));
        let hub = Hub::new(session.clone(), Arc::clone(&clock), Arc::new(RandomIds::new()));
        hub.start_session();
        hub.expect_store();
        let cancel = CancellationToken::new();
        let events = hub.subscribe_up_to(Filter::all(), BACKLOG);
        let forwarded = begun.header.forwarded.iter().filter(|(to, _)| *to == attempt.key);
        let mut link = AttemptFollower {
            log: &self.log,
            store: &self.store,
            seen: &self.seen,
            notify: &*self.notify,
            machine: &self.machine,
            runner: unique()?,
            session,
            key: attempt.key.clone(),
            spec: spec.clone(),
            given,
            began: Arc::clone(began),
            is_to_say_when: spec.timeout_ms.is_some() || spec.is_external,
            position: begun.next(),
            hub: hub.clone(),
            cancel: cancel.clone(),
            events,
            waiting: Vec::new(),
            taken: 0,
            is_done: false,
            is_begun_elsewhere: false,
            replies: BTreeMap::new(),
            replied: BTreeSet::new(),
            mail: forwarded.map(|(_, command)| command.clone()).collect(),
            is_to_say_left: false,
            silence: LogSilence::default(),
        };
        // Between the decision that it begins and a worker that takes it may be days.
        tokio::select! {
            caught_up = link.catch_up(None) => caught_up?,
            () = leave.cancelled() => return Err(AttemptError::WorkerStops),
        }
        // The session has not seen its end yet. What has ended does not run again.
        if link.is_done {
            return Ok(());
        }
        // The server gives it out once more if its history of the session is lost or set back.
        if link.is_begun_elsewhere {
            return Err(AttemptError::BegunElsewhere);
        }
        if cancel.is_cancelled() {
            return link.catch_up(Some(ended(&spec, AttemptEnd::NeverBegan))).await;
        }
        let work = async {
            let _lock = match self.lock(&spec, &cancel).await? {
                Ok(lock) => lock,
                Err(end) => return Ok(ended(&spec, end)),
            };
            // It may copy files for long, and the server must hear from the attempt meanwhile.
            let (host, of) = (Arc::clone(&self.host), record.clone());
            let hosted = task::spawn_blocking(move || host.attempt(&of)).await;
            let hosted =
                hosted.unwrap_or_else(|failed| Err(AgentError::new(ErrorCode::Process, failed.to_string())));
            let HostedAttempt { session: hosted, providers } = hosted.map_err(|why| self.unfit(why))?;
            if let Some(name) = hosted.context.lacks(&spec.secrets) {
                let why =
                    format!("the environment variable {name}, which the flow's `secrets` name, is not set");
                return Err(self.unfit(AgentError::new(ErrorCode::ConfigMissing, why)));
            }
            if let Some(why) = hosted.context.lacks_agent(&spec, &providers) {
                return Err(self.unfit(why));
            }
            // Who decided may be another machine.
            let spec = match (&begun.header.artifacts, hosted.context.artifacts()) {
                (Some(decided), Some(here)) => spec.clone().with_artifacts(decided, here),
                _ => spec.clone(),
            };
            let store: Arc<dyn RunStore> = Arc::<SharedStore>::clone(&self.store);
            let backend = Arc::new(LocalBackend {
                hub: hub.with_phase(hosted.graph.phase.as_str()),
                surroundings: Arc::clone(&hosted.context),
                cancel: cancel.clone(),
                log: Some((store, session.clone())),
                is_log_current: false,
            });
            let _first = began.set(clock.now());
            let done = run_attempt(Arc::clone(&hosted.nodes), spec, Progress::default(), backend).await;
            providers.shutdown().await;
            Ok(done)
        };
        let mut work = std::pin::pin!(work);
        let mut is_ending = false;
        let followed = loop {
            tokio::select! {
                biased;
                done = &mut work => break done,
                () = leave.cancelled(), if !is_ending => {
                    // The server has no more use for an attempt that the session ends: its own end is to come into the log.
                    is_ending = link.is_to_end().await;
                    if !is_ending {
                        break Err(AttemptError::WorkerStops);
                    }
                }
                failed = link.follow() => break Err(failed),
            }
        };
        match followed {
            Ok(done) => match link.catch_up(Some(done)).await {
                // Where the log has no room for the result there may be some for a failure: the same work would come to the same
                // end again and again.
                Err(AttemptError::Log(error)) => {
                    let why = format!(
                        "it has ended, and the folder or bucket of the sessions does not take its result: {error}"
                    );
                    let end = AttemptEnd::Error(AgentError::new(ErrorCode::Process, why));
                    link.exchange(Some(ended(&spec, end))).await
                }
                stored => stored,
            },
            Err(unfit @ AttemptError::Unfit { .. }) => Err(unfit),
            Err(failed) => {
                // Its programs end before another attempt begins.
                cancel.cancel();
                let _cut_short = work.await;
                if matches!(failed, AttemptError::WorkerStops | AttemptError::Log(_)) {
                    link.is_to_say_left = true;
                    link.flush_what_is_left().await;
                }
                Err(failed)
            }
        }
    }
}

fn ended(spec: &AttemptSpec, end: AttemptEnd) -> AttemptDone {
    AttemptDone { node: spec.node, attempt: spec.attempt, end }
}
