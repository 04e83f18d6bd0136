//! Programs that a test starts: called as a user calls them, and the processes of a sandbox, which are found by a mark in
//! their environment (Linux only) that children inherit, and killed.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use rustix::process::{Pid, Signal, kill_process};

use crate::time::{Deadline, pause};

/// The variable that every process of a sandbox carries.
pub(crate) const MARK: &str = "INSPAN_E2E_MARK";

/// This program, with SIGINT and SIGHUP in their usual meaning. What a shell starts in the background ignores the first, what
/// `nohup` starts the second, tests too, and a program passes that on.
pub fn interruptible(program: &Path) -> Command {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    let is_ignored = |signal: Signal| mask & (1 << (signal.as_raw() - 1)) != 0;
    if ![Signal::INT, Signal::HUP].into_iter().any(is_ignored) {
        return Command::new(program);
    }
    let mut command = Command::new("/usr/bin/env");
    command.arg("--default-signal=INT,HUP").arg(program);
    command
}

/// What cargo sets for a program that it runs, and the build script of `ring` reads: after each change of it, whatever depends on
/// `ring` would be built again.
const SET_BY_CARGO: [&str; 7] = [
    "CARGO_MANIFEST_DIR",
    "CARGO_MANIFEST_LINKS",
    "CARGO_PKG_NAME",
    "CARGO_PKG_VERSION_MAJOR",
    "CARGO_PKG_VERSION_MINOR",
    "CARGO_PKG_VERSION_PATCH",
    "CARGO_PKG_VERSION_PRE",
];

/// Cargo in this folder, as a user calls it, from a program that cargo itself runs.
pub fn cargo(folder: &Path) -> Command {
    let mut cargo = Command::new(env!("CARGO"));
    for name in SET_BY_CARGO {
        cargo.env_remove(name);
    }
    cargo.current_dir(folder);
    cargo
}

/// Writes an executable script. A separate process writes it: a file that is open for writing cannot be executed, and a
/// process that another thread starts meanwhile would keep ours open.
pub fn write_program(path: &Path, text: &str) -> anyhow::Result<()> {
    let written = Command::new("/bin/sh")
        .args(["-c", "printf %s \"$1\" > \"$0\""])
        .arg(path)
        .arg(text)
        .status()
        .context("failed to start /bin/sh")?;
    ensure!(written.success(), "failed to write {}", path.display());
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755))?;
    Ok(())
}

/// How long a process may run on after the process that started it has ended.
const LINGER: Duration = Duration::from_secs(5);
/// The time between two searches.
const AGAIN: Duration = Duration::from_millis(10);

/// Process ids and command lines of the living processes that carry this mark.
pub(crate) fn marked(mark: &str) -> BTreeMap<i32, String> {
    let wanted = format!("{MARK}={mark}");
    let Ok(entries) = std::fs::read_dir("/proc") else { return BTreeMap::new() };
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(|pid| *pid != std::process::id().cast_signed())
        .filter_map(|pid| {
            // A process that has ended and is not yet reaped has no environment, and counts as gone.
            let environment = std::fs::read(format!("/proc/{pid}/environ")).ok()?;
            let carries = environment.split(|byte| *byte == 0).any(|pair| pair == wanted.as_bytes());
            carries.then(|| (pid, command_line(pid)))
        })
        .collect()
}

/// As [`marked`], with a second search if there are none: a process that is about to become another program shows no
/// environment for an instant.
fn surely_marked(mark: &str) -> BTreeMap<i32, String> {
    let found = marked(mark);
    if !found.is_empty() {
        return found;
    }
    pause(AGAIN);
    marked(mark)
}

/// Process ids of the living processes with this command line, marked or not.
pub fn called(line: &str) -> Vec<i32> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(|pid| command_line(*pid) == line).collect()
}

/// Whether a process runs. One that has ended and was not reaped does not.
pub fn is_running(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(") ").next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with('Z'))
}

/// The processes that run of the servers of [`crate::MCP_SERVER`] that were started in a folder.
///
/// # Panics
/// None was.
pub fn running_servers(folder: &Path) -> Vec<u32> {
    let pids = std::fs::read_to_string(folder.join("herd.pids")).unwrap_or_default();
    assert!(!pids.is_empty(), "no server was started in {}", folder.display());
    pids.lines().filter_map(|pid| pid.parse().ok()).filter(|pid| is_running(*pid)).collect()
}

/// Where cargo puts the examples: beside the folder of the test that runs.
pub fn example(name: &str) -> anyhow::Result<PathBuf> {
    let test = std::env::current_exe()?;
    let folder = test.parent().and_then(Path::parent).context("a test is in a folder of cargo's")?;
    Ok(folder.join("examples").join(name))
}

/// Fails if a process of this mark is still running after five seconds, and kills it.
pub(crate) fn none_left(mark: &str) -> anyhow::Result<()> {
    let deadline = Deadline::after(LINGER);
    loop {
        let left = surely_marked(mark);
        if left.is_empty() {
            return Ok(());
        }
        if deadline.is_over() {
            kill_marked(mark);
            let left: Vec<_> = left.iter().map(|(pid, line)| format!("{pid} {line}")).collect();
            anyhow::bail!("left behind after {LINGER:?}: {}", left.join("; "));
        }
        pause(AGAIN);
    }
}

/// Kills every process of this mark, and those that they start meanwhile.
pub(crate) fn kill_marked(mark: &str) {
    let deadline = Deadline::after(Duration::from_secs(5));
    loop {
        let left = surely_marked(mark);
        if left.is_empty() || deadline.is_over() {
            return;
        }
        for pid in left.keys().filter_map(|pid| Pid::from_raw(*pid)) {
            // It may have ended meanwhile.
            let _ = kill_process(pid, Signal::KILL);
        }
        pause(AGAIN);
    }
}

fn command_line(pid: i32) -> String {
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let words: Vec<_> = line.split(|byte| *byte == 0).map(String::from_utf8_lossy).collect();
    words.join(" ").trim().chars().take(120).collect()
}
