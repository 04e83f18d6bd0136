//! The peak memory of the whole program for a flow of one node and of many, and of agents that stream at once.

use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, ensure};

use super::measure::{Goal, Measurement};
use super::release_program;
use super::stored::chain;

/// Each program is run so often, and the largest value counts: what it takes at its end may be seen too late.
const RUNS: usize = 5;
const MANY: usize = 10_000;

/// All rows.
pub(crate) fn rows() -> anyhow::Result<Vec<Measurement>> {
    let inspan = release_program("inspan")?;
    let folder = tempfile::tempdir()?;
    let mut rows = Vec::new();
    for (size, goal) in [(1, 20e6), (MANY, 60e6)] {
        let flow = folder.path().join(format!("chain-{size}.yaml"));
        std::fs::write(&flow, chain("echo", size))?;
        let mut peak = Peak::default();
        for _ in 0..RUNS {
            let mut command = Command::new(&inspan);
            command.arg("run").arg(&flow).env("INSPAN_HOME", folder.path());
            peak = peak.max(watch(command)?);
        }
        // A program that is mapped into memory counts as well, though all that run it share it.
        rows.push(
            Measurement::bytes(format!("peak memory, chain of {size}"), peak.all)
                .reference("of it the program's own pages", peak.file)
                .goal(Goal::Within(goal)),
        );
    }
    rows.extend(super::concurrency::rows()?);
    Ok(rows)
}

/// The most memory that a process held, and how much of it was mapped from files.
#[derive(Clone, Copy, Debug, Default)]
struct Peak {
    all: f64,
    file: f64,
}

impl Peak {
    fn max(self, other: Self) -> Self {
        if other.all > self.all { other } else { self }
    }
}

/// Runs a program and looks at its memory until it has ended. What the system reports of it afterwards counts what its
/// parent held too.
fn watch(mut command: Command) -> anyhow::Result<Peak> {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .context("failed to start")?;
    let mut peak = Peak::default();
    let status = loop {
        if let Some(seen) = look(&child) {
            peak = peak.max(seen);
        }
        if let Some(status) = child.try_wait()? {
            break status;
        }
    };
    ensure!(status.success(), "the program failed: {status}");
    ensure!(peak.all > 0.0, "the program's memory could not be read; this row needs Linux");
    Ok(peak)
}

fn look(child: &Child) -> Option<Peak> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).ok()?;
    Some(Peak { all: field(&status, "VmHWM:")?, file: field(&status, "RssFile:")? })
}

/// A value of `/proc/…/status`, in bytes.
pub(super) fn field(status: &str, name: &str) -> Option<f64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    let kibibytes: f64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes * 1024.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_is_found_by_its_whole_name() {
        let status = "Name:\tinspan\nVmPeak:\t  9000 kB\nVmHWM:\t    12 kB\nRssFile:\t4 kB\n";
        let found = ["VmHWM:", "RssFile:", "RssAnon:"].map(|name| field(status, name));
        assert_eq!(found, [Some(12.0 * 1024.0), Some(4096.0), None]);
    }
}
