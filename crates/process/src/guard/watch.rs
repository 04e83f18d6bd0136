//! What a guard waits for: signals, and the end of the runtime.

use std::{
    io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::UnixStream,
    },
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Pid, PidfdFlags, Signal, getppid, pidfd_open},
};
use signal_hook::{
    consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM, SIGUSR1},
    iterator::{backend::SignalDelivery, exfiltrator::SignalOnly},
};

use super::is_ignored;

/// How often to look for the runtime where the system does not report its end.
const LOOK: Duration = Duration::from_millis(100);

/// What a guard is asked to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GuardCommand {
    /// This signal is for the program.
    Forward(Signal),
    /// The program and all its descendants have to end.
    Kill,
}

/// Signals and the runtime.
pub(super) struct Watch {
    signals: SignalDelivery<UnixStream, SignalOnly>,
    runtime: Pid,
    /// Shows the runtime's end. Old kernels and some sandboxes have none.
    end_of_runtime: Option<OwnedFd>,
}

impl Watch {
    /// Begins to watch; nothing if the runtime is gone already.
    pub(super) fn begin(runtime: Pid) -> io::Result<Option<Self>> {
        let (read, write) = UnixStream::pair()?;
        // What the program would have inherited as ignored stays ignored.
        let forwarded = [SIGTERM, SIGINT, SIGHUP].into_iter().filter(|signal| !is_ignored(*signal));
        let names: Vec<i32> = [SIGCHLD, SIGUSR1].into_iter().chain(forwarded).collect();
        let signals = SignalDelivery::with_pipe(read, write, SignalOnly, names)?;
        let end_of_runtime = pidfd_open(runtime, PidfdFlags::empty()).ok();
        let watch = Self { signals, runtime, end_of_runtime };
        // Only now: had it ended before, its number might have been another's when it was opened.
        Ok((!watch.runtime_is_gone()).then_some(watch))
    }

    /// Waits for a child to end, a call, or the limit.
    pub(super) fn wait(&mut self, limit: Option<Duration>) -> Vec<GuardCommand> {
        let limit = match self.end_of_runtime {
            Some(_) => limit,
            None => Some(limit.map_or(LOOK, |limit| limit.min(LOOK))),
        };
        let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
        let mut sources = vec![PollFd::new(self.signals.get_read(), PollFlags::IN)];
        let runtime =
            self.end_of_runtime.as_ref().map(|end| PollFd::from_borrowed_fd(end.as_fd(), PollFlags::IN));
        sources.extend(runtime);
        // An interruption is a signal, which is checked next in any case.
        let _interrupted = poll(&mut sources, limit.as_ref());
        let runtime_ended = sources.get(1).is_some_and(|end| !end.revents().is_empty());
        let mut calls: Vec<GuardCommand> = self.signals.pending().filter_map(call).collect();
        if runtime_ended || self.runtime_is_gone() {
            // It would be ready forever, and there is nothing left to wait for.
            self.end_of_runtime = None;
            calls.push(GuardCommand::Kill);
        }
        calls
    }

    /// A process whose parent has ended gets another parent.
    fn runtime_is_gone(&self) -> bool {
        getppid() != Some(self.runtime)
    }
}

fn call(signal: i32) -> Option<GuardCommand> {
    match signal {
        SIGTERM => Some(GuardCommand::Forward(Signal::TERM)),
        SIGINT => Some(GuardCommand::Forward(Signal::INT)),
        SIGHUP => Some(GuardCommand::Forward(Signal::HUP)),
        SIGUSR1 => Some(GuardCommand::Kill),
        _ => None,
    }
}
