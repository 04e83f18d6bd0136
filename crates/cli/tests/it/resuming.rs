//! Sessions that become idle and are resumed: pauses, questions and the background, each by the program itself.

use std::{fs, path::Path, process::Child};

use serde_json::json;

use crate::{
    processes::{kill, signal, until},
    program::{Folder, Ran, ended, flow_folder, folder_with, inspan, program},
};

/// Each step leaves a line in a file, so that what ran twice is seen.
pub(crate) const STEPS: &str = r#"
flow: { name: steps, input: { word: oxen } }
nodes:
  - { id: first, type: exec, input: { argv: [sh, -c, "echo first >> did; echo {{ flow.input.word }}"] } }
  - { id: slow, type: exec, dependsOn: [first], input: { argv: [sh, -c, "echo slow >> did; [ -e go ] || sleep 60; echo slept"] } }
  - { id: ask, type: human.input, dependsOn: [slow], input: { prompt: "Which way?", choices: [left, right] } }
  - { id: last, type: exec, dependsOn: [ask], input: { argv: [sh, -c, "echo last >> did; echo {{ ask.choice }}"] } }
"#;

pub(crate) fn folder() -> Folder {
    flow_folder(STEPS)
}

pub(crate) fn did(folder: &Path) -> Vec<String> {
    let text = fs::read_to_string(folder.join("did")).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

/// Starts the flow and waits until its slow step runs.
pub(crate) fn at_slow(folder: &Path) -> Child {
    let child = program(folder, &["run", "flow.yaml", "--session-id", "s"]).spawn().unwrap();
    until("the slow step runs", || did(folder).contains(&"slow".to_owned()));
    child
}

pub(crate) fn open_gate(folder: &Path) {
    fs::write(folder.join("go"), "").unwrap();
}

fn prompt(ran: &Ran) -> String {
    ran.json()["prompts"][0]["promptId"].as_str().unwrap().to_owned()
}

#[test]
fn a_paused_session_continues_and_a_question_is_answered_from_another_shell() {
    let folder = &folder();
    let child = at_slow(folder);
    signal(&child, "INT");
    ended(folder, child).expect(7);
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
    let folder = &folder();
    let child = at_slow(folder);
    kill(child);
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
    let folder = &flow_folder(flow);
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
fn only_one_process_drives_a_session() {
    let folder = &folder();
    let child = at_slow(folder);
    let refused = inspan(folder, &["resume", "s"]).expect(2).says(&format!("process {}", child.id()));
    // A plan says nothing else: what is at work has not been interrupted.
    let plan = inspan(folder, &["resume", "s", "--plan"]);
    assert_eq!((plan.code, &plan.stdout, &plan.stderr), (Some(2), &refused.stdout, &refused.stderr));
    inspan(folder, &["fork", "s", "--plan"]).prints("slow   runs: it still runs in that session");
    inspan(folder, &["pause", "s", "--reason", "lunch"]).expect(0);
    ended(folder, child).expect(7);
    inspan(folder, &["stop", "s"]).expect(0);
    inspan(folder, &["stop", "s"]).expect(2);
    assert_eq!(did(folder), ["first", "slow"]);
}

#[test]
fn a_background_process_is_announced_once_it_drives_the_session() {
    let folder = &folder();
    let child = at_slow(folder);
    let driven = inspan(folder, &["resume", "s", "--detach"]);
    assert_eq!((driven.code, driven.stdout.as_str()), (Some(2), ""), "{}", driven.stderr);
    assert!(driven.stderr.contains(&format!("process {}", child.id())), "{}", driven.stderr);
    let taken = inspan(folder, &["run", "flow.yaml", "--detach", "--session-id", "s", "--json"]);
    let message = json!("the store already has a session `s`");
    assert_eq!((taken.code, taken.json()["error"]["message"].clone()), (Some(2), message));
    signal(&child, "INT");
    ended(folder, child);
    inspan(folder, &["resume", "s", "--detach", "--events", "-"]).expect(2);
    for (command, option) in [
        (&["run", "flow.yaml"][..], "--input-file"),
        (&["fork", "s"], "--input-file"),
        (&["resume", "s", "--edited"], "--input-file"),
        (&["resume", "s"], "--message-file"),
    ] {
        for file in ["-", "/dev/stdin"] {
            inspan(folder, &[command, &["--detach", option, file]].concat()).expect(2).says(&format!(
                "`{option} {file}` reads stdin or a pipe, which a background process does not have"
            ));
        }
        if option == "--input-file" {
            inspan(folder, &[command, &["--detach", "-i", "word=@/dev/stdin"]].concat()).expect(2).says(
                "`-i word=@/dev/stdin` reads stdin or a pipe, which a background process does not have",
            );
        }
    }
    open_gate(folder);
    inspan(folder, &["resume", "s", "--detach", "--events", "events.jsonl"])
        .expect(0)
        .says("watch it with `inspan logs s -f`, see");
    until("the events are written", || {
        fs::read_to_string(folder.join("events.jsonl")).is_ok_and(|text| text.contains("flow:waiting"))
    });
    until("it has left", || inspan(folder, &["pause", "s"]).code == Some(2));
    assert_eq!(did(folder), ["first", "slow", "slow"]);
    // What it names works as it is printed.
    let other = ["--store", "other.db"];
    inspan(folder, &[&["run", "--detach", "--session-id", "o"], &other[..]].concat())
        .says("`inspan logs o -f --store other.db`")
        .says("`inspan inbox --store other.db`");
    inspan(folder, &[&["stop", "o"], &other[..]].concat()).expect(0);
}

#[test]
fn without_a_person_a_question_is_not_waited_for_until_its_time_is_up() {
    let folder = &flow_folder(
        "name: q\nnodes: [{ id: a, type: human.input, input: { prompt: Well?, timeout: 1h } }]\n",
    );
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
    let folder = &folder_with(&[]);
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
    let folder = &folder();
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
fn a_node_that_cleans_up_and_was_cut_short_is_asked_about_before_the_session_ends() {
    let folder = &flow_folder(
        "
flow: { name: cleans }
nodes:
  - { id: a, type: exec, input: { argv: ['false'] } }
  - { id: c, type: exec, effects: external, dependsOn: [{ node: a, on: any }], input: { argv: [sh, -c, 'echo c >> did; while [ ! -e go ]; do sleep 0.02; done'] } }
",
    );
    let child = program(folder, &["run", "flow.yaml", "--session-id", "s"]).spawn().unwrap();
    until("c began", || folder.join("did").exists());
    kill(child);
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
    let folder = &flow_folder(
        "
flow: { name: reused }
nodes:
  - { id: each, type: control.foreach, input: { items: [1, 2] }, body: { nodes: [{ id: a, type: control.noop }] } }
  - { id: last, type: control.fail, dependsOn: [each], input: { message: no } }
",
    );
    inspan(folder, &["run", "flow.yaml", "--session-id", "s"]);
    inspan(folder, &["resume", "s", "--session-id", "t"]);
    inspan(folder, &["show", "t", "each[1]"])
        .expect(2)
        .says("was reused from `s`")
        .says("`inspan show s 'each[1]'`");
}

#[test]
fn a_plan_is_refused_for_what_the_command_would_be_refused_for() {
    let folder = &flow_folder(
        "
flow: { name: refused, policy: { budget: { tokens: 10 } } }
nodes:
  - { id: q, type: human.input, input: { prompt: q } }
",
    );
    inspan(folder, &["run", "flow.yaml", "--session-id", "s", "--no-input"]).expect(3);
    let rows: [(&[&str], &str); 6] = [
        (&["resume", "s", "--budget", "tokens=10"], "`tokens` cannot be raised to 10"),
        (&["resume", "s", "--budget", "nope.tokens=20"], "unknown node `nope`"),
        (&["resume", "s", "--tell", "q=hi"], "no agent of node `q` was interrupted"),
        (&["resume", "s", "--message", ""], "the message is empty"),
        (&["resume", "s", "--from", "q", "--session-id", "s"], "the store already has a session `s`"),
        (&["fork", "s", "--session-id", "s"], "the store already has a session `s`"),
    ];
    for (arguments, why) in rows {
        for how in ["--plan", "--no-input"] {
            inspan(folder, &[arguments, &[how]].concat()).expect(2).says(why);
        }
    }
    inspan(folder, &["resume", "s", "--budget", "tokens=20", "--plan"]).expect(0).prints("q  runs");
}

#[test]
fn two_answers_at_once_to_a_session_without_a_process_both_count() {
    let folder = &flow_folder(
        "
flow: { name: two }
nodes:
  - { id: p, type: human.input, input: { prompt: p } }
  - { id: q, type: human.input, input: { prompt: q } }
",
    );
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
    let folder = &flow_folder(
        "
flow: { name: dep }
nodes:
  - { id: p, type: human.input, input: { prompt: 'deploy?', choices: ['yes', 'no'], default: 'yes' } }
  - { id: q, type: human.input, input: { prompt: 'tell?', choices: ['yes', 'no'], default: 'yes' } }
  - { id: deploy, type: exec, dependsOn: [p], when: p.choice == 'yes', input: { argv: [sh, -c, echo deployed >> did] } }
  - { id: tell, type: exec, dependsOn: [q], when: q.choice == 'yes', input: { argv: [sh, -c, echo told >> did] } }
",
    );
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
fn the_help_of_a_failed_session_names_what_is_tried_again_only_if_asked_for() {
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
    let folder = &flow_folder(flow);
    let help = "`each[0]` failed but the flow continued, so this is finished work: `inspan resume s --failed` retries it too";
    inspan(folder, &["run", "flow.yaml", "--session-id", "s"]).expect(1).says(help);
    fs::write(folder.join("ok"), "").unwrap();
    let help = help.replace("resume s", "resume t");
    inspan(folder, &["resume", "s", "--session-id", "t"]).expect(1).says(&help);
    inspan(folder, &["resume", "t", "--failed"]).expect(0);
}

#[test]
fn all_that_failed_is_tried_again_and_nothing_else() {
    let flow = "\
flow: { name: f }
nodes:
  - id: each
    type: control.foreach
    input: { items: [a, b, c], as: it, onItemError: continue }
    body:
      nodes:
        - { id: work, type: exec, input: { argv: [sh, -c, 'echo {{ it }} >> did'] } }
        - { id: check, type: exec, dependsOn: [work], input: { argv: [sh, -c, 'test {{ it }} = b || test -f ok'] } }
  - { id: gate, type: exec, input: { argv: [sh, -c, 'echo gate >> did; test -f ok'] }, policy: { continueOnError: true } }
  - { id: tell, type: exec, dependsOn: [each], input: { argv: [sh, -c, 'echo failed {{ each.failed }} >> did'] } }
";
    let folder = &flow_folder(flow);
    let mut did = String::new();
    inspan(folder, &["run", "flow.yaml", "--session-id", "s"]).expect(0);
    let mut new = || {
        let all = fs::read_to_string(folder.join("did")).unwrap();
        let mut lines: Vec<_> = all[did.len()..].lines().map(str::to_owned).collect();
        lines.sort_unstable();
        did = all;
        lines
    };
    assert_eq!(new(), ["a", "b", "c", "failed 2", "gate"]);
    fs::write(folder.join("ok"), "").unwrap();
    let plan = inspan(folder, &["resume", "s", "--failed", "--plan"]).expect(0);
    let rows = ["each[0]/check", "each[2]/check", "gate"].map(|node| {
        plan.stdout.lines().any(|line| {
            line.contains(node) && line.ends_with("it failed") || line.ends_with("it was interrupted")
        })
    });
    assert_eq!(rows, [true; 3], "{}", plan.stdout);
    inspan(folder, &["resume", "s", "--failed", "--session-id", "t"]).expect(0);
    assert_eq!(new(), ["failed 0", "gate"]);
    inspan(folder, &["fork", "s", "--at", "each[2]", "--at", "each[0]/check"]).expect(0);
    assert_eq!(new(), ["c", "failed 0"]);
    for (arguments, words) in [
        (&["resume", "t", "--failed"][..], "session `t` has no failures"),
        (&["fork", "s", "--at", "gate", "--at", "3"], "an event number is the only `--at`"),
    ] {
        inspan(folder, arguments).expect(2).says(words);
    }
}

#[test]
fn a_resume_of_what_failed_keeps_what_is_finished_around_it() {
    let flow = "\
flow: { name: f }
nodes:
  - id: outer
    type: control.foreach
    input: { items: [x], as: it }
    body:
      nodes:
        - id: inner
          type: control.foreach
          input: { items: [1], as: n, onItemError: continue }
          body:
            nodes:
              - { id: pay, type: exec, input: { argv: [sh, -c, echo inner >> did] } }
              - { id: bad, type: exec, dependsOn: [pay], input: { argv: [sh, -c, test -f ok] } }
  - id: deep
    type: control.foreach
    input: { items: [x], as: it, onItemError: continue }
    body:
      nodes:
        - id: inner
          type: control.foreach
          input: { items: [1], as: n }
          body:
            nodes:
              - { id: pay, type: exec, input: { argv: [sh, -c, echo deep >> did] } }
              - { id: bad, type: exec, dependsOn: [pay], input: { argv: [sh, -c, test -f ok] } }
  - id: loops
    type: control.foreach
    input: { items: [x], as: it, onItemError: continue }
    body:
      nodes:
        - { id: code, type: exec, input: { argv: [sh, -c, 'echo code >> did; printf {{ code.stdout if code else 0 }}1'] } }
        - { id: try, type: exec, policy: { continueOnError: true }, input: { argv: [sh, -c, 'test {{ code.stdout }} = 011'] } }
        - { id: ship, type: exec, input: { argv: [sh, -c, test -f ok] } }
      edges:
        - { from: code, to: try }
        - { from: try, to: code, when: try.failed, maxIterations: 5 }
        - { from: try, to: ship, when: not try.failed }
  - id: slow
    type: control.foreach
    input: { items: [x], as: it, onItemError: continue }
    body:
      policy: { timeout: 2s }
      nodes:
        - { id: pay, type: exec, input: { argv: [sh, -c, echo slow >> did] } }
        - { id: cut, type: exec, dependsOn: [pay], input: { argv: [sh, -c, test -f ok || sleep 60] } }
";
    let folder = &flow_folder(flow);
    inspan(folder, &["run", "flow.yaml", "--session-id", "s"]).expect(0);
    let did = || {
        let mut lines: Vec<_> =
            fs::read_to_string(folder.join("did")).unwrap().lines().map(str::to_owned).collect();
        lines.sort_unstable();
        lines.join(" ")
    };
    assert_eq!(did(), "code code deep inner slow");
    fs::write(folder.join("ok"), "").unwrap();
    let plan = inspan(folder, &["resume", "s", "--failed", "--plan"]).expect(0).stdout;
    let begins =
        plan.lines().filter(|line| line.ends_with("it failed") || line.ends_with("it was interrupted"));
    let places: Vec<_> =
        begins.filter_map(|line| line.split_whitespace().find(|word| word.contains('/'))).collect();
    let expected = ["outer[0]/inner[0]/bad", "deep[0]/inner[0]/bad", "loops[0]/ship", "slow[0]/cut"];
    assert_eq!(places, expected, "{plan}");
    inspan(folder, &["resume", "s", "--failed"]).expect(0);
    assert_eq!(did(), "code code deep inner slow");
}

#[test]
fn a_session_that_another_one_continues_is_deleted_with_it_and_never_runs_again() {
    let flow = |ask: &str, after: &str| {
        format!(
            "name: f\nnodes:\n  - {{ id: a, type: exec, input: {{ argv: [echo, a] }} }}\n{ask}  - {{ id: pay, type: exec, dependsOn: [{after}], input: {{ argv: [sh, -c, 'echo pay >> ran'] }} }}\n"
        )
    };
    let ask = "  - { id: ask, type: human.input, dependsOn: [a], input: { prompt: Pay? } }\n";
    let here = &flow_folder(&flow(ask, "ask"));
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
    let here = &flow_folder(flow);
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

#[cfg(target_os = "linux")]
#[test]
fn a_signal_pauses_a_session_as_soon_as_it_is_listened_to() {
    let folder = &folder();
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
        ended(folder, child).expect(7);
    }
}

#[test]
fn a_signal_that_is_sent_twice_at_once_pauses_and_a_later_one_stops() {
    let folder = &flow_folder(
        "
flow: { name: twice }
nodes:
  - { id: a, type: exec, input: { argv: [sh, -c, 'trap \"\" TERM; echo >> began; while :; do sleep 0.1; done'] } }
",
    );
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
    let folder = &flow_folder(flow);
    let run = |arguments: &[&str]| inspan(folder, arguments);
    run(&["run", "flow.yaml", "--session-id", "base"]).expect(0);
    for (old, new) in [("base", "fork-1"), ("fork-1", "fork-2")] {
        run(&["fork", old, "--at", "z", "--session-id", new]).expect(0);
    }
    run(&["test", "--from", "fork-2"])
        .says("`inspan test --from base` makes a case of the session in which it ran");
    run(&["show", "fork-2", "each[0]"]).says("`inspan show base 'each[0]'` shows the frame there");
}

#[test]
fn a_waiting_session_that_fails_and_is_stopped_waits_for_nobody_any_more() {
    let folder = &flow_folder(
        "
flow: { name: asks }
nodes:
  - { id: bad, type: exec, input: { argv: ['false'] } }
  - { id: ask, type: human.input, dependsOn: [{ node: bad, on: any }], input: { prompt: Clean? } }
",
    );
    inspan(folder, &["run", "flow.yaml", "--session-id", "s", "--no-input"]).expect(3);
    let stopped = inspan(folder, &["stop", "s"]).expect(0);
    assert!(!stopped.report().contains("waiting"), "{}", stopped.report());
    assert_eq!(inspan(folder, &["show", "s", "--json"]).json()["state"], json!("stopped"));
}
