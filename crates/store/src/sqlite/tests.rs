//! What only the store on disk guarantees: leases between processes, loss and damage, full disks, formats, tools.
//! What every store guarantees is tested in `store/tests.rs`, crashes in `tests/store_crash.rs`.

mod blobs;
mod damage;
mod formats;
mod leases;
mod space;
mod tools;

use std::{path::PathBuf, sync::Arc};

use inspan_protocol::{Envelope, SessionId};
use rusqlite::Connection;
use tempfile::TempDir;

use super::{SqliteOptions, SqliteStore};
use crate::{
    Batch, Lease, Owner, RunStore, StoreError,
    tests::samples::{at, events, record},
};

/// A folder with a store in it.
struct TestFolder {
    folder: TempDir,
    path: PathBuf,
}

impl TestFolder {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().canonicalize().unwrap().join("store.db");
        Self { folder, path }
    }

    fn open(&self) -> SqliteStore {
        SqliteStore::open(&self.path, &SqliteOptions::default()).unwrap()
    }

    /// Why it cannot be opened.
    fn refusal(&self) -> StoreError {
        SqliteStore::open(&self.path, &SqliteOptions::default()).unwrap_err()
    }

    fn beside(&self, end: &str) -> PathBuf {
        self.folder.path().join(format!("store.db{end}"))
    }

    /// A connection outside of the store's rules, to corrupt the file with.
    fn raw(&self) -> Connection {
        Connection::open(&self.path).unwrap()
    }

    fn damaged(&self, what: &str) -> StoreError {
        StoreError::Damaged { path: self.path.clone(), what: what.to_owned() }
    }
}

async fn start(store: &SqliteStore, id: &str) -> Lease {
    store.create(&record(id), &Owner::of_process(), at(0)).await.unwrap()
}

async fn append(store: &SqliteStore, lease: &Lease, events: &[Arc<Envelope>]) -> Result<(), StoreError> {
    store.append(lease, Batch { events, answers: &[] }).await
}

/// A session with so many events, which no process owns any more.
async fn fill(store: &SqliteStore, id: &str, count: u64) -> SessionId {
    let lease = start(store, id).await;
    append(store, &lease, &events(id, 1..=count)).await.unwrap();
    store.release(&lease).await.unwrap();
    lease.session
}
