//! A store that lives as long as the process: for tests, for embedding, and for runs nobody wants to keep.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use futures::{FutureExt, future::BoxFuture};
use inspan_protocol::{Envelope, SessionId};

use super::{RunStore, StoreError};

/// Events by session, in memory.
#[derive(Debug, Default)]
pub struct MemoryStore(Mutex<HashMap<SessionId, Vec<Arc<Envelope>>>>);

impl MemoryStore {
    /// An empty store.
    pub fn new() -> Self {
        Self::default()
    }
}

impl RunStore for MemoryStore {
    fn append<'a>(
        &'a self,
        session: &'a SessionId,
        events: &'a [Arc<Envelope>],
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        let mut sessions = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let log = sessions.entry(session.clone()).or_default();
        for (expected, event) in (log.len() as u64 + 1..).zip(events) {
            if event.seq != expected {
                let error = StoreError::Conflict { session: session.clone(), expected, actual: event.seq };
                return std::future::ready(Err(error)).boxed();
            }
        }
        log.extend_from_slice(events);
        std::future::ready(Ok(())).boxed()
    }

    fn read<'a>(
        &'a self,
        session: &'a SessionId,
        from: u64,
    ) -> BoxFuture<'a, Result<Vec<Arc<Envelope>>, StoreError>> {
        let sessions = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let start = from.saturating_sub(1) as usize;
        let events = sessions.get(session).and_then(|log| log.get(start..)).unwrap_or_default().to_vec();
        std::future::ready(Ok(events)).boxed()
    }
}
