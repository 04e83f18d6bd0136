//! The guard: the program itself, called again, as a process between the runtime and one program that it starts, so
//! that nothing of that program outlives it or the runtime. The protocol's `Supervisor` says what it does.
//!
//! Every process whose parent has ended gets its nearest ancestor that is a subreaper as its parent, and a guard is
//! one. So no process escapes by a new session, a double fork or a cleared environment. Only Linux knows this;
//! elsewhere there is no guard, and a group of processes is all that can be ended.

use std::process::ExitCode;
#[cfg(target_os = "linux")]
use std::sync::atomic::{AtomicBool, Ordering};

use inspan_protocol::Supervisor;

#[cfg(target_os = "linux")]
use crate::family::proc::stat;

#[cfg(target_os = "linux")]
mod run;
#[cfg(target_os = "linux")]
mod watch;

/// The argument that makes this program a guard. No command has this name, and no help shows it.
#[cfg(target_os = "linux")]
const ARGUMENT: &str = "__supervise";
/// The file this program came from, even if another one has replaced it.
#[cfg(target_os = "linux")]
const OWN_PROGRAM: &str = "/proc/self/exe";

/// Whether this program asks whether it was called as a guard. One that does not, a test of cargo for example, would do
/// its own work again, or nothing, in place of the program that it is to guard.
#[cfg(target_os = "linux")]
static CAN_GUARD: AtomicBool = AtomicBool::new(false);

/// This program as a guard, where the system allows one and the program has called [`run_as_guard`] first thing.
#[cfg(target_os = "linux")]
pub fn guard() -> Option<Supervisor> {
    let can_guard = CAN_GUARD.load(Ordering::Relaxed) && std::path::Path::new(OWN_PROGRAM).exists();
    can_guard.then(|| Supervisor::new(OWN_PROGRAM, [ARGUMENT]))
}

/// This program as a guard, where the system allows one and the program has called [`run_as_guard`] first thing.
#[cfg(not(target_os = "linux"))]
pub fn guard() -> Option<Supervisor> {
    None
}

/// Whether this process is below a guard, with which it ends.
#[cfg(target_os = "linux")]
pub fn is_guarded() -> bool {
    let parent_of = |pid: &u32| Some(stat(*pid)?.parent).filter(|parent| *parent > 0);
    std::iter::successors(Some(std::process::id()), parent_of).skip(1).any(|ancestor| {
        let arguments = std::fs::read(format!("/proc/{ancestor}/cmdline")).unwrap_or_default();
        arguments.split(|byte| *byte == 0).nth(1) == Some(ARGUMENT.as_bytes())
    })
}

/// Whether this process is below a guard, with which it ends.
#[cfg(not(target_os = "linux"))]
pub fn is_guarded() -> bool {
    false
}

/// Whether the process was started with this signal ignored, as `nohup` does. Before anything listens to it.
pub fn is_ignored(signal: i32) -> bool {
    // Only Linux shows it.
    let Ok(status) = std::fs::read_to_string("/proc/self/status") else { return false };
    is_in(&status, signal)
}

/// Whether the mask of ignored signals has this one.
fn is_in(status: &str, signal: i32) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    u32::try_from(signal - 1).is_ok_and(|bit| mask.checked_shr(bit).unwrap_or(0) & 1 == 1)
}

/// Runs as a guard, if the program was called as one.
#[cfg(target_os = "linux")]
pub fn run_as_guard() -> Option<ExitCode> {
    CAN_GUARD.store(true, Ordering::Relaxed);
    let mut arguments = std::env::args_os().skip(1);
    (arguments.next()? == ARGUMENT).then(|| run::guard(arguments))
}

/// Runs as a guard, if the program was called as one.
#[cfg(not(target_os = "linux"))]
pub fn run_as_guard() -> Option<ExitCode> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_os = "linux")]
    fn a_program_that_does_not_ask_whether_it_is_one_is_no_guard() {
        assert_eq!(guard(), None);
        assert!(run_as_guard().is_none());
        assert_eq!(guard(), Some(Supervisor::new(OWN_PROGRAM, [ARGUMENT])));
    }

    #[test]
    fn ignored_signals_are_those_of_the_mask() {
        let status = "Name:\tinspan\nSigIgn:\t0000000000001001\nSigCgt:\t0000000000000002\n";
        assert_eq!(
            [0, 1, 2, 12, 13, 15, 65].map(|signal| is_in(status, signal)),
            [false, true, false, false, true, false, false]
        );
        assert!(!is_in("", 1));
    }
}
