//! Child processes: started, guarded, read within bounds, and ended together with everything that they started.
//!
//! A program runs under a guard process where there is one ([`guard`]); then nothing of it can outlive the guard. Without
//! one, the list of processes shows what it started.

mod family;
mod guard;
mod process;
mod spawn;

pub use guard::{guard, is_guarded, is_ignored, run_as_guard};
pub use process::{Process, Stdin, lost, missing_interpreter};
pub use spawn::{Exit, Handle, Pipes, Start, spawn};

/// When a process started, in clock ticks since boot. `None` if it has ended, also if nobody has reaped it yet, and where
/// there is no `/proc`.
pub fn start_time(pid: u32) -> Option<u64> {
    #[cfg(target_os = "linux")]
    return family::proc::stat(pid).filter(|stat| stat.alive).map(|stat| stat.start);
    #[cfg(not(target_os = "linux"))]
    None
}
