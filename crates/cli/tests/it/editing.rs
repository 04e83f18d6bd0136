//! Flows that are edited between two runs: what is reused, what runs again, and with which consent.

use std::fs;

use serde_json::{Value, json};

use crate::{
    processes::{kill, signal, until},
    program::{ended, flow_folder, folder_with, inspan, program},
    resuming::{STEPS, at_slow, did, folder, open_gate},
};

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
    let folder = &flow_folder(&flow("one, two, three"));
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
fn an_edited_flow_reuses_what_the_edit_does_not_touch() {
    let folder = &folder();
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
    let refused = inspan(folder, &["resume", "s", "--no-input"]).expect(2);
    assert_eq!(refused.stdout, "", "the plan is no result");
    assert!(refused.stderr.contains("runs: its input has changed"), "{}", refused.stderr);
    let edited = inspan(folder, &["resume", "s", "--edited", "--session-id", "t", "--json"]).expect(3);
    assert_eq!(edited.json()["nodes"]["first"]["reused"], json!(true));
    assert_eq!(did(folder), ["first", "slow", "slow"]);
    inspan(folder, &["why", "t", "slow"])
        .prints("the edge into it fired; s/slow is not reused: its input has changed");
    // The new session has taken the place of the old one.
    let open = inspan(folder, &["ps", "--json"]);
    let open: Vec<_> =
        open.json().as_array().unwrap().iter().map(|entry| entry["sessionId"].clone()).collect();
    assert_eq!(open, [json!("t")]);
    let old = inspan(folder, &["show", "s", "--json"]).json();
    assert_eq!((&old["state"], &old["continuedBy"]), (&json!("continued"), &json!("t")));
    let as_started = inspan(folder, &["resume", "s", "--as-started", "--json"])
        .expect(3)
        .says("session `s` was already resumed as `t`");
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
        let there = inspan(folder, &[arguments, &["--store", "elsewhere.db"]].concat()).expect(code);
        assert!(
            code == 0 || there.stderr.contains("work of session `t`, which is not in the store"),
            "{}",
            there.stderr
        );
    }
    assert_eq!(did(folder), ["first", "slow", "slow", "slow"]);
    let help = "help: `inspan show u` shows it; `inspan store gc u` deletes it";
    inspan(folder, &["store", "import", "u.jsonl"]).expect(2).says(help);
    fs::remove_file(folder.join("flow.yaml")).unwrap();
    inspan(folder, &["resume", "t", "--edited"]).expect(2).says("flow.yaml");
}

#[test]
fn an_option_that_an_edited_flow_has_no_place_for_is_ignored_with_a_note() {
    let flow = |first: &str, end: &str| {
        format!(
            "
flow: {{ name: set }}
nodes:
  - {{ id: {first}, type: echo, input: {{ text: hi }} }}
  - {{ id: last, type: exec, dependsOn: [{first}], input: {{ argv: [sh, -c, '{end}'] }} }}
"
        )
    };
    let folder = &flow_folder(&flow("first", "exit 1"));
    inspan(folder, &["run", "flow.yaml", "--set", "first.text=hello", "--session-id", "s"]).expect(1);
    let write = |text: &str| fs::write(folder.join("flow.yaml"), text).unwrap();
    // A file that is broken is no reason to run the old flow.
    write("nodes: [ {");
    let refused = inspan(folder, &["resume", "s", "--no-input"]).expect(2);
    assert!(refused.stderr.contains("flow.yaml:1:"), "{}", refused.stderr);
    write(&flow("first", "exit 0").replace("{ text: hi }", "'{{ flow.input }}'"));
    for arguments in [&["resume", "s", "--no-input"][..], &["resume", "s", "--edited"]] {
        inspan(folder, arguments)
            .expect(2)
            .says("`--set` of the session does not fit: `input` of node `first`");
    }
    write(&flow("begin", "exit 3"));
    inspan(folder, &["resume", "s", "--no-input"])
        .expect(2)
        .says("options of the session's start would be ignored");
    let note = "`--set` of the session is ignored: unknown node `first`";
    inspan(folder, &["resume", "s", "--edited", "--session-id", "t"]).expect(1).says(note);
    // It is not asked again about what it does without already, and has it back with the node.
    write(&flow("begin", "exit 4"));
    let resumed = inspan(folder, &["resume", "t", "--no-input", "--session-id", "u"]).expect(1);
    assert!(!resumed.stderr.contains("ignored"), "{}", resumed.stderr);
    write(&flow("first", "exit 0"));
    inspan(folder, &["resume", "u", "--edited", "--session-id", "v"]).expect(0);
    inspan(folder, &["show", "v", "first"]).prints("hello");
}

#[test]
fn a_session_that_is_not_in_the_store_is_missed_once() {
    const FLOW: &str = "
flow: { name: ends }
nodes:
  - { id: a, type: exec, input: { argv: [echo, a] } }
  - { id: bad, type: exec, dependsOn: [a], input: { argv: [sh, -c, 'exit 1'] } }
";
    let folder = &flow_folder(FLOW);
    inspan(folder, &["run", "flow.yaml", "--session-id", "s"]).expect(1);
    inspan(folder, &["resume", "s", "--session-id", "t"]).expect(1);
    inspan(folder, &["store", "export", "t", "-o", "t.jsonl"]).expect(0);
    let there = |arguments: &[&str]| inspan(folder, &[arguments, &["--store", "elsewhere.db"]].concat());
    there(&["store", "import", "t.jsonl"]).expect(0);
    fs::write(folder.join("flow.yaml"), FLOW.replace("exit 1", "exit 2")).unwrap();
    let resumed = there(&["resume", "t", "--failed", "--no-input"]).expect(1);
    assert_eq!(resumed.stderr.matches("session `s` is not in the store").count(), 1, "{}", resumed.stderr);
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
    let folder = &flow_folder(FLOW);
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
fn a_node_that_is_named_runs_again_after_an_edit_without_more_consent() {
    const FLOW: &str = "
name: named
nodes:
  - { id: a, type: exec, input: { argv: [sh, -c, 'echo a >> did'] } }
  - { id: b, type: exec, input: { argv: [sh, -c, 'echo b >> did'] } }
  - { id: c, type: exec, dependsOn: [b], input: { argv: [sh, -c, 'echo c >> did'] } }
";
    let folder = &flow_folder(FLOW);
    inspan(folder, &["run", "flow.yaml", "--session-id", "s"]).expect(0);
    fs::remove_file(folder.join("did")).unwrap();
    fs::write(folder.join("flow.yaml"), FLOW.replace("echo a", "echo again")).unwrap();
    let from_b = ["resume", "s", "--from", "b", "--no-input"];
    let refused = inspan(folder, &from_b).expect(2);
    assert!(refused.stderr.contains("finished nodes would run again: `a`\n"), "{}", refused.stderr);
    fs::write(folder.join("flow.yaml"), FLOW.replace("echo b", "echo edited")).unwrap();
    let plan = inspan(folder, &[&from_b[..], &["--plan"]].concat()).expect(0);
    assert!(plan.stdout.contains("b  runs: it was asked for\n"), "{}", plan.stdout);
    inspan(folder, &from_b).expect(0);
    assert_eq!(did(folder), ["edited", "c"]);
}

#[test]
fn a_node_that_was_renamed_does_its_work_again_only_with_consent() {
    const FLOW: &str = "
flow: { name: pays }
nodes:
  - { id: pay, type: exec, effects: external, input: { argv: [sh, -c, 'echo paid >> did; [ -e go ] || sleep 60'] } }
  - { id: mail, type: exec, dependsOn: [pay], input: { argv: [test, -e, fixed] } }
";
    let folder = &flow_folder(FLOW);
    let file = folder.join("flow.yaml");
    let renamed = FLOW.replace("id: pay", "id: payment").replace("[pay]", "[payment]");
    let refused = |session: &str, why: &str, words: &str| {
        let plan = inspan(folder, &["resume", session, "--plan", "--json"]).json();
        let last = plan["nodes"].as_array().unwrap().last().unwrap().clone();
        assert_eq!(last, json!({ "path": "pay", "fate": "dropped", "why": why, "costUsd": null }));
        inspan(folder, &["resume", session, "--plan"]).prints(&format!("pay      dropped: {why}\n"));
        inspan(folder, &["resume", session, "--no-input"]).expect(2).says(words);
        assert_eq!(did(folder), ["paid"]);
    };
    let words = "new nodes would run, while the work of others is dropped: `pay`";
    // Its process died while it was at work.
    let child = program(folder, &["run", "flow.yaml", "--session-id", "cut"]).spawn().unwrap();
    until("it is paid", || did(folder) == ["paid"]);
    kill(child);
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
    inspan(folder, &["fork", "s", "--session-id", "t"]).expect(1);
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
    let folder = &flow_folder(FLOW);
    inspan(folder, &["run", "flow.yaml", "--session-id", "s", "--no-input", "-i", "word=old"]);
    assert_eq!(did(folder), ["a", "old"]);
    let edited =
        FLOW.replace("word: x", "text: x").replace("input.word", "input.text").replace("; false", "");
    fs::write(folder.join("flow.yaml"), edited).unwrap();
    inspan(folder, &["resume", "s", "--edited", "--plan", "-i", "word=new"])
        .expect(2)
        .says("unknown input `word`");
    inspan(folder, &["resume", "s", "-i", "text=new"]).expect(2);
    let left_out = "the flow no longer has input `word`: that of `s` is ignored\n";
    let plan = inspan(folder, &["resume", "s", "--edited", "--plan"]);
    assert_eq!((plan.code, plan.stderr.as_str()), (Some(0), left_out), "{}", plan.report());
    inspan(folder, &["resume", "s", "--edited", "--no-input", "-i", "text=new"]).expect(0);
    assert_eq!(did(folder), ["a", "old", "new"]);
}

#[test]
fn another_input_is_an_edit_of_a_session_that_is_open() {
    const FLOW: &str = "
flow: { name: f, input: { word: x } }
nodes:
  - { id: a, type: exec, input: { argv: [sh, -c, 'echo a >> did'] } }
  - { id: b, type: exec, dependsOn: [a], input: { argv: [sh, -c, 'echo $0 >> did', '{{ flow.input.word }}'] } }
  - { id: ask, type: human.input, dependsOn: [b], input: { prompt: Go on? } }
";
    let folder = &flow_folder(FLOW);
    inspan(folder, &["run", "flow.yaml", "--session-id", "s", "--no-input", "-i", "word=old"]).expect(3);
    fs::write(folder.join("in.json"), r#"{ "word": "file" }"#).unwrap();
    let resume = |more: &[&str]| inspan(folder, &[&["resume", "s", "--no-input"][..], more].concat());
    // The same input is no edit.
    resume(&["--edited", "-i", "word=old", "--session-id", "no"]).expect(3).says("inspan reply s ask");
    resume(&["--edited", "-i", "nothing=3", "--session-id", "no"]).expect(2).says("unknown input `nothing`");
    resume(&["--as-started", "-i", "word=new"]).expect(2).says("cannot be used with");
    resume(&["--edited", "-i", "word=new", "--message", "hi"]).expect(2).says("would reach no agent");
    resume(&["--edited", "-i", "word=new", "--plan"]).expect(0).prints("its input has changed");
    assert_eq!(did(folder), ["a", "old"]);
    resume(&["--edited", "-i", "word=new", "--session-id", "t"]).expect(3);
    assert_eq!(did(folder), ["a", "old", "new"]);
    let resumed =
        inspan(folder, &["resume", "s", "--no-input", "--edited", "--input-file", "in.json"]).expect(3);
    resumed.says("session `s` was already resumed as `t`");
    assert_eq!(did(folder), ["a", "old", "new", "file"]);
}

#[test]
fn a_part_of_an_edited_flow_takes_its_new_defaults_and_leaves_out_what_it_takes_no_more() {
    const FLOW: &str = "
flow: { name: tones, input: { tone: dry, style: old, word: x } }
nodes:
  - { id: a, type: exec, input: { argv: [sh, -c, 'echo a >> did; echo $0', '{{ flow.input.word }}'] } }
  - { id: b, type: exec, dependsOn: [a], input: { argv: [sh, -c, 'echo b-$0-$1 >> did', '{{ flow.input.tone }}', '{{ a.stdout | trim }}'] } }
";
    let folder = &flow_folder(FLOW);
    let first = ["run", "flow.yaml", "--session-id", "s", "-i", "word=ox", "-i", "style=new"];
    inspan(folder, &first).expect(0);
    assert_eq!(did(folder), ["a", "b-dry-ox"]);
    fs::write(folder.join("flow.yaml"), FLOW.replace("dry, style: old, word: x", "wet, word: x")).unwrap();
    let part = |option: &str, more: &[&str]| {
        inspan(folder, &[&["run", "flow.yaml", option, "b"][..], more].concat()).expect(0)
    };
    let left_out = "the flow no longer has input `style`: that of `s` is ignored\n";
    part("--from", &["--session-id", "t"]).says(left_out);
    // What was given, and only that, is given from then on.
    fs::write(folder.join("flow.yaml"), FLOW.replace("dry, style: old, word: x", "damp, word: z")).unwrap();
    part("--only", &[]);
    part("--from", &["-i", "tone=own", "--session-id", "u"]);
    fs::write(folder.join("flow.yaml"), FLOW.replace("dry, style: old, word: x", "late, word: z")).unwrap();
    part("--only", &["--reuse", "u"]);
    assert_eq!(did(folder)[2..], ["b-wet-ox", "b-damp-ox", "b-own-ox", "b-own-ox"]);
    // What does not fit at all is named.
    let strict =
        "tones, inputSchema: { properties: { word: { type: integer } } }, input: { tone: wet, word: 1 }";
    fs::write(
        folder.join("flow.yaml"),
        FLOW.replace("tones, input: { tone: dry, style: old, word: x }", strict),
    )
    .unwrap();
    let refused = inspan(folder, &["run", "flow.yaml", "--only", "b"]).expect(2);
    let why = "`b` needs the output of `a`, which cannot be reused of session `";
    assert!(refused.stderr.contains(why) && refused.stderr.contains("invalid input"), "{}", refused.stderr);
}

#[test]
fn an_edited_flow_is_not_run_beside_the_process_that_runs_the_session() {
    let folder = &folder();
    let child = at_slow(folder);
    let file = folder.join("flow.yaml");
    fs::write(&file, fs::read_to_string(&file).unwrap() + "# edited\n  - { id: more, type: control.noop }\n")
        .unwrap();
    let beside = inspan(folder, &["resume", "s", "--edited", "--session-id", "t"]);
    assert_ne!(beside.code, Some(0), "{}", beside.stdout);
    assert!(beside.stderr.contains("session `s` is run by"), "{}", beside.stderr);
    signal(&child, "INT");
    ended(folder, child).expect(7);
    assert_eq!(did(folder), ["first", "slow"]);
}

#[test]
fn a_session_whose_pack_is_gone_says_how_it_goes_on() {
    let flow = "
flow: { name: packed, packs: [./p] }
nodes:
  - { id: a, type: p.one }
  - { id: ask, type: human.input, dependsOn: [a], input: { prompt: Go? } }
";
    let pack = "name: p\nnodes:\n  one: { exec: { argv: [echo, one] } }\n";
    let folder = &folder_with(&[("flow.yaml", flow), ("p/pack.yaml", pack)]);
    inspan(folder, &["run", "flow.yaml", "--session-id", "s", "--no-input"]).expect(3);
    fs::remove_dir_all(folder.join("p")).unwrap();
    let hint = "`--as-started` uses the flow as it was started";
    let refused = inspan(folder, &["resume", "s", "--json"]).expect(2).says(hint);
    assert_eq!(refused.json()["error"]["hint"], json!(hint));
    inspan(folder, &["resume", "s", "--as-started", "--no-input"]).expect(3);
}

#[test]
fn a_session_says_with_which_flow_it_goes_on_after_an_edit() {
    let flow = "
flow: { name: deploys }
nodes:
  - { id: ask, type: human.input, input: { prompt: Deploy? } }
  - { id: deploy, type: exec, dependsOn: [ask], input: { argv: [echo, staging] } }
";
    let folder = &flow_folder(flow);
    for session in ["s", "t"] {
        inspan(folder, &["run", "flow.yaml", "--session-id", session, "--no-input"]).expect(3);
    }
    inspan(folder, &["reply", "t", "yes", "--no-resume"]).expect(0);
    fs::write(folder.join("flow.yaml"), flow.replace("staging", "production")).unwrap();
    let replied = inspan(folder, &["reply", "s", "yes"]).expect(0);
    let as_started = "note: the flow was edited; using the original flow";
    assert!(
        replied.stdout.contains("staging") && replied.stderr.contains(as_started),
        "{}",
        replied.report()
    );
    let resumed = inspan(folder, &["resume", "t", "--no-input"])
        .expect(0)
        .says("note: the flow was edited; using the edited flow");
    assert_eq!(resumed.stdout.trim(), "production");
}
