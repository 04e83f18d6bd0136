//! `cargo xtask faults`: the promises of durability, each held against its fault by the real program and the real
//! store, and printed with its figure and its bound.

mod agent;
mod children;
mod damage;
mod disk;
mod follower;
mod lab;
mod opening;
mod order;
mod owners;
mod sweep;
mod time;
mod volume;

use std::io::Write;
use std::path::Path;
use std::time::Duration;

use anyhow::ensure;

use crate::e2e::{Stopwatch, build_with, check_supported};
use lab::Lab;

/// How much is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Size {
    /// What fits before every change.
    Sample,
    /// All of it.
    Full,
}

/// One row of the table.
struct Row {
    name: &'static str,
    /// What must hold; a row that breaks it fails.
    bound: &'static str,
    /// Does the harm and looks at what comes of it; gives the figure.
    prove: fn(&Lab) -> anyhow::Result<String>,
}

const ROWS: &[Row] = &[
    sweep::ROW,
    owners::TWO,
    owners::STALE,
    disk::FULL,
    disk::ERRORS,
    damage::ROW,
    opening::RACE,
    opening::MAKING,
    opening::FOREIGN,
    children::FAILING,
    children::UNHEARD,
    children::ORPHANS,
    follower::DEAD,
    follower::READER,
    time::JUMPS,
    order::ROW,
    time::MONTH,
    volume::SESSIONS,
    volume::TEXT,
];

/// Proves the rows whose names contain `filter`, prints each, and says whether all hold.
pub(crate) fn run(root: &Path, filter: &str, size: Size, out: &mut dyn Write) -> anyhow::Result<bool> {
    check_supported()?;
    let chosen: Vec<&Row> = ROWS.iter().filter(|row| row.name.contains(filter)).collect();
    ensure!(!chosen.is_empty(), "no row's name contains `{filter}`");
    let inspan = build_with(root, &["--features", "inspan-cli/crash-points"])?;
    let lab = Lab::new(&inspan, size)?;
    let (mut total, mut failed) = (Duration::ZERO, 0);
    for row in &chosen {
        let watch = Stopwatch::start();
        let proved = (row.prove)(&lab);
        let took = watch.elapsed();
        total += took;
        let word = if proved.is_ok() { "ok    " } else { "FAILED" };
        writeln!(out, "{word}  {:<44} {:>6.1} s", row.name, took.as_secs_f64())?;
        let figure = proved.unwrap_or_else(|error| {
            failed += 1;
            format!("{error:#}")
        });
        for line in figure.lines() {
            writeln!(out, "        {line}")?;
        }
        writeln!(out, "        bound: {}", row.bound)?;
        out.flush()?;
    }
    let held = chosen.len() - failed;
    writeln!(out, "{held} of {} rows hold, {:.1} s, a debug build", chosen.len(), total.as_secs_f64())?;
    Ok(failed == 0)
}
