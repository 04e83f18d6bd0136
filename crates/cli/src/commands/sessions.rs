//! What the commands for sessions share: finding one, and its flow compiled again.

use std::{future::Future, sync::Arc};

use inspan_engine::SystemClock;
use inspan_flow::{Graph, RunStore, SessionEntry, SessionRecord};
use inspan_sessions::Sessions;

use super::all_nodes;
use crate::{exit::Exit, failure::Failure, invocation::working_folder};

/// Runs a read of the store to its end.
pub(super) fn block_on<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::new(Exit::Failed, format!("failed to start the runtime: {error}")))?;
    runtime.block_on(work)
}

/// The sessions of a store.
pub(crate) fn of(store: Arc<dyn RunStore>) -> Sessions {
    Sessions::new(store, all_nodes(), Arc::new(SystemClock))
}

/// The session that is meant: its id, the beginning of it, or a name as `@last` of one that was started in this folder.
pub(crate) async fn find(store: &dyn RunStore, named: &str) -> Result<SessionEntry, Failure> {
    Ok(inspan_sessions::find(store, named, working_folder().as_deref()).await?)
}

/// The flow that a session runs, as it was when the session began.
pub(super) fn graph(record: &SessionRecord) -> Result<Arc<Graph>, Failure> {
    Ok(inspan_sessions::graph(record, &all_nodes())?)
}
