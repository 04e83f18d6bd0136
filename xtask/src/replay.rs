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
    let mut wrong = 0;
    for case in &cases {
        if let Err(error) = case.check(mode) {
            wrong += 1;
            writeln!(out, "fixtures/flows/{}: {error:#}", case.name())?;
        }
    }
    writeln!(out, "flows: {} of {} cases give what they should", cases.len() - wrong, cases.len())?;
    let bless = if mode == GoldenMode::Bless { "1" } else { "0" };
    let env = [("INSPAN_FILTER", filter), ("INSPAN_BLESS", bless)];
    let passed = crate::workspace::test(root, &[&["--lib", "--"], &TESTS[..]].concat(), &env)?;
    Ok(wrong == 0 && passed)
}

/// The flow cases whose names contain `filter`.
pub(crate) fn cases_of(root: &Path, filter: &str) -> anyhow::Result<Vec<FlowCase>> {
    let folders = case_folders(root.join("fixtures/flows"))?;
    let cases = folders.into_iter().map(FlowCase::new);
    Ok(cases.filter(|case| case.name().contains(filter)).collect())
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
