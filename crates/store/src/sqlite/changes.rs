//! How readers learn that the store may have changed. One thread polls for all listeners, and ends when there are none.
//! It asks SQLite for the version of the data, which is cheap, and reads more only when that is new. Listeners of the
//! whole store are also notified of each commit of this process at once.

use std::{
    collections::HashMap,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc},
    thread::{self, JoinHandle},
    time::Duration,
};

use futures::{
    StreamExt,
    stream::{self, BoxStream},
};
use inspan_protocol::SessionId;
use rusqlite::{Connection, OptionalExtension};
use tokio::sync::watch;

use super::{file, format::STEPS};

/// How often the thread polls for commands, and while nothing changes.
const SELDOM: Duration = Duration::from_millis(50);
/// How often it polls while sessions are followed and something changes,
const OFTEN: Duration = Duration::from_millis(4);
/// which is so until nothing has changed for this long. The lease of a session that runs is renewed within it.
const LIVE: Duration = Duration::from_secs(8);

/// Notifies the listeners.
#[derive(Debug)]
pub(super) struct Changes {
    version: watch::Sender<u64>,
    /// Not changed by the writer of this process.
    posts: watch::Sender<u64>,
    sessions: Sessions,
    poller: Arc<Mutex<Option<Poller>>>,
    store: PathBuf,
}

/// The sessions that have listeners.
type Sessions = Arc<Mutex<HashMap<SessionId, watch::Sender<Option<SessionVersion>>>>>;

/// What differs once a session has changed: its newest event, its epoch, whether it has an owner, its open commands.
/// `None` before the first poll, and if there is no such session.
type SessionVersion = (i64, i64, bool, i64);

#[derive(Debug)]
struct Poller {
    /// Closed to end the thread.
    end: mpsc::Sender<()>,
    thread: JoinHandle<()>,
}

impl Changes {
    pub(super) fn new(store: PathBuf) -> Self {
        let (version, posts) = (watch::Sender::new(0), watch::Sender::new(0));
        Self { version, posts, sessions: Arc::default(), poller: Arc::default(), store }
    }

    /// Where the writer of this process reports its commits.
    pub(super) fn sender(&self) -> watch::Sender<u64> {
        self.version.clone()
    }

    /// Yields at every change.
    pub(super) fn listen(&self) -> BoxStream<'static, ()> {
        self.follow(self.version.subscribe())
    }

    /// Yields when this session may have changed.
    pub(super) fn listen_to(&self, session: &SessionId) -> BoxStream<'static, ()> {
        let mut sessions = lock(&self.sessions);
        let version = sessions.entry(session.clone()).or_insert_with(|| watch::Sender::new(None)).subscribe();
        drop(sessions);
        self.follow(version)
    }

    /// Yields when a command may have been posted; not for the commits of a session's owner.
    pub(super) fn listen_for_posts(&self) -> BoxStream<'static, ()> {
        self.follow(self.posts.subscribe())
    }

    /// Reports that this process posted a command.
    pub(super) fn posted(&self) {
        self.posts.send_modify(|version| *version += 1);
    }

    fn follow<V: Send + Sync + 'static>(&self, version: watch::Receiver<V>) -> BoxStream<'static, ()> {
        let mut poller = lock(&self.poller);
        if poller.is_none() {
            *poller = self.start();
        }
        drop(poller);
        stream::unfold(version, |mut version| async move {
            version.changed().await.ok()?;
            Some(((), version))
        })
        .boxed()
    }

    /// Starts the thread. If the system refuses one, changes by other processes are noticed with our next change.
    fn start(&self) -> Option<Poller> {
        let (end, ended) = mpsc::channel();
        let mut poll = Poll {
            store: self.store.clone(),
            connection: None,
            version: None,
            changed: self.version.clone(),
            posted: self.posts.clone(),
            sessions: Arc::clone(&self.sessions),
            quiet: Duration::ZERO,
        };
        let place = Arc::clone(&self.poller);
        let run = move || {
            loop {
                poll.look();
                let wait = poll.wait();
                if ended.recv_timeout(wait) != Err(mpsc::RecvTimeoutError::Timeout) {
                    return;
                }
                poll.quiet += wait;
                let mut place = lock(&place);
                if !poll.is_needed() {
                    *place = None;
                    return;
                }
            }
        };
        let thread = thread::Builder::new().name("inspan-store-changes".to_owned()).spawn(run).ok()?;
        Some(Poller { end, thread })
    }

    /// Whether the thread runs.
    #[cfg(test)]
    pub(super) fn is_looking(&self) -> bool {
        lock(&self.poller).is_some()
    }
}

impl Drop for Changes {
    fn drop(&mut self) {
        let poller = lock(&self.poller).take();
        if let Some(Poller { end, thread }) = poller {
            drop(end);
            drop(thread.join());
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The state of the thread.
struct Poll {
    store: PathBuf,
    connection: Option<Connection>,
    /// SQLite's version of the data at the last poll.
    version: Option<i64>,
    changed: watch::Sender<u64>,
    posted: watch::Sender<u64>,
    sessions: Sessions,
    /// How long nothing has changed.
    quiet: Duration,
}

impl Poll {
    /// Notifies those for whom something is new. The first poll notifies all: something may have
    /// changed since they began to listen. A failed poll notifies all too, and the next is on a new
    /// connection.
    fn look(&mut self) {
        if self.connection.is_none() {
            self.connection = file::open_to_read(&self.store, STEPS).ok().map(|(connection, _)| connection);
            self.version = None;
        }
        let Some(connection) = &self.connection else { return };
        let version = version(connection);
        if version.as_ref().is_ok_and(|version| self.version == Some(*version)) {
            return;
        }
        self.quiet = Duration::ZERO;
        self.changed.send_modify(|version| *version += 1);
        let looked = version.and_then(|version| {
            // When many sessions are written at once, there are changes all the time, but few
            // commands: their owners are notified only when one waits.
            if self.version.is_none() || has_commands(connection)? {
                self.posted.send_modify(|version| *version += 1);
            }
            for (session, sender) in &*lock(&self.sessions) {
                let now = version_of(connection, session)?;
                sender.send_if_modified(|known| std::mem::replace(known, now) != now);
            }
            Ok(version)
        });
        if let Ok(version) = looked {
            self.version = Some(version);
        } else {
            self.connection = None;
            self.posted.send_modify(|version| *version += 1);
            lock(&self.sessions).values().for_each(|sender| sender.send_modify(|_| ()));
        }
    }

    /// The time to the next poll.
    fn wait(&self) -> Duration {
        let is_followed = self.changed.receiver_count() > 0 || !lock(&self.sessions).is_empty();
        if is_followed && self.quiet < LIVE { OFTEN } else { SELDOM }
    }

    /// Whether there are listeners.
    fn is_needed(&self) -> bool {
        let mut sessions = lock(&self.sessions);
        sessions.retain(|_, sender| sender.receiver_count() > 0);
        !sessions.is_empty() || [&self.changed, &self.posted].iter().any(|sender| sender.receiver_count() > 0)
    }
}

/// SQLite's version of the data as this connection sees it: it differs once another connection has written.
pub(super) fn version(connection: &Connection) -> rusqlite::Result<i64> {
    connection.prepare_cached("PRAGMA data_version")?.query_row((), |row| row.get(0))
}

/// Whether a command of any session waits for its answer.
fn has_commands(connection: &Connection) -> rusqlite::Result<bool> {
    let waits = "SELECT EXISTS (SELECT 1 FROM commands WHERE verdict IS NULL)";
    connection.prepare_cached(waits)?.query_row((), |row| row.get(0))
}

fn version_of(connection: &Connection, session: &SessionId) -> rusqlite::Result<Option<SessionVersion>> {
    let sql = "SELECT last_seq, epoch, owner IS NULL, (SELECT count(*) FROM commands \
               WHERE commands.session = sessions.number AND verdict IS NULL) FROM sessions WHERE id = ?1";
    let version = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?));
    connection.prepare_cached(sql)?.query_row([session.as_str()], version).optional()
}
