//! `cargo xtask replay`: every fixture through the real code, each log and diagnostic compared whole.
//! Flows are run here; transcripts and broken flows are replayed by the tests of the crates that own them.

mod case;
mod continued;
mod prefixes;
mod retold;

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, ensure};
use inspan_testkit::{GoldenMode, case_folders};

pub(crate) use case::FlowCase;

/// The fixtures that a crate replays in a test of its own, so that there is one code path for them.
const TESTED: &[(&str, &str)] = &[
    ("fixtures/providers/acp", "acp::tests::replay::"),
    ("fixtures/providers/anthropic", "anthropic::tests::recorded_responses_give_their_golden_events"),
    ("fixtures/providers/claude", "claude::tests::replay::"),
    ("fixtures/providers/openai", "openai::tests::recorded_responses_give_their_golden_events"),
    ("fixtures/providers/codex", "codex::tests::replay::"),
    ("fixtures/providers/opencode", "opencode::tests::replay::"),
    ("fixtures/compile", "compile::tests::fixtures_give_their_diagnostics"),
];

/// Replays the cases whose names contain `filter`, and says whether all give what they should.
pub(crate) fn run(
    root: &Path,
    filter: &str,
    mode: GoldenMode,
    out: &mut dyn std::io::Write,
) -> anyhow::Result<bool> {
    let mut wrong = 0;
    let mut cases = 0;
    for case in cases_of(root, filter)? {
        cases += 1;
        if let Err(error) = case.check(mode) {
            wrong += 1;
            writeln!(out, "fixtures/flows/{}: {error:#}", case.name())?;
        }
    }
    writeln!(out, "flows: {} of {cases} cases give what they should", cases - wrong)?;
    let mut holds = wrong == 0;
    for (folder, test) in TESTED {
        let chosen = names(&root.join(folder), filter)?;
        cases += chosen.len();
        if !chosen.is_empty() {
            let passed = run_test(root, test, filter, mode)?;
            let word = if passed { "give" } else { "do NOT all give" };
            writeln!(out, "{folder}: {} cases {word} what they should", chosen.len())?;
            holds &= passed;
        }
    }
    ensure!(cases > 0, "no fixture's name contains `{filter}`");
    Ok(holds)
}

/// The flow cases whose names contain `filter`.
pub(crate) fn cases_of(root: &Path, filter: &str) -> anyhow::Result<Vec<FlowCase>> {
    let folders = case_folders(root.join("fixtures/flows"))?;
    let cases = folders.into_iter().map(FlowCase::new);
    Ok(cases.filter(|case| case.name().contains(filter)).collect())
}

fn names(folder: &Path, filter: &str) -> anyhow::Result<Vec<String>> {
    let names =
        case_folders(folder)?.into_iter().filter_map(|case| Some(case.file_name()?.to_str()?.to_owned()));
    // The services' short responses are rows of a table.
    let table = std::fs::read_to_string(folder.join("responses.jsonl")).unwrap_or_default();
    let rows = table.lines().filter_map(|row| {
        let row: serde_json::Value = serde_json::from_str(row).ok()?;
        Some(row["case"].as_str()?.to_owned())
    });
    Ok(names.chain(rows).filter(|name| name.contains(filter)).collect())
}

/// Runs the tests of that name, whatever crate has them; all crates take part so that nothing is built a second
/// time with other features.
fn run_test(root: &Path, test: &str, filter: &str, mode: GoldenMode) -> anyhow::Result<bool> {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["test", "--quiet", "--workspace", "--lib", "--", test]).current_dir(root);
    cargo.env_remove("INSPAN_BLESS").env("INSPAN_FILTER", filter);
    if mode == GoldenMode::Bless {
        cargo.env("INSPAN_BLESS", "1");
    }
    let ended = cargo.output().context("failed to start cargo")?;
    let said = String::from_utf8_lossy(&ended.stdout);
    let ran: u32 = said
        .lines()
        .filter_map(|line| line.strip_prefix("test result: ok. ")?.split(' ').next()?.parse::<u32>().ok())
        .sum();
    if !ended.status.success() || ran == 0 {
        anyhow::bail!("`{test}` does not pass\n{said}{}", String::from_utf8_lossy(&ended.stderr));
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use inspan_testkit::GoldenMode;

    use super::cases_of;
    use crate::workspace::root;

    /// Every flow gives exactly its log; what differs is shown line by line.
    #[test]
    fn flows() {
        let cases = cases_of(&root(), "").expect("the fixtures are there");
        let wrong: Vec<String> = cases
            .iter()
            .filter_map(|case| {
                Some(format!("{}: {:#}", case.name(), case.check(GoldenMode::from_env()).err()?))
            })
            .collect();
        assert!(wrong.is_empty(), "\n\n{}\n", wrong.join("\n"));
        assert!(cases.len() > 10, "only {} cases were found", cases.len());
    }
}
