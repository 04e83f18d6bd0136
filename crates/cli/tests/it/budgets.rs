//! Budgets that are used up, and what raises them.

use std::fs;

use crate::program::{flow_folder, folder_with, inspan};

/// A subflow whose budget ends it, and a flow that spends after a failure.
const SPENDS: &str = "\
flow: { name: spends }
nodes:
  - { id: inner, type: control.subflow, input: { file: inner.yaml } }
  - { id: check, type: exec, dependsOn: [inner], input: { argv: [test, -f, ok] } }
  - { id: more, type: echo.agent, dependsOn: [check], input: { prompt: one more } }
";

const INNER: &str = "\
flow: { name: inner, policy: { budget: { tokens: 1, onExceeded: fail } } }
nodes:
  - { id: one, type: echo.agent, input: { prompt: one } }
  - { id: two, type: echo.agent, dependsOn: [one], input: { prompt: two } }
";

#[test]
fn what_was_raised_stays_raised_in_the_session_that_continues() {
    let folder = &folder_with(&[("flow.yaml", SPENDS), ("inner.yaml", INNER)]);
    inspan(folder, &["run", "flow.yaml", "--session-id", "a"]).expect(5);
    // The budget of a flow that a node runs is raised of an ended session too.
    inspan(folder, &["resume", "a", "--session-id", "b", "--budget", "inner/.tokens=1000"]).expect(1);
    fs::write(folder.join("ok"), "").unwrap();
    inspan(folder, &["resume", "b", "--session-id", "c", "--budget", "tokens=3"]).expect(5);
    inspan(folder, &["fork", "c", "--at", "inner", "--session-id", "d"]).expect(5);
    inspan(folder, &["logs", "d", "--json", "--type", "budget:carried"])
        .prints(r#""raised":{"flow":{"tokens":3},"bodies":{"inner":{"tokens":1000}}}"#);
}

/// Agents one after the other, each of which takes 7 tokens, with a budget of so many.
fn four_agents(limit: u64) -> String {
    let node = |(id, after): (&str, &str)| {
        let turn = "{ text: x }, { usage: { tokens: { inputTokens: 7 } } }";
        format!(
            "  - {{ id: {id}, type: scripted.agent, dependsOn: [{after}], input: {{ prompt: x, options: {{ turns: [[{turn}]] }} }} }}\n"
        )
    };
    let nodes: String = [("a", ""), ("b", "a"), ("y", "b"), ("z", "y")].into_iter().map(node).collect();
    format!("flow: {{ name: f, policy: {{ budget: {{ tokens: {limit} }} }} }}\nnodes:\n{nodes}")
}

#[test]
fn what_was_raised_does_not_outlive_a_limit_that_a_part_of_the_flow_is_run_with() {
    let here = &flow_folder(&four_agents(5));
    inspan(here, &["run", "flow.yaml", "--session-id", "s"]).expect(5);
    let raised = inspan(here, &["resume", "s", "--budget", "tokens=5000"]).expect(0);
    assert!(!raised.stderr.contains("exceeded its budget"), "{}", raised.stderr);
    // 28 tokens are spent. What was raised counts where nothing else is said.
    let run = |id: &str, limit: &[&str]| {
        let part = ["run", "flow.yaml", "--from", "y", "--reuse", "s", "--session-id", id];
        inspan(here, &[&part[..], limit].concat())
    };
    run("as-raised", &[]).expect(0);
    let rows: [(&str, u64, &[&str], _); 3] = [
        // The same as in the file.
        ("same", 5, &["--budget", "tokens=5"], "5 tokens (28 spent)"),
        ("call", 5, &["--budget", "tokens=30"], "30 tokens (35 spent)"),
        ("file", 31, &[], "31 tokens (35 spent)"),
    ];
    for (id, in_file, limit, used_up) in rows {
        fs::write(here.join("flow.yaml"), four_agents(in_file)).unwrap();
        let plan = [&["run", "flow.yaml", "--from", "y", "--reuse", "s", "--plan"], limit].concat();
        let plan = inspan(here, &plan).expect(0);
        let warning = "earlier sessions have used up the budget of the flow, and no agent would start: 5 tokens (28 spent)";
        assert_eq!(plan.stderr.contains(warning), id == "same", "{}", plan.stderr);
        run(id, limit).expect(5).says(&format!("exceeded its budget: {used_up}"));
    }
}

#[test]
fn all_limits_of_a_budget_that_are_used_up_are_named_and_one_resume_raises_them() {
    let flow = "
flow: { name: b, policy: { budget: { usd: 0.5, tokens: 5 } } }
nodes:
  - { id: a, type: scripted.agent, input: { prompt: x, options: { turns: [[{ text: a }, { usage: { tokens: { inputTokens: 7 }, costUsd: 0.5 } }]] } } }
  - { id: c, type: scripted.agent, dependsOn: [a], input: { prompt: y, options: { turns: [[{ text: c }]] } } }
";
    let here = &flow_folder(flow);
    let paused = inspan(here, &["run", "flow.yaml", "--no-input", "--session-id", "s"]).expect(5);
    let (both, raise) =
        ("0.5 USD (0.5000 spent) and 5 tokens (7 spent)", "inspan resume s --budget usd=N,tokens=N");
    let said = [paused.stderr, inspan(here, &["show", "s"]).stdout, inspan(here, &["why", "s"]).stdout];
    assert!(said.iter().all(|text| text.contains(both)), "{said:#?}");
    assert!(said[..2].iter().all(|text| text.contains(raise)), "{said:#?}");
    let one = inspan(here, &["resume", "s", "--budget", "usd=1", "--no-input"]);
    assert_eq!((one.code, one.stderr.contains("0.5 USD")), (Some(5), false), "{}", one.stderr);
    inspan(here, &["resume", "s", "--budget", "usd=2,tokens=100", "--no-input"]).expect(0);
}

#[test]
fn after_a_budget_has_ended_a_session_the_help_names_the_limit_to_raise() {
    let flow = "
flow: { name: b }
nodes:
  - id: lp
    type: control.loop
    input: { maxIterations: 1, onExhausted: continue }
    body:
      policy: { budget: { tokens: 5, onExceeded: fail } }
      nodes:
        - { id: a, type: scripted.agent, input: { prompt: x, options: { turns: [[{ text: a }, { usage: { tokens: { inputTokens: 7 }, costUsd: 0.5 } }]] } } }
        - { id: c, type: scripted.agent, dependsOn: [a], input: { prompt: y, options: { turns: [[{ text: c }]] } } }
";
    let folder = &flow_folder(flow);
    let raise = "inspan resume s --budget lp/.tokens=N";
    inspan(folder, &["run", "flow.yaml", "--no-input", "--session-id", "s"])
        .expect(5)
        .says(&format!("`{raise}`; finished work is reused"));
    let shown = inspan(folder, &["show", "s"]).stdout;
    assert!(shown.contains(&format!("{raise}  raise the budget and continue")), "{shown}");
    // `why` counts passes as `show` does.
    let why = inspan(folder, &["why", "s"]).stdout;
    assert!(shown.contains("[0] pass 1") && why.contains("the budget of pass 1 of `lp` is used up"), "{why}");
    let raised = ["resume", "s", "--budget", "lp/.tokens=100", "--no-input"];
    inspan(folder, &raised).expect(0);
}

#[test]
fn the_failure_of_an_item_is_not_why_a_budget_pauses_a_session() {
    let flow = "
flow: { name: b, policy: { budget: { tokens: 10 } } }
nodes:
  - id: each
    type: control.foreach
    input: { items: [1, 2, 3, 4, 5], maxConcurrency: 1, onItemError: continue }
    body:
      nodes:
        - { id: pre, type: exec, input: { argv: [test, '{{ item }}', '!=', '1'] } }
        - { id: a, type: scripted.agent, dependsOn: [pre], input: { prompt: x, options: { turns: [[{ text: a }, { usage: { tokens: { inputTokens: 17 } } }]] } } }
";
    let folder = &flow_folder(flow);
    let paused = inspan(folder, &["run", "flow.yaml", "--no-input", "--session-id", "s"]).expect(5);
    let end: Vec<&str> = paused.stderr.lines().skip_while(|line| !line.starts_with("warning")).collect();
    let expected = [
        "warning: each[0]/pre failed: `test` exited with code 1 [PROCESS]",
        "warning: the flow exceeded its budget: 10 tokens (17 spent)",
        "  help: raise the budget and continue: `inspan resume s --budget tokens=N`",
    ];
    assert_eq!(end, expected, "{}", paused.stderr);
    assert!(!paused.stderr.contains("error:"), "{}", paused.stderr);
    // Each resume reports the budget again, and the end names it once, as it is now.
    for (limit, spent) in [(18, 34), (35, 51)] {
        let raise = format!("tokens={limit}");
        let again = inspan(folder, &["resume", "s", "--budget", &raise, "--no-input"]);
        let budgets: Vec<&str> =
            again.stderr.lines().filter(|line| line.contains("exceeded its budget:")).collect();
        let expected = format!("warning: the flow exceeded its budget: {limit} tokens ({spent} spent)");
        assert_eq!(budgets, [expected], "{}", again.stderr);
    }
    // What raises nothing is refused: the session would be paused again at once.
    for limit in [35, 51] {
        let raise = format!("tokens={limit}");
        let why = format!("error: `tokens` cannot be raised to {limit}: the limit is 35, and 51 are spent\n");
        inspan(folder, &["resume", "s", "--budget", &raise, "--no-input"]).expect(2).says(&why);
    }
}
