//! The rows of large values, which belong to a session and are found by their hash.

use std::{collections::BTreeSet, ops::ControlFlow};

use async_trait::async_trait;
use inspan_protocol::{SessionId, Timestamp};
use rusqlite::{Connection, OptionalExtension};

use super::{
    SqliteStore,
    fault::Fault,
    log::{self, WalkStep, Written},
    session::{self, SessionRow},
    sum::StoredRow,
    writer::Transaction,
};
use crate::{Blob, BlobRef, BlobStore, Gc, StoreError, blob};

/// Stores the large values of events, before the events.
pub(super) fn insert_all(
    connection: &Connection,
    session: &SessionRow,
    events: &[Written],
) -> Result<(), Fault> {
    events.iter().flat_map(|event| &event.blobs).try_for_each(|blob| insert(connection, session, blob))
}

fn insert(connection: &Connection, session: &SessionRow, blob: &Blob) -> Result<(), Fault> {
    let sql = "INSERT INTO blobs (session, hash, body) VALUES (?1, ?2, ?3) ON CONFLICT DO NOTHING";
    connection.prepare_cached(sql)?.execute((session.number, blob.hash(), blob.json()))?;
    Ok(())
}

/// The JSON of a large value; none if it is missing or altered.
fn find(connection: &Connection, session: &SessionRow, reference: &BlobRef) -> Result<Option<String>, Fault> {
    let sql = "SELECT body FROM blobs WHERE session = ?1 AND hash = ?2";
    let mut query = connection.prepare_cached(sql)?;
    // A row whose bytes are not text any more is altered.
    let found = query.query_row((session.number, &reference.hash), |row| Ok(row.get::<_, String>(0).ok()));
    Ok(found.optional()?.flatten().filter(|json| reference.is_of(json)))
}

/// An event's JSON with its large values.
pub(super) fn whole(
    connection: &Connection,
    session: &SessionRow,
    body: &[u8],
    large: &[u8],
) -> Result<String, Fault> {
    let values = references(body, large)?.into_iter().map(|reference| {
        let missing = || Fault::Broken(format!("its large value {} is missing or altered", reference.hash));
        find(connection, session, &reference)?.ok_or_else(missing)
    });
    let values = values.collect::<Result<_, _>>()?;
    blob::join(text(body)?, text(large)?, values).map_err(wrong)
}

fn references(body: &[u8], large: &[u8]) -> Result<Vec<BlobRef>, Fault> {
    blob::references(text(body)?, text(large)?).map_err(wrong)
}

fn text(bytes: &[u8]) -> Result<&str, Fault> {
    std::str::from_utf8(bytes).map_err(|_| Fault::Broken("it is not UTF-8".to_owned()))
}

fn wrong(error: serde_json::Error) -> Fault {
    Fault::Broken(format!("its large values do not parse: {error}"))
}

/// The hashes of the large values to which no event refers. An event that cannot be read may refer to any of them: then
/// there are none.
fn unused(connection: &Connection, session: &SessionRow) -> Result<Vec<String>, Fault> {
    let mut used = BTreeSet::new();
    let mut is_sound = true;
    log::walk(connection, session, None, session.first_seq, |step| {
        match step {
            WalkStep::Event(StoredRow { large: None, .. }) => {}
            WalkStep::Event(StoredRow { large: Some(large), body, .. }) => match references(body, large) {
                Ok(found) => used.extend(found.into_iter().map(|reference| reference.hash)),
                Err(_) => is_sound = false,
            },
            WalkStep::Damage(_) => is_sound = false,
        }
        Ok(if is_sound { ControlFlow::Continue(()) } else { ControlFlow::Break(()) })
    })?;
    let mut query = connection.prepare_cached("SELECT hash FROM blobs WHERE session = ?1")?;
    let stored = query.query_map([session.number], |row| row.get::<_, String>(0))?;
    let stored = stored.collect::<Result<Vec<_>, _>>()?;
    Ok(stored.into_iter().filter(|hash| is_sound && !used.contains(hash)).collect())
}

impl SqliteStore {
    /// Counts the large values to which no event refers, or deletes them, in the sessions that no process runs at `now`.
    pub(super) async fn collect_unused(&self, mode: Gc, now: Timestamp) -> Result<u64, StoreError> {
        let here = self.here.clone();
        let look = move |connection: &mut Connection| {
            let sql = "SELECT id FROM sessions WHERE number IN (SELECT session FROM blobs) ORDER BY number";
            let mut query = connection.prepare(sql)?;
            let ids = query.query_map((), |row| row.get::<_, String>(0))?;
            let mut found = Vec::new();
            for id in ids {
                let id = SessionId::from(id?);
                let (session, _) = session::find_damaged(connection, &id)?;
                let free = session.holder(&here, now).is_none();
                let count = if free { unused(connection, &session)?.len() } else { 0 };
                found.extend((count > 0).then_some((id, count as u64)));
            }
            Ok(found)
        };
        let found = self.readers.ask(look).await?;
        if mode == Gc::Look {
            return Ok(found.iter().map(|(_, count)| count).sum());
        }
        let mut deleted = 0;
        for (id, _) in found {
            let here = self.here.clone();
            let delete = move |transaction: &mut Transaction<'_>| {
                let connection = transaction.connection;
                let (session, _) = session::find_damaged(connection, &id)?;
                // Another process may have taken it in the meantime, and refer to what it has just stored.
                let free = session.holder(&here, now).is_none();
                let unused = if free { unused(connection, &session)? } else { Vec::new() };
                let sql = "DELETE FROM blobs WHERE session = ?1 AND hash = ?2";
                for hash in &unused {
                    connection.prepare_cached(sql)?.execute((session.number, hash))?;
                }
                Ok(unused.len() as u64)
            };
            deleted += match self.write(usize::MAX, delete).await {
                Err(StoreError::UnknownSession(_)) => 0,
                done => done?,
            };
        }
        Ok(deleted)
    }
}

#[async_trait]
impl BlobStore for SqliteStore {
    async fn put(&self, session: &SessionId, blob: &Blob) -> Result<(), StoreError> {
        let (id, blob) = (session.clone(), blob.clone());
        let put = move |transaction: &mut Transaction<'_>| {
            let session = session::find(transaction.connection, &id)?;
            insert(transaction.connection, &session, &blob)
        };
        self.write(1, put).await
    }

    async fn get(&self, session: &SessionId, reference: &BlobRef) -> Result<Blob, StoreError> {
        let (id, reference) = (session.clone(), reference.clone());
        let get = move |connection: &mut Connection| {
            let session = session::find(connection, &id)?;
            let found = find(connection, &session, &reference)?;
            let missing = || StoreError::NoBlob { session: id.clone(), hash: reference.hash.clone() };
            Ok(found.map(Blob::new).ok_or_else(missing)?)
        };
        self.readers.ask(get).await
    }
}
