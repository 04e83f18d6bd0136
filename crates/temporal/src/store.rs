//! The shared log as a run store, for all that reads sessions and sends them commands. Nothing here runs a session: that
//! is what workers do.

mod continued;
mod run_store;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use tokio::time::Instant;

use inspan_flow_core::SessionRecord;
use inspan_protocol::{NodePath, SessionId, SessionStatus, Timestamp};
use inspan_store::{Liveness, Owner, SessionEntry, StoreError, async_trait};
use parking_lot::Mutex;

use crate::log::{
    LogError, LogPosition, PostedRequest, ResumeRequest, SessionRequest, SharedLog, Summary, may_be_gone,
    needs_no_worker,
};
use continued::KnownRecord;

/// How often a reader looks for new events.
const LOOK: Duration = Duration::from_millis(150);
/// How many sessions are read at once for a list.
const READS: usize = 16;
/// For how long what the server says of a session counts.
const SAID: Duration = Duration::from_secs(3);
/// How long the server may take to say it.
const SERVER: Duration = Duration::from_secs(3);
/// After how long it is asked again about a session that has not begun: its starter may be telling it right now.
const TOLD: Duration = Duration::from_secs(1);
/// After how long a session that has ended is not read again: its last events may come late.
const SETTLED: Duration = Duration::from_secs(60);
/// How many sessions' summaries are remembered.
const REMEMBERED: usize = 256;

/// The shared log as a run store.
pub struct SharedStore {
    log: SharedLog,
    /// The name of the engine, for people.
    engine: String,
    waker: Option<Arc<dyn SessionWaker>>,
    known: Mutex<Known>,
    summaries: Mutex<BTreeMap<SessionId, Summary>>,
    /// What the records say, as far as they were read: they never change.
    records: Mutex<BTreeMap<SessionId, KnownRecord>>,
    /// The sessions that have ended, and since when that is known.
    ended: Mutex<BTreeMap<SessionId, (Instant, SessionEntry)>>,
}

/// What the server has said in the last moments.
#[derive(Default)]
struct Known {
    /// How sessions run, and when that was said.
    runs: BTreeMap<SessionId, (Instant, WorkflowStatus)>,
    /// When it did not answer.
    silent: Option<Instant>,
}

/// What the server says of a session.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WorkflowStatus {
    /// Whether the session is one that the workers run, or wait in.
    pub runs: bool,
    /// The task queue of another session that runs under its id: that of an address with another queue.
    pub other_queue: Option<String>,
    /// The nodes that have begun and that no worker has taken.
    pub waiting_for_worker: Vec<NodePath>,
    /// The machine of each of them that one machine alone can run.
    pub waiting_for_machine: BTreeMap<NodePath, String>,
    /// Since when no worker has taken what is to be decided.
    pub undecided_since: Option<Timestamp>,
}

/// What tells the workers of a session that something is stored for them.
#[async_trait]
pub trait SessionWaker: Send + Sync {
    /// Whether and how the workers run the session. An error means that this is not known, and that they cannot be told now. It
    /// is asked before something is stored: what is reported as failed must not take effect later.
    async fn status(&self, session: &SessionId) -> Result<WorkflowStatus, String>;

    /// Tells them. An error means that they may not know yet.
    async fn wake(&self, session: &SessionId) -> Result<(), String>;
}

impl SharedStore {
    /// A store on the log. `engine` is where its sessions run, for people.
    pub fn new(log: SharedLog, engine: impl Into<String>) -> Self {
        Self {
            log,
            engine: engine.into(),
            waker: None,
            known: Mutex::default(),
            summaries: Mutex::default(),
            records: Mutex::default(),
            ended: Mutex::default(),
        }
    }

    /// Tells the workers by this of what is stored for them.
    #[must_use]
    pub fn with_waker(mut self, waker: impl SessionWaker + 'static) -> Self {
        self.waker = Some(Arc::new(waker));
        self
    }

    /// The log.
    pub fn log(&self) -> &SharedLog {
        &self.log
    }

    /// Stores a new session, and has it started. If that fails the session counts as interrupted until it is resumed.
    pub async fn add(&self, record: &SessionRecord) -> Result<(), StoreError> {
        self.check_id(&record.session).await?;
        self.log.check_keys().await.map_err(refused)?;
        if let Some(old) = record.continues() {
            if let Some(by) = self.continuation(old).await? {
                return Err(StoreError::Continued { session: old.clone(), by });
            }
            let known = record.parent.as_ref().map_or(0, |parent| parent.seq);
            self.check_rests(old, known).await?;
            self.claim(old, &record.session).await?;
            // It may have been resumed before it was claimed; now the workers do not resume it any more.
            self.check_rests(old, known).await?;
        }
        self.log.create(record).await.map_err(refused)?;
        let session = &record.session;
        let begun = self.wake(session, format!("session `{session}`")).await;
        if begun.is_err() {
            // The one who reads it is better off with the error of the server than with one of the log.
            let _ =
                self.log.put_summary(session, &Summary { is_unstarted: true, ..Summary::default() }).await;
        }
        begun
    }

    /// Fails if the workers still run a session, or wait in it, or are about to, or if it has newer events than are known.
    async fn check_rests(&self, session: &SessionId, known: u64) -> Result<(), StoreError> {
        let summary = self.summary(session).await?;
        let requests = self.log.requests(session).await.map_err(refused)?;
        let is_resumed = self.is_resumed(session, &summary, &requests).await?;
        if !needs_no_worker(summary.facts.status)
            || (is_resumed && (self.waker.is_none() || self.check(session).await?))
        {
            return self.held(session);
        }
        match summary.facts.last_seq > known {
            true => Err(StoreError::HasNewEvents(session.clone())),
            false => Ok(()),
        }
    }

    /// Fails if the workers of a session cannot be told now. Gives whether it runs.
    async fn check(&self, session: &SessionId) -> Result<bool, StoreError> {
        let Some(waker) = &self.waker else { return Ok(false) };
        let said = waker.status(session).await.map_err(StoreError::Unreachable)?;
        self.remember(session, &said);
        match said.other_queue {
            None => Ok(said.runs),
            Some(queue) => {
                let whose = format!("a session whose address has `queue={queue}`");
                Err(self.taken(session, &whose))
            }
        }
    }

    /// The same for a new session, whose id must not be that of one that runs and is stored elsewhere: the workers of that one
    /// would be told, and this one would wait without an end.
    async fn check_id(&self, session: &SessionId) -> Result<(), StoreError> {
        let runs = self.check(session).await?;
        match self.log.record(session).await {
            Err(LogError::UnknownSession(_)) if runs => {
                Err(self.taken(session, "a session that is stored in another folder or bucket"))
            }
            _ => Ok(()),
        }
    }

    fn taken(&self, session: &SessionId, by: &str) -> StoreError {
        let engine = self.engine.clone();
        StoreError::IdTaken { session: session.clone(), engine, by: by.to_owned() }
    }

    /// Whether the server says that it does not run a session that has begun and has not ended.
    pub(crate) async fn is_gone(&self, session: &SessionId, status: SessionStatus) -> bool {
        may_be_gone(status) && self.workflow_status(session).await.is_some_and(|said| !said.runs)
    }

    /// What the server says of a session.
    async fn workflow_status(&self, session: &SessionId) -> Option<WorkflowStatus> {
        let waker = self.waker.as_ref()?;
        {
            let known = self.known.lock();
            match known.runs.get(session) {
                Some((at, said)) if at.elapsed() < SAID => return Some(said.clone()),
                _ if known.silent.is_some_and(|at| at.elapsed() < SAID) => return None,
                _ => {}
            }
        }
        let said = tokio::time::timeout(SERVER, waker.status(session)).await;
        let Ok(Ok(said)) = said else {
            self.known.lock().silent = Some(Instant::now());
            return None;
        };
        self.remember(session, &said);
        Some(said)
    }

    fn remember(&self, session: &SessionId, said: &WorkflowStatus) {
        let mut known = self.known.lock();
        if known.runs.len() >= REMEMBERED {
            known.runs.clear();
        }
        known.runs.insert(session.clone(), (Instant::now(), said.clone()));
    }

    /// Tells the workers; `what` is what they are told of.
    async fn wake(&self, session: &SessionId, what: String) -> Result<(), StoreError> {
        let Some(waker) = &self.waker else { return Ok(()) };
        let told = waker.wake(session).await;
        self.known.lock().runs.remove(session);
        told.map_err(|why| StoreError::NotNotified { session: session.clone(), what, why })
    }

    /// Asks a paused session to continue. Gives the number of the request.
    pub async fn resume(
        &self,
        session: &SessionId,
        resume: inspan_flow::Resume,
        now: Timestamp,
    ) -> Result<u64, StoreError> {
        let inspan_flow::Resume { message, messages, budget } = resume;
        let facts = self.summary(session).await?.facts;
        let is_lost = self.is_gone(session, facts.status).await;
        let resume = ResumeRequest { message, messages, budget, is_lost, seen: Some(facts.last_seq) };
        self.request(session, None, SessionRequest::Resume(resume), now).await
    }

    async fn request(
        &self,
        session: &SessionId,
        key: Option<&str>,
        request: SessionRequest,
        at: Timestamp,
    ) -> Result<u64, StoreError> {
        let Summary { facts, is_unstarted, .. } = self.summary(session).await?;
        let status = facts.status;
        if status.has_ended() {
            return Err(StoreError::SessionEnded(session.clone()));
        }
        self.check(session).await?;
        // Only a paused session is continued by another, and to look for that one may take a reading of all records.
        if status == SessionStatus::Paused
            && let Some(by) = self.continuation(session).await?
        {
            return Err(StoreError::Continued { session: session.clone(), by });
        }
        let is_resume = matches!(request, SessionRequest::Resume(_));
        let goes_on = is_resume && status == SessionStatus::Paused;
        if goes_on {
            self.check_unclaimed(session).await?;
        }
        let posted = PostedRequest { at, key: key.map(str::to_owned), unique: String::new(), request };
        let number = self.log.post(session, &posted).await.map_err(refused)?;
        // It waits for the resume, which says that what ran is lost.
        if !is_resume && self.is_gone(session, facts.status).await {
            return Ok(number);
        }
        self.wake(session, format!("the command to session `{session}`")).await?;
        if goes_on {
            // The workers do not resume a session that another one was begun to continue meanwhile.
            self.check_unclaimed(session).await?;
        }
        if is_unstarted {
            // The first segment of its log says the same.
            let _ = self.log.put_summary(session, &Summary::default()).await;
        }
        Ok(number)
    }

    /// Whether a paused session was asked to continue, and no worker has taken that yet. `requests` are all numbers.
    async fn is_resumed(
        &self,
        session: &SessionId,
        summary: &Summary,
        requests: &[u64],
    ) -> Result<bool, StoreError> {
        if summary.facts.status != SessionStatus::Paused {
            return Ok(false);
        }
        let open = self.open_requests(session, summary, requests).await?;
        Ok(open.iter().any(|(_, posted)| matches!(posted.request, SessionRequest::Resume(_))))
    }

    /// Those of the requests with these numbers that no worker has answered.
    async fn open_requests(
        &self,
        session: &SessionId,
        summary: &Summary,
        requests: &[u64],
    ) -> Result<Vec<(u64, PostedRequest)>, StoreError> {
        let answered = summary.answered();
        let mut open = Vec::new();
        for &number in requests.iter().filter(|number| **number > answered) {
            let posted = self.log.request(session, number).await.map_err(refused)?;
            open.extend(posted.map(|posted| (number, posted)));
        }
        Ok(open)
    }

    /// What the log says now.
    async fn summary(&self, session: &SessionId) -> Result<Summary, StoreError> {
        let known = self.summaries.lock().get(session).cloned();
        let mut summary = match known {
            Some(known) => known,
            None => self.log.summary(session).await.map_err(refused)?,
        };
        while let Some(segment) = self.log.segment(session, summary.next).await.map_err(refused)? {
            summary.apply(&segment);
        }
        // As long as there is no log, another process may say whether the session was started.
        if summary.next == LogPosition::default() {
            return Ok(summary);
        }
        let mut summaries = self.summaries.lock();
        if summaries.len() >= REMEMBERED {
            summaries.clear();
        }
        summaries.insert(session.clone(), summary.clone());
        Ok(summary)
    }

    async fn entry_of(&self, session: SessionId) -> Result<SessionEntry, StoreError> {
        let ended = self.ended.lock().get(&session).cloned();
        let since = match ended {
            Some((since, entry)) if since.elapsed() > SETTLED => return Ok(entry),
            Some((since, _)) => since,
            None => Instant::now(),
        };
        let record = self.known_record(&session).await.map_err(refused)?;
        let mut summary = self.summary(&session).await?;
        let requests = self.log.requests(&session).await.map_err(refused)?;
        // A command that comes now is taken after the request to continue.
        let is_resumed = self.is_resumed(&session, &summary, &requests).await?;
        let is_asked = is_resumed || summary.is_open();
        let mut said = match is_asked {
            true => self.workflow_status(&session).await,
            false => None,
        };
        if summary.facts.status == SessionStatus::Idle && said.as_ref().is_some_and(|said| !said.runs) {
            tokio::time::sleep(TOLD).await;
            self.known.lock().runs.remove(&session);
            said = self.workflow_status(&session).await;
        }
        let is_unknown = is_asked && self.waker.is_some() && said.is_none();
        let is_gone = said.as_ref().is_some_and(|said| !said.runs);
        if is_gone {
            // It may have ended since its log was read.
            summary = self.summary(&session).await?;
        }
        // One that the server has lost is paused still.
        let is_open = summary.is_open() || (is_resumed && !is_gone);
        let (answered, facts) = (summary.answered(), summary.facts);
        let said = said.filter(|_| is_open && !is_gone).unwrap_or_default();
        let entry = SessionEntry {
            flow: record.flow,
            created_at: record.created_at,
            owner: is_open.then(|| self.owner()),
            liveness: if is_open && !is_gone { Liveness::Alive } else { Liveness::Gone },
            unanswered: match facts.status.has_ended() {
                true => 0,
                false => requests.iter().filter(|number| **number > answered).count() as u64,
            },
            // A worker applies every command at once.
            answered: Vec::new(),
            continued_by: None,
            is_replay: record.is_replay,
            waiting_for_worker: said.waiting_for_worker,
            waiting_for_machine: said.waiting_for_machine,
            undecided_since: said.undecided_since,
            is_unknown,
            damage: None,
            digest: facts,
            session,
        };
        if entry.digest.status.has_ended() {
            self.ended.lock().insert(entry.session.clone(), (since, entry.clone()));
        }
        Ok(entry)
    }

    /// Only workers run sessions.
    fn held<T>(&self, session: &SessionId) -> Result<T, StoreError> {
        Err(StoreError::Held { session: session.clone(), owner: Box::new(self.owner()) })
    }

    /// The owner of a session: the workers, any of them.
    pub(crate) fn owner(&self) -> Owner {
        Owner { machine: String::new(), host: self.engine.clone(), pid: 0, began: 0 }
    }
}

/// The log's error as a store's.
fn refused(error: LogError) -> StoreError {
    match error {
        LogError::UnknownSession(session) => StoreError::UnknownSession(session),
        LogError::SessionExists(session) => StoreError::SessionExists(session),
        LogError::Damaged { object, what } => StoreError::DamagedObject { object, what },
        LogError::OtherKey { object, what } => StoreError::OtherKey { object, what },
        LogError::Objects(message) | LogError::Unusable(message) => StoreError::Shared(message),
    }
}
