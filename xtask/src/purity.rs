//! The files that must stay pure, and the check that they mention nothing impure.
//! What the files do is left to their crates; the compiler hears the same rule from `clippy.toml`.

use crate::finding::Finding;
use crate::source::{blank, lines_before_tests, mentions};
use crate::workspace::Workspace;

/// Where the table stands.
const HERE: &str = "xtask/src/purity.rs";

/// Touching the world: a runtime, files, the network, processes, clocks, chance.
const WORLD: &[&str] = &[
    "tokio::",
    "use tokio",
    "std::fs",
    "std::net",
    "std::process",
    "std::env",
    "std::thread",
    "::now()",
    "rand::",
    "getrandom",
    "sleep",
    "new_v4",
    "now_v7",
];
/// Waiting, even for something pure.
const WAITING: &[&str] = &["async", ".await"];
/// The modules of `std` that a braced import would hide from `WORLD`.
const STD: &[&str] = &["fs", "net", "process", "env", "thread"];

/// A module that must stay pure: `module.rs` and all in `module/`. A `*` stands for one folder's name.
struct Pure {
    module: &'static str,
    must_not: &'static [&'static [&'static str]],
}

const PURE: &[Pure] = &[
    // Contracts speak of futures, so the vocabulary may say `async`; it only may not touch the world.
    Pure { module: "crates/protocol/src", must_not: &[WORLD] },
    Pure { module: "crates/engine/src/run/state", must_not: &[WORLD, WAITING] },
    Pure { module: "crates/engine/src/session/queue", must_not: &[WORLD, WAITING] },
    Pure { module: "crates/engine/src/session/transcript", must_not: &[WORLD, WAITING] },
    Pure { module: "crates/providers/src/*/decode", must_not: &[WORLD, WAITING] },
    Pure { module: "crates/providers/src/*/ledger", must_not: &[WORLD, WAITING] },
    Pure { module: "crates/providers/src/exchange/books", must_not: &[WORLD, WAITING] },
    Pure { module: "crates/providers/src/json", must_not: &[WORLD, WAITING] },
    Pure { module: "crates/providers/src/streamed/event", must_not: &[WORLD, WAITING] },
    Pure { module: "crates/flow/src/compact", must_not: &[WORLD, WAITING] },
    Pure { module: "crates/flow/src/compile", must_not: &[WORLD, WAITING] },
    Pure { module: "crates/flow/src/explain", must_not: &[WORLD, WAITING] },
    Pure { module: "crates/flow/src/expr", must_not: &[WORLD, WAITING] },
    Pure { module: "crates/flow/src/graph", must_not: &[WORLD, WAITING] },
    Pure { module: "crates/flow/src/schedule", must_not: &[WORLD, WAITING] },
    Pure { module: "crates/flow/src/spec", must_not: &[WORLD, WAITING] },
    Pure { module: "crates/flow/src/state", must_not: &[WORLD, WAITING] },
];

/// Finds every impure word in a pure file, and every entry that no file answers to.
pub(crate) fn check(workspace: &Workspace) -> Vec<Finding> {
    let mut findings = Vec::new();
    for pure in PURE {
        let files: Vec<_> = workspace.rust().filter(|file| belongs(pure.module, &file.path)).collect();
        if files.is_empty() {
            let sentence =
                format!("no file is {}: name the module's new place in PURE, or remove it", pure.module);
            findings.push(Finding::broken(HERE, sentence));
        }
        for file in files.into_iter().filter(|file| !file.is_test()) {
            let code = blank(&file.text);
            for (index, line) in code.lines().take(lines_before_tests(&file.text)).enumerate() {
                if let Some(word) = impurity(line, pure.must_not) {
                    let sentence = format!(
                        "`{word}` in a pure file: take it as a parameter, or move the line to the shell around it"
                    );
                    findings.push(Finding::broken(format!("{}:{}", file.path, index + 1), sentence));
                }
            }
        }
    }
    findings
}

/// Whether `path` is the module's file or lies in its folder.
fn belongs(module: &str, path: &str) -> bool {
    let mut parts = path.strip_suffix(".rs").unwrap_or(path).split('/');
    module.split('/').all(|wanted| parts.next().is_some_and(|part| wanted == "*" || wanted == part))
}

fn impurity(line: &str, must_not: &[&'static [&'static str]]) -> Option<&'static str> {
    let braced = line.trim_start().strip_prefix("use std::{").filter(|_| must_not.contains(&WORLD));
    let hidden = braced.and_then(|names| {
        let first =
            |name: &str| name.trim().split([':', ' ', '}', ';']).next().unwrap_or_default().to_owned();
        STD.iter().find(|module| names.split(',').any(|name| first(name) == **module))
    });
    let said = || must_not.iter().copied().flatten().find(|word| mentions(line, word));
    hidden.or_else(said).copied()
}

#[cfg(test)]
mod tests {
    use super::{WAITING, WORLD, belongs, check, impurity};
    use crate::workspace::Workspace;

    #[test]
    fn a_module_is_its_file_and_its_folder() {
        let cases = [
            ("crates/flow/src/state", "crates/flow/src/state.rs", true),
            ("crates/flow/src/state", "crates/flow/src/state/fold.rs", true),
            ("crates/flow/src/state", "crates/flow/src/statement.rs", false),
            ("crates/providers/src/*/decode", "crates/providers/src/claude/decode.rs", true),
            ("crates/providers/src/*/decode", "crates/providers/src/claude/decode/turn.rs", true),
            ("crates/providers/src/*/decode", "crates/providers/src/claude/wire.rs", false),
            ("crates/protocol/src", "crates/protocol/src/lib.rs", true),
        ];
        assert_eq!(
            cases.map(|(module, path, _)| belongs(module, path)),
            cases.map(|(_, _, expected)| expected)
        );
    }

    #[test]
    fn sees_what_is_impure() {
        let all: &[&[&str]] = &[WORLD, WAITING];
        let cases = [
            ("let now = SystemTime::now();", Some("::now()")),
            ("use tokio::sync::mpsc;", Some("tokio::")),
            ("use tokio_util::sync::CancellationToken;", None),
            ("use std::{collections::BTreeMap, fs::File};", Some("fs")),
            ("use std::{env, mem};", Some("env")),
            ("use std::{fmt, mem};", None),
            ("pub async fn run() {", Some("async")),
            ("next.await", Some(".await")),
            ("fn apply(now: Timestamp) {", None),
            ("let operand = strand::new();", None),
        ];
        assert_eq!(cases.map(|(line, _)| impurity(line, all)), cases.map(|(_, expected)| expected));
        assert_eq!(impurity("pub async fn run() {", &[WORLD]), None);
    }

    #[test]
    fn names_the_line_and_forgives_comments_and_tests() {
        let source = "//! Never awaits; reads no std::fs.\nfn a() -> &'static str { \"std::fs\" }\nfn b() { std::fs::read(x) }\n\
                      #[cfg(test)]\nmod tests {\n    use std::fs;\n}\n";
        let tree = Workspace::of(&[
            ("crates/protocol/src/lib.rs", "//! Placeholder.\n"),
            ("crates/engine/src/lib.rs", "//! Placeholder.\n"),
            ("crates/providers/src/lib.rs", "//! Placeholder.\n"),
            ("crates/flow/src/lib.rs", "//! Placeholder.\n"),
            ("crates/flow/src/state.rs", source),
        ]);
        let got: Vec<String> = check(&tree).iter().map(ToString::to_string).collect();
        let expected =
            ["crates/flow/src/state.rs:3: `std::fs` in a pure file: take it as a parameter, or move the \
                         line to the shell around it"];
        assert_eq!(got, expected);
    }

    #[test]
    fn an_entry_without_a_file_is_stale_once_the_crate_is_real() {
        let tree = Workspace::of(&[
            ("crates/protocol/src/lib.rs", "//! Placeholder.\n"),
            ("crates/engine/src/lib.rs", "//! The table of contents.\n"),
            ("crates/providers/src/lib.rs", "//! Placeholder.\n"),
            ("crates/flow/src/lib.rs", "//! Placeholder.\n"),
        ]);
        let got: Vec<String> = check(&tree).iter().map(ToString::to_string).collect();
        let of_engine = super::PURE.iter().filter(|pure| pure.module.starts_with("crates/engine/src"));
        let expected: Vec<String> = of_engine
            .map(|pure| {
                let module = pure.module;
                format!(
                    "{}: no file is {module}: name the module's new place in PURE, or remove it",
                    super::HERE
                )
            })
            .collect();
        assert!(!expected.is_empty());
        assert_eq!(got, expected);
    }
}
