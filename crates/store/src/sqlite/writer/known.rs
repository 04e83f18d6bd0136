//! Sessions as this writer left their rows, so that the next append does not have to read them back. When they are
//! written is left to the writer, what a row holds to `session`.

use std::collections::HashMap;

use rusqlite::Connection;

use crate::sqlite::{fault::Fault, session::Session};

/// Sessions that are remembered at once; each may hold a few questions.
const LIMIT: usize = 256;

/// The rows of sessions as they were written last.
#[derive(Debug, Default)]
pub(super) struct Known {
    sessions: HashMap<String, Session>,
    /// SQLite's number of what this connection sees: another one when somebody else has written.
    version: Option<i64>,
    /// Whether the present request has said what the row that it wrote has become.
    said: bool,
}

impl Known {
    /// Forgets everything if somebody else has written since the last look. To be asked within the transaction.
    pub(super) fn check(&mut self, connection: &Connection) -> Result<(), Fault> {
        let version = connection.prepare_cached("PRAGMA data_version")?.query_row((), |row| row.get(0))?;
        if self.version != Some(version) {
            self.forget();
            self.version = Some(version);
        }
        Ok(())
    }

    pub(super) fn take(&mut self, id: &str) -> Option<Session> {
        self.sessions.remove(id)
    }

    pub(super) fn keep(&mut self, session: Session) {
        if self.sessions.len() >= LIMIT {
            self.sessions.clear();
        }
        self.sessions.insert(session.id.clone(), session);
        self.said = true;
    }

    /// After each request. One that went well and does not say what its row has become may have changed any, and what
    /// one said that was refused does not stand.
    pub(super) fn settle(&mut self, went_well: bool) {
        if std::mem::take(&mut self.said) != went_well {
            self.forget();
        }
    }

    /// Forgets everything.
    pub(super) fn forget(&mut self) {
        self.sessions.clear();
    }
}
