//! Tests of flows in a Rust program: `cargo run -p inspan --example test_flows`. Test files are described in
//! `docs/testing.md`.
#![expect(clippy::print_stdout, reason = "an example shows what it got")]

use std::path::PathBuf;

use inspan::{
    BoxError,
    node::builtin_nodes,
    providers,
    testing::{Options, Suite, find},
};

fn main() -> Result<(), BoxError> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../examples/review-loop");

    let files = find(&[folder])?;
    let suite = Suite::new(&providers::builtin(), builtin_nodes);
    let report = suite.run(&files, &Options::default());
    assert!(report.passed(), "{}", report.tap());

    for case in report.cases() {
        println!("ok: {}", case.name);
    }
    Ok(())
}
