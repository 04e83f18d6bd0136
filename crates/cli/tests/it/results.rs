//! What `run` prints of a flow's result, and of the questions that wait.

use std::fs;

use crate::program::inspan;

/// Runs a flow of these parts; what goes to stdout and to stderr, and the exit code.
fn run(flow: &str, nodes: &str) -> (String, String, Option<i32>) {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("flow.yaml"), format!("flow: {{ name: f{flow} }}\nnodes:\n{nodes}\n"))
        .unwrap();
    let ran = inspan(folder.path(), &["run"]);
    (ran.stdout, ran.stderr, ran.code)
}

const EACH: &str = "  - { id: each, type: control.foreach, input: { items: [a, b] },\n      \
                    body: { outputs: { name: \"{{ say.text }}\" }, nodes: [{ id: say, type: echo, input: { text: \"{{ item }}!\" } }] } }";

#[test]
fn the_declared_outputs_are_printed_or_those_of_the_last_nodes() {
    let printed = |flow: &str, nodes: &str| {
        let (stdout, stderr, code) = run(flow, nodes);
        assert_eq!(code, Some(0), "{stderr}");
        stdout
    };
    let declared = ", outputs: { names: \"{{ each.values | map(attribute='name') | join(' ') }}\", bad: \"{{ each.failed }}\" }";
    assert_eq!(printed(declared, EACH), "bad: 0\nnames: a! b!\n");
    assert_eq!(printed(", outputs: { first: \"{{ each.values[0].name }}\" }", EACH), "a!\n");
    assert_eq!(printed("", EACH), "[\n  {\n    \"name\": \"a!\"\n  },\n  {\n    \"name\": \"b!\"\n  }\n]\n");
    let repeat = "  - { id: repeat, type: control.loop, input: { maxIterations: 2, until: \"frame.index == 1\" },\n      \
                  body: { nodes: [{ id: say, type: echo, input: { text: \"pass {{ frame.index }}\" } }] } }";
    assert_eq!(printed("", repeat), "pass 1\n");
}

#[test]
fn of_many_questions_that_wait_a_few_are_named() {
    let ask = "  - { id: each, type: control.foreach, input: { items: \"{{ range(5) | list }}\" },\n      \
               body: { nodes: [{ id: ask, type: human.input, input: { prompt: \"{{ item }}?\" } }] } }";
    let (_, stderr, code) = run("", ask);
    let hints: Vec<&str> = stderr
        .lines()
        .filter_map(|line| line.trim_start().strip_prefix("help: ")?.split(" is waiting").next())
        .collect();
    // They wait in the order in which they were asked, which is not fixed.
    let named = hints.iter().filter(|hint| hint.starts_with("`each[")).count();
    let rest = hints.last().copied().unwrap_or_default();
    assert_eq!((code, named, rest), (Some(3), 3, "2 more questions wait: `inspan inbox` lists all"));
}
