//! The signals that end a session that runs here. The first pauses a stored session, the second stops it, the third kills
//! it; the first stops a session that is not stored.

use std::time::Duration;

use inspan_engine::Hub;
use inspan_flow::{FlowRunResult, RunError};
use inspan_protocol::Command;
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    task::{JoinError, JoinHandle},
    time::Instant,
};

use crate::{console::restore, exit::Exit, failure::Failure};

/// A session that is waited for.
pub(super) type RunningSession = JoinHandle<Result<FlowRunResult, RunError>>;

/// How long a session that a signal ends may take to begin.
const BEGINNING: Duration = Duration::from_secs(10);

/// A signal that comes so soon after another one is no second one: GNU `timeout` signals its program, and then the whole
/// group; systemd can send SIGHUP together with SIGTERM.
const REPEATED: Duration = Duration::from_millis(200);

/// How a session ended.
pub(super) struct SessionEnd {
    /// The signal that ended it, as the code that it earns.
    pub(super) by: Option<Exit>,
    /// The result of the session.
    pub(super) result: Result<Result<FlowRunResult, RunError>, JoinError>,
}

/// The signals that are listened to. Made before the session begins: one that comes while the listening is
/// being set up would be lost.
pub(in crate::commands) struct Signals {
    interrupt: Option<Signal>,
    terminate: Option<Signal>,
    hangup: Option<Signal>,
    /// When the last one was received, or took effect.
    last: Option<Instant>,
    /// A write beyond a limit of the file's size fails then, like one to a full disk. By itself it would kill the program.
    _file_size: Option<Signal>,
}

impl Signals {
    /// Begins to listen.
    pub(in crate::commands) fn listen() -> Self {
        Self {
            interrupt: listen(SignalKind::interrupt()),
            terminate: listen(SignalKind::terminate()),
            hangup: listen(SignalKind::hangup()),
            last: None,
            _file_size: listen(SignalKind::from_raw(rustix::process::Signal::XFSZ.as_raw())),
        }
    }

    /// The next signal: the code that it earns, and its name.
    pub(in crate::commands) async fn next(&mut self) -> (Exit, &'static str) {
        loop {
            let signal = self.received().await;
            if self.last.is_none_or(|at| at.elapsed() >= REPEATED) {
                self.last = Some(Instant::now());
                return signal;
            }
        }
    }

    /// Whether one was received.
    pub(super) fn has_received(&self) -> bool {
        self.last.is_some()
    }

    /// The last signal takes effect only now. What was sent with it is received after this.
    fn takes_effect(&mut self) {
        self.last = Some(Instant::now());
    }

    async fn received(&mut self) -> (Exit, &'static str) {
        tokio::select! {
            () = next(&mut self.interrupt) => (Exit::Interrupted, "SIGINT"),
            () = next(&mut self.terminate) => (Exit::Terminated, "SIGTERM"),
            () = next(&mut self.hangup) => (Exit::Terminated, "SIGHUP"),
        }
    }
}

/// What the first signal does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FirstSignal {
    /// The session can be resumed.
    Pauses,
    /// It is not stored.
    Stops,
}

/// Waits for a session to end, and pauses or stops it on a signal. An error if the wait was stopped.
pub(super) async fn watch(
    signals: &mut Signals,
    mut running: RunningSession,
    hub: &Hub,
    commands: &(dyn Fn(Command) -> Result<(), String> + Send + Sync),
    first: FirstSignal,
) -> Result<SessionEnd, Failure> {
    let mut by = None;
    let mut pauses = first == FirstSignal::Pauses;
    loop {
        let (exit, name) = tokio::select! {
            biased;
            result = &mut running => return Ok(SessionEnd { by, result }),
            signal = signals.next() => signal,
        };
        // Before it has begun, a session refuses commands.
        let has_begun = tokio::select! {
            biased;
            result = &mut running => return Ok(SessionEnd { by, result }),
            has_begun = begins(hub) => has_begun,
        };
        if !has_begun {
            restore();
            running.abort();
            return Err(Failure::new(exit, "stopped before the session began"));
        }
        signals.takes_effect();
        if std::mem::take(&mut pauses) {
            // A session that has just ended needs no pause.
            let _ = commands(Command::Pause { reason: Some(name.to_owned()) });
            continue;
        }
        if by.is_some() {
            restore();
            // What still runs is dropped, and its programs are killed.
            running.abort();
            return Err(Failure::new(exit, "stopped immediately; running nodes were killed"));
        }
        by = Some(exit);
        // A session that has just ended needs no stop.
        let _ = commands(Command::Abort { reason: Some(name.to_owned()) });
    }
}

/// Waits until a session begins, and gives whether it did in time.
async fn begins(hub: &Hub) -> bool {
    let begun = async {
        while !hub.session_has_begun() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(BEGINNING, begun).await.is_ok()
}

/// A signal that cannot be listened to keeps its usual effect, and one that the parent ignores stays ignored.
fn listen(kind: SignalKind) -> Option<Signal> {
    if inspan_process::is_ignored(kind.as_raw_value()) {
        return None;
    }
    signal(kind).ok()
}

async fn next(signal: &mut Option<Signal>) {
    let received = match signal {
        Some(signal) => signal.recv().await.is_some(),
        None => false,
    };
    if !received {
        std::future::pending().await
    }
}
