//! One name, one type: how many types of the workspace may bear the same name.

use std::collections::BTreeMap;

use crate::tidy::TidyFinding;
use crate::workspace::{Workspace, lines_before_tests};

/// The most types with one name; each more makes a reader ask which of them is meant.
const MOST: usize = 2;

/// Checks the structs, enums and traits outside tests and examples.
pub(super) fn check(workspace: &Workspace) -> Vec<TidyFinding> {
    let mut places: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for file in workspace.rust().filter(|file| !file.is_test() && !file.path.contains("examples/")) {
        for (index, line) in file.text.lines().take(lines_before_tests(&file.text)).enumerate() {
            if let Some(name) = declared(line) {
                places.entry(name.to_owned()).or_default().push(format!("{}:{}", file.path, index + 1));
            }
        }
    }
    let shared = places.into_iter().filter(|(_, places)| places.len() > MOST);
    let finding = |(name, places): (String, Vec<String>)| {
        let (count, others) = (places.len(), places[1..].join(", "));
        let sentence = format!(
            "`{name}` is the name of {count} types, here and at {others}: {MOST} are the most, so let more \
             of them say what they are"
        );
        TidyFinding::broken(&places[0], sentence)
    };
    shared.map(finding).collect()
}

/// The name of the type that a line declares.
fn declared(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let line = line.strip_prefix("pub").map_or(line, |rest| {
        rest.strip_prefix('(').and_then(|rest| rest.split_once(')')).map_or(rest, |(_, rest)| rest)
    });
    let (keyword, rest) = line.trim_start().split_once(' ')?;
    let name = rest.split(|c: char| !c.is_alphanumeric() && c != '_').next()?;
    (["struct", "enum", "trait"].contains(&keyword) && !name.is_empty()).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::check;
    use crate::workspace::Workspace;

    #[test]
    fn a_third_type_of_one_name_is_refused() {
        let files = [
            ("crates/a/src/lib.rs", "pub struct Turn;\nstruct Run { at: u64 }\nenum TurnEnd {}\n"),
            (
                "crates/b/src/lib.rs",
                "pub(in crate::b) enum Turn<'a> {}\n    // struct Turn;\npub enum Run {}\n",
            ),
            (
                "crates/c/src/lib.rs",
                "pub trait Turn: Sized {}\n#[cfg(test)]\nmod tests {\n    struct Run;\n}\n",
            ),
            ("crates/c/src/run/tests.rs", "struct Run;\n"),
            ("crates/c/examples/run.rs", "struct Run;\n"),
        ];
        let findings: Vec<String> = check(&Workspace::of(&files)).iter().map(ToString::to_string).collect();
        let expected = "crates/a/src/lib.rs:1: `Turn` is the name of 3 types, here and at crates/b/src/lib.rs:1, \
                        crates/c/src/lib.rs:1: 2 are the most, so let more of them say what they are";
        assert_eq!(findings, [expected]);
    }
}
