//! The shapes a fixture may have, and the check that none is incomplete or forgotten.

use std::collections::BTreeMap;

use crate::tidy::TidyFinding;
use crate::workspace::Workspace;

/// Where the table is.
const HERE: &str = "xtask/src/fixtures.rs";

/// One kind of case: the folder of the cases, and the files of a case.
struct CaseKind {
    /// A `*` matches one folder's name; the last one is the case's own.
    cases: &'static str,
    /// Each case has one of these names from every row.
    needs: &'static [&'static [&'static str]],
    /// What a case may have beside. A name that ends with `/` is a folder.
    may_have: &'static [&'static str],
}

const SHAPES: &[CaseKind] = &[
    CaseKind {
        cases: "fixtures/providers/*/*",
        needs: &[&["transcript.jsonl", "transcript.sse"], &["events.jsonl"]],
        may_have: &[],
    },
    CaseKind {
        cases: "fixtures/flows/*",
        needs: &[&["flow.yaml"], &["events.jsonl"]],
        may_have: &[
            "scenario.json",
            "commands.json",
            "input.json",
            "recordings/",
            "prompts/",
            "schemas/",
            "packs/",
            "flows/",
        ],
    },
    CaseKind { cases: "fixtures/logs/*", needs: &[&["flow.yaml"], &["events.jsonl"]], may_have: &[] },
    CaseKind {
        cases: "fixtures/stores/*",
        needs: &[&["sessions.db"], &["sessions.db-wal"], &["sessions.db-marks"]],
        may_have: &[
            "crashed.yaml",
            "failed.yaml",
            "finished.yaml",
            "waiting.yaml",
            "exports/",
            "recordings/",
        ],
    },
    CaseKind {
        cases: "fixtures/compile/*",
        needs: &[&["flow.yaml"]],
        may_have: &["prompts/", "schemas/", "flows/", "settings/", "packs/"],
    },
];

/// Files that hold whole cases. A `*` matches one folder's name; the test that reads a folder finds the orphans there.
const SINGLE: &[&str] = &[
    "fixtures/hub/",
    "fixtures/scenarios/",
    "fixtures/temporal/*.json",
    "fixtures/providers/*/cases.jsonl",
    "fixtures/compile/*.yaml",
];

/// Finds files that belong to no case, and cases that lack a file.
pub(crate) fn check(workspace: &Workspace) -> Vec<TidyFinding> {
    let mut findings = Vec::new();
    let mut cases: BTreeMap<String, (&CaseKind, Vec<&str>)> = BTreeMap::new();
    for file in workspace.files.iter().filter(|file| file.path.starts_with("fixtures/")) {
        match SHAPES.iter().find_map(|shape| Some((shape, case(shape, &file.path)?))) {
            Some((shape, (case, inner))) => cases.entry(case).or_insert((shape, Vec::new())).1.push(inner),
            None if file.name() == "README.md" => {}
            None if SINGLE.iter().any(|single| is_single(single, &file.path)) => {}
            None => {
                let sentence = format!(
                    "no test reads this file: move it into a case, or add its shape to SHAPES in {HERE}"
                );
                findings.push(TidyFinding::broken(&file.path, sentence));
            }
        }
    }
    for (case, (shape, files)) in cases {
        for choices in shape.needs.iter().filter(|choices| choices.iter().all(|name| !files.contains(name))) {
            let sentence = format!("the case has no {}: bless it, or remove the case", choices.join(" or "));
            findings.push(TidyFinding::broken(&case, sentence));
        }
        let known = |name: &str| {
            let beside =
                |beside: &&str| *beside == name || (beside.ends_with('/') && name.starts_with(beside));
            shape.needs.concat().contains(&name) || shape.may_have.iter().any(beside)
        };
        for name in files.iter().filter(|name| !known(name)) {
            let sentence = format!("no test reads this file: remove it, or add its name to SHAPES in {HERE}");
            findings.push(TidyFinding::broken(format!("{case}/{name}"), sentence));
        }
    }
    findings
}

/// Whether `path` is this file, or is in this folder.
fn is_single(single: &str, path: &str) -> bool {
    match single.split_once('*') {
        Some((before, after)) => path.starts_with(before) && path.ends_with(after),
        None => path.starts_with(single),
    }
}

/// The case's folder and the rest of the path, if `path` is in a case of this shape.
fn case<'a>(shape: &CaseKind, path: &'a str) -> Option<(String, &'a str)> {
    let depth = shape.cases.split('/').count();
    let mut parts = path.splitn(depth + 1, '/');
    let mut folder = Vec::new();
    for wanted in shape.cases.split('/') {
        let part = parts.next().filter(|part| wanted == "*" || wanted == *part)?;
        folder.push(part);
    }
    Some((folder.join("/"), parts.next()?))
}

#[cfg(test)]
mod tests {
    use super::check;
    use crate::workspace::Workspace;

    #[test]
    fn cases_are_whole_and_nothing_lies_beside_them() {
        let paths = [
            "fixtures/README.md",
            "fixtures/hub/lag.yaml",
            "fixtures/providers/claude/cases.jsonl",
            "fixtures/providers/claude/basic/transcript.jsonl",
            "fixtures/providers/claude/basic/events.jsonl",
            "fixtures/flows/chain/flow.yaml",
            "fixtures/flows/chain/events.jsonl",
            "fixtures/flows/chain/recordings/claude/1.jsonl",
            "fixtures/flows/chain/notes.txt",
            "fixtures/compile/alone.yaml",
            "fixtures/compile/packs/flow.yaml",
            "fixtures/compile/stray.txt",
            "fixtures/providers/claude/broken/notes.md",
            "fixtures/providers/stray.jsonl",
        ];
        let tree = Workspace::of(&paths.map(|path| (path, "")));
        let expected = [
            "fixtures/compile/stray.txt: no test reads this file: move it into a case, or add its shape to SHAPES in \
             xtask/src/fixtures.rs",
            "fixtures/providers/stray.jsonl: no test reads this file: move it into a case, or add its shape to SHAPES in \
             xtask/src/fixtures.rs",
            "fixtures/flows/chain/notes.txt: no test reads this file: remove it, or add its name to SHAPES in \
             xtask/src/fixtures.rs",
            "fixtures/providers/claude/broken: the case has no transcript.jsonl or transcript.sse: bless it, or remove \
             the case",
            "fixtures/providers/claude/broken: the case has no events.jsonl: bless it, or remove the case",
            "fixtures/providers/claude/broken/notes.md: no test reads this file: remove it, or add its name to SHAPES in \
             xtask/src/fixtures.rs",
        ];
        assert_eq!(check(&tree).iter().map(ToString::to_string).collect::<Vec<_>>(), expected);
    }
}
