//! `cargo xtask replay`: every fixture through the real code, each log and diagnostic compared whole.
//! Flows are run here; transcripts and broken flows are replayed by the tests of the crates that own them.

mod case;
mod commands;
mod continued;
mod prefixes;
pub(crate) mod session;

use std::path::Path;

use inspan_testkit::{GoldenMode, case_folders};

pub(crate) use case::FlowCase;

/// The tests by which other crates replay their own fixtures.
const TESTS: [&str; 2] = ["give_their_golden_events", "compile::tests::fixtures_give_their_diagnostics"];

/// Replays the cases whose names contain `filter`, and says whether all give what they should.
pub(crate) fn run(
    root: &Path,
    filter: &str,
    mode: GoldenMode,
    out: &mut dyn std::io::Write,
) -> anyhow::Result<bool> {
    let cases = cases_of(root, filter)?;
    let wrong = wrong(&cases, mode);
    for wrong in &wrong {
        writeln!(out, "fixtures/flows/{wrong}")?;
    }
    writeln!(out, "flows: {} of {} cases give what they should", cases.len() - wrong.len(), cases.len())?;
    let bless = if mode == GoldenMode::Bless { "1" } else { "0" };
    let env = [("INSPAN_FILTER", filter), ("INSPAN_BLESS", bless)];
    let passed = crate::workspace::test(root, &[&["--lib", "--"], &TESTS[..]].concat(), &env)?;
    Ok(wrong.is_empty() && passed)
}

/// The flow cases whose names contain `filter`.
pub(crate) fn cases_of(root: &Path, filter: &str) -> anyhow::Result<Vec<FlowCase>> {
    let folders = case_folders(root.join("fixtures/flows"))?;
    let cases = folders.into_iter().map(FlowCase::new);
    Ok(cases.filter(|case| case.name().contains(filter)).collect())
}

/// What is wrong with each case that does not give what it should. The cases run on two threads.
fn wrong(cases: &[FlowCase], mode: GoldenMode) -> Vec<String> {
    let check = |cases: &[FlowCase]| -> Vec<String> {
        let wrong = |case: &FlowCase| Some(format!("{}: {:#}", case.name(), case.check(mode).err()?));
        cases.iter().filter_map(wrong).collect()
    };
    let (first, second) = cases.split_at(cases.len() / 2);
    let (first, second) = std::thread::scope(|scope| {
        let second = scope.spawn(|| check(second));
        (check(first), second.join().expect("a case does not panic"))
    });
    [first, second].concat()
}

#[cfg(test)]
mod tests {
    use inspan_testkit::GoldenMode;

    use super::{cases_of, wrong};
    use crate::workspace::root;

    /// Every flow gives exactly its log; what differs is shown line by line.
    #[test]
    fn flows() {
        let cases = cases_of(&root(), "").expect("the fixtures are there");
        let wrong = wrong(&cases, GoldenMode::from_env());
        assert!(wrong.is_empty(), "\n\n{}\n", wrong.join("\n"));
        assert!(cases.len() > 10, "only {} cases were found", cases.len());
    }
}
