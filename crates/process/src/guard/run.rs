//! The main function of a guard: it starts the program, does not disturb it, and ends in the same way as the program
//! once no process of it is left.

use std::{
    ffi::OsString,
    io::{self, Write},
    os::unix::process::{CommandExt, ExitStatusExt},
    process::{Child, Command, ExitCode, ExitStatus},
    time::{Duration, Instant},
};

use inspan_protocol::Supervisor;
use rustix::{
    io::Errno,
    process::{
        Pid, Resource, Rlimit, WaitOptions, getpid, kill_process_group, set_child_subreaper, setrlimit, wait,
    },
    stdio, thread,
};

use super::watch::{GuardCommand, Watch};
use crate::family::{kill_all, proc::descendants};
use crate::spawn::{FIRST_PAUSE, LONGEST_PAUSE, PATIENCE, passes};

/// How long what the program left behind may still write, such as a process that writes its log.
const LAST_OUTPUT: Duration = Duration::from_millis(300);
/// How long killed processes may take to vanish. One that is stuck in the kernel can take longer than any wait.
const VANISH: Duration = Duration::from_secs(5);
/// How soon to look for processes that were started while others were killed.
const AGAIN: Duration = Duration::from_millis(10);

enum GuardPhase {
    Running,
    /// The program has ended; others that it started have until then to do the same.
    Leaving(Instant),
    /// Whatever is left is killed, until nothing is or this time has come.
    Killing(Instant),
}

/// Guards what the arguments say: the number of the runtime's process, the program, and its arguments.
pub(super) fn guard(mut arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let runtime = arguments.next().and_then(|number| Pid::from_raw(number.to_str()?.parse().ok()?));
    let (Some(runtime), Some(program)) = (runtime, arguments.next()) else {
        complain("inspan: a guard is started by inspan itself, with a process and a program to run\n");
        return ExitCode::from(2);
    };
    // A signal before this ends us, as it would have ended the program.
    let mut watch = match Watch::begin(runtime) {
        Ok(Some(watch)) => watch,
        Ok(None) => return ExitCode::FAILURE,
        Err(error) => return refuse(&program, &error),
    };
    // Kernels before 3.4 refuse it; then orphans go elsewhere, as they do without us.
    let _refused = set_child_subreaper(Some(getpid()));
    let _named_after_its_file = thread::set_name(c"process-guard");
    // In a new group, so that a signal to its group does not reach us.
    let mut command = Command::new(&program);
    command.args(arguments).process_group(0);
    let leader = match start(&mut command, &mut watch) {
        Ok(child) => Pid::from_child(&child),
        Err(error) => return refuse(&program, &error),
    };
    let_go_of_streams();
    end_as(stand_by(leader, &mut watch))
}

/// Starts the program, as soon as the system can; a call ends the attempts.
#[expect(clippy::disallowed_methods, reason = "a separate process, whose only clock this is")]
fn start(command: &mut Command, watch: &mut Watch) -> io::Result<Child> {
    let until = Instant::now() + PATIENCE;
    let mut pause = FIRST_PAUSE;
    loop {
        let started = command.spawn();
        let again = started.as_ref().is_err_and(passes) && Instant::now() + pause < until;
        if !again || !watch.wait(Some(pause)).is_empty() {
            return started;
        }
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// How the program ended, once nothing of it is left. None if it could not even be killed.
#[expect(clippy::disallowed_methods, reason = "a separate process, whose only clock this is")]
fn stand_by(leader: Pid, watch: &mut Watch) -> Option<ExitStatus> {
    let mut phase = GuardPhase::Running;
    let mut ended = None;
    loop {
        if reap(leader, &mut ended) == Remaining::None {
            return ended;
        }
        let now = Instant::now();
        phase = match phase {
            GuardPhase::Running if ended.is_some() => GuardPhase::Leaving(now + LAST_OUTPUT),
            GuardPhase::Leaving(until) if now >= until => GuardPhase::Killing(now + VANISH),
            GuardPhase::Killing(until) if now >= until => return ended,
            phase => phase,
        };
        let limit = match phase {
            GuardPhase::Running => None,
            GuardPhase::Leaving(until) => Some(until - now),
            GuardPhase::Killing(_) => {
                kill_descendants();
                Some(AGAIN)
            }
        };
        for call in watch.wait(limit) {
            phase = match (phase, call) {
                // Its group has its number until it is reaped, which only we do.
                (GuardPhase::Running, GuardCommand::Forward(signal)) => {
                    let _gone_meanwhile = kill_process_group(leader, signal);
                    GuardPhase::Running
                }
                (GuardPhase::Killing(until), _) => GuardPhase::Killing(until),
                (GuardPhase::Running | GuardPhase::Leaving(_), _) => {
                    GuardPhase::Killing(Instant::now() + VANISH)
                }
            };
        }
    }
}

/// Whether descendants are left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Remaining {
    None,
    Some,
}

/// Reaps all that have ended, orphans included, so that no zombie stays, and notes how the leader ended.
fn reap(leader: Pid, ended: &mut Option<ExitStatus>) -> Remaining {
    loop {
        match wait(WaitOptions::NOHANG) {
            Ok(Some((pid, status))) => {
                if pid == leader {
                    *ended = Some(ExitStatus::from_raw(status.as_raw()));
                }
            }
            Ok(None) => return Remaining::Some,
            Err(Errno::INTR) => {}
            // There is no child any more, and so no descendant.
            Err(_) => return Remaining::None,
        }
    }
}

/// Kills all descendants that there are now. Those that are born meanwhile become our children at the latest when
/// their parents are gone, so they are found the next time.
fn kill_descendants() {
    kill_all(&descendants(std::process::id()));
}

/// A pipe ends when its last holder closes it, so we must not hold it.
fn let_go_of_streams() {
    // Without `/dev/null` the pipes end when we do, which is soon after the program.
    if let Ok(null) = std::fs::File::options().read(true).write(true).open("/dev/null") {
        let _held = (stdio::dup2_stdin(&null), stdio::dup2_stdout(&null), stdio::dup2_stderr(&null));
    }
}

/// Ends with the program's exit code, or by the signal that ended it.
fn end_as(ended: Option<ExitStatus>) -> ExitCode {
    let Some(status) = ended else { return ExitCode::FAILURE };
    if let Some(signal) = status.signal() {
        // Its core dump is useful, and ours would overwrite it.
        let _no_core = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) });
        // It comes back only from signals that it does not know.
        let _unknown = signal_hook::low_level::emulate_default_handler(signal);
        return ExitCode::from(u8::try_from(128 + signal).unwrap_or(u8::MAX));
    }
    ExitCode::from(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(u8::MAX))
}

fn refuse(program: &OsString, error: &io::Error) -> ExitCode {
    complain(&Supervisor::refusal(&program.to_string_lossy(), error));
    ExitCode::from(Supervisor::REFUSED)
}

fn complain(text: &str) {
    // Nothing can be done if stderr is closed.
    let _unwritten = io::stderr().write_all(text.as_bytes());
}
