//! How long a user waits: from the start of the process to the first event of a flow.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use anyhow::{Context as _, ensure};
use inspan_testkit::Stopwatch;

use super::measure::{Goal, Measurement, middle};
use super::release_program;

const STARTS: usize = 40;

/// All rows. Time is what passes here, since a start waits for the system.
pub(crate) fn rows() -> anyhow::Result<Vec<Measurement>> {
    let (inspan, empty) = (release_program("inspan")?, release_program("empty-tokio")?);
    let folder = tempfile::tempdir()?;
    let flow = folder.path().join("flow.yaml");
    std::fs::write(
        &flow,
        "flow: { name: one }\nnodes:\n  - { id: a, type: echo, input: { text: hello } }\n",
    )?;
    let run = |more: &[&str]| {
        let mut command = Command::new(&inspan);
        command.args(["run", "--events", "-"]).args(more).arg(&flow).env("INSPAN_HOME", folder.path());
        command
    };
    // In turns, so that a busy moment does not hit one of them alone.
    let (mut stored, mut starts, mut empties) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..STARTS {
        stored.push(first_line(run(&[]), "\"seq\":1,")?);
        starts.push(first_line(run(&["--no-store"]), "\"seq\":1,")?);
        empties.push(first_line(Command::new(&empty), "empty")?);
    }
    let empty = middle(empties);
    let row =
        |work, values| Measurement::time(work, middle(values)).reference("an empty tokio program", empty);
    Ok(vec![
        row("process start to first event", starts).goal(Goal::Within(5e6)),
        row("the same, its session stored on disk", stored),
    ])
}

/// Nanoseconds from the start of a process to its first line, which contains this word.
fn first_line(mut command: Command, word: &str) -> anyhow::Result<f64> {
    let watch = Stopwatch::start();
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .context("failed to start")?;
    let mut lines = BufReader::new(child.stdout.take().context("the process has no output")?);
    let mut first = String::new();
    lines.read_line(&mut first)?;
    let took = watch.elapsed();
    // The rest is read too, so that the process ends as it would elsewhere.
    std::io::copy(&mut lines, &mut std::io::sink())?;
    ensure!(child.wait()?.success(), "the process failed");
    ensure!(first.contains(word), "the first line is {first:?}");
    Ok(took.as_secs_f64() * 1e9)
}
