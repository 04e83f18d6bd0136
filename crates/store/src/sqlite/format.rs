//! The store's tables, how a file identifies itself, and the migrations from one format to the next: forward only, in
//! one transaction, after a backup. `docs/store.md` explains the tables.

use std::{fs, path::Path};

use rusqlite::Connection;
use rusqlite_migration::{M, Migrations};

use super::{
    fault::{Fault, of_file},
    file,
};
use crate::StoreError;

/// `insp` in ASCII, at a fixed offset of the file's header.
pub(super) const APPLICATION_ID: i32 = 0x696e_7370;

/// Step N leads from format N, counting from 0, to the next.
pub(super) type Steps = [M<'static>];

/// The released formats. A released step never changes.
pub(super) const STEPS: &Steps = &[M::up(FORMAT_1), M::up(FORMAT_2), M::up(FORMAT_3)];

const FORMAT_1: &str = "
PRAGMA application_id = 0x696e7370;

CREATE TABLE sessions (
    number        INTEGER PRIMARY KEY,
    id            TEXT    NOT NULL UNIQUE,
    flow          TEXT    NOT NULL,
    created_at    INTEGER NOT NULL,
    ended_at      INTEGER,
    epoch         INTEGER NOT NULL,
    owner         TEXT,
    lease_began   INTEGER NOT NULL,
    lease_expires INTEGER NOT NULL,
    first_seq     INTEGER NOT NULL,
    last_seq      INTEGER NOT NULL,
    last_sum      BLOB    NOT NULL,
    digest        TEXT    NOT NULL
) STRICT;
CREATE INDEX sessions_by_age ON sessions (created_at DESC, id);

CREATE TABLE records (
    session INTEGER PRIMARY KEY,
    body    TEXT    NOT NULL,
    sum     BLOB    NOT NULL
) STRICT;

CREATE TABLE events (
    session INTEGER NOT NULL,
    seq     INTEGER NOT NULL,
    epoch   INTEGER NOT NULL,
    at      INTEGER NOT NULL,
    kind    TEXT    NOT NULL,
    sum     BLOB    NOT NULL,
    body    TEXT    NOT NULL,
    PRIMARY KEY (session, seq)
) STRICT;

CREATE TABLE commands (
    session      INTEGER NOT NULL,
    number       INTEGER NOT NULL,
    at           INTEGER NOT NULL,
    body         TEXT    NOT NULL,
    sum          BLOB    NOT NULL,
    verdict      TEXT    CHECK (verdict IN ('accepted', 'refused')),
    reason       TEXT,
    answered_seq INTEGER,
    PRIMARY KEY (session, number)
) STRICT;
CREATE INDEX commands_unanswered ON commands (session, number) WHERE verdict IS NULL;

CREATE VIEW log AS
SELECT sessions.id AS session, events.seq, events.epoch,
       strftime('%Y-%m-%dT%H:%M:%fZ', events.at / 1000.0, 'unixepoch') AS at,
       events.kind, events.body
FROM events JOIN sessions ON sessions.number = events.session;
";

/// Large values are stored beside the log. What format 1 stored stays as it is.
const FORMAT_2: &str = "
CREATE TABLE blobs (
    session INTEGER NOT NULL,
    hash    TEXT    NOT NULL,
    body    TEXT    NOT NULL,
    PRIMARY KEY (session, hash)
) STRICT;

ALTER TABLE events ADD COLUMN large TEXT;

DROP VIEW log;
CREATE VIEW log AS
SELECT sessions.id AS session, events.seq, events.epoch,
       strftime('%Y-%m-%dT%H:%M:%fZ', events.at / 1000.0, 'unixepoch') AS at,
       events.kind, events.body, events.large
FROM events JOIN sessions ON sessions.number = events.session;
";

/// A command may have a key of its caller, under which it is posted once.
const FORMAT_3: &str = "
ALTER TABLE commands ADD COLUMN key TEXT;
CREATE UNIQUE INDEX commands_by_key ON commands (session, key) WHERE key IS NOT NULL;
";

/// What kind of file it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StoreFileKind {
    /// An empty file.
    Empty,
    /// A store of this format, which is not newer than the newest known one.
    Store(i64),
}

/// Identifies the file; refuses a file of another kind and a newer format.
pub(super) fn look(connection: &Connection, path: &Path, steps: &Steps) -> Result<StoreFileKind, Fault> {
    let number = |name| connection.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
    let (id, found) = (number("application_id")?, number("user_version")?);
    let tables: i64 = connection.query_row("SELECT count(*) FROM sqlite_schema", (), |row| row.get(0))?;
    let path = path.to_owned();
    if id == 0 && found == 0 && tables == 0 {
        return Ok(StoreFileKind::Empty);
    }
    if id != i64::from(APPLICATION_ID) {
        let what = match id {
            0 => "it is a database of SQLite without an application id".to_owned(),
            id => format!("it is a database of SQLite with the application id {id:#010x}"),
        };
        return Err(StoreError::NotAStore { path, what }.into());
    }
    let known = newest(steps);
    if found > known {
        return Err(StoreError::NewerFormat { path, found, known }.into());
    }
    Ok(StoreFileKind::Store(found))
}

/// Whether the file has a place for large values, since format 2. Another process may upgrade it at
/// any time, so this is checked within the transaction that reads.
pub(super) fn has_blobs(connection: &Connection) -> Result<bool, Fault> {
    let format: i64 = connection.prepare_cached("PRAGMA user_version")?.query_row((), |row| row.get(0))?;
    Ok(format >= 2)
}

/// The newest format.
pub(super) fn newest(steps: &Steps) -> i64 {
    i64::try_from(steps.len()).unwrap_or(i64::MAX)
}

/// Migrates the file to the newest format, after a backup.
pub(super) fn bring_up(
    connection: &mut Connection,
    path: &Path,
    found: StoreFileKind,
    steps: &Steps,
) -> Result<(), Fault> {
    match found {
        StoreFileKind::Store(format) if format == newest(steps) => return Ok(()),
        StoreFileKind::Store(format) => back_up(connection, path, format)?,
        StoreFileKind::Empty => {}
    }
    match Migrations::from_slice(steps).to_latest(connection) {
        Ok(()) => Ok(()),
        Err(rusqlite_migration::Error::RusqliteError { err, .. }) => Err(err.into()),
        Err(error) => Err(StoreError::Io { path: path.to_owned(), message: error.to_string() }.into()),
    }
}

/// Copies the store to a file beside it. The copy gets its name when it is complete and synced.
fn back_up(connection: &Connection, path: &Path, format: i64) -> Result<(), Fault> {
    let [part, whole] = ["part", "backup"].map(|end| file::beside(path, &format!("-format-{format}.{end}")));
    let checked = |result: std::io::Result<()>| result.map_err(|error| of_file(&part, &error));
    if part.exists() {
        checked(fs::remove_file(&part))?;
    }
    // SQLite fills an empty file and keeps its permissions: those of the store.
    checked(file::make(&part).map(|_| ()))?;
    let target = part.to_str().ok_or_else(|| StoreError::Io {
        path: part.clone(),
        message: "a backup cannot be made where the path is not UTF-8".to_owned(),
    })?;
    connection.execute("VACUUM INTO ?1", [target])?;
    checked(fs::File::open(&part).and_then(|file| file.sync_all()))?;
    checked(fs::rename(&part, &whole))?;
    if let Some(folder) = path.parent() {
        checked(fs::File::open(folder).and_then(|folder| folder.sync_all()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_steps_are_sound() {
        assert_eq!(Migrations::from_slice(STEPS).validate(), Ok(()));
    }
}
