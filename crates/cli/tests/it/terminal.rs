//! What reaches terminals and scripts: results and questions, nothing that controls a terminal, no success without its
//! output, and signals that stay ignored.

use std::fs::{self, File};

use serde_json::json;

use crate::{
    processes::{signal, until},
    program::{ended, flow_folder, folder_with, inspan, program, ran, shell},
};

/// One of each kind that could steer a terminal or hide a text, as an agent or a program could write them.
const HOSTILE: &str = "\u{1b}]52;c;cHduZWQ=\u{7}\u{1b}]8;;http://evil/\u{7}link\u{1b}[2J\u{1b}[1;1H\u{1b}]0;t\u{7}\rCR\u{8}\u{202e}RLO\u{2066}LRI\u{9b}31mC1\u{90}\u{200b}ZW\u{2028}LS\u{7f}END";

fn hostile(text: &str) -> Vec<char> {
    let steers = |c: &char| {
        (c.is_control() && *c != '\n')
            || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    text.chars().filter(steers).collect()
}

#[test]
fn no_command_lets_hostile_text_through_to_people() {
    let evil = json!(HOSTILE).to_string();
    let prints = "argv: [sh, -c, 'printf \"%s\" \"$EVIL\"']";
    let flows = [
        format!("flow: {{ name: {evil} }}\nnodes:\n  - {{ id: a, type: echo, input: {{ text: x }} }}\n"),
        format!(
            "flow: {{ name: h }}\nnodes:\n  - {{ id: a, type: control.fail, input: {{ message: {evil} }} }}\n"
        ),
        format!("flow: {{ name: h }}\nnodes:\n  - {{ id: a, type: {evil}, input: {{ text: x }} }}\n"),
        format!("flow: {{ name: h }}\nnodes:\n  - {{ id: a, type: exec, input: {{ argv: [{evil}] }} }}\n"),
        format!(
            "flow: {{ name: h }}\nnodes:\n  - {{ id: e, type: exec, input: {{ {prints} }} }}\n  - {{ id: a, type: human.input, dependsOn: [e], input: {{ prompt: '{{{{ e.stdout }}}}', choices: ['{{{{ e.stdout }}}}', b] }} }}\n"
        ),
    ];
    let calls = [
        "check flow.yaml",
        "graph flow.yaml",
        "run flow.yaml --session-id s --no-input",
        "show s",
        "show s a",
        "logs s",
        "why s",
        "why s a",
        "ps --all",
        "inbox",
        "resume s --plan",
        "reply s x",
    ];
    let mut seen = Vec::new();
    for flow in flows {
        let folder = &flow_folder(&flow);
        for call in calls {
            let arguments: Vec<&str> = call.split(' ').collect();
            let ended = ran(folder, program(folder, &arguments).env("EVIL", HOSTILE));
            seen.push((call, hostile(&ended.stdout), hostile(&ended.stderr)));
        }
    }
    seen.retain(|(_, stdout, stderr)| !stdout.is_empty() || !stderr.is_empty());
    assert_eq!(seen, []);
}

const ECHO: &str = "flow: { name: e }\nnodes:\n  - { id: a, type: echo, input: { text: hi } }\n";

#[cfg(target_os = "linux")]
#[test]
fn output_that_is_lost_is_no_success() {
    let folder = &flow_folder(ECHO);
    inspan(folder, &["run", "--session-id", "s"]).expect(0);
    let calls =
        ["run --json", "show s", "logs s", "ps -a", "why s", "check", "graph", "nodes", "show s --json"];
    let lost = calls.map(|call| {
        let arguments: Vec<&str> = call.split(' ').collect();
        let full = File::options().write(true).open("/dev/full").unwrap();
        let ended = ran(folder, program(folder, &arguments).stdout(full));
        (call, ended.code, ended.stderr.contains("failed to write to stdout"))
    });
    assert_eq!(lost, calls.map(|call| (call, Some(1), true)));
}

#[cfg(target_os = "linux")]
#[test]
fn json_is_one_object_that_is_true() {
    let folder = &flow_folder(ECHO);
    let ended = inspan(folder, &["run", "--json", "--events", "/dev/full"]);
    let object = ended.json();
    let shown = (&object["outcome"], &object["exitCode"], ended.code);
    assert_eq!(shown, (&json!("failed"), &json!(1), Some(1)));
}

#[test]
fn an_ignored_hangup_stays_ignored() {
    let waits = "flow: { name: w }\nnodes:\n  - { id: a, type: exec, input: { argv: [sh, -c, 'echo up > up; while [ ! -e go ]; do sleep 0.02; done; echo done'] } }\n";
    let folder = &flow_folder(waits);
    let child = shell(folder, "trap '' HUP; exec \"$0\" run flow.yaml").spawn().unwrap();
    until("the node runs", || folder.join("up").exists());
    signal(&child, "HUP");
    fs::write(folder.join("go"), "").unwrap();
    assert_eq!(ended(folder, child).expect(0).stdout, "done\n");
}

const GATE: &str = "flow: { name: gate }\nnodes:\n  - { id: ok, type: human.input, input: { prompt: 'Ship it?', choices: [ship, hold] } }\n  - { id: after, type: echo, dependsOn: [ok], input: { text: '{{ ok.choice }}' } }\n";

#[test]
fn a_session_need_not_be_named_where_only_one_is_meant() {
    let here = &flow_folder(GATE);
    inspan(here, &["run", ".", "--session-id", "one", "--no-input"]).expect(3);
    let gate = "is a question, not a permission";
    inspan(here, &["approve"]).says(gate);
    inspan(here, &["reply"]).expect(2);
    let shown = inspan(here, &["show", "--json"]).json();
    assert_eq!((&shown["sessionId"], &shown["state"]), (&json!("one"), &json!("waiting")));
    let prompt = shown["prompts"][0]["promptId"].as_str().unwrap().to_owned();
    inspan(here, &["reply", "one", &prompt]).refused("the answer is missing");
    // One word is an answer, and no session is one.
    for word in ["one", "@last"] {
        let why = format!("`{word}` names the session `one`, and the answer is missing");
        inspan(here, &["reply", word]).refused(&why);
    }
    let replied = inspan(here, &["reply", "--choice", "ship"]);
    assert_eq!((replied.code, replied.stdout.as_str()), (Some(0), "ship\n"), "{}", replied.stderr);
    let why = format!("question `{prompt}` is already answered: ship");
    inspan(here, &["reply", "one", &prompt, "--choice", "hold"]).refused(&why);
    inspan(here, &["stop"]).refused("no open session was started in this folder");
    let failing = "flow: { name: f }\nnodes:\n  - { id: a, type: exec, input: { argv: [sh, -c, 'echo seen; exit 3'] } }\n";
    fs::write(here.join("flow.yaml"), failing).unwrap();
    inspan(here, &["run", "--session-id", "two"]).expect(1);
    let named = ["@last", "@last-failed"].map(|name| {
        let shown = inspan(here, &["show", name, "--json"]).json();
        shown["sessionId"].clone()
    });
    assert_eq!(named, ["two", "two"]);
    let elsewhere = &folder_with(&[]);
    let store = here.join(".home/sessions.db");
    inspan(elsewhere, &["show", "--store", store.to_str().unwrap()])
        .refused("no session was started in this folder");
}

#[test]
fn one_of_several_questions_is_named_without_its_session_where_only_one_is_open() {
    let form = "schema: { required: [n], properties: { n: { type: integer } } }";
    let here = &flow_folder(&format!(
        "flow: {{ name: f }}\nnodes:\n  - {{ id: a, type: human.input, input: {{ prompt: A }} }}\n  - {{ id: b, type: human.input, input: {{ prompt: B, {form} }} }}\n"
    ));
    inspan(here, &["run", ".", "--session-id", "one", "--no-input"]).expect(3);
    inspan(here, &["reply", "c.1", "--set", "n=1"]).refused("no session ID starts with `c.1`");
    inspan(here, &["approve", "b.1"]).refused("`b.1` is a question, not a permission");
    inspan(here, &["reply", "b.1", "--set", "n=1", "--no-resume"]).expect(0);
    inspan(here, &["reply", "a", "so it is"]).expect(0);
    let [a, b] = ["a", "b"].map(|node| {
        let shown = inspan(here, &["show", "one", node, "--json"]).json();
        shown["attempts"].as_array().unwrap().last().unwrap()["output"].clone()
    });
    assert_eq!((&a["content"], &b["value"]), (&json!("so it is"), &json!({ "n": 1 })));
}

#[test]
fn an_approval_that_may_be_meant_for_an_earlier_question_names_its_own() {
    let asks = |command: &str| {
        format!("{{ tool: {{ name: Bash, input: {{ command: {command} }}, result: out, ask: true }} }}")
    };
    let here = &flow_folder(&format!(
        "flow: {{ name: f }}\nnodes:\n  - id: a\n    type: scripted.agent\n    input: {{ prompt: x, options: {{ turns: [[{}, {}, {{ text: done }}]] }} }}\n",
        asks("ls"),
        asks("rm")
    ));
    inspan(here, &["run", ".", "--detach", "--session-id", "s"]).expect(0);
    let asked = |command: &str| {
        until("the question is open", || {
            inspan(here, &["inbox"]).stdout.contains(&format!("Bash {command}?"))
        });
    };
    asked("ls");
    inspan(here, &["approve", "s", "a.1"]).expect(0).says("s: answered `allow` to [a] Allow Bash ls?");
    asked("rm");
    for named in [&["approve", "s"][..], &["approve", "s", "a"]] {
        inspan(here, named)
            .refused("the open question may be another than you mean: [a] Allow Bash rm?")
            .says("`inspan approve s a.1.2`");
    }
    inspan(here, &["reject", "s"]).expect(0);
}

#[test]
fn a_number_that_would_lose_digits_is_a_text_where_one_is_meant_and_else_refused() {
    let here = &flow_folder(
        "flow: { name: f, input: { n: 1, any: null }, inputSchema: { properties: { id: { type: string } } } }\nnodes:\n  - { id: a, type: echo, input: { text: '{{ flow.input.id }}' } }\n",
    );
    let refused = |arguments: &[&str]| {
        let ran = inspan(here, &[&["run", "."], arguments].concat()).expect(2);
        ran.stderr
    };
    let why = "the number `18446744073709551616` does not fit into 64 bits, and would lose digits";
    let text = inspan(here, &["run", ".", "-i", "id=18446744073709551616"]).expect(0);
    assert_eq!(text.stdout, "18446744073709551616\n");
    for key in ["n", "any"] {
        let said = refused(&["-i", "id=x", "-i", &format!("{key}=18446744073709551616")]);
        assert!(
            said.contains("`18446744073709551616` would be given as the number 1.8446744073709552e+19"),
            "{said}"
        );
    }
    let within = refused(&["-i", "id=x", "-i", "any=[18446744073709551616]"]);
    assert!(within.contains(&format!("{why}: write it in double quotes")), "{within}");
    fs::write(here.join("in.json"), "{\n  \"id\": 18446744073709551616\n}").unwrap();
    let file = refused(&["--input-file", "in.json"]);
    assert!(file.contains(&format!("in.json cannot be taken: line 2: {why}")), "{file}");
}

#[test]
fn an_input_is_a_text_where_the_flow_has_a_text() {
    let here = &flow_folder(
        "flow:\n  name: f\n  input: { version: '0.1', limit: 2.5, tag: null }\n  inputSchema: { properties: { id: { type: string } } }\nnodes:\n  - { id: a, type: echo, input: { text: '{{ flow.input.id }} {{ flow.input.version }} {{ flow.input.limit }} {{ flow.input.tag }}' } }\n",
    );
    fs::write(here.join("seven"), "7").unwrap();
    let given = |arguments: &[&str]| inspan(here, &[&["run", "."], arguments].concat());
    let texts = given(&["-i", "id=1.10", "-i", "version=4937e10", "-i", "limit=1.50", "-i", "tag=x"]);
    assert_eq!(texts.stdout, "1.10 4937e10 1.5 x\n", "{}", texts.stderr);
    let others = given(&["-i", "id=@seven", "-i", "version=[1]", "-i", "tag=\"1.10\""]);
    assert_eq!(others.stdout, "7 [1] 2.5 1.10\n", "{}", others.stderr);
    let said = "`tag`: `1.10` would be given as the number 1.1\n  help: write `-i 'tag=\"1.10\"'` for the text, or `-i tag=1.1` for the number";
    given(&["-i", "id=7", "-i", "tag=1.10"]).expect(2).says(said);
}

#[test]
fn a_text_is_not_true_where_the_default_is_true_or_false() {
    let folder = &flow_folder(
        "flow: { name: f, input: { publish: false, n: 5 }, inputSchema: { properties: { sure: { type: boolean } } } }\nnodes:\n  - { id: a, type: echo, input: { text: '{{ flow.input.publish }} {{ flow.input.n }} {{ flow.input.sure | default(0) }}' } }\n",
    );
    let given = |arguments: &[&str]| inspan(folder, &[&["run", "."], arguments].concat());
    let said = ["no", "False", "y", "true"].map(|text| given(&["-i", &format!("publish={text}")]).stdout);
    assert_eq!(said, ["false 5 0\n", "false 5 0\n", "true 5 0\n", "true 5 0\n"]);
    assert_eq!(given(&["-i", "sure=yes", "-i", "n=7"]).stdout, "false 7 true\n");
    let refused = |value: &str, why: &str| {
        let ran = given(&["-i", value]);
        assert_eq!((ran.code, ran.stderr.contains(why)), (Some(2), true), "{value}: {}", ran.stderr);
        assert!(!ran.stderr.contains("help: pass it"), "{}", ran.stderr);
    };
    for value in ["publish=off", "publish=", "publish=0", "publish=\"no\""] {
        refused(value, "`publish` must be true or false, as its default is: write `true` or `false`");
    }
    refused("n=abc", "`n` must be a number, as its default is: write one without quotes, such as `5`");
}

#[test]
fn a_flow_file_with_the_other_ending_is_named() {
    let folder = &folder_with(&[]);
    fs::write(folder.join("flow.yml"), "name: f\nnodes:\n  - { id: a, type: control.noop }\n").unwrap();
    for command in ["run", "check"] {
        let said = "flow file flow.yaml does not exist\n  help: there is flow.yml: name that file\n";
        inspan(folder, &[command]).expect(2).says(said);
    }
    assert_eq!(inspan(folder, &["run", "flow.yml"]).code, Some(0));
}

#[test]
fn show_prints_what_a_node_gave() {
    let folder = &flow_folder(
        "flow: { name: f }\nnodes:\n  - { id: a, type: constant, input: { value: { n: 1 } } }\n  - { id: b, type: control.fail, dependsOn: [a], input: { message: 'no luck' } }\n",
    );
    inspan(folder, &["run", "--session-id", "s"]);
    let shown = |node: &str| inspan(folder, &["show", "s", node]).report();
    assert_eq!(
        shown("a"),
        "exit 0\n── stdout\na  complete in 0ms\n  output\n    {\n      \"value\": {\n        \"n\": 1\n      }\n    }\n"
    );
    assert!(shown("b").contains("b  failed\n  error\n    no luck ["), "{}", shown("b"));
    assert!(shown("c").contains("unknown node `c` in flow `f`"), "{}", shown("c"));
}

#[test]
fn what_waits_for_its_next_attempt_does_not_run_once_the_session_has_ended() {
    let folder = &flow_folder(
        "
flow: { name: f, policy: { timeout: 1s } }
nodes:
  - { id: r, type: control.fail, input: { message: 'no luck' }, policy: { retry: { maxAttempts: 3, backoff: 1h, on: any } } }
",
    );
    inspan(folder, &["run", "--session-id", "s"]);
    let shown = inspan(folder, &["show", "s"]).stdout;
    let line = shown.lines().find(|line| line.starts_with("■ r  cancelled")).unwrap_or_default();
    assert!(line.ends_with(" no luck [NODE_FAILED]"), "{shown}");
    let why = inspan(folder, &["why", "s", "r"]).stdout;
    assert!(
        why.contains("`r` failed in attempt 1: no luck")
            && why.contains("cancelled before it was tried again"),
        "{why}"
    );
}

#[test]
fn the_help_for_a_timeout_names_the_one_that_ended_the_node() {
    let own = "help: allow more time in the node's `input.timeout`";
    let policy = "help: allow more time: `policy: { timeout: 30m }`";
    let rows = [
        ("control.wait, input: { until: 'session:message', timeout: 10ms }", own),
        ("control.wait, input: { ms: 60000 }, policy: { timeout: 10ms }", policy),
        ("exec, input: { argv: [sleep, '60'] }, policy: { timeout: 10ms }", policy),
    ];
    for (node, expected) in rows {
        let (_, stderr, _) = ran_flow("", &format!("  - {{ id: a, type: {node} }}"));
        let helps: Vec<&str> =
            stderr.lines().map(str::trim).filter(|line| line.starts_with("help: allow")).collect();
        assert_eq!(helps, [expected], "{stderr}");
    }
}

/// Runs a flow of these parts; what goes to stdout and to stderr, and the exit code.
fn ran_flow(flow: &str, nodes: &str) -> (String, String, Option<i32>) {
    let folder = &flow_folder(&format!("flow: {{ name: f{flow} }}\nnodes:\n{nodes}\n"));
    let ran = inspan(folder, &["run"]);
    (ran.stdout, ran.stderr, ran.code)
}

const EACH: &str = "  - { id: each, type: control.foreach, input: { items: [a, b] },\n      \
                    body: { outputs: { name: \"{{ say.text }}\" }, nodes: [{ id: say, type: echo, input: { text: \"{{ item }}!\" } }] } }";

#[test]
fn the_declared_outputs_are_printed_or_those_of_the_last_nodes() {
    let printed = |flow: &str, nodes: &str| {
        let (stdout, stderr, code) = ran_flow(flow, nodes);
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
    let noop = "  - { id: three, type: constant, input: { value: 3 } }\n  \
                - { id: more, type: control.noop, dependsOn: [three], input: { value: \"{{ three.value + 1 }}\" } }";
    assert_eq!(printed("", noop), "4\n");
}

#[test]
fn of_many_questions_that_wait_a_few_are_named() {
    let ask = "  - { id: each, type: control.foreach, input: { items: \"{{ range(5) | list }}\" },\n      \
               body: { nodes: [{ id: ask, type: human.input, input: { prompt: \"{{ item }}?\" } }] } }";
    let (_, stderr, code) = ran_flow("", ask);
    let hints: Vec<&str> = stderr
        .lines()
        .filter_map(|line| line.trim_start().strip_prefix("help: ")?.split(" is waiting").next())
        .collect();
    // They wait in the order in which they were asked, which is not fixed.
    let named = hints.iter().filter(|hint| hint.starts_with("`each[")).count();
    let rest = hints.last().copied().unwrap_or_default();
    assert_eq!((code, named, rest), (Some(3), 3, "2 more questions wait: `inspan inbox` lists all"));
}
