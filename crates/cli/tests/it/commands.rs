//! The program as its users see it: each row runs it in a fresh folder and compares its exit code and all
//! that it printed.

use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
};

use serde_json::{Value, json};

use crate::program::{
    Folder, INSPAN, Ran, flow_folder, folder_with, inspan, paths_below, program, ran, snapshot, write,
};

const CHAIN: &str = "
flow: { name: chain, input: { topic: oxen }, policy: { maxConcurrency: 1 } }
nodes:
  - { id: a, type: echo.agent, input: { prompt: 'Say {{ flow.input.topic }}' } }
  - { id: b, type: echo.agent, input: { prompt: 'b heard: {{ a.text }}' } }
  - { id: c, type: echo, input: { text: 'c heard: {{ a.text }}' } }
  - { id: all, type: control.merge, input: { mode: all } }
edges:
  - { from: a, to: b }
  - { from: a, to: c }
  - { from: b, to: all }
  - { from: c, to: all }
";

const FAILING: &str = "
flow: { name: failing }
nodes:
  - { id: a, type: exec, input: { argv: [sh, -c, 'echo no >&2; exit 3'] } }
  - { id: b, type: echo, dependsOn: [a], input: { text: never } }
";

const AUTH: &str = "
flow: { name: refused }
nodes:
  - id: a
    type: scripted.agent
    input: { prompt: x, options: { turns: [[{ text: 'so far' }, { error: { code: AUTH, message: 'the key was refused' } }]] } }
";

const HUMAN: &str = "
flow: { name: human }
nodes:
  - { id: ok, type: human.input, input: { prompt: 'Open it?', choices: [yes, no], default: no, timeout: 1h } }
  - { id: why, type: human.input, dependsOn: [ok], input: { prompt: 'Why {{ ok.choice }}?' } }
";

pub(crate) const PERMISSION: &str = "
flow: { name: permission }
nodes:
  - id: a
    type: scripted.agent
    input:
      prompt: x
      options: { turns: [[{ tool: { name: Bash, input: { command: ls }, result: out, ask: true } }, { text: done }]] }
";

const CLAUDE: &str = "
flow: { name: real }
nodes:
  - { id: before, type: exec, input: { argv: [touch, started] } }
  - { id: a, type: claude.agent, dependsOn: [before], input: { prompt: hi } }
";

const SLOW: &str = "
flow: { name: slow, policy: { timeout: 100ms } }
nodes: [{ id: a, type: exec, input: { argv: [sleep, '60'] } }]
";

const WRONG: &str = "
flow:
  name: wrong
  polcy: { timeout: 1m }
nodes:
  - { id: a, type: ecko, input: { text: hi } }
  - { id: a, type: echo, input: { text: [1] } }
  - { id: b, type: nosuch.node, input: { prompt: '{{ nosuch.text }}' }, promptFile: ../../outside.md }
edges:
  - { from: a, to: zz }
";

/// One call of the program among these files, compared with its snapshot. The folder has what the call left in it.
pub(crate) fn check(name: &str, files: &[(&str, &str)], arguments: &[&str]) -> Folder {
    let folder = folder_with(files);
    let ran = inspan(&folder, arguments);
    snapshot!(name, arguments, ran.report());
    folder
}

#[test]
fn verbs_that_only_tell() {
    check("help", &[], &["--help"]);
    check("help-run", &[], &["run", "--help"]);
    check("no-verb", &[], &[]);
    check("wrong-verb", &[], &["rum"]);
    check("providers", &[], &["providers"]);
    check("nodes", &[], &["nodes"]);
    check("nodes-json", &[], &["nodes", "echo", "--json"]);
    check("nodes-one", &[], &["nodes", "human.input"]);
    check("nodes-unknown", &[], &["nodes", "control.merg"]);
    check("schema-node", &[], &["schema", "node", "echo"]);
    check("schema-unknown", &[], &["schema", "provider", "claud"]);
    check("doctor", &[], &["doctor"]);
    check("doctor-json", &[], &["doctor", "--json"]);
    check("doctor-no-behavior", &[], &["doctor", "--conformance", "echo", "--behavior", "sttream"]);
}

#[test]
fn verbs_about_a_flow() {
    let chain: &[_] = &[("flow.yaml", CHAIN)];
    let both: &[_] = &[("good.yaml", CHAIN), ("wrong.yaml", WRONG)];
    check("check", both, &["check", "good.yaml", "wrong.yaml", "none.yaml"]);
    check("check-json", both, &["check", "good.yaml", "wrong.yaml", "none.yaml", "--json"]);
    check("check-no-file-json", &[], &["check", "none.yaml", "--json"]);
    check("check-github", both, &["check", "good.yaml", "wrong.yaml", "none.yaml", "--format", "github"]);
    check("check-formats", both, &["check", "good.yaml", "--format", "sarif", "--json"]);
    let folder: &[_] = &[("flows/a.yaml", CHAIN), ("flows/b.yml", FAILING), ("flows/other.yaml", "x: 1")];
    check("check-folder", folder, &["check", "flows"]);
    let odd: &[_] = &[
        ("flows/a.test.yaml", "flow: a.yaml\ncases: []\n"),
        (
            "flows/json.yaml",
            "{ \"flow\": { \"name\": \"json\" }, \"nodes\": [{ \"id\": \"a\", \"type\": \"nosuch\" }] }",
        ),
        ("flows/mark.YML", "\u{feff}nodes:\n  - { id: a, type: echo }\n"),
        (
            "flows/quote.yaml",
            "flow: { name: quote }\nnodes:\n  - { id: a, type: echo, input: { text: 'it's' } }\n",
        ),
        ("flows/quoted.yaml", "\"nodes\":\n  - { id: a, type: echo }\n"),
        ("flows/typing.yaml", "flow: { name: typing }\nnode:\n  - { id: a, type: echo }\n"),
    ];
    check("check-folder-of-odd-files", odd, &["check", "flows"]);
    check("graph-mermaid", chain, &["graph", "flow.yaml"]);
    check("graph-text", chain, &["graph", "flow.yaml", "--format", "text"]);
    check("graph-dot", chain, &["graph", "flow.yaml", "--format", "dot"]);
    check("graph-no-file", chain, &["graph", "flows/none.yaml"]);
    check("graph-no-session", chain, &["graph", "none"]);
    check("graph-json", chain, &["graph", "flow.yaml", "--json"]);
    check("graph-formats", chain, &["graph", "flow.yaml", "--format", "svg", "--json"]);
}

/// What code scanning reads of a report, as the standard defines it.
const SARIF: &str = include_str!("sarif.schema.json");

#[test]
fn problems_are_reported_as_sarif() {
    let folder = &folder_with(&[]);
    write(folder, &[("good.yaml", CHAIN), ("in here/flow.yaml", WRONG)]);
    let ran = inspan(folder, &["check", "good.yaml", "in here", "none.yaml", "--format", "sarif"]);
    let report = ran.json();
    let schema = serde_json::from_str(SARIF).unwrap();
    let problems: Vec<_> = jsonschema::validator_for(&schema)
        .unwrap()
        .iter_errors(&report)
        .map(|error| error.to_string())
        .collect();
    assert_eq!((problems, ran.code), (Vec::new(), Some(2)));
    let run = &report["runs"][0];
    let unread = &run["invocations"][0]["toolExecutionNotifications"][0]["message"]["text"];
    let rule = run["results"][0]["ruleIndex"].as_u64().unwrap() as usize;
    assert_eq!(
        [&run["results"][0], &run["tool"]["driver"]["rules"][rule]["id"], unread],
        [
            &serde_json::json!({
                "ruleId": "unknown-key",
                "ruleIndex": rule,
                "level": "error",
                "message": { "text": "unknown key `polcy`\nhelp: did you mean `policy`?" },
                "locations": [{
                    "physicalLocation": {
                        "artifactLocation": { "uri": "in%20here/flow.yaml" },
                        "region": { "startLine": 4, "startColumn": 3, "endLine": 4, "endColumn": 8 },
                    },
                    "logicalLocations": [{ "fullyQualifiedName": "flow.polcy", "kind": "member" }],
                }],
            }),
            &serde_json::json!("unknown-key"),
            &serde_json::json!("none.yaml: flow file none.yaml does not exist"),
        ]
    );
}

#[test]
fn runs_that_end_well() {
    let chain: &[_] = &[("flow.yaml", CHAIN), ("in.json", "\u{feff}{\"topic\": \"from a file\"}")];
    check("run", chain, &["run", "flow.yaml", "--session-id", "s"]);
    check("run-json", chain, &["run", "flow.yaml", "--session-id", "s", "--json"]);
    check(
        "run-input",
        chain,
        &["run", "flow.yaml", "--session-id", "s", "--input-file", "in.json", "-i", "topic=[1]"],
    );
    check(
        "run-changed",
        chain,
        &[
            "run",
            "flow.yaml",
            "--session-id",
            "s",
            "--provider",
            "b=scripted",
            "--set",
            "b.options.turns=[[{\"text\":\"scripted\"}]]",
            "--max-concurrency",
            "1",
        ],
    );
    check(
        "run-default",
        &[("flow.yaml", HUMAN)],
        &["run", "flow.yaml", "--session-id", "s", "--set", "why.default=so"],
    );
    check(
        "run-denied",
        &[("flow.yaml", PERMISSION)],
        &["run", "flow.yaml", "--session-id", "s", "--no-input"],
    );
}

#[test]
fn runs_that_end_otherwise() {
    check("run-failed", &[("flow.yaml", FAILING)], &["run", "flow.yaml", "--session-id", "s"]);
    check("run-failed-json", &[("flow.yaml", FAILING)], &["run", "flow.yaml", "--session-id", "s", "--json"]);
    check("run-auth", &[("flow.yaml", AUTH)], &["run", "flow.yaml", "--session-id", "s"]);
    check("run-waiting", &[("flow.yaml", HUMAN)], &["run", "flow.yaml", "--session-id", "s"]);
    check("run-waiting-json", &[("flow.yaml", HUMAN)], &["run", "flow.yaml", "--session-id", "s", "--json"]);
    check("run-slow", &[("flow.yaml", SLOW)], &["run", "flow.yaml", "--session-id", "s"]);
}

#[test]
fn bad_input_starts_nothing() {
    let chain: &[_] = &[("flow.yaml", CHAIN)];
    check("bad-flow", &[("flow.yaml", WRONG)], &["run", "flow.yaml"]);
    check("bad-flow-json", &[("flow.yaml", WRONG)], &["run", "flow.yaml", "--json"]);
    check("bad-yaml", &[("flow.yaml", "flow: { name: x\nnodes: [")], &["run", "flow.yaml"]);
    check("bad-key", &[("flow.yaml", "\u{feff}nam: x\nnodes: []")], &["run", "flow.yaml"]);
    check("bad-empty", &[("flow.yaml", "")], &["run", "flow.yaml"]);
    check("bad-missing", &[], &["run", "flow.yaml"]);
    check("bad-folder", &[], &["run", "."]);
    check("bad-input", chain, &["run", "flow.yaml", "-i", "topik=1"]);
    check("bad-input-form", chain, &["run", "flow.yaml", "-i", "topic"]);
    check(
        "bad-input-file",
        &[("flow.yaml", CHAIN), ("in.json", "[1]")],
        &["run", "flow.yaml", "--input-file", "in.json"],
    );
    check("bad-session-id", chain, &["run", "flow.yaml", "--session-id", "../x"]);
    check("bad-set", chain, &["run", "flow.yaml", "--set", "x.prompt=1"]);
    check("bad-set-key", chain, &["run", "flow.yaml", "--set", "a.promt=hi"]);
    for (option, one, other) in [
        ("-i", "topic=a", "topic=b"),
        ("--set", "a.prompt=a", "a.prompt=b"),
        ("--budget", "usd=1", "usd=2"),
        ("--provider", "a=echo", "a=claude"),
        ("--model", "one", "another"),
    ] {
        let name = format!("bad-twice{option}");
        check(&name, chain, &["run", "flow.yaml", option, one, option, other]);
    }
    check("bad-provider", chain, &["run", "flow.yaml", "--provider", "a=cluade"]);
    check("bad-events", chain, &["run", "flow.yaml", "--events", "none/events.jsonl"]);
    check("bad-replay", chain, &["run", "flow.yaml", "--replay"]);
    check(
        "bad-replay-empty",
        &[("flow.yaml", CHAIN), ("recordings/x.txt", "")],
        &["run", "flow.yaml", "--session-id", "s", "--replay"],
    );
    check("bad-program", &[("flow.yaml", CLAUDE)], &["run", "flow.yaml"]);
    check("bad-program-json", &[("flow.yaml", CLAUDE)], &["run", "flow.yaml", "--json"]);
}

/// What is missing in a body would be found after what is before it was paid.
#[test]
fn an_agent_in_a_body_that_cannot_start_is_warned_of_before_anything_starts() {
    let before =
        "flow: { name: real }\nnodes:\n  - { id: before, type: exec, input: { argv: [touch, started] } }\n";
    let agent = "{ nodes: [{ id: a, type: claude.agent, input: { prompt: hi } }] }";
    let each = format!(
        "  - {{ id: each, type: control.foreach, dependsOn: [before], input: {{ items: [1] }}, body: {agent} }}\n"
    );
    let outer =
        each.replace(agent, "{ nodes: [{ id: inner, type: control.subflow, input: { file: sub.yaml } }] }");
    let sub = format!("flow: {{ name: sub }}\n{}\n", &agent[2..agent.len() - 2]);
    let rows = [(format!("{before}{each}"), "each/a"), (format!("{before}{outer}"), "each/inner/a")];
    for (flow, place) in rows {
        let folder = &folder_with(&[("flow.yaml", &flow), ("sub.yaml", &sub)]);
        let ran = inspan(folder, &["run", "flow.yaml"]);
        let message = format!("warning: node `{place}` cannot run: the program `claude` is not on the PATH");
        assert!(ran.code == Some(4) && ran.stderr.starts_with(&message), "{:?} {}", ran.code, ran.stderr);
        // What is not asked for needs no program.
        let before = inspan(folder, &["run", "flow.yaml", "--only", "before"]);
        assert!(before.code == Some(0) && !before.stderr.contains("warning"), "{}", before.stderr);
    }
}

#[test]
fn a_flow_that_is_too_large_is_refused_at_once() {
    let folder = &folder_with(&[]);
    fs::File::create(folder.join("big.yaml")).unwrap().set_len(100 * 1024 * 1024).unwrap();
    let mut bomb = "a: &a [x,x,x,x,x,x,x,x,x]\n".to_owned();
    for (name, of) in ('b'..='j').zip('a'..) {
        let items = vec![format!("*{of}"); 9].join(",");
        bomb.push_str(&format!("{name}: &{name} [{items}]\n"));
    }
    write(folder, &[("bomb.yaml", &bomb)]);
    let ran = ["big.yaml", "bomb.yaml"].map(|file| inspan(folder, &["run", file]));
    let first = ran.each_ref().map(|ran| (ran.code, ran.stderr.lines().next().unwrap_or_default()));
    let expected = [
        (Some(2), "error: flow file big.yaml is too large: 104857600 bytes, and the limit is 8388608"),
        (
            Some(2),
            "bomb.yaml:6:26: error[too-large]: with its aliases expanded, the file has more than 500000 values or 32 MiB of text",
        ),
    ];
    assert_eq!(first, expected);
}

#[test]
fn many_programs_run_at_once_whatever_the_soft_limit_of_files_is() {
    let folder = &flow_folder(
        "
flow: { name: many, outputs: { done: '{{ all.succeeded }}' } }
nodes:
  - id: all
    type: control.foreach
    input: { items: '{{ range(40) | list }}' }
    body: { nodes: [{ id: one, type: exec, input: { argv: [sleep, '0.2'] } }] }
",
    );
    let mut limited = Command::new("sh");
    limited.args(["-c", "ulimit -Sn 64; exec \"$0\" run flow.yaml --no-input --json", INSPAN]);
    let same = program(folder, &[]);
    limited.current_dir(folder).env_clear();
    limited.envs(same.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let many = ran(folder, limited.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()));
    let summary: serde_json::Value = serde_json::from_str(&many.stdout).unwrap();
    assert_eq!(summary["outputs"]["done"], json!(40), "{}", many.report());
}

#[test]
fn a_new_project_runs_at_once_and_is_never_overwritten() {
    let folder = &folder_with(&[]);
    let run = |arguments: &[&str]| inspan(folder, arguments);
    let steps = [
        run(&["init", "hello"]),
        run(&["check", "hello/flow.yaml"]),
        run(&["run", "hello/flow.yaml", "--session-id", "s", "--max-concurrency", "1"]),
        run(&["init", "hello"]),
        run(&["init", "hello", "--json"]),
        run(&["init", "hello/flow.yaml"]),
    ];
    let report: Vec<String> = steps.iter().map(Ran::report).collect();
    snapshot!("init", report.join("\n"));
}

#[test]
fn a_project_that_cannot_be_written_whole_is_not_written_at_all() {
    let folder = &folder_with(&[("prompts", "")]);
    inspan(folder, &["init"]).expect(1);
    assert_eq!(paths_below(folder), [folder.join("prompts")]);
    fs::remove_file(folder.join("prompts")).unwrap();
    inspan(folder, &["init"]).expect(0);
}

#[test]
fn the_next_command_takes_no_folder_for_an_option() {
    let folder = &folder_with(&[]);
    let init = |arguments: &[&str]| inspan(folder, &[&["init"], arguments].concat()).stdout;
    let one = init(&["--", "-x"]);
    assert!(one.contains("  inspan run ./-x/flow.yaml\n"), "{one}");
    let other = init(&["--template", "triage", "--", "-y z"]);
    assert!(other.contains("  cd './-y z'\n"), "{other}");
}

#[test]
fn a_cost_of_which_a_part_is_unknown_is_given_as_far_as_it_is_known() {
    let flow = "
flow: { name: c }
nodes:
  - { id: a, type: scripted.agent, input: { prompt: x, options: { turns: [[{ text: a }, { usage: { tokens: { inputTokens: 7 }, costUsd: 0.5 } }]] } } }
  - { id: b, type: scripted.agent, input: { prompt: y, options: { turns: [[{ text: b }, { usage: { tokens: { inputTokens: 7 } } }]] } } }
";
    let folder = &flow_folder(flow);
    let ran = inspan(folder, &["run", "flow.yaml", "--session-id", "s", "--json"]).json();
    let shown = inspan(folder, &["show", "s", "--json"]).json();
    for cost in [ran, shown] {
        assert_eq!((&cost["costUsd"], &cost["knownUsd"]), (&Value::Null, &json!(0.5)), "{cost}");
    }
}

/// A template runs without a key, in its own folder, and its tests pass; for real agents only the programs are missing.
#[test]
fn every_template_runs_at_once() {
    let folder = &folder_with(&[]);
    let run = |folder: &Path, arguments: &[&str]| {
        let ran = inspan(folder, arguments);
        format!("$ inspan {}\n{}[{:?}]\n", arguments.join(" "), ran.stdout, ran.code)
    };
    let list = inspan(folder, &["init", "--list-templates"]).stdout;
    let names: Vec<&str> = list.lines().filter_map(|line| line.split_whitespace().next()).collect();
    let mut report = list.clone();
    for name in names {
        report += "\n";
        report += &run(folder, &["init", name, "--template", name]);
        let project = folder.join(name);
        report += &run(&project, &["check", "flow.yaml"]);
        report += &run(&project, &["run", "flow.yaml", "--session-id", name, "--no-input"]);
        if name == "approval" {
            report += &run(&project, &["reply", name, "Thank the oxen.", "--no-input"]);
            report += &run(&project, &["reply", name, "approve"]);
        }
        inspan(&project, &["test"]).expect(0);
        // Without the written answers the flow is the same, with real agents.
        if fs::remove_file(project.join("inspan.toml")).is_ok() {
            assert_eq!(inspan(&project, &["check", "flow.yaml"]).code, Some(0), "{name}");
        }
    }
    snapshot!("templates", report);
    inspan(folder, &["init", "x", "--template", "triag"]).expect(2).says("'triage'");
}

#[test]
fn what_is_used_up_says_what_to_raise() {
    let edge = "  - { id: a, type: constant, input: { value: 1 } }\nedges:\n  - { from: a, to: a, when: a.value == 1, maxIterations: 1 }\n";
    let passes = "  - id: a\n    type: control.loop\n    input: { until: 'p.value > 1', maxIterations: 1 }\n    body: { nodes: [{ id: p, type: constant, input: { value: 1 } }] }\n";
    let depth = "  - { id: a, type: control.subflow, when: flow.input.n > 0, input: { file: flow.yaml, input: { n: 1 }, maxDepth: 1 } }\n";
    let rows = [
        (edge, "raise the edge's `maxIterations`"),
        (passes, "raise `maxIterations` in the loop's `input`"),
        (depth, "or raise `maxDepth`"),
    ];
    for (nodes, help) in rows {
        let flow = format!("flow: {{ name: used-up, input: {{ n: 1 }} }}\nnodes:\n{nodes}");
        let folder = &folder_with(&[("flow.yaml", &flow)]);
        let ran = inspan(folder, &["run"]);
        assert!(ran.code == Some(1) && ran.stderr.contains(help), "{help}\n{}", ran.stderr);
    }
}

#[test]
fn a_failure_whose_handlers_did_not_run_fails_the_flow_and_says_why() {
    let edge = "fix, on: failure, when: flow.input.tell";
    let rows = [
        ("fix, on: failure", "`fix` was skipped", ", when: flow.input.tell"),
        (edge, "the edge `bad -> fix` did not fire", ""),
    ];
    for (to, what, when) in rows {
        let flow = format!(
            "flow: {{ name: handled, input: {{ tell: false }} }}\nnodes:\n  - {{ id: bad, type: exec, input: {{ argv: ['false'] }} }}\n  \
             - {{ id: fix, type: echo{when}, input: {{ text: mended }} }}\nedges: [{{ from: bad, to: {to} }}]\n"
        );
        let folder = folder_with(&[("flow.yaml", &flow)]);
        inspan(&folder, &["run"]).expect(1);
        let why = inspan(&folder, &["why", "@last"]).stdout;
        let expected = format!("{what}, and nothing else handles the failure before it; that ends the flow");
        assert!(why.contains(&expected), "{why}");
        inspan(&folder, &["run", "-i", "tell=true"]).expect(0);
    }
}

#[test]
fn a_command_line_that_cannot_be_read_is_a_failure_as_others_are() {
    let folder = &folder_with(&[("flow.yaml", CHAIN)]);
    let rows = [
        (&["ps", "b", "--json"][..], "unexpected argument 'b' found", "Usage: inspan ps"),
        (
            &["--json", "run", "flow.yaml", "--no-stor"],
            "unexpected argument '--no-stor' found",
            "'--no-store'",
        ),
        (&["rm", "s", "--json"], "unrecognized subcommand 'rm'", "`inspan store gc`"),
        (&["test", "--json", "--format", "x"], "invalid value 'x' for '--format <FORMAT>'", ""),
        (&["send", "--json"], "the following required arguments were not provided", "Usage: inspan send"),
        (&["--json"], "the command is missing", "`inspan help`"),
    ];
    for (arguments, message, hint) in rows {
        let ran = inspan(folder, arguments);
        let said = ran.json();
        let text = |key: &str| said["error"][key].as_str().unwrap_or_default().to_owned();
        assert_eq!((ran.code, &said["outcome"], &said["exitCode"]), (Some(2), &json!("invalid"), &json!(2)));
        assert_eq!(text("code"), "invalidRequest");
        assert!(text("message").starts_with(message) && text("hint").contains(hint), "{said:#}");
        assert!(!ran.stderr.is_empty());
    }
    let text = inspan(folder, &["run", "flow.yaml", "--no-stor", "--", "--json"]);
    assert_eq!((text.code, text.stdout.as_str()), (Some(2), ""), "{}", text.stderr);
}

#[test]
fn without_a_store_no_folder_for_sessions_is_needed() {
    const LEAVES: &str = "flow: { name: leaves }\nnodes:\n  - { id: a, type: exec, input: { argv: [echo, moo], stdoutFile: '{{ flow.artifacts }}/moo' } }\n";
    // Where a file is in the way not even root can make a folder.
    let folder = &folder_with(&[("flow.yaml", LEAVES), (".home", "")]);
    let mut call = program(folder, &["run", "--no-store"]);
    let ran = ran(folder, call.env("TMPDIR", folder)).expect(0);
    let (_, left) = ran.stderr.rsplit_once("the nodes left files in ~/").unwrap();
    let left = folder.join(left.split(',').next().unwrap());
    let files = paths_below(&left).into_iter().filter(|path| path.is_file());
    assert_eq!(files.map(|file| fs::read_to_string(file).unwrap()).collect::<Vec<_>>(), ["moo\n"]);
    let nothing = &folder_with(&[("flow.yaml", CHAIN), (".home", ""), ("tmp/a", "")]);
    let mut call = program(nothing, &["run", "--no-store"]);
    let ended = call.env("TMPDIR", nothing.join("tmp")).output().unwrap();
    assert_eq!((ended.status.code(), paths_below(&nothing.join("tmp")).len()), (Some(0), 1));
    let stored = &folder_with(&[("flow.yaml", LEAVES), (".home/sessions.artifacts", "")]);
    let failed = inspan(stored, &["run"]);
    let expected =
        ["the folder for the files of nodes cannot be made: ~/.home/sessions.artifacts/", "INSPAN_HOME"];
    assert!(
        failed.code == Some(4) && expected.iter().all(|part| failed.stderr.contains(part)),
        "{}",
        failed.stderr
    );
}
