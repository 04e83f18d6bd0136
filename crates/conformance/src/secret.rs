//! The key that every call gets and that no artefact may show.

use std::path::Path;

use crate::finding::{CheckResult, Difference, holds};

/// The key in the environment of every call; nothing that a provider returns or stores may contain it.
pub const PLANTED: &str = "sk-ant-api03-planted-0f6b1c9e4d7a42d8-not-a-key";

/// As much of it as a program might show.
fn part() -> &'static str {
    &PLANTED[13..37]
}

/// Fails if the text shows the key.
pub(crate) fn none_in(what: &str, text: &str) -> CheckResult {
    holds(!text.contains(part()), || format!("the planted key shows in {what}"))
}

/// Fails if a file below the folder shows the key.
pub(crate) fn none_below(folder: &Path) -> CheckResult {
    let unread = |error: std::io::Error| {
        Difference::from("the folder of stored files cannot be read").with(error.to_string())
    };
    let entries = std::fs::read_dir(folder).map_err(unread)?;
    for entry in entries.flatten() {
        let path = entry.path();
        if path.is_dir() {
            none_below(&path)?;
        } else if let Ok(bytes) = std::fs::read(&path) {
            let shows = bytes.windows(part().len()).any(|window| window == part().as_bytes());
            let name = path.extension().unwrap_or_default().to_string_lossy().into_owned();
            holds(!shows, || format!("the planted key shows in a file of the kind `{name}`"))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_planted_key_is_found_in_any_file() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("deep")).unwrap();
        std::fs::write(folder.path().join("deep/a.json"), "{}").unwrap();
        assert_eq!(none_below(folder.path()), Ok(()));
        std::fs::write(folder.path().join("deep/b.json"), format!("x{PLANTED}y")).unwrap();
        let found = none_below(folder.path()).unwrap_err().to_string();
        assert_eq!(found, "the planted key shows in a file of the kind `json`");
    }
}
