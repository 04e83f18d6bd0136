//! Finds the processes of a case by a mark in their environment, which children inherit, and ends them.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::ensure;
use rustix::process::{Pid, Signal, kill_process};

use super::time::{Deadline, pause};

/// The variable that every process of a case carries.
pub(crate) const MARK: &str = "INSPAN_E2E_MARK";

/// How long a process may take to go after whoever started it has gone.
const LINGER: Duration = Duration::from_secs(1);
/// How long it takes to look again.
const AGAIN: Duration = Duration::from_millis(10);

/// Whether processes can be looked for on this system.
pub(crate) fn check_supported() -> anyhow::Result<()> {
    let table = std::path::Path::new("/proc/self/environ");
    ensure!(table.exists(), "this needs Linux: processes left behind are looked for in /proc");
    Ok(())
}

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

/// As [`marked`], and looked for once more if there are none: one that is about to become another program shows no
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
pub(crate) fn called(line: &str) -> Vec<i32> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(|pid| command_line(*pid) == line).collect()
}

/// Fails if a process of this mark is still there after a short while, and ends it.
pub(crate) fn none_left(mark: &str) -> anyhow::Result<()> {
    let deadline = Deadline::after(LINGER);
    loop {
        let left = surely_marked(mark);
        if left.is_empty() {
            return Ok(());
        }
        if deadline.is_over() {
            end_all(mark);
            let left: Vec<_> = left.iter().map(|(pid, line)| format!("{pid} {line}")).collect();
            anyhow::bail!("left behind after {LINGER:?}: {}", left.join("; "));
        }
        pause(AGAIN);
    }
}

/// Ends every process of this mark, those included that they start meanwhile.
pub(crate) fn end_all(mark: &str) {
    let deadline = Deadline::after(Duration::from_secs(5));
    loop {
        let left = surely_marked(mark);
        if left.is_empty() || deadline.is_over() {
            return;
        }
        for pid in left.keys().filter_map(|pid| Pid::from_raw(*pid)) {
            // One that has gone meanwhile is what was wanted.
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

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_process_and_its_child_in_a_session_of_its_own_are_found_and_ended() {
        let mark = format!("processes-test-{}", std::process::id());
        let mut shell = Command::new("sh")
            .args(["-c", "setsid sleep 600 & echo started; wait"])
            .env(MARK, &mark)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut started = String::new();
        let output = shell.stdout.take().unwrap();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(output), &mut started).unwrap();
        assert_eq!(started, "started\n");
        let wanted = |line: &String| line == "sleep 600";
        let deadline = Deadline::after(Duration::from_secs(10));
        while !marked(&mark).values().any(wanted) && !deadline.is_over() {
            pause(Duration::from_millis(5));
        }
        shell.kill().unwrap();
        shell.wait().unwrap();
        let told = none_left(&mark).unwrap_err().to_string();
        assert!(told.starts_with("left behind after 1s: ") && told.ends_with("sleep 600"), "{told}");
        assert_eq!(marked(&mark), BTreeMap::new());
        none_left(&mark).unwrap();
    }
}
