//! Deletes sessions: those that ended long ago, or one by name, also one that cannot be read.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
};

use inspan_protocol::{SessionId, Timestamp};
use rusqlite::Connection;
use tokio::task;

use super::{
    SqliteStore,
    fault::Fault,
    file::{self, Paths},
    options::SqliteOptions,
    session::{self, SessionRow, count},
    writer::Transaction,
};
use crate::{Owner, StoreError};

/// How many free pages are returned in one transaction.
const PAGES: i64 = 2_000;

/// How long a session may take from the time that it is said to be made at until it is stored, in milliseconds.
const MAKING: i64 = 60_000;

/// Whether to delete, or only to report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gc {
    /// Reports what would be deleted.
    Look,
    /// Delete.
    Delete,
}

/// What was deleted, or would be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GcReport {
    /// The sessions, in the order they were made; those that one of them continues, just before that one.
    pub sessions: Vec<Deleted>,
    /// Large values of other sessions that no event refers to.
    pub unused_values: u64,
    /// The store's file before, with its write-ahead log, in bytes.
    pub file_bytes_before: u64,
    /// The same afterwards; as before if nothing was deleted.
    pub file_bytes_after: u64,
}

/// A session that was deleted, or would be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deleted {
    /// The session.
    pub session: SessionId,
    /// Its events.
    pub events: u64,
    /// The bytes of its record, events with their large values, and commands.
    pub bytes: u64,
}

impl SqliteStore {
    /// Deletes the sessions that ended before a moment, that no process runs at `now` and whose work no open session
    /// takes over, each in its own transaction,
    /// with the large values that no event refers to, and returns the space to the disk. `leaving` is called before a session
    /// is deleted.
    ///
    /// A session is deleted with those that it continues, also if they have not ended, or not at all: without it they could
    /// be resumed again, and would do again what it has finished.
    ///
    /// # Errors
    /// Any failure to read or write the store. What was deleted before it stays deleted.
    pub async fn gc(
        &self,
        ended_before: Timestamp,
        mode: Gc,
        now: Timestamp,
        leaving: impl Fn(&SessionId),
    ) -> Result<GcReport, StoreError> {
        let here = self.here.clone();
        let found = self.readers.ask(move |connection| {
            let (mut found, mut known) = (Vec::new(), BTreeSet::new());
            let needed = session::needed(connection, Timestamp::default(), &[])?;
            for id in ended(connection, ended_before)? {
                let before = session::continues(connection, &id)?.into_iter().map(|(id, _)| id).rev();
                let all = before.chain([id]).map(|id| Ok(session::find_damaged(connection, &id)?.0));
                let all: Vec<SessionRow> = all.collect::<Result<_, Fault>>()?;
                let stays = |session: &SessionRow| {
                    needed.contains_key(&session.id) || session.holder(&here, now).is_some()
                };
                if all.iter().any(stays) {
                    continue;
                }
                for session in all.iter().filter(|session| known.insert(session.number)) {
                    found.push(measure(connection, session)?);
                }
            }
            Ok(found)
        });
        let file_bytes_before = bytes(&self.paths);
        let mut report = GcReport {
            sessions: found.await?,
            unused_values: 0,
            file_bytes_before,
            file_bytes_after: file_bytes_before,
        };
        if mode == Gc::Look {
            report.unused_values = self.collect_unused(mode, now).await?;
            return Ok(report);
        }
        // What is older was looked at above; a session is made a moment before it is stored.
        let since = Timestamp::from_millis(now.as_millis().saturating_sub(MAKING));
        let mut deleted = Vec::new();
        for Deleted { session, .. } in report.sessions {
            leaving(&session);
            // Another process may have taken or deleted it in the meantime.
            match self.delete_ended(&session, now, since, ended_before).await {
                Ok(gone) => deleted.extend(gone),
                Err(
                    StoreError::Held { .. }
                    | StoreError::Needed { .. }
                    | StoreError::Reopens { .. }
                    | StoreError::UnknownSession(_),
                ) => {}
                Err(error) => return Err(error),
            }
        }
        report.sessions = deleted;
        report.unused_values = self.collect_unused(mode, now).await?;
        self.return_space().await?;
        report.file_bytes_after = bytes(&self.paths);
        Ok(report)
    }

    /// Deletes sessions, ended or not: all of them or, if one cannot be deleted, none. The store reuses their space;
    /// [`gc`](Self::gc) returns it to the disk.
    ///
    /// # Errors
    /// [`StoreError::Held`] while a process runs one, [`StoreError::Needed`] while another open session takes over what it
    /// did, [`StoreError::Reopens`] if it continues another one that has not ended, [`StoreError::UnknownSession`].
    pub async fn delete(
        &self,
        sessions: &[SessionId],
        mode: Gc,
        now: Timestamp,
    ) -> Result<Vec<Deleted>, StoreError> {
        let (sessions, here) = (sessions.to_vec(), self.here.clone());
        let find = move |connection: &Connection| {
            let needed = session::needed(connection, Timestamp::default(), &sessions)?;
            let rows = sessions.iter().map(|id| {
                let session = deletable(connection, id, &here, now, &needed, &sessions)?;
                Ok((session.number, session))
            });
            // In the order they were made, and each once.
            rows.collect::<Result<BTreeMap<_, _>, Fault>>()
        };
        if mode == Gc::Look {
            let look = move |connection: &mut Connection| {
                find(connection)?.values().map(|session| measure(connection, session)).collect()
            };
            return self.readers.ask(look).await;
        }
        let delete = move |transaction: &mut Transaction<'_>| {
            let found = find(transaction.connection)?;
            found.values().map(|session| remove(transaction, session)).collect()
        };
        self.write(usize::MAX, delete).await
    }

    /// Deletes a session, unless it was resumed and has not ended before the moment, or an open session that was made
    /// since needs it. What another session continues counts as ended with that one.
    async fn delete_ended(
        &self,
        id: &SessionId,
        now: Timestamp,
        since: Timestamp,
        ended_before: Timestamp,
    ) -> Result<Option<Deleted>, StoreError> {
        let (id, here) = (id.clone(), self.here.clone());
        let delete = move |transaction: &mut Transaction<'_>| {
            let connection = transaction.connection;
            let needed = session::needed(connection, since, &[])?;
            let session = deletable(connection, &id, &here, now, &needed, &[])?;
            let stays = match session.ended_at(connection)? {
                Some(ended) => ended >= ended_before,
                None => session::continuation(connection, &id)?.is_none(),
            };
            if stays { Ok(None) } else { remove(transaction, &session).map(Some) }
        };
        self.write(usize::MAX, delete).await
    }

    /// Shrinks the file by its free pages, some at a time, so that others can write in between.
    async fn return_space(&self) -> Result<(), StoreError> {
        let give = |transaction: &mut Transaction<'_>| {
            let free = |connection: &Connection| {
                connection.query_row("PRAGMA freelist_count", (), |row| row.get::<_, i64>(0))
            };
            let before = free(transaction.connection)?;
            let mut vacuum =
                transaction.connection.prepare(&format!("PRAGMA incremental_vacuum({PAGES})"))?;
            let mut steps = vacuum.query(())?;
            while steps.next()?.is_some() {}
            drop(steps);
            let after = free(transaction.connection)?;
            Ok(after > 0 && after < before)
        };
        while self.write(usize::MAX, give).await? {}
        let paths = self.paths.clone();
        let emptied = task::spawn_blocking(move || {
            let connection = file::open_again(&paths.store, &SqliteOptions::default())?;
            // Readers may block this; the next run then does it.
            let _: i64 = connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", (), |row| row.get(0))?;
            Ok::<_, Fault>(())
        });
        let ended = |_| StoreError::Io {
            path: self.paths.store.clone(),
            message: "its cleaner has ended".to_owned(),
        };
        emptied.await.map_err(ended)?.map_err(|fault| self.refused(fault))
    }
}

/// A session that can be deleted together with others.
fn deletable(
    connection: &Connection,
    id: &SessionId,
    here: &Owner,
    now: Timestamp,
    needed: &BTreeMap<String, SessionId>,
    together: &[SessionId],
) -> Result<SessionRow, Fault> {
    let (session, _) = session::find_damaged(connection, id)?;
    if let Some(owner) = session.holder(here, now) {
        let owner = Box::new(owner.clone());
        return Err(StoreError::Held { session: id.clone(), owner }.into());
    }
    if let Some(by) = needed.get(id.as_str()).cloned() {
        return Err(StoreError::Needed { session: id.clone(), by }.into());
    }
    let before = session::continues(connection, id)?.into_iter();
    let stays = |(id, is_open): &(SessionId, bool)| *is_open && !together.contains(id);
    let mut before: Vec<_> = before.take_while(stays).map(|(id, _)| id).collect();
    if !before.is_empty() {
        before.reverse();
        return Err(StoreError::Reopens { session: id.clone(), before }.into());
    }
    Ok(session)
}

fn remove(transaction: &mut Transaction<'_>, session: &SessionRow) -> Result<Deleted, Fault> {
    let connection = transaction.connection;
    let gone = measure(connection, session)?;
    for table in ["events", "commands", "records", "blobs"] {
        let sql = format!("DELETE FROM {table} WHERE session = ?1");
        connection.prepare_cached(&sql)?.execute([session.number])?;
    }
    connection.prepare_cached("DELETE FROM sessions WHERE number = ?1")?.execute([session.number])?;
    transaction.remove_mark(session.number)?;
    Ok(gone)
}

fn ended(connection: &Connection, before: Timestamp) -> Result<Vec<SessionId>, Fault> {
    let mut query =
        connection.prepare("SELECT id FROM sessions WHERE ended_at < ?1 ORDER BY created_at, id")?;
    let ids = query.query_map([before.as_millis()], |row| row.get::<_, String>(0))?;
    ids.map(|id| Ok(SessionId::from(id?))).collect()
}

fn measure(connection: &Connection, session: &SessionRow) -> Result<Deleted, Fault> {
    let mut bytes = 0;
    let mut events = 0;
    for table in ["records", "commands", "blobs", "events"] {
        let sql =
            format!("SELECT count(*), coalesce(sum(octet_length(body)), 0) FROM {table} WHERE session = ?1");
        let mut query = connection.prepare_cached(&sql)?;
        let (rows, length): (i64, i64) =
            query.query_row([session.number], |row| Ok((row.get(0)?, row.get(1)?)))?;
        bytes += count(length);
        events = count(rows);
    }
    Ok(Deleted { session: session.id.as_str().into(), events, bytes })
}

fn bytes(paths: &Paths) -> u64 {
    let length = |path: &std::path::Path| fs::metadata(path).map_or(0, |file| file.len());
    length(&paths.store) + length(&paths.log)
}
