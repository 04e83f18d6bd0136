//! Where the user's sessions are stored: finding the file, opening it to read or to write, and reporting what is wrong
//! with it.

use std::{path::PathBuf, sync::Arc};

use inspan_flow::{MemoryStore, RunStore, SqliteOptions, SqliteStore, StoreError};
use inspan_sessions::SessionError;

use crate::{engine::Engine, exit::Exit, failure::Failure, invocation::Invocation, settings::Settings};

/// The store's name in the folder of what outlives a session.
const FILE: &str = "sessions.db";

/// The file of the sessions, whether it exists or not.
pub(crate) fn path(invocation: &Invocation) -> Result<PathBuf, Failure> {
    if let Some(file) = &invocation.store {
        return Ok(file.clone());
    }
    let named = match invocation.env.get("INSPAN_HOME") {
        Some(_) => None,
        None => Settings::store(invocation)?,
    };
    let folder = named.or_else(|| invocation.state_folder()).ok_or_else(|| {
        Failure::new(Exit::Configuration, "no folder for sessions: neither INSPAN_HOME nor HOME is set")
            .with_hint("set INSPAN_HOME to a folder, or name the file with `--store FILE`")
    })?;
    Ok(folder.join(FILE))
}

/// The sessions, to be read. Where there is no file yet there are no sessions, and none is made.
pub(crate) fn open_reader(invocation: &Invocation) -> Result<Arc<dyn RunStore>, Failure> {
    if let Some(engine) = Engine::of(invocation)? {
        return Ok(engine.run_store());
    }
    match SqliteStore::open_reader(path(invocation)?) {
        Ok(store) => Ok(Arc::new(store)),
        Err(StoreError::Absent { .. }) => Ok(Arc::new(MemoryStore::new())),
        Err(error) => Err(error.into()),
    }
}

/// The sessions, to be read and written; the file is made if it is missing.
pub(crate) fn open_writer(invocation: &Invocation) -> Result<Arc<dyn RunStore>, Failure> {
    if let Some(engine) = Engine::of(invocation)? {
        return Ok(engine.run_store());
    }
    Ok(Arc::new(SqliteStore::open(path(invocation)?, &options(invocation))?))
}

#[cfg(not(all(feature = "crash-points", target_os = "linux")))]
fn options(_: &Invocation) -> SqliteOptions {
    SqliteOptions::default()
}

#[cfg(all(feature = "crash-points", target_os = "linux"))]
fn options(invocation: &Invocation) -> SqliteOptions {
    crate::crash::options(&invocation.env)
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        SessionError::from(error).into()
    }
}
