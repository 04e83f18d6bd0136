//! `inspan test` and `inspan compare` as their users see them; and the project's own flows, tested by the same suite.

use std::path::{Path, PathBuf};

use inspan_flow::builtin_nodes;
use inspan_flow_test::{Options, Suite, find};
use serde_json::Value;

use crate::commands;
use crate::processes::{signal, until};
use crate::program::{flow_folder, folder_with, inspan, paths_below, program, ran, snapshot};

const FLOW: &str = "
name: greet
nodes:
  - { id: a, type: claude.agent, input: { prompt: 'Greet {{ flow.input.who }}.' } }
  - { id: b, type: exec, dependsOn: [a], input: { argv: [touch, ran] } }
  - { id: c, type: echo, when: \"flow.input.who == 'Eve'\", dependsOn: [b], input: { text: x } }
input: { who: Ada }
";

const CASES: &str = "
defaults: { answers: { a: Hello., b: '' } }
cases:
  - { name: good, expect: { path: [a, b] } }
  - { name: wrong, expect: { outputs: { a.text: Bye. } } }
  - { name: not answered, recordings: recordings }
";

/// One call of the program among these files, which starts no program.
fn check(name: &str, files: &[(&str, &str)], arguments: &[&str]) {
    let folder = commands::check(name, files, arguments);
    assert!(!folder.join("ran").exists(), "a program ran");
}

#[test]
fn the_results_of_cases_are_shown() {
    let near = r#"{ "version": 2, "provider": "claude", "key": "k", "input": { "prompt": "Greet Eve." }, "events": [],
        "output": { "text": "Hello." } }"#;
    let files: &[_] = &[("greet.yaml", FLOW), ("greet.test.yaml", CASES), ("recordings/claude-1.json", near)];
    check("test", files, &["test", "--jobs", "1"]);
    check("test-json", files, &["test", "--json", "--filter", "wrong"]);
    check("test-formats", files, &["test", "--json", "--format", "tap"]);
    check("test-tap", files, &["test", "greet.yaml", "--format", "tap"]);
    check("test-coverage", files, &["test", "--filter", "good", "--min-coverage", "90"]);
    check("test-good", files, &["test", "--filter", "good"]);
    check("test-no-case", files, &["test", "--filter", "nothing"]);
    check("test-none", &[], &["test"]);
    let broken: &[_] = &[("greet.yaml", FLOW), ("greet.test.yaml", "cases:\n  - name: x\n    expct: {}\n")];
    check("test-broken", broken, &["test"]);
    check("test-broken-json", broken, &["test", "--json"]);
}

#[test]
fn the_settings_of_the_project_hold_in_tests_and_those_of_the_user_do_not() {
    let folder = &folder_with(&[
        ("f.yaml", "name: f\nnodes:\n  - { id: a, agent: writer, input: { prompt: Write. } }\n"),
        (
            "f.test.yaml",
            "defaults: { answers: { a: Text. }, faults: [{ node: a, error: auth }] }
cases:
  - { name: fails, expect: { outcome: failed } }
  - { name: none, faults: [], expect: { outcome: success } }
",
        ),
        ("inspan.toml", "[agents.writer]\ntype = \"claude.agent\"\n"),
    ]);
    let ran = inspan(folder, &["test", "--format", "tap"]).expect(0);
    ran.prints("ok 1 - f.test.yaml - fails").prints("ok 2 - f.test.yaml - none");
    std::fs::write(folder.join("inspan.toml"), "[agents.writer]\ntyp = 1\n").unwrap();
    inspan(folder, &["test"]).expect(2).prints("~/inspan.toml:2: unknown field `typ`");
    std::fs::remove_file(folder.join("inspan.toml")).unwrap();
    std::fs::create_dir_all(folder.join(".config/inspan")).unwrap();
    let user = folder.join(".config/inspan/config.toml");
    std::fs::write(&user, "[agents.writer]\ntype = \"claude.agent\"\n").unwrap();
    inspan(folder, &["test"]).expect(2).prints("writer");
}

#[test]
fn sessions_are_compared() {
    let flow = "
name: twice
input: { n: 1 }
nodes:
  - { id: a, type: echo.agent, input: { prompt: 'say {{ flow.input.n }}' } }
  - { id: b, type: echo, when: 'flow.input.n == 2', dependsOn: [a], input: { text: b } }
";
    let folder = &flow_folder(flow);
    for (session, input) in [("one", "n=1"), ("again", "n=1"), ("two", "n=2")] {
        inspan(folder, &["run", "--session-id", session, "-i", input]).expect(0);
    }
    // How wide the columns are depends on the times.
    let compared = inspan(folder, &["compare", "one", "two"]).report();
    let words = |line: &str| {
        line.split("  ").map(str::trim).filter(|word| !word.is_empty()).collect::<Vec<_>>().join("  ")
    };
    let compared: String = compared.lines().map(|line| words(line) + "\n").collect();
    snapshot!("compare", compared);
    let same = |other: &str| {
        let ran = inspan(folder, &["compare", "one", other, "--json"]);
        ran.json()["same"].clone()
    };
    assert_eq!([same("again"), same("two")], [true, false].map(Value::from));
    inspan(folder, &["compare", "one", "three"]).expect(2);
}

#[test]
fn a_case_of_another_flow_leaves_the_file_as_it_is() {
    let node = |name: &str, id: &str| {
        format!(
            "flow: {{ name: {name} }}\nnodes:\n  - {{ id: {id}, type: echo.agent, input: {{ prompt: hi }} }}\n"
        )
    };
    let cases = "cases:\n  - { name: fine, answers: { a: x } }\n";
    let (one, two) = (node("one", "a"), node("two", "b"));
    let folder = &folder_with(&[("one.yaml", &one), ("one.test.yaml", cases), ("two.yaml", &two)]);
    inspan(folder, &["run", "two.yaml", "--session-id", "s"]).expect(0);
    let refused = inspan(folder, &["test", "--from", "s", "one.test.yaml"]).expect(2);
    assert!(
        refused.stderr.contains("unknown node `b`") && refused.stderr.contains("two.yaml"),
        "{}",
        refused.stderr
    );
    assert_eq!(std::fs::read_to_string(folder.join("one.test.yaml")).unwrap(), cases);
}

#[test]
fn a_case_is_made_of_a_session() {
    let folder = &folder_with(&[]);
    inspan(folder, &["init"]).expect(0);
    let secret = "planted-7d1f9c2e";
    let mut run =
        program(folder, &["run", "--session-id", "real", "--no-input", "-i", &format!("topic={secret}")]);
    ran(folder, run.env("MY_TOKEN", secret)).expect(0);
    let mut make = program(folder, &["test", "--from", "real", "--json"]);
    let made = ran(folder, make.env("MY_TOKEN", secret));
    let value = made.json();
    assert_eq!(
        (made.code, &value["passed"], &value["case"]),
        (Some(0), &1.into(), &"as in session real".into()),
        "{value:#}"
    );
    let text = std::fs::read_to_string(folder.join("flow.test.yaml")).unwrap();
    assert!(!text.contains(secret) && text.contains("[redacted MY_TOKEN]"), "{text}");
    inspan(folder, &["test"]).expect(0);

    // It alone is run, whatever else the file has.
    let file = folder.join("flow.test.yaml");
    let failing = "  - name: real is not all\n    expect: { outcome: failed }\n";
    std::fs::write(&file, format!("{}{failing}", std::fs::read_to_string(&file).unwrap())).unwrap();
    let again =
        |more: &[&str]| inspan(folder, &[&["test", "--from", "real", "--name", "real"], more].concat());
    let made = again(&[]);
    assert_eq!((made.code, made.stdout.contains("not all")), (Some(0), false), "{}", made.report());
    again(&["--format", "tap"]).expect(2).says("cannot be used with");
    let broken = "  - name: odd\n    answers: { nobody: hi }\n";
    std::fs::write(&file, format!("{}{broken}", std::fs::read_to_string(&file).unwrap())).unwrap();
    let made = again(&[]);
    assert_eq!((made.code, made.stderr.contains("does not pass")), (Some(2), false), "{}", made.report());
}

#[test]
fn a_made_case_goes_to_the_test_file_that_the_flow_has() {
    let flow = "name: says\nnodes: [{ id: say, type: echo.agent, input: { prompt: hello } }]\n";
    let cases = "flow: FLOW\ncases:\n  - { name: old, answers: { say: hello } }\n";
    let make = |files: &[(&str, &str)]| {
        let folder = &flow_folder(flow);
        for (file, named) in files {
            crate::program::write(folder, &[(file, &cases.replace("FLOW", named))]);
        }
        inspan(folder, &["run", "--session-id", "s"]).expect(0);
        let made = inspan(folder, &["test", "--from", "s"]);
        let mut files = paths_below(folder);
        files.retain(|file| std::fs::read_to_string(file).is_ok_and(|text| text.contains("as in session s")));
        let names = files.iter().map(|file| file.strip_prefix(folder).unwrap().display().to_string());
        (made.code, names.collect::<Vec<_>>(), made.stderr)
    };
    let (beside, below, other) = (
        ("flow.test.yaml", "flow.yaml"),
        ("tests/flow.test.yml", "../flow.yaml"),
        ("other.test.yaml", "flow.yaml"),
    );
    let rows: [(&[(&str, &str)], &str); 4] =
        [(&[], beside.0), (&[below], below.0), (&[other], other.0), (&[below, beside, other], beside.0)];
    for (files, file) in rows {
        assert_eq!(make(files), (Some(0), vec![file.to_owned()], String::new()), "{files:?}");
    }
    let (code, files, why) = make(&[below, other]);
    assert_eq!((code, files), (Some(2), Vec::new()));
    assert!(why.contains("the flow has several test files: "), "{why}");
}

/// The folders of the project with flows that people read.
#[test]
fn the_flows_of_the_project_pass_their_tests() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let folders = ["examples", "docs", "crates/cli/src/commands/init"].map(|folder| root.join(folder));
    let files = find(&folders).unwrap();
    let providers = inspan_providers::builtin().into_iter().collect();
    let report = Suite::new(&providers, builtin_nodes).run(&files, &Options::default());
    assert!(report.passed(), "{}", report.tap());
    let warnings: Vec<_> = report
        .cases()
        .flat_map(|case| &case.warnings)
        .chain(report.files.iter().flat_map(|file| &file.warnings))
        .collect();
    assert_eq!(warnings, Vec::<&String>::new());
    // Every flow of the project has cases, and they go every way through it.
    let mut flows: Vec<PathBuf> = Vec::new();
    folders.iter().for_each(|folder| collect(folder, &mut flows));
    let nodes = builtin_nodes(&providers);
    for flow in &flows {
        let found = inspan_flow::compile(&inspan_flow::load(flow).unwrap(), &nodes).unwrap().warnings;
        assert!(found.is_empty(), "{}: {found:?}", flow.display());
    }
    let whole: Vec<_> =
        report.coverage.iter().map(|coverage| (coverage.flow.clone(), coverage.percent())).collect();
    let mut expected: Vec<_> = flows.into_iter().map(|flow| (flow, 100.0)).collect();
    expected.sort_by(|a, b| a.0.cmp(&b.0));
    let mut whole = whole;
    whole.sort_by(|a, b| a.0.cmp(&b.0));
    assert_eq!(whole, expected);
}

/// The flow files of a folder. Those of a pack are covered by the flows that use it.
fn collect(folder: &Path, flows: &mut Vec<PathBuf>) {
    if folder.join("pack.yaml").exists() {
        return;
    }
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if path.is_dir() {
            collect(&path, flows);
        } else if name.ends_with(".yaml") && !name.contains(".test.") {
            flows.push(path);
        }
    }
}

#[test]
fn a_session_with_frames_a_form_programs_and_agents_makes_a_case_that_passes() {
    let flow = "
flow: { name: all, input: { files: [a, b] } }
nodes:
  - { id: list, type: exec, input: { argv: [echo, listed] } }
  - { id: ask, type: echo.agent, dependsOn: [list], input: { prompt: 'say {{ list.stdout }}' } }
  - id: form
    type: human.input
    dependsOn: [ask]
    input: { prompt: 'Who?', schema: { type: object, properties: { name: { type: string } }, required: [name] } }
  - id: each
    type: control.foreach
    dependsOn: [form]
    input: { items: '{{ flow.input.files }}' }
    body:
      nodes:
        - { id: run, type: exec, input: { argv: [echo, '{{ item }}'] } }
        - { id: review, type: echo.agent, dependsOn: [run], input: { prompt: '{{ run.stdout }} {{ form.value.name }}' } }
  - id: twice
    type: control.loop
    dependsOn: [each]
    input: { maxIterations: 2, onExhausted: continue }
    body: { nodes: [{ id: again, type: echo.agent, input: { prompt: 'pass {{ frame.index }}' } }] }
";
    let folder = &flow_folder(flow);
    inspan(folder, &["run", "--session-id", "all"]).expect(3);
    inspan(folder, &["reply", "all", "--set", "name=ox"]).expect(0);
    inspan(folder, &["test", "--from", "all"]).expect(0);
    let case = std::fs::read_to_string(folder.join("flow.test.yaml")).unwrap();
    assert!(case.contains("twice.outputs.again.text: pass 1") && case.contains("anyOrder:"), "{case}");
}

#[test]
fn a_session_that_reused_work_and_cancelled_some_makes_a_case_that_passes() {
    let flow = "
flow: { name: again }
nodes:
  - { id: first, type: exec, input: { argv: [echo, one] } }
  - { id: ok, type: human.input, dependsOn: [first], input: { prompt: 'Go on?', choices: [yes, no] } }
  - id: each
    type: control.foreach
    dependsOn: [ok]
    input: { items: [a, b] }
    body: { nodes: [{ id: say, type: echo.agent, input: { prompt: 'say {{ item }} {{ first.stdout }}' } }] }
  - { id: slow, type: exec, dependsOn: [each], input: { argv: [sleep, '60'] } }
  - { id: fails, type: exec, dependsOn: [each], input: { argv: [sh, -c, 'sleep 0.3; exit 3'] } }
";
    let folder = &flow_folder(flow);
    inspan(folder, &["run", "--session-id", "one"]).expect(3);
    inspan(folder, &["reply", "one", "yes"]).expect(1);
    inspan(folder, &["resume", "one", "--session-id", "two", "--no-input"]).expect(1);
    inspan(folder, &["test", "--from", "two"]).expect(2).says("`inspan test --from one`");
    std::fs::write(folder.join("flow.yaml"), format!("{flow}# edited\n")).unwrap();
    inspan(folder, &["resume", "two", "--session-id", "three", "--no-input"]).expect(1);
    for session in ["one", "three"] {
        inspan(folder, &["test", "--from", session]).expect(0);
    }
    let cases = std::fs::read_to_string(folder.join("flow.test.yaml")).unwrap();
    assert_eq!(cases.matches("ok: \"yes\"").count(), 2, "{cases}");
    assert_eq!(cases.matches("slow: cancelled").count(), 2, "{cases}");
}

#[test]
fn a_session_that_was_paused_or_killed_makes_a_case_that_passes() {
    let paused = "
flow: { name: paused }
nodes:
  - { id: a, type: exec, input: { argv: [sh, -c, 'echo >> began; test -e go || sleep 60'] } }
  - { id: rest, type: control.wait, dependsOn: [a], input: { ms: 20 } }
";
    let here = &flow_folder(paused);
    let run = ["run", "flow.yaml", "--no-input", "--session-id", "s"];
    let mut child = program(here, &run).spawn().unwrap();
    until("it works", || here.join("began").exists());
    signal(&child, "TERM");
    assert_eq!(child.wait().unwrap().code(), Some(7));
    std::fs::write(here.join("go"), "").unwrap();
    inspan(here, &["resume", "s"]).expect(0);
    inspan(here, &["test", "--from", "s"]).expect(0);

    // Killed after a failure, while what ran beside it was being cancelled.
    let killed = "
flow: { name: killed }
nodes:
  - { id: slow, type: exec, input: { argv: [sh, -c, 'trap \"\" TERM; echo >> began; sleep 9; sleep 9'] } }
  - { id: bad, type: exec, input: { argv: [sh, -c, 'until test -e began; do sleep 0.1; done; exit 3'] } }
";
    let here = &flow_folder(killed);
    let mut child = program(here, &run).spawn().unwrap();
    until("it fails", || inspan(here, &["logs", "s"]).stdout.contains("bad  ✘ failed"));
    signal(&child, "KILL");
    child.wait().unwrap();
    inspan(here, &["resume", "s", "--no-input"]).expect(1);
    inspan(here, &["why", "s", "slow"])
        .expect(0)
        .prints("and the node was not started again: the flow was ending");
    inspan(here, &["test", "--from", "s"]).expect(0);
    let cases = std::fs::read_to_string(here.join("flow.test.yaml")).unwrap();
    assert!(cases.contains("slow: cancelled"), "{cases}");
}
