//! Calls of cargo: running the tests that a command of this program names, and the programs that a bench measures.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, ensure};

/// What `cargo run` and `cargo test` set, and the build script of `ring` reads: after each change of it, whatever depends on
/// `ring` would be built again.
const SET_BY_CARGO: [&str; 7] = [
    "CARGO_MANIFEST_DIR",
    "CARGO_MANIFEST_LINKS",
    "CARGO_PKG_NAME",
    "CARGO_PKG_VERSION_MAJOR",
    "CARGO_PKG_VERSION_MINOR",
    "CARGO_PKG_VERSION_PATCH",
    "CARGO_PKG_VERSION_PRE",
];

/// Cargo at the root of the workspace, as a user calls it.
pub(crate) fn command(root: &Path) -> Command {
    let mut cargo = Command::new(env!("CARGO"));
    for name in SET_BY_CARGO {
        cargo.env_remove(name);
    }
    cargo.current_dir(root);
    cargo
}

/// A program that `cargo xtask bench` built beside this one.
pub(crate) fn release_program(name: &str) -> anyhow::Result<PathBuf> {
    let program = std::env::current_exe()?.with_file_name(name);
    ensure!(program.exists(), "{} is missing: `cargo xtask bench` builds it", program.display());
    Ok(program)
}

/// Runs `cargo test` with these arguments and variables, and says whether the tests pass. All crates are included, so
/// that nothing is built a second time with other features.
pub(crate) fn test(root: &Path, arguments: &[&str], env: &[(&str, &str)]) -> anyhow::Result<bool> {
    let status = command(root)
        .args(["test", "--workspace"])
        .args(arguments)
        .envs(env.iter().copied())
        .stdin(Stdio::null())
        .status();
    Ok(status.context("failed to start cargo")?.success())
}
