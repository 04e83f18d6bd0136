//! How readers learn that the store may have changed: at once from the writer of this process, and within
//! [`EVERY`] from any other. One thread polls for all listeners, and ends when there are none.

use std::{
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError, mpsc},
    thread::{self, JoinHandle},
    time::Duration,
};

use futures::{
    StreamExt,
    stream::{self, BoxStream},
};
use rusqlite::Connection;
use tokio::sync::watch;

use super::{file, format::STEPS};

/// How often the thread polls.
const EVERY: Duration = Duration::from_millis(50);

/// Notifies the listeners.
#[derive(Debug)]
pub(super) struct Changes {
    version: watch::Sender<u64>,
    /// Not changed by the writer of this process.
    posts: watch::Sender<u64>,
    poller: Arc<Mutex<Option<Poller>>>,
    store: PathBuf,
}

#[derive(Debug)]
struct Poller {
    /// Closed to end the thread.
    end: mpsc::Sender<()>,
    thread: JoinHandle<()>,
}

impl Changes {
    pub(super) fn new(store: PathBuf) -> Self {
        Self { version: watch::Sender::new(0), posts: watch::Sender::new(0), poller: Arc::default(), store }
    }

    /// Where the writer of this process reports its commits.
    pub(super) fn sender(&self) -> watch::Sender<u64> {
        self.version.clone()
    }

    /// Yields at every change.
    pub(super) fn listen(&self) -> BoxStream<'static, ()> {
        self.follow(self.version.subscribe())
    }

    /// Yields when a command may have been posted; not for the commits of a session's owner.
    pub(super) fn listen_for_posts(&self) -> BoxStream<'static, ()> {
        self.follow(self.posts.subscribe())
    }

    /// Reports that this process posted a command.
    pub(super) fn posted(&self) {
        self.posts.send_modify(|version| *version += 1);
    }

    fn follow(&self, version: watch::Receiver<u64>) -> BoxStream<'static, ()> {
        let mut poller = self.poller.lock().unwrap_or_else(PoisonError::into_inner);
        if poller.is_none() {
            *poller = start(self.store.clone(), self.version.clone(), self.posts.clone(), &self.poller);
        }
        drop(poller);
        stream::unfold(version, |mut version| async move {
            version.changed().await.ok()?;
            Some(((), version))
        })
        .boxed()
    }

    /// Whether the thread runs.
    #[cfg(test)]
    pub(super) fn is_looking(&self) -> bool {
        self.poller.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }
}

impl Drop for Changes {
    fn drop(&mut self) {
        let poller = self.poller.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(Poller { end, thread }) = poller {
            drop(end);
            drop(thread.join());
        }
    }
}

/// Starts the thread. If the system refuses one, changes by other processes are noticed with the next change of ours.
fn start(
    store: PathBuf,
    changed: watch::Sender<u64>,
    posted: watch::Sender<u64>,
    place: &Arc<Mutex<Option<Poller>>>,
) -> Option<Poller> {
    let (end, ended) = mpsc::channel();
    let place = Arc::clone(place);
    let look = move || {
        let mut seen = Seen::default();
        loop {
            let news = seen.look(&store);
            if news != News::None {
                changed.send_modify(|version| *version += 1);
            }
            if news == News::Commands {
                posted.send_modify(|version| *version += 1);
            }
            if !matches!(ended.recv_timeout(EVERY), Err(mpsc::RecvTimeoutError::Timeout)) {
                return;
            }
            let mut place = place.lock().unwrap_or_else(PoisonError::into_inner);
            if [&changed, &posted].iter().all(|told| told.receiver_count() == 0) {
                *place = None;
                return;
            }
        }
    };
    let thread = thread::Builder::new().name("inspan-store-changes".to_owned()).spawn(look).ok()?;
    Some(Poller { end, thread })
}

/// The result of one poll.
#[derive(Clone, Copy, PartialEq, Eq)]
enum News {
    None,
    /// A process wrote, perhaps this one.
    Changes,
    /// A process wrote, and an unanswered command may be new.
    Commands,
}

/// The state at the last poll.
#[derive(Default)]
struct Seen {
    connection: Option<Connection>,
    version: Option<i64>,
}

impl Seen {
    /// The first poll always reports commands: something may have changed since the caller began to listen.
    fn look(&mut self, store: &std::path::Path) -> News {
        if self.connection.is_none() {
            self.connection = file::open_to_read(store, STEPS).ok().map(|(connection, _)| connection);
            self.version = None;
        }
        let Some(connection) = &self.connection else { return News::None };
        match news(connection, self.version) {
            Ok((version, news)) => {
                self.version = Some(version);
                news
            }
            Err(_) => {
                self.connection = None;
                News::Commands
            }
        }
    }
}

/// Where many sessions are written at once there are changes all the time, and commands hardly ever: their owners are
/// asked to look only when one waits.
fn news(connection: &Connection, known: Option<i64>) -> rusqlite::Result<(i64, News)> {
    let version = connection.pragma_query_value(None, "data_version", |row| row.get(0))?;
    if known == Some(version) {
        return Ok((version, News::None));
    }
    let waits = "SELECT EXISTS (SELECT 1 FROM commands WHERE verdict IS NULL)";
    let waits: bool = connection.prepare_cached(waits)?.query_row((), |row| row.get(0))?;
    Ok((version, if waits || known.is_none() { News::Commands } else { News::Changes }))
}
