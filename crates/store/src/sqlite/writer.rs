//! The one thread that writes: it commits the queued requests in one transaction, and acknowledges after the commit if
//! the store is still the file at its path. A commit is synced if one of its requests needs that. It then syncs those
//! before it too: all of them are in one write-ahead log, of which a power cut can only take the end.

mod request;

use std::{
    collections::HashMap,
    path::PathBuf,
    thread::{self, JoinHandle},
};

use inspan_protocol::SessionId;
use rusqlite::Connection;
use tokio::sync::{mpsc, oneshot, watch};

use super::{
    changes,
    fault::Fault,
    file::{self, Opened, Paths, TRIES},
    format::{self, STEPS},
    marks::{Mark, Marks},
    options::{Points, SqliteOptions},
    session::{self, SessionRow},
};
use crate::StoreError;
pub(super) use request::Durability;
use request::{Work, WriteRequest};

/// The size of the request queue; further callers wait for room in it.
const QUEUE: usize = 1024;
/// A group closes at this many events, and at once when the queue is empty: while one group commits, the next one
/// gathers, so no request waits for others.
const EVENTS: usize = 256;
/// How many sessions are cached; each may hold a few questions.
const CACHED_ROWS: usize = 256;

/// The writer of an open store.
#[derive(Debug)]
pub(super) struct Writer {
    queue: Option<mpsc::Sender<Box<dyn Work>>>,
    thread: Option<JoinHandle<()>>,
    path: PathBuf,
}

/// A request's view of the store, within its transaction.
pub(super) struct Transaction<'a> {
    pub(super) connection: &'a Connection,
    points: &'a Points,
    marks: &'a mut Marks,
    known: &'a mut RowCache,
    /// Marks to be written after the commit.
    marks_to_write: Vec<(i64, Mark)>,
}

impl Transaction<'_> {
    /// The session with this id, from memory if this writer wrote its row last. The caller must report the new row with
    /// [`remember_session`](Self::remember_session).
    pub(super) fn take_session(&mut self, id: &SessionId) -> Result<SessionRow, Fault> {
        match self.known.take(id.as_str()) {
            Some(session) => Ok(session),
            None => session::find(self.connection, id),
        }
    }

    /// Reports that a crash could now leave something half done.
    pub(super) fn reach(&self, point: &'static str) {
        self.points.reach(point);
    }

    /// Remembers the session's new row.
    pub(super) fn remember_session(&mut self, session: SessionRow) {
        self.known.keep(session);
    }

    /// The mark of a session, if there is a sound one. Marks are written after their commit and no other process can
    /// commit now, so a mark is never ahead of the log unless the log has lost something.
    pub(super) fn mark(&mut self, number: i64) -> Result<Option<Mark>, Fault> {
        self.marks.get(number).map_err(|error| Fault::Broken(format!("its mark cannot be read: {error}")))
    }

    /// Writes the mark once the transaction is committed.
    pub(super) fn write_mark(&mut self, number: i64, mark: Mark) {
        self.marks_to_write.push((number, mark));
    }

    /// Removes the mark before the commit: a deleted session must not look lost.
    pub(super) fn remove_mark(&mut self, number: i64) -> Result<(), Fault> {
        self.marks_to_write.retain(|(marked, _)| *marked != number);
        self.marks.put(number, None).map_err(|error| {
            Fault::Broken(format!("the mark of session number {number} cannot be taken away: {error}"))
        })
    }
}

impl Writer {
    /// Starts the thread. It reports each commit to `changed`.
    pub(super) fn start(
        opened: Opened,
        marks: Marks,
        options: &SqliteOptions,
        changed: watch::Sender<u64>,
    ) -> Result<Self, StoreError> {
        let Opened { connection, paths, lock, .. } = opened;
        drop(lock);
        let path = paths.store.clone();
        let identity = FileIdentity { store: file::identity(&paths.store), log: None, is_lost: false };
        let (queue, queued) = mpsc::channel(QUEUE);
        let bench = WriterThread {
            connection: Some(connection),
            marks,
            known: RowCache::default(),
            identity,
            paths,
            durability: Durability::Synced,
            points: options.points.clone(),
            options: options.clone(),
            changed,
        };
        let thread = thread::Builder::new().name("inspan-store".to_owned()).spawn(|| bench.run(queued));
        let thread = thread.map_err(|error| super::fault::of_file(&path, &error))?;
        Ok(Self { queue: Some(queue), thread: Some(thread), path })
    }

    /// Runs `work` in a transaction and waits for its commit. `work` may be called again if the transaction could
    /// not be made; `events` is how many events it writes.
    pub(super) async fn ask<T, F>(
        &self,
        durability: Durability,
        events: usize,
        work: F,
    ) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnMut(&mut Transaction<'_>) -> Result<T, Fault> + Send + 'static,
    {
        self.send(durability, events, work).await?.await.map_err(|_| self.gone())?
    }

    /// As `ask`, and does not wait for the commit: gives where the answer will be.
    pub(super) async fn send<T, F>(
        &self,
        durability: Durability,
        events: usize,
        work: F,
    ) -> Result<oneshot::Receiver<Result<T, StoreError>>, StoreError>
    where
        T: Send + 'static,
        F: FnMut(&mut Transaction<'_>) -> Result<T, Fault> + Send + 'static,
    {
        let (answer, answered) = oneshot::channel();
        let queue = self.queue.as_ref().ok_or_else(|| self.gone())?;
        let request = WriteRequest::new(durability, events, work, answer);
        queue.send(Box::new(request)).await.map_err(|_| self.gone())?;
        Ok(answered)
    }

    /// Runs `work` after everything that was asked so far, and waits for nothing; not if the queue is full.
    pub(super) fn tell<F>(&self, work: F)
    where
        F: FnMut(&mut Transaction<'_>) -> Result<(), Fault> + Send + 'static,
    {
        let (answer, _nobody) = oneshot::channel();
        if let Some(queue) = &self.queue {
            drop(queue.try_send(Box::new(WriteRequest::new(Durability::Synced, 1, work, answer))));
        }
    }

    /// That it has ended.
    pub(super) fn gone(&self) -> StoreError {
        StoreError::Io { path: self.path.clone(), message: "its writer has ended".to_owned() }
    }
}

#[cfg(test)]
impl Writer {
    /// How many requests are queued.
    pub(super) fn queued(&self) -> usize {
        self.queue.as_ref().map_or(0, |queue| queue.max_capacity() - queue.capacity())
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // The thread finishes the queue, and ends.
        self.queue = None;
        if let Some(thread) = self.thread.take() {
            // A thread that panicked answers no request any more; nothing can be done about it here.
            drop(thread.join());
        }
    }
}

/// The state of the thread.
struct WriterThread {
    /// None after a fault that leaves open what was stored: the store is then opened again first.
    connection: Option<Connection>,
    /// What its commits survive, as it is set now. One that was just opened syncs each.
    durability: Durability,
    marks: Marks,
    known: RowCache,
    identity: FileIdentity,
    paths: Paths,
    points: Points,
    options: SqliteOptions,
    changed: watch::Sender<u64>,
}

/// The session rows that this writer wrote, so that the next append does not read them back.
#[derive(Debug, Default)]
struct RowCache {
    sessions: HashMap<String, SessionRow>,
    /// SQLite's data version as this connection sees it: it differs once another connection has written.
    version: Option<i64>,
    /// Whether the current request has reported the row that it wrote.
    said: bool,
}

impl RowCache {
    /// Clears the cache if another connection has written. Called within the transaction.
    fn check(&mut self, connection: &Connection) -> Result<(), Fault> {
        let version = changes::version(connection)?;
        if self.version != Some(version) {
            self.forget();
            self.version = Some(version);
        }
        Ok(())
    }

    fn take(&mut self, id: &str) -> Option<SessionRow> {
        self.sessions.remove(id)
    }

    fn keep(&mut self, session: SessionRow) {
        if self.sessions.len() >= CACHED_ROWS {
            self.sessions.clear();
        }
        self.sessions.insert(session.id.clone(), session);
        self.said = true;
    }

    /// Called after each request. A request that succeeded without reporting its row may have changed any row, and a row
    /// reported by a refused request is not valid.
    fn settle(&mut self, went_well: bool) {
        if std::mem::take(&mut self.said) != went_well {
            self.forget();
        }
    }

    /// Clears the cache.
    fn forget(&mut self) {
        self.sessions.clear();
    }
}

/// The identity of the store's files, to notice that they were replaced or deleted.
struct FileIdentity {
    store: Option<(u64, u64)>,
    /// None before this connection has written.
    log: Option<(u64, u64)>,
    /// Set once they were gone; nothing is written from then on.
    is_lost: bool,
}

impl FileIdentity {
    /// Called after each commit, before it is acknowledged. The log exists as long as the store is open.
    fn check(&mut self, paths: &Paths) -> Result<(), StoreError> {
        let log = file::identity(&paths.log);
        let same = self.log.is_none_or(|known| log == Some(known)) && log.is_some();
        self.is_lost |= !same || file::identity(&paths.store) != self.store;
        self.log = log;
        if self.is_lost { Err(StoreError::Moved { path: paths.store.clone() }) } else { Ok(()) }
    }
}

type Group = Vec<Box<dyn Work>>;

impl WriterThread {
    fn run(mut self, mut queued: mpsc::Receiver<Box<dyn Work>>) {
        while let Some(first) = queued.blocking_recv() {
            let mut events = first.events();
            let mut group = vec![first];
            while events < EVENTS {
                let Ok(next) = queued.try_recv() else { break };
                events = next.events().saturating_add(events);
                group.push(next);
            }
            self.serve(group);
        }
    }

    /// Commits the group at once; if that fails for a reason that may be the fault of one request, each by itself.
    fn serve(&mut self, mut group: Group) {
        match self.commit(&mut group) {
            Ok(()) => {}
            Err(fault) if group.len() > 1 && self.connection.is_some() && !fault.is_busy() => {
                for work in group {
                    self.serve(vec![work]);
                }
                return;
            }
            Err(fault) => {
                let error = fault.at(&self.paths.store);
                group.iter_mut().for_each(|work| work.fail(&error));
            }
        }
        for work in group {
            work.answer(&self.paths.store);
            self.points.reach("acknowledged");
        }
    }

    fn commit(&mut self, group: &mut Group) -> Result<(), Fault> {
        if self.identity.is_lost {
            return Err(StoreError::Moved { path: self.paths.store.clone() }.into());
        }
        let Self { marks, known, points, changed, identity, .. } = self;
        let connection = match self.connection.take() {
            Some(connection) => connection,
            None => {
                identity.log = None;
                self.durability = Durability::Synced;
                recover(&self.paths, &self.options)?
            }
        };
        let durability = group.iter().map(|work| work.durability()).max().unwrap_or(Durability::Synced);
        if durability != self.durability {
            file::set_durability(&connection, durability)?;
            self.durability = durability;
        }
        let mut work = |isolation| {
            let transaction =
                Transaction { connection: &connection, points, marks, known, marks_to_write: Vec::new() };
            transact(transaction, points, group, isolation)
        };
        // Refusals are rare and savepoints cost time, so they are used only when a request was refused.
        let done = match work(Isolation::Shared) {
            Ok(GroupResult::Again) => work(Isolation::Savepoints),
            done => done,
        };
        match &done {
            Err(fault) if fault.poisons() || !connection.is_autocommit() => drop(connection),
            _ => self.connection = Some(connection),
        }
        if let GroupResult::Wrote(marks_to_write) = done? {
            identity.check(&self.paths)?;
            // A mark that cannot be written detects less, and does not affect what is committed.
            drop(self.marks.put_all(marks_to_write, durability));
            points.reach("marked");
            changed.send_modify(|version| *version += 1);
        }
        Ok(())
    }
}

/// Whether each request can be rolled back by itself.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Isolation {
    Shared,
    Savepoints,
}

/// The result of a group.
enum GroupResult {
    /// They wrote; these marks are written after the commit.
    Wrote(Vec<(i64, Mark)>),
    /// Every request was refused: there is nothing to commit.
    Nothing,
    /// One of several was refused: all is rolled back, and they run again with savepoints.
    Again,
}

fn transact(
    mut transaction: Transaction<'_>,
    points: &Points,
    group: &mut Group,
    isolation: Isolation,
) -> Result<GroupResult, Fault> {
    let connection = transaction.connection;
    begin(connection)?;
    points.reach("begin");
    let done = check_format(connection)
        .and_then(|()| transaction.known.check(connection))
        .and_then(|()| each(&mut transaction, points, group, isolation))
        .and_then(|done| {
            if let GroupResult::Wrote(_) = done {
                points.reach("commit");
                connection.prepare_cached("COMMIT")?.execute(())?;
                points.reach("committed");
            }
            Ok(done)
        });
    if !matches!(done, Ok(GroupResult::Wrote(_))) {
        transaction.known.forget();
        // After some faults SQLite has already rolled back.
        if !connection.is_autocommit() {
            connection.execute_batch("ROLLBACK")?;
        }
    }
    done
}

/// Begins a write transaction, with retries while another process writes.
fn begin(connection: &Connection) -> Result<(), Fault> {
    let mut tries = 1;
    loop {
        let begun = connection.prepare_cached("BEGIN IMMEDIATE").and_then(|mut begin| begin.execute(()));
        match begun.map_err(Fault::from) {
            Err(fault) if fault.is_busy() && tries < TRIES => tries += 1,
            begun => return begun.map(|_| ()),
        }
    }
}

/// Fails if a program of a newer format has migrated the store in the meantime.
fn check_format(connection: &Connection) -> Result<(), Fault> {
    let found: i64 = connection.prepare_cached("PRAGMA user_version")?.query_row((), |row| row.get(0))?;
    let known = format::newest(STEPS);
    if found == known {
        return Ok(());
    }
    let path = connection.path().map(PathBuf::from).unwrap_or_default();
    Err(StoreError::NewerFormat { path, found, known }.into())
}

/// Runs each request. With savepoints, a refused request rolls back its own writes only.
fn each(
    transaction: &mut Transaction<'_>,
    points: &Points,
    group: &mut Group,
    isolation: Isolation,
) -> Result<GroupResult, Fault> {
    let connection = transaction.connection;
    let several = group.len() > 1;
    let savepoint = |sql| match isolation {
        Isolation::Shared => Ok(()),
        Isolation::Savepoints => connection.prepare_cached(sql)?.execute(()).map(|_| ()),
    };
    let mut wrote = false;
    for work in group {
        let marks_before = transaction.marks_to_write.len();
        savepoint("SAVEPOINT one")?;
        points.reach("write");
        let worked = work.run(transaction);
        points.reach("written");
        transaction.known.settle(worked.is_ok());
        match worked {
            Ok(()) => wrote = true,
            Err(fault @ Fault::Sqlite(_)) => return Err(fault),
            Err(_) if several && isolation == Isolation::Shared => return Ok(GroupResult::Again),
            Err(fault) => {
                transaction.marks_to_write.truncate(marks_before);
                savepoint("ROLLBACK TO one")?;
                work.refuse(fault);
            }
        }
        savepoint("RELEASE one")?;
    }
    Ok(if wrote {
        GroupResult::Wrote(std::mem::take(&mut transaction.marks_to_write))
    } else {
        GroupResult::Nothing
    })
}

/// Opens the store again after a failed write or sync. The system may have dropped pages that it could not write and
/// still show them to readers: so the whole write-ahead log is copied into the file and synced there, and the log
/// restarted, before anything more is acknowledged.
fn recover(paths: &Paths, options: &SqliteOptions) -> Result<Connection, Fault> {
    let connection = file::open_again(&paths.store, options)?;
    let busy: i64 = connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", (), |row| row.get(0))?;
    if busy != 0 {
        let message = "after a failed write, another process keeps it from being synced".to_owned();
        return Err(StoreError::Io { path: paths.store.clone(), message }.into());
    }
    Ok(connection)
}
