//! The state of a session as one viewer has it, and what differs from it after more events.

use std::sync::Arc;

use inspan_protocol::{Envelope, NodePath, SessionId};
use inspan_sessions::SessionError;
use inspan_view::entry;
use serde_json::{Value, json};

use crate::App;

/// The state that a viewer has.
pub(super) struct StateFeed {
    session: SessionId,
    entry: Value,
    seq: u64,
    is_changed: bool,
}

impl StateFeed {
    /// The state of a session now. `open` are the frames whose nodes the viewer sees.
    pub(super) async fn open(
        app: &App,
        session: &SessionId,
        _open: &[NodePath],
    ) -> Result<Self, SessionError> {
        let stored = app.sessions.entry(session).await?;
        let seq = stored.digest.last_seq;
        Ok(Self { session: session.clone(), entry: entry::json(&stored), seq, is_changed: false })
    }

    /// The number of the last event that is in it.
    pub(super) fn seq(&self) -> u64 {
        self.seq
    }

    /// All of it.
    pub(super) fn state(&self) -> Value {
        json!({ "seq": self.seq, "session": self.entry })
    }

    /// Takes the next events in.
    pub(super) fn apply(&mut self, events: &[Arc<Envelope>]) {
        if let Some(last) = events.last() {
            self.seq = last.seq;
            self.is_changed = true;
        }
    }

    /// What differs from what the viewer has, if anything does. The viewer has it then.
    pub(super) async fn patch(&mut self, app: &App) -> Result<Option<Value>, SessionError> {
        let now = entry::json(&app.sessions.entry(&self.session).await?);
        if !std::mem::take(&mut self.is_changed) && now == self.entry {
            return Ok(None);
        }
        self.entry = now;
        Ok(Some(json!({ "seq": self.seq, "session": self.entry })))
    }
}
