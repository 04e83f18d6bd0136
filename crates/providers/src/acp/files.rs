//! The files that an agent reads and writes through us: text files within its working directory, of a bounded size.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::OFlags;

use super::wire::{ReadFile, WriteFile};

/// The largest file that is read or written, in bytes.
const LIMIT: usize = 10 * 1024 * 1024;

/// The code for a file that is not there.
const NOT_FOUND: i64 = -32002;
/// The code for a request that cannot be served as it is.
pub(super) const INVALID: i64 = -32602;
/// The code for a request that failed.
pub(super) const FAILED: i64 = -32603;

/// Why a request of the agent was not served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) code: i64,
    pub(super) message: String,
}

impl Refusal {
    pub(super) fn new(code: i64, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }
}

/// Where a path that an agent names leads, if that is within `root`, which is a path without links. What is not there
/// yet leads where it would be made.
///
/// A well-behaved agent stays within its folder by this. A malicious agent has the same rights as we do, and does not
/// need this interface.
pub(super) fn within(root: &Path, path: &str) -> Result<PathBuf, Refusal> {
    let named = Path::new(path);
    let outside =
        || Refusal::new(INVALID, format!("{path} is outside of the working directory {}", root.display()));
    if !named.is_absolute() {
        return Err(Refusal::new(INVALID, format!("{path} is not an absolute path")));
    }
    if path.contains('\0') || named.components().any(|part| part == Component::ParentDir) {
        return Err(outside());
    }
    let mut missing = Vec::new();
    let mut there = named;
    let found = loop {
        match there.canonicalize() {
            Ok(found) => break found,
            // The target of a broken link could be created later.
            Err(_) if there.symlink_metadata().is_ok() => return Err(outside()),
            Err(_) => {
                missing.push(there.file_name().ok_or_else(outside)?);
                there = there.parent().ok_or_else(outside)?;
            }
        }
    };
    let mut path = found;
    path.extend(missing.into_iter().rev());
    if path.starts_with(root) { Ok(path) } else { Err(outside()) }
}

/// The text of a file, or the lines of it that are wanted. Blocks.
pub(super) fn read(root: &Path, wanted: &ReadFile) -> Result<String, Refusal> {
    let path = within(root, &wanted.path)?;
    let failed = |error: &std::io::Error| {
        let code = if error.kind() == std::io::ErrorKind::NotFound { NOT_FOUND } else { FAILED };
        Refusal::new(code, format!("cannot read {}: {error}", wanted.path))
    };
    let mut options = OpenOptions::new();
    options.read(true);
    let file = open(&path, &mut options).map_err(|error| failed(&error))?;
    check(&file, &wanted.path)?;
    let mut bytes = Vec::new();
    file.take(LIMIT as u64 + 1).read_to_end(&mut bytes).map_err(|error| failed(&error))?;
    if bytes.len() > LIMIT {
        return Err(too_large(&wanted.path));
    }
    let text = String::from_utf8(bytes)
        .map_err(|_| Refusal::new(FAILED, format!("{} is not UTF-8 text", wanted.path)))?;
    if wanted.line.is_none() && wanted.limit.is_none() {
        return Ok(text);
    }
    let number = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
    let first = number(wanted.line.unwrap_or(1)).saturating_sub(1);
    let count = wanted.limit.map_or(usize::MAX, number);
    Ok(text.split_inclusive('\n').skip(first).take(count).collect())
}

/// Writes a file, and the folders that it needs. Blocks.
pub(super) fn write(root: &Path, wanted: &WriteFile) -> Result<(), Refusal> {
    if wanted.content.len() > LIMIT {
        return Err(too_large(&wanted.path));
    }
    let path = within(root, &wanted.path)?;
    let failed =
        |error: &std::io::Error| Refusal::new(FAILED, format!("cannot write {}: {error}", wanted.path));
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).map_err(|error| failed(&error))?;
    }
    let mut options = OpenOptions::new();
    options.write(true).create(true);
    let mut file = open(&path, &mut options).map_err(|error| failed(&error))?;
    check(&file, &wanted.path)?;
    file.set_len(0).and_then(|()| file.write_all(wanted.content.as_bytes())).map_err(|error| failed(&error))
}

/// Opens a path that has no links, and still has none.
fn open(path: &Path, options: &mut OpenOptions) -> std::io::Result<File> {
    // Opening a pipe without a writer would block forever.
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY).bits();
    options.custom_flags(flags.cast_signed()).open(path)
}

fn check(file: &File, path: &str) -> Result<(), Refusal> {
    match file.metadata() {
        Ok(metadata) if metadata.is_file() => Ok(()),
        _ => Err(Refusal::new(INVALID, format!("{path} is not a file"))),
    }
}

fn too_large(path: &str) -> Refusal {
    Refusal::new(INVALID, format!("{path} is larger than {} MiB", LIMIT / 1024 / 1024))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Folder {
        all: tempfile::TempDir,
        root: PathBuf,
    }

    impl Folder {
        fn new() -> Self {
            let all = tempfile::tempdir().unwrap();
            let root = all.path().canonicalize().unwrap().join("work");
            std::fs::create_dir_all(root.join("sub")).unwrap();
            std::fs::write(root.join("a.txt"), "one\ntwo\r\nthree").unwrap();
            std::fs::write(all.path().join("secret"), "planted").unwrap();
            std::fs::create_dir(all.path().join("workshop")).unwrap();
            Self { all, root }
        }

        fn path(&self, name: &str) -> String {
            self.root.join(name).display().to_string()
        }

        fn link(&self, name: &str, to: &Path) {
            std::os::unix::fs::symlink(to, self.root.join(name)).unwrap();
        }

        fn read(&self, path: &str, line: Option<u64>, limit: Option<u64>) -> Result<String, Refusal> {
            read(&self.root, &ReadFile { path: path.to_owned(), line, limit })
        }

        fn write(&self, path: &str, content: &str) -> Result<(), Refusal> {
            write(&self.root, &WriteFile { path: path.to_owned(), content: content.to_owned() })
        }
    }

    #[test]
    fn files_within_are_read_and_written() {
        let folder = Folder::new();
        let path = folder.path("a.txt");
        let rows = [
            (None, None, "one\ntwo\r\nthree"),
            (Some(2), None, "two\r\nthree"),
            (Some(2), Some(1), "two\r\n"),
            (None, Some(1), "one\n"),
            (Some(0), Some(1), "one\n"),
            (Some(9), None, ""),
            (Some(u64::MAX), Some(u64::MAX), ""),
        ];
        for (line, limit, expected) in rows {
            assert_eq!(folder.read(&path, line, limit).unwrap(), expected, "{line:?} {limit:?}");
        }
        folder.write(&folder.path("new/deep/b.txt"), "b").unwrap();
        folder.write(&path, "1").unwrap();
        assert_eq!(folder.read(&folder.path("new/deep/b.txt"), None, None).unwrap(), "b");
        assert_eq!(folder.read(&path, None, None).unwrap(), "1");
        folder.link("inner", &folder.root.join("sub"));
        folder.write(&folder.path("inner/c.txt"), "c").unwrap();
        assert_eq!(std::fs::read_to_string(folder.root.join("sub/c.txt")).unwrap(), "c");
    }

    #[test]
    fn nothing_outside_is_read_or_written() {
        let folder = Folder::new();
        let outside = folder.all.path().canonicalize().unwrap();
        folder.link("out", &outside);
        folder.link("file", &outside.join("secret"));
        folder.link("nowhere", &outside.join("not-yet"));
        folder.link("loop", &folder.root.join("loop"));
        let paths = [
            outside.join("secret").display().to_string(),
            outside.join("workshop/x").display().to_string(),
            folder.path("../secret"),
            folder.path("sub/../../secret"),
            folder.path("new/../../../secret"),
            folder.path("out/secret"),
            folder.path("out/new/x"),
            folder.path("file"),
            folder.path("nowhere"),
            folder.path("loop/x"),
            "a.txt".to_owned(),
            format!("{}\0", folder.path("a.txt")),
            "/etc/passwd".to_owned(),
            String::new(),
        ];
        for path in paths {
            assert_eq!(folder.read(&path, None, None).unwrap_err().code, INVALID, "{path}");
            assert_eq!(folder.write(&path, "x").unwrap_err().code, INVALID, "{path}");
        }
        let mut left: Vec<_> =
            std::fs::read_dir(&outside).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, ["secret", "work", "workshop"]);
        assert_eq!(std::fs::read_to_string(outside.join("secret")).unwrap(), "planted");
    }

    #[test]
    fn what_is_no_text_file_of_a_decent_size_is_refused() {
        let folder = Folder::new();
        let (big, binary, pipe) = (folder.path("big"), folder.path("binary"), folder.path("pipe"));
        File::create(&big).unwrap().set_len(LIMIT as u64 + 1).unwrap();
        std::fs::write(&binary, b"\xff\xfe").unwrap();
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let rows = [
            (big.as_str(), INVALID),
            (binary.as_str(), FAILED),
            (pipe.as_str(), INVALID),
            (&folder.path("sub"), INVALID),
            (&folder.path("none"), NOT_FOUND),
            (&folder.path("a.txt/x"), FAILED),
        ];
        for (path, code) in rows {
            assert_eq!(folder.read(path, None, None).unwrap_err().code, code, "{path}");
        }
        let refused = [folder.write(&folder.path("huge"), &"x".repeat(LIMIT + 1)), folder.write(&pipe, "x")];
        assert!(refused.iter().all(Result::is_err), "{refused:?}");
        assert!(!folder.root.join("huge").exists());
    }
}
