//! Gets the vendor's real program, in one pinned version, into a folder outside the tree.
//! Running it is left to the cases.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, bail, ensure};
use serde_json::Value;

/// The version that the adapter is written for. When it moves, transcripts are captured again.
pub(crate) const VERSION: &str = "2.1.197";

const PACKAGE: &str = "@anthropic-ai/claude-code";

/// Where the program lies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Installed {
    /// The native program itself; npm's own link leads to a small script unless install scripts may run.
    pub(crate) program: PathBuf,
}

/// The folder for programs: `$INSPAN_E2E_CACHE`, else one of the user's caches.
#[expect(clippy::disallowed_methods, reason = "this is a command of its own, and reads its own environment")]
pub(crate) fn cache() -> anyhow::Result<PathBuf> {
    let named = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = named("INSPAN_E2E_CACHE")
        .or_else(|| Some(named("XDG_CACHE_HOME")?.join("inspan/e2e")))
        .or_else(|| Some(named("HOME")?.join(".cache/inspan/e2e")));
    let cache = cache.context("failed to find a cache folder: set INSPAN_E2E_CACHE")?;
    std::path::absolute(&cache).with_context(|| format!("failed to place {}", cache.display()))
}

/// The program in the cache; installed by npm if it is not there yet.
pub(crate) fn claude(cache: &Path) -> anyhow::Result<Installed> {
    let folder = cache.join(format!("claude-code-{VERSION}"));
    if let Some(installed) = find(&folder) {
        return Ok(installed);
    }
    // Installed beside and moved into place: a second run finds the whole program or none.
    let draft = cache.join(format!(".claude-code-{VERSION}.{}", std::process::id()));
    std::fs::create_dir_all(&draft).with_context(|| format!("failed to make {}", draft.display()))?;
    let installed = install(&draft).and_then(|()| place(&draft, &folder));
    if draft.exists() {
        std::fs::remove_dir_all(&draft).with_context(|| format!("failed to remove {}", draft.display()))?;
    }
    installed?;
    let found = find(&folder);
    let installed = found.with_context(|| format!("{} holds no native program", folder.display()))?;
    check_version(&installed.program)?;
    Ok(installed)
}

/// Install scripts stay off: the program comes in a package of its own for each platform, and nothing else of
/// the vendor's has to run here.
fn install(folder: &Path) -> anyhow::Result<()> {
    let npm = Command::new("npm")
        .args(["install", "--ignore-scripts", "--no-audit", "--no-fund", "--no-progress", "--prefix"])
        .arg(folder)
        .arg(format!("{PACKAGE}@{VERSION}"))
        .stdin(Stdio::null())
        .output()
        .context("failed to start npm, which comes with Node")?;
    ensure!(
        npm.status.success(),
        "npm could not install {PACKAGE}@{VERSION}:\n{}",
        String::from_utf8_lossy(&npm.stderr).trim()
    );
    Ok(())
}

fn place(draft: &Path, folder: &Path) -> anyhow::Result<()> {
    if find(folder).is_some() {
        return Ok(());
    }
    if folder.exists() {
        std::fs::remove_dir_all(folder).with_context(|| format!("failed to remove {}", folder.display()))?;
    }
    match std::fs::rename(draft, folder) {
        Err(_) if find(folder).is_some() => Ok(()),
        moved => moved.with_context(|| format!("failed to move the program to {}", folder.display())),
    }
}

/// The native program of the pinned version, if the folder holds it. npm puts in the package that fits this
/// machine and leaves the others out, so there is one at most.
fn find(folder: &Path) -> Option<Installed> {
    let vendor = folder.join("node_modules/@anthropic-ai");
    let packages = std::fs::read_dir(vendor).ok()?.flatten();
    packages
        .map(|package| package.path())
        .filter(|package| version_of(package).as_deref() == Some(VERSION))
        .map(|package| package.join("claude"))
        .find(|program| program.is_file())
        .map(|program| Installed { program })
}

fn version_of(package: &Path) -> Option<String> {
    let manifest = std::fs::read(package.join("package.json")).ok()?;
    let manifest: Value = serde_json::from_slice(&manifest).ok()?;
    manifest["version"].as_str().map(str::to_owned)
}

fn check_version(program: &Path) -> anyhow::Result<()> {
    let said = Command::new(program).arg("--version").stdin(Stdio::null()).output();
    let said = said.with_context(|| format!("failed to run {}", program.display()))?;
    let version = String::from_utf8_lossy(&said.stdout);
    if !version.trim_start().starts_with(VERSION) {
        bail!("{} says it is {:?}, not {VERSION}", program.display(), version.trim());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(folder: &Path, name: &str, version: &str, files: &[&str]) {
        let package = folder.join("node_modules/@anthropic-ai").join(name);
        std::fs::create_dir_all(&package).unwrap();
        std::fs::write(package.join("package.json"), format!(r#"{{"version":"{version}"}}"#)).unwrap();
        for file in files {
            std::fs::write(package.join(file), "").unwrap();
        }
    }

    #[test]
    fn only_the_native_program_of_the_pinned_version_is_taken() {
        let folder = tempfile::tempdir().unwrap();
        let found = || find(folder.path());
        assert_eq!(found(), None);
        package(folder.path(), "claude-code", VERSION, &["cli-wrapper.cjs"]);
        assert_eq!(found(), None);
        package(folder.path(), "claude-code-linux-x64", "2.1.1", &["claude"]);
        assert_eq!(found(), None);
        package(folder.path(), "claude-code-linux-x64", VERSION, &["claude"]);
        let program = folder.path().join("node_modules/@anthropic-ai/claude-code-linux-x64/claude");
        assert_eq!(found(), Some(Installed { program }));
    }
}
