//! `cargo xtask e2e`: real flows through the real `inspan` and the vendor's real program, against a scripted model.

mod cases;
mod install;
mod library;
mod processes;
mod surroundings;
mod time;
mod world;

use std::collections::BTreeSet;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use cargo_metadata::Message;

pub(crate) use install::{Agent, Programs};
pub(crate) use processes::{MARK, called, check_supported, end_all, marked, none_left};
pub(crate) use time::{Deadline, Stopwatch, pause};
pub(crate) use world::World;

/// One row: a name, the agents whose programs it needs, how many seconds it may take at most, what it does, and whether
/// it does so beside others.
struct Case {
    name: &'static str,
    needs: &'static [Agent],
    bound: u64,
    prove: fn(&mut World) -> anyhow::Result<()>,
    place: Place,
}

/// Whether a case has the machine to itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// It has: a moment is measured, or the case keeps the machine busy by itself.
    Alone,
    /// It spends most of its time in the start of a program that keeps one processor busy.
    Beside,
}

/// Cases that run side by side.
const SIDE_BY_SIDE: usize = 2;

/// Runs the cases whose names contain `filter`, prints a row for each, and says whether all hold.
pub(crate) fn run(root: &Path, filter: &str, out: &mut dyn std::io::Write) -> anyhow::Result<bool> {
    processes::check_supported()?;
    let chosen: Vec<&Case> = cases::CASES.iter().filter(|case| case.name.contains(filter)).collect();
    ensure!(!chosen.is_empty(), "no case's name contains `{filter}`");
    let needed: BTreeSet<Agent> = chosen.iter().flat_map(|case| case.needs).copied().collect();
    let programs = Programs::with(build(root)?, needed)?;
    for (agent, program) in programs.agents() {
        writeln!(out, "{} {} at {}", agent.command(), agent.version(), program.display())?;
    }
    writeln!(out, "{:<34} {:>8} {:>8}", "case", "took", "bound")?;
    let watch = Stopwatch::start();
    let mut failed = 0;
    for place in [Place::Alone, Place::Beside] {
        let cases: Vec<&Case> = chosen.iter().filter(|case| case.place == place).copied().collect();
        let lanes = if place == Place::Beside { SIDE_BY_SIDE } else { 1 };
        failed += walk(&cases, &programs, lanes, out)?;
    }
    let (held, took) = (chosen.len() - failed, watch.elapsed().as_secs_f64());
    writeln!(out, "{held} of {} cases hold, {took:.1} s", chosen.len())?;
    Ok(failed == 0)
}

/// Runs these cases in so many lanes, each taking the next one as long as there is one. Prints a row for each as it
/// ends, and says how many fail.
fn walk(
    cases: &[&Case],
    programs: &Programs,
    lanes: usize,
    out: &mut dyn std::io::Write,
) -> anyhow::Result<usize> {
    let next = AtomicUsize::new(0);
    let (rows, ended) = mpsc::channel();
    let lane = |rows: mpsc::Sender<_>| {
        while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
            let watch = Stopwatch::start();
            let ended = prove(case, programs);
            // Whoever does not listen any more has failed to print, and says so.
            let _ = rows.send((case, ended, watch.elapsed()));
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..lanes {
            let rows = rows.clone();
            scope.spawn(|| lane(rows));
        }
        drop(rows);
        let mut failed = 0;
        for (case, ended, took) in ended {
            let word = if ended.is_ok() { "ok" } else { "FAILED" };
            let (took, bound) = (took.as_secs_f64(), case.bound);
            writeln!(out, "{:<34} {took:>6.1} s {bound:>6} s  {word}", case.name)?;
            if let Err(error) = ended {
                writeln!(out, "{}", indented(&format!("{error:#}")))?;
                failed += 1;
            }
            out.flush()?;
        }
        Ok(failed)
    })
}

/// One case: what it proves, and what no case may leave behind.
fn prove(case: &Case, programs: &Programs) -> anyhow::Result<()> {
    let bound = Duration::from_secs(case.bound);
    let mut world = World::new(case.name, case.needs, programs, bound)?;
    let proved = (case.prove)(&mut world);
    let late = world.deadline.is_over();
    let clean = world.check();
    proved?;
    ensure!(!late, "it took longer than its bound of {bound:?}");
    clean
}

/// Builds `inspan` with the features of the whole workspace, and returns where it lies.
pub(crate) fn build(root: &Path) -> anyhow::Result<PathBuf> {
    build_with(root, &[])
}

/// As [`build`], with further arguments for cargo.
pub(crate) fn build_with(root: &Path, arguments: &[&str]) -> anyhow::Result<PathBuf> {
    let mut cargo = Command::new(env!("CARGO"))
        .args(["build", "--quiet", "--bin", "inspan", "--message-format=json-render-diagnostics"])
        .args(arguments)
        .current_dir(root)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("failed to start cargo")?;
    let output = cargo.stdout.take().context("cargo has no output")?;
    let mut program = None;
    for message in Message::parse_stream(BufReader::new(output)) {
        if let Message::CompilerArtifact(artifact) = message.context("failed to read what cargo says")?
            && artifact.target.name == "inspan"
        {
            program = artifact.executable.or(program);
        }
    }
    if !cargo.wait()?.success() {
        bail!("failed to build inspan");
    }
    Ok(program.context("cargo built no program `inspan`")?.into_std_path_buf())
}

fn indented(text: &str) -> String {
    text.lines().map(|line| format!("    {line}")).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::cases::CASES;

    #[test]
    fn names_are_unique_and_bounds_are_minutes_at_most() {
        let names: BTreeSet<_> = CASES.iter().map(|case| case.name).collect();
        assert_eq!(names.len(), CASES.len());
        assert_eq!(CASES.iter().filter(|case| case.bound == 0 || case.bound > 400).count(), 0);
    }
}
