//! Calls of cargo: building the program, and running the tests that a command of this program names.

use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, bail};
use cargo_metadata::Message;

/// Builds `inspan` for release, with the features of the whole workspace, and returns its path.
pub(crate) fn build_release(root: &Path) -> anyhow::Result<PathBuf> {
    let mut cargo = Command::new(env!("CARGO"))
        .args(["build", "--quiet", "--release", "--bin", "inspan"])
        .arg("--message-format=json-render-diagnostics")
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

/// Runs `cargo test` with these arguments and variables, and says whether the tests pass. All crates are included, so
/// that nothing is built a second time with other features.
pub(crate) fn test(root: &Path, arguments: &[&str], env: &[(&str, &str)]) -> anyhow::Result<bool> {
    let status = Command::new(env!("CARGO"))
        .arg("test")
        .args(arguments)
        .envs(env.iter().copied())
        .current_dir(root)
        .stdin(Stdio::null())
        .status();
    Ok(status.context("failed to start cargo")?.success())
}
