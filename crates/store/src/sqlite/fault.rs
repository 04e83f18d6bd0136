//! Failures of SQLite as the store's own errors, and what can be done about them.

use std::{io, path::Path};

use rusqlite::ErrorCode;
use serde::de::DeserializeOwned;

use crate::StoreError;

/// As much free space as SQLite may need to continue at all.
const ROOM: u64 = 256 * 1024;
/// Below this much free space no attempt begins: its end could not be stored.
const ROOM_FOR_AN_END: u64 = 1024 * 1024;

/// A failure, before it is known in which store.
#[derive(Debug)]
pub(super) enum Fault {
    /// The request is refused; the store is sound.
    Refused(StoreError),
    /// A row is not what was written.
    Broken(String),
    /// SQLite failed.
    Sqlite(rusqlite::Error),
    /// The system failed, or does not give what is needed; the store is sound.
    System(String),
}

impl From<StoreError> for Fault {
    fn from(error: StoreError) -> Self {
        Self::Refused(error)
    }
}

impl From<rusqlite::Error> for Fault {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sqlite(error)
    }
}

impl Fault {
    /// What could not be read, and why: what is not a file as the store writes it is damage.
    pub(super) fn unread(what: &str, error: &io::Error) -> Self {
        let message = format!("{what} cannot be read: {error}");
        match error.raw_os_error() {
            Some(_) => Self::System(message),
            None => Self::Broken(message),
        }
    }

    /// Whether another process held a lock, so that a retry may help.
    pub(super) fn is_busy(&self) -> bool {
        matches!(self.code(), Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked))
    }

    /// Whether it is unknown what the system has stored: a connection that saw this is not used again.
    pub(super) fn poisons(&self) -> bool {
        matches!(self.code(), Some(ErrorCode::SystemIoFailure | ErrorCode::DatabaseCorrupt))
    }

    /// Whether the content of the file is not what was written.
    pub(super) fn is_damage(&self) -> bool {
        use rusqlite::Error::{
            FromSqlConversionFailure, IntegralValueOutOfRange, InvalidColumnType, Utf8Error,
        };
        let of_type = |error: &rusqlite::Error| {
            matches!(
                error,
                FromSqlConversionFailure(..)
                    | IntegralValueOutOfRange(..)
                    | InvalidColumnType(..)
                    | Utf8Error(..)
            )
        };
        match self {
            Self::Sqlite(error) => of_type(error) || self.code() == Some(ErrorCode::DatabaseCorrupt),
            Self::Broken(_) => true,
            Self::Refused(_) | Self::System(_) => false,
        }
    }

    fn code(&self) -> Option<ErrorCode> {
        match self {
            Self::Sqlite(error) => error.sqlite_error_code(),
            Self::Refused(_) | Self::Broken(_) | Self::System(_) => None,
        }
    }

    /// Adds the session, if the fault does not name it.
    pub(super) fn of(self, session: &str) -> Self {
        if self.is_damage() { Self::Broken(format!("session `{session}`: {self}")) } else { self }
    }

    /// The store's own error.
    pub(super) fn at(self, path: &Path) -> StoreError {
        let message = self.to_string();
        let (code, is_damage) = (self.code(), self.is_damage());
        let path = path.to_owned();
        match (self, code) {
            (Self::Refused(error), _) => error,
            _ if is_damage => StoreError::Damaged { path, what: message },
            (_, Some(ErrorCode::DiskFull)) => StoreError::Full { path },
            // A full disk also shows when the shared memory beside the store cannot grow.
            (_, Some(ErrorCode::SystemIoFailure)) if is_full(&path) => StoreError::Full { path },
            (_, Some(ErrorCode::ReadOnly)) => StoreError::ReadOnly { path },
            // Our values for unique columns are unique: a clash means that a row was altered.
            (_, Some(ErrorCode::ConstraintViolation)) => StoreError::Damaged { path, what: message },
            (_, Some(ErrorCode::NotADatabase)) => StoreError::NotAStore { path, what: message },
            (_, Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked)) => StoreError::Locked { path },
            _ => StoreError::Io { path, message },
        }
    }
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Refused(error) => error.fmt(f),
            Self::Broken(what) | Self::System(what) => what.fmt(f),
            Self::Sqlite(error) => error.fmt(f),
        }
    }
}

/// Reads a column that holds JSON.
pub(super) fn from_json<T: DeserializeOwned>(what: &str, json: &[u8]) -> Result<T, Fault> {
    serde_json::from_slice(json).map_err(|error| Fault::Broken(format!("{what} does not parse: {error}")))
}

/// The error of a file beside the store, or of its folder.
pub(super) fn of_file(path: &Path, error: &io::Error) -> StoreError {
    let path = path.to_owned();
    match error.kind() {
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => StoreError::ReadOnly { path },
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => StoreError::Full { path },
        _ => StoreError::Io { path, message: error.to_string() },
    }
}

fn is_full(path: &Path) -> bool {
    has_less(path, ROOM)
}

/// Whether there is room for the end of one more attempt.
///
/// # Errors
/// There is not: [`StoreError::Full`].
pub fn room_at(path: &Path) -> Result<(), StoreError> {
    if has_less(path, ROOM_FOR_AN_END) { Err(StoreError::Full { path: path.to_owned() }) } else { Ok(()) }
}

/// A file system that does not report its free space counts as having some.
fn has_less(path: &Path, bytes: u64) -> bool {
    rustix::fs::statvfs(path).is_ok_and(|space| space.f_bavail.saturating_mul(space.f_frsize) < bytes)
}
