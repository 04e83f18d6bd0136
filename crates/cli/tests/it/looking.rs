//! The commands that only read sessions: what they print of sessions that run, wait, are idle, died and ended, and
//! that following a log misses nothing.

use std::{
    fs,
    io::{BufRead, BufReader},
    path::Path,
    process::Stdio,
};

use inspan_protocol::Envelope;
use serde_json::{Value, json};

use crate::{
    program::{Ran, ended, flow_folder, folder_with, home, inspan, program, ran, replaced, snapshot},
    stored::{Driven, Stored, log},
};

/// Sessions of every kind.
fn filled(folder: &Path) -> Stored {
    let stored = Stored::new(folder);
    stored.session("chain-1", "chain", None, Driven::Left);
    stored.session("failing-1", "failing", None, Driven::Left);
    stored.session("partial-1", "partial", None, Driven::Left);
    stored.session("stopped-1", "stopped", None, Driven::Left);
    stored.session("timed-1", "timed_out", None, Driven::Left);
    stored.session("ask-live", "human_input", Some(5), Driven::ByUs);
    stored.session("ask-left", "human_input", Some(17), Driven::Left);
    stored.session("retry-dead", "retry", Some(19), Driven::ByNobody);
    stored.session("review-live", "review_loop", Some(33), Driven::ByUs);
    stored
}

/// What a call printed, with everything that depends on the moment and this process normalised.
fn report(ran: &Ran) -> String {
    let rules = [
        (r"(?m)( · (?:running|waiting) · ).*?( · |$)", "${1}…${2}"),
        (r#"(?m)("(?:createdAt|pid|host)"): .*$"#, "$1: …"),
        (r"( UTC, ).*?( ago)", "${1}9d${2}"),
        (r"(?m)^  took .*[hm]$", "  took      …"),
        (r"(?m)run by .*process .*?( is gone|$)", "run by … process 9 on here$1"),
    ];
    replaced(&ran.report(), &rules)
}

fn check(folder: &Path, name: &str, arguments: &[&str]) {
    let ran = inspan(folder, arguments);
    snapshot!(name, arguments, report(&ran));
}

#[test]
fn where_there_are_no_sessions_none_are_made() {
    let folder = &folder_with(&[]);
    check(folder, "look-none-ps", &["ps"]);
    check(folder, "look-none-ps-json", &["ps", "--all", "--json"]);
    check(folder, "look-none-inbox", &["inbox"]);
    check(folder, "look-none-show", &["show", "x"]);
    assert!(!home(folder).exists());
}

#[test]
fn a_store_that_is_none_is_refused() {
    let folder = &folder_with(&[]);
    fs::write(folder.join("notes.txt"), "no database, but a text that is long enough to look at").unwrap();
    check(folder, "look-no-store", &["ps", "--store", "notes.txt"]);
    check(folder, "look-no-store-json", &["show", "x", "--store", "notes.txt", "--json"]);
}

#[test]
fn sessions_are_listed_and_shown() {
    let folder = &folder_with(&[]);
    let _stored = filled(folder);
    let check = |name: &str, arguments: &[&str]| check(folder, name, arguments);
    check("ps", &["ps"]);
    check("ps-all", &["ps", "--all"]);
    check("ps-limit", &["ps", "--all", "-n", "2"]);
    check("ps-json", &["ps", "--json"]);
    check("inbox", &["inbox"]);
    check("inbox-one", &["inbox", "ask-li"]);
    check("inbox-store", &["inbox", "ask-li", "--store", ".home/sessions.db"]);
    check("inbox-json", &["inbox", "--json"]);
    // Who calls it with another engine than that of the shell is offered commands that name it.
    let mut call = program(folder, &["inbox", "ask-live", "--engine", "local"]);
    let inbox = ran(folder, call.env("INSPAN_ENGINE", "temporal://there/default?sessions=/srv/it"));
    assert!(inbox.stdout.lines().any(|line| line.ends_with(" --engine local")), "{}", inbox.stdout);
    check("show-ended", &["show", "partial"]);
    check("show-failed", &["show", "failing-1"]);
    check("show-live", &["show", "review-live"]);
    check("show-dead", &["show", "retry"]);
    check("show-waits", &["show", "ask-left"]);
    check("show-json", &["show", "ask-live", "--json"]);
    check("show-ambiguous", &["show", "ask"]);
    check("show-unknown", &["show", "nosuch"]);
}

#[test]
fn every_session_is_listed_unless_a_limit_is_given() {
    let folder = &folder_with(&[]);
    let stored = Stored::new(folder);
    for number in 0..60 {
        stored.session(&format!("ended-{number}"), "chain", None, Driven::Left);
        stored.session(&format!("open-{number}"), "human_input", Some(17), Driven::Left);
    }
    let listed = |arguments: &[&str]| inspan(folder, arguments).stdout.matches("\"sessionId\"").count();
    let rows = [
        (&["ps", "--json"][..], 60),
        (&["ps", "--all", "--json"], 120),
        (&["ps", "-n", "7", "--json"], 7),
        (&["ps", "--all", "-n", "70", "--json"], 70),
    ];
    for (arguments, expected) in rows {
        assert_eq!(listed(arguments), expected, "{arguments:?}");
    }
}

#[test]
fn frames_are_shown_folded_and_one_by_one() {
    let folder = &folder_with(&[]);
    let stored = Stored::new(folder);
    stored.session("each-1", "foreach_fails", None, Driven::Left);
    stored.session("nested-1", "matrix_nested", None, Driven::Left);
    stored.session("nested-live", "matrix_nested", Some(24), Driven::ByUs);
    let check = |name: &str, arguments: &[&str]| check(folder, name, arguments);
    check("show-frames", &["show", "each-1"]);
    check("show-frames-live", &["show", "nested-live"]);
    check("show-frames-json", &["show", "each-1", "--json"]);
    check("show-frame", &["show", "each-1", "each[1]"]);
    check("show-frame-json", &["show", "nested-1", "each[2]/inner[1]", "--json"]);
    check("show-frame-nested", &["show", "nested-1", "each[2]"]);
    check("show-frame-none", &["show", "each-1", "each[7]"]);
    check("show-frame-of-none", &["show", "each-1", "each[1]/done[0]"]);
    stored.session("loops-1", "loop_frames", None, Driven::Left);
    check("show-frame-begun-never", &["show", "loops-1", "never[0]"]);
    check("why-frame-too-many", &["why", "loops-1", "refine[99]"]);
}

#[test]
fn warnings_are_shown_with_their_nodes() {
    let folder = &folder_with(&[]);
    let flow = "flow: { name: warns }\nnodes:\n  - id: each\n    type: control.foreach\n    input: { items: [1, 2] }\n    \
                body:\n      nodes:\n        - { id: print, type: exec, input: { argv: [printf, '\\377'] } }\n";
    fs::write(folder.join("flow.yaml"), flow).unwrap();
    assert_eq!(inspan(folder, &["run", "--session-id", "warns-1"]).code, Some(0));
    let warning = "the output of `printf` is not all UTF-8 text";
    let shown = inspan(folder, &["show", "warns-1"]).stdout;
    let lines: Vec<&str> = shown.lines().skip_while(|line| !line.contains("each")).collect();
    assert!(lines[1].starts_with(&format!("  ! {warning}")), "{shown}");
    assert_eq!(shown.matches(warning).count(), 1, "{shown}");
    inspan(folder, &["show", "warns-1", "each[1]/print"]).prints(&format!("  warnings\n    {warning}"));
}

#[test]
fn sessions_of_every_outcome_are_drawn() {
    let folder = &folder_with(&[]);
    let stored = filled(folder);
    stored.session("nested-1", "matrix_nested", None, Driven::Left);
    stored.session("nested-dead", "matrix_nested", Some(24), Driven::ByNobody);
    stored.session("each-1", "foreach_fails", None, Driven::Left);
    for session in [
        "chain-1",
        "failing-1",
        "partial-1",
        "stopped-1",
        "timed-1",
        "ask-live",
        "retry-dead",
        "review-live",
        "nested-1",
        "nested-dead",
        "each-1",
    ] {
        check(folder, &format!("graph-{session}"), &["graph", session, "--format", "text"]);
    }
    check(folder, "graph-session-mermaid", &["graph", "each-1"]);
    check(folder, "graph-session-dot", &["graph", "nested-1", "--format", "dot"]);
    check(folder, "graph-session-json", &["graph", "nested-1", "--json"]);
    check(folder, "graph-session-svg", &["graph", "retry", "--format", "svg"]);
}

#[test]
fn an_answer_that_nobody_has_taken_is_shown() {
    let folder = &folder_with(&[]);
    let stored = Stored::new(folder);
    stored.session("kept", "human_input", Some(17), Driven::Left).reply("later.1", "now");
    check(folder, "ps-kept", &["ps"]);
    check(folder, "show-kept", &["show", "kept"]);
    // The question is answered, and a second answer would be refused.
    check(folder, "inbox-kept", &["inbox"]);
}

#[test]
fn a_session_of_another_program_is_shown_and_not_run() {
    let folder = &folder_with(&[]);
    let stored = Stored::new(folder);
    let of_program = |text: &str| text.replace("type: echo", "type: own.echo");
    stored.changed_session("own", "human_input", Some(17), Driven::Left, of_program);
    let check = |name: &str, arguments: &[&str]| check(folder, name, arguments);
    check("foreign-show", &["show", "own"]);
    check("foreign-why", &["why", "own"]);
    check("foreign-resume", &["resume", "own", "--no-input"]);
}

#[test]
fn a_question_whose_time_is_up_takes_no_answer_and_says_what_follows() {
    let folder = &folder_with(&[]);
    let stored = Stored::new(folder);
    stored.session("late", "human_late", Some(5), Driven::Left);
    check(folder, "late-inbox", &["inbox"]);
    check(folder, "late-inbox-json", &["inbox", "--json"]);
    check(folder, "late-show", &["show", "late"]);
    check(folder, "late-reply", &["reply", "late", "--choice", "yes"]);
}

#[test]
fn what_happened_and_why() {
    let folder = &folder_with(&[]);
    let _stored = filled(folder);
    let check = |name: &str, arguments: &[&str]| check(folder, name, arguments);
    check("logs", &["logs", "review"]);
    check("logs-failed", &["logs", "failing"]);
    check("logs-some", &["logs", "review", "--type", "agent:text,edge:*", "--from", "10"]);
    check("logs-bad-type", &["logs", "review", "--type", "no such"]);
    check("why-session", &["why", "partial"]);
    check("why-dead", &["why", "retry"]);
    check("show-dead-node", &["show", "retry", "late"]);
    check("why-node", &["why", "review", "code"]);
    check("why-json", &["why", "partial", "needs", "--json"]);
    check("why-unknown", &["why", "partial", "neds"]);
}

#[test]
fn the_envelopes_of_a_log_are_those_that_were_stored() {
    let folder = &folder_with(&[]);
    let _stored = filled(folder);
    let lines = |arguments: &[&str]| {
        let ran = inspan(folder, arguments);
        assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""));
        ran.stdout.lines().map(|line| serde_json::from_str::<Envelope>(line).unwrap()).collect::<Vec<_>>()
    };
    let all: Vec<Envelope> =
        log("partial", "partial-1").iter().map(|envelope| (**envelope).clone()).collect();
    assert_eq!(lines(&["logs", "partial", "--json"]), all);
    assert_eq!(lines(&["logs", "partial", "--json", "--from", "9"]), all[8..]);
    let edges: Vec<_> =
        all.iter().filter(|envelope| envelope.event.name().starts_with("edge:")).cloned().collect();
    assert_eq!(lines(&["logs", "partial", "--json", "--type", "edge:*"]), edges);
}

#[test]
fn a_log_is_followed_to_the_end_of_its_session() {
    let folder = &folder_with(&[]);
    let stored = Stored::new(folder);
    let all = log("review_loop", "s");
    let session = stored.session("s", "review_loop", Some(3), Driven::ByUs);
    let mut child = program(folder, &["logs", "s", "-f", "--json"]).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut seen = vec![lines.next().unwrap().unwrap()];
    // The first line is out: from here on the follower has to notice.
    for batch in all[3..].chunks(5) {
        session.append(batch);
    }
    session.release();
    seen.extend(lines.map(Result::unwrap));
    let seqs: Vec<u64> =
        seen.iter().map(|line| serde_json::from_str::<Envelope>(line).unwrap().seq).collect();
    assert_eq!(seqs, (1..=all.len() as u64).collect::<Vec<_>>());
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn a_reader_that_goes_away_is_no_fault_of_a_look() {
    let folder = &folder_with(&[]);
    let _stored = filled(folder);
    for arguments in [
        &["ps", "--all"][..],
        &["show", "partial"],
        &["logs", "review"],
        &["logs", "partial", "-f", "--json"],
        &["why", "partial"],
        &["inbox"],
        &["store", "export", "partial"],
        &["store", "verify"],
    ] {
        let mut child = program(folder, arguments).stdout(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        assert_eq!(ended(folder, child).expect(0).stderr, "", "{arguments:?}");
    }
}

#[test]
fn an_old_session_that_has_not_ended_is_listed_among_many() {
    let folder = &folder_with(&[]);
    let stored = Stored::new(folder);
    stored.session("old", "human_input", Some(5), Driven::Left);
    for at in 0..300 {
        stored.session(&format!("s-{at}"), "failing", None, Driven::Left);
    }
    let ran = inspan(folder, &["ps", "--json"]);
    let listed = ran.json();
    let ids: Vec<_> = listed.as_array().unwrap().iter().map(|entry| &entry["sessionId"]).collect();
    assert_eq!(ids, ["old"]);
}

#[test]
fn a_log_of_some_events_has_no_line_of_others() {
    let flow =
        "name: f\nnodes:\n  - { id: a, type: exec, input: { argv: [sh, -c, 'printf \"one\\ntwo\"'] } }\n";
    let folder = &flow_folder(flow);
    inspan(folder, &["run", "flow.yaml", "--session-id", "s"]).expect(0);
    let printed = |names: &str| inspan(folder, &["logs", "s", "--type", names]).stdout;
    assert_eq!(printed("phase:start").lines().count(), 1, "{}", printed("phase:start"));
    assert_eq!(printed("task:complete").lines().count(), 1, "{}", printed("task:complete"));
    assert!(printed("exec:output").contains("│ one"), "{}", printed("exec:output"));
}

#[test]
fn a_reused_node_has_the_type_of_its_agent() {
    let flow = |last: &str| {
        format!(
            "
name: f
agents:
  a_said: {{ type: scripted.agent, prompt: x, options: {{ turns: [[{{ text: hi }}]] }} }}
  echoed: {{ type: echo.agent, prompt: x }}
  said: {{ type: scripted.agent, prompt: x, options: {{ turns: [[{{ text: hi }}]] }} }}
nodes:
  - {{ id: who, type: constant, input: {{ value: echoed }} }}
  - {{ id: dyn, agent: '{{{{ who.value }}}}', dependsOn: [who] }}
  - {{ id: last, type: exec, dependsOn: [dyn], input: {{ argv: [sh, -c, '{last}'] }} }}
"
        )
    };
    let folder = &flow_folder(&flow("exit 1"));
    inspan(folder, &["run", "flow.yaml", "--session-id", "s"]).expect(1);
    fs::write(folder.join("flow.yaml"), flow("exit 0")).unwrap();
    inspan(folder, &["resume", "s", "--session-id", "t", "--edited", "--no-input"]).expect(0);
    let shown = inspan(folder, &["show", "t", "--json"]).json();
    let node = &shown["nodes"]["dyn"];
    assert_eq!((&node["type"], &node["reused"]), (&"echo.agent".into(), &true.into()), "{shown}");
}

#[test]
fn an_exported_page_has_the_frames_that_failed_also_after_its_last_row() {
    let flow = r#"
flow: { name: late }
nodes:
  - id: each
    type: control.foreach
    input: { items: "{{ range(1003) | list }}", onItemError: continue }
    body: { nodes: [{ id: z, type: control.fail, when: "item == 1001", input: { message: lost } }] }
"#;
    let folder = &flow_folder(flow);
    inspan(folder, &["run", "flow.yaml", "--session-id", "s"]);
    let page = inspan(folder, &["export", "s", "--html", "-"]).expect(0).stdout;
    let data = page.split("id=\"data\">").nth(1).unwrap().split("</script>").next().unwrap();
    let data: Value = serde_json::from_str(data).unwrap();
    let frames = &data["frames"]["each"];
    let held = |name: &str| (frames[name]["total"].clone(), frames[name]["frames"].as_array().unwrap().len());
    assert_eq!(held("all"), (json!(1003), 1000));
    assert_eq!(held("failed"), (json!(1), 1));
    assert_eq!(frames["failed"]["frames"][0]["path"], json!("each[1001]"));
    assert_eq!(held("complete"), (json!(1002), 1000));
}

#[test]
fn what_was_denied_within_ended_frames_is_told() {
    let flow = |end: &str| {
        format!(
            r#"
flow: {{ name: f }}
nodes:
  - id: outer
    type: control.foreach
    input: {{ items: [a], as: one }}
    body:
      nodes:
        - id: inner
          type: control.foreach
          input: {{ items: [x], onItemError: continue }}
          body:
            nodes:
              - {{ id: ag, type: scripted.agent, input: {{ prompt: x, options: {{ turns: [[{{ tool: {{ name: Bash, input: {{ command: rm x }}, ask: true }} }}, {{ text: one }}]] }} }} }}
              - {{ id: end, type: exec, dependsOn: [ag], input: {{ argv: [sh, -c, "{end}"] }} }}
"#
        )
    };
    for (end, place) in [("exit 0", "outer"), ("exit 3", "outer[0]/inner[0]/ag")] {
        let folder = &flow_folder(&flow(end));
        let denied = format!("warning: {place}: 1 tool call denied: Bash rm x");
        let ran = inspan(folder, &["run", "flow.yaml", "--session-id", "s", "--no-input"]).says(&denied);
        let failed = "warning: outer[0]/inner[0]/end failed: ";
        assert_eq!(ran.stderr.contains(failed), end == "exit 3", "{}", ran.stderr);
        let shown = inspan(folder, &["show", "s"]).stdout;
        let outer = shown.lines().find(|line| line.contains(" outer ")).unwrap();
        assert!(outer.contains("⚠ denied: Bash rm x"), "{shown}");
    }
}
