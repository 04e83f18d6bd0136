//! A small pool of connections for reading, each on a blocking thread while it works, so that no reader waits for the
//! writer or blocks the runtime.

use std::{
    path::Path,
    sync::{Arc, Mutex, PoisonError},
};

use rusqlite::Connection;
use tokio::{sync::Semaphore, task};

use super::{
    fault::Fault,
    file::{self, Paths},
    format::STEPS,
};
use crate::StoreError;

/// How many can read at once.
const READERS: usize = 4;

/// The readers of a store.
#[derive(Clone, Debug)]
pub(super) struct Readers {
    paths: Paths,
    idle: Arc<Mutex<Vec<Connection>>>,
    permits: Arc<Semaphore>,
}

/// The thread of a reader has ended without an answer.
pub(super) fn ended(store: &Path) -> StoreError {
    StoreError::Io { path: store.to_owned(), message: "its reader has ended".to_owned() }
}

impl Readers {
    pub(super) fn new(paths: Paths) -> Self {
        Self { paths, idle: Arc::default(), permits: Arc::new(Semaphore::new(READERS)) }
    }

    /// Runs `read` on a thread that may block.
    pub(super) async fn ask<T, F>(&self, mut read: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnMut(&mut Connection) -> Result<T, Fault> + Send + 'static,
    {
        let ended = || ended(&self.paths.store);
        let permit = Arc::clone(&self.permits).acquire_owned().await.map_err(|_| ended())?;
        let readers = self.clone();
        let reading = task::spawn_blocking(move || {
            let _permit = permit;
            readers.read(&mut read)
        });
        reading.await.map_err(|_| ended())?
    }

    /// The store existed when it was opened. If it is absent now, it was moved or deleted since, and perhaps the files
    /// beside it are still there.
    fn or_moved(&self, error: StoreError) -> StoreError {
        let path = &self.paths.store;
        match error {
            StoreError::Absent { .. } => StoreError::Moved { path: path.clone() },
            _ if !path.exists() => StoreError::Moved { path: path.clone() },
            error => error,
        }
    }

    fn read<T>(&self, read: &mut impl FnMut(&mut Connection) -> Result<T, Fault>) -> Result<T, StoreError> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut connection = match idle {
            Some(connection) => connection,
            None => file::open_to_read(&self.paths.store, STEPS).map_err(|error| self.or_moved(error))?.0,
        };
        let done = file::patiently(|| read(&mut connection));
        // A connection that failed with an error of the system is not used again.
        if !done.as_ref().is_err_and(|fault| matches!(fault, Fault::Sqlite(_))) {
            self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(connection);
        }
        done.map_err(|fault| fault.at(&self.paths.store))
    }
}
