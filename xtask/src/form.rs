//! The first line of every file, the names of files and types, and what no file may say.

mod names;

use crate::tidy::TidyFinding;
use crate::workspace::{File, Workspace, lines_before_tests};

/// Names that say nothing about what a file holds.
const VAGUE: &[&str] = &["util", "utils", "helper", "helpers", "common", "manager", "misc"];

/// Attributes that are refused everywhere, tests included, and what to do instead. Clippy refuses `#[allow(…)]`, `todo!`
/// and `unimplemented!`.
const REFUSED: &[(&str, &str)] = &[
    ("#![allow(", "say `#![expect(…, reason = \"…\")]`, which fails when it is no longer needed"),
    ("#[ignore", "a test that does not run proves nothing: make it run, or remove it"),
    ("#[should_panic", "compare the error's value, so that another panic cannot pass for it"),
];

/// What `lib.rs` does not say, since it is a table of contents.
const NOT_IN_LIB: &[(&str, &str)] = &[
    ("pub mod ", "keep the module private and re-export its public names one by one"),
    ("::*;", "name each thing that is public, so that the file can be read as a table of contents"),
];

/// Crates whose public modules group their names: the one that only passes on what others hold, and the one whose
/// functions are read with their module (`format::dollars`, `look::word`).
const GROUPED: [&str; 2] = ["crates/inspan/src/lib.rs", "crates/view/src/lib.rs"];

/// Folders of the home folders of people. `/home/dev` is the neutral name in transcripts.
const HOMES: &[&str] = &["/home/", "/Users/", "\\Users\\"];
const NOBODY: &str = "/home/dev";

/// Checks every Rust file and every document.
pub(crate) fn check(workspace: &Workspace) -> Vec<TidyFinding> {
    let mut findings = Vec::new();
    for file in workspace.rust() {
        findings.extend(check_name(file));
        if !file.text.starts_with("//!") {
            let sentence = "say in a first `//!` line what the file is for";
            findings.push(TidyFinding::broken(&file.path, sentence));
        }
        findings.extend(check_lines(file, file.text.lines(), |line, word| line.starts_with(word), REFUSED));
        if file.name() == "lib.rs" && !GROUPED.contains(&file.path.as_str()) {
            let contents = file.text.lines().take(lines_before_tests(&file.text));
            let says = |line: &str, word: &str| !line.starts_with("//") && line.contains(word);
            findings.extend(check_lines(file, contents, says, NOT_IN_LIB));
        }
    }
    let written = |file: &&File| !file.path.starts_with("fixtures/");
    for file in workspace.rust().chain(workspace.documents()).filter(written) {
        findings.extend(check_homes(file));
    }
    findings.extend(names::check(workspace));
    findings
}

fn check_name(file: &File) -> Vec<TidyFinding> {
    let mut findings = Vec::new();
    if file.name() == "mod.rs" {
        let sentence = "put the module into `foo.rs` beside its folder `foo/`, so that editors show its name";
        findings.push(TidyFinding::broken(&file.path, sentence));
    }
    let mut parts = file.path.strip_suffix(".rs").unwrap_or(&file.path).split('/');
    if let Some(name) = parts.find(|part| VAGUE.contains(part)) {
        let sentence =
            format!("`{name}` says nothing about what is inside: name it after the thing it holds");
        findings.push(TidyFinding::broken(&file.path, sentence));
    }
    findings
}

/// The lines that say one of the words; the space before a line does not count.
fn check_lines<'a>(
    file: &File,
    lines: impl Iterator<Item = &'a str>,
    says: fn(&str, &str) -> bool,
    words: &[(&str, &str)],
) -> Vec<TidyFinding> {
    let mut findings = Vec::new();
    for (index, line) in lines.enumerate() {
        for (word, instead) in words.iter().filter(|(word, _)| says(line.trim_start(), word)) {
            let sentence = format!("`{}` is refused here: {instead}", word.trim());
            findings.push(TidyFinding::broken(format!("{}:{}", file.path, index + 1), sentence));
        }
    }
    findings
}

fn check_homes(file: &File) -> Vec<TidyFinding> {
    let lives = |line: &str| {
        HOMES.iter().any(|home| {
            line.match_indices(home).any(|(at, _)| {
                let after = line[at + home.len()..].chars().next();
                after.is_some_and(char::is_alphanumeric) && !line[at..].starts_with(NOBODY)
            })
        })
    };
    let lines = file.text.lines().enumerate().filter(|(_, line)| lives(line));
    let sentence =
        "a home folder of one machine is named: make the path relative, or take it from the caller";
    lines.map(|(index, _)| TidyFinding::broken(format!("{}:{}", file.path, index + 1), sentence)).collect()
}

#[cfg(test)]
mod tests {
    use super::check;
    use crate::workspace::Workspace;

    fn sentences(path: &str, text: &str) -> Vec<String> {
        check(&Workspace::of(&[(path, text)])).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn names_and_openings() {
        let cases = [
            ("crates/a/src/id.rs", "//! Owns.\n", vec![]),
            (
                "crates/a/src/id.rs",
                "// Owns.\n",
                vec!["crates/a/src/id.rs: say in a first `//!` line what the file is for"],
            ),
            (
                "crates/a/src/hub/mod.rs",
                "//! Owns.\n",
                vec![
                    "crates/a/src/hub/mod.rs: put the module into `foo.rs` beside its folder `foo/`, so that editors \
                      show its name",
                ],
            ),
            (
                "crates/a/tests/common/run.rs",
                "//! Owns.\n",
                vec![
                    "crates/a/tests/common/run.rs: `common` says nothing about what is inside: name it after the \
                      thing it holds",
                ],
            ),
        ];
        for (path, text, expected) in cases {
            assert_eq!(sentences(path, text), expected);
        }
    }

    #[test]
    fn refused_attributes_are_seen_in_code_only() {
        let text = "//! Has no #[ignore] in it.\nfn a() { \"#[ignore]\" }\n    // #[ignore]\n    #[ignore = \"later\"]\nfn c() {}\n";
        let expected = [
            "a.rs:4: `#[ignore` is refused here: a test that does not run proves nothing: make it run, or remove it",
        ];
        assert_eq!(sentences("a.rs", text), expected);
    }

    #[test]
    fn a_lib_is_a_table_of_contents() {
        let text = "//! Contents.\nmod a;\npub mod b;\npub use a::A;\npub use a::*;\n#[cfg(test)]\nmod tests {\n    use super::*;\n}\n";
        let expected = [
            "crates/a/src/lib.rs:3: `pub mod` is refused here: keep the module private and re-export its public names \
             one by one",
            "crates/a/src/lib.rs:5: `::*;` is refused here: name each thing that is public, so that the file can be \
             read as a table of contents",
        ];
        assert_eq!(sentences("crates/a/src/lib.rs", text), expected);
    }

    #[test]
    fn nobody_lives_in_the_tree() {
        let sentence =
            "a home folder of one machine is named: make the path relative, or take it from the caller";
        let text =
            ["see /home/", "dev/project\nsee /home/", "ada/project\nsee /Users/", "ada\nin `/home/`\n"]
                .concat();
        assert_eq!(sentences("a.md", &text), [format!("a.md:2: {sentence}"), format!("a.md:3: {sentence}")]);
        assert_eq!(sentences("fixtures/a.md", &text), [""; 0]);
    }
}
