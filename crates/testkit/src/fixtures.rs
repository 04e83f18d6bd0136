//! Finds and reads the workspace's fixtures.

use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;

/// A small MCP server for `/bin/sh`, so that a test has a real process at the other end of the pipes. Its tools are
/// `count`, `die`, `error`, `fail`, `hang`, `huge`, `lie`, `picture`, `say`, `secret`, `slow` and `strange.name`. In its
/// working directory, `herd.log` has a line for each call of `count` and `hang`, `herd.pids` the ids of its processes.
pub const MCP_SERVER: &str = include_str!("mcp_server.sh");

/// Why a fixture cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FixtureError {
    /// The file or folder cannot be read or written.
    #[error("fixture {}: {source}", path.display())]
    File {
        /// The file or folder.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file is not what it should be.
    #[error("fixture {} line {line}: {source}", path.display())]
    Parse {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
        /// Why.
        source: serde_json::Error,
    },
    /// A golden file and the actual text differ.
    #[error("{} is not what came out (INSPAN_BLESS=1 accepts it; - expected, + actual)\n{diff}", path.display())]
    Differs {
        /// The golden file.
        path: PathBuf,
        /// Both texts side by side, in lines with `-` and `+`.
        diff: String,
    },
}

/// The workspace's `fixtures/` folder.
pub fn fixture_dir() -> PathBuf {
    let crate_dir = Path::new(env!("CARGO_MANIFEST_DIR"));
    crate_dir.ancestors().nth(2).unwrap_or(crate_dir).join("fixtures")
}

/// The whole text of a file.
pub fn read_text(path: impl AsRef<Path>) -> Result<String, FixtureError> {
    let path = path.as_ref();
    std::fs::read_to_string(path).map_err(|source| FixtureError::File { path: path.to_path_buf(), source })
}

/// A file that holds one JSON value.
pub fn read_json<T: DeserializeOwned>(path: impl AsRef<Path>) -> Result<T, FixtureError> {
    let path = path.as_ref();
    serde_json::from_str(&read_text(path)?).map_err(|source| FixtureError::Parse {
        path: path.to_path_buf(),
        line: source.line(),
        source,
    })
}

/// A file that holds one JSON value on each line; empty lines are skipped.
pub fn read_jsonl<T: DeserializeOwned>(path: impl AsRef<Path>) -> Result<Vec<T>, FixtureError> {
    let path = path.as_ref();
    let text = read_text(path)?;
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    lines
        .map(|(index, line)| {
            serde_json::from_str(line).map_err(|source| FixtureError::Parse {
                path: path.to_path_buf(),
                line: index + 1,
                source,
            })
        })
        .collect()
}

/// The folders directly within `folder`, sorted by name: one per case.
pub fn case_folders(folder: impl AsRef<Path>) -> Result<Vec<PathBuf>, FixtureError> {
    let folder = folder.as_ref();
    let file_error = |source| FixtureError::File { path: folder.to_path_buf(), source };
    let mut cases = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(file_error)? {
        let path = entry.map_err(file_error)?.path();
        if path.is_dir() {
            cases.push(path);
        }
    }
    cases.sort();
    Ok(cases)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fixture_folder_stands_in_the_workspace_root() {
        let root = fixture_dir().parent().map(Path::to_path_buf).unwrap();
        assert!(root.join("Cargo.lock").is_file(), "{} is not the workspace", root.display());
    }

    #[test]
    fn lines_are_read_and_a_broken_one_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.jsonl");
        std::fs::write(&path, "1\n\n2\n").unwrap();
        assert_eq!(read_jsonl::<u8>(&path).unwrap(), [1, 2]);
        std::fs::write(&path, "1\n\n{\n").unwrap();
        let message = read_jsonl::<u8>(&path).unwrap_err().to_string();
        let expected = "line 3: invalid type: map, expected u8 at line 1 column 0";
        assert_eq!(message, format!("fixture {} {expected}", path.display()));
    }

    #[test]
    fn a_value_is_read_and_a_broken_one_is_placed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.json");
        std::fs::write(&path, "[1,\n2]").unwrap();
        assert_eq!(read_json::<Vec<u8>>(&path).unwrap(), [1, 2]);
        std::fs::write(&path, "[1,\n}").unwrap();
        let message = read_json::<Vec<u8>>(&path).unwrap_err().to_string();
        assert_eq!(message, format!("fixture {} line 2: expected value at line 2 column 1", path.display()));
    }

    #[test]
    fn case_folders_are_sorted_and_files_passed_over() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["b", "a", "c"] {
            std::fs::create_dir(folder.path().join(name)).unwrap();
        }
        std::fs::write(folder.path().join("README.md"), "").unwrap();
        let expected = ["a", "b", "c"].map(|name| folder.path().join(name));
        assert_eq!(case_folders(folder.path()).unwrap(), expected);
        let missing = folder.path().join("missing");
        assert!(case_folders(&missing).unwrap_err().to_string().contains(&missing.display().to_string()));
    }
}
