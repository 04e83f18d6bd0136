//! Calls of cargo: running the tests that a command of this program names, and the programs that a bench measures.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context as _, ensure};

/// A program that `cargo xtask bench` built beside this one.
pub(crate) fn release_program(name: &str) -> anyhow::Result<PathBuf> {
    let program = std::env::current_exe()?.with_file_name(name);
    ensure!(program.exists(), "{} is missing: `cargo xtask bench` builds it", program.display());
    Ok(program)
}

/// Runs `cargo test` with these arguments and variables, and says whether the tests pass. All crates are included, so
/// that nothing is built a second time with other features.
pub(crate) fn test(root: &Path, arguments: &[&str], env: &[(&str, &str)]) -> anyhow::Result<bool> {
    let status = inspan_testkit::cargo(root)
        .args(["test", "--workspace"])
        .args(arguments)
        .envs(env.iter().copied())
        .stdin(Stdio::null())
        .status();
    Ok(status.context("failed to start cargo")?.success())
}
