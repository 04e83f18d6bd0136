//! Delivery: reads the stored events of sessions, sends each channel those that it is for, and records its progress
//! in the ledger.
//!
//! A channel has one worker. Before it sends, it stores up to which event the delivery goes; so after a crash the same
//! delivery is sent again with the same id, and nothing is left out. A channel that is down waits longer each time, and
//! disturbs no other channel and no session.

mod gathering;
mod pause;
mod worker;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use futures::{FutureExt, StreamExt, future::join_all};
use inspan_engine::Clock;
use inspan_protocol::{SessionId, Timestamp};
use inspan_store::{Owner, RunStore, SessionEntry};
use inspan_view::{Commands, DisplayStatus};
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use crate::{
    answers::Answers,
    ledger::{Holder, Ledger, LedgerError},
    send::{FaultReport, NotificationChannel, SlackApp},
    settings::ChannelSettings,
};
use worker::{KnownSession, Worker};

/// How long after a change the log is read: what happens together is sent together.
const SETTLE: Duration = Duration::from_millis(300);
/// After how long without a notification the store is read anyway.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long what listens may take to end.
const LISTENERS: Duration = Duration::from_secs(3);

/// The channels of a session. A session is sent to those of the folder that its flow is in.
pub trait ChannelSource: Send + Sync {
    /// The channels for flows of a folder, as the settings are now. Asked often: they may change while it is delivered.
    ///
    /// # Errors
    /// The settings there cannot be read.
    fn channels(&self, folder: &std::path::Path) -> Result<Vec<FolderChannel>, String>;

    /// A channel, ready to send.
    ///
    /// # Errors
    /// It cannot be used.
    fn open(&self, channel: &FolderChannel) -> Result<NotificationChannel, String>;
}

/// A channel of the settings.
#[derive(Clone, Debug, PartialEq)]
pub struct FolderChannel {
    /// Its name.
    pub name: String,
    /// The file that it is configured in.
    pub origin: String,
    /// Its settings.
    pub settings: ChannelSettings,
}

/// Which sessions are delivered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// One, by the process that runs it.
    Session(SessionId),
    /// All of the store.
    All,
}

/// Gives the address of a session's page.
pub type PageAddress = Arc<dyn Fn(&SessionId) -> String + Send + Sync>;

/// Takes a warning for people: one line.
pub type Warn = Arc<dyn Fn(&str) + Send + Sync>;

/// What a delivery needs.
#[derive(Clone)]
pub struct Delivery {
    /// The sessions.
    pub store: Arc<dyn RunStore>,
    /// How far each channel has come.
    pub ledger: Ledger,
    /// The channels.
    pub source: Arc<dyn ChannelSource>,
    /// The commands that messages name.
    pub commands: Arc<Commands>,
    /// The address of a session's page, if a server is known.
    pub page: Option<PageAddress>,
    /// What takes answers, if answers are taken here.
    pub answers: Option<Arc<Answers>>,
    /// The time.
    pub clock: Arc<dyn Clock>,
    /// Takes a warning: once for each channel that fails.
    pub warn: Warn,
    /// The channels of which a warning was given since their last success, by name and file. What is cloned shares them.
    pub warned: Arc<Mutex<BTreeSet<(String, String)>>>,
}

impl Delivery {
    /// Warns that a channel takes no answers, and records it for doctor.
    fn report_of(&self, channel: &Arc<NotificationChannel>) -> FaultReport {
        let (ledger, warn, channel) = (self.ledger.clone(), Arc::clone(&self.warn), Arc::clone(channel));
        Box::new(move |fault| {
            let (ledger, channel) = (ledger.clone(), Arc::clone(&channel));
            let fault = fault.map(|fault| channel.shown(&fault));
            if let Some(fault) = &fault {
                warn(&format!("the channel `{}` failed, and is tried again: {fault}", channel.name));
            }
            async move { drop(ledger.report(&channel.name, &channel.origin, fault).await) }.boxed()
        })
    }
}

/// What could not be sent before the end: another process sends it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Undelivered {
    /// The channels, each once.
    pub channels: Vec<String>,
    /// The channels among the rest that cannot be opened in this process, each once: it need not try them again.
    pub closed: Vec<String>,
    /// The channels for which another process still has something to send, each once.
    pub held: Vec<String>,
    /// The channels that refused a notification until it was given up, or for some receivers, each once: no process
    /// sends it.
    pub refused: Vec<String>,
    /// Whether the time was up before all of them had ended.
    pub is_cut: bool,
}

/// A delivery that runs beside a session.
///
/// Dropped, it ends at once.
pub struct RunningDelivery {
    shutdown: CancellationToken,
    task: AbortOnDropHandle<Undelivered>,
}

/// Starts to deliver. Must be called within a tokio runtime.
pub fn deliver(delivery: Delivery, scope: Scope) -> RunningDelivery {
    let shutdown = CancellationToken::new();
    let began = delivery.clock.now();
    let task = tokio::spawn(run(delivery, scope, began, shutdown.clone()));
    RunningDelivery { shutdown, task: AbortOnDropHandle::new(task) }
}

/// Delivers for all sessions of the store, those whose process is gone among them, until the token is cancelled; then
/// what is left is tried once more. Returns what could not be sent.
pub async fn deliver_all(delivery: Delivery, shutdown: CancellationToken) -> Undelivered {
    let began = delivery.clock.now();
    run(delivery, Scope::All, began, shutdown).await
}

/// Delivers once what the store has now, for all sessions. From `until` on nothing more is begun: what is being sent then
/// is sent to its end. Returns what could not be sent.
pub async fn deliver_once(delivery: Delivery, until: Instant) -> Undelivered {
    let began = delivery.clock.now();
    let mut scanner = Scanner::new(delivery, Scope::All, began, Some(until));
    let is_cut = timeout_at(until, scanner.scan()).await.is_err();
    Undelivered { is_cut, ..scanner.finish().await }
}

impl RunningDelivery {
    /// Delivers what is there by now and ends, after this time at the latest. What is left is for another process.
    pub async fn finish(mut self, limit: Duration) -> Undelivered {
        self.shutdown.cancel();
        match timeout(limit, &mut self.task).await {
            Ok(Ok(undelivered)) => undelivered,
            Ok(Err(_)) => Undelivered::default(),
            Err(_) => Undelivered { is_cut: true, ..Undelivered::default() },
        }
    }
}

async fn run(delivery: Delivery, scope: Scope, began: Timestamp, shutdown: CancellationToken) -> Undelivered {
    let mut scanner = Scanner::new(delivery, scope, began, None);
    let mut changes = scanner.delivery.store.changes();
    let mut forgotten = false;
    while !shutdown.is_cancelled() {
        let sessions = scanner.scan().await;
        // Rows of sessions that were deleted cost only space.
        if let Some(sessions) = sessions.filter(|_| !forgotten && scanner.scope == Scope::All) {
            forgotten = true;
            let _ = scanner.delivery.ledger.forget_others(sessions, began).await;
        }
        tokio::select! {
            () = shutdown.cancelled() => break,
            _ = timeout(PATIENCE, changes.next()) => {}
        }
        tokio::select! {
            () = shutdown.cancelled() => break,
            () = sleep(SETTLE) => {}
        }
    }
    scanner.scan().await;
    scanner.finish().await
}

/// Finds sessions with events that a channel has not seen, and notifies the channel's worker.
struct Scanner {
    delivery: Delivery,
    scope: Scope,
    holder: Holder,
    /// When this delivery began: what was before is not sent through a channel that is new.
    began: Timestamp,
    /// From when on nothing more is sent.
    until: Option<Instant>,
    /// The folder of each session's flow.
    folders: BTreeMap<SessionId, PathBuf>,
    /// The channels of each folder, as they were read for this search.
    known: BTreeMap<PathBuf, Vec<usize>>,
    /// The folders whose settings cannot be read.
    unreadable: BTreeSet<PathBuf>,
    /// Since when each channel is known, by name and file.
    since: BTreeMap<(String, String), Timestamp>,
    /// What was warned of.
    warned: BTreeSet<String>,
    workers: Vec<WorkerTask>,
    /// What takes answers: one connection for each app.
    listeners: BTreeMap<SlackApp, ListenerTask>,
}

struct ListenerTask {
    cancel: CancellationToken,
    task: AbortOnDropHandle<()>,
}

struct WorkerTask {
    worker: Arc<Worker>,
    since: Timestamp,
    /// Nothing if the channel cannot be used: the worker only says at the end whether it had something to send.
    task: Option<AbortOnDropHandle<()>>,
}

impl Scanner {
    fn new(delivery: Delivery, scope: Scope, began: Timestamp, until: Option<Instant>) -> Self {
        static DELIVERERS: AtomicU64 = AtomicU64::new(0);
        let number = DELIVERERS.fetch_add(1, Ordering::Relaxed);
        Self {
            began,
            until,
            delivery,
            scope,
            holder: Holder { owner: Owner::of_process(), number },
            folders: BTreeMap::new(),
            known: BTreeMap::new(),
            unreadable: BTreeSet::new(),
            since: BTreeMap::new(),
            warned: BTreeSet::new(),
            workers: Vec::new(),
            listeners: BTreeMap::new(),
        }
    }

    /// Searches once. Gives the sessions of the store, or nothing if it cannot be read now: it is read again later.
    async fn scan(&mut self) -> Option<Vec<SessionId>> {
        let entries = match &self.scope {
            Scope::Session(session) => self.delivery.store.entry(session).await.map(|entry| vec![entry]),
            Scope::All => self.delivery.store.entries("", usize::MAX).await,
        };
        let entries = entries.ok()?;
        for entry in entries.iter().filter(|entry| entry.damage.is_none()) {
            self.offer(entry).await;
        }
        // A channel that is in no settings any more sends nothing any more.
        let used: BTreeSet<usize> = self.known.values().flatten().copied().collect();
        let mut at = 0..;
        self.workers.retain(|_| at.next().is_some_and(|at| used.contains(&at)));
        self.known.clear();
        self.listen();
        Some(entries.into_iter().map(|entry| entry.session).collect())
    }

    /// Takes answers through the apps of the channels that are used.
    fn listen(&mut self) {
        let Some(answers) = &self.delivery.answers else { return };
        let channels = self.workers.iter().map(|task| &task.worker.channel);
        let used: BTreeMap<_, _> = channels
            .filter_map(|channel| channel.listener().map(|it| (it.app().clone(), (it, channel))))
            .collect();
        self.listeners.retain(|app, _| used.contains_key(app));
        for (app, (listener, channel)) in used {
            self.listeners.entry(app).or_insert_with(|| {
                let cancel = CancellationToken::new();
                let report = self.delivery.report_of(channel);
                let listening = listener.clone().listen(Arc::clone(answers), report, cancel.clone());
                ListenerTask { cancel, task: AbortOnDropHandle::new(tokio::spawn(listening)) }
            });
        }
    }

    fn warn(&mut self, why: String) {
        if !self.warned.contains(&why) {
            (self.delivery.warn)(&why);
            self.warned.insert(why);
        }
    }

    async fn offer(&mut self, entry: &SessionEntry) {
        let Some(channels) = self.channels(&entry.session).await else { return };
        let target = KnownSession {
            created_at: entry.created_at,
            flow: entry.flow.clone(),
            last_seq: entry.digest.last_seq,
            is_lost: DisplayStatus::of(entry) == DisplayStatus::Interrupted,
        };
        for at in channels {
            let WorkerTask { worker, since, .. } = &self.workers[at];
            let is_new = entry.digest.updated_at.is_some_and(|updated| updated >= *since);
            if is_new && worker.channel.settings.wants_flow(&entry.flow) {
                worker.offer(&entry.session, target.clone());
            }
        }
    }

    /// The workers of the channels that a session is sent to.
    async fn channels(&mut self, session: &SessionId) -> Option<Vec<usize>> {
        if !self.folders.contains_key(session) {
            let record = self.delivery.store.record(session).await.ok()?;
            self.folders.insert(session.clone(), record.flow.folder.clone());
        }
        let folder = self.folders.get(session)?.clone();
        if let Some(known) = self.known.get(&folder) {
            return Some(known.clone());
        }
        self.unreadable.remove(&folder);
        let channels = self.delivery.source.channels(&folder).unwrap_or_else(|why| {
            self.warn(format!("no notifications for flows in {}: {why}", folder.display()));
            self.unreadable.insert(folder.clone());
            Vec::new()
        });
        let mut workers = Vec::new();
        // What happens from now on is sent through all of them, also if one cannot be opened yet, or this process ends before
        // it is.
        for channel in &channels {
            if let Err(error) = self.since(channel).await {
                self.warn(format!("no notifications: {error}"));
                return None;
            }
        }
        for channel in channels {
            match self.worker(&channel).await {
                Ok(at) => workers.push(at),
                Err(error) => {
                    self.warn(format!("no notifications: {error}"));
                    return None;
                }
            }
        }
        self.known.insert(folder, workers.clone());
        Some(workers)
    }

    /// Since when a channel is known: what happened before is not sent.
    async fn since(&mut self, channel: &FolderChannel) -> Result<Timestamp, LedgerError> {
        let key = (channel.name.clone(), channel.origin.clone());
        if let Some(known) = self.since.get(&key) {
            return Ok(*known);
        }
        let since = self.delivery.ledger.since(&channel.name, &channel.origin, self.began).await?;
        self.since.insert(key, since);
        Ok(since)
    }

    /// The worker of a channel, which is started if it does not run. One with other settings ends: what it was sending is
    /// sent again, under the same id. A channel that cannot be used yet is opened again each time.
    async fn worker(&mut self, channel: &FolderChannel) -> Result<usize, LedgerError> {
        let same = |task: &WorkerTask| {
            let other = &task.worker.channel;
            other.name == channel.name && other.origin == channel.origin
        };
        let known = self.workers.iter().position(same);
        let fits = known.filter(|at| self.workers[*at].worker.channel.settings == channel.settings);
        if let Some(at) = fits.filter(|at| self.workers[*at].task.is_some()) {
            return Ok(at);
        }
        let since = self.since(channel).await?;
        let opened = self.delivery.source.open(channel);
        let is_open = opened.is_ok();
        let (ready, until) = match opened {
            Ok(ready) => (ready, self.until),
            Err(why) => {
                self.warn(format!("channel `{}`: {why}", channel.name));
                if let Some(at) = fits {
                    return Ok(at);
                }
                let FolderChannel { name, origin, settings } = channel;
                (NotificationChannel::closed(name, origin, settings.clone()), Some(Instant::now()))
            }
        };
        let worker = Worker::new(self.delivery.clone(), Arc::new(ready), self.holder.clone(), since, until);
        let worker = Arc::new(worker);
        let task = is_open.then(|| AbortOnDropHandle::new(tokio::spawn(Arc::clone(&worker).run())));
        let started = WorkerTask { worker, since, task };
        match known {
            Some(at) => {
                self.workers[at] = started;
                Ok(at)
            }
            None => {
                self.workers.push(started);
                Ok(self.workers.len() - 1)
            }
        }
    }

    /// Lets the workers end once they have tried what is left.
    async fn finish(self) -> Undelivered {
        let unread = self.folders.iter().filter(|(_, folder)| self.unreadable.contains(*folder));
        let unread: BTreeSet<SessionId> = unread.map(|(session, _)| session.clone()).collect();
        let begun = match unread.is_empty() {
            true => BTreeSet::new(),
            // If the record cannot be read, nothing is known.
            false => self.delivery.ledger.begun(unread).await.unwrap_or_default(),
        };
        let ends = self.workers.into_iter().map(async |WorkerTask { worker, task, .. }| {
            worker.close();
            let is_closed = task.is_none();
            // A worker that panicked has not sent what it had.
            let panicked = match task {
                Some(task) => task.await.is_err(),
                None => {
                    Arc::clone(&worker).run().await;
                    false
                }
            };
            let name = worker.channel.name.clone();
            let is_pending = panicked || worker.has_pending();
            let is_left =
                [is_pending && !is_closed, is_pending && is_closed, worker.is_held(), worker.has_given_up()];
            is_left.map(|is_left| is_left.then(|| name.clone()))
        });
        let ends = join_all(ends).await;
        let names =
            |which: usize| ends.iter().filter_map(|ends| ends[which].clone()).collect::<BTreeSet<String>>();
        let [mut channels, closed, held, refused] = [0, 1, 2, 3].map(names);
        channels.extend(begun);
        let all = [channels, closed, held, refused];
        let [channels, closed, held, refused] = all.map(|names| names.into_iter().collect());
        let listeners = self.listeners.into_values().map(async |ListenerTask { cancel, task }| {
            cancel.cancel();
            drop(timeout(LISTENERS, task).await);
        });
        join_all(listeners).await;
        Undelivered { channels, closed, held, refused, is_cut: false }
    }
}

#[cfg(test)]
mod tests;
