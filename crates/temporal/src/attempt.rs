//! An attempt on a worker: its node runs on its own hub, whose events are appended to the session's
//! log, and the node gets answers, messages and its end from the log.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    io,
    path::PathBuf,
    sync::{Arc, OnceLock},
    time::Duration,
};

use futures::future::BoxFuture;
use inspan_engine::{Clock, Filter, Hub, LaterClock, RandomIds, Subscription};
use inspan_flow::{LocalBackend, Progress, RunStore, run_attempt};
use inspan_flow_core::{AttemptDone, AttemptEnd, AttemptSpec, FACTS};
use inspan_protocol::{
    AgentError, Command, Envelope, ErrorCode, ErrorKind, Event, PromptId, SessionId, Timestamp,
};
use inspan_store::room_at;
use tokio::{
    task,
    time::{Instant, MissedTickBehavior, interval, timeout},
};
use tokio_util::sync::CancellationToken;

use crate::{
    decide::{HostedAttempt, RunningAttempt, SessionHost},
    lock::{AttemptLock, Locked},
    log::{AttemptKey, LogError, LogPosition, Segment, SharedLog, Writer, unique},
    seen::{Seen, SeenLog},
    store::SharedStore,
};

/// How often the log is read for what concerns the attempt, and its events are appended.
const LOOK: Duration = Duration::from_millis(200);
/// How many events are appended at once.
const BATCH: usize = 1_000;
/// How many events may wait while the log cannot be written.
const BACKLOG: usize = 100_000;
/// How long the log may fail before the attempt is given up.
const PATIENCE: Duration = Duration::from_secs(120);
/// How long the end of an attempt is held while the log cannot be written: its work is done, and waiting loses nothing.
const PATIENCE_AT_END: Duration = Duration::from_secs(600);
/// How long an attempt waits for another worker of its machine that still runs its node.
const LONGEST_LOCK: Duration = Duration::from_secs(30 * 60);
/// How often it looks whether that worker has ended.
const LOCK_LOOK: Duration = Duration::from_millis(500);
/// How often the log is read for requests that no worker was told of: who stored them may be gone.
const REQUESTS: Duration = Duration::from_secs(10);
/// How often it is said that the log does not answer.
const REPORT: Duration = Duration::from_secs(30);
/// A session hears at once of an attempt with a timeout that began so much later than it was given to the workers.
const LATE: Duration = Duration::from_secs(1);
/// The facts after which a session has nothing to decide.
const UNREMARKABLE: [&str; 4] = ["agent:start", "agent:turn", "agent:session", "agent:complete"];

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
            is_to_say_when: spec.timeout_ms.is_some(),
            position: begun.next(),
            hub: hub.clone(),
            cancel: cancel.clone(),
            events,
            waiting: Vec::new(),
            is_done: false,
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
            Ok(done) => link.catch_up(Some(done)).await,
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

/// Since when the log has not answered, and when that was reported last.
#[derive(Default)]
struct LogSilence(Option<(Instant, Instant)>);

impl LogSilence {
    /// The log does not answer. For how long, if that is to be reported: at once, and then now and then.
    fn note(&mut self) -> Option<Duration> {
        let now = Instant::now();
        let (since, reported) = self.0.unwrap_or((now, now));
        let is_due = self.0.is_none() || now.duration_since(reported) >= REPORT;
        self.0 = Some((since, if is_due { now } else { reported }));
        is_due.then(|| now.duration_since(since))
    }

    /// It answers. For how long it did not, if it did not.
    fn end(&mut self) -> Option<Duration> {
        self.0.take().map(|(since, _)| since.elapsed())
    }
}

/// Between the hub of an attempt and the log of its session.
struct AttemptFollower<'a> {
    log: &'a SharedLog,
    store: &'a SharedStore,
    seen: &'a SeenLog,
    notify: &'a (dyn Fn(SessionId) -> BoxFuture<'static, ()> + Send + Sync),
    machine: &'a str,
    runner: String,
    session: &'a SessionId,
    key: AttemptKey,
    spec: AttemptSpec,
    /// When it was given to the workers, and when it began here.
    given: Timestamp,
    began: Arc<OnceLock<Timestamp>>,
    /// Whether the log is to have when it began, and does not.
    is_to_say_when: bool,
    /// Where the log continues.
    position: LogPosition,
    hub: Hub,
    cancel: CancellationToken,
    events: Subscription,
    /// Events that are not in the log yet.
    waiting: Vec<Arc<Envelope>>,
    /// Whether the log has the end of the attempt.
    is_done: bool,
    /// Answers in the log to questions that the hub has not asked.
    replies: BTreeMap<PromptId, (String, Option<String>)>,
    /// Questions whose answers came from the log.
    replied: BTreeSet<PromptId>,
    /// Messages that have no receiver yet.
    mail: VecDeque<Command>,
    /// Whether the log is to have that the worker leaves the attempt, and does not.
    is_to_say_left: bool,
    silence: LogSilence,
}

impl AttemptFollower<'_> {
    /// Appends what happens and takes what the log brings, until the attempt must end here.
    async fn follow(&mut self) -> AttemptError {
        let mut tick = interval(self.log.look(LOOK));
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut worked_at, mut asked_at) = (Instant::now(), Instant::now());
        loop {
            tokio::select! {
                event = self.events.next() => {
                    let Some(event) = event else { return AttemptError::GivenUp };
                    let is_fact = FACTS.contains(&event.event.name());
                    self.take(event);
                    if !is_fact && self.waiting.len() < BATCH {
                        continue;
                    }
                }
                _ = tick.tick() => {}
            }
            match self.exchange(None).await {
                // Another worker has ended it.
                Ok(()) if self.is_done => return AttemptError::GivenUp,
                Ok(()) => {
                    worked_at = Instant::now();
                    self.log_answers();
                }
                Err(AttemptError::Log(error)) if worked_at.elapsed() < PATIENCE => {
                    self.log_is_silent(&error).await;
                }
                Err(error) => return error,
            }
            if asked_at.elapsed() >= REQUESTS {
                asked_at = Instant::now();
                // Who stored a request may have died before it told the workers of that.
                if self.store.unanswered(self.session).await.is_ok_and(|requests| !requests.is_empty()) {
                    (self.notify)(self.session.clone()).await;
                }
            }
        }
    }

    /// Takes all that the log has, and appends the rest; with the end, if there is one.
    async fn catch_up(&mut self, done: Option<AttemptDone>) -> Result<(), AttemptError> {
        let since = Instant::now();
        let patience = if done.is_some() { PATIENCE_AT_END } else { PATIENCE };
        loop {
            match self.exchange(done.clone()).await {
                Err(AttemptError::Log(error)) if since.elapsed() < patience => {
                    self.log_is_silent(&error).await;
                }
                stored => {
                    if stored.is_ok() {
                        self.log_answers();
                    }
                    return stored;
                }
            }
        }
    }

    async fn log_is_silent(&mut self, error: &LogError) {
        if let Some(time) = self.silence.note() {
            tracing::warn!(attempt = %self.key, %error, seconds = time.as_secs(), "the shared log does not answer");
        }
        tokio::time::sleep(LOOK).await;
    }

    fn log_answers(&mut self) {
        if let Some(time) = self.silence.end() {
            tracing::warn!(attempt = %self.key, seconds = time.as_secs(), "the shared log answers again");
        }
    }

    /// Appends the events of an interrupted attempt, if the log takes them.
    async fn flush_what_is_left(&mut self) {
        // The session continues without it.
        let _unsaid = timeout(LOOK * 10, self.exchange(None)).await;
    }

    /// Whether the session ends it. Its programs do not wait for the answer of a log that is away.
    async fn is_to_end(&mut self) -> bool {
        let _unsaid = timeout(LOOK, self.exchange(None)).await;
        self.cancel.is_cancelled()
    }

    /// An event that the log does not have: all but the answers that came from it.
    fn take(&mut self, event: Arc<Envelope>) {
        let is_known = match &event.event {
            Event::SessionReply { prompt_id, .. } => self.replied.contains(prompt_id),
            Event::SessionRejected { .. } => true,
            _ => false,
        };
        if !is_known {
            self.waiting.push(event);
        }
    }

    async fn exchange(&mut self, done: Option<AttemptDone>) -> Result<(), AttemptError> {
        while let Some(seen) = self.seen.at(self.session, self.position).await? {
            self.receive(&seen)?;
        }
        self.deliver();
        while let Some(event) = self.events.try_next() {
            self.take(event);
        }
        while !self.is_done
            && (!self.waiting.is_empty()
                || done.is_some()
                || self.unreported_start().is_some()
                || self.is_to_say_left)
        {
            let segment = self.next_segment(done.as_ref());
            if !self.log.append(self.session, &segment).await? {
                if let Some(other) = self.seen.at(self.session, self.position).await? {
                    self.receive(&other)?;
                }
                continue;
            }
            self.receive(&self.seen.put(self.session, &segment))?;
            let is_notable = |name: &str| FACTS.contains(&name) && !UNREMARKABLE.contains(&name);
            let is_late = segment.header.began.is_some_and(|at| at.since(self.given) >= LATE);
            if !self.is_done && (is_late || segment.events.iter().any(|event| is_notable(event.event.name())))
            {
                (self.notify)(self.session.clone()).await;
            }
        }
        Ok(())
    }

    /// When it began, if the log does not have that yet.
    fn unreported_start(&self) -> Option<Timestamp> {
        self.began.get().copied().filter(|_| self.is_to_say_when)
    }

    /// What the log does not have yet, as far as it is appended at once; with the end if that is all.
    fn next_segment(&self, done: Option<&AttemptDone>) -> Segment {
        let mut segment = Segment::new(Writer::Attempt(self.key.clone()), self.position);
        segment.header.machine = Some(self.machine.to_owned());
        segment.header.runner = Some(self.runner.clone());
        segment.header.began = self.unreported_start();
        segment.events = self.waiting.iter().take(BATCH).cloned().collect();
        let is_last = segment.events.len() == self.waiting.len();
        segment.header.done = done.filter(|_| is_last).cloned();
        segment.header.left = is_last && self.is_to_say_left;
        segment.renumber(self.session, self.position);
        segment
    }

    /// Takes what was appended: by others, or by the attempt itself. Its own may have been stored by an `exchange` that was
    /// cut off, or failed, before it knew; so this, and only this, ends their waiting.
    fn receive(&mut self, seen: &Seen) -> Result<(), AttemptError> {
        self.position = seen.next;
        if seen.runner.as_ref() == Some(&self.runner) {
            self.waiting.drain(..seen.events);
            self.is_to_say_when &= !seen.says_when;
            self.is_to_say_left &= !seen.says_left;
        }
        self.is_done |= seen.is_done && seen.by == Writer::Attempt(self.key.clone());
        if seen.by != Writer::Decider {
            return Ok(());
        }
        let AttemptKey { path, attempt } = &self.key;
        if seen.over.iter().any(|(place, up_to)| place == path && attempt <= up_to) {
            return Err(AttemptError::GivenUp);
        }
        if seen.cancel.contains(&self.key) {
            self.cancel.cancel();
        }
        self.replies.extend(seen.replies.iter().cloned());
        self.mail
            .extend(seen.mail.iter().filter(|command| self.is_for_us(command)).cloned().collect::<Vec<_>>());
        Ok(())
    }

    fn is_for_us(&self, command: &Command) -> bool {
        match command {
            Command::Send { .. } => true,
            Command::SendTo { node, .. } => *node == self.spec.node_id,
            Command::SendToRun { run, .. } | Command::Close { run } => self.hub.active_runs().contains(run),
            _ => false,
        }
    }

    /// Gives the hub what the log has brought, once it takes it.
    fn deliver(&mut self) {
        for open in self.hub.open_prompts() {
            if let Some((content, choice)) = self.replies.remove(&open.prompt_id) {
                self.replied.insert(open.prompt_id.clone());
                // It was checked before it came into the log.
                let _refused = self.hub.reply(open.prompt_id, content, choice);
            }
        }
        let runs = self.hub.active_runs();
        self.mail.retain_mut(|command| {
            let is_taken = match command {
                // What was for the run of a lost attempt is for that of this one, once it has begun.
                Command::SendToRun { run, .. } | Command::Close { run } => {
                    if let (false, [own, ..]) = (runs.contains(run), &runs[..]) {
                        run.clone_from(own);
                    }
                    runs.contains(run)
                }
                _ => self.hub.has_taker(command),
            };
            if is_taken {
                // A run that has just ended takes no more.
                let _refused = self.hub.command(command.clone());
            }
            !is_taken
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_log_that_does_not_answer_is_reported_at_once_every_half_minute_and_when_it_is_back() {
        let (mut silence, mut reported) = (LogSilence::default(), Vec::new());
        for _ in 0..=325 {
            reported.extend(silence.note());
            tokio::time::advance(LOOK).await;
        }
        reported.extend(silence.end());
        assert_eq!(reported.iter().map(Duration::as_secs).collect::<Vec<_>>(), [0, 30, 60, 65]);
        assert_eq!(silence.end(), None);
    }
}
