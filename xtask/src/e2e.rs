//! `cargo xtask e2e`: real flows through the real `inspan` and the vendor's real program, against a scripted model.
//! What each case does and expects is left to `cases`.

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
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use cargo_metadata::Message;

pub(crate) use install::{Agent, Programs};
pub(crate) use processes::{MARK, called, check_supported, end_all, marked, none_left};
pub(crate) use time::{Deadline, Stopwatch, pause};
pub(crate) use world::World;

/// One row: a name, the agents whose programs it needs, how many seconds it may take at most, and what it does.
struct Case {
    name: &'static str,
    needs: &'static [Agent],
    bound: u64,
    prove: fn(&mut World) -> anyhow::Result<()>,
}

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
    let (mut total, mut failed) = (Duration::ZERO, Vec::new());
    for case in &chosen {
        let watch = Stopwatch::start();
        let ended = prove(case, &programs);
        let took = watch.elapsed();
        total += took;
        let word = if ended.is_ok() { "ok" } else { "FAILED" };
        let (took, bound) = (took.as_secs_f64(), case.bound);
        writeln!(out, "{:<34} {took:>6.1} s {bound:>6} s  {word}", case.name)?;
        if let Err(error) = ended {
            writeln!(out, "{}", indented(&format!("{error:#}")))?;
            failed.push(case.name);
        }
        out.flush()?;
    }
    writeln!(
        out,
        "{} of {} cases hold, {:.1} s",
        chosen.len() - failed.len(),
        chosen.len(),
        total.as_secs_f64()
    )?;
    Ok(failed.is_empty())
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
