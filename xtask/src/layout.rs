//! `cargo xtask dist`: the program as it is shipped, with what a small flow calls side by side. A linker puts functions
//! down as they come, and the system maps whole windows around each that is called: two thousand functions, two
//! megabytes together, then hold ten. Here the linker is ourselves: it links, watches the program run, and links once more.
//! Watching is left to `trace`.

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod trace;
#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
mod trace {
    pub(super) fn called(_: &std::process::Command, _: &super::Functions) -> anyhow::Result<Vec<String>> {
        anyhow::bail!("programs can be watched on Linux on x86-64 alone")
    }
}

use std::collections::{BTreeMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context as _, ensure};
use cargo_metadata::MetadataCommand;
use object::{Object as _, ObjectSymbol as _, SymbolKind};

use crate::bench::chain;
use crate::e2e::build_by;

/// Under this name we are the linker.
const LINKER: &str = "inspan-linker";

/// What the program is watched at, with a short and a long flow in their folder. The first counts most.
const RUNS: &[&[&str]] = &[
    &["run", "short.yaml"],
    &["run", "--no-store", "--events", "-", "short.yaml"],
    &["run", "long.yaml"],
    &["check", "long.yaml"],
    &["ps"],
];

/// Nodes of the short and the long flow.
const SIZES: [(&str, usize); 2] = [("short.yaml", 2), ("long.yaml", 2_000)];

/// Functions of a program by their addresses in its file.
type Functions = BTreeMap<u64, String>;

/// Builds the program for release, and says where it is.
pub(crate) fn build(root: &Path) -> anyhow::Result<PathBuf> {
    let mut arguments: Vec<OsString> = ["--package", "inspan-cli", "--release"].map(OsString::from).to_vec();
    if cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        // A place that stays the same: the linker's path is among what cargo compares before it builds anew.
        let metadata = MetadataCommand::new().current_dir(root).no_deps().exec()?;
        let linker = metadata.target_directory.into_std_path_buf().join(LINKER);
        let own = std::env::current_exe().context("this program has no path")?;
        link_to(&own, &linker).with_context(|| format!("failed to write {}", linker.display()))?;
        let mut setting = OsString::from("-Clinker=");
        setting.push(&linker);
        arguments.extend(["--".into(), setting]);
    }
    build_by(root, "rustc", &arguments)
}

#[cfg(unix)]
fn link_to(own: &Path, linker: &Path) -> std::io::Result<()> {
    match std::fs::remove_file(linker) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        _ => std::os::unix::fs::symlink(own, linker),
    }
}

#[cfg(not(unix))]
fn link_to(_: &Path, _: &Path) -> std::io::Result<()> {
    Err(std::io::ErrorKind::Unsupported.into())
}

/// Links, if this program was called as a linker.
pub(crate) fn as_linker(mut arguments: impl Iterator<Item = OsString>) -> Option<anyhow::Result<ExitCode>> {
    let called_as = arguments.next()?;
    let is_linker = Path::new(&called_as).file_name() == Some(OsStr::new(LINKER));
    is_linker.then(|| link(&arguments.collect::<Vec<_>>()))
}

fn link(arguments: &[OsString]) -> anyhow::Result<ExitCode> {
    let mut linked = cc(arguments, &[])?;
    if linked && let Err(error) = lay_out(arguments) {
        // The program only takes more memory so; what the attempt left of it may not be whole.
        eprintln!("warning: the program's functions stay as they come: {error:#}");
        linked = cc(arguments, &[])?;
    }
    Ok(if linked { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Links once more, by what the program called.
fn lay_out(arguments: &[OsString]) -> anyhow::Result<()> {
    ensure!(arguments.iter().any(|argument| argument == "-fuse-ld=lld"), "the linker is not lld");
    let after = arguments.iter().skip_while(|argument| *argument != "-o").nth(1);
    let program = Path::new(after.context("the linker is not told where to")?);
    let functions = functions(program)?;
    let folder = tempfile::tempdir()?;
    for (name, size) in SIZES {
        std::fs::write(folder.path().join(name), chain(size))?;
    }
    let mut order = Vec::new();
    for run in RUNS {
        let mut command = Command::new(program);
        command.args(*run).env("INSPAN_HOME", folder.path()).current_dir(folder.path());
        order.extend(trace::called(&command, &functions)?);
    }
    let mut known = HashSet::new();
    order.retain(|name| known.insert(name.clone()));
    let listed = folder.path().join("order");
    std::fs::write(&listed, order.join("\n"))?;
    let mut by_order = OsString::from("-Wl,--no-warn-symbol-ordering,--symbol-ordering-file=");
    by_order.push(&listed);
    ensure!(cc(arguments, &[by_order])?, "it cannot be linked so");
    Ok(())
}

/// Calls the linker that rustc would have called.
fn cc(arguments: &[OsString], more: &[OsString]) -> anyhow::Result<bool> {
    let status = Command::new("cc").args(arguments).args(more).stdin(Stdio::null()).status();
    Ok(status.context("failed to start cc")?.success())
}

fn functions(program: &Path) -> anyhow::Result<Functions> {
    let bytes = std::fs::read(program)?;
    let file = object::File::parse(&*bytes)?;
    let functions = file
        .symbols()
        .filter(|symbol| symbol.kind() == SymbolKind::Text && symbol.is_definition() && symbol.size() > 0);
    let found: Functions =
        functions.filter_map(|symbol| Some((symbol.address(), symbol.name().ok()?.to_owned()))).collect();
    ensure!(!found.is_empty(), "{} names no functions", program.display());
    Ok(found)
}

#[cfg(all(test, target_os = "linux", target_arch = "x86_64"))]
mod tests {
    use std::hint::black_box;

    use super::*;

    #[inline(never)]
    fn called_by_each_thread() {
        black_box(());
    }

    #[inline(never)]
    fn called_by_nobody() {
        black_box(());
    }

    /// What the test below watches, in a process of its own.
    #[test]
    fn the_watched() {
        let threads = [(); 4].map(|()| std::thread::spawn(called_by_each_thread));
        for thread in threads {
            thread.join().unwrap();
        }
        black_box(called_by_nobody as fn());
    }

    #[test]
    fn a_function_is_found_once_if_it_is_called_and_else_not() {
        let own = std::env::current_exe().unwrap();
        let mut command = Command::new(&own);
        command.args(["--exact", "layout::tests::the_watched"]);
        let called = match trace::called(&command, &functions(&own).unwrap()) {
            Ok(called) => called,
            // Some systems let nobody watch; the program is built all the same.
            Err(error) => return assert!(error.to_string().contains("does not let"), "{error:#}"),
        };
        let times = |name: &str| called.iter().filter(|function| function.contains(name)).count();
        assert_eq!([times("called_by_each_thread"), times("called_by_nobody")], [1, 0]);
    }

    #[test]
    fn a_program_that_fails_is_told() {
        let own = std::env::current_exe().unwrap();
        let mut command = Command::new(&own);
        command.arg("--no-such-option");
        let error = trace::called(&command, &functions(&own).unwrap()).unwrap_err().to_string();
        assert!(error.contains("ended with 101") || error.contains("does not let"), "{error}");
    }
}
