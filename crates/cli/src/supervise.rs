//! The supervisor: this program called again, standing between the runtime and one program that it starts, so that
//! nothing of that program outlives it or the runtime. What others may rely on is said at the protocol's
//! `Supervisor`; when the runtime starts one is left to those who start programs.
//!
//! Every process whose parent has ended is handed to its nearest ancestor that asked for it, and a supervisor asks.
//! So neither a session of its own nor a double fork nor a scrubbed environment leads a process away from here.
//! Only Linux knows this; elsewhere there is no supervisor, and a group of processes is all that can be ended.

use std::process::ExitCode;

use inspan_protocol::Supervisor;

#[cfg(target_os = "linux")]
mod descendants;
#[cfg(target_os = "linux")]
mod duty;
#[cfg(target_os = "linux")]
mod watch;

/// The argument that makes this program a supervisor. No verb is called so, and no help tells of it.
#[cfg(target_os = "linux")]
const ARGUMENT: &str = "__supervise";
/// Whatever file this program came from, also if another lies in its place by now.
#[cfg(target_os = "linux")]
const OURSELVES: &str = "/proc/self/exe";

/// This program as a supervisor, where the system allows one.
#[cfg(target_os = "linux")]
pub(crate) fn supervisor() -> Option<Supervisor> {
    std::path::Path::new(OURSELVES).exists().then(|| Supervisor::new(OURSELVES, [ARGUMENT]))
}

/// This program as a supervisor, where the system allows one.
#[cfg(not(target_os = "linux"))]
pub(crate) fn supervisor() -> Option<Supervisor> {
    None
}

/// Whether the process was started with this signal ignored, as `nohup` does. Before anything listens to it.
pub(crate) fn is_ignored(signal: i32) -> bool {
    // Elsewhere than on Linux nothing tells.
    let Ok(status) = std::fs::read_to_string("/proc/self/status") else { return false };
    is_in(&status, signal)
}

/// Whether the mask of ignored signals has this one.
fn is_in(status: &str, signal: i32) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    u32::try_from(signal - 1).is_ok_and(|bit| mask.checked_shr(bit).unwrap_or(0) & 1 == 1)
}

/// Is the supervisor, if that is what the program was called for.
#[cfg(target_os = "linux")]
pub(crate) fn if_asked() -> Option<ExitCode> {
    let mut arguments = std::env::args_os().skip(1);
    (arguments.next()? == ARGUMENT).then(|| duty::supervise(arguments))
}

/// Is the supervisor, if that is what the program was called for.
#[cfg(not(target_os = "linux"))]
pub(crate) fn if_asked() -> Option<ExitCode> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

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
