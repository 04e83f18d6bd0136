//! The store that the user's sessions are kept in: where it lies, how it is opened, what its faults mean here.

use std::{path::PathBuf, sync::Arc};

use inspan_flow::{RunStore, SqliteOptions, SqliteStore, StoreError};

use crate::{exit::Exit, failure::Failure, invocation::Invocation};

/// Where the store lies.
pub(crate) fn path(invocation: &Invocation) -> Result<PathBuf, Failure> {
    if let Some(path) = &invocation.store {
        return Ok(path.clone());
    }
    invocation.state_folder().map(|folder| folder.join("sessions.db")).ok_or_else(|| {
        Failure::new(
            Exit::Configuration,
            "there is no place to keep sessions: neither INSPAN_HOME nor HOME is set",
        )
        .with_hint("name one with `--store FILE`, or keep nothing with `inspan run --no-store`")
    })
}

/// The store, to be written; it is made if it is missing.
pub(crate) fn open_writer(invocation: &Invocation) -> Result<Arc<dyn RunStore>, Failure> {
    let store = SqliteStore::open(path(invocation)?, &SqliteOptions::default());
    Ok(Arc::new(store.map_err(|error| refused(&error))?))
}

/// What a fault of the store means here.
pub(crate) fn refused(error: &StoreError) -> Failure {
    let failure = Failure::new(Exit::Failed, error.to_string());
    match error {
        StoreError::SessionExists(id) => failure.with_hint(format!(
            "`inspan resume {id}` goes on with it; another `--session-id` begins another"
        )),
        _ => failure,
    }
}
