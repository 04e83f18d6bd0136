//! `cargo xtask bench`: what the hot paths cost, each beside a reference of the same run on the same machine.

mod agent;
mod concurrency;
mod decode;
mod durable;
mod flow;
mod hub;
mod measure;
mod memory;
mod page;
mod start;
mod stored;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;

pub(crate) use concurrency::run as concurrency;
use measure::{HEAD, Measurement};

/// A part of the benches.
struct BenchPart {
    name: &'static str,
    rows: fn(&Path) -> anyhow::Result<Vec<Measurement>>,
}

const PARTS: &[BenchPart] = &[
    BenchPart { name: "hub", rows: |_| Ok(hub::rows()) },
    BenchPart { name: "flow", rows: |_| flow::rows() },
    BenchPart { name: "decode", rows: |_| decode::rows() },
    BenchPart { name: "start", rows: |_| start::rows() },
    BenchPart { name: "memory", rows: |_| memory::rows() },
    BenchPart { name: "durable", rows: durable::rows },
    BenchPart { name: "agent", rows: |_| agent::rows() },
    BenchPart { name: "page", rows: |_| page::rows() },
];

/// Measures the parts whose names contain `filter`, and prints a row for each value. A debug build of this program
/// builds itself and `inspan` for release, and that build measures.
pub(crate) fn run(root: &Path, filter: &str, out: &mut dyn Write) -> anyhow::Result<bool> {
    if cfg!(debug_assertions) {
        let programs = ["--bin", "xtask", "--bin", "inspan", "--bin", "empty-tokio"];
        let built =
            inspan_testkit::cargo(root).args(["build", "--quiet", "--release"]).args(programs).status();
        anyhow::ensure!(built.context("failed to start cargo")?.success(), "the release build failed");
        let measuring = std::env::current_exe()?.with_file_name("../release/xtask");
        return Ok(Command::new(measuring).args(["bench", filter]).current_dir(root).status()?.success());
    }
    let chosen: Vec<&BenchPart> = PARTS.iter().filter(|part| part.name.contains(filter)).collect();
    anyhow::ensure!(!chosen.is_empty(), "no part of the benches is called `{filter}`");
    writeln!(out, "{HEAD}")?;
    let mut missed = 0;
    for part in chosen {
        for row in (part.rows)(root)? {
            missed += usize::from(row.met() == Some(false));
            writeln!(out, "{row}")?;
            out.flush()?;
        }
    }
    writeln!(out, "{missed} goals are not met")?;
    Ok(true)
}

/// A program that `cargo xtask bench` built beside this one.
fn release_program(name: &str) -> anyhow::Result<PathBuf> {
    let program = std::env::current_exe()?.with_file_name(name);
    anyhow::ensure!(program.exists(), "{} is missing: `cargo xtask bench` builds it", program.display());
    Ok(program)
}
