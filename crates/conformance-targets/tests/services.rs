//! Every provider that needs no program, held against the whole list, in real HTTP against the scripted model server.

use inspan_conformance::{BEHAVIOURS, Outcome, Report, Settings, conform};

/// The provider's report; fails with the whole table if a row fails.
async fn report(name: &str) -> Report {
    let mut rigs = inspan_conformance_targets::find(name);
    assert_eq!(rigs.len(), 1, "{name}");
    let report = conform(rigs.remove(0), &Settings::default()).await;
    assert!(report.holds(), "{report}");
    assert_eq!(report.rows.len(), BEHAVIOURS.len() + 1, "a row for each behaviour, and one for what is left");
    report
}

fn names(report: &Report, wanted: fn(&Outcome) -> bool) -> Vec<&str> {
    let rows = report.rows.iter().filter(|row| wanted(&row.outcome));
    rows.map(|row| row.behaviour.as_str()).collect()
}

fn holds(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Holds)
}

#[tokio::test(flavor = "multi_thread")]
async fn anthropic() {
    let report = report("anthropic").await;
    let expected = ["cancel_mid_tool", "cost_per_turn"];
    assert_eq!(names(&report, |outcome| !holds(outcome)), expected, "{report}");
}

#[tokio::test(flavor = "multi_thread")]
async fn echo() {
    let report = report("echo").await;
    let expected =
        ["text", "empty_prompt", "unknown_option", "unknown_session", "cancel_before_start", "nothing_left"];
    assert_eq!(names(&report, holds), expected, "{report}");
}

#[tokio::test(flavor = "multi_thread")]
async fn scripted() {
    let report = report("scripted").await;
    let expected = [
        "text",
        "thinking",
        "empty_prompt",
        "unknown_option",
        "unknown_session",
        "cancel_before_start",
        "nothing_left",
    ];
    assert_eq!(names(&report, holds), expected, "{report}");
}

#[tokio::test(flavor = "multi_thread")]
async fn openai() {
    let report = report("openai").await;
    assert_eq!(names(&report, |outcome| !holds(outcome)), ["cancel_mid_tool", "cost_per_turn"], "{report}");
}
