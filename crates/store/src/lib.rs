//! Stores for sessions: the contract of a run store, a store in memory and a store in SQLite.

mod blob;
mod memory;
mod owner;
mod sqlite;
#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, path::PathBuf, sync::Arc};

use futures::stream::BoxStream;
use inspan_protocol::{Command, Envelope, NodePath, PromptId, SessionId, SessionStatus, Timestamp};

/// Written above `impl RunStore for …`.
pub use async_trait::async_trait;
pub use inspan_flow_core::{FlowSource, Parent, ParentKind, SessionFacts, SessionRecord, Waits};

pub use blob::{Blob, BlobRef, BlobStore, LARGE_VALUE, MOST_EVENT_BYTES};
pub use memory::MemoryStore;
pub use owner::{Liveness, Owner};
pub use sqlite::{
    Deleted, Exported, Finding, Gc, GcReport, Import, SqliteOptions, SqliteStore, StoreProblem,
    TransferError, VerifyReport, room_at,
};

/// How long a lease is valid without being renewed.
pub const LEASE: std::time::Duration = std::time::Duration::from_secs(15);

/// So many bytes of JSON are read of a log at once, and the rest of the event that goes beyond. It bounds what is held for a viewer
/// that does not read.
pub const PAGE_BYTES: usize = 256 * 1024;

/// Sessions, each an append-only log with one owner at a time, and the commands that others leave for it.
///
/// 1. The owner of the lease runs the session. [`create`](Self::create) and [`acquire`](Self::acquire) take the lease,
///    each time with a greater epoch. For an owner on the same machine the only question is whether its process is
///    alive; for any other owner the lease counts until it expires. A lease that begins in the future (the clock went
///    back) counts as expired. If a future that takes a lease is dropped before it has given it, the lease is given back.
/// 2. `append` returns only after every reader sees the whole batch and it survives the end of any process. A batch with a
///    fact ([`FACTS`](inspan_flow_core::FACTS)) or an answer to a command also survives everything else that the
///    store guarantees to survive, and with it everything that was appended before, of any session. Other events
///    survive that from the next such batch on: until then a power cut may take the newest of them, never one before
///    a fact, and never one without all that came after it. An owner whose epoch is not the newest gets
///    [`StoreError::Fenced`], and nothing is stored.
/// 3. Events are appended in the order of their `seq`, without gaps; anything else is
///    [`StoreError::Conflict`], and nothing of the batch is stored. The answers to commands in a batch are stored
///    with its events or not at all.
/// 4. `read` returns every acknowledged event from a `seq` on, in order. Damage is an error that names the session and
///    the `seq`; it is never skipped.
/// 5. Readers never block the writer, and need no lease; any process may `post` a command.
/// 6. A command is answered once; posting gives a number that grows within its session. The batch that ends a session
///    refuses every command that is still open, in its own transaction, and nothing can be posted after it. While
///    no process runs a session, a question takes one reply.
#[async_trait]
pub trait RunStore: Send + Sync {
    /// Stores a new session and takes its lease. If it takes over the work of another one that is not in the store, that is
    /// [`StoreError::UnknownSession`]: it could not be resumed. If it continues one that has newer events than it knows, that
    /// is [`StoreError::HasNewEvents`].
    async fn create(
        &self,
        record: &SessionRecord,
        owner: &Owner,
        now: Timestamp,
    ) -> Result<Lease, StoreError>;

    /// Takes the lease of a session that no process runs; else [`StoreError::Held`] names the owner.
    async fn acquire(&self, session: &SessionId, owner: &Owner, now: Timestamp) -> Result<Lease, StoreError>;

    /// Extends the lease to [`LEASE`] from `now`.
    async fn renew(&self, lease: &Lease, now: Timestamp) -> Result<(), StoreError>;

    /// Releases the lease. Does nothing if another owner has taken it. An owner that is dropped polls the future once, and may
    /// not be able to wait for its end: it must be under way by then, after every batch that was given to the store before.
    async fn release(&self, lease: &Lease) -> Result<(), StoreError>;

    /// Appends a batch to the session's log.
    async fn append(&self, lease: &Lease, batch: Batch<'_>) -> Result<(), StoreError>;

    /// The session's events from `from` on.
    async fn read(
        &self,
        session: &SessionId,
        from: u64,
        select: Select,
    ) -> Result<Vec<Arc<Envelope>>, StoreError> {
        self.read_some(session, from, select, usize::MAX).await
    }

    /// The session's next events from `from` on, at most so many; none if there are no more. A store on disk gives fewer
    /// once they take [`PAGE_BYTES`], but always one.
    async fn read_next(
        &self,
        session: &SessionId,
        from: u64,
        most: usize,
    ) -> Result<Vec<Arc<Envelope>>, StoreError> {
        self.read_some(session, from, Select::All, most).await
    }

    /// As [`RunStore::read_next`], of the events that are wanted; all of them for `usize::MAX`.
    async fn read_some(
        &self,
        session: &SessionId,
        from: u64,
        select: Select,
        most: usize,
    ) -> Result<Vec<Arc<Envelope>>, StoreError>;

    /// The record that was stored when the session was created.
    async fn record(&self, session: &SessionId) -> Result<SessionRecord, StoreError>;

    /// The list entry of a session.
    async fn entry(&self, session: &SessionId) -> Result<SessionEntry, StoreError>;

    /// The list entries of the sessions whose id has this prefix, newest first. A session that is damaged or lost has
    /// an entry with [`damage`](SessionEntry::damage).
    async fn entries(&self, prefix: &str, limit: usize) -> Result<Vec<SessionEntry>, StoreError>;

    /// Posts a command for the process that runs the session now or later. Returns its number within the session.
    async fn post(&self, session: &SessionId, command: &Command, now: Timestamp) -> Result<u64, StoreError> {
        self.post_once(session, None, command, now).await
    }

    /// Posts a command that counts once: if a command with this key was posted to the session before, nothing is posted,
    /// and the number is that command's. [`StoreError::KeyReused`] if that was another command. Without a key it is posted
    /// each time.
    async fn post_once(
        &self,
        session: &SessionId,
        key: Option<&str>,
        command: &Command,
        now: Timestamp,
    ) -> Result<u64, StoreError>;

    /// The command that was posted once with this key, answered or not.
    async fn posted_once(&self, session: &SessionId, key: &str) -> Result<Option<PostedCommand>, StoreError>;

    /// Whether there is room for the end of one more attempt; [`StoreError::Full`] if not. Asked before an attempt
    /// begins, so that its end can be stored.
    fn room(&self) -> Result<(), StoreError> {
        Ok(())
    }

    /// The unanswered commands, oldest first.
    async fn unanswered(&self, session: &SessionId) -> Result<Vec<PostedCommand>, StoreError>;

    /// The verdict on a command; none while it is unanswered.
    async fn answer(&self, session: &SessionId, number: u64) -> Result<Option<Verdict>, StoreError>;

    /// Yields whenever the store may have changed, by this process or another; many changes may be one. A
    /// reader that waits for it misses nothing if it reads once before it first waits.
    fn changes(&self) -> BoxStream<'static, ()>;

    /// As [`RunStore::changes`], for a reader of one session: it need not yield when others change, or when its lease is
    /// renewed.
    fn changes_of(&self, session: &SessionId) -> BoxStream<'static, ()> {
        let _ = session;
        self.changes()
    }

    /// As [`RunStore::changes`], for a reader that waits for commands only: it need not yield when a session's owner
    /// appends events.
    fn posts(&self) -> BoxStream<'static, ()> {
        self.changes()
    }
}

/// The right to run a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// The session.
    pub session: SessionId,
    /// Grows each time the lease is taken; the greatest is the owner's.
    pub epoch: u64,
}

/// What is stored in one transaction.
#[derive(Clone, Copy, Debug, Default)]
pub struct Batch<'a> {
    /// Events, next in order.
    pub events: &'a [Arc<Envelope>],
    /// Answers to commands.
    pub answers: &'a [CommandAnswer],
}

/// An answer to a posted command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandAnswer {
    /// The command's number.
    pub number: u64,
    /// The verdict.
    pub verdict: Verdict,
}

/// Why a command is refused that is still open when its session ends.
pub(crate) const ENDED: &str = "the session has ended";

/// The answer to a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It took effect, which the log shows.
    Accepted,
    /// Nothing of it took effect, for this reason.
    Refused(String),
}

/// A command that waits in the store.
#[derive(Clone, Debug, PartialEq)]
pub struct PostedCommand {
    /// Its number within the session.
    pub number: u64,
    /// When it was posted.
    pub at: Timestamp,
    /// The command.
    pub command: Command,
    /// The key of its caller, if it was posted with one.
    pub key: Option<String>,
}

impl PostedCommand {
    /// The question that it answers.
    pub(crate) fn answers(&self) -> Option<&PromptId> {
        let Command::Reply { prompt, .. } = &self.command else { return None };
        Some(prompt)
    }

    /// Whether it has nothing left to do: a pause of a paused session is stored only for its key.
    pub(crate) fn is_done(&self, status: SessionStatus) -> bool {
        status == SessionStatus::Paused && matches!(self.command, Command::Pause { .. })
    }
}

/// Which events to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Select {
    /// All.
    All,
    /// Those with these names.
    Names(&'static [&'static str]),
    /// Those with other names.
    Except(&'static [&'static str]),
}

impl Select {
    /// Whether an event is wanted.
    pub fn takes(self, envelope: &Envelope) -> bool {
        self.takes_kind(envelope.event.name().as_bytes())
    }

    /// Whether an event with this name is wanted.
    fn takes_kind(self, name: &[u8]) -> bool {
        let is_in = |names: &[&str]| names.iter().any(|one| one.as_bytes() == name);
        match self {
            Self::All => true,
            Self::Names(names) => is_in(names),
            Self::Except(names) => !is_in(names),
        }
    }
}

/// The list entry of a session, without reading its log.
#[derive(Clone, Debug, PartialEq)]
pub struct SessionEntry {
    /// The session.
    pub session: SessionId,
    /// The flow.
    pub flow: String,
    /// When it was made.
    pub created_at: Timestamp,
    /// A summary of its events.
    pub digest: SessionFacts,
    /// The process that runs it: the newest owner that has not released its lease.
    pub owner: Option<Owner>,
    /// Whether the owner may still be alive.
    pub liveness: Liveness,
    /// Commands that wait for an answer, and have something left to do.
    pub unanswered: u64,
    /// The questions among the open ones whose answer is one of these commands.
    pub answered: Vec<PromptId>,
    /// The session that continues it, if it was resumed in a new one.
    pub continued_by: Option<SessionId>,
    /// Whether it runs from a recording, which costs nothing.
    pub is_replay: bool,
    /// On a cluster, the nodes that have begun and that no worker has taken yet.
    pub waiting_for_worker: Vec<NodePath>,
    /// The machine of each of them that one machine alone can run.
    pub waiting_for_machine: BTreeMap<NodePath, String>,
    /// On a cluster, since when no worker has taken what is to be decided next.
    pub undecided_since: Option<Timestamp>,
    /// On a cluster, whether its server does not answer, so that nobody knows whether the session runs.
    pub is_unknown: bool,
    /// Why the session cannot be read; the other fields then hold only what is known.
    pub damage: Option<String>,
}

impl SessionEntry {
    /// Whether the process that ran it is gone and did not leave on purpose: by a pause, or while the session waits.
    pub fn is_lost(&self) -> bool {
        // Who leaves on purpose gives the lease back.
        let has_left = match self.digest.status {
            SessionStatus::Paused => true,
            SessionStatus::Waiting => self.owner.is_none(),
            _ => false,
        };
        self.liveness == Liveness::Gone && !has_left
    }

    /// Whether turns were cut short when its process ended: what they took is unknown, and not nothing.
    pub fn has_cut_turns(&self) -> bool {
        let is_over = self.is_lost() || (self.continued_by.is_some() && self.digest.outcome.is_none());
        is_over && !self.digest.unpriced_turns.is_empty()
    }

    /// What it cost in US dollars, unless some of it is unknown.
    pub fn known_cost(&self) -> Option<f64> {
        self.digest.known_cost().filter(|_| !self.has_cut_turns())
    }

    /// What is known of a cost that is not known as a whole.
    pub fn known_part(&self) -> Option<f64> {
        Some(self.digest.cost_usd).filter(|known| self.known_cost().is_none() && *known > 0.0)
    }

    /// The entry of a session of which nothing can be read but its id.
    pub fn damaged(session: SessionId, damage: String) -> Self {
        Self {
            session,
            flow: String::new(),
            created_at: Timestamp::default(),
            digest: SessionFacts::default(),
            owner: None,
            liveness: Liveness::Gone,
            unanswered: 0,
            answered: Vec::new(),
            continued_by: None,
            is_replay: false,
            waiting_for_worker: Vec::new(),
            waiting_for_machine: BTreeMap::new(),
            undecided_since: None,
            is_unknown: false,
            damage: Some(damage),
        }
    }
}

/// Why a store did not do what was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The log does not end where the events begin.
    #[error("the log of session `{session}` continues at event {expected}, not at {actual}")]
    Conflict {
        /// The session.
        session: SessionId,
        /// The `seq` that comes next.
        expected: u64,
        /// The `seq` that was given.
        actual: u64,
    },
    /// There is no such session.
    #[error("there is no session `{0}` in the store")]
    UnknownSession(SessionId),
    /// The id is taken.
    #[error("the store already has a session `{0}`")]
    SessionExists(SessionId),
    /// Another session continues it.
    #[error("session `{session}` was already resumed as session `{by}`")]
    Continued {
        /// The session.
        session: SessionId,
        /// The session that continues it.
        by: SessionId,
    },
    /// Another session is to continue it, and is not stored: its start was cut short, or is under way.
    #[error("session `{by}` continues session `{session}`, but its start was interrupted or is in progress")]
    Claimed {
        /// The session.
        session: SessionId,
        /// The session that is to continue it.
        by: SessionId,
    },
    /// It has new events since another session looked at it that is to continue it.
    #[error("session `{0}` has new events: their work would be done again")]
    HasNewEvents(SessionId),
    /// Its parents lead back to it.
    #[error("session `{0}`: it descends from itself, and so nothing can follow it")]
    DescendsFromItself(SessionId),
    /// An open session takes over what it did.
    #[error("session `{by}` has not ended and takes over the finished work of `{session}`")]
    Needed {
        /// The session.
        session: SessionId,
        /// The open one.
        by: SessionId,
    },
    /// It continues sessions that have not ended, which could be resumed again without it.
    #[error(
        "session `{session}` continues session `{}`, which could be resumed again without it: finished work would run again",
        .before.last().map(SessionId::as_str).unwrap_or_default()
    )]
    Reopens {
        /// The session.
        session: SessionId,
        /// Those that it continues, the oldest first.
        before: Vec<SessionId>,
    },
    /// Another process runs the session.
    #[error("session `{session}` is run by {owner}")]
    Held {
        /// The session.
        session: SessionId,
        /// The process that runs it.
        owner: Box<Owner>,
    },
    /// Those who would run or store the session do not answer; nothing was stored. As with [`StoreError::Locked`], the end of
    /// finished work is held and stored again for a minute.
    #[error("{0}; nothing was stored")]
    Unreachable(String),
    /// A session or a command to it is stored, and those who run it were not told.
    #[error("{what} is stored, but no worker was told: {why}")]
    NotNotified {
        /// The session.
        session: SessionId,
        /// What is stored.
        what: String,
        /// Why nobody was told.
        why: String,
    },
    /// Those who ran the session have lost it.
    #[error("session `{session}` was interrupted: {by} no longer run it")]
    Interrupted {
        /// The session.
        session: SessionId,
        /// Who ran it.
        by: String,
    },
    /// Another process has taken the session over.
    #[error("session `{session}` was taken over: this owner's epoch is {epoch}, and the newest {newest}")]
    Fenced {
        /// The session.
        session: SessionId,
        /// The epoch of the refused owner.
        epoch: u64,
        /// The newest epoch.
        newest: u64,
    },
    /// The session has ended and accepts no commands.
    #[error("session `{0}` has ended")]
    SessionEnded(SessionId),
    /// A reply to the question is already stored, and no process has applied it yet.
    #[error(
        "question `{prompt}` of session `{session}` is already answered; the answer is applied when the session is resumed"
    )]
    ReplyWaits {
        /// The session.
        session: SessionId,
        /// The question.
        prompt: PromptId,
    },
    /// The key was used for another command.
    #[error("the key `{key}` was used for another command of session `{session}` before")]
    KeyReused {
        /// The session.
        session: SessionId,
        /// The key.
        key: String,
    },
    /// A large value is not where it was stored, or is not what was stored.
    #[error("session `{session}` has no large value with the hash {hash}")]
    NoBlob {
        /// The session.
        session: SessionId,
        /// The hash of the value.
        hash: String,
    },
    /// An event takes too many bytes.
    #[error(
        "event {seq} of session `{session}` takes {bytes} bytes, and the store takes at most {MOST_EVENT_BYTES}"
    )]
    TooLarge {
        /// The session.
        session: SessionId,
        /// The event.
        seq: u64,
        /// What it takes as JSON.
        bytes: usize,
    },
    /// The engine runs another session under the id.
    #[error("the id `{session}` is in use on {engine}: {by} runs under it; nothing was stored")]
    IdTaken {
        /// The id.
        session: SessionId,
        /// The engine.
        engine: String,
        /// Which session that is.
        by: String,
    },
    /// Another process holds the store's lock for too long.
    #[error("the store {path} is locked by another process")]
    Locked {
        /// The store.
        path: PathBuf,
    },
    /// There is no space left.
    #[error(
        "the disk is full: {path}; stored events stay readable, and the session can be resumed when there is space"
    )]
    Full {
        /// The store.
        path: PathBuf,
    },
    /// There is no store yet, or it is empty.
    #[error("there is no store {path} yet")]
    Absent {
        /// Where it would be.
        path: PathBuf,
    },
    /// The store's file is not where it was.
    #[error(
        "the store {path} was moved, replaced or deleted while it was in use: nothing more is stored in it"
    )]
    Moved {
        /// Where it was.
        path: PathBuf,
    },
    /// The store cannot be written.
    #[error("the store {path} is read-only")]
    ReadOnly {
        /// The store.
        path: PathBuf,
    },
    /// The store may not be read.
    #[error("the store {path} cannot be read: permission denied")]
    Unreadable {
        /// The store.
        path: PathBuf,
    },
    /// The content is not what was written.
    #[error("the store {path} is damaged: {what}")]
    Damaged {
        /// The store.
        path: PathBuf,
        /// Where, and how.
        what: String,
    },
    /// The folder or bucket of shared sessions failed.
    #[error("the shared sessions cannot be read or written: {0}")]
    Shared(String),
    /// An object of shared sessions is not what was written.
    #[error("the shared sessions are damaged, or a newer inspan wrote them: {object}: {what}")]
    DamagedObject {
        /// The object.
        object: String,
        /// How.
        what: String,
    },
    /// An object of shared sessions was stored with another key, or without one.
    #[error("{object} {what}")]
    OtherKey {
        /// The object.
        object: String,
        /// What keeps it from being read.
        what: String,
    },
    /// A newer program made the store.
    #[error("the store {path} has format {found}, and this program knows up to {known}: use a newer inspan")]
    NewerFormat {
        /// The store.
        path: PathBuf,
        /// The store's format.
        found: i64,
        /// The newest format that is known here.
        known: i64,
    },
    /// The file is not a store.
    #[error("{path} is not a store of inspan: {what}")]
    NotAStore {
        /// The file.
        path: PathBuf,
        /// What it is.
        what: String,
    },
    /// The store is on a file system whose locks and syncs are not reliable.
    #[error("the store {path} is on a network file system ({kind}), where it would not be safe")]
    NetworkFileSystem {
        /// The store.
        path: PathBuf,
        /// What kind of file system.
        kind: String,
    },
    /// The system failed.
    #[error("the store {path} failed: {message}")]
    Io {
        /// The store.
        path: PathBuf,
        /// The system's reason.
        message: String,
    },
}
