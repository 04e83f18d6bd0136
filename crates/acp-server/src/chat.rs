//! One conversation of an editor: the sessions that it has started, and where in the newest one it is.

use std::path::PathBuf;
use std::sync::Arc;

use inspan_protocol::SessionId;
use inspan_sessions::{OpenQuestions, OpenSession, SessionError, Sessions};
use parking_lot::Mutex;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::updates::Updates;

/// What the ids of conversations begin with.
const PREFIX: &str = "acp-";
/// The most sessions of one conversation that are found again.
const MOST: usize = 1000;

/// A conversation.
pub(crate) struct Chat {
    /// Its id, in the protocol.
    pub(crate) id: String,
    /// The folder it is about.
    pub(crate) cwd: PathBuf,
    /// The sessions of the store, and the flows of that folder.
    pub(crate) sessions: Sessions,
    /// Where it is; held by the one task that sends updates.
    pub(crate) run: tokio::sync::Mutex<Option<CurrentSession>>,
    /// The turn in progress.
    pub(crate) turn: Mutex<Option<ActiveTurn>>,
    /// Cancelled when its session is no longer watched beside turns.
    watch_end: Mutex<CancellationToken>,
}

/// The newest session of a conversation.
pub(crate) struct CurrentSession {
    pub(crate) session: SessionId,
    /// The next event that the editor has not seen.
    pub(crate) next: u64,
    pub(crate) updates: Updates,
    /// Its open questions, by the events that the editor has seen.
    pub(crate) open: OpenQuestions,
}

impl CurrentSession {
    /// A session of which the editor has seen nothing.
    pub(crate) fn new(session: SessionId, opened: &OpenSession) -> Self {
        Self { session, next: 1, updates: Updates::new(opened), open: OpenQuestions::default() }
    }
}

/// A turn in progress.
#[derive(Clone)]
pub(crate) struct ActiveTurn {
    /// The id of the request.
    pub(crate) request: Value,
    /// Set when the person cancels.
    pub(crate) cancelled: CancellationToken,
    /// The session, once it is known.
    pub(crate) session: Option<SessionId>,
}

impl Chat {
    pub(crate) fn new(id: String, cwd: PathBuf, sessions: Sessions) -> Arc<Self> {
        Arc::new(Self {
            id,
            cwd,
            sessions,
            run: tokio::sync::Mutex::new(None),
            turn: Mutex::new(None),
            watch_end: Mutex::default(),
        })
    }

    /// What ends a watch that begins now.
    pub(crate) fn watching(&self) -> CancellationToken {
        self.watch_end.lock().clone()
    }

    /// Ends the watch, so that a turn can show what happens; one that has not begun yet ends at once.
    pub(crate) fn stop_watching(&self) {
        self.watch_end.lock().cancel();
    }

    /// The id of a conversation, of a fresh id of a session.
    pub(crate) fn id_of(fresh: &SessionId) -> String {
        let id = fresh.as_str();
        format!("{PREFIX}{}", id.rsplit_once('-').map_or(id, |(_, random)| random))
    }

    /// The sessions of this conversation, oldest first: those that it has started, or the one that it is named by.
    pub(crate) async fn started(&self) -> Result<Vec<SessionId>, SessionError> {
        let prefix = format!("{}-", self.id);
        if self.id.starts_with(PREFIX) {
            let entries = self.sessions.store().entries(&prefix, MOST).await?;
            let mut numbered: Vec<(u64, SessionId)> = entries
                .into_iter()
                .filter_map(|entry| {
                    Some((entry.session.as_str().strip_prefix(&prefix)?.parse().ok()?, entry.session))
                })
                .collect();
            numbered.sort();
            return Ok(numbered.into_iter().map(|(_, session)| session).collect());
        }
        self.sessions.entry(&SessionId::from(self.id.as_str())).await.map(|entry| vec![entry.session])
    }

    /// The id of the next session; for a conversation that a shell has started, any id.
    pub(crate) async fn next_id(&self) -> Result<Option<SessionId>, SessionError> {
        if !self.id.starts_with(PREFIX) {
            return Ok(None);
        }
        let prefix = format!("{}-", self.id);
        let started = self.started().await?;
        let numbers =
            started.iter().filter_map(|session| session.as_str().strip_prefix(&prefix)?.parse::<u64>().ok());
        let next = numbers.max().unwrap_or_default() + 1;
        Ok(Some(SessionId::from(format!("{prefix}{next}"))))
    }

    /// Notes the session of the turn in progress.
    pub(crate) fn set_session(&self, session: &SessionId) {
        if let Some(turn) = self.turn.lock().as_mut() {
            turn.session = Some(session.clone());
        }
    }
}

/// The conversation that a session belongs to: its own id unless a conversation has started it.
pub(crate) fn conversation_of(session: &SessionId) -> &str {
    let numbered = session.as_str().rsplit_once('-').filter(|(_, number)| number.parse::<u64>().is_ok());
    match numbered {
        Some((chat, _)) if chat.starts_with(PREFIX) && chat.len() > PREFIX.len() => chat,
        _ => session.as_str(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_belongs_to_the_conversation_that_its_id_names() {
        let rows = [
            ("acp-0123456789ab-1", "acp-0123456789ab"),
            ("acp-0123456789ab-12", "acp-0123456789ab"),
            ("acp-1", "acp-1"),
            ("flow-1a2b", "flow-1a2b"),
            ("other-0123-2", "other-0123-2"),
        ];
        for (session, chat) in rows {
            assert_eq!(conversation_of(&SessionId::from(session)), chat);
        }
    }
}
