//! Where the user's sessions are stored: finding the file, opening it to read or to write, finding a session in it, and
//! reporting what is wrong with it.

use std::{future::Future, path::PathBuf, sync::Arc};

use inspan_engine::SystemClock;
use inspan_flow::{
    Graph, MemoryStore, RunStore, Select, SessionEntry, SessionRecord, SqliteOptions, SqliteStore, StoreError,
};
use inspan_protocol::{Command, Event, NodePath, SessionId};
use inspan_sessions::{SessionError, Sessions};

use crate::{
    commands::all_nodes,
    engine::Engine,
    exit::Exit,
    failure::Failure,
    invocation::{Invocation, working_folder},
    settings::Settings,
};

/// The store's name in the folder of what outlives a session.
const FILE: &str = "sessions.db";

/// The file of the sessions, whether it exists or not.
pub(crate) fn path(invocation: &Invocation) -> Result<PathBuf, Failure> {
    if let Some(file) = &invocation.store {
        // Programs that work in another folder are told of files beside it.
        return Ok(invocation.cwd.as_ref().map_or_else(|| file.clone(), |cwd| cwd.join(file)));
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
        Err(error) => Err(unopened(error)),
    }
}

/// The sessions, to be read and written; the file is made if it is missing.
pub(crate) fn open_writer(invocation: &Invocation) -> Result<Arc<dyn RunStore>, Failure> {
    if let Some(engine) = Engine::of(invocation)? {
        return Ok(engine.run_store());
    }
    Ok(Arc::new(SqliteStore::open(path(invocation)?, &options(invocation)).map_err(unopened)?))
}

/// A store that cannot be opened has run nothing: the place is wrong, or this user may not use it.
fn unopened(error: StoreError) -> Failure {
    match error {
        StoreError::Io { .. } => Failure::new(Exit::Configuration, error.to_string())
            .with_hint("name another file with `--store FILE`, or another folder with INSPAN_HOME"),
        error => error.into(),
    }
}

#[cfg(not(all(feature = "crash-points", target_os = "linux")))]
fn options(_: &Invocation) -> SqliteOptions {
    SqliteOptions::default()
}

#[cfg(all(feature = "crash-points", target_os = "linux"))]
fn options(invocation: &Invocation) -> SqliteOptions {
    crash::options(&invocation.env)
}

/// Reads the sessions: opens the store, and runs what reads it to its end.
pub(crate) fn read<T>(
    invocation: &Invocation,
    work: impl AsyncFnOnce(Arc<dyn RunStore>) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let store = open_reader(invocation)?;
    block_on(work(store))
}

/// Runs a read of the store to its end.
pub(crate) fn block_on<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::new(Exit::Failed, format!("failed to start the runtime: {error}")))?;
    runtime.block_on(work)
}

/// How many sessions are followed from one to the one that it reused.
const LINEAGE: usize = 1_000;

/// The session in which a node ran that another one reused from there, such as `fork-1/each`, and its place. None if one
/// of the sessions between is not in the store.
pub(crate) async fn ran_in(store: &dyn RunStore, reused: &str) -> Option<(SessionId, NodePath)> {
    let read = |from: &str| from.split_once('/').map(|(session, path)| (session.into(), NodePath::new(path)));
    let mut ran: (SessionId, NodePath) = read(reused)?;
    for _ in 0..LINEAGE {
        let record = store.record(&ran.0).await.ok()?;
        let reuses = store.read(&ran.0, record.first_seq(), Select::Names(&["task:reused"])).await.ok()?;
        let older = reuses.iter().rev().find_map(|envelope| match &envelope.event {
            Event::TaskReused { from, .. } if envelope.context.task.as_ref() == Some(&ran.1) => read(from),
            _ => None,
        });
        match older {
            Some(older) => ran = older,
            None => return Some(ran),
        }
    }
    None
}

/// Whether a session is to be stopped as soon as a process runs it.
pub(crate) async fn is_to_be_stopped(store: &dyn RunStore, session: &SessionId) -> Result<bool, StoreError> {
    let waiting = store.unanswered(session).await?;
    Ok(waiting.iter().any(|posted| matches!(posted.command, Command::Abort { .. })))
}

/// The sessions of a store.
pub(crate) fn sessions(store: Arc<dyn RunStore>) -> Sessions {
    Sessions::new(store, all_nodes(), Arc::new(SystemClock))
}

/// The session that is meant: its id, the beginning of it, or a name as `@last` of one that was started in this folder.
pub(crate) async fn find(store: &dyn RunStore, named: &str) -> Result<SessionEntry, Failure> {
    Ok(inspan_sessions::find(store, named, working_folder().as_deref()).await?)
}

/// The flow that a session runs, as it was when the session began.
pub(crate) fn graph_of(record: &SessionRecord) -> Result<Arc<Graph>, Failure> {
    Ok(inspan_sessions::graph(record, &all_nodes())?)
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        let session = match &error {
            StoreError::NotNotified { session, .. } | StoreError::Interrupted { session, .. } => {
                Some(session.clone())
            }
            _ => None,
        };
        Self { session, ..SessionError::from(error).into() }
    }
}

/// Ends this process by SIGKILL at a chosen point of the store's work, so that `cargo xtask faults` can check what
/// any crash leaves behind. It is only there with the feature `crash-points`, which no user's build has; the store
/// defines the points.
#[cfg(all(feature = "crash-points", target_os = "linux"))]
mod crash {
    use std::{
        fs::OpenOptions,
        io::Write,
        sync::{
            Arc,
            atomic::{AtomicU64, Ordering},
        },
    };

    use inspan_flow::SqliteOptions;
    use inspan_protocol::Environment;
    use rustix::process::{Signal, getpid, kill_process};

    /// At which point the process ends, counting from 0.
    const AT: &str = "INSPAN_CRASH_AT";
    /// A file that each point leaves a line in: its name.
    const LOG: &str = "INSPAN_CRASH_LOG";

    /// The points of all stores that this process opens.
    static REACHED: AtomicU64 = AtomicU64::new(0);

    /// Options under which the process ends where its environment says.
    pub(super) fn options(env: &Environment) -> SqliteOptions {
        let at: Option<u64> = env.get(AT).and_then(|at| at.parse().ok());
        let log = env.get(LOG).and_then(|path| OpenOptions::new().create(true).append(true).open(path).ok());
        SqliteOptions::default().on_point(Arc::new(move |name| {
            let reached = REACHED.fetch_add(1, Ordering::Relaxed);
            if let Some(mut log) = log.as_ref() {
                // A harness that finds fewer lines than it killed at reports that itself.
                let _ = log.write_all(format!("{name}\n").as_bytes());
            }
            if at == Some(reached) {
                // Nothing comes after it: the signal is delivered before the call returns.
                let _ = kill_process(getpid(), Signal::KILL);
            }
        }))
    }
}
