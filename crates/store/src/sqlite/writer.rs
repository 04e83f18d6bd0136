//! The one thread that writes: it takes what is queued into one transaction, and acknowledges after the commit, if
//! the store then still lies under its name.

mod known;
mod request;

use std::{
    path::PathBuf,
    thread::{self, JoinHandle},
};

use inspan_protocol::SessionId;
use rusqlite::Connection;
use tokio::sync::{mpsc, oneshot, watch};

use super::{
    fault::Fault,
    file::{self, Opened, Paths, TRIES},
    format::{self, STEPS},
    marks::{Mark, Marks},
    options::{Points, SqliteOptions},
    session::{self, Session},
};
use crate::StoreError;
use known::Known;
use request::{Request, Work};

/// Requests that wait for the writer; who comes then waits to be queued.
const QUEUE: usize = 1024;
/// A group is closed when it has so many events, and at once when nothing more is queued: while one is committed,
/// the next gathers by itself, so nobody is made to wait for others.
const EVENTS: usize = 256;

/// The writer of an open store.
#[derive(Debug)]
pub(super) struct Writer {
    queue: Option<mpsc::Sender<Box<dyn Work>>>,
    thread: Option<JoinHandle<()>>,
    path: PathBuf,
}

/// What a request sees of the store, within its transaction.
pub(super) struct Transaction<'a> {
    pub(super) connection: &'a Connection,
    marks: &'a mut Marks,
    known: &'a mut Known,
    /// Marks to be written after the commit.
    kept: Vec<(i64, Mark)>,
}

impl Transaction<'_> {
    /// The session with this id, without a look at its row if this writer wrote it last. Whoever takes it so must
    /// say with [`keep_session`](Self::keep_session) what its row has become.
    pub(super) fn take_session(&mut self, id: &SessionId) -> Result<Session, Fault> {
        match self.known.take(id.as_str()) {
            Some(session) => Ok(session),
            None => session::find(self.connection, id),
        }
    }

    /// Remembers the session as its row now is.
    pub(super) fn keep_session(&mut self, session: Session) {
        self.known.keep(session);
    }

    /// The mark of a session, if there is a sound one. It was written after its commit, and no one can commit
    /// meanwhile: it never is ahead of the log, unless the log has lost something.
    pub(super) fn mark(&mut self, number: i64) -> Result<Option<Mark>, Fault> {
        self.marks.get(number).map_err(|error| Fault::Broken(format!("its mark cannot be read: {error}")))
    }

    /// Lets the mark stand once the transaction is committed.
    pub(super) fn keep_mark(&mut self, number: i64, mark: Mark) {
        self.kept.push((number, mark));
    }

    /// Takes the mark away, before the commit: a session that is deleted must not look lost.
    pub(super) fn drop_mark(&mut self, number: i64) -> Result<(), Fault> {
        self.kept.retain(|(kept, _)| *kept != number);
        self.marks.put(number, None).map_err(|error| {
            Fault::Broken(format!("the mark of session number {number} cannot be taken away: {error}"))
        })
    }
}

impl Writer {
    /// Starts the thread. It tells `changed` of each commit.
    pub(super) fn start(
        opened: Opened,
        marks: Marks,
        options: &SqliteOptions,
        changed: watch::Sender<u64>,
    ) -> Result<Self, StoreError> {
        let Opened { connection, paths, lock, .. } = opened;
        drop(lock);
        let path = paths.store.clone();
        let place = Place { store: file::identity(&paths.store), log: None, is_lost: false };
        let (queue, queued) = mpsc::channel(QUEUE);
        let bench = Bench {
            connection: Some(connection),
            marks,
            known: Known::default(),
            place,
            paths,
            points: options.points.clone(),
            options: options.clone(),
            changed,
        };
        let thread = thread::Builder::new().name("inspan-store".to_owned()).spawn(|| bench.run(queued));
        let thread = thread.map_err(|error| super::fault::of_file(&path, &error))?;
        Ok(Self { queue: Some(queue), thread: Some(thread), path })
    }

    /// Has `work` done in a transaction, and waits until that is committed. `work` may be called again if the
    /// transaction could not be made; it counts for as many events as it writes.
    pub(super) async fn ask<T, F>(&self, events: usize, work: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnMut(&mut Transaction<'_>) -> Result<T, Fault> + Send + 'static,
    {
        let gone = || StoreError::Io { path: self.path.clone(), message: "its writer has ended".to_owned() };
        let (answer, answered) = oneshot::channel();
        let queue = self.queue.as_ref().ok_or_else(gone)?;
        queue.send(Box::new(Request::new(events, work, answer))).await.map_err(|_| gone())?;
        answered.await.map_err(|_| gone())?
    }
}

#[cfg(test)]
impl Writer {
    /// How many requests wait to be taken.
    pub(super) fn queued(&self) -> usize {
        self.queue.as_ref().map_or(0, |queue| queue.max_capacity() - queue.capacity())
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // The thread does what is queued, and ends.
        self.queue = None;
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has answered nobody any more; there is nothing left to do about it here.
            drop(thread.join());
        }
    }
}

/// What the thread works with.
struct Bench {
    /// None after a fault that leaves open what was kept: then the store is opened again first.
    connection: Option<Connection>,
    marks: Marks,
    known: Known,
    place: Place,
    paths: Paths,
    points: Points,
    options: SqliteOptions,
    changed: watch::Sender<u64>,
}

/// Which files the store is, to notice when others lie in their place, or none.
struct Place {
    store: Option<(u64, u64)>,
    /// None before this connection has written.
    log: Option<(u64, u64)>,
    /// Nothing is written once they were gone, whatever lies there now.
    is_lost: bool,
}

impl Place {
    /// Looks after each commit, before that is acknowledged. The log lies there as long as the store is open.
    fn check(&mut self, paths: &Paths) -> Result<(), StoreError> {
        let log = file::identity(&paths.log);
        let same = self.log.is_none_or(|known| log == Some(known)) && log.is_some();
        self.is_lost |= !same || file::identity(&paths.store) != self.store;
        self.log = log;
        if self.is_lost { Err(StoreError::Moved { path: paths.store.clone() }) } else { Ok(()) }
    }
}

type Group = Vec<Box<dyn Work>>;

impl Bench {
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

    /// Commits the group at once; if the whole fails for a reason that may lie with one of them, each by itself.
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
        if self.place.is_lost {
            return Err(StoreError::Moved { path: self.paths.store.clone() }.into());
        }
        let Self { marks, known, points, changed, place, .. } = self;
        let connection = match self.connection.take() {
            Some(connection) => connection,
            None => {
                place.log = None;
                recover(&self.paths, &self.options)?
            }
        };
        let mut work = |apart| {
            let transaction = Transaction { connection: &connection, marks, known, kept: Vec::new() };
            transact(transaction, points, group, apart)
        };
        // Few requests are refused, and what each wrote can only be taken back apart at a price.
        let done = match work(Apart::No) {
            Ok(Done::Again) => work(Apart::Yes),
            done => done,
        };
        match &done {
            Err(fault) if fault.poisons() || !connection.is_autocommit() => drop(connection),
            _ => self.connection = Some(connection),
        }
        if let Done::Wrote(kept) = done? {
            place.check(&self.paths)?;
            // A mark that cannot be written guards less, and takes nothing from what is committed.
            drop(self.marks.put_all(kept));
            points.reach("marked");
            changed.send_modify(|version| *version += 1);
        }
        Ok(())
    }
}

/// Whether what each request writes can be taken back by itself.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Apart {
    No,
    Yes,
}

/// What became of the requests of a group.
enum Done {
    /// They wrote, and these are the marks to write once that is committed.
    Wrote(Vec<(i64, Mark)>),
    /// There is nothing to commit: every request was refused.
    Nothing,
    /// One of several was refused: all is taken back, and they are to be done anew, apart.
    Again,
}

fn transact(
    mut transaction: Transaction<'_>,
    points: &Points,
    group: &mut Group,
    apart: Apart,
) -> Result<Done, Fault> {
    let connection = transaction.connection;
    begin(connection)?;
    points.reach("begin");
    let done = check_format(connection)
        .and_then(|()| transaction.known.check(connection))
        .and_then(|()| each(&mut transaction, points, group, apart))
        .and_then(|done| {
            if let Done::Wrote(_) = done {
                points.reach("commit");
                connection.prepare_cached("COMMIT")?.execute(())?;
                points.reach("committed");
            }
            Ok(done)
        });
    if !matches!(done, Ok(Done::Wrote(_))) {
        transaction.known.forget();
        // After some faults SQLite has rolled back already.
        if !connection.is_autocommit() {
            connection.execute_batch("ROLLBACK")?;
        }
    }
    done
}

/// Begins to write, when the others let us.
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

/// Stops when a program of a newer format has changed the tables meanwhile.
fn check_format(connection: &Connection) -> Result<(), Fault> {
    let found: i64 = connection.prepare_cached("PRAGMA user_version")?.query_row((), |row| row.get(0))?;
    let known = format::newest(STEPS);
    if found == known {
        return Ok(());
    }
    let path = connection.path().map(PathBuf::from).unwrap_or_default();
    Err(StoreError::NewerFormat { path, found, known }.into())
}

/// Has each request do its work. One that is refused takes back what it wrote, and only that, if they are kept apart.
fn each(
    transaction: &mut Transaction<'_>,
    points: &Points,
    group: &mut Group,
    apart: Apart,
) -> Result<Done, Fault> {
    let connection = transaction.connection;
    let several = group.len() > 1;
    let savepoint = |sql| match apart {
        Apart::No => Ok(()),
        Apart::Yes => connection.prepare_cached(sql)?.execute(()).map(|_| ()),
    };
    let mut wrote = false;
    for work in group {
        let kept = transaction.kept.len();
        savepoint("SAVEPOINT one")?;
        points.reach("write");
        let worked = work.run(transaction);
        points.reach("written");
        transaction.known.settle(worked.is_ok());
        match worked {
            Ok(()) => wrote = true,
            Err(fault @ Fault::Sqlite(_)) => return Err(fault),
            Err(_) if several && apart == Apart::No => return Ok(Done::Again),
            Err(fault) => {
                transaction.kept.truncate(kept);
                savepoint("ROLLBACK TO one")?;
                work.refuse(fault);
            }
        }
        savepoint("RELEASE one")?;
    }
    Ok(if wrote { Done::Wrote(std::mem::take(&mut transaction.kept)) } else { Done::Nothing })
}

/// Opens the store again after a failed write or sync. The system may have thrown away what it could not write,
/// and yet show it to whoever reads: so all of the write-ahead log is copied into the file and synced there,
/// and the log begun anew, before anything more is promised.
fn recover(paths: &Paths, options: &SqliteOptions) -> Result<Connection, Fault> {
    let connection = file::open_again(&paths.store, options)?;
    let busy: i64 = connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", (), |row| row.get(0))?;
    if busy != 0 {
        let message = "after a failed write, another process keeps it from being synced".to_owned();
        return Err(StoreError::Io { path: paths.store.clone(), message }.into());
    }
    Ok(connection)
}
