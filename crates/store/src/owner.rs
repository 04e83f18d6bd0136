//! The owner of a session: a process on a machine, distinct from any later process with the same pid.

use std::{fmt, fs, process};

use inspan_process::start_time;
use serde::{Deserialize, Serialize};

/// A process that runs sessions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Owner {
    /// The machine since its last boot, and the pid namespace; empty where unknown.
    pub machine: String,
    /// The machine's name, for people.
    pub host: String,
    /// The process.
    pub pid: u32,
    /// When the process began, in clock ticks since the boot; 0 where unknown.
    pub began: u64,
}

/// Whether an owner is still alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Liveness {
    /// There is no owner, or its process has ended, or it is on another machine and its lease has ended.
    Gone,
    /// Its process is alive.
    Alive,
    /// It is on another machine: only its lease counts, which has not ended.
    Elsewhere,
}

impl Owner {
    /// This process.
    pub fn of_process() -> Self {
        let pid = process::id();
        Self { machine: machine(), host: host(), pid, began: start_time(pid).unwrap_or(0) }
    }

    /// Whether it is still alive, as seen from the machine of `here`.
    pub fn liveness(&self, here: &Self) -> Liveness {
        if self.machine.is_empty() || self.machine != here.machine {
            return Liveness::Elsewhere;
        }
        match start_time(self.pid) {
            // A zombie counts as ended: a parent that does not reap it must not block a session.
            Some(began) if began == self.began => Liveness::Alive,
            _ => Liveness::Gone,
        }
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Who runs a session on many machines is no process.
        if self.pid == 0 {
            return write!(f, "the workers of {}", self.host);
        }
        write!(
            f,
            "process {} on {}",
            self.pid,
            if self.host.is_empty() { "this machine" } else { &self.host }
        )
    }
}

/// The boot id and the pid namespace, so that two containers on one machine differ.
fn machine() -> String {
    let space = fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    match boot() {
        boot if boot.is_empty() => boot,
        boot => format!("{boot} {}", space.display()),
    }
}

/// What names the time since the machine's last boot; empty where unknown.
pub(crate) fn boot() -> String {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    boot.trim().to_owned()
}

fn host() -> String {
    fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_knows_itself_and_no_later_one_of_its_number() {
        let me = Owner::of_process();
        let later = Owner { began: me.began + 1, ..me.clone() };
        let other = Owner { machine: "another".to_owned(), ..me.clone() };
        let seen = [me.liveness(&me), later.liveness(&me), other.liveness(&me)];
        assert_eq!(seen, [Liveness::Alive, Liveness::Gone, Liveness::Elsewhere]);
    }
}
