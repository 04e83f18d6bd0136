//! A store on disk: one SQLite file that many processes read and write at once. `docs/store.md` describes its content.

mod blobs;
mod changes;
mod commands;
mod fault;
mod file;
mod format;
mod gc;
mod lease;
mod log;
mod loss;
mod marks;
mod options;
mod place;
mod readers;
mod session;
mod sum;
mod transfer;
mod verify;
mod writer;

use std::{ops::ControlFlow, path::Path, sync::Arc};

use async_trait::async_trait;
use futures::stream::BoxStream;
use inspan_flow_core::is_fact;
use inspan_protocol::{Command, Envelope, SessionId, Timestamp};
use rusqlite::Connection;

use super::{
    Batch, Lease, Owner, PAGE_BYTES, PostedCommand, RunStore, Select, SessionEntry, SessionRecord,
    StoreError, Verdict,
};
use changes::Changes;
pub use fault::room_at;
use fault::{Fault, of_file};
use file::Paths;
use format::STEPS;
use log::{WalkStep, Written};
use marks::{Mark, Marks};
use readers::Readers;
use session::{SessionRow, count, int};
use writer::{Durability, Transaction, Writer};

pub use gc::{Deleted, Gc, GcReport};
pub use options::SqliteOptions;
pub use transfer::{Exported, Import, TransferError};
pub use verify::{Finding, StoreProblem, VerifyReport};

/// Sessions in a file. What is acknowledged survives the end of the process. Everything but the newest events that are no
/// facts also survives a power cut, if the disk really stores what it reports as synced.
///
/// The futures need a tokio runtime. Dropping one does not cancel its request; a lease that it takes is given
/// back.
#[derive(Debug)]
pub struct SqliteStore {
    paths: Paths,
    here: Owner,
    readers: Readers,
    changes: Changes,
    /// None for a store that was opened for reading. Dropped last, so that it can empty the write-ahead log.
    writer: Option<Writer>,
}

impl SqliteStore {
    /// Opens the store in the file `path`; creates it, with its folder, if there is none. A store of an older format is
    /// backed up and migrated. Blocks the thread, for up to 20 seconds while another process does the same.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] if something is missing that was acknowledged, also all of it, unless the options accept
    /// that;
    /// [`StoreError::ReadOnly`], [`StoreError::Full`], [`StoreError::NewerFormat`], [`StoreError::NotAStore`],
    /// [`StoreError::NetworkFileSystem`], and [`StoreError::Io`] for any other failure.
    pub fn open(path: impl AsRef<Path>, options: &SqliteOptions) -> Result<Self, StoreError> {
        let opened = file::open(path.as_ref(), options, STEPS)?;
        let paths = opened.paths.clone();
        let mut marks = Marks::open(&paths.marks).map_err(|error| of_file(&paths.store, &error))?;
        loss::settle(&opened, &mut marks, options.loss)?;
        let changes = Changes::new(paths.store.clone());
        let writer = Writer::start(opened, marks, options, changes.sender())?;
        Ok(Self::of(paths, Some(writer), changes))
    }

    /// Opens the store in the file `path` for reading. Creates, migrates and locks nothing; every write is refused with
    /// [`StoreError::ReadOnly`]. Damage is reported when a session is read.
    ///
    /// # Errors
    /// As [`open`](Self::open); [`StoreError::Absent`] too if there is no such file, or nothing in it, and
    /// [`StoreError::Unreadable`].
    pub fn open_reader(path: impl AsRef<Path>) -> Result<Self, StoreError> {
        // Nothing was to be written: what is forbidden here is to read.
        let opened = file::open_to_read(path.as_ref(), STEPS).map_err(|error| match error {
            StoreError::ReadOnly { path } => StoreError::Unreadable { path },
            error => error,
        });
        let (connection, paths) = opened?;
        drop(connection);
        let changes = Changes::new(paths.store.clone());
        Ok(Self::of(paths, None, changes))
    }

    fn of(paths: Paths, writer: Option<Writer>, changes: Changes) -> Self {
        let readers = Readers::new(paths.clone());
        Self { paths, here: Owner::of_process(), readers, writer, changes }
    }

    /// The store's file, with symbolic links resolved.
    pub fn path(&self) -> &Path {
        &self.paths.store
    }

    /// Runs `work` on the writer thread; returns when its effect is on disk.
    async fn write<T, F>(&self, events: usize, work: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnMut(&mut Transaction<'_>) -> Result<T, Fault> + Send + 'static,
    {
        self.write_until(Durability::Synced, events, work).await
    }

    /// Runs `work` on the writer thread; returns when its effect survives so much.
    async fn write_until<T, F>(&self, durability: Durability, events: usize, work: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnMut(&mut Transaction<'_>) -> Result<T, Fault> + Send + 'static,
    {
        self.writer()?.ask(durability, events, work).await
    }

    fn writer(&self) -> Result<&Writer, StoreError> {
        self.writer.as_ref().ok_or_else(|| StoreError::ReadOnly { path: self.paths.store.clone() })
    }

    /// A failure before the request reached the writer.
    fn refused(&self, fault: Fault) -> StoreError {
        fault.at(&self.paths.store)
    }
}

#[async_trait]
impl RunStore for SqliteStore {
    async fn create(
        &self,
        record: &SessionRecord,
        owner: &Owner,
        now: Timestamp,
    ) -> Result<Lease, StoreError> {
        let body = session::json(record).map_err(|fault| self.refused(fault))?;
        let (record, owner) = (record.clone(), owner.clone());
        let create = move |transaction: &mut Transaction<'_>| {
            // It may have been deleted since its work was read: without it the new session could not be resumed.
            let parent =
                record.parent.as_ref().map(|parent| session::find(transaction.connection, &parent.session));
            let parent = parent.transpose()?;
            if let Some((id, old)) = record.continues().zip(parent) {
                refuse_continued(transaction, id)?;
                refuse_held(&old, &owner, now)?;
                if record.parent.as_ref().is_some_and(|parent| old.digest.last_seq > parent.seq) {
                    return Err(StoreError::HasNewEvents(id.clone()).into());
                }
            }
            let mut session = session::insert(transaction.connection, &record, &body)?;
            session::refuse_circle(transaction.connection, &record)?;
            session.assign_to(transaction.connection, &owner, now)?;
            write_mark(transaction, &session);
            Ok(lease(&record.session, &session))
        };
        lease::take(self.writer()?, create).await
    }

    async fn acquire(&self, session: &SessionId, owner: &Owner, now: Timestamp) -> Result<Lease, StoreError> {
        let (id, owner) = (session.clone(), owner.clone());
        let acquire = move |transaction: &mut Transaction<'_>| {
            let mut session = session::find(transaction.connection, &id)?;
            let mark = transaction.mark(session.number)?;
            if let Some(lost) = loss::of_session(&session, mark.as_ref()) {
                return Err(Fault::Broken(loss::sentence(&[lost])));
            }
            refuse_held(&session, &owner, now)?;
            refuse_continued(transaction, &id)?;
            session.assign_to(transaction.connection, &owner, now)?;
            Ok(lease(&id, &session))
        };
        lease::take(self.writer()?, acquire).await
    }

    async fn renew(&self, lease: &Lease, now: Timestamp) -> Result<(), StoreError> {
        let lease = lease.clone();
        let renew = move |transaction: &mut Transaction<'_>| {
            let session = session::find(transaction.connection, &lease.session)?;
            session.fence(&lease)?;
            session.renew(transaction.connection, now)
        };
        // After a power cut no process is left whose lease counts.
        self.write_until(Durability::Written, 1, renew).await
    }

    async fn release(&self, lease: &Lease) -> Result<(), StoreError> {
        let lease = lease.clone();
        self.write(1, move |transaction: &mut Transaction<'_>| lease::release(transaction, &lease)).await
    }

    async fn append(&self, lease: &Lease, batch: Batch<'_>) -> Result<(), StoreError> {
        let events: Result<Vec<_>, _> = batch.events.iter().map(Written::of).collect();
        let events = events.map_err(|fault| self.refused(fault))?;
        let (lease, answers) = (lease.clone(), batch.answers.to_vec());
        let is_promised = !answers.is_empty() || batch.events.iter().any(|envelope| is_fact(&envelope.event));
        let durability = if is_promised { Durability::Synced } else { Durability::Written };
        let append = move |transaction: &mut Transaction<'_>| {
            let connection = transaction.connection;
            let mut session = transaction.take_session(&lease.session)?;
            session.fence(&lease)?;
            let was_open = !session.digest.status.has_ended();
            if events.iter().any(|event| event.large.is_some()) {
                blobs::insert_all(connection, &session, &events)?;
                transaction.reach("blobs");
            }
            log::append(connection, &mut session, &lease, &events)?;
            commands::settle(connection, &session, &answers)?;
            if was_open && session.digest.status.has_ended() {
                commands::refuse_open(connection, &session)?;
            }
            write_mark(transaction, &session);
            transaction.remember_session(session);
            Ok(())
        };
        self.write_until(durability, batch.events.len().max(1), append).await
    }

    async fn read_some(
        &self,
        session: &SessionId,
        from: u64,
        select: Select,
        most: usize,
    ) -> Result<Vec<Arc<Envelope>>, StoreError> {
        let (id, marks) = (session.clone(), self.paths.marks.clone());
        let room = if most == usize::MAX { usize::MAX } else { PAGE_BYTES };
        let read = move |connection: &mut Connection| {
            let (mut events, mut bytes) = (Vec::new(), 0);
            snapshot(connection, &marks, &id, |connection, session, mark| {
                log::walk(connection, session, mark, int(from), |step| {
                    match step {
                        WalkStep::Event(row) if select.takes_kind(row.kind) => {
                            let body = log::body(connection, session, &row)?;
                            bytes += body.len();
                            events.push(Arc::new(log::envelope_of(&row, &body)?));
                        }
                        WalkStep::Event(_) => {}
                        WalkStep::Damage(damage) => return Err(Fault::Broken(damage.to_string())),
                    }
                    let is_enough = events.len() >= most || bytes >= room;
                    Ok(if is_enough { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
                })
            })?;
            Ok(events)
        };
        self.readers.ask(read).await
    }

    async fn record(&self, session: &SessionId) -> Result<SessionRecord, StoreError> {
        let (id, marks) = (session.clone(), self.paths.marks.clone());
        let read = move |connection: &mut Connection| {
            let found = at_once(connection, |connection| session::record(connection, &id));
            named(connection, &marks, &id, found)
        };
        self.readers.ask(read).await
    }

    async fn entry(&self, session: &SessionId) -> Result<SessionEntry, StoreError> {
        let (id, marks, here) = (session.clone(), self.paths.marks.clone(), self.here.clone());
        let read = move |connection: &mut Connection| {
            let found = at_once(connection, |connection| session::entry(connection, &id, &here));
            named(connection, &marks, &id, found)
        };
        self.readers.ask(read).await
    }

    async fn entries(&self, prefix: &str, limit: usize) -> Result<Vec<SessionEntry>, StoreError> {
        let (prefix, here, marks) = (prefix.to_owned(), self.here.clone(), self.paths.marks.clone());
        let read = move |connection: &mut Connection| {
            let mut entries =
                at_once(connection, |connection| session::entries(connection, &prefix, limit, &here))?;
            // Losses are looked up for a list of all sessions, and when nothing was found.
            if prefix.is_empty() || entries.is_empty() {
                loss::list(connection, &marks, &prefix, &mut entries)?;
                entries.truncate(limit);
            }
            Ok(entries)
        };
        self.readers.ask(read).await
    }

    async fn post_once(
        &self,
        session: &SessionId,
        key: Option<&str>,
        command: &Command,
        now: Timestamp,
    ) -> Result<u64, StoreError> {
        let body = session::json(command).map_err(|fault| self.refused(fault))?;
        let (id, here, command) = (session.clone(), self.here.clone(), command.clone());
        let key = key.map(str::to_owned);
        let post = move |transaction: &mut Transaction<'_>| {
            let connection = transaction.connection;
            let session = session::find(connection, &id)?;
            if let Some(key) = &key
                && let Some(known) = commands::of_key(connection, &session, key)?
            {
                let reused = || StoreError::KeyReused { session: id.clone(), key: key.clone() };
                return if known.body == body { Ok(count(known.number)) } else { Err(reused().into()) };
            }
            if session.digest.status.has_ended() {
                return Err(StoreError::SessionEnded(id.clone()).into());
            }
            if let Command::Reply { prompt, .. } = &command
                && session.holder(&here, now).is_none()
                && commands::unanswered(connection, &id)?
                    .iter()
                    .any(|posted| posted.answers() == Some(prompt))
            {
                return Err(StoreError::ReplyWaits { session: id.clone(), prompt: prompt.clone() }.into());
            }
            commands::post(connection, &session, &body, key.clone(), now)
        };
        let number = self.write(1, post).await?;
        self.changes.posted();
        Ok(number)
    }

    async fn posted_once(&self, session: &SessionId, key: &str) -> Result<Option<PostedCommand>, StoreError> {
        let (id, key) = (session.clone(), key.to_owned());
        let read = move |connection: &Connection| {
            let session = session::find(connection, &id)?;
            let stored = commands::of_key(connection, &session, &key)?;
            stored.map(|stored| commands::posted(&stored)).transpose().map_err(|fault| fault.of(id.as_str()))
        };
        self.readers.ask(move |connection| at_once(connection, &read)).await
    }

    fn room(&self) -> Result<(), StoreError> {
        room_at(&self.paths.store)
    }

    async fn unanswered(&self, session: &SessionId) -> Result<Vec<PostedCommand>, StoreError> {
        let id = session.clone();
        let read = move |connection: &Connection| commands::unanswered(connection, &id);
        self.readers.ask(move |connection| at_once(connection, &read)).await
    }

    async fn answer(&self, session: &SessionId, number: u64) -> Result<Option<Verdict>, StoreError> {
        let id = session.clone();
        let read = move |connection: &Connection| commands::answer(connection, &id, number);
        self.readers.ask(move |connection| at_once(connection, &read)).await
    }

    fn changes(&self) -> BoxStream<'static, ()> {
        self.changes.listen()
    }

    fn changes_of(&self, session: &SessionId) -> BoxStream<'static, ()> {
        self.changes.listen_to(session)
    }

    fn posts(&self) -> BoxStream<'static, ()> {
        self.changes.listen_for_posts()
    }
}

fn lease(id: &SessionId, session: &SessionRow) -> Lease {
    Lease { session: id.clone(), epoch: session::count(session.epoch) }
}

/// An error if a live process runs the session.
fn refuse_held(session: &SessionRow, here: &Owner, now: Timestamp) -> Result<(), Fault> {
    let Some(owner) = session.holder(here, now) else { return Ok(()) };
    let id = SessionId::from(session.id.as_str());
    Err(StoreError::Held { session: id, owner: Box::new(owner.clone()) }.into())
}

/// An error if another session continues this one: both would do the same work.
fn refuse_continued(transaction: &Transaction<'_>, id: &SessionId) -> Result<(), Fault> {
    match session::continuation(transaction.connection, id)? {
        Some(by) => Err(StoreError::Continued { session: id.clone(), by }.into()),
        None => Ok(()),
    }
}

fn write_mark(transaction: &mut Transaction<'_>, session: &SessionRow) {
    let mark = Mark::new(&session.id, session.last_seq, session.last_sum);
    transaction.write_mark(session.number, mark);
}

/// Reads several tables as they are at one moment: a session may be deleted between two queries, and its number given to
/// another one.
fn at_once<T>(
    connection: &mut Connection,
    read: impl FnOnce(&Connection) -> Result<T, Fault>,
) -> Result<T, Fault> {
    let transaction = connection.transaction()?;
    read(&transaction)
}

/// Reads one session as it is at one moment. Its mark is read before that moment, so it is never ahead.
fn snapshot<T>(
    connection: &mut Connection,
    marks: &Path,
    id: &SessionId,
    look: impl FnOnce(&Connection, &SessionRow, Option<&Mark>) -> Result<T, Fault>,
) -> Result<T, Fault> {
    let found = session::find(connection, id);
    let number = named(connection, marks, id, found)?.number;
    let mark = marks::read(marks, number)
        .map_err(|error| Fault::unread("its mark", &error))?
        .filter(|mark| mark.is_of(id.as_str()));
    let transaction = connection.transaction()?;
    let session = session::find(&transaction, id)?;
    look(&transaction, &session, mark.as_ref()).map_err(|fault| fault.of(id.as_str()))
}

/// An unknown session may be one that was lost: then the error says so.
fn named<T>(
    connection: &Connection,
    marks: &Path,
    id: &SessionId,
    found: Result<T, Fault>,
) -> Result<T, Fault> {
    let Err(Fault::Refused(StoreError::UnknownSession(_))) = &found else { return found };
    let lost = loss::find(connection, marks)?;
    match lost.into_iter().find(|lost| lost.session == id.as_str()) {
        Some(lost) => Err(Fault::Broken(loss::sentence(&[lost]))),
        None => found,
    }
}

#[cfg(test)]
mod tests;
