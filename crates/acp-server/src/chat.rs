//! One conversation of an editor: the sessions that it has started, and where in the newest one it is.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;

use inspan_protocol::{PromptId, SessionId};
use inspan_sessions::{OpenQuestions, RegisteredFlow, SessionError, SessionErrorCode, Sessions, UNREAD};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::input::command_of;
use crate::rpc::Client;
use crate::updates::Updates;
use crate::wire::says;

/// What the ids of conversations begin with.
const PREFIX: &str = "acp-";
/// What the ids of sessions begin with that a conversation starts which is named by the session of a shell.
const OF_SHELL: &str = "acp-of-";
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
    /// The questions that the editor has been told, and since when.
    shown: Mutex<HashMap<PromptId, Instant>>,
    /// Cancelled when its session is no longer watched, because a turn begins.
    watch_end: Mutex<CancellationToken>,
    /// Cancelled when the conversation is closed.
    closed: CancellationToken,
}

/// The newest session of a conversation.
pub(crate) struct CurrentSession {
    pub(crate) session: SessionId,
    /// The next event that the editor has not seen.
    pub(crate) next: u64,
    pub(crate) updates: Updates,
    /// Its open questions, by the events that the editor has seen.
    pub(crate) open: OpenQuestions,
    /// Questions that the person left open, or that the editor cannot show.
    pub(crate) unanswered: HashSet<PromptId>,
    /// Whether the person was told what waits for them, and nothing has happened since.
    pub(crate) has_told: bool,
    /// When a turn, or the refusal of a text, said that it has ended. Between turns, who types may not know.
    pub(crate) end_shown: Option<Instant>,
}

impl CurrentSession {
    /// A session of which the editor has seen nothing.
    pub(crate) async fn open(
        sessions: &Sessions,
        session: SessionId,
        flows: &[RegisteredFlow],
    ) -> Result<Self, SessionError> {
        let opened = sessions.open(&session).await?;
        let updates = Updates::new(&opened, command_of(flows, &opened), sessions.commands());
        let open = OpenQuestions::default();
        let unanswered = HashSet::new();
        Ok(Self { session, next: 1, updates, open, unanswered, has_told: false, end_shown: None })
    }

    /// Goes over to the session that continues this one, if there is one: a shell may have continued it. Whether it has.
    pub(crate) async fn go_on(&mut self, chat: &Chat) -> Result<bool, SessionError> {
        let by = chat.sessions.entry(&self.session).await?.continued_by;
        let newest = chain(&chat.sessions, self.session.clone(), by).await.pop();
        let Some(newest) = newest.filter(|newest| *newest != self.session) else { return Ok(false) };
        let flows = chat.sessions.launcher().flows().await?;
        *self = Self::open(&chat.sessions, newest, &flows).await?;
        Ok(true)
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
            shown: Mutex::default(),
            watch_end: Mutex::default(),
            closed: CancellationToken::new(),
        })
    }

    /// Tells the person something. The commands in it mean the sessions of this store.
    pub(crate) async fn tell(&self, client: &Client, text: &str) {
        self.update(client, says(&self.sessions.commands().complete(text))).await;
    }

    /// Shows the editor something of this conversation.
    pub(crate) async fn update(&self, client: &Client, update: Value) {
        client.notify("session/update", json!({ "sessionId": self.id, "update": update })).await;
    }

    /// Notes that a turn begins, which shows what happens from then on; the turn in progress, if there is one already.
    pub(crate) fn begin_turn(&self, new: ActiveTurn) -> Option<ActiveTurn> {
        let mut turn = self.turn.lock();
        if turn.is_none() {
            *turn = Some(new);
            self.watch_end.lock().cancel();
            return None;
        }
        turn.clone()
    }

    /// What ends a watch that begins now, in the place of an earlier one; nothing while a turn shows what happens.
    pub(crate) fn begin_watch(&self) -> Option<CancellationToken> {
        let turn = self.turn.lock();
        if turn.is_some() {
            return None;
        }
        let end = self.closed.child_token();
        std::mem::replace(&mut *self.watch_end.lock(), end.clone()).cancel();
        Some(end)
    }

    /// The editor has been told a question.
    pub(crate) fn note_shown(&self, question: &PromptId) {
        self.shown.lock().entry(question.clone()).or_insert_with(Instant::now);
    }

    /// Whether a message that arrived then was written before its author could read the question.
    pub(crate) fn is_unread(&self, question: &PromptId, arrived: Instant) -> bool {
        self.shown.lock().get(question).is_none_or(|shown| arrived < *shown + UNREAD)
    }

    /// Ends the watch.
    pub(crate) fn end_watch(&self) {
        self.watch_end.lock().cancel();
    }

    /// Closes the conversation: it is not watched any more, and a turn in progress is cancelled.
    pub(crate) fn close(&self) {
        self.closed.cancel();
        if let Some(turn) = self.turn.lock().as_ref() {
            turn.cancelled.cancel();
        }
    }

    /// The id of a conversation, of a fresh id of a session.
    pub(crate) fn id_of(fresh: &SessionId) -> String {
        let id = fresh.as_str();
        format!("{PREFIX}{}", id.rsplit_once('-').map_or(id, |(_, random)| random))
    }

    /// The sessions of this conversation, oldest first: the one that it is named by, those that it has started, and those that
    /// continue them.
    pub(crate) async fn started(&self) -> Result<Vec<SessionId>, SessionError> {
        let mut first = Vec::new();
        match self.sessions.entry(&SessionId::from(self.id.as_str())).await {
            Ok(entry) => first.push((0, entry)),
            Err(error) if error.code == SessionErrorCode::UnknownSession => {}
            Err(error) => return Err(error),
        }
        let prefix = self.prefix();
        let entries = self.sessions.store().entries(&prefix, MOST).await?;
        first.extend(entries.into_iter().filter_map(|entry| {
            Some((entry.session.as_str().strip_prefix(&prefix)?.parse::<u64>().ok()?, entry))
        }));
        first.sort_by_key(|(number, _)| *number);
        let mut started: Vec<SessionId> = Vec::new();
        for (_, entry) in first {
            let chain = chain(&self.sessions, entry.session, entry.continued_by).await;
            started
                .extend(chain.into_iter().filter(|session| !started.contains(session)).collect::<Vec<_>>());
        }
        Ok(started)
    }

    /// What the ids of the sessions begin with that this conversation starts; a number follows.
    fn prefix(&self) -> String {
        match self.id.starts_with(PREFIX) {
            true => format!("{}-", self.id),
            false => format!("{OF_SHELL}{}-", self.id),
        }
    }

    /// The id of the next session; any if it would be too long.
    pub(crate) async fn next_id(&self) -> Result<Option<SessionId>, SessionError> {
        let prefix = self.prefix();
        let started = self.started().await?;
        let numbers =
            started.iter().filter_map(|session| session.as_str().strip_prefix(&prefix)?.parse::<u64>().ok());
        let next = numbers.max().unwrap_or_default() + 1;
        Ok(SessionId::checked(&format!("{prefix}{next}")).ok())
    }

    /// Notes the session of the turn in progress.
    pub(crate) fn set_session(&self, session: &SessionId) {
        if let Some(turn) = self.turn.lock().as_mut() {
            turn.session = Some(session.clone());
        }
    }
}

/// A session and those that continue it, one after the other.
async fn chain(sessions: &Sessions, first: SessionId, mut next: Option<SessionId>) -> Vec<SessionId> {
    let mut chain = vec![first];
    while let Some(by) = next.filter(|by| !chain.contains(by)) {
        // One that cannot be read is not shown, nor what continues it.
        let Ok(entry) = sessions.entry(&by).await else { break };
        chain.push(entry.session);
        next = entry.continued_by;
    }
    chain
}

/// The conversation that a session belongs to: its own id unless a conversation has started it.
pub(crate) fn conversation_of(session: &SessionId) -> &str {
    let numbered = session.as_str().rsplit_once('-').filter(|(_, number)| number.parse::<u64>().is_ok());
    match numbered {
        Some((chat, _)) if chat.starts_with(OF_SHELL) => &chat[OF_SHELL.len()..],
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
            ("acp-of-flow-1a2b-3", "flow-1a2b"),
            ("flow-1a2b", "flow-1a2b"),
            ("other-0123-2", "other-0123-2"),
        ];
        for (session, chat) in rows {
            assert_eq!(conversation_of(&SessionId::from(session)), chat);
        }
    }
}
