//! Ends this process by SIGKILL at a chosen point of the store's work, so that `cargo xtask faults` can check what
//! any crash leaves behind. It is only there with the feature `crash-points`, which no user's build has; the store
//! defines the points.

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
pub(crate) fn options(env: &Environment) -> SqliteOptions {
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
