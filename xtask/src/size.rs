//! How long a file may be.

use crate::tidy::TidyFinding;
use crate::workspace::{Workspace, lines_before_tests};

/// Lines before the tests from which a file asks for a look, and from which it is refused.
const LOOK: usize = 400;
const REFUSE: usize = 600;
/// The map stays short enough to be read in one go.
const MAP: (&str, usize) = ("ARCHITECTURE.md", 300);

/// Measures every Rust file outside the tests, and the map.
pub(crate) fn check(workspace: &Workspace) -> Vec<TidyFinding> {
    let mut findings = Vec::new();
    for file in workspace.rust().filter(|file| !file.is_test()) {
        let lines = lines_before_tests(&file.text);
        if lines > REFUSE {
            let sentence = format!("{lines} lines before its tests: divide it, {REFUSE} is the most");
            findings.push(TidyFinding::broken(&file.path, sentence));
        } else if lines > LOOK {
            let sentence = format!("{lines} lines before its tests: look whether it holds two things");
            findings.push(TidyFinding::look(&file.path, sentence));
        }
    }
    let (path, most) = MAP;
    match workspace.text(path).map(|text| text.lines().count()) {
        None => findings.push(TidyFinding::broken(path, "the map of the workspace is missing: write it")),
        Some(lines) if lines >= most => {
            let sentence = format!("{lines} lines: move detail to docs/, a map stays under {most}");
            findings.push(TidyFinding::broken(path, sentence));
        }
        Some(_) => {}
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::check;
    use crate::workspace::Workspace;

    fn sentences(files: &[(&str, &str)]) -> Vec<String> {
        check(&Workspace::of(files)).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn measures_what_stands_before_the_tests() {
        let lines = "x\n".repeat(400);
        let tests = format!("{lines}#[cfg(test)]\nmod tests {{\n{lines}}}\n");
        let (more, most, over) = ("x\n".repeat(401), "x\n".repeat(600), "x\n".repeat(601));
        let files = [
            ("a.rs", lines.as_str()),
            ("b.rs", &tests),
            ("c.rs", &more),
            ("d.rs", &most),
            ("e.rs", &over),
            ("e/tests.rs", &over),
            ("crates/a/tests/e.rs", &over),
            ("ARCHITECTURE.md", "map"),
        ];
        let expected = [
            "note: c.rs: 401 lines before its tests: look whether it holds two things",
            "note: d.rs: 600 lines before its tests: look whether it holds two things",
            "e.rs: 601 lines before its tests: divide it, 600 is the most",
        ];
        assert_eq!(sentences(&files), expected);
    }

    #[test]
    fn the_map_is_there_and_short() {
        let long = "x\n".repeat(300);
        assert_eq!(sentences(&[]), ["ARCHITECTURE.md: the map of the workspace is missing: write it"]);
        let expected = ["ARCHITECTURE.md: 300 lines: move detail to docs/, a map stays under 300"];
        assert_eq!(sentences(&[("ARCHITECTURE.md", &long)]), expected);
    }
}
