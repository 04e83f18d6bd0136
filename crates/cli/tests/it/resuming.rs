//! Sessions that become idle and are resumed: pauses, questions, the background, edits and forks, each by the
//! program itself.

use std::{fs, path::Path, process::Child};

use serde_json::{Value, json};

use crate::{
    processes::{signal, until},
    program::{Ran, flow_folder, folder_with, inspan, program},
};

/// Each step leaves a line in a file, so that what ran twice is seen.
const STEPS: &str = r#"
flow: { name: steps, input: { word: oxen } }
nodes:
  - { id: first, type: exec, input: { argv: [sh, -c, "echo first >> did; echo {{ flow.input.word }}"] } }
  - { id: slow, type: exec, dependsOn: [first], input: { argv: [sh, -c, "echo slow >> did; [ -e go ] || sleep 60; echo slept"] } }
  - { id: ask, type: human.input, dependsOn: [slow], input: { prompt: "Which way?", choices: [left, right] } }
  - { id: last, type: exec, dependsOn: [ask], input: { argv: [sh, -c, "echo last >> did; echo {{ ask.choice }}"] } }
"#;

fn folder() -> tempfile::TempDir {
    flow_folder(STEPS)
}

fn did(folder: &Path) -> Vec<String> {
    let text = fs::read_to_string(folder.join("did")).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

/// Starts the flow and waits until its slow step runs.
fn at_slow(folder: &Path) -> Child {
    let child = program(folder, &["run", "flow.yaml", "--session-id", "s"]).spawn().unwrap();
    until("the slow step runs", || did(folder).contains(&"slow".to_owned()));
    child
}

fn open_gate(folder: &Path) {
    fs::write(folder.join("go"), "").unwrap();
}

fn prompt(ran: &Ran) -> String {
    ran.json()["prompts"][0]["promptId"].as_str().unwrap().to_owned()
}

#[test]
fn a_paused_session_continues_and_a_question_is_answered_from_another_shell() {
    let folder = folder();
    let folder = folder.path();
    let mut child = at_slow(folder);
    signal(&child, "INT");
    assert_eq!(child.wait().unwrap().code(), Some(7));
    open_gate(folder);
    let waits = inspan(folder, &["resume", "s", "--json"]);
    assert_eq!((waits.code, waits.json()["outcome"].clone()), (Some(3), json!("waiting")));
    inspan(folder, &["reply", "s", &prompt(&waits), "--choice", "up"]).expect(2);
    let done = inspan(folder, &["reply", "s", &prompt(&waits), "--choice", "left", "--json"]).expect(0);
    assert_eq!(
        (done.json()["outcome"].clone(), done.json()["prompts"].clone()),
        (json!("success"), json!([]))
    );
    assert_eq!(did(folder), ["first", "slow", "slow", "last"]);
    inspan(folder, &["reply", "s", &prompt(&waits), "--choice", "left"]).expect(2);
}

#[test]
fn a_killed_session_continues_and_repeats_nothing_that_was_done() {
    let folder = folder();
    let folder = folder.path();
    let mut child = at_slow(folder);
    signal(&child, "KILL");
    child.wait().unwrap();
    open_gate(folder);
    let plan = inspan(folder, &["resume", "s", "--plan", "--json"]);
    let fates: Vec<_> =
        plan.json()["nodes"].as_array().unwrap().iter().map(|node| node["fate"].clone()).collect();
    assert_eq!(fates, ["finished", "runs", "undecided", "undecided"]);
    inspan(folder, &["resume", "s", "--json"]).expect(3);
    assert_eq!(did(folder), ["first", "slow", "slow"]);
}

#[test]
fn a_session_continues_although_one_before_the_ended_one_that_it_takes_over_from_was_deleted() {
    let flow = r#"
flow: { name: thrice }
nodes:
  - { id: first, type: exec, input: { argv: [sh, -c, "echo first >> did"] } }
  - { id: one, type: exec, dependsOn: [first], input: { argv: [test, -e, one] } }
  - { id: two, type: exec, dependsOn: [one], input: { argv: [test, -e, two] } }
  - { id: ask, type: human.input, dependsOn: [two], input: { prompt: "Well?" } }
"#;
    let folder = flow_folder(flow);
    let folder = folder.path();
    inspan(folder, &["run", "flow.yaml", "--session-id", "a"]).expect(1);
    fs::write(folder.join("one"), "").unwrap();
    inspan(folder, &["resume", "a", "--session-id", "b"]).expect(1);
    fs::write(folder.join("two"), "").unwrap();
    inspan(folder, &["store", "gc", "a"]).expect(0);
    inspan(folder, &["resume", "b", "--session-id", "c", "--no-input"]).expect(3);
    inspan(folder, &["reply", "c", "yes"]).expect(0);
    assert_eq!(did(folder), ["first"]);
}

#[test]
fn a_plan_says_of_an_item_in_another_place_what_the_run_does() {
    let flow = |items: &str| {
        format!(
            "
flow: {{ name: ask }}
nodes:
  - id: each
    type: control.foreach
    input: {{ items: [{items}] }}
    body: {{ nodes: [{{ id: q, type: human.input, input: {{ prompt: 'deploy {{{{ item }}}}?' }} }}] }}
"
        )
    };
    let folder = flow_folder(&flow("one, two, three"));
    let folder = folder.path();
    inspan(folder, &["run", "flow.yaml", "--no-input", "--session-id", "s"]).expect(3);
    for question in ["each[0]/q.1", "each[1]/q.1"] {
        inspan(folder, &["reply", "s", question, "--no-resume", "yes"]).expect(0);
    }
    let fates = || {
        let plan = inspan(folder, &["resume", "s", "--plan", "--json"]).json();
        let nodes = plan["nodes"].as_array().unwrap().iter();
        let items = nodes.filter(|node| node["path"].as_str().unwrap().ends_with("/q"));
        items.map(|node| node["fate"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(fates(), ["answered", "answered", "runs"]);
    fs::write(folder.join("flow.yaml"), flow("three, two, one")).unwrap();
    assert_eq!(fates(), ["runs", "answered", "answered"]);
    fs::write(folder.join("flow.yaml"), flow("two, three")).unwrap();
    assert_eq!(fates(), ["answered", "runs"]);
    let edited = inspan(folder, &["resume", "s", "--edited", "--no-input", "--json"]).expect(3).json();
    let asked: Vec<_> = edited["prompts"].as_array().unwrap().iter().map(|asked| &asked["prompt"]).collect();
    assert_eq!(asked, ["deploy three?"]);
}

#[test]
fn only_one_process_drives_a_session() {
    let folder = folder();
    let folder = folder.path();
    let mut child = at_slow(folder);
    let refused = inspan(folder, &["resume", "s"]).expect(2);
    assert!(refused.stderr.contains(&format!("process {}", child.id())), "{}", refused.stderr);
    // A plan says nothing else: what is at work has not been interrupted.
    let plan = inspan(folder, &["resume", "s", "--plan"]);
    assert_eq!((plan.code, &plan.stdout, &plan.stderr), (Some(2), &refused.stdout, &refused.stderr));
    let fork = inspan(folder, &["fork", "s", "--plan"]);
    assert!(fork.stdout.contains("slow   runs: it still runs in that session"), "{}", fork.stdout);
    let paused = inspan(folder, &["pause", "s", "--reason", "lunch"]);
    assert_eq!((paused.code, child.wait().unwrap().code()), (Some(0), Some(7)), "{}", paused.stderr);
    inspan(folder, &["stop", "s"]).expect(0);
    inspan(folder, &["stop", "s"]).expect(2);
    assert_eq!(did(folder), ["first", "slow"]);
}

#[test]
fn a_background_process_is_announced_once_it_drives_the_session() {
    let folder = folder();
    let folder = folder.path();
    let mut child = at_slow(folder);
    let driven = inspan(folder, &["resume", "s", "--detach"]);
    assert_eq!((driven.code, driven.stdout.as_str()), (Some(2), ""), "{}", driven.stderr);
    assert!(driven.stderr.contains(&format!("process {}", child.id())), "{}", driven.stderr);
    let taken = inspan(folder, &["run", "flow.yaml", "--detach", "--session-id", "s", "--json"]);
    let message = json!("the store already has a session `s`");
    assert_eq!((taken.code, taken.json()["error"]["message"].clone()), (Some(2), message));
    signal(&child, "INT");
    child.wait().unwrap();
    inspan(folder, &["resume", "s", "--detach", "--events", "-"]).expect(2);
    open_gate(folder);
    let begun = inspan(folder, &["resume", "s", "--detach", "--events", "events.jsonl"]).expect(0);
    assert!(begun.stderr.contains("watch it with `inspan logs s -f`, see"), "{}", begun.stderr);
    until("the events are written", || {
        fs::read_to_string(folder.join("events.jsonl")).is_ok_and(|text| text.contains("flow:waiting"))
    });
    until("it has left", || inspan(folder, &["pause", "s"]).code == Some(2));
    assert_eq!(did(folder), ["first", "slow", "slow"]);
    // What it names works as it is printed.
    let other = ["--store", "other.db"];
    let there = inspan(folder, &[&["run", "--detach", "--session-id", "o"], &other[..]].concat());
    for named in ["`inspan logs o -f --store other.db`", "`inspan inbox --store other.db`"] {
        assert!(there.stderr.contains(named), "{}", there.stderr);
    }
    inspan(folder, &[&["stop", "o"], &other[..]].concat()).expect(0);
}

#[test]
fn without_a_person_a_question_is_not_waited_for_until_its_time_is_up() {
    let folder = flow_folder(
        "name: q\nnodes: [{ id: a, type: human.input, input: { prompt: Well?, timeout: 1h } }]\n",
    );
    let folder = folder.path();
    let left = inspan(folder, &["run", "flow.yaml", "--no-input", "--session-id", "s", "--json"]);
    assert_eq!((left.code, left.json()["outcome"].clone()), (Some(3), json!("waiting")));
    // Two answers while no process runs it: one is taken, and the other is refused.
    let id = prompt(&left);
    let codes = ["yes", "no"].map(|text| inspan(folder, &["reply", "s", &id, text, "--no-resume"]).code);
    assert_eq!(codes, [Some(0), Some(2)]);
    let done = inspan(folder, &["resume", "s", "--json"]);
    assert_eq!((done.code, done.json()["outputs"]["a"]["content"].clone()), (Some(0), json!("yes")));
    let late = ["send", "pause", "stop"].map(|word| {
        let more: &[&str] = if word == "send" { &[word, "s", "x"] } else { &[word, "s"] };
        inspan(folder, more).code
    });
    assert_eq!(late, [Some(2); 3]);
}

#[test]
fn a_stored_answer_counts_in_a_session_that_continues_the_answered_one() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let flow = |prompt: &str, last: &str| {
        let text = format!(
            "flow: {{ name: q }}\nnodes:\n  - {{ id: h, type: human.input, input: {{ prompt: \"{prompt}\", choices: [yes, no] }} }}\n  - {{ id: y, type: exec, dependsOn: [h], input: {{ argv: [echo, \"{{{{ h.choice }}}} {last}\"] }} }}\n"
        );
        fs::write(folder.join("flow.yaml"), text).unwrap();
    };
    let asked = |id: &str| {
        flow("Well?", "old");
        inspan(folder, &["run", "flow.yaml", "--no-input", "--session-id", id]).expect(3);
        inspan(folder, &["reply", id, "--no-resume", "--choice", "no"]).expect(0);
    };
    let said = |args: &[&str]| {
        let ran = inspan(folder, args);
        let said = ran.json()["outputs"]["y"]["stdout"].as_str().map(|said| said.trim().to_owned());
        (ran.code, said)
    };
    let no = |last: &str| (Some(0), Some(format!("no {last}")));
    let planned = |args: &[&str]| {
        let planned = inspan(folder, args).json();
        json!([planned["nodes"][0]["fate"], planned["nodes"][0]["why"]])
    };
    let answered = json!(["answered", "its stored answer is taken"]);
    asked("edited");
    assert_eq!(planned(&["resume", "edited", "--plan", "--json"]), answered);
    flow("Well?", "new");
    assert_eq!(planned(&["resume", "edited", "--plan", "--json"]), answered);
    assert_eq!(said(&["resume", "edited", "--edited", "--no-input", "--json"]), no("new"));
    // The answer to another question is none to this one.
    asked("changed");
    flow("Really?", "new");
    let anew = json!(["runs", "its input has changed"]);
    assert_eq!(planned(&["resume", "changed", "--plan", "--json"]), anew);
    assert_eq!(said(&["resume", "changed", "--edited", "--no-input", "--json"]), (Some(3), None));
    asked("forked");
    assert_eq!(said(&["fork", "forked", "--no-input", "--json"]), no("old"));
    assert_eq!(said(&["resume", "forked", "--no-input", "--json"]), no("old"));
    asked("stopped");
    inspan(folder, &["stop", "stopped"]).expect(0);
    assert_eq!(said(&["resume", "stopped", "--no-input", "--json"]), no("old"));
}

#[test]
fn a_session_in_the_background_is_answered_and_ends() {
    let folder = folder();
    let folder = folder.path();
    open_gate(folder);
    let begun = inspan(folder, &["run", "flow.yaml", "--detach", "--json"]).expect(0);
    let id = begun.json()["sessionId"].as_str().unwrap().to_owned();
    until("the step before the question has run", || did(folder).contains(&"slow".to_owned()));
    let mut answered = Vec::new();
    until("the question is answered", || {
        let ran = inspan(folder, &["reply", &id, "ask", "--choice", "right"]);
        answered.push(ran.report());
        ran.code == Some(0)
    });
    until("the last step has run", || did(folder).contains(&"last".to_owned()));
    assert_eq!(did(folder), ["first", "slow", "last"], "{answered:?}");
    let log = folder.join(format!(".home/background/{id}.log"));
    assert!(log.exists());
    until("it is deleted", || inspan(folder, &["store", "gc", &id]).code == Some(0));
    assert!(!log.exists());
}

#[test]
fn an_edited_flow_reuses_what_the_edit_does_not_touch() {
    let folder = folder();
    let folder = folder.path();
    open_gate(folder);
    inspan(folder, &["run", "flow.yaml", "--session-id", "s", "--json"]).expect(3);
    fs::write(folder.join("flow.yaml"), STEPS.replace("echo slept", "echo rested")).unwrap();
    let plan = inspan(folder, &["resume", "s", "--plan", "--json"]);
    let fates: Vec<_> = plan.json()["nodes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|node| (node["path"].clone(), node["fate"].clone(), node["why"].clone()))
        .collect();
    let why = json!("its input has changed");
    assert_eq!(fates[0], (json!("first"), json!("reused"), Value::Null));
    assert_eq!(fates[1], (json!("slow"), json!("runs"), why));
    inspan(folder, &["resume", "s", "--no-input"]).expect(2);
    let edited = inspan(folder, &["resume", "s", "--edited", "--session-id", "t", "--json"]).expect(3);
    assert_eq!(edited.json()["nodes"]["first"]["reused"], json!(true));
    assert_eq!(did(folder), ["first", "slow", "slow"]);
    let why = inspan(folder, &["why", "t", "slow"]).stdout;
    assert!(why.contains("the edge into it fired; s/slow is not reused: its input has changed"), "{why}");
    // The new session has taken the place of the old one.
    let open = inspan(folder, &["ps", "--json"]);
    let open: Vec<_> =
        open.json().as_array().unwrap().iter().map(|entry| entry["sessionId"].clone()).collect();
    assert_eq!(open, [json!("t")]);
    let old = inspan(folder, &["show", "s", "--json"]).json();
    assert_eq!((&old["state"], &old["continuedBy"]), (&json!("continued"), &json!("t")));
    let as_started = inspan(folder, &["resume", "s", "--as-started", "--json"]).expect(3);
    assert!(as_started.stderr.contains("session `s` was already resumed as `t`"), "{}", as_started.stderr);
    assert_eq!(as_started.json()["sessionId"], json!("t"));
    // A late answer does not run it again.
    let late = inspan(folder, &["reply", "s", "ask", "--choice", "left"]);
    assert_ne!(late.code, Some(0), "{}", late.stdout);
    assert_eq!(did(folder), ["first", "slow", "slow"]);
    for never in ["slow#7", "slow#0", "slow#x"] {
        let refused = inspan(folder, &["fork", "t", "--at", never]);
        assert_eq!(refused.code, Some(2), "{never}: {}", refused.stderr);
    }
    let planned = |at: &str| inspan(folder, &["fork", "t", "--at", at, "--plan", "--json"]).json();
    assert_eq!(planned("slow#1")["nodes"], planned("slow")["nodes"]);
    inspan(folder, &["fork", "t", "--at", "slow", "--session-id", "u", "--json"]).expect(3);
    assert_eq!(did(folder), ["first", "slow", "slow", "slow"]);
    // What an open session takes over is not deleted, and is missed where it is not.
    let needed = inspan(folder, &["store", "gc", "t"]);
    assert_ne!(needed.code, Some(0), "{}", needed.stdout);
    assert!(
        needed.stderr.contains("`u` has not ended and takes over the finished work of `t`"),
        "{}",
        needed.stderr
    );
    inspan(folder, &["store", "export", "u", "-o", "u.jsonl"]).expect(0);
    for (arguments, code) in [(&["store", "import", "u.jsonl"][..], 0), (&["resume", "u", "--no-input"], 2)] {
        let there = inspan(folder, &[arguments, &["--store", "elsewhere.db"]].concat());
        assert_eq!(there.code, Some(code), "{arguments:?}: {}", there.stderr);
        assert!(
            code == 0 || there.stderr.contains("work of session `t`, which is not in the store"),
            "{}",
            there.stderr
        );
    }
    assert_eq!(did(folder), ["first", "slow", "slow", "slow"]);
    let twice = inspan(folder, &["store", "import", "u.jsonl"]);
    let help = "help: `inspan show u` shows it; `inspan store gc u` deletes it";
    assert!(twice.code == Some(2) && twice.stderr.contains(help), "{}", twice.stderr);
    fs::remove_file(folder.join("flow.yaml")).unwrap();
    let gone = inspan(folder, &["resume", "t", "--edited"]).expect(2);
    assert!(gone.stderr.contains("flow.yaml"), "{}", gone.stderr);
}

#[test]
fn finished_work_runs_again_only_with_consent_also_after_the_end() {
    const FLOW: &str = "
flow: { name: ends, input: { word: old } }
nodes:
  - { id: a, type: exec, input: { argv: [sh, -c, 'echo a {{ flow.input.word }} >> did'] } }
  - { id: b, type: exec, dependsOn: [a], input: { argv: [sh, -c, 'echo b >> did'] } }
  - { id: bad, type: exec, dependsOn: [b], input: { argv: [sh, -c, 'test -e fixed'] } }
";
    let folder = flow_folder(FLOW);
    let folder = folder.path();
    inspan(folder, &["run", "flow.yaml", "--session-id", "s", "--no-input"]).expect(1);
    let before_b = "  - { id: new, type: exec, input: { argv: [echo, new] } }\n  - { id: b, type: exec, dependsOn: [a, new]";
    let edits = [
        FLOW.replace("echo b", "echo c"),
        FLOW.replace("  - { id: b, type: exec, dependsOn: [a]", before_b),
        FLOW.replace("word: old", "word: new"),
    ];
    for edited in edits {
        fs::write(folder.join("flow.yaml"), &edited).unwrap();
        let refused = inspan(folder, &["resume", "s", "--no-input"]);
        assert_eq!(refused.code, Some(2), "{edited}: {}", refused.report());
        assert!(refused.stderr.contains("finished nodes would run again"), "{}", refused.stderr);
        assert_eq!(did(folder), ["a old", "b"]);
    }
    // What has not finished may be edited, and is what a failure is mended by.
    fs::write(folder.join("flow.yaml"), FLOW.replace("test -e fixed", "true")).unwrap();
    let mended = inspan(folder, &["resume", "s", "--no-input"]);
    assert_eq!((mended.code, did(folder)), (Some(0), vec!["a old".to_owned(), "b".to_owned()]));
    fs::write(folder.join("flow.yaml"), FLOW.replace("word: old", "word: new")).unwrap();
    // What was given is no default.
    inspan(folder, &["run", "flow.yaml", "--session-id", "g", "--no-input", "-i", "word=new"]).expect(1);
    fs::remove_file(folder.join("did")).unwrap();
    fs::write(
        folder.join("flow.yaml"),
        FLOW.replace("word: old", "word: newer").replace("test -e fixed", "true"),
    )
    .unwrap();
    let kept = inspan(folder, &["resume", "g", "--no-input"]);
    assert_eq!((kept.code, did(folder)), (Some(0), vec![]), "{}", kept.report());
    fs::write(folder.join("flow.yaml"), FLOW.replace("word: old", "word: new")).unwrap();
    inspan(folder, &["resume", "s", "--no-input", "--edited"]).expect(1);
    assert_eq!(did(folder), ["a new", "b"]);
}

#[test]
fn a_node_that_was_renamed_does_its_work_again_only_with_consent() {
    const FLOW: &str = "
flow: { name: pays }
nodes:
  - { id: pay, type: exec, effects: external, input: { argv: [sh, -c, 'echo paid >> did; [ -e go ] || sleep 60'] } }
  - { id: mail, type: exec, dependsOn: [pay], input: { argv: [test, -e, fixed] } }
";
    let folder = flow_folder(FLOW);
    let folder = folder.path();
    let file = folder.join("flow.yaml");
    let renamed = FLOW.replace("id: pay", "id: payment").replace("[pay]", "[payment]");
    let refused = |session: &str, why: &str, words: &str| {
        let plan = inspan(folder, &["resume", session, "--plan", "--json"]).json();
        let last = plan["nodes"].as_array().unwrap().last().unwrap().clone();
        assert_eq!(last, json!({ "path": "pay", "fate": "dropped", "why": why, "costUsd": null }));
        let plan = inspan(folder, &["resume", session, "--plan"]).stdout;
        assert!(plan.contains(&format!("pay      dropped: {why}\n")), "{plan}");
        let refused = inspan(folder, &["resume", session, "--no-input"]);
        assert!(refused.code == Some(2) && refused.stderr.contains(words), "{}", refused.report());
        assert_eq!(did(folder), ["paid"]);
    };
    let words = "new nodes would run, while the work of others is dropped: `pay`";
    // Its process died while it was at work.
    let mut child = program(folder, &["run", "flow.yaml", "--session-id", "cut"]).spawn().unwrap();
    until("it is paid", || did(folder) == ["paid"]);
    child.kill().unwrap();
    child.wait().unwrap();
    fs::write(&file, &renamed).unwrap();
    refused("cut", "it was interrupted, and the edited flow does not have it", words);
    // It had finished.
    open_gate(folder);
    fs::remove_file(folder.join("did")).unwrap();
    fs::write(&file, FLOW).unwrap();
    assert_eq!(inspan(folder, &["run", "flow.yaml", "--session-id", "s"]).code, Some(1));
    fs::write(&file, &renamed).unwrap();
    refused("s", "it had finished, and the edited flow does not have it", words);
    // Without it nothing new runs: a node that was removed on purpose needs no consent.
    let removed: String =
        FLOW.lines().filter(|line| !line.contains("id: pay")).map(|l| format!("{l}\n")).collect();
    fs::write(&file, removed.replace("dependsOn: [pay], ", "")).unwrap();
    let removed = inspan(folder, &["resume", "s", "--no-input"]);
    assert_eq!((removed.code, did(folder)), (Some(1), vec!["paid".to_owned()]), "{}", removed.report());
    fs::write(&file, &renamed).unwrap();
    let again = inspan(folder, &["fork", "s", "--session-id", "t"]);
    assert_eq!(again.code, Some(1), "{}", again.report());
    let consented = inspan(folder, &["resume", "t", "--no-input", "--edited"]);
    assert_eq!((consented.code, did(folder).len()), (Some(1), 2), "{}", consented.report());
}

#[test]
fn an_edited_flow_may_take_another_input() {
    const FLOW: &str = "
flow: { name: renamed, input: { word: x } }
nodes:
  - { id: a, type: exec, input: { argv: [sh, -c, 'echo a >> did'] } }
  - { id: bad, type: exec, dependsOn: [a], input: { argv: [sh, -c, 'echo $1 >> did; false', sh, '{{ flow.input.word }}'] } }
";
    let folder = flow_folder(FLOW);
    let folder = folder.path();
    inspan(folder, &["run", "flow.yaml", "--session-id", "s", "--no-input", "-i", "word=old"]);
    assert_eq!(did(folder), ["a", "old"]);
    let edited =
        FLOW.replace("word: x", "text: x").replace("input.word", "input.text").replace("; false", "");
    fs::write(folder.join("flow.yaml"), edited).unwrap();
    let wrong = inspan(folder, &["resume", "s", "--edited", "--plan", "-i", "word=new"]).expect(2);
    assert!(wrong.stderr.contains("unknown input `word`"), "{}", wrong.report());
    inspan(folder, &["resume", "s", "-i", "text=new"]).expect(2);
    let left_out = "the flow has no input `word` any more: that of `s` is left out\n";
    let plan = inspan(folder, &["resume", "s", "--edited", "--plan"]);
    assert_eq!((plan.code, plan.stderr.as_str()), (Some(0), left_out), "{}", plan.report());
    inspan(folder, &["resume", "s", "--edited", "--no-input", "-i", "text=new"]).expect(0);
    assert_eq!(did(folder), ["a", "old", "new"]);
}

#[test]
fn an_edited_flow_is_not_run_beside_the_process_that_runs_the_session() {
    let folder = folder();
    let folder = folder.path();
    let mut child = at_slow(folder);
    let file = folder.join("flow.yaml");
    fs::write(&file, fs::read_to_string(&file).unwrap() + "# edited\n  - { id: more, type: control.noop }\n")
        .unwrap();
    let beside = inspan(folder, &["resume", "s", "--edited", "--session-id", "t"]);
    assert_ne!(beside.code, Some(0), "{}", beside.stdout);
    assert!(beside.stderr.contains("session `s` is run by"), "{}", beside.stderr);
    signal(&child, "INT");
    assert_eq!(child.wait().unwrap().code(), Some(7));
    assert_eq!(did(folder), ["first", "slow"]);
}

#[test]
fn a_node_that_cleans_up_and_was_cut_short_is_asked_about_before_the_session_ends() {
    let folder = flow_folder(
        "
flow: { name: cleans }
nodes:
  - { id: a, type: exec, input: { argv: ['false'] } }
  - { id: c, type: exec, effects: external, dependsOn: [{ node: a, on: any }], input: { argv: [sh, -c, 'echo c >> did; while [ ! -e go ]; do sleep 0.02; done'] } }
",
    );
    let folder = folder.path();
    let mut child = program(folder, &["run", "flow.yaml", "--session-id", "s"]).spawn().unwrap();
    until("c began", || folder.join("did").exists());
    child.kill().unwrap();
    child.wait().unwrap();
    fs::write(folder.join("go"), "").unwrap();
    inspan(folder, &["resume", "s", "--no-input"]).expect(3);
    let asked = inspan(folder, &["inbox", "--json"]).json();
    assert_eq!(asked[0]["task"], json!("c"), "{asked}");
    let again = asked[0]["choices"][0].as_str().unwrap().to_owned();
    inspan(folder, &["reply", "s", "--choice", &again, "--no-resume"]).expect(0);
    let plan = inspan(folder, &["resume", "s", "--plan", "--json"]).json();
    let nodes = plan["nodes"].as_array().unwrap();
    let fates: Vec<_> = nodes.iter().filter(|node| node["path"] == "c").map(|node| &node["fate"]).collect();
    assert_eq!(fates, ["answered"], "{plan}");
    inspan(folder, &["resume", "s", "--no-input"]).expect(1);
    assert_eq!(did(folder), ["c", "c"]);
}

#[test]
fn a_frame_of_a_node_that_was_reused_is_shown_where_it_ran() {
    let folder = flow_folder(
        "
flow: { name: reused }
nodes:
  - { id: each, type: control.foreach, input: { items: [1, 2] }, body: { nodes: [{ id: a, type: control.noop }] } }
  - { id: last, type: control.fail, dependsOn: [each], input: { message: no } }
",
    );
    let folder = folder.path();
    inspan(folder, &["run", "flow.yaml", "--session-id", "s"]);
    inspan(folder, &["resume", "s", "--session-id", "t"]);
    let shown = inspan(folder, &["show", "t", "each[1]"]).expect(2);
    assert!(shown.stderr.contains("was reused from `s`"), "{}", shown.stderr);
    assert!(shown.stderr.contains("`inspan show s 'each[1]'`"), "{}", shown.stderr);
}

#[test]
fn two_answers_at_once_to_a_session_without_a_process_both_count() {
    let folder = flow_folder(
        "
flow: { name: two }
nodes:
  - { id: p, type: human.input, input: { prompt: p } }
  - { id: q, type: human.input, input: { prompt: q } }
",
    );
    let folder = folder.path();
    inspan(folder, &["run", "flow.yaml", "--session-id", "s", "--no-input"]);
    let codes = std::thread::scope(|scope| {
        let replies =
            ["p.1", "q.1"].map(|prompt| scope.spawn(move || inspan(folder, &["reply", "s", prompt, "yes"])));
        replies.map(|reply| reply.join().unwrap()).map(|ran| (ran.code, ran.stderr))
    });
    // The one that resumed the session may end while the other question is open.
    let code = |(code, _): &(Option<i32>, String)| matches!(code, Some(0 | 3));
    assert!(codes.iter().all(code), "{codes:?}");
    until("it ends", || inspan(folder, &["show", "s", "--json"]).json()["state"] == json!("success"));
}

#[test]
fn a_reply_from_a_shell_without_a_terminal_counts_and_answers_nothing_else() {
    let folder = flow_folder(
        "
flow: { name: dep }
nodes:
  - { id: p, type: human.input, input: { prompt: 'deploy?', choices: ['yes', 'no'], default: 'yes' } }
  - { id: q, type: human.input, input: { prompt: 'tell?', choices: ['yes', 'no'], default: 'yes' } }
  - { id: deploy, type: exec, dependsOn: [p], when: p.choice == 'yes', input: { argv: [sh, -c, echo deployed >> did] } }
  - { id: tell, type: exec, dependsOn: [q], when: q.choice == 'yes', input: { argv: [sh, -c, echo told >> did] } }
",
    );
    let folder = folder.path();
    let begin = |session: &str| {
        inspan(folder, &["run", "flow.yaml", "--detach", "--session-id", session]).expect(0);
        until("it asks and has left", || {
            let shown = inspan(folder, &["show", session, "--json"]).json();
            shown["state"] == json!("waiting") && shown["owner"].is_null()
        });
    };
    begin("s");
    let one = inspan(folder, &["reply", "s", "p", "--choice", "no", "--json"]);
    assert_eq!((one.code, prompt(&one).as_str()), (Some(3), "q.1"), "{}", one.stderr);
    let other = inspan(folder, &["reply", "s", "--choice", "no"]);
    assert_eq!((other.code, did(folder)), (Some(0), vec![]), "{}", other.stderr);
    // Whoever asks for the defaults gets them.
    begin("rest");
    let rest = inspan(folder, &["reply", "rest", "p", "--choice", "no", "--no-input"]);
    assert_eq!((rest.code, did(folder)), (Some(0), vec!["told".to_owned()]), "{}", rest.stderr);
}

#[test]
fn the_help_of_a_failed_session_names_what_only_a_fork_runs_again() {
    let flow = "\
flow: { name: f }
nodes:
  - id: each
    type: control.foreach
    input: { items: [1], onItemError: continue }
    body: { nodes: [{ id: check, type: exec, input: { argv: [test, -f, ok] } }] }
  - { id: nothing, type: control.fail, input: { message: none is done } }
edges: [{ from: each, to: nothing, when: each.failed > 0 }]
";
    let folder = flow_folder(flow);
    let folder = folder.path();
    let help = "`each[0]` failed and the flow went on, so that is finished work: `inspan fork s --at 'each[0]'` runs it again";
    let failed = inspan(folder, &["run", "flow.yaml", "--session-id", "s"]);
    assert_eq!((failed.code, failed.stderr.contains(help)), (Some(1), true), "{}", failed.stderr);
    fs::write(folder.join("ok"), "").unwrap();
    let help = help.replace("fork s", "fork t");
    let resumed = inspan(folder, &["resume", "s", "--session-id", "t"]);
    assert_eq!((resumed.code, resumed.stderr.contains(&help)), (Some(1), true), "{}", resumed.stderr);
    inspan(folder, &["fork", "t", "--at", "each[0]"]).expect(0);
}

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
    let folder = folder_with(&[("flow.yaml", SPENDS), ("inner.yaml", INNER)]);
    let folder = folder.path();
    inspan(folder, &["run", "flow.yaml", "--session-id", "a"]).expect(5);
    // The budget of a flow that a node runs is raised of an ended session too.
    inspan(folder, &["resume", "a", "--session-id", "b", "--budget", "inner/.tokens=1000"]).expect(1);
    fs::write(folder.join("ok"), "").unwrap();
    inspan(folder, &["resume", "b", "--session-id", "c", "--budget", "tokens=3"]).expect(5);
    inspan(folder, &["fork", "c", "--at", "inner", "--session-id", "d"]).expect(5);
    let carried = inspan(folder, &["logs", "d", "--json", "--type", "budget:carried"]);
    assert!(
        carried.stdout.contains(r#""raised":{"flow":{"tokens":3},"bodies":{"inner":{"tokens":1000}}}"#),
        "{}",
        carried.stdout
    );
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
    let folder = flow_folder(&four_agents(5));
    let here = folder.path();
    inspan(here, &["run", "flow.yaml", "--session-id", "s"]).expect(5);
    inspan(here, &["resume", "s", "--budget", "tokens=5000"]).expect(0);
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
        let ran = run(id, limit).expect(5);
        assert!(ran.stderr.contains(&format!("exceeded its budget: {used_up}")), "{}", ran.stderr);
    }
}

#[test]
fn a_session_that_another_one_continues_is_deleted_with_it_and_never_runs_again() {
    let flow = |ask: &str, after: &str| {
        format!(
            "name: f\nnodes:\n  - {{ id: a, type: exec, input: {{ argv: [echo, a] }} }}\n{ask}  - {{ id: pay, type: exec, dependsOn: [{after}], input: {{ argv: [sh, -c, 'echo pay >> ran'] }} }}\n"
        )
    };
    let ask = "  - { id: ask, type: human.input, dependsOn: [a], input: { prompt: Pay? } }\n";
    let folder = flow_folder(&flow(ask, "ask"));
    let here = folder.path();
    inspan(here, &["run", "flow.yaml", "--no-wait", "--session-id", "one"]).expect(3);
    fs::write(here.join("flow.yaml"), flow("", "a")).unwrap();
    inspan(here, &["resume", "one", "--edited", "--session-id", "two"]).expect(0);
    let refused = inspan(here, &["store", "gc", "two"]);
    let why = "error: session `two` continues session `one`, which could be resumed again without it: finished work would run again\n  help: `inspan store gc one two` deletes them together\n";
    assert_eq!((refused.code, &*refused.stderr), (Some(1), why));
    // It is told before something is deleted, and nothing says that the files are nobody's.
    let dry = inspan(here, &["store", "gc", "two", "--dry-run"]);
    assert_eq!((dry.code, &*dry.stderr), (Some(1), why));
    assert!(!here.join(".home/sessions.artifacts/.two.unstored").exists());
    let dry = inspan(here, &["store", "gc", "two", "one", "--dry-run"]).expect(0);
    let named: Vec<_> = dry.stderr.lines().map(|line| line.split(',').next().unwrap_or_default()).collect();
    assert_eq!(named, ["one: would be deleted", "two: would be deleted"]);
    let planned = inspan(here, &["store", "gc", "--older-than", "0s", "--dry-run"]).expect(0);
    assert!(planned.stderr.starts_with("2 sessions"), "{}", planned.report());
    let deleted = inspan(here, &["store", "gc", "--older-than", "0s"]).expect(0);
    assert!(deleted.stderr.starts_with("2 sessions deleted"), "{}", deleted.report());
    inspan(here, &["resume"]).expect(2);
    assert_eq!(fs::read_to_string(here.join("ran")).unwrap(), "pay\n");
}

#[test]
fn sessions_that_are_deleted_by_name_are_deleted_in_any_order_or_none_is() {
    let flow = "name: f
nodes: [{ id: ask, type: human.input, input: { prompt: Pay? } }]
";
    let folder = flow_folder(flow);
    let here = folder.path();
    inspan(here, &["run", "flow.yaml", "--no-wait", "--session-id", "one"]).expect(3);
    fs::write(
        here.join("flow.yaml"),
        "name: f
nodes: [{ id: a, type: control.noop }]
",
    )
    .unwrap();
    inspan(here, &["resume", "one", "--edited", "--session-id", "two"]).expect(0);
    inspan(here, &["run", "--session-id", "free"]).expect(0);
    inspan(here, &["store", "gc", "free", "two"]).expect(1);
    inspan(here, &["show", "free"]).expect(0);
    let deleted = inspan(here, &["store", "gc", "two", "free", "one", "two"]).expect(0).stderr;
    let order: Vec<_> = deleted.lines().filter_map(|line| line.split_once(':')).map(|(id, _)| id).collect();
    assert_eq!(order, ["one", "two", "free"]);
}

#[test]
fn all_limits_of_a_budget_that_are_used_up_are_named_and_one_resume_raises_them() {
    let flow = "
flow: { name: b, policy: { budget: { usd: 0.5, tokens: 5 } } }
nodes:
  - { id: a, type: scripted.agent, input: { prompt: x, options: { turns: [[{ text: a }, { usage: { tokens: { inputTokens: 7 }, costUsd: 0.5 } }]] } } }
  - { id: c, type: scripted.agent, dependsOn: [a], input: { prompt: y, options: { turns: [[{ text: c }]] } } }
";
    let folder = flow_folder(flow);
    let here = folder.path();
    let paused = inspan(here, &["run", "flow.yaml", "--no-input", "--session-id", "s"]);
    assert_eq!(paused.code, Some(5), "{}", paused.stderr);
    let (both, raise) =
        ("0.5 USD (0.5000 spent) and 5 tokens (7 spent)", "inspan resume s --budget usd=N,tokens=N");
    let said = [paused.stderr, inspan(here, &["show", "s"]).stdout, inspan(here, &["why", "s"]).stdout];
    assert!(said.iter().all(|text| text.contains(both)), "{said:#?}");
    assert!(said[..2].iter().all(|text| text.contains(raise)), "{said:#?}");
    let one = inspan(here, &["resume", "s", "--budget", "usd=1", "--no-input"]);
    assert_eq!((one.code, one.stderr.contains("0.5 USD")), (Some(5), false), "{}", one.stderr);
    let resumed = inspan(here, &["resume", "s", "--budget", "usd=2,tokens=100", "--no-input"]);
    assert_eq!(resumed.code, Some(0), "{}", resumed.stderr);
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
    let folder = flow_folder(flow);
    let ended = inspan(folder.path(), &["run", "flow.yaml", "--no-input", "--session-id", "s"]);
    let raise = "inspan resume s --budget lp/.tokens=N";
    assert_eq!(ended.code, Some(5), "{}", ended.stderr);
    assert!(ended.stderr.contains(&format!("`{raise}`; finished work is reused")), "{}", ended.stderr);
    let shown = inspan(folder.path(), &["show", "s"]).stdout;
    assert!(shown.contains(&format!("{raise}  raise the budget and continue")), "{shown}");
    // `why` counts passes as `show` does.
    let why = inspan(folder.path(), &["why", "s"]).stdout;
    assert!(shown.contains("[0] pass 1") && why.contains("the budget of pass 1 of `lp` is used up"), "{why}");
    let raised = ["resume", "s", "--budget", "lp/.tokens=100", "--no-input"];
    inspan(folder.path(), &raised).expect(0);
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
    let folder = flow_folder(flow);
    let paused = inspan(folder.path(), &["run", "flow.yaml", "--no-input", "--session-id", "s"]).expect(5);
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
        let again = inspan(folder.path(), &["resume", "s", "--budget", &raise, "--no-input"]);
        let budgets: Vec<&str> =
            again.stderr.lines().filter(|line| line.contains("exceeded its budget:")).collect();
        let expected = format!("warning: the flow exceeded its budget: {limit} tokens ({spent} spent)");
        assert_eq!(budgets, [expected], "{}", again.stderr);
    }
    // What raises nothing is refused: the session would be paused again at once.
    for limit in [35, 51] {
        let raise = format!("tokens={limit}");
        let refused = inspan(folder.path(), &["resume", "s", "--budget", &raise, "--no-input"]);
        let why = format!("error: `tokens` cannot be raised to {limit}: the limit is 35, and 51 are spent\n");
        assert!(refused.code == Some(2) && refused.stderr.contains(&why), "{}", refused.stderr);
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_signal_pauses_a_session_as_soon_as_it_is_listened_to() {
    let folder = folder();
    let folder = folder.path();
    for number in 0..5 {
        let child =
            program(folder, &["run", "flow.yaml", "--session-id", &format!("s{number}")]).spawn().unwrap();
        let status = format!("/proc/{}/status", child.id());
        let listens = |text: String| {
            let caught = text.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap_or("0").trim();
            u64::from_str_radix(caught, 16).unwrap() & (1 << 14) != 0
        };
        while !fs::read_to_string(&status).is_ok_and(listens) {}
        signal(&child, "TERM");
        let ended = child.wait_with_output().unwrap();
        assert_eq!(ended.status.code(), Some(7), "{}", String::from_utf8_lossy(&ended.stderr));
    }
}

#[test]
fn a_signal_that_is_sent_twice_at_once_pauses_and_a_later_one_stops() {
    let folder = flow_folder(
        "
flow: { name: twice }
nodes:
  - { id: a, type: exec, input: { argv: [sh, -c, 'trap \"\" TERM; echo >> began; while :; do sleep 0.1; done'] } }
",
    );
    let folder = folder.path();
    for (wait, second, code) in [(0, "TERM", 7), (0, "HUP", 7), (300, "TERM", 143)] {
        let _none = fs::remove_file(folder.join("began"));
        let mut child = program(folder, &["run", "flow.yaml", "--no-input"]).spawn().unwrap();
        until("it works", || folder.join("began").exists());
        signal(&child, "TERM");
        inspan_testkit::pause(std::time::Duration::from_millis(wait));
        signal(&child, second);
        assert_eq!(child.wait().unwrap().code(), Some(code), "{second} after {wait} ms");
    }
}

#[test]
fn hints_name_the_session_in_which_a_node_ran_behind_all_forks() {
    let flow = "
flow: { name: forks }
nodes:
  - id: each
    type: control.foreach
    input: { items: [1, 2] }
    body: { nodes: [{ id: x, type: exec, input: { argv: [echo, '{{ item }}'] } }] }
  - { id: z, type: exec, dependsOn: [each], input: { argv: [echo, z] } }
";
    let folder = flow_folder(flow);
    let run = |arguments: &[&str]| inspan(folder.path(), arguments);
    run(&["run", "flow.yaml", "--session-id", "base"]).expect(0);
    for (old, new) in [("base", "fork-1"), ("fork-1", "fork-2")] {
        run(&["fork", old, "--at", "z", "--session-id", new]).expect(0);
    }
    let made = run(&["test", "--from", "fork-2"]).stderr;
    assert!(made.contains("`inspan test --from base` makes a case of the session in which it ran"), "{made}");
    let shown = run(&["show", "fork-2", "each[0]"]).stderr;
    assert!(shown.contains("`inspan show base 'each[0]'` shows the frame there"), "{shown}");
}
