//! What a run would do, and runs of a part of a flow: `run --plan`, `confirmAbove`, `--only` and `--from`.

use std::{collections::BTreeSet, fs};

use jsonschema::validator_for;
use serde_json::{Value, json};

use crate::{
    processes::{kill, until},
    program::{flow_folder, folder_with, inspan, program},
};

const FLOW: &str = "
flow:
  name: fan
  input: { files: [a, b, c] }
  policy: { confirmAbove: { usd: 1 } }
nodes:
  - id: plan
    type: scripted.agent
    input: { prompt: x, options: { turns: [[{ text: p }, { usage: { tokens: { inputTokens: 1, outputTokens: 1 }, costUsd: 0.25 } }]] } }
  - id: each
    type: control.foreach
    dependsOn: [plan]
    input: { items: '{{ flow.input.files }}' }
    body:
      nodes:
        - id: review
          type: scripted.agent
          input: { prompt: '{{ item }}', options: { turns: [[{ text: r }, { usage: { tokens: { inputTokens: 1, outputTokens: 1 }, costUsd: 0.125 } }]] } }
";

fn parsed(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[test]
fn a_plan_starts_nothing_and_multiplies_what_earlier_sessions_cost() {
    let folder = &flow_folder(FLOW);
    let fresh = inspan(folder, &["run", "--plan"]);
    assert_eq!((fresh.code, fresh.stderr.as_str()), (Some(0), ""), "{}", fresh.stdout);
    assert!(!folder.join(".home").exists(), "a plan writes nothing");
    for line in
        ["what `plan` costs: no completed run is known", "total: cost unknown, time unknown", "3 items"]
    {
        assert!(fresh.stdout.contains(line), "{line}: {}", fresh.stdout);
    }
    inspan(folder, &["run", "--yes", "--json"]).expect(0);
    let plan = inspan(folder, &["run", "--plan", "--json", "-i", "files=[1,2,3,4,5,6,7,8]"]);
    let plan = parsed(&plan.stdout);
    let nodes: Vec<Value> = plan["nodes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|node| {
            json!([node["path"], node["times"]["expected"], node["costUsd"]["expected"], node["runs"]])
        })
        .collect();
    assert_eq!(
        nodes,
        [json!(["plan", 1.0, 0.25, 1]), json!(["each", 1.0, 1.0, 1]), json!(["each/review", 8.0, 1.0, 3])]
    );
    assert_eq!(
        (&plan["costUsd"]["expected"], &plan["sessions"], &plan["unknown"]),
        (&json!(1.25), &json!(1), &json!([]))
    );
    let schema = parsed(include_str!("../../../../schema/forecast.json"));
    let validator = validator_for(&schema).unwrap();
    let errors: Vec<String> = validator.iter_errors(&plan).map(|error| error.to_string()).collect();
    assert_eq!(errors, Vec::<String>::new());
    let sessions = parsed(&inspan(folder, &["ps", "--all", "--json"]).stdout);
    assert_eq!(sessions.as_array().map_or(0, Vec::len), 1, "{sessions}");
}

#[test]
fn a_run_above_the_limit_is_confirmed_first() {
    let folder = &flow_folder(FLOW);
    let refused = |arguments: &[&str], why: &str| {
        let ran = inspan(folder, arguments).expect(2);
        // Also who calls the API or a tool reads the hint.
        let hint = "flow.yaml --yes` runs it without asking";
        assert!(ran.stderr.contains(why) && ran.stderr.contains(hint), "{}", ran.stderr);
        assert_eq!(ran.stdout, "");
    };
    refused(&["run"], "it is not known what the run costs, and `confirmAbove` is $1.00; nothing was started");
    inspan(folder, &["run", "--yes"]).expect(0);
    // Three items are below the limit, and eight above it.
    inspan(folder, &["run", "--no-input"]).expect(0);
    let more = ["run", "--no-input", "-i", "files=[1,2,3,4,5,6,7,8]"];
    refused(&more, "the run is expected to cost $1.25, and `confirmAbove` is $1.00; nothing was started");
    // The user's settings say it for flows that do not.
    fs::write(folder.join("flow.yaml"), FLOW.replace("  policy: { confirmAbove: { usd: 1 } }\n", ""))
        .unwrap();
    inspan(folder, &more).expect(0);
    fs::write(folder.join("inspan.toml"), "[confirmAbove]\nusd = 0.5\n").unwrap();
    refused(&["run"], "expected to cost $0.6250, and `confirmAbove` is $0.5000");
}

const PARTS: &str = "
flow:
  name: parts
  input: { items: [x, y] }
  outputs: { last: '{{ last.stdout | default(none) }}' }
nodes:
  - { id: lint, type: exec, input: { argv: [sh, -c, 'echo lint >> runs'] } }
  - { id: plan, type: exec, input: { argv: [sh, -c, 'echo plan >> runs; echo p'] } }
  - id: each
    type: control.foreach
    dependsOn: [plan, lint]
    input: { items: '{{ flow.input.items }}', maxConcurrency: 1 }
    body:
      outputs: { all: '{{ review.stdout }}' }
      nodes:
        - { id: fetch, type: exec, input: { argv: [sh, -c, 'echo fetch-$0 >> runs; echo $0', '{{ item }}'] } }
        - { id: review, type: exec, dependsOn: [fetch], input: { argv: [sh, -c, 'echo review-$0 >> runs; echo $1', '{{ item }}', '{{ fetch.stdout }}{{ plan.stdout }}'] } }
  - { id: last, type: exec, when: each.failed == 0, dependsOn: [each], input: { argv: [sh, -c, 'echo last >> runs; echo done {{ each.succeeded }}'] } }
";

/// The nodes that ran since this was asked before.
fn runs(folder: &std::path::Path) -> String {
    let file = folder.join("runs");
    let text = fs::read_to_string(&file).unwrap_or_default();
    let _ = fs::remove_file(file);
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn run_parts(folder: &std::path::Path, arguments: &[&str]) -> Value {
    let ran = inspan(folder, &[&["run", "--json"], arguments].concat()).expect(0);
    parsed(&ran.stdout)
}

fn statuses(result: &Value) -> Value {
    result["nodes"]
        .as_object()
        .unwrap()
        .iter()
        .map(|(path, node)| (path.clone(), node["status"].clone()))
        .collect::<serde_json::Map<_, _>>()
        .into()
}

#[test]
fn only_the_named_nodes_run_and_the_rest_is_reused() {
    let folder = &flow_folder(PARTS);
    let refused = |arguments: &[&str], why: &str| {
        inspan(folder, &[&["run"], arguments].concat()).expect(2).says(why);
        assert_eq!(runs(folder), "", "nothing was started");
    };
    refused(
        &["--only", "last"],
        "--only: `last` needs the output of `each`, and no earlier session of this flow is in the store",
    );
    refused(&["--only", "fetch"], "did you mean `each/fetch`?");
    refused(&["--from", "plam"], "--from: unknown node `plam`\n  help: did you mean `plan`?");
    refused(&["--reuse", "@last"], "--reuse names a session for `--only NODE` or `--from NODE`");
    // What needs nothing runs without any session, and is there for those that need it.
    run_parts(folder, &["--only", "plan"]);
    assert_eq!(runs(folder), "plan");
    let first = run_parts(folder, &["--session-id", "whole"]);
    assert_eq!(runs(folder).split(' ').count(), 7, "{first}");
    let last = run_parts(folder, &["--only", "last", "--session-id", "part"]);
    assert_eq!(runs(folder), "last");
    assert_eq!(
        statuses(&last),
        json!({ "lint": "reused", "plan": "reused", "each": "complete", "last": "complete" })
    );
    assert_eq!(last["outputs"]["last"]["stdout"], json!("done 2\n"));
    // The log says what was reused, and of which session.
    inspan(folder, &["why", "part", "plan"]).prints("its output is reused from whole/plan");
    let body = run_parts(folder, &["--only", "each/review"]);
    assert_eq!(runs(folder), "review-x review-y");
    assert_eq!(statuses(&body)["last"], json!("skipped"));
    // What a part has done is reused by the sessions that follow it.
    inspan(folder, &["fork", "@last"]).expect(0);
    assert_eq!(runs(folder), "");
    inspan(folder, &["why", "@last", "last"]).prints("it was not selected by `--only`");
    refused(
        &["--only", "plan", "--only", "last"],
        "needs the output of `each`, which cannot be reused of session `flow-",
    );
    run_parts(folder, &["--only", "each", "--only", "last"]);
    assert_eq!(runs(folder), "fetch-x review-x fetch-y review-y last");
    // A change upstream is seen by the key, and nothing runs that was not asked for.
    fs::write(folder.join("flow.yaml"), PARTS.replace("echo p'", "echo q'")).unwrap();
    refused(
        &["--only", "each/review"],
        "`each/review` needs the output of `each/fetch`, which cannot be reused of session `",
    );
    refused(
        &["--from", "each", "--reuse", "whole"],
        "`each` needs the output of `plan`, which cannot be reused of session `whole`: its input has changed",
    );
    run_parts(folder, &["--only", "plan"]);
    assert_eq!(runs(folder), "plan");
    run_parts(folder, &["--from", "plan"]);
    assert_eq!(runs(folder), "plan fetch-x review-x fetch-y review-y last");
    // A node of another flow's file is named like one of a body.
    let other = PARTS.replace("name: parts", "name: other");
    fs::write(folder.join("other.yaml"), other).unwrap();
    let calls =
        "flow: { name: calls }\nnodes: [{ id: s, type: control.subflow, input: { file: other.yaml } }]\n";
    fs::write(folder.join("flow.yaml"), calls).unwrap();
    refused(&["--only", "s/plam"], "unknown node `s/plam`\n  help: did you mean `s/plan`?");
    run_parts(folder, &[]);
    runs(folder);
    run_parts(folder, &["--only", "s/each/review"]);
    assert_eq!(runs(folder), "review-x review-y");
}

/// In the list a fast node ends its frame while a slow one is at work; that of the other list runs out of time.
const RACES: &str = "
flow: { name: races }
nodes:
  - id: race
    type: control.foreach
    input: { items: [1] }
    body:
      outputs: { r: '{{ fast.stdout }}' }
      nodes:
        - { id: fast, type: exec, input: { argv: [sh, -c, 'echo fast >> runs'] } }
        - { id: slow, type: exec, dependsOn: [fast], input: { argv: [sh, -c, 'exec sleep 60'] } }
        - { id: end, type: control.end, dependsOn: [fast], input: { outputs: { r: fast } } }
  - id: late
    type: control.foreach
    policy: { timeout: 500ms, continueOnError: true }
    input: { items: [1], onItemError: continue }
    body: { nodes: [{ id: slow, type: exec, input: { argv: [sh, -c, 'echo late >> runs; exec sleep 60'] } }] }
  - id: each
    type: control.foreach
    dependsOn: [race, late]
    input: { items: [x, y] }
    body: { nodes: [{ id: m, type: exec, input: { argv: [sh, -c, 'echo m >> runs'] } }] }
  - { id: z, type: exec, dependsOn: [race, late], input: { argv: [sh, -c, 'echo $0 >> runs', 'z-{{ race.values[0].r }}-{{ late.failed }}'] } }
";

#[test]
fn a_part_needs_nothing_that_had_lost_a_race_or_ran_out_of_time() {
    let folder = &flow_folder(RACES);
    run_parts(folder, &["--session-id", "whole"]);
    assert_eq!(runs(folder).split(' ').count(), 5);
    for (part, expected) in [("z", "z-fast-true"), ("each/m", "m m")] {
        run_parts(folder, &["--only", part, "--reuse", "whole"]);
        assert_eq!(runs(folder), expected);
    }
    // Nor does an edit elsewhere try again what ran out of time.
    fs::write(folder.join("flow.yaml"), format!("{RACES}# comment\n")).unwrap();
    inspan(folder, &["resume", "whole", "--no-input"]).expect(0);
    assert_eq!(runs(folder), "");
}

const TWO_LISTS: &str = "
flow: { name: two }
nodes:
  - { id: gate, type: constant, input: { value: 1 } }
  - id: docs
    type: control.foreach
    dependsOn: [gate]
    input: { items: [x, y], as: file, maxConcurrency: 1 }
    body:
      outputs: { all: '{{ write.stdout }}' }
      nodes: [{ id: write, type: exec, input: { argv: [sh, -c, 'echo docs-$0 >> runs; test ! -e broken-$0', '{{ file }}'] } }]
  - id: code
    type: control.foreach
    input: { items: [z], as: file }
    body:
      outputs: { all: '{{ write.stdout }}' }
      nodes: [{ id: write, type: exec, input: { argv: [sh, -c, 'echo code-$0 >> runs', '{{ file }}'] } }]
  - id: after
    type: control.foreach
    dependsOn: [code]
    input: { items: [w], as: file }
    body: { nodes: [{ id: write, type: exec, input: { argv: [sh, -c, 'echo after-$0 >> runs', '{{ file }}'] } }] }
";

#[test]
fn a_part_does_not_enter_what_it_does_not_need_and_is_resumed_without_what_it_has_done() {
    let folder = &flow_folder(TWO_LISTS);
    run_parts(folder, &["--session-id", "whole"]);
    assert_eq!(runs(folder).split(' ').collect::<BTreeSet<_>>().len(), 4);
    // The list around a node is opened after the one before it, whose output nobody reads.
    run_parts(folder, &["--only", "after/write"]);
    assert_eq!(runs(folder), "after-w");
    // The other list has changed, and is not asked for: none of its nodes could give what it declares.
    fs::write(folder.join("flow.yaml"), TWO_LISTS.replace("echo code-", "echo new-")).unwrap();
    let part = run_parts(folder, &["--only", "docs"]);
    assert_eq!((runs(folder).as_str(), &statuses(&part)["code"]), ("docs-x docs-y", &json!("skipped")));
    let refused = inspan(folder, &["run", "--only", "after/write", "--reuse", "whole"]);
    assert_eq!((refused.code, runs(folder).as_str()), (Some(2), ""), "{}", refused.stderr);
    assert!(refused.stderr.contains("`code/write`: its input has changed"), "{}", refused.stderr);
    // In the newest session nothing has opened the list: an older one is reused.
    run_parts(folder, &["--only", "gate"]);
    run_parts(folder, &["--only", "docs/write"]);
    assert_eq!(runs(folder), "docs-x docs-y");
    fs::write(folder.join("broken-y"), "").unwrap();
    inspan(folder, &["run", "--only", "docs", "--session-id", "fails"]).expect(1);
    assert_eq!(runs(folder), "docs-x docs-y");
    fs::remove_file(folder.join("broken-y")).unwrap();
    let resumed = inspan(folder, &["resume", "fails"]);
    assert_eq!((resumed.code, runs(folder).as_str()), (Some(0), "docs-y"), "{}", resumed.stderr);
}

#[test]
fn from_a_node_on_all_runs_again() {
    let folder = &flow_folder(PARTS);
    run_parts(folder, &["-i", "items=[\"a\"]", "--session-id", "whole"]);
    runs(folder);
    // The input is that of the session that is reused.
    let from = run_parts(folder, &["--from", "each/review", "--session-id", "again"]);
    assert_eq!(runs(folder), "review-a last");
    assert_eq!(from["outputs"]["last"], json!("done 1\n"));
    let plan = inspan(folder, &["run", "--from", "each", "--plan", "--json"]);
    let plan = parsed(&plan.stdout);
    let actions: Vec<Value> =
        plan["nodes"].as_array().unwrap().iter().map(|node| json!([node["path"], node["action"]])).collect();
    let expected = [
        ["lint", "reused"],
        ["plan", "reused"],
        ["each", "runs"],
        ["each/fetch", "runs"],
        ["each/review", "runs"],
        ["last", "mayRun"],
    ];
    assert_eq!(actions, expected.map(|row| json!(row)));
    assert_eq!(runs(folder), "");
    run_parts(folder, &["--from", "each", "--reuse", "who"]);
    assert_eq!(runs(folder), "fetch-a review-a last");
    // A fork begins in a frame too.
    let fork = inspan(folder, &["fork", "whole", "--at", "each/review"]);
    assert_eq!((fork.code, runs(folder).as_str()), (Some(0), "review-a last"), "{}", fork.stderr);
}

#[test]
fn an_older_session_does_not_replace_what_a_person_answered_last() {
    const FLOW: &str = "
flow: { name: release }
nodes:
  - { id: ok, type: human.input, input: { prompt: Publish?, choices: ['yes', 'no'] } }
  - { id: publish, type: exec, effects: external, dependsOn: [ok], when: ok.choice == 'yes', input: { argv: [sh, -c, 'echo publish >> runs'] } }
";
    let folder = &flow_folder(FLOW);
    for (session, choice, ran) in [("old", "yes", "publish"), ("new", "no", "")] {
        assert_eq!(inspan(folder, &["run", "--session-id", session]).code, Some(3));
        assert_eq!(inspan(folder, &["reply", session, "--choice", choice]).code, Some(0));
        assert_eq!(runs(folder), ran);
    }
    let refused = inspan(folder, &["run", "--from", "publish"]);
    assert_eq!((refused.code, runs(folder).as_str()), (Some(2), ""), "{}", refused.report());
    for words in ["`publish` would not run after session `new`", "`--reuse ID` names another session"] {
        assert!(refused.stderr.contains(words), "{}", refused.stderr);
    }
    // A newer session that lacks an output does not count.
    assert_eq!(inspan(folder, &["run", "--session-id", "open"]).code, Some(3));
    inspan(folder, &["run", "--from", "publish"]).says("would not run after session `new`");
    run_parts(folder, &["--from", "publish", "--reuse", "old"]);
    assert_eq!(runs(folder), "publish");
}

#[test]
fn an_answer_that_is_only_stored_counts_for_a_part_too() {
    const FLOW: &str = "
flow: { name: release }
nodes:
  - { id: ok, type: human.input, input: { prompt: Publish?, choices: ['yes', 'no'] } }
  - { id: publish, type: exec, dependsOn: [ok], when: ok.choice == 'yes', input: { argv: [sh, -c, 'echo publish >> runs'] } }
";
    let folder = &flow_folder(FLOW);
    inspan(folder, &["run", "--session-id", "old"]).expect(3);
    inspan(folder, &["reply", "old", "--choice", "yes"]).expect(0);
    assert_eq!(runs(folder), "publish");
    inspan(folder, &["run", "--session-id", "new"]).expect(3);
    inspan(folder, &["reply", "new", "--choice", "no", "--no-resume"]).expect(0);
    let events = || inspan(folder, &["logs", "new"]).expect(0).stdout;
    let before = events();
    for more in [&["--plan"][..], &[], &["--reuse", "new"]] {
        inspan(folder, &[&["run", "--from", "publish"], more].concat())
            .expect(2)
            .says("`publish` would not run after session `new`");
        assert_eq!((runs(folder), events()), (String::new(), before.clone()), "{more:?}");
    }
    inspan(folder, &["run", "--session-id", "newest"]).expect(3);
    inspan(folder, &["reply", "newest", "--choice", "yes", "--no-resume"]).expect(0);
    let part = run_parts(folder, &["--from", "publish", "--session-id", "part"]);
    assert_eq!(statuses(&part), json!({ "ok": "reused", "publish": "complete" }));
    assert_eq!(runs(folder), "publish");
    assert!(inspan(folder, &["why", "part", "ok"]).stdout.contains("reused from newest/ok"));
}

#[test]
fn a_session_whose_answer_a_part_does_not_need_is_not_changed() {
    const FLOW: &str = "
flow: { name: parts }
nodes:
  - { id: build, type: exec, input: { argv: [echo, built] } }
  - { id: test, type: exec, dependsOn: [build], input: { argv: [echo, tested] } }
  - { id: ask, type: human.input, dependsOn: [build], input: { prompt: Deploy?, choices: ['yes', 'no'] } }
  - { id: deploy, type: exec, dependsOn: [ask], input: { argv: [echo, deployed] } }
  - { id: apart, type: human.input, input: { prompt: Really? } }
";
    let folder = &flow_folder(FLOW);
    let events = |session: &str| inspan(folder, &["logs", session]).expect(0).stdout;
    inspan(folder, &["run", "--session-id", "s", "--no-wait"]).expect(3);
    let open = inspan(folder, &["inbox", "--json"]).json();
    let reply = |task: &str, answer: &[&str]| {
        let question = open.as_array().unwrap().iter().find(|question| question["task"] == task).unwrap();
        let prompt = question["promptId"].as_str().unwrap();
        inspan(folder, &[&["reply", "s", prompt], answer, &["--no-resume"]].concat()).expect(0);
    };
    let before = events("s");
    let is_kept = |part: &[&str], code: i32| {
        inspan(folder, &[&["run", "--reuse", "s", "--no-wait"], part].concat()).expect(code);
        assert_eq!(events("s"), before, "{part:?}");
    };
    reply("ask", &["--choice", "no"]);
    is_kept(&["--from", "build"], 3);
    reply("apart", &["sure"]);
    is_kept(&["--only", "test"], 0);
    is_kept(&["--only", "build"], 0);
    // One that does not fit is not changed either.
    inspan(folder, &["run", "--only", "apart", "--session-id", "newest", "--no-wait"]).expect(3);
    inspan(folder, &["reply", "newest", "sure", "--no-resume"]).expect(0);
    let before = events("newest");
    run_parts(folder, &["--only", "test"]);
    assert_eq!(events("newest"), before);
}

#[test]
fn what_was_cut_short_and_is_not_in_the_part_does_not_run_and_nobody_is_asked() {
    const FLOW: &str = "
flow: { name: shop }
nodes:
  - { id: pay, type: exec, effects: external, input: { argv: [sh, -c, 'echo pay >> runs; while [ ! -e go ]; do sleep 0.02; done'] } }
  - { id: ship, type: exec, dependsOn: [pay], input: { argv: [sh, -c, 'echo ship >> runs'] } }
  - { id: log, type: exec, input: { argv: [sh, -c, 'echo log >> runs'] } }
";
    let folder = &flow_folder(FLOW);
    let child = program(folder, &["run", "--session-id", "cut"]).spawn().unwrap();
    // Both, or the one that is late would write after the kill.
    let has_begun = |ran: String| ran.contains("pay") && ran.contains("log");
    until("it pays", || fs::read_to_string(folder.join("runs")).is_ok_and(has_begun));
    kill(child);
    fs::write(folder.join("go"), "").unwrap();
    runs(folder);
    inspan(folder, &["run", "--from", "ship"])
        .expect(2)
        .says("`ship` needs the output of `pay`")
        .says("session `cut`: it was interrupted");
    let part = run_parts(folder, &["--only", "log"]);
    let expected = json!({ "pay": "skipped", "ship": "skipped", "log": "complete" });
    assert_eq!((statuses(&part), runs(folder)), (expected, "log".to_owned()));
}

#[test]
fn a_replay_is_marked_and_is_no_work_to_reuse() {
    const FLOW: &str = "
flow: { name: ship }
nodes:
  - id: build
    type: scripted.agent
    input: { prompt: x, options: { turns: [[{ text: p }, { usage: { tokens: { inputTokens: 1, outputTokens: 1 }, costUsd: 0.25 } }]] } }
  - { id: deploy, type: exec, dependsOn: [build], input: { argv: [sh, -c, 'echo deploy >> runs'] } }
";
    let folder = &flow_folder(FLOW);
    run_parts(folder, &["--session-id", "real", "--record", "tapes"]);
    run_parts(folder, &["--session-id", "played", "--replay=tapes"]);
    assert_eq!(runs(folder), "deploy");
    let reused_from = |session: &str| inspan(folder, &["why", session, "build"]).stdout;
    run_parts(folder, &["--from", "deploy", "--session-id", "part"]);
    assert!(reused_from("part").contains("reused from real/build"), "{}", reused_from("part"));
    run_parts(folder, &["--from", "deploy", "--session-id", "named", "--reuse", "played"]);
    assert!(reused_from("named").contains("reused from played/build"), "{}", reused_from("named"));
    let listed = inspan(folder, &["ps", "--all"]);
    let row = listed.stdout.lines().find(|row| row.starts_with("played")).unwrap();
    assert!(row.contains("success (replay)"), "{row}");
    assert_eq!(listed.stdout.matches("replay").count(), 1, "{}", listed.stdout);
    for (session, is_replay) in [("played", json!(true)), ("real", Value::Null)] {
        assert_eq!(inspan(folder, &["show", session, "--json"]).json()["isReplay"], is_replay);
    }
    inspan(folder, &["show", "played"]).prints("nothing; what was recorded cost");
}

#[test]
fn a_part_is_resumed_as_a_part() {
    let folder = &folder_with(&[]);
    let flow = "
flow: { name: asks }
nodes:
  - { id: plan, type: exec, input: { argv: [sh, -c, 'echo plan >> runs'] } }
  - { id: ok, type: human.input, dependsOn: [plan], input: { prompt: 'Go on with {{ plan.exitCode }}?' } }
  - { id: open, type: exec, dependsOn: [ok], input: { argv: [sh, -c, 'echo open-{{ ok.content }} >> runs'] } }
";
    fs::write(folder.join("flow.yaml"), flow).unwrap();
    inspan(folder, &["run", "--session-id", "whole"]).expect(3);
    inspan(folder, &["reply", "whole", "yes"]).expect(0);
    assert_eq!(runs(folder), "plan open-yes");
    // Again from the question on: what is before it stays reused across the pause, and it is asked again.
    inspan(folder, &["run", "--from", "ok", "--session-id", "from"]).expect(3);
    inspan(folder, &["reply", "from", "no"]).expect(0);
    assert_eq!(runs(folder), "open-no");
    inspan(folder, &["run", "--only", "ok", "--session-id", "only"]).expect(3);
    let reply = inspan(folder, &["reply", "only", "maybe"]);
    assert_eq!((reply.code, runs(folder).as_str()), (Some(0), ""), "{}", reply.stderr);
    let shown = parsed(&inspan(folder, &["show", "only", "--json"]).stdout);
    let status = |node: &str| shown["nodes"][node]["status"].clone();
    assert_eq!(["plan", "ok", "open"].map(status), ["reused", "complete", "skipped"].map(|word| json!(word)));
    // What continues it runs no other node either, and says so.
    let refused = |arguments: &[&str], why: &str| {
        let said = inspan(folder, arguments);
        assert_eq!((said.code, runs(folder).as_str()), (Some(2), ""), "{}", said.stderr);
        assert!(said.stderr.contains(why), "{}", said.stderr);
    };
    inspan(folder, &["fork", "only", "--at", "ok", "--dry-run"])
        .expect(0)
        .prints("\nopen  omitted: not selected by `--only`\n");
    refused(&["fork", "only", "--at", "open"], "is one of `run --only`, and does not run `open`");
    fs::write(folder.join("flow.yaml"), flow.replace("echo plan", "echo new")).unwrap();
    let why =
        "`ok` needs the output of `plan`, which cannot be reused of session `only`: its input has changed";
    refused(&["resume", "only", "--edited"], why);
}

#[test]
fn nodes_of_bodies_are_changed_by_their_paths() {
    let folder = &flow_folder(CLAUDE);
    let ran = run_parts(
        folder,
        &["--yes", "--provider", "each/review=echo", "--set", "each/review.prompt=said", "-i", "files=[1]"],
    );
    assert_eq!(ran["outputs"]["each"]["values"][0]["review"]["text"], json!("said"), "{ran}");
    let rows = [
        (
            ["--set", "each/reviw.prompt=x"],
            "--set: unknown node `each/reviw`\n  help: did you mean `each/review`?",
        ),
        (
            ["--budget", "review.usd=1"],
            "--budget: unknown node `review`\n  help: did you mean `each/review`?",
        ),
        (
            ["--provider", "other=echo"],
            "--provider: unknown node `other`\n  help: available: `plan`, `each`, `each/review`",
        ),
        (
            ["--provider", "each/review=clade"],
            "error: --provider: unknown provider `clade`\n  help: did you mean `claude`?\n",
        ),
        (["--provider", "nosuch"], "error: --provider: unknown provider `nosuch`\n  help: available: "),
        (["--model", "each=opus"], "--model: node `each` runs no agent"),
        (["--only", "plan/x"], "no nodes of `plan` are in this file: name `plan` as a whole"),
        (["--provider", "each[1]/review=echo"], "without passes and items"),
    ];
    for (arguments, why) in rows {
        let ran = inspan(folder, &[&["run"], &arguments[..]].concat()).expect(2);
        assert!(ran.stderr.contains(why), "{why}: {}", ran.stderr);
    }
    // A budget in a body pauses the session, and is raised on resume by the same path.
    fs::write(folder.join("flow.yaml"), SPENDS).unwrap();
    inspan(folder, &["run", "--session-id", "spends"]).expect(5);
    inspan(folder, &["resume", "spends", "--budget", "work.usd=1"])
        .expect(2)
        .says("did you mean `each/work`?");
    let raised = inspan(folder, &["resume", "spends", "--budget", "each/work.usd=1", "--json"]);
    assert_eq!(
        (raised.code, &parsed(&raised.stdout)["costUsd"]),
        (Some(0), &json!(0.25)),
        "{}",
        raised.stderr
    );
    let ran = run_parts(folder, &["--budget", "each/work.usd=1", "--model", "each/work=large"]);
    assert_eq!(ran["costUsd"], json!(0.25));
}

const CLAUDE: &str = "
flow: { name: claude, input: { files: [] } }
nodes:
  - { id: plan, type: echo, input: { text: x } }
  - id: each
    type: control.foreach
    input: { items: '{{ flow.input.files }}' }
    body: { nodes: [{ id: review, type: claude.agent, input: { prompt: '{{ item }}' } }] }
";

const SPENDS: &str = "
flow: { name: spends }
nodes:
  - id: each
    type: control.foreach
    input: { items: [1] }
    body:
      nodes:
        - id: work
          type: scripted.agent
          policy: { budget: { usd: 0.1 } }
          input: { prompt: x, options: { turns: [[{ text: r }, { usage: { tokens: { inputTokens: 1, outputTokens: 1 }, costUsd: 0.125 } }]] } }
        - { id: check, type: control.noop, dependsOn: [work] }
      edges: [{ from: check, to: work, when: frame.pass < 2, maxIterations: 3 }]
";
