//! What `/proc` says about processes. One that ends meanwhile is gone.

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
