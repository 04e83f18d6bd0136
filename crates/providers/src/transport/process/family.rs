//! Everything that a process started, however far it has run from it, and the end of all of it.
//! Waiting for the process itself is left to `process.rs`.
//!
//! A tool may put itself into a session of its own, where no signal to the group reaches it, and it may outlive its
//! parent, so that no line of parents leads back. So members are found in two ways: by their parents, before
//! anything is killed, and by a variable in the environment that children inherit, at any time. One that does both
//! and clears its environment escapes. Only Linux shows either; elsewhere the group is all that is known.

use std::collections::BTreeMap;

/// The variable that marks a process and everything it starts. A marked process that marks its own children
/// appends, so that the outer mark is still found.
pub(super) const MARK: &str = "INSPAN_PROCESS";

/// A process and its descendants.
#[derive(Debug)]
pub(super) struct Family {
    leader: u32,
    id: String,
    mark: String,
}

impl Family {
    /// A family to be, within the family that we are part of ourselves, if any.
    pub(super) fn new(outer: Option<&str>) -> Self {
        let id = crate::ids::fresh();
        let mark = outer.map_or_else(|| id.clone(), |outer| format!("{outer}/{id}"));
        Self { leader: 0, id, mark }
    }

    /// The value of the marking variable.
    pub(super) fn mark(&self) -> &str {
        &self.mark
    }

    /// The same family, now that its leader runs.
    pub(super) fn led_by(self, leader: u32) -> Self {
        Self { leader, ..self }
    }

    /// The number of its leader.
    pub(super) fn leader(&self) -> u32 {
        self.leader
    }

    /// Kills the leader, its group and all descendants. The leader must not have been reaped.
    pub(super) fn kill(&self) {
        let mut members = BTreeMap::new();
        // Those that are born while we look are found when we look again.
        for _ in 0..3 {
            let found = self.members();
            let fresh = found.iter().any(|(pid, start)| members.get(pid) != Some(start));
            members.extend(found);
            signal_group(self.leader, Signal::Kill);
            signal(self.leader, Signal::Kill);
            kill_all(&members);
            if !fresh {
                break;
            }
        }
    }

    /// Kills the descendants that outlived the leader.
    pub(super) fn kill_left_behind(&self) {
        for _ in 0..3 {
            let members = proc::marked(&self.id);
            if members.is_empty() {
                break;
            }
            kill_all(&members);
        }
    }

    fn members(&self) -> BTreeMap<u32, u64> {
        let mut members = proc::descendants(self.leader);
        members.extend(proc::marked(&self.id));
        members
    }
}

/// Kills processes, each only if it is still the one that was seen and not a later one of the same number.
fn kill_all(members: &BTreeMap<u32, u64>) {
    for (pid, start) in members {
        if proc::start_of(*pid) == Some(*start) {
            signal(*pid, Signal::Kill);
        }
    }
}

/// Asks a group to end.
pub(super) fn terminate_group(leader: u32) {
    signal_group(leader, Signal::Terminate);
}

/// Asks a supervisor to kill its program and everything that came of it.
pub(super) fn ask_to_kill(supervisor: u32) {
    signal(supervisor, Signal::Ask);
}

#[derive(Clone, Copy)]
enum Signal {
    Terminate,
    Ask,
    Kill,
}

#[cfg(unix)]
fn number(signal: Signal) -> rustix::process::Signal {
    match signal {
        Signal::Terminate => rustix::process::Signal::TERM,
        Signal::Ask => rustix::process::Signal::USR1,
        Signal::Kill => rustix::process::Signal::KILL,
    }
}

#[cfg(unix)]
fn pid(pid: u32) -> Option<rustix::process::Pid> {
    rustix::process::Pid::from_raw(i32::try_from(pid).ok()?)
}

/// A signal that does not arrive has nobody to arrive at, which is what was wanted.
#[cfg(unix)]
fn signal(process: u32, signal: Signal) {
    if let Some(pid) = pid(process) {
        let _nobody_left = rustix::process::kill_process(pid, number(signal));
    }
}

#[cfg(unix)]
fn signal_group(leader: u32, signal: Signal) {
    if let Some(pid) = pid(leader) {
        let _nobody_left = rustix::process::kill_process_group(pid, number(signal));
    }
}

#[cfg(target_os = "linux")]
mod proc {
    //! What `/proc` tells about processes. A process that ends while it is looked at is no member any more.

    use std::collections::BTreeMap;
    use std::fs;
    use std::io::Read;

    use super::MARK;

    /// An environment beyond this is not searched further.
    const ENVIRONMENT_LIMIT: u64 = 4 * 1024 * 1024;

    /// All descendants by number, with the time at which each started.
    pub(super) fn descendants(leader: u32) -> BTreeMap<u32, u64> {
        let all: Vec<(u32, Stat)> = pids().filter_map(|pid| Some((pid, stat(pid)?))).collect();
        let mut found = BTreeMap::new();
        let mut parents = vec![leader];
        while let Some(parent) = parents.pop() {
            for (pid, stat) in all.iter().filter(|(_, stat)| stat.parent == parent) {
                if found.insert(*pid, stat.start).is_none() {
                    parents.push(*pid);
                }
            }
        }
        found.remove(&leader);
        found
    }

    /// All living processes with this id in their mark.
    pub(super) fn marked(id: &str) -> BTreeMap<u32, u64> {
        pids()
            .filter(|pid| *pid != std::process::id() && has_mark(*pid, id))
            .filter_map(|pid| Some((pid, stat(pid).filter(|stat| stat.alive)?.start)))
            .collect()
    }

    /// When a process started, in clock ticks since boot.
    pub(super) fn start_of(pid: u32) -> Option<u64> {
        stat(pid).map(|stat| stat.start)
    }

    struct Stat {
        parent: u32,
        start: u64,
        alive: bool,
    }

    fn stat(pid: u32) -> Option<Stat> {
        let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name stands in parentheses and may hold anything, parentheses too.
        let fields: Vec<&str> = text[text.rfind(')')? + 1..].split_ascii_whitespace().collect();
        let alive = !matches!(*fields.first()?, "Z" | "X");
        Some(Stat { parent: fields.get(1)?.parse().ok()?, start: fields.get(19)?.parse().ok()?, alive })
    }

    fn pids() -> impl Iterator<Item = u32> {
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
    }

    fn has_mark(pid: u32, id: &str) -> bool {
        let mut environment = Vec::new();
        let Ok(file) = fs::File::open(format!("/proc/{pid}/environ")) else { return false };
        if file.take(ENVIRONMENT_LIMIT).read_to_end(&mut environment).is_err() {
            return false;
        }
        let mark = environment
            .split(|byte| *byte == 0)
            .find_map(|variable| variable.strip_prefix(MARK.as_bytes())?.strip_prefix(b"="));
        mark.is_some_and(|mark| mark.split(|byte| *byte == b'/').any(|part| part == id.as_bytes()))
    }
}

#[cfg(not(target_os = "linux"))]
mod proc {
    //! Nothing is known of other processes here.

    use std::collections::BTreeMap;

    pub(super) fn descendants(_: u32) -> BTreeMap<u32, u64> {
        BTreeMap::new()
    }

    pub(super) fn marked(_: &str) -> BTreeMap<u32, u64> {
        BTreeMap::new()
    }

    pub(super) fn start_of(_: u32) -> Option<u64> {
        None
    }
}
