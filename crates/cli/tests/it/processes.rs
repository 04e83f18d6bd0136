//! The processes of a test, found by a word among their arguments that no other test has, and the wait for them.

use std::{
    collections::BTreeMap,
    fs,
    path::Path,
    process::{Child, Command},
    time::Duration,
};

use inspan_testkit::eventually;

use crate::program::inspan;

/// A length of sleep in seconds that no other run of this test has.
pub(crate) fn mark(number: u32) -> String {
    format!("86400.{number}{:07}", std::process::id())
}

/// The command lines of processes with this word in them.
pub(crate) fn running(word: &str) -> Vec<String> {
    found(word).into_values().collect()
}

fn found(word: &str) -> BTreeMap<String, String> {
    let process = |entry: std::io::Result<fs::DirEntry>| {
        let entry = entry.ok()?;
        let bytes = fs::read(entry.path().join("cmdline")).ok()?;
        let text = String::from_utf8_lossy(&bytes).trim_end_matches('\0').replace('\0', " ");
        text.contains(word).then_some((entry.file_name().into_string().ok()?, text))
    };
    fs::read_dir("/proc").unwrap().filter_map(process).collect()
}

/// Kills what a failed test leaves behind.
pub(crate) struct Sweep<'a>(pub(crate) &'a str);

impl Drop for Sweep<'_> {
    fn drop(&mut self) {
        // A shell whose program is killed continues the next.
        for _ in 0..10 {
            let pids: Vec<String> = found(self.0).into_keys().collect();
            if pids.is_empty() {
                return;
            }
            Command::new("kill").args(["-s", "KILL"]).args(pids).status().unwrap();
        }
    }
}

/// Waits until no process has this word in its command line, and returns those that still do after this time.
pub(crate) fn left(word: &str, limit: Duration) -> Vec<String> {
    // Whether one stays is up to the caller.
    let _ = eventually(limit, word, || Ok(running(word).is_empty()));
    running(word)
}

/// Waits for something that has to come true.
pub(crate) fn until(what: &str, mut holds: impl FnMut() -> bool) {
    eventually(Duration::from_secs(60), what, || Ok(holds())).unwrap();
}

/// Waits until a session runs.
pub(crate) fn until_one_runs(folder: &Path) {
    until("a session runs", || inspan(folder, &["ps", "--json"]).stdout.contains("\"state\": \"running\""));
}

/// Kills a program.
pub(crate) fn kill(mut child: Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

/// Sends a signal by its name.
pub(crate) fn signal(child: &Child, name: &str) {
    let sent = Command::new("kill").args(["-s", name, &child.id().to_string()]).status().unwrap();
    assert!(sent.success());
}
