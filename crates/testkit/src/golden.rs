//! Compares what came out with a golden file, whole, and rewrites the file when asked to bless.

use std::path::Path;

use similar::TextDiff;

use crate::fixtures::{FixtureError, read_text};

/// Set to `1` to rewrite golden files instead of comparing.
const BLESS: &str = "INSPAN_BLESS";

/// What to do with a golden file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GoldenMode {
    /// Compare, and report a difference.
    Check,
    /// Write what came out.
    Bless,
}

impl GoldenMode {
    /// As the environment variable `INSPAN_BLESS` says.
    #[expect(
        clippy::disallowed_methods,
        reason = "the one switch of all golden tests, which have no command line"
    )]
    pub fn from_env() -> Self {
        if std::env::var_os(BLESS).is_some_and(|value| value == "1") { Self::Bless } else { Self::Check }
    }
}

/// Compares or blesses, as the environment says; see [`compare_golden`].
pub fn check_golden(path: impl AsRef<Path>, actual: &str) -> Result<(), FixtureError> {
    compare_golden(path, actual, GoldenMode::from_env())
}

/// Compares the whole text of a golden file with `actual`, or writes it. A missing file counts as an empty one
/// when comparing; folders on its way are made when blessing. A file that is right already is not touched.
pub fn compare_golden(path: impl AsRef<Path>, actual: &str, mode: GoldenMode) -> Result<(), FixtureError> {
    let path = path.as_ref();
    let expected = match read_text(path) {
        Ok(text) => Some(text),
        Err(FixtureError::File { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => None,
        Err(error) => return Err(error),
    };
    match mode {
        _ if expected.as_deref() == Some(actual) => Ok(()),
        GoldenMode::Bless => write(path, actual),
        GoldenMode::Check => {
            let expected = expected.unwrap_or_default();
            let diff = TextDiff::from_lines(expected.as_str(), actual);
            let diff = diff.unified_diff().context_radius(3).to_string();
            Err(FixtureError::Differs { path: path.to_path_buf(), diff })
        }
    }
}

fn write(path: &Path, text: &str) -> Result<(), FixtureError> {
    let folder = path.parent().unwrap_or(Path::new("."));
    std::fs::create_dir_all(folder)
        .and_then(|()| std::fs::write(path, text))
        .map_err(|source| FixtureError::File { path: path.to_path_buf(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_is_shown_line_by_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("golden.txt");
        std::fs::write(&path, "one\ntwo\nthree\n").unwrap();
        assert!(compare_golden(&path, "one\ntwo\nthree\n", GoldenMode::Check).is_ok());
        let message = compare_golden(&path, "one\n2\nthree", GoldenMode::Check).unwrap_err().to_string();
        let expected = format!(
            "{} is not what came out (INSPAN_BLESS=1 accepts it; - expected, + actual)\n{}",
            path.display(),
            "@@ -1,3 +1,3 @@\n one\n-two\n-three\n+2\n+three\n\\ No newline at end of file\n"
        );
        assert_eq!(message, expected);
    }

    #[test]
    fn blessing_writes_and_makes_folders() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new/case/golden.txt");
        assert!(compare_golden(&path, "text\n", GoldenMode::Check).is_err());
        assert!(!path.exists(), "checking writes nothing");
        compare_golden(&path, "text\n", GoldenMode::Bless).unwrap();
        assert_eq!(read_text(&path).unwrap(), "text\n");
        assert!(compare_golden(&path, "text\n", GoldenMode::Check).is_ok());
    }

    #[test]
    fn an_empty_golden_is_not_a_missing_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("empty.txt");
        assert!(compare_golden(&path, "", GoldenMode::Check).is_err());
        std::fs::write(&path, "").unwrap();
        assert!(compare_golden(&path, "", GoldenMode::Check).is_ok());
    }
}
