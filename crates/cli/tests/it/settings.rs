//! Settings: the files and variables they come from, which one counts, and the message for a wrong one.

use std::fs;

use inspan_protocol::Timestamp;
use serde_json::{Value, json};

use crate::{
    commands::PERMISSION,
    program::{Ran, folder_with, inspan, program, ran, write},
};

const USER: &str = ".config/inspan/config.toml";

#[test]
fn the_nearest_setting_counts() {
    let folder = &folder_with(&[]);
    fs::create_dir(folder.join(".git")).unwrap();
    write(folder, &[(USER, "provider = \"echo\"\n[budget]\nusd = 5\n[providers.claude]\nmodel = \"a\"\n")]);
    write(
        folder,
        &[("inspan.toml", "[providers.claude]\nmodel = \"b\"\n\n[providers.claude.options]\nmaxTurns = 3\n")],
    );
    fs::create_dir(folder.join("deep")).unwrap();
    let mut call = program(&folder.join("deep"), &["config", "--json"]);
    let call = call.env("HOME", folder).env("INSPAN_BUDGET_USD", "7").env_remove("INSPAN_HOME");
    let config = ran(folder, call);
    assert_eq!((config.code, config.stderr.as_str()), (Some(0), ""));
    let user = "~/.config/inspan/config.toml";
    assert_eq!(
        config.json(),
        json!({
            "settings": {
                "provider": { "value": "echo", "from": format!("{user}:1") },
                "budget.usd": { "value": 7.0, "from": "INSPAN_BUDGET_USD" },
                "providers.claude.model": { "value": "b", "from": "~/inspan.toml:2" },
                "providers.claude.options.maxTurns": { "value": 3, "from": "~/inspan.toml:5" },
            },
            "files": [user, "~/inspan.toml"],
        })
    );
}

#[test]
fn without_a_home_only_the_file_of_a_project_is_named() {
    let folder = &folder_with(&[]);
    let mut call = program(folder, &["config"]);
    let ran = ran(folder, call.env_remove("HOME").env_remove("XDG_CONFIG_HOME").env_remove("INSPAN_HOME"));
    assert_eq!((ran.code, &*ran.stderr), (Some(0), "no settings; create inspan.toml in a project\n"));
}

#[test]
fn a_wrong_setting_is_named_with_its_line() {
    let rows = [
        ("[budget]\nusd = \"x\"\n", ":2: invalid type: string \"x\", expected a number"),
        ("x = 1\n", ":1: unknown field `x`"),
        ("\npermissionTimeout = \"long\"\n", ":2: `permissionTimeout`: "),
        ("\n[budget]\nusd = -1\n", ":3: `budget.usd` must be greater than 0"),
        ("provider = \"ecko\"\n", ":1: unknown provider `ecko`; did you mean `echo`?"),
        ("[providers.claude.options]\nmaxTurn = 1\n", ":2: provider `claude` does not accept `maxTurn`: "),
        (
            "[providers.claude]\nmodel = \"sk-ant-api03-0123456789abcdefghij\"\n",
            ":2: `model` looks like a secret",
        ),
        ("store = \"here\"\n", ":1: `store` must be an absolute path"),
        ("provider = \n", ":1: "),
    ];
    for (text, expected) in rows {
        let folder = &folder_with(&[]);
        write(folder, &[(USER, text)]);
        let ran = inspan(folder, &["config"]);
        let expected = format!("error: ~/.config/inspan/config.toml{expected}");
        assert_eq!((ran.code, ran.stderr.starts_with(&expected)), (Some(4), true), "{text}: {}", ran.stderr);
    }
    let folder = &folder_with(&[]);
    write(folder, &[("inspan.toml", "store = \"/tmp\"\n")]);
    let ran = inspan(folder, &["config"]);
    let expected = "error: ~/inspan.toml:1: `store` can only be set in the user's settings file";
    assert!(ran.stderr.starts_with(expected), "{}", ran.stderr);
}

fn outputs(ran: &Ran) -> Value {
    serde_json::from_str::<Value>(&ran.stdout).unwrap_or_else(|_| panic!("{}", ran.stderr))["outputs"].clone()
}

#[test]
fn flows_and_agents_take_their_defaults() {
    let folder = &folder_with(&[]);
    let turn = "[[{ text = \"from the settings\" }]]";
    write(
        folder,
        &[(
            "flows/inspan.toml",
            &format!("provider = \"scripted\"\n[providers.scripted.options]\nturns = {turn}\n"),
        )],
    );
    write(
        folder,
        &[(
            "flows/flow.yaml",
            "name: f\nnodes:\n  - { id: a, type: scripted.agent, input: { prompt: x } }\n  - { id: b, type: scripted.agent, input: { prompt: x, options: { turns: [[{ text: its own }]] } } }\n",
        )],
    );
    let flow = inspan(folder, &["run", "flows/flow.yaml", "--json"]);
    let texts = ["a", "b"].map(|node| outputs(&flow)[node]["text"].clone());
    assert_eq!(texts, ["from the settings", "its own"]);
    // The options of a project are not for an agent without a flow, those of the user are.
    let in_flows = || {
        let mut call = program(&folder.join("flows"), &["agent", "x"]);
        ran(folder, call.env("HOME", folder))
    };
    let stranger = in_flows();
    write(folder, &[(USER, &format!("[providers.scripted.options]\nturns = {turn}\n"))]);
    let own = in_flows().expect(0);
    let texts = [&stranger, &own].map(|ran| ran.stdout.contains("from the settings"));
    assert_eq!(texts, [false, true]);
    // The file of the project that the program is called in is not that of a flow elsewhere.
    write(
        folder,
        &[
            ("called/.git/HEAD", ""),
            (
                "called/inspan.toml",
                "[providers.scripted.options]\nturns = [[{ text = \"from elsewhere\" }]]\n",
            ),
        ],
    );
    let elsewhere = inspan(&folder.join("called"), &["run", "../flows/flow.yaml", "--json"]);
    assert_eq!(outputs(&elsewhere)["a"]["text"], "from the settings");
    inspan(folder, &["agent", "x"]).refused("no provider given");
}

#[test]
fn the_store_may_be_named_in_the_settings() {
    let folder = &folder_with(&[]);
    let kept = folder.join("kept");
    write(folder, &[(USER, &format!("store = {:?}\n", kept.display().to_string()))]);
    write(folder, &[("flow.yaml", "name: f\nnodes:\n  - { id: a, type: control.noop }\n")]);
    let ran = ran(folder, program(folder, &["run", "flow.yaml"]).env_remove("INSPAN_HOME"));
    assert_eq!((ran.code, kept.join("sessions.db").is_file()), (Some(0), true), "{}", ran.stderr);
}

#[test]
fn a_budget_of_the_settings_holds_for_a_flow_without_one() {
    let folder = &folder_with(&[]);
    let turns =
        "options: { turns: [[{ text: x }, { usage: { tokens: { inputTokens: 7 }, costUsd: 0.5 } }]] }";
    let node = |id: &str, after: &str| {
        format!("  - {{ id: {id}, type: scripted.agent, {after}input: {{ prompt: x, {turns} }} }}\n")
    };
    write(
        folder,
        &[("flow.yaml", &format!("name: f\nnodes:\n{}{}", node("a", ""), node("b", "dependsOn: [a], ")))],
    );
    let spent = |usd: &str| {
        let mut call = program(folder, &["run", "flow.yaml", "--json"]);
        ran(folder, call.env("INSPAN_BUDGET_USD", usd)).code
    };
    assert_eq!(["0.2", "5"].map(spent), [Some(5), Some(0)]);
}

#[test]
fn a_question_for_permission_waits_as_long_as_the_settings_say() {
    let folder = &folder_with(&[]);
    write(folder, &[("flow.yaml", PERMISSION), ("inspan.toml", "permissionTimeout = \"50ms\"\n")]);
    inspan(folder, &["run", "--detach", "--session-id", "s"]).expect(0);
    let logs = inspan(folder, &["logs", "s", "-f", "--json"]).expect(0).stdout;
    let asked: Vec<Value> = logs
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .filter(|event: &Value| event["event"]["type"] == "session:prompt")
        .collect();
    let [asked] = &asked[..] else { panic!("{logs}") };
    let moment = |at: &Value| at.as_str().unwrap().parse::<Timestamp>().unwrap();
    let wait = moment(&asked["event"]["deadline"]).since(moment(&asked["timestamp"]));
    // The event is a moment younger than its question.
    assert!(wait.as_millis() <= 50, "{logs}");
    inspan(folder, &["show", "s", "a"]).expect(0).prints("permissionDenials");
}

#[test]
fn the_agent_of_the_user_does_the_work_of_the_flows() {
    let folder = &folder_with(&[]);
    write(
        folder,
        &[(
            "flow.yaml",
            "flow:\n  name: who\n  agents: { reviewer: { type: claude.agent, prompt: Say it. } }\nnodes:\n  - { id: ask, agent: reviewer }\n",
        )],
    );
    write(folder, &[("inspan.toml", "[agents.reviewer]\ntype = \"echo.agent\"\n")]);
    let ran = inspan(folder, &["run", "flow.yaml", "--json"]);
    assert_eq!((ran.code, &outputs(&ran)["ask"]["text"]), (Some(0), &json!("Say it.")));
}

#[test]
fn an_exported_session_has_no_settings_that_its_flow_does_not_use() {
    let settings = "[agents.reviewer]\ntype = \"echo.agent\"\nprompt = \"private prompt\"
[providers.claude.options.mcpServers.mail]\ncommand = \"mailer\"\nenv = { NUMBER = \"private number\" }\n";
    let echo = "name: f\nnodes:\n  - { id: w, type: echo, input: { text: hi } }\n";
    let folder = &folder_with(&[]);
    write(folder, &[("flow.yaml", echo), (USER, settings)]);
    inspan(folder, &["run", "flow.yaml", "--session-id", "s"]).expect(0);
    inspan(folder, &["store", "export", "s", "-o", "s.jsonl"]).expect(0);
    let exported = fs::read_to_string(folder.join("s.jsonl")).unwrap();
    assert!(!exported.contains("private"), "{exported}");
    // It is the same flow where it is imported, and here an edit may use them.
    let imported = |arguments: &[&str]| inspan(folder, &[arguments, &["--store", "other.db"]].concat());
    imported(&["store", "import", "s.jsonl"]).expect(0);
    imported(&["resume", "s", "--from", "w", "--no-input"]).expect(0);
    write(folder, &[("flow.yaml", "name: f\nnodes:\n  - { id: w, agent: reviewer }\n"), (USER, "")]);
    let edited = inspan(folder, &["resume", "s", "--edited", "--json"]).expect(0);
    assert_eq!(outputs(&edited)["w"]["text"], "private prompt");
}
