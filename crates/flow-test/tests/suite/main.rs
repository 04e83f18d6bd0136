//! Test files as their authors write them: what passes, what fails and with which words, and that nothing is ever run.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use std::{
    fs,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

use inspan_engine::ProviderRegistry;
use inspan_flow::{DescribeNode, NodeContext, NodeKind, NodeRegistry, NodeType, NodeTypeInfo, builtin_nodes};
use inspan_flow_test::{Options, Report, SnapshotMode, Suite, find};
use inspan_protocol::AgentError;
use serde_json::{Value, json};
use tempfile::TempDir;

mod answers;

fn providers() -> ProviderRegistry {
    inspan_providers::builtin().into_iter().collect()
}

/// A folder with these files.
fn folder(files: &[(&str, &str)]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (path, text) in files {
        let path = folder.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    folder
}

fn run_in(folder: &Path, options: &Options) -> Report {
    Suite::new(&providers(), builtin_nodes).run(&find(&[folder.to_owned()]).unwrap(), options)
}

/// What fails of a flow and its cases, as `case / key: message`.
fn failures(flow: &str, cases: &str) -> Vec<String> {
    let folder = folder(&[("f.yaml", flow), ("f.test.yaml", cases)]);
    failed(&run_in(folder.path(), &Options::default()), folder.path())
}

fn failed(report: &Report, folder: &Path) -> Vec<String> {
    let place = format!("{}/", folder.display());
    let problems = report.problems.iter().map(|problem| problem.to_string());
    let failures = report.cases().flat_map(|case| {
        case.failures
            .iter()
            .map(|failure| format!("{} / {}: {}", case.name, failure.key, failure.message.trim_end()))
    });
    problems.chain(failures).map(|text| text.replace(&place, "")).collect()
}

const REVIEW: &str = "
name: review
input: { topic: oxen }
nodes:
  - { id: write, type: claude.agent, session: write, input: { prompt: 'Write about {{ flow.input.topic }}.{% if check %} Fix: {{ check.text }}{% endif %}' } }
  - { id: check, type: claude.agent, input: { prompt: 'Check: {{ write.text }}' } }
  - { id: build, type: exec, input: { argv: [make, '{{ write.text }}'], parse: json, allowExit: [3] } }
edges:
  - { from: write, to: check }
  - { from: check, to: write, when: \"'PASS' not in check.text\", maxIterations: 2 }
  - { from: check, to: build, when: \"'PASS' in check.text\" }
";

#[test]
fn what_is_as_expected_passes() {
    let cases = "
defaults:
  answers: { write: A text., check: PASS, build: '{\"ok\": true}' }
cases:
  - name: all kinds of expectations
    input: { topic: mules }
    answers: { write: [First., { text: Second., costUsd: 0.5, takes: 2m }], check: [Too short., PASS], build: { stdout: '[1]', exitCode: 3 } }
    expect:
      path: [write, check, write#2, check#2, build]
      statuses: { write: complete, check#1: complete }
      outputs:
        write.text: Second.
        write#1.text: First.
        check: { contains: { text: PASS }, schema: { type: object, required: [sessionId] } }
        build.value[0]: 1
        build.exitCode: { value: 3 }
        build.signal: { absent: true }
      prompts:
        write: { matches: '^Write about mules' }
        write#2: 'Write about mules. Fix: Too short.'
        check#2: { contains: Second., excludes: First. }
      attempts: { write: 2, write#2: 1, build: 1 }
      costUsd: 0.5
      duration: { min: 2m, max: 2m }
  - name: the end of a list of matches
    expect:
      path: { includes: [write, build], excludes: [write#2] }
      costUsd: { max: 0.1 }
";
    assert_eq!(failures(REVIEW, cases), [""; 0]);
}

#[test]
fn what_is_not_as_expected_fails_by_its_key() {
    let cases = "
defaults:
  answers: { write: A text., check: PASS, build: '{}' }
cases:
  - name: a
    expect:
      outcome: failed
      path: [write, build]
      statuses: { check: skipped, build: complete }
      outputs: { write.text: Another text., check.nothing: x, build.value: { contains: { a: 1 } } }
      prompts: { check: { contains: mules } }
      questions: { write: { contains: x } }
      attempts: { write: 3 }
      costUsd: 1
      duration: { min: 1s }
  - name: b
    answers: { build: { stdout: 'no json', exitCode: 1, stderr: broken } }
    expect: { outputs: { build.value: 1 }, path: { includes: [build, write], anyOrder: [build, write, 'write#2'], excludes: [check] } }
";
    let expected = [
        "a / expect.outcome: the outcome is success, not failed",
        "a / expect.costUsd: it costs 0 US dollars, not 1",
        "a / expect.duration: it takes 0ms, which is less than 1s",
        "a / expect.path: other nodes start, or in another order:\n--- expected\n+++ started\n@@ -1,2 +1,3 @@\n write\n+check\n build",
        "a / expect.statuses.check: it is complete, not skipped",
        "a / expect.outputs.build.value: {\"a\":1} is not in {}",
        "a / expect.outputs.check.nothing: there is no such value",
        "a / expect.outputs.write.text: another value:\n--- expected\n+++ actual\n@@ -1 +1 @@\n-Another text.\n+A text.",
        "a / expect.questions.write: the node asked nothing",
        "a / expect.prompts.check: \"mules\" is not in \"Check: A text.\"",
        "a / expect.attempts.write: it is tried 1 times, not 3 times",
        "b / expect.outcome: the outcome is failed, not success\n`make` exited with code 1: broken (PROCESS)",
        "b / expect.path.includes: `write` does not start in this order; started: write, check, build",
        "b / expect.path.anyOrder: `write#2` does not start; started: write, check, build",
        "b / expect.path.excludes: `check` starts",
        "b / expect.outputs.build.value: there is no output: it is failed",
    ];
    assert_eq!(failures(REVIEW, cases), expected);
}

#[test]
fn an_expectation_holds_in_every_pass_and_for_every_item() {
    let flow = "
name: all
nodes:
  - { id: write, type: claude.agent, input: { prompt: '{{ ok.content | default(\"the password is hunter2\") }}' } }
  - { id: ok, type: human.input, input: { prompt: 'Is {{ write.text }} right?' } }
  - id: each
    type: control.foreach
    input: { items: [a, b, c], onItemError: continue }
    body:
      nodes:
        - { id: say, type: claude.agent, input: { prompt: 'Say {{ item }}.' } }
        - { id: run, type: exec, dependsOn: [say], when: \"item != 'c'\", input: { argv: [run] } }
edges:
  - { from: write, to: ok }
  - { from: ok, to: write, when: \"ok.content == 'go on'\", maxIterations: 2 }
  - { from: ok, to: each, when: \"ok.content != 'go on'\" }
";
    let cases = "
defaults:
  answers: { write: [DANGER, calm], each/say: said, each/run: ok, 'each[1]/run': { stdout: ok, exitCode: 1 } }
  replies: { ok: [go on, done] }
cases:
  - name: good
    expect:
      prompts: { write#2: { excludes: hunter2 }, write: { excludes: Say }, each/say: { contains: Say }, 'each[1]/say': { excludes: a. } }
      questions: { ok: { contains: right, excludes: Say } }
      outputs: { 'each[0]/run.stdout': ok, each/say.text: said, 'each[1]/run': { absent: true } }
  - name: bad
    expect:
      prompts: { write: { excludes: hunter2 }, each/say: { excludes: a. } }
      questions: { ok: { excludes: DANGER } }
      outputs: { each/run.stdout: ok }
  - name: one item
    expect: { prompts: { each/say: { contains: b. } } }
  - name: unbegun
    answers: { 'each[1]/say': { error: auth } }
    expect:
      outputs: { each/run.stdout: ok, 'each[1]/run': { absent: true } }
      statuses: { each/run: complete, 'each[1]/run': pending }
      attempts: { each/run: 1, 'each[0]/run': 1, 'each[1]/run': 0 }
  - name: nowhere
    answers: { each/say: { error: auth } }
    expect: { outputs: { each/run: { absent: true } }, statuses: { each/run: pending }, attempts: { each/run: 0 } }
";
    let expected = [
        "bad / expect.outputs.each/run.stdout: each[1]/run: there is no output: it is failed",
        "bad / expect.outputs.each/run.stdout: each[2]/run: there is no output: it is skipped",
        "bad / expect.questions.ok: ok: \"DANGER\" is in \"Is DANGER right?\"",
        "bad / expect.prompts.each/say: each[0]/say: \"a.\" is in \"Say a.\"",
        "bad / expect.prompts.write: write: \"hunter2\" is in \"the password is hunter2\"",
        "one item / expect.prompts.each/say: each[0]/say: \"b.\" is not in \"Say a.\"",
        "one item / expect.prompts.each/say: each[2]/say: \"b.\" is not in \"Say c.\"",
        "unbegun / expect.statuses.each/run: each[2]/run: it is skipped, not complete",
        "unbegun / expect.statuses.each/run: each[1]/run: it is pending, not complete",
        "unbegun / expect.outputs.each/run.stdout: each[2]/run: there is no output: it is skipped",
        "unbegun / expect.outputs.each/run.stdout: each[1]/run: there is no output: it is pending",
        "unbegun / expect.attempts.each/run: each[1]/run: it is tried 0 times, not 1 times",
        "unbegun / expect.attempts.each/run: each[2]/run: it is tried 0 times, not 1 times",
    ];
    assert_eq!(failures(flow, cases), expected);
}

#[test]
fn an_item_is_expected_of_the_newest_pass_of_the_node_around_it() {
    let flow = "
name: passes
nodes:
  - { id: list, type: exec, input: { argv: [list], parse: json } }
  - id: each
    type: control.foreach
    policy: { continueOnError: true }
    input: { items: '{{ list.value }}', maxConcurrency: 1 }
    body:
      nodes:
        - { id: say, type: claude.agent, input: { prompt: 'Say {{ item }}.' } }
        - { id: run, type: exec, dependsOn: [say], input: { argv: [run] } }
edges:
  - { from: list, to: each }
  - { from: each, to: list, when: each.failed, maxIterations: 1 }
";
    let cases = "
defaults:
  answers: { each/say: ok, 'each#1[1]/say': { error: auth }, each/run: ok }
cases:
  - name: fewer
    answers: { list: [{ stdout: '[1, 2, 3]' }, { stdout: '[4]' }] }
    expect:
      statuses: { each/say: complete, each/run: complete, 'each#1[1]/say': failed, 'each#1[1]/run': pending }
      outputs: { each/run.stdout: ok, 'each#1[2]/run': { absent: true } }
      attempts: { 'each[0]/run': 2, 'each[1]/say': 1, 'each[1]/run': 0, 'each#2/run': 1 }
      prompts: { 'each[0]/say': { contains: '4' } }
  - name: the same
    answers: { list: { stdout: '[1, 2, 3]' }, 'each#2[2]/run': { exitCode: 1 } }
    expect: { outcome: failed, statuses: { each/run: complete }, attempts: { each/run: 1 } }
";
    let expected = [
        "the same / expect.statuses.each/run: each#2[2]/run: it is failed, not complete",
        "the same / expect.attempts.each/run: each[0]/run: it is tried 2 times, not 1 times",
    ];
    assert_eq!(failures(flow, cases), expected);
}

#[test]
fn any_node_in_an_expectation_means_only_places_that_the_flow_has() {
    let flow = "
name: stars
nodes:
  - { id: a, type: control.foreach, input: { items: [1, 2], onItemError: continue }, body: { nodes: [{ id: say, type: exec, input: { argv: [say] } }, { id: run, type: exec, dependsOn: [say], input: { argv: [run] } }] } }
  - { id: b, type: control.loop, input: { maxIterations: 1, until: go.stdout }, body: { nodes: [{ id: go, type: exec, input: { argv: [go] } }] } }
";
    let cases = "
cases:
  - name: a
    answers: { a/say: ok, 'a[1]/say': { exitCode: 1 }, a/run: ok, b/go: ok }
    expect: { statuses: { '*/run': complete, '*[0]/*': complete }, outputs: { '*/run.stdout': ok }, attempts: { '*/run': 1 } }
";
    let expected = [
        "a / expect.statuses.*/run: a[1]/run: it is pending, not complete",
        "a / expect.outputs.*/run.stdout: a[1]/run: there is no output: it is pending",
        "a / expect.attempts.*/run: a[1]/run: it is tried 0 times, not 1 times",
    ];
    assert_eq!(failures(flow, cases), expected);
}

#[test]
fn an_expectation_that_checks_nothing_is_refused() {
    let cases = "
cases:
  - name: a
    expect: { costUsd: {} }
";
    let expected =
        ["f.test.yaml:4:24: `cases[0].expect.costUsd`: nothing is expected: use a number, or `min` or `max`"];
    assert_eq!(failures(REVIEW, cases), expected);
    let (in_path, empty) =
        ("name nodes in `includes`, `anyOrder` or `excludes`", "say what, or leave the key out");
    let rows = [
        ("duration: {}", "duration", 25, "use `min` or `max`"),
        ("path: {}", "path", 21, in_path),
        ("path: { includes: [] }", "path", 21, in_path),
        ("statuses: {}", "statuses", 25, empty),
        ("outputs: {}", "outputs", 24, empty),
        ("prompts: {}", "prompts", 24, empty),
        ("questions: {}", "questions", 26, empty),
        ("attempts: {}", "attempts", 25, empty),
        ("error: null", "error", 22, empty),
    ];
    for (expect, key, column, why) in rows {
        let found = failures(REVIEW, &cases.replace("costUsd: {}", expect));
        let place = format!("f.test.yaml:4:{column}: `cases[0].expect.{key}`");
        assert_eq!(found, [format!("{place}: nothing is expected: {why}")], "{expect}");
    }
}

#[test]
fn what_the_flow_gives_is_compared() {
    let flow = "
name: gives
outputs: { n: '{{ count.value }}', list: [a] }
nodes:
  - { id: count, type: constant, when: 'flow.input.n != 0', input: { value: '{{ flow.input.n }}' } }
input: { n: 2 }
";
    let cases = "
cases:
  - { name: good, expect: { outputs: { flow: { value: { n: 2, list: [a] } }, 'flow.list[0]': a, flow.none: { absent: true } } } }
  - { name: bad, expect: { outputs: { flow.n: 3 } } }
  - { name: none, input: { n: 0 }, expect: { outcome: failed, outputs: { flow.n: 3 } } }
";
    let expected = [
        "bad / expect.outputs.flow.n: another value:\n--- expected\n+++ actual\n@@ -1 +1 @@\n-3\n+2",
        "none / expect.outputs.flow.n: the flow gives nothing: it declares no `outputs`, or has not ended",
    ];
    assert_eq!(failures(flow, cases), expected);
}

/// Counts how often it has run in this process, which a flow should not depend on.
struct Count(Arc<AtomicU32>);

impl DescribeNode for Count {
    fn describe(&self) -> NodeTypeInfo {
        NodeTypeInfo::with_open_schemas("my.count", "core", NodeKind::Plain)
    }
}

impl NodeType for Count {
    async fn run(&self, _: NodeContext, _: Value) -> Result<Value, AgentError> {
        let number = self.0.fetch_add(1, Ordering::Relaxed) + 1;
        Ok(json!({ "number": number }))
    }
}

const COUNT: &str = "
name: count
nodes:
  - { id: a, type: echo.agent, input: { prompt: hi } }
  - { id: n, type: my.count, dependsOn: [a] }
";

fn counting(runs: &Arc<AtomicU32>) -> Suite {
    let runs = runs.clone();
    Suite::new(&providers(), move |providers| {
        let mut nodes: NodeRegistry = builtin_nodes(providers);
        nodes.register(Count(runs));
        nodes
    })
}

#[test]
fn a_crash_that_changes_the_result_is_found() {
    let cases = "
cases:
  - { name: anywhere, answers: { a: hi }, faults: [{ crashAfter: each }] }
  - { name: nowhere, answers: { a: hi }, faults: [{ crashAfter: a#2 }] }
";
    let folder = folder(&[("f.yaml", COUNT), ("f.test.yaml", cases)]);
    let runs = Arc::default();
    let suite = counting(&runs).run_as_it_is("my.count");
    let report = suite.run(
        &find(&[folder.path().to_owned()]).unwrap(),
        &Options { threads: std::num::NonZero::new(1), ..Options::default() },
    );
    let expected = [
        "anywhere / faults.crashAfter.a: after the crash `n` gives another output:\n--- without the crash\n+++ after the \
         crash\n@@ -1,3 +1,3 @@\n {\n-  \"number\": 1\n+  \"number\": 2\n }",
        "nowhere / faults.crashAfter: `a#2` does not end, so nothing crashes",
    ];
    assert_eq!(failed(&report, folder.path()), expected);
}

#[test]
fn what_a_race_decides_at_the_moment_of_the_failure_may_differ_after_a_crash() {
    let nodes = "[
  { id: plan, type: exec, input: { argv: [plan] } },
  { id: note, type: claude.agent, input: { prompt: hi } },
  { id: check, type: exec, dependsOn: [plan], input: { argv: [check] } },
  { id: after, type: exec, dependsOn: [note], input: { argv: [after] } },
]";
    let cases = "
cases:
  - name: a
    answers: { IN/plan: { takes: 1m }, IN/note: { text: done, takes: 2m }, IN/check: { exitCode: 1, takes: 1m }, IN/after: ok }
    faults: [{ crashAfter: each }]
    expect: { outcome: OUTCOME }
  - name: b
    answers: { IN/plan: { takes: 1m }, IN/note: { text: done, takes: 1m }, IN/check: { exitCode: 1 }, IN/after: ok }
    faults: [{ crashAfter: each }]
    expect: { outcome: OUTCOME }
";
    let flow = format!("name: race\nnodes: {nodes}\n");
    let in_flow = cases.replace("IN/", "").replace("OUTCOME", "failed");
    assert_eq!(failures(&flow, &in_flow), [""; 0]);
    let each = "id: each, type: control.foreach, input: { items: [1], onItemError: continue }";
    let flow = format!("name: race\nnodes: [{{ {each}, body: {{ nodes: {nodes} }} }}]\n");
    let in_item = cases.replace("IN/", "each/").replace("OUTCOME", "success");
    assert_eq!(failures(&flow, &in_item), [""; 0]);
}

#[test]
fn a_node_type_of_a_program_is_answered_unless_the_program_says_otherwise() {
    let cases = "
cases:
  - { name: answered, answers: { a: hi, n: { number: 42 } }, expect: { outputs: { n.number: 42 } } }
  - { name: an error, answers: { a: hi, n: { error: process } }, expect: { outcome: failed } }
  - { name: not answered, answers: { a: hi } }
";
    let folder = folder(&[("f.yaml", COUNT), ("f.test.yaml", cases)]);
    let runs = Arc::default();
    let report = counting(&runs).run(&find(&[folder.path().to_owned()]).unwrap(), &Options::default());
    let expected = [
        "not answered / answers.n: there is no answer for `n`: add `answers: { n: … }`\nit is sent:\n    {}",
    ];
    assert_eq!(
        (failed(&report, folder.path()), runs.load(Ordering::Relaxed)),
        (expected.map(str::to_owned).into(), 0)
    );
}

#[test]
fn what_is_wrong_with_a_file_is_said_with_its_place() {
    let rows = [
        (
            "cases:\n  - name: a\n    expct: {}\n",
            "f.test.yaml:3:5: unknown key `expct`: did you mean `expect`?",
        ),
        ("cases: []\n", "f.test.yaml: `cases`: the file has no cases"),
        ("cases:\n  - { expect: {} }\n", "f.test.yaml:2:5: `cases[0].name`: a case needs a name"),
        (
            "cases:\n  - { name: a }\n  - { name: a }\n",
            "f.test.yaml:3:5: `cases[1].name`: the name `a` is taken by the case in line 2",
        ),
        (
            "cases:\n  - name: a\n    answers:\n      chek: x\n",
            "f.test.yaml:4:13: `cases[0].answers.chek`: unknown node `chek`: did you mean `check`?",
        ),
        (
            "cases:\n  - name: a\n    answers:\n      check[1]: x\n",
            "f.test.yaml:4:17: `cases[0].answers.check[1]`: `check[1]` ends with an iteration: add the node, as in \
             `check[1]/review`",
        ),
        (
            "cases:\n  - name: a\n    faults: [{ node: check }]\n",
            "f.test.yaml:3:14: `cases[0].faults[0]`: a fault has exactly one of `error`, `deny` and `crashAfter`",
        ),
        (
            "cases:\n  - name: a\n    expect: { outputs: { check: { matches: '(' } } }\n",
            "f.test.yaml:3:33: `cases[0].expect.outputs.check`: `(` is not a regular expression",
        ),
        (
            "cases:\n  - name: a\n    expect:\n      statuses:\n        chek: complete\n",
            "f.test.yaml:5:15: `cases[0].expect.statuses.chek`: unknown node `chek`: did you mean `check`?",
        ),
        (
            "cases:\n  - name: a\n    expect:\n      path: [write,\n        chek]\n",
            "f.test.yaml:5:9: `cases[0].expect.path.chek`: unknown node `chek`: did you mean `check`?",
        ),
        (
            "cases:\n  - name: a\n    expect:\n      statuses: { check: [complete] }\n",
            "f.test.yaml:4:26: `cases[0].expect.statuses.check`: expected one word, such as `complete`",
        ),
        (
            "flow: none.yaml\ncases: [{ name: a }]\n",
            "f.test.yaml:1:7: `flow`: flow file none.yaml does not exist",
        ),
        ("cases: [\n", "f.test.yaml:1:8: unclosed bracket '['"),
        ("cases:\n  - { name: a, clock: noon }\n", "f.test.yaml:2:23: "),
        (
            "cases:\n  - { name: a, recordings: none }\n",
            "f.test.yaml:2:5: `cases[0].recordings`: recording `none`: No such file or directory (os error 2)",
        ),
        (
            "defaults:\n  recordings: none\ncases:\n  - { name: a }\n  - { name: b }\n",
            "f.test.yaml:2:3: `defaults.recordings`: recording `none`: No such file or directory (os error 2)",
        ),
    ];
    for (cases, expected) in rows {
        let found = failures(REVIEW, cases);
        assert!(found.len() == 1 && found[0].starts_with(expected), "{cases}{found:#?}");
        assert!(expected.ends_with(": ") || found[0] == expected, "{cases}{found:#?}");
    }
}

#[test]
fn a_value_of_the_wrong_kind_is_named_with_what_is_expected() {
    let rows = [
        (
            "expect: { path: write }",
            21,
            "expect.path",
            "a list of nodes, or a mapping with lists of nodes under `includes`, `anyOrder` or `excludes`",
        ),
        (
            "expect: { path: { includes: write } }",
            21,
            "expect.path",
            "a list of nodes, or a mapping with lists of nodes under `includes`, `anyOrder` or `excludes`",
        ),
        ("expect: { attempts: { write: two } }", 34, "expect.attempts.write", "a whole number"),
        ("expect: { attempts: { write: -1 } }", 34, "expect.attempts.write", "a whole number"),
        ("expect: { costUsd: '1' }", 24, "expect.costUsd", "a number, or a mapping with `min` or `max`"),
        (
            "expect: { duration: 8h }",
            25,
            "expect.duration",
            "a mapping with `min` or `max`, such as `{ max: 10m }`",
        ),
        ("expect: { outcome: [success] }", 24, "expect.outcome", "one word, such as `failed`"),
        (
            "expect: { statuses: complete }",
            25,
            "expect.statuses",
            "a mapping from nodes to their states, such as `{ review: complete }`",
        ),
        ("expect: { outputs: hello }", 24, "expect.outputs", "a mapping from nodes to what they give or ask"),
        ("messages: { write: hi }", 24, "messages.write", "a list of texts, one for each turn"),
        ("answers: x", 14, "answers", "a mapping from nodes to what they answer"),
        ("faults: [boom]", 14, "faults[0]", "a mapping, such as `{ node: review, error: timeout }`"),
        ("faults: [{ crashAfter: [a] }]", 28, "faults[0].crashAfter", "a node, or `each`"),
    ];
    for (written, column, key, expected) in rows {
        let found = failures(REVIEW, &format!("cases:\n  - name: a\n    {written}\n"));
        let place = format!("f.test.yaml:3:{column}: `cases[0].{key}`");
        assert_eq!(found, [format!("{place}: expected {expected}")]);
    }
}

#[test]
fn prompts_are_stored_compared_and_accepted() {
    let cases = "
defaults: { answers: { write: A text., check: PASS, build: '{}' } }
cases:
  - { name: first, expect: { prompts: snapshot } }
  - { name: second, input: { topic: mules }, expect: { prompts: snapshot } }
";
    let folder = folder(&[("f.yaml", REVIEW), ("f.test.yaml", cases)]);
    let place = folder.path();
    let compare = || failed(&run_in(place, &Options::default()), place);
    let update = |filter: &[&str]| {
        let filter = filter.iter().map(|text| (*text).to_owned()).collect();
        let report =
            run_in(place, &Options { snapshots: SnapshotMode::Update, filter, ..Options::default() });
        report.written.len()
    };
    let none = |name: &str| {
        format!("{name} / expect.prompts: there is no snapshot yet: `inspan test --update` stores it")
    };
    assert_eq!(compare(), [none("first"), none("second")]);
    assert_eq!((update(&["first"]), compare()), (1, vec![none("second")]));
    assert_eq!((update(&[]), compare(), update(&[])), (1, Vec::<String>::new(), 0));
    let stored = fs::read_to_string(place.join("f.test.snap.yaml")).unwrap();
    let expected = "# Prompts as sent. `inspan test --update` writes this file; do not edit it.\nfirst: { check: \
                    \"Check: A text.\", write: Write about oxen. }\nsecond: { check: \"Check: A text.\", write: Write \
                    about mules. }\n";
    assert_eq!(stored, expected);

    fs::write(place.join("f.yaml"), REVIEW.replace("Check: ", "Look at: ")).unwrap();
    let changed = |name: &str| {
        format!(
            "{name} / expect.prompts.check: another prompt is sent (`--update` accepts it):\n--- stored\n+++ sent\n@@ \
             -1 +1 @@\n-Check: A text.\n+Look at: A text."
        )
    };
    assert_eq!(compare(), [changed("first"), changed("second")]);
    // A case that fails keeps what was accepted of it.
    fs::write(place.join("f.test.yaml"), cases.replace("'{}'", "{ exitCode: 1 }")).unwrap();
    assert_eq!((update(&[]), fs::read_to_string(place.join("f.test.snap.yaml")).unwrap()), (0, stored));
    fs::write(place.join("f.test.yaml"), cases.replace("first, expect: { prompts: snapshot }", "first"))
        .unwrap();
    let report = run_in(place, &Options::default());
    assert_eq!(report.files[0].warnings, ["the snapshot of `first` is of no case: `--update` removes it"]);
    assert_eq!((update(&[]), compare()), (1, Vec::<String>::new()));
    fs::write(place.join("f.test.yaml"), cases.replace(", expect: { prompts: snapshot }", "")).unwrap();
    assert_eq!((update(&[]), place.join("f.test.snap.yaml").exists()), (1, false));
}

#[test]
fn snapshots_that_cannot_be_read_are_written_anew_as_a_whole() {
    let cases = "
defaults: { answers: { write: A text., check: PASS, build: '{}' } }
cases:
  - { name: first, expect: { prompts: snapshot } }
  - { name: second, expect: { prompts: snapshot } }
";
    let broken = "<<<<<<< HEAD\nfirst: {}\n=======\n";
    let folder = folder(&[("f.yaml", REVIEW), ("f.test.yaml", cases), ("f.test.snap.yaml", broken)]);
    let place = folder.path();
    let update = |filter: &[&str]| {
        let filter = filter.iter().map(|text| (*text).to_owned()).collect();
        let report =
            run_in(place, &Options { snapshots: SnapshotMode::Update, filter, ..Options::default() });
        (report.written.len(), failed(&report, place))
    };
    let stored = || fs::read_to_string(place.join("f.test.snap.yaml")).unwrap();
    let why = failed(&run_in(place, &Options::default()), place);
    assert!(why.len() == 1 && why[0].contains("if all cases with a snapshot run and pass"), "{why:#?}");
    assert_eq!((update(&["first"]), stored()), ((0, why), broken.to_owned()));
    assert_eq!(update(&[]), (1, Vec::new()));
    assert!(stored().contains("first: {") && stored().contains("second: {"));
    assert_eq!(failed(&run_in(place, &Options::default()), place), [""; 0]);
}

#[test]
fn coverage_counts_nodes_edges_and_ways_to_fail() {
    let flow = "
name: covered
nodes:
  - { id: a, type: claude.agent, input: { prompt: x }, policy: { continueOnError: true, retry: { maxAttempts: 2 } } }
  - { id: b, type: echo, when: 'not a.failed', dependsOn: [a], input: { text: x } }
  - { id: c, type: echo, input: { text: x } }
edges:
  - { from: a, to: c, when: a.failed }
";
    let percents = |cases: &str| {
        let folder = folder(&[("f.yaml", flow), ("f.test.yaml", cases)]);
        let report = run_in(folder.path(), &Options::default());
        assert!(report.passed(), "{}", report.tap());
        let coverage = &report.coverage[0];
        let missing =
            [&coverage.nodes, &coverage.edges, &coverage.failure_routes].map(|part| part.missing.join(", "));
        (report.coverage_percent().round(), missing)
    };
    let good = "cases:\n  - { name: good, answers: { a: x } }\n";
    let missing = ["c", "a -> c", "a failure of `a`, a retry of `a`"].map(str::to_owned);
    assert_eq!(percents(good), (43.0, missing));
    let bad = format!("{good}  - {{ name: bad, answers: {{ a: {{ error: network }} }} }}\n");
    assert_eq!(percents(&bad), (100.0, [(); 3].map(|()| String::new())));
}

#[test]
fn test_files_are_found_and_cases_are_chosen() {
    let chain = "name: chain\nnodes: [{ id: a, type: echo, input: { text: x } }]\n";
    let case = |name: &str| format!("cases: [{{ name: {name} }}]\n");
    let folder = folder(&[
        ("a.yaml", chain),
        ("a.test.yaml", &case("one")),
        ("tests/a.test.yaml", &case("two")),
        ("tests/more.test.yml", &format!("flow: ../a.yaml\n{}", case("three"))),
        ("b/b.yaml", chain),
        ("b/b.test.yaml", &case("four")),
        (".hidden/c.test.yaml", "no"),
        ("node_modules/d.test.yaml", "no"),
        ("c.yaml", chain),
    ]);
    let names = |paths: &[&str], filter: &[&str]| {
        let paths: Vec<_> = paths.iter().map(|path| folder.path().join(path)).collect();
        let files = find(&paths).map_err(|problem| problem.message)?;
        let filter = filter.iter().map(|text| (*text).to_owned()).collect();
        let report =
            Suite::new(&providers(), builtin_nodes).run(&files, &Options { filter, ..Options::default() });
        assert!(report.passed(), "{}", report.tap());
        Ok::<_, String>(report.cases().map(|case| case.name.clone()).collect::<Vec<_>>())
    };
    let all = ["one", "four", "two", "three"].map(str::to_owned).to_vec();
    assert_eq!(names(&[""], &[]), Ok(all.clone()));
    assert_eq!(names(&["a.yaml"], &[]), Ok(["one", "two", "three"].map(str::to_owned).to_vec()));
    assert_eq!(
        names(&["", "b/b.test.yaml"], &["tests/", "fou"]),
        Ok(["four", "two", "three"].map(str::to_owned).to_vec())
    );
    let none = "this flow has no test file: none beside it, and none in `tests`, is for it";
    assert_eq!(names(&["c.yaml"], &[]), Err(none.to_owned()));

    // Where no case is chosen, none has passed.
    let files = find(&[folder.path().to_owned()]).unwrap();
    for options in [
        Options { filter: vec!["fuor".to_owned()], ..Options::default() },
        Options { only: Some("fuor".to_owned()), ..Options::default() },
    ] {
        let report = Suite::new(&providers(), builtin_nodes).run(&files, &options);
        let tap = "TAP version 14\n1..0\n# no case has run\n";
        assert_eq!((report.passed(), report.tap().as_str()), (false, tap));
    }

    // One that cannot be read may be for any flow beside it.
    fs::write(folder.path().join("tests/odd.test.yaml"), "flow: ../a.yaml\ncase: []\n").unwrap();
    let problems = |path: &str| {
        let files = find(&[folder.path().join(path)]).unwrap();
        failed(&Suite::new(&providers(), builtin_nodes).run(&files, &Options::default()), folder.path())
    };
    for path in ["a.yaml", "c.yaml"] {
        let problems = problems(path);
        assert!(
            problems[0].starts_with("tests/odd.test.yaml:2:1: unknown key `case`"),
            "{path}: {problems:?}"
        );
        assert_eq!(problems.len(), 1);
    }
    assert_eq!(problems("b/b.yaml"), Vec::<String>::new());
}
