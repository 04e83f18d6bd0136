//! Tests flows. A test file holds cases in YAML: what the flow is given, what its agents, programs and people answer,
//! and what the result must be. The real engine runs each case in its own time; providers and programs are answered by
//! the case, so nothing leaves the process.

mod answer;
mod answered;
mod cases;
mod compare;
mod coverage;
mod expect;
mod file;
mod made;
mod matcher;
mod pattern;
mod people;
mod report;
mod run;
mod script;
mod snapshot;
mod suite;
mod trace;
mod yaml;

pub use compare::{ComparedSession, Comparison, NodeComparison, NodeSide, SessionSide};
pub use coverage::{Coverage, Covered};
pub use expect::FailedExpectation;
pub use file::{FileProblem, test_file_schema};
pub use made::{AddError, MadeCase, add_case};
pub use matcher::difference;
pub use report::{CaseReport, FileReport, Report};
pub use suite::{Options, SnapshotMode, Suite, find};
pub use trace::{NodeTrace, Trace};
