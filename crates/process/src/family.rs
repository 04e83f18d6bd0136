//! Everything that a process started, where no guard holds it together, and the end of all of it.
//!
//! A tool may create its own session, where no signal to the group reaches it, and it may outlive its
//! parent, so that no line of parents leads back. So members are found in two ways: by their parents, before
//! anything is killed, and by a variable in the environment that children inherit, at any time. One that does both
//! and clears its environment escapes; under a guard it would not. Only Linux shows either; elsewhere the group is all
//! that is known.

use std::collections::BTreeMap;
#[cfg(target_os = "linux")]
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use rustix::process::{Pid, Signal};

#[cfg(target_os = "linux")]
use proc::descendants;

/// An environment beyond this is not searched further.
#[cfg(target_os = "linux")]
const ENVIRONMENT_LIMIT: u64 = 4 * 1024 * 1024;

/// The variable that marks a process and everything it starts. A marked process that marks its own children
/// appends, so that the outer mark is still found.
pub(crate) const MARK: &str = "INSPAN_PROCESS";

/// A process and its descendants.
#[derive(Debug)]
pub(crate) struct Family {
    leader: u32,
    id: String,
    mark: String,
}

impl Family {
    /// A family to be, within the family that we are part of ourselves, if any.
    pub(crate) fn new(outer: Option<&str>) -> Self {
        let id = fresh_id();
        let mark = outer.map_or_else(|| id.clone(), |outer| format!("{outer}/{id}"));
        Self { leader: 0, id, mark }
    }

    /// The value of the marking variable.
    pub(crate) fn mark(&self) -> &str {
        &self.mark
    }

    /// The same family, now that its leader runs.
    pub(crate) fn led_by(self, leader: u32) -> Self {
        Self { leader, ..self }
    }

    /// The number of its leader.
    pub(crate) fn leader(&self) -> u32 {
        self.leader
    }

    /// Kills the leader, its group and all descendants. The leader must not have been reaped.
    pub(crate) fn kill(&self) {
        let mut members = BTreeMap::new();
        // Those that are born while we look are found when we look again.
        for _ in 0..3 {
            let found = self.members();
            let fresh = found.iter().any(|(pid, start)| members.get(pid) != Some(start));
            members.extend(found);
            signal_group(self.leader, Signal::KILL);
            signal(self.leader, Signal::KILL);
            kill_all(&members);
            if !fresh {
                break;
            }
        }
    }

    /// Whether descendants have outlived the leader.
    pub(crate) fn has_left_behind(&self) -> bool {
        !marked(&self.id).is_empty()
    }

    /// Kills the descendants that outlived the leader.
    pub(crate) fn kill_left_behind(&self) {
        for _ in 0..3 {
            let members = marked(&self.id);
            if members.is_empty() {
                break;
            }
            kill_all(&members);
        }
    }

    fn members(&self) -> BTreeMap<u32, u64> {
        let mut members = descendants(self.leader);
        members.extend(marked(&self.id));
        members
    }
}

/// Kills processes, each only if it is still the one that was seen and not a later one of the same number.
#[cfg(target_os = "linux")]
pub(crate) fn kill_all(members: &BTreeMap<u32, u64>) {
    for (pid, start) in members {
        if proc::is_same(*pid, *start) {
            signal(*pid, Signal::KILL);
        }
    }
}

/// A random id: marks of different programs must differ.
#[expect(clippy::disallowed_methods, reason = "it must be unique on this machine, and no test compares it")]
fn fresh_id() -> String {
    uuid::Uuid::new_v4().to_string()
}

/// All living processes with this id in their mark.
#[cfg(target_os = "linux")]
fn marked(id: &str) -> BTreeMap<u32, u64> {
    proc::pids()
        .filter(|pid| *pid != std::process::id() && has_mark(*pid, id))
        .filter_map(|pid| Some((pid, proc::stat(pid).filter(|stat| stat.alive)?.start)))
        .collect()
}

#[cfg(target_os = "linux")]
fn has_mark(pid: u32, id: &str) -> bool {
    let mut environment = Vec::new();
    let Ok(file) = std::fs::File::open(format!("/proc/{pid}/environ")) else { return false };
    if file.take(ENVIRONMENT_LIMIT).read_to_end(&mut environment).is_err() {
        return false;
    }
    let mark = environment
        .split(|byte| *byte == 0)
        .find_map(|variable| variable.strip_prefix(MARK.as_bytes())?.strip_prefix(b"="));
    mark.is_some_and(|mark| mark.split(|byte| *byte == b'/').any(|part| part == id.as_bytes()))
}

/// Nothing is known of other processes here.
#[cfg(not(target_os = "linux"))]
fn marked(_: &str) -> BTreeMap<u32, u64> {
    BTreeMap::new()
}

#[cfg(not(target_os = "linux"))]
fn descendants(_: u32) -> BTreeMap<u32, u64> {
    BTreeMap::new()
}

#[cfg(not(target_os = "linux"))]
fn kill_all(_: &BTreeMap<u32, u64>) {}

/// Asks a group to end.
pub(crate) fn terminate_group(leader: u32) {
    signal_group(leader, Signal::TERM);
}

/// Asks a guard to kill its program and all its descendants.
pub(crate) fn ask_to_kill(guard: u32) {
    signal(guard, ASK_TO_KILL);
}

/// How a program ended whose guard was asked to kill it and ended so. A guard that was asked before it could listen was ended
/// by the request itself, before it started anything.
pub(crate) fn killed(guard: ExitStatus) -> ExitStatus {
    let by_request = guard.signal() == Some(ASK_TO_KILL.as_raw());
    if by_request { ExitStatus::from_raw(Signal::KILL.as_raw()) } else { guard }
}

/// What a guard takes for the request to kill its program.
const ASK_TO_KILL: Signal = Signal::USR1;

fn pid(pid: u32) -> Option<Pid> {
    Pid::from_raw(i32::try_from(pid).ok()?)
}

/// An error means that the process is gone already, which is what was wanted.
fn signal(process: u32, signal: Signal) {
    if let Some(pid) = pid(process) {
        let _gone = rustix::process::kill_process(pid, signal);
    }
}

fn signal_group(leader: u32, signal: Signal) {
    if let Some(pid) = pid(leader) {
        let _gone = rustix::process::kill_process_group(pid, signal);
    }
}

/// What `/proc` says about processes. One that ends meanwhile is gone.
#[cfg(target_os = "linux")]
pub(crate) mod proc {
    use std::collections::BTreeMap;
    use std::fs;

    /// One process.
    pub(crate) struct Stat {
        pub(crate) parent: u32,
        /// When it started, in clock ticks since boot.
        pub(crate) start: u64,
        pub(crate) alive: bool,
    }

    /// The process of this number.
    pub(crate) fn stat(pid: u32) -> Option<Stat> {
        let bytes = fs::read(format!("/proc/{pid}/stat")).ok()?;
        // The name is in parentheses and may hold anything, also what is not text.
        let name_ends = bytes.iter().rposition(|byte| *byte == b')')?;
        let rest = std::str::from_utf8(&bytes[name_ends + 1..]).ok()?;
        let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
        let alive = !matches!(*fields.first()?, "Z" | "X");
        Some(Stat { parent: fields.get(1)?.parse().ok()?, start: fields.get(19)?.parse().ok()?, alive })
    }

    /// The numbers of all processes.
    pub(crate) fn pids() -> impl Iterator<Item = u32> {
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
    }

    /// All descendants of a process by number, with the time at which each started.
    pub(crate) fn descendants(ancestor: u32) -> BTreeMap<u32, u64> {
        let all: Vec<(u32, Stat)> = pids().filter_map(|pid| Some((pid, stat(pid)?))).collect();
        let mut found = BTreeMap::new();
        let mut parents = vec![ancestor];
        while let Some(parent) = parents.pop() {
            for (pid, stat) in all.iter().filter(|(_, stat)| stat.parent == parent) {
                if found.insert(*pid, stat.start).is_none() {
                    parents.push(*pid);
                }
            }
        }
        found.remove(&ancestor);
        found
    }

    /// Whether a number still names the process that started at this time, and not a later one.
    pub(crate) fn is_same(pid: u32, start: u64) -> bool {
        stat(pid).is_some_and(|stat| stat.start == start)
    }
}
