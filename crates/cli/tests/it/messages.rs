//! Messages from another shell: to a flow that waits for one, to nobody, and the end of a run that listens.

use std::{fs, path::Path, process::Child};

use crate::{
    processes::{kill, until},
    program::{ended, folder_with, inspan, program},
};

const FLOW: &str = "
name: talk
nodes:
  - { id: wait, type: control.wait, input: { until: 'session:message', timeout: 1m } }
  - id: chat
    type: echo.agent
    dependsOn: [wait]
    input: { prompt: '{{ wait.event.content }}', options: { multiTurn: true, idleTimeoutMs: 60000 } }
";

fn start(folder: &Path) -> Child {
    fs::write(folder.join("flow.yaml"), FLOW).unwrap();
    program(folder, &["run", "flow.yaml", "--session-id", "s", "--json"]).spawn().unwrap()
}

fn has(folder: &Path, event: &str) -> bool {
    inspan(folder, &["logs", "s", "--json", "--type", event]).stdout.contains(event)
}

#[test]
fn a_flow_continues_with_a_message_and_a_run_is_closed() {
    let folder = &folder_with(&[]);
    let running = start(folder);
    let sent = || inspan(folder, &["send", "s", "hello"]).code == Some(0);
    until("the node waits for a message", sent);
    until("the agent listens", || has(folder, "agent:usage"));
    let more = inspan(folder, &["send", "s", "again"]);
    assert_eq!((more.code, more.stderr.as_str()), (Some(0), "s: sent to 1 listener\n"));
    for empty in ["", "  "] {
        inspan(folder, &["send", "s", empty]).refused("the message is empty");
    }
    inspan(folder, &["send", "s"]).refused("`s` names the session `s`, and the message is missing");
    inspan(folder, &["close", "s", "nobody"]).refused("session `s` has no active run `nobody`");
    inspan(folder, &["close", "s", "chat"]).expect(0).says("s: closed run chat.1");
    assert_eq!(ended(folder, running).expect(0).json()["outputs"]["chat"]["text"], "again");
    let snapshot = inspan(folder, &["show", "s", "--snapshot"]);
    let snapshot: inspan_protocol::RunSnapshot = serde_json::from_value(snapshot.json()).unwrap();
    assert_eq!(snapshot.status, inspan_protocol::SessionStatus::Complete);
    inspan(folder, &["close", "s"]).refused("session `s` has ended");
}

#[test]
fn an_agent_that_had_answered_waits_again_after_a_kill() {
    let folder = &folder_with(&[]);
    let first = start(folder);
    until("the node waits for a message", || inspan(folder, &["send", "s", "hello"]).code == Some(0));
    until("the agent listens", || has(folder, "agent:listen"));
    kill(first);
    let second = program(folder, &["resume", "s", "--json"]).spawn().unwrap();
    let closed = || inspan(folder, &["close", "s", "chat"]).code == Some(0);
    until("the agent listens again", closed);
    assert_eq!(ended(folder, second).expect(0).json()["outputs"]["chat"]["text"], "hello");
    let turns = inspan(folder, &["logs", "s", "--json", "--type", "agent:usage"]).stdout;
    assert_eq!(turns.lines().count(), 1, "{turns}");
}

#[test]
fn a_replay_says_that_nobody_sends_the_messages_of_the_recorded_session() {
    let folder = &folder_with(&[]);
    let flow = "
flow: { name: talk }
nodes:
  - { id: chat, type: echo.agent, input: { prompt: hello, options: { multiTurn: true, idleTimeoutMs: 60000 } } }
";
    fs::write(folder.join("flow.yaml"), flow).unwrap();
    fs::write(folder.join("flow.test.yaml"), "cases: [{ name: as recorded, recordings: tape }]\n").unwrap();
    let run = |how: &[&str]| program(folder, &[&["run", "flow.yaml"], how].concat()).spawn().unwrap();
    let recorded = run(&["--session-id", "s", "--record=tape"]);
    until("the agent listens", || has(folder, "agent:listen"));
    inspan(folder, &["send", "s", "again"]).expect(0);
    inspan(folder, &["close", "s", "chat"]).expect(0);
    ended(folder, recorded).expect(0);
    let replayed = run(&["--session-id", "two", "--replay=tape"]);
    until("the agent listens again", || inspan(folder, &["close", "two", "chat"]).code == Some(0));
    let left = "` were not made: 1 of `chat`. A replay has no messages of people";
    let replayed = ended(folder, replayed).expect(0).stderr.clone();
    assert!(replayed.contains(left), "{replayed}");
    let tested = inspan(folder, &["test"]).expect(0).stdout.clone();
    assert!(tested.contains(left), "{tested}");
}

#[test]
fn a_message_to_one_frame_names_its_agent_by_the_path() {
    let folder = &folder_with(&[]);
    let flow = "
flow: { name: scan, outputs: { said: '{{ scan.values }}' } }
nodes:
  - id: scan
    type: control.foreach
    input: { items: [1, 2] }
    body:
      outputs: { said: '{{ talk.text }}' }
      nodes:
        - { id: talk, type: echo.agent, input: { prompt: hi, options: { multiTurn: true, idleTimeoutMs: 60000 } } }
";
    fs::write(folder.join("flow.yaml"), flow).unwrap();
    let running = program(folder, &["run", "flow.yaml", "--session-id", "s", "--json"]).spawn().unwrap();
    until("both agents listen", || {
        inspan(folder, &["logs", "s", "--json", "--type", "agent:usage"]).stdout.lines().count() == 2
    });
    inspan(folder, &["send", "s", "--to", "talk", "which?"])
        .refused("more than one agent runs: name the run, or its node by its path");
    inspan(folder, &["send", "s", "--to", "scan[2]/talk", "hello"]).expect(2);
    inspan(folder, &["send", "s", "--to", "scan[1]/talk", "hello"]).expect(0);
    for frame in ["scan[0]/talk", "scan[1]/talk"] {
        inspan(folder, &["close", "s", frame]).expect(0);
    }
    let expected = serde_json::json!([{ "said": "hi" }, { "said": "hello" }]);
    assert_eq!(ended(folder, running).json()["outputs"]["said"], expected);
}

#[test]
fn a_message_that_would_reach_no_agent_of_a_resumed_session_is_refused() {
    let folder = &folder_with(&[]);
    let first = start(folder);
    until("the node waits for a message", || inspan(folder, &["send", "s", "hello"]).code == Some(0));
    until("the agent listens", || has(folder, "agent:usage"));
    inspan(folder, &["pause", "s"]);
    ended(folder, first);
    for (arguments, why) in [
        (
            &["--tell", "chta=more"][..],
            "no agent of node `chta` was interrupted, so none would get the message; interrupted were: `chat`",
        ),
        (
            &["--tell", "wait=more"],
            "no agent of node `wait` was interrupted, so none would get the message; interrupted were: `chat`",
        ),
        (&["--message", " "], "the message is empty"),
    ] {
        let refused = inspan(folder, &[&["resume", "s", "--no-input"], arguments].concat());
        assert_eq!((refused.code, refused.stderr.trim_end()), (Some(2), &*format!("error: {why}")));
    }
    let second = program(folder, &["resume", "s", "--tell", "chat=more"]).spawn().unwrap();
    until("the agent has answered", || inspan(folder, &["close", "s", "chat"]).code == Some(0));
    ended(folder, second).expect(0);
    inspan(folder, &["logs", "s", "--json", "--type", "agent:text"]).prints("more");
    inspan(folder, &["resume", "s", "--message", "more"]).expect(2);
}
