//! Everything that came of a supervised program: asked how it ended, and killed.
//! When it has to go is left to `duty`.

use std::{collections::BTreeMap, fs, os::unix::process::ExitStatusExt, process::ExitStatus};

use rustix::{
    io::Errno,
    process::{Pid, Signal, WaitOptions, getpid, kill_process, wait},
};

/// Whether anybody is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Left {
    Nobody,
    Somebody,
}

/// Takes note of all that have ended, orphans included, so that no zombie stays; and of how the leader did.
pub(super) fn reap(leader: Pid, ended: &mut Option<ExitStatus>) -> Left {
    loop {
        match wait(WaitOptions::NOHANG) {
            Ok(Some((pid, status))) => {
                if pid == leader {
                    *ended = Some(ExitStatus::from_raw(status.as_raw()));
                }
            }
            Ok(None) => return Left::Somebody,
            Err(Errno::INTR) => {}
            // There is no child any more, and so no descendant.
            Err(_) => return Left::Nobody,
        }
    }
}

/// Kills all descendants that there are now. Those that are born meanwhile become our children at the latest when
/// their parents are gone, so they are found the next time.
pub(super) fn kill() {
    let all: BTreeMap<i32, Stat> = pids().filter_map(|pid| Some((pid, stat(pid)?))).collect();
    let mut parents = vec![getpid().as_raw_nonzero().get()];
    while let Some(parent) = parents.pop() {
        for (pid, stat_then) in all.iter().filter(|(_, stat)| stat.parent == parent) {
            parents.push(*pid);
            // A number that somebody else has by now is left alone.
            let same = stat(*pid).is_some_and(|now| now.start == stat_then.start);
            if let Some(pid) = Pid::from_raw(*pid).filter(|_| same) {
                let _gone_meanwhile = kill_process(pid, Signal::KILL);
            }
        }
    }
}

struct Stat {
    parent: i32,
    /// When it started, in clock ticks since boot.
    start: u64,
}

fn stat(pid: i32) -> Option<Stat> {
    // The name stands in parentheses, and may hold anything, also what is no text.
    let bytes = fs::read(format!("/proc/{pid}/stat")).ok()?;
    let name_ends = bytes.iter().rposition(|byte| *byte == b')')?;
    let rest = std::str::from_utf8(&bytes[name_ends + 1..]).ok()?;
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    Some(Stat { parent: fields.get(1)?.parse().ok()?, start: fields.get(19)?.parse().ok()? })
}

fn pids() -> impl Iterator<Item = i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}
