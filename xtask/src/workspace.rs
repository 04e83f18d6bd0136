//! The files of the workspace, read once, its packages as cargo knows them, Rust text as the checks see it, and its
//! tests.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::Context as _;
use cargo_metadata::{DependencyKind, MetadataCommand};
use walkdir::{DirEntry, WalkDir};

/// Folders with files that tools make and nobody edits.
const GENERATED: &[&str] = &["target", "node_modules"];
/// Dot folders that are ours.
const DOT_FOLDERS: &[&str] = &[".ci", ".cargo", ".github"];
/// Endings of the files whose text the checks read.
const TEXTS: &[&str] = &["rs", "md", "toml", "ts", "yaml", "yml", "json"];

/// One file of the tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct File {
    /// Relative to the root, with `/` on every system.
    pub(crate) path: String,
    /// Empty for files no check reads, such as pictures and transcripts.
    pub(crate) text: String,
}

impl File {
    /// The part of the path after the last `/`.
    pub(crate) fn name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or(&self.path)
    }

    /// Whether the whole file is test code: an integration test, or tests moved out of the file they test.
    pub(crate) fn is_test(&self) -> bool {
        self.path.contains("/tests/") || self.name() == "tests.rs"
    }
}

/// Every file of the tree, sorted by path.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Workspace {
    pub(crate) files: Vec<File>,
}

impl Workspace {
    /// Reads the tree under `root`.
    pub(crate) fn read(root: &Path) -> anyhow::Result<Self> {
        let mut files = Vec::new();
        for entry in WalkDir::new(root).sort_by_file_name().into_iter().filter_entry(is_ours) {
            let entry = entry.context("failed to walk the workspace")?;
            if !entry.file_type().is_file() {
                continue;
            }
            let relative = entry.path().strip_prefix(root).context("failed to place a file")?;
            let parts: Vec<_> = relative.iter().map(|part| part.to_string_lossy()).collect();
            let ending = relative.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
            let text = if TEXTS.contains(&ending) {
                let bytes = std::fs::read(entry.path())
                    .with_context(|| format!("failed to read {}", parts.join("/")))?;
                // A fixture may be broken on purpose; what is not UTF-8 cannot break a rule about text.
                String::from_utf8_lossy(&bytes).into_owned()
            } else {
                String::new()
            };
            files.push(File { path: parts.join("/"), text });
        }
        Ok(Self { files })
    }

    /// The text of the file at `path`, if it is there.
    pub(crate) fn text(&self, path: &str) -> Option<&str> {
        self.files.iter().find(|file| file.path == path).map(|file| file.text.as_str())
    }

    /// The Rust files.
    pub(crate) fn rust(&self) -> impl Iterator<Item = &File> {
        self.ending(".rs")
    }

    /// The documents.
    pub(crate) fn documents(&self) -> impl Iterator<Item = &File> {
        self.ending(".md")
    }

    fn ending<'a>(&'a self, ending: &'a str) -> impl Iterator<Item = &'a File> {
        self.files.iter().filter(move |file| file.path.ends_with(ending))
    }

    /// A tree that exists only in a test.
    #[cfg(test)]
    pub(crate) fn of(files: &[(&str, &str)]) -> Self {
        let file = |&(path, text): &(&str, &str)| File { path: path.to_owned(), text: text.to_owned() };
        Self { files: files.iter().map(file).collect() }
    }
}

/// The root of the workspace this program was built from.
pub(crate) fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_owned()
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

fn is_ours(entry: &DirEntry) -> bool {
    let name = entry.file_name().to_string_lossy();
    let hidden = entry.depth() > 0 && name.starts_with('.') && !DOT_FOLDERS.contains(&name.as_ref());
    let folder = entry.file_type().is_dir();
    !(folder && (hidden || GENERATED.contains(&name.as_ref())))
}

/// One package of the workspace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Package {
    pub(crate) name: String,
    /// The path of its `Cargo.toml`, relative to the root.
    pub(crate) manifest: String,
    pub(crate) dependencies: Vec<Dependency>,
}

/// One line of a package's manifest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Dependency {
    pub(crate) name: String,
    /// The name by which Rust code mentions it.
    pub(crate) in_code: String,
    pub(crate) tests_only: bool,
}

/// Asks cargo for the packages of the workspace under `root`, without touching the network.
pub(crate) fn packages(root: &Path) -> anyhow::Result<Vec<Package>> {
    let metadata = MetadataCommand::new()
        .manifest_path(root.join("Cargo.toml"))
        .no_deps()
        .other_options(["--offline".to_owned()])
        .exec()
        .context("failed to ask cargo for the workspace's packages")?;
    let mut packages = Vec::new();
    for package in metadata.packages {
        let manifest = package
            .manifest_path
            .strip_prefix(&metadata.workspace_root)
            .with_context(|| format!("failed to place the manifest of {}", package.name))?;
        let dependencies = package.dependencies.iter().map(|dependency| Dependency {
            name: dependency.name.clone(),
            in_code: dependency.rename.as_ref().unwrap_or(&dependency.name).replace('-', "_"),
            tests_only: dependency.kind == DependencyKind::Development,
        });
        packages.push(Package {
            name: package.name.to_string(),
            manifest: manifest.as_str().replace('\\', "/"),
            dependencies: dependencies.collect(),
        });
    }
    packages.sort_by(|one, other| one.manifest.cmp(&other.manifest));
    Ok(packages)
}

/// The number of lines before the test module that closes the file, or all lines where there is none.
/// `mod tests;` names another file and cuts nothing off.
pub(crate) fn lines_before_tests(text: &str) -> usize {
    let lines: Vec<&str> = text.lines().collect();
    let tail = lines.iter().enumerate().find(|(index, line)| {
        let mut after = lines[index + 1..].iter().skip_while(|next| next.starts_with("#["));
        line.trim_end() == "#[cfg(test)]"
            && after.next().is_some_and(|next| next.starts_with("mod ") && next.trim_end().ends_with('{'))
    });
    tail.map_or(lines.len(), |(index, _)| index)
}

/// Whether `word` is in `text` between characters that cannot belong to a Rust path segment.
pub(crate) fn mentions(text: &str, word: &str) -> bool {
    let is_ident = |c: char| c.is_alphanumeric() || c == '_';
    text.match_indices(word).any(|(at, _)| {
        let before = text[..at].chars().next_back();
        let after = text[at + word.len()..].chars().next();
        let open_left = word.starts_with(is_ident) && before.is_some_and(is_ident);
        let open_right = word.ends_with(is_ident) && after.is_some_and(is_ident);
        !open_left && !open_right
    })
}

#[cfg(test)]
mod tests {
    use super::{lines_before_tests, mentions};

    #[test]
    fn cuts_the_tests_at_the_end_only() {
        let cases = [
            ("a\nb\n", 2),
            ("a\n#[cfg(test)]\nmod tests {\n}\n", 1),
            ("a\n#[cfg(test)]\n#[path = \"x\"]\nmod tests {\n}\n", 1),
            ("a\n#[cfg(test)]\nmod tests;\n", 3),
            ("a\n#[cfg(test)]\nfn only_here() {}\nb\n", 4),
        ];
        let got = cases.map(|(text, _)| lines_before_tests(text));
        assert_eq!(got, cases.map(|(_, expected)| expected));
    }

    #[test]
    fn finds_whole_words() {
        let cases = [
            ("operand::x", "rand::", false),
            ("rand::x", "rand::", true),
            ("tokio_util::x", "tokio::", false),
            ("is_async fn", "async", false),
            ("async fn", "async", true),
            ("asynchronous", "async", false),
            ("f().await?", ".await", true),
            ("f().awaited", ".await", false),
        ];
        let got = cases.map(|(text, word, _)| mentions(text, word));
        assert_eq!(got, cases.map(|(_, _, expected)| expected));
    }
}
