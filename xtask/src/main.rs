//! The project's own commands: it reads arguments, prints, and ends with a code.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a command line prints")]

mod bench;
mod documents;
mod events;
mod fixtures;
mod form;
mod generated;
mod layers;
mod record;
mod replay;
mod schema;
mod size;
mod tidy;
mod typescript;
mod workspace;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use inspan_testkit::GoldenMode;

/// The features of the tests that drive the whole program: one build serves both commands.
const FEATURES: &[&str] = &["--features", "inspan-cli/e2e,inspan-cli/faults"];

/// The project's own commands.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    command: XtaskCommand,
}

#[derive(Debug, Subcommand)]
enum XtaskCommand {
    /// Checks the tree against the rules of `CONTRIBUTING.md`; each line says how to fix what is broken
    Tidy {
        /// Writes what is generated first
        #[arg(long)]
        fix: bool,
    },
    /// Writes the JSON Schemas under `schema/` from the types
    Schema {
        /// Writes nothing and fails if a schema is stale
        #[arg(long)]
        check: bool,
    },
    /// Replays every fixture and compares the whole output
    Replay {
        /// Accepts the output; the diff is the review
        #[arg(long)]
        bless: bool,
        /// Only the cases whose names contain this
        #[arg(default_value = "")]
        filter: String,
    },
    /// Records again what the real agent CLI answers in the flow fixtures and the example
    Record {
        /// Only the cases whose names contain this
        #[arg(default_value = "")]
        filter: String,
    },
    /// Drives flows through the real agent CLIs against a scripted model
    E2e {
        /// Only the cases whose names contain this
        #[arg(default_value = "")]
        filter: String,
    },
    /// Kills, floods and damages what stores sessions, and prints each figure beside its bound
    Faults {
        /// Everything instead of a sample
        #[arg(long)]
        full: bool,
        /// Only the rows whose names contain this
        #[arg(default_value = "")]
        filter: String,
    },
    /// A part of `bench` that runs in a separate process
    #[command(hide = true)]
    Concurrency { folder: std::path::PathBuf },
    /// Measures the hot paths, each beside a reference of the same run
    Bench {
        /// Only the parts whose names contain this
        #[arg(default_value = "")]
        filter: String,
    },
}

fn main() -> ExitCode {
    match run(Arguments::parse().command) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: XtaskCommand) -> anyhow::Result<ExitCode> {
    let root = workspace::root();
    match command {
        XtaskCommand::Tidy { fix } => {
            if fix {
                print_changed(&tidy::fix(&root)?);
            }
            Ok(report(&tidy::check(&root)?))
        }
        XtaskCommand::Schema { check: true } => {
            let workspace = workspace::Workspace::read(&root)?;
            Ok(report(&schema::check(schema::SCHEMAS, &workspace)))
        }
        XtaskCommand::Replay { bless, filter } => {
            let mode = if bless { GoldenMode::Bless } else { GoldenMode::Check };
            Ok(code(replay::run(&root, &filter, mode, &mut std::io::stdout())?))
        }
        XtaskCommand::Record { filter } => Ok(code(record::run(&root, &filter, &mut std::io::stdout())?)),
        XtaskCommand::E2e { filter } => {
            // Three at a time, since many wait for much of their time: the cases that measure a moment run alone.
            let arguments = [FEATURES, &["--test", "e2e", "--", "--nocapture", "--test-threads=3"]].concat();
            Ok(code(workspace::test(&root, &[&arguments[..], &[&*filter]].concat(), &[])?))
        }
        XtaskCommand::Faults { full, filter } => {
            let arguments = [FEATURES, &["--test", "faults", "--", "--nocapture"]].concat();
            let size = if full { "full" } else { "sample" };
            Ok(code(workspace::test(
                &root,
                &[&arguments[..], &[&*filter]].concat(),
                &[("INSPAN_FAULTS", size)],
            )?))
        }
        XtaskCommand::Concurrency { folder } => {
            Ok(code(bench::concurrency(&folder, &mut std::io::stdout())?))
        }
        XtaskCommand::Bench { filter } => Ok(code(bench::run(&root, &filter, &mut std::io::stdout())?)),
        XtaskCommand::Schema { check: false } => {
            print_changed(&schema::write(schema::SCHEMAS, &root)?);
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn code(holds: bool) -> ExitCode {
    if holds { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn print_changed(paths: &[String]) {
    for path in paths {
        println!("wrote {path}");
    }
}

fn report(findings: &[tidy::TidyFinding]) -> ExitCode {
    for finding in findings {
        println!("{finding}");
    }
    match tidy::broken(findings).len() {
        0 => {
            println!("every rule holds");
            ExitCode::SUCCESS
        }
        1 => {
            println!("1 rule is broken");
            ExitCode::FAILURE
        }
        count => {
            println!("{count} rules are broken");
            ExitCode::FAILURE
        }
    }
}
