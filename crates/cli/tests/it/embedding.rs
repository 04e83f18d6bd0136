//! Programs that use Inspan from Rust: every example runs offline and prints what it did the last time, and whatever
//! Rust the documents show stands in one of them.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

const EXAMPLES: [&str; 13] = [
    "abort",
    "basic",
    "channel",
    "console",
    "custom_agent",
    "custom_node",
    "custom_provider",
    "hub",
    "options",
    "runtime",
    "session",
    "streaming",
    "tools",
];
/// Every document that shows Rust.
pub(crate) const DOCUMENTS: [&str; 6] = [
    "README.md",
    "docs/agents.md",
    "docs/hub.md",
    "docs/lessons/09-multi-turn.md",
    "docs/runtime.md",
    "docs/sdk.md",
];

/// Cargo puts the examples beside the folder of this test.
fn program(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.parent().and_then(Path::parent).unwrap().join("examples").join(name)
}

#[test]
fn every_example_runs() {
    let mut all = String::new();
    for name in EXAMPLES {
        let program = program(name);
        assert!(program.exists(), "`cargo test -p inspan-cli` builds the examples, `--test` alone does not");
        let output = Command::new(&program).env_clear().output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        let errors = text(output.stderr);
        // What the console shows goes there, and is looked at by a test of its own.
        assert!(output.status.success() && (errors.is_empty() || name == "console"), "{name}: {errors}");
        all.push_str(&format!("── {name}\n{}", text(output.stdout)));
    }
    insta::with_settings!({ omit_expression => true, prepend_module_to_snapshot => false }, {
        insta::assert_snapshot!("embedding", all);
    });
}

#[test]
fn a_program_shows_a_session_as_the_command_line_does() {
    let output = Command::new(program("console")).env_clear().output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    let shows = |what: &str| errors.lines().any(|line| line.contains(what));
    let shown = ["yoke started", "pair", "yoke succeeded"].map(shows);
    assert_eq!(shown, [true; 3], "{errors}");
}

#[test]
fn no_example_is_forgotten() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
    let files = fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
    let mut names: Vec<String> =
        files.map(|file| file.file_stem().unwrap().to_string_lossy().into_owned()).collect();
    names.sort();
    assert_eq!(names, EXAMPLES);
}

/// The lines without what sets them in.
fn lines(text: &str) -> String {
    text.lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .fold(String::new(), |all, line| all + line + "\n")
}

#[test]
fn the_rust_of_the_documents_stands_in_an_example() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |path: PathBuf| fs::read_to_string(path).unwrap();
    let sources = EXAMPLES.map(|name| lines(&read(root.join("examples").join(name).with_extension("rs"))));
    for document in DOCUMENTS {
        let text = read(root.join("../..").join(document));
        let blocks: Vec<&str> =
            text.split("```rust\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
        assert!(!blocks.is_empty(), "{document} shows no Rust");
        for block in blocks {
            // An example may have more between two parts that the document puts together by a line of dots.
            for part in block.split("// …\n") {
                let part = lines(part);
                assert!(sources.iter().any(|source| source.contains(&part)), "{document}:\n{part}");
            }
        }
    }
}
