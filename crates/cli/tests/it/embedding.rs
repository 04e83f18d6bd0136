//! Programs that use Inspan from Rust: the console of the command line in another program, and the Rust that the
//! documents show, each piece of which is part of an example.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use inspan_testkit::example;

/// Every document that shows Rust.
pub(crate) const DOCUMENTS: [&str; 10] = [
    "README.md",
    "docs/agents.md",
    "docs/hub.md",
    "docs/lessons/08-custom-node.md",
    "docs/lessons/09-multi-turn.md",
    "docs/lessons/10-runtime-from-rust.md",
    "docs/lessons/12-channels.md",
    "docs/runtime.md",
    "docs/sdk.md",
    "docs/testing.md",
];

#[test]
fn a_program_shows_a_session_as_the_command_line_does() {
    let output = Command::new(example("console").unwrap()).env_clear().output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    let shows = |what: &str| errors.lines().any(|line| line.contains(what));
    let shown = ["yoke started", "pair", "yoke succeeded"].map(shows);
    assert_eq!(shown, [true; 3], "{errors}");
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
    let folders = ["examples", "../inspan/examples"].map(|folder| fs::read_dir(root.join(folder)).unwrap());
    let sources: Vec<String> =
        folders.into_iter().flatten().map(|file| lines(&read(file.unwrap().path()))).collect();
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
