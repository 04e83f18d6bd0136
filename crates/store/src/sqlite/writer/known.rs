//! A cache of the session rows that this writer wrote, so that the next append does not read them back.

use std::collections::HashMap;

use rusqlite::Connection;

use crate::sqlite::{fault::Fault, session::SessionRow};

/// How many sessions are cached; each may hold a few questions.
const LIMIT: usize = 256;

/// The cached rows.
#[derive(Debug, Default)]
pub(super) struct Known {
    sessions: HashMap<String, SessionRow>,
    /// SQLite's data version as this connection sees it: it differs once another connection has written.
    version: Option<i64>,
    /// Whether the current request has reported the row that it wrote.
    said: bool,
}

impl Known {
    /// Clears the cache if another connection has written. Called within the transaction.
    pub(super) fn check(&mut self, connection: &Connection) -> Result<(), Fault> {
        let version = connection.prepare_cached("PRAGMA data_version")?.query_row((), |row| row.get(0))?;
        if self.version != Some(version) {
            self.forget();
            self.version = Some(version);
        }
        Ok(())
    }

    pub(super) fn take(&mut self, id: &str) -> Option<SessionRow> {
        self.sessions.remove(id)
    }

    pub(super) fn keep(&mut self, session: SessionRow) {
        if self.sessions.len() >= LIMIT {
            self.sessions.clear();
        }
        self.sessions.insert(session.id.clone(), session);
        self.said = true;
    }

    /// Called after each request. A request that succeeded without reporting its row may have changed any row, and a row
    /// reported by a refused request is not valid.
    pub(super) fn settle(&mut self, went_well: bool) {
        if std::mem::take(&mut self.said) != went_well {
            self.forget();
        }
    }

    /// Clears the cache.
    pub(super) fn forget(&mut self) {
        self.sessions.clear();
    }
}
