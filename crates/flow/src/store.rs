//! Where a session's events are kept. The contract stands on [`RunStore`]; `memory` keeps the contract for
//! as long as the process lives.

mod memory;

use std::sync::Arc;

use futures::future::BoxFuture;
use inspan_protocol::{Envelope, SessionId};

pub use memory::MemoryStore;

/// An append-only log per session.
///
/// 1. `append` gives back only after the events will survive what the store promises to survive.
/// 2. Events of a session are appended in the order of their `seq`, without gaps; anything else is
///    [`StoreError::Conflict`], and nothing of that call is kept.
/// 3. `read` gives every acknowledged event from a `seq` on, in order.
/// 4. Readers never disturb the writer.
pub trait RunStore: Send + Sync {
    /// Keeps the events at the end of their session's log.
    fn append<'a>(
        &'a self,
        session: &'a SessionId,
        events: &'a [Arc<Envelope>],
    ) -> BoxFuture<'a, Result<(), StoreError>>;

    /// The session's events from `from` on, counting from 1.
    fn read<'a>(
        &'a self,
        session: &'a SessionId,
        from: u64,
    ) -> BoxFuture<'a, Result<Vec<Arc<Envelope>>, StoreError>>;
}

/// Why a store did not do what was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The log does not end where the events begin.
    #[error("the log of session `{session}` goes on at {expected}, not at {actual}")]
    Conflict {
        /// The session.
        session: SessionId,
        /// The `seq` that comes next.
        expected: u64,
        /// The `seq` that was given.
        actual: u64,
    },
}
