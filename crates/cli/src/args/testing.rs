//! The arguments of `inspan test`.

use std::{num::NonZeroUsize, path::PathBuf};

use clap::{Args, ValueEnum, ValueHint};

pub(super) const EXAMPLES: &str = "\
Examples:
  inspan test                              every test file of this folder
  inspan test flow.yaml                    the tests of one flow
  inspan test --filter 'sent back'         the cases whose name contains a text
  inspan test --update                     accept prompts that differ from their snapshots
  inspan test --min-coverage 80 --format junit > junit.xml
  inspan test --from @last                 create a case from a stored session

A test file is NAME.test.yaml beside NAME.yaml, or in `tests` beside it. No agent, program or network is used. Exit codes: 0 \
all passed, 1 a case failed or coverage is too low, 2 a file cannot be used.";

#[derive(Debug, Args)]
pub(crate) struct TestArgs {
    /// Test files, flow files or folders; without one the tests of this folder
    #[arg(value_name = "FILE", value_hint = ValueHint::AnyPath)]
    pub(crate) files: Vec<PathBuf>,
    /// Run only cases whose name or file contains TEXT
    #[arg(long, value_name = "TEXT")]
    pub(crate) filter: Vec<String>,
    /// Accept prompts that differ from their snapshots
    #[arg(long)]
    pub(crate) update: bool,
    /// Fail if the cases cover less than PERCENT of nodes, edges and failure routes
    #[arg(long, value_name = "PERCENT", value_parser = percent)]
    pub(crate) min_coverage: Option<f64>,
    /// Run at most N cases at once
    #[arg(long, short, value_name = "N")]
    pub(crate) jobs: Option<NonZeroUsize>,
    /// Output format; `--json` is short for `--format json`
    #[arg(long, value_name = "FORMAT")]
    pub(crate) format: Option<TestFormat>,
    /// Create a case from a stored session: its input, answers, replies and result, without secrets. Add it to the flow's
    /// test file, or to FILE
    #[arg(long, value_name = "ID", conflicts_with_all = ["filter", "update", "min_coverage", "jobs", "format"])]
    pub(crate) from: Option<String>,
    /// Name of that case
    #[arg(long, value_name = "TEXT", requires = "from")]
    pub(crate) name: Option<String>,
}

/// How the results are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum TestFormat {
    /// For people
    Human,
    /// One JSON object
    Json,
    /// JUnit XML
    Junit,
    /// Test Anything Protocol, version 14
    Tap,
}

fn percent(text: &str) -> Result<f64, String> {
    let number: f64 = text.trim_end_matches('%').parse().map_err(|_| "a number from 0 to 100".to_owned())?;
    if (0.0..=100.0).contains(&number) { Ok(number) } else { Err("a number from 0 to 100".to_owned()) }
}
