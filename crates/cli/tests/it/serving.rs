//! `inspan serve` over real sockets: sessions are started, followed, answered, paused, stopped and forked over HTTP, the
//! server is killed and started again, and a session of a shell is seen live.

use std::{collections::BTreeSet, fs, io::Write as _, path::Path, time::Duration};

use inspan_testkit::pause;
use serde_json::{Value, json};

use crate::{
    processes,
    program::{Folder, folder_with, home, inspan, program},
};
use client::{Answer, Client, Server, Socket};

pub(crate) mod client;
mod keys;
mod live;

/// A flow that asks a person, then runs a program that leaves a mark for each run.
const ASK: &str = "\
name: ask
input: { topic: oxen }
nodes:
  - { id: first, type: exec, input: { argv: [sh, -c, 'echo ran >> first.txt; echo note > $INSPAN_ARTIFACTS/note'] } }
  - { id: ask, type: human.input, dependsOn: [first], input: { prompt: 'How many {{ flow.input.topic }}?' } }
  - { id: last, type: exec, dependsOn: [ask], input: { argv: [echo, '{{ ask.content }}'] } }
";

/// A flow that runs until a file is there.
const LONG: &str = "\
name: long
nodes:
  - { id: wait, type: exec, input: { argv: [sh, -c, 'while [ ! -e go ]; do sleep 0.05; done; echo done'] } }
  - { id: end, type: exec, dependsOn: [wait], input: { argv: [sh, -c, 'echo end'] } }
";

/// A flow whose items have a budget that the first agent uses up.
const SPENDS: &str = "\
name: spends
nodes:
  - id: each
    type: control.foreach
    input: { items: [one] }
    body:
      policy: { budget: { tokens: 1 } }
      nodes:
        - { id: a, type: echo.agent, input: { prompt: 'say it' } }
        - { id: b, type: echo.agent, dependsOn: [a], input: { prompt: 'say it again' } }
";

fn folder() -> Folder {
    folder_with(&[("ask.yaml", ASK), ("long.yaml", LONG)])
}

/// Runs a flow of one node as the session `s`.
fn run_quick(folder: &Path) {
    let quick = "name: quick\nnodes:\n  - { id: a, type: exec, input: { argv: ['true'] } }\n";
    fs::write(folder.join("quick.yaml"), quick).unwrap();
    inspan(folder, &["run", "quick.yaml", "--session-id", "s"]);
}

fn start(client: &Client, body: Value) -> String {
    let answer = client.post("/api/v1/sessions", &body).expect(201);
    answer.json()["sessionId"].as_str().unwrap().to_owned()
}

fn command(client: &Client, session: &str, command: Value) -> Answer {
    client.post(&format!("/api/v1/sessions/{session}/commands"), &json!({ "command": command }))
}

/// Follows the events until one has this name, from an event on. The numbers of all, the last one last.
fn until(client: &Client, session: &str, name: &str, from: u64) -> Vec<u64> {
    let mut stream = client.stream(&format!("/api/v1/sessions/{session}/events?from={from}"), &[]);
    let mut seqs = Vec::new();
    while let Some(event) = stream.next() {
        seqs.extend(event.id);
        if event.name == name {
            return seqs;
        }
    }
    panic!("the stream ended before {name}: {seqs:?}");
}

fn state(client: &Client, session: &str) -> Value {
    let listed = client.get(&format!("/api/v1/sessions?q={session}")).json();
    listed["sessions"][0]["state"].clone()
}

/// Waits until the session is in a state. Not looked at too often: its process ends a moment after it is stored that
/// the session is paused.
fn wait_for(client: &Client, session: &str, wanted: &str) {
    processes::until(wanted, || {
        pause(Duration::from_millis(50));
        state(client, session) == wanted
    });
}

#[test]
fn a_session_is_started_followed_answered_and_ends_over_http() {
    let folder = &folder();
    let server = Server::start(folder);
    let client = server.client();
    let flows = client.get("/api/v1/flows").json();
    let ids: Vec<&str> = flows.as_array().unwrap().iter().map(|flow| flow["id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["ask", "long"]);
    let session = start(&client, json!({ "flow": "ask", "input": { "topic": "cows" } }));

    let before = until(&client, &session, "session:prompt", 1);
    let inbox = client.get("/api/v1/inbox").json();
    assert_eq!((&inbox[0]["sessionId"], &inbox[0]["prompt"]), (&json!(session), &json!("How many cows?")));
    command(&client, &session, json!({ "type": "reply", "prompt": "nope", "content": "3" }))
        .refused(404, "unknownPrompt");
    command(&client, &session, json!({ "type": "reply" })).refused(422, "invalidAnswer");
    let answered = command(&client, &session, json!({ "type": "reply", "content": "three" }));
    assert_eq!((answered.status, answered.json()["verdict"].clone()), (200, json!("accepted")));

    // Connected again, the stream continues after the last event, and ends with the session.
    let last = before.last().unwrap().to_string();
    let mut stream =
        client.stream(&format!("/api/v1/sessions/{session}/events"), &[("last-event-id", &last)]);
    let mut after = Vec::new();
    let end = loop {
        let event = stream.next().expect("an end");
        if event.name == "end" {
            break (event.id, event.data);
        }
        after.extend(event.id);
    };
    // So a client that was sent only some of the events asks for nothing any more.
    assert_eq!(end, (after.last().copied(), r#"{"state":"success"}"#.to_owned()));
    assert!(stream.next().is_none());
    let all: Vec<u64> = before.into_iter().chain(after).collect();
    assert_eq!(all, (1..=all.len() as u64).collect::<Vec<_>>());
    let over = all.len().to_string();
    let again = client.get_with(&format!("/api/v1/sessions/{session}/events"), &[("last-event-id", &over)]);
    assert_eq!((again.status, again.text.as_str()), (204, ""));

    let lines = client.get_with(
        &format!("/api/v1/sessions/{session}/events?follow=0&types=task:complete&limit=2"),
        &[("accept", "application/x-ndjson")],
    );
    let nodes: Vec<Value> = lines
        .text
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["context"]["task"].clone())
        .collect();
    assert_eq!(nodes, [json!("first"), json!("ask")]);
    let shown = inspan(folder, &["show", &session, "--json"]).json();
    assert_eq!((&shown["state"], &shown["nodes"]["last"]["status"]), (&json!("success"), &json!("complete")));
    let replies = client.get_with(
        &format!("/api/v1/sessions/{session}/events?follow=0&types=session:reply"),
        &[("accept", "application/x-ndjson")],
    );
    assert!(replies.text.contains(r#""content":"three""#), "{}", replies.text);

    let state = client.get(&format!("/api/v1/sessions/{session}")).json();
    assert_eq!(state["session"]["state"], json!("success"));
    assert!(
        state["artifacts"]
            .as_str()
            .is_some_and(|folder| folder.ends_with(&format!("sessions.artifacts/{session}"))),
        "{state}"
    );
    let drawn = client.get("/api/v1/flows/ask/graph").json();
    let places = |drawing: &Value| {
        let nodes = drawing["nodes"].as_array().unwrap();
        nodes.iter().map(|node| [&node["id"], &node["x"], &node["y"]].map(Value::clone)).collect::<Vec<_>>()
    };
    assert_eq!(places(&drawn)[0][0], json!("first"));
    assert_eq!(places(&drawn), places(&client.get(&format!("/api/v1/sessions/{session}/graph")).json()));
}

#[test]
fn a_session_is_paused_resumed_stopped_and_forked_over_http() {
    let folder = &folder();
    let server = Server::start(folder);
    let client = server.client();
    let session = start(&client, json!({ "flow": "long" }));
    until(&client, &session, "task:start", 1);
    assert_eq!(command(&client, &session, json!({ "type": "pause", "reason": "lunch" })).status, 200);
    wait_for(&client, &session, "paused");
    assert_eq!(command(&client, &session, json!({ "type": "pause" })).status, 200);
    command(&client, &session, json!({ "type": "send", "content": "hello" })).refused(409, "notRunning");
    assert_eq!(command(&client, &session, json!({ "type": "resume" })).status, 200);
    wait_for(&client, &session, "running");
    assert_eq!(command(&client, &session, json!({ "type": "stop" })).status, 200);
    assert_eq!(state(&client, &session), json!("stopped"));
    command(&client, &session, json!({ "type": "pause" })).refused(409, "sessionEnded");
    command(&client, &session, json!({ "type": "reply", "content": "yes" })).refused(409, "sessionEnded");
    // One that another session continues already is resumed in that one.
    let next =
        command(&client, &session, json!({ "type": "resume" })).expect(200).json()["sessionId"].clone();
    assert_ne!(next, json!(session));
    let body = json!({ "command": { "type": "resume" }, "key": "resume-again" });
    let again = client.post(&format!("/api/v1/sessions/{session}/commands"), &body).expect(200);
    assert_eq!(again.json()["sessionId"], next);
    assert_eq!(command(&client, next.as_str().unwrap(), json!({ "type": "stop" })).status, 200);

    fs::write(folder.join("go"), "").unwrap();
    let body = json!({ "at": "wait", "key": "fork-once" });
    let path = format!("/api/v1/sessions/{session}/fork");
    let forks: BTreeSet<String> = (0..2)
        .map(|_| {
            let forked = client.post(&path, &body).expect(201);
            forked.json()["sessionId"].as_str().unwrap().to_owned()
        })
        .collect();
    assert_eq!(forks.len(), 1);
    wait_for(&client, forks.first().unwrap(), "success");
    let compared = client.get(&format!("/api/v1/compare?a={session}&b={}", forks.first().unwrap())).json();
    assert_eq!(compared["same"], json!(false));
    let why = client.get(&format!("/api/v1/sessions/{session}/why")).json();
    assert_eq!(why["sessionId"], json!(session));
}

#[test]
fn a_server_whose_folder_is_gone_says_so_and_that_an_answer_is_stored() {
    let folder = &folder();
    inspan(folder, &["run", "ask.yaml", "-i", "topic=cows", "--no-wait", "--session-id", "s"]).expect(3);
    let inner = folder.join("inner");
    fs::create_dir(&inner).unwrap();
    let mut serve = program(folder, &["serve", "--port", "0", "--json", "--flows", folder.to_str().unwrap()]);
    serve.current_dir(&inner);
    let server = Server::of(folder, serve);
    let client = server.client();
    fs::remove_dir(&inner).unwrap();
    let started = client.post("/api/v1/sessions", &json!({ "flow": "long" })).expect(500);
    let replied = command(&client, "s", json!({ "type": "reply", "content": "7" })).expect(500);
    for refused in [&started, &replied] {
        assert!(refused.text.contains("inner is gone, in which sessions are started"), "{}", refused.text);
    }
    assert!(replied.text.contains("the command is stored"), "{}", replied.text);
}

#[test]
fn the_budget_that_is_used_up_is_named_and_raised_over_http() {
    let folder = &folder_with(&[("spends.yaml", SPENDS)]);
    let server = Server::start(folder);
    let client = server.client();
    let session = start(&client, json!({ "flow": "spends" }));
    wait_for(&client, &session, "paused");
    let entry = || client.get(&format!("/api/v1/sessions/{session}")).json()["session"].clone();
    assert_eq!(entry()["limitToRaise"], json!("each/.tokens"));
    let wrong = command(&client, &session, json!({ "type": "resume", "budget": { "all/.tokens": 1_000 } }))
        .expect(400);
    assert!(wrong.text.contains("\"budget: unknown node `all`"), "{}", wrong.text);
    let lowered =
        command(&client, &session, json!({ "type": "resume", "budget": { "each/.tokens": 1 } })).expect(400);
    assert!(
        lowered.text.contains("`each/.tokens` cannot be raised to 1: the limit is 1, and "),
        "{}",
        lowered.text
    );
    command(&client, &session, json!({ "type": "resume", "budget": { "each/.tokens": 1_000 } })).expect(200);
    wait_for(&client, &session, "success");
    assert_eq!(entry()["limitToRaise"], Value::Null);
}

/// The command lines of all processes that run in a folder, over and over until the call is done.
#[cfg(target_os = "linux")]
fn command_lines<T: Send>(folder: &std::path::Path, call: impl FnOnce() -> T + Send) -> (T, String) {
    std::thread::scope(|scope| {
        let called = scope.spawn(call);
        let mut seen = BTreeSet::new();
        while !called.is_finished() {
            for process in fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path()) {
                let is_here = fs::read_link(process.join("cwd")).is_ok_and(|cwd| cwd == *folder);
                if let Ok(line) = fs::read(process.join("cmdline"))
                    && is_here
                {
                    seen.insert(String::from_utf8_lossy(&line).replace('\0', " "));
                }
            }
        }
        (called.join().unwrap(), seen.into_iter().collect::<Vec<_>>().join("\n"))
    })
}

#[cfg(target_os = "linux")]
#[test]
fn what_an_interface_passes_on_is_in_no_argument() {
    let folder = &folder();
    let path = folder.canonicalize().unwrap();
    let server = Server::start(folder);
    let client = server.client();
    let secret = "cows-that-are-nobodys-business";
    let (session, lines) =
        command_lines(&path, || start(&client, json!({ "flow": "ask", "input": { "topic": secret } })));
    assert!(lines.contains(" run ") && !lines.contains(secret), "{lines}");
    until(&client, &session, "session:prompt", 1);
    let fork = format!("/api/v1/sessions/{session}/fork");
    let body = json!({ "input": { "topic": format!("{secret}-too") } });
    let (forked, lines) = command_lines(&path, || client.post(&fork, &body));
    assert_eq!(forked.status, 201, "{}", forked.text);
    assert!(lines.contains(" fork ") && !lines.contains(secret), "{lines}");
    let forked = forked.json()["sessionId"].as_str().unwrap().to_owned();
    until(&client, &forked, "session:prompt", 1);
    let asked = client.get(&format!("/api/v1/sessions/{forked}")).json()["prompts"][0]["prompt"].clone();
    assert_eq!(asked, json!(format!("How many {secret}-too?")));
    let resume = json!({ "type": "resume", "message": secret });
    let (resumed, lines) = command_lines(&path, || command(&client, &session, resume));
    assert_eq!(resumed.status, 200, "{}", resumed.text);
    assert!(lines.contains(" resume ") && !lines.contains(secret), "{lines}");
    // Nothing of it is left behind, nor of a process that was killed long ago.
    let old = home(folder).join("background/old.tmp");
    fs::write(&old, "{}").unwrap();
    let long_ago = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1);
    fs::File::options().write(true).open(&old).unwrap().set_modified(long_ago).unwrap();
    drop(server);
    let _next = Server::start(folder);
    let left: Vec<_> = fs::read_dir(home(folder).join("background")).unwrap().flatten().collect();
    assert!(
        left.iter().all(|file| file.path().extension().is_some_and(|ending| ending == "log")),
        "{left:?}"
    );
}

#[test]
fn a_failure_has_the_code_that_the_api_gives() {
    let folder = &folder();
    fs::write(folder.join("broken.yaml"), "name: broken\nnodes:\n  - { id: a, type: none.such }\n").unwrap();
    let code = |arguments: &[&str]| {
        let run = inspan(folder, arguments);
        run.json()["error"]["code"].clone()
    };
    inspan(folder, &["run", "ask.yaml", "--no-input", "--session-id", "s"]);
    let got = [
        code(&["show", "nobody", "--json"]),
        code(&["run", "nowhere.yaml", "--json"]),
        code(&["run", "broken.yaml", "--json"]),
        code(&["run", "ask.yaml", "-i", "other=1", "--json"]),
        code(&["run", "ask.yaml", "--session-id", "s", "--detach", "--json"]),
        code(&["reply", "s", "nope", "text", "--json"]),
        code(&["fork", "s", "--at", "nope", "--json"]),
        code(&["serve", "--listen", "0.0.0.0", "--json"]),
    ];
    let expected = [
        "unknownSession",
        "unknownFlow",
        "invalidFlow",
        "invalidInput",
        "sessionExists",
        "unknownPrompt",
        "unknownNode",
        "invalidRequest",
    ];
    assert_eq!(got, expected.map(Value::from));
}

#[test]
fn a_session_that_was_seen_to_its_end_names_the_one_that_continues_it() {
    let folder = &folder();
    fs::write(
        folder.join("fails.yaml"),
        "name: fails\nnodes:\n  - { id: a, type: exec, input: { argv: ['false'] } }\n",
    )
    .unwrap();
    inspan(folder, &["run", "fails.yaml", "--session-id", "s"]);
    let server = Server::start(folder);
    let client = server.client();
    let seen = client.get("/api/v1/sessions/s").json();
    assert_eq!(
        (&seen["session"]["state"], &seen["session"]["continuedBy"]),
        (&json!("failed"), &Value::Null)
    );
    inspan(folder, &["resume", "s", "--session-id", "next"]);
    let seen = client.get("/api/v1/sessions/s").json();
    assert_eq!(seen["session"]["continuedBy"], json!("next"), "{seen}");
}

#[test]
fn a_session_with_the_id_of_a_deleted_one_is_shown_as_itself() {
    let folder = &folder();
    run_quick(folder);
    let server = Server::start(folder);
    let client = server.client();
    let seen = |client: &Client| {
        let state = client.get("/api/v1/sessions/s").json();
        let drawn = client.get("/api/v1/sessions/s/graph").json();
        [&state["session"]["state"], &state["session"]["flow"], &drawn["nodes"][0]["id"]].map(Value::clone)
    };
    assert_eq!(seen(&client), ["success", "quick", "a"].map(Value::from));
    inspan(folder, &["store", "gc", "s"]);
    assert_eq!(client.get("/api/v1/sessions/s").status, 404);
    inspan(folder, &["run", "ask.yaml", "--no-input", "--session-id", "s"]);
    assert_eq!(seen(&client), ["waiting", "ask", "first"].map(Value::from));
    // Now the one that waits, which the server follows.
    inspan(folder, &["store", "gc", "s"]);
    run_quick(folder);
    processes::until("the new session is shown", || {
        pause(Duration::from_millis(50));
        seen(&client) == ["success", "quick", "a"].map(Value::from)
    });
}

#[test]
fn a_proxy_is_asked_to_pass_events_on_at_once() {
    let folder = &folder();
    inspan(folder, &["run", "ask.yaml", "--no-input", "--session-id", "s"]);
    let server = Server::start(folder);
    for accept in ["text/event-stream", "application/x-ndjson"] {
        let answer = server.client().get_with("/api/v1/sessions/s/events?follow=0", &[("accept", accept)]);
        assert_eq!((answer.status, answer.header("x-accel-buffering")), (200, Some("no")), "{}", answer.head);
    }
}

#[test]
fn a_session_in_the_background_that_is_refused_leaves_the_log_of_the_one_with_its_id() {
    let folder = &folder();
    let run = ["run", "long.yaml", "--session-id", "s", "--detach"];
    inspan(folder, &run).expect(0);
    let log = home(folder).join("background/s.log");
    fs::OpenOptions::new().append(true).open(&log).unwrap().write_all(b"a warning\n").unwrap();
    inspan(folder, &run).expect(2);
    let written = fs::read_to_string(log).unwrap();
    assert!(written.contains("a warning\n"), "{written}");
    fs::write(folder.join("go"), "").unwrap();
    inspan(folder, &["logs", "s", "-f"]).expect(0);
}

#[test]
fn a_session_outlives_the_server_and_the_next_one_shows_it() {
    let folder = &folder();
    let mut server = Server::start(folder);
    let session = start(&server.client(), json!({ "flow": "long" }));
    let before = until(&server.client(), &session, "task:start", 1);
    let address = server.address().to_owned();
    server.kill();
    let server = Server::start_on(folder, &address);
    let client = server.client();
    wait_for(&client, &session, "running");
    fs::write(folder.join("go"), "").unwrap();
    let after = until(&client, &session, "harness:complete", before.last().unwrap() + 1);
    assert_eq!(after[0], before.last().unwrap() + 1);
    wait_for(&client, &session, "success");
}

#[test]
fn a_session_of_a_shell_is_seen_live_on_a_socket() {
    let folder = &folder();
    let server = Server::start(folder);
    let mut socket = Socket::open(&server);
    socket.send(&json!({ "sessions": true }));
    assert_eq!(socket.next()["sessions"], json!([]));
    inspan(folder, &["run", "ask.yaml", "--detach", "--session-id", "shell"]).expect(0);
    socket.until(|message| message["inbox"][0]["sessionId"] == "shell");

    socket.send(&json!({ "subscribe": "shell", "from": 1, "events": true, "state": true }));
    // The state and the events come in any order.
    let (mut state, mut has_events) = (Value::Null, false);
    while state.is_null() || !has_events {
        let message = socket.next();
        has_events |= message["events"][0]["seq"] == 1;
        if let Some(sent) = message.get("state") {
            state = sent.clone();
        }
    }
    assert_eq!(state["session"]["sessionId"], json!("shell"));
    socket.send(&json!({ "command": { "type": "reply", "content": "7" }, "session": "shell", "key": "k" }));
    let (mut verdict, mut end, mut patch) = (false, false, Value::Null);
    while !(verdict && end) {
        let message = socket.next();
        verdict |= message["verdict"] == "accepted" && message["key"] == "k";
        end |= message["end"] == true;
        if let Some(patched) = message.get("patch") {
            patch = patched.clone();
        }
    }
    assert_eq!(patch["session"]["state"], json!("success"));
    // What is not followed any more takes no place of what a tab may follow.
    for number in 0..20 {
        let id = format!("nobody-{number}");
        socket.send(&json!({ "subscribe": id }));
        let refused = socket.until(|message| message["session"] == json!(id));
        assert_eq!(refused["problem"]["code"], json!("unknownSession"), "{refused}");
    }
}

#[test]
fn a_viewer_that_reads_nothing_slows_nobody() {
    let folder = &folder();
    let flow =
        "name: chatty\nnodes:\n  - { id: talk, type: exec, input: { argv: [sh, -c, 'seq 1 20000'] } }\n";
    fs::write(folder.join("chatty.yaml"), flow).unwrap();
    let server = Server::start(folder);
    let client = server.client();
    let mut deaf: Vec<Socket> = (0..10)
        .map(|_| {
            let mut socket = Socket::open(&server);
            socket.send(&json!({ "sessions": true }));
            socket
        })
        .collect();
    let session = start(&client, json!({ "flow": "chatty" }));
    for socket in &mut deaf {
        socket.send(&json!({ "subscribe": session, "from": 1, "events": true, "state": true }));
    }
    let seqs = until(&client, &session, "harness:complete", 1);
    assert_eq!(seqs, (1..=seqs.len() as u64).collect::<Vec<_>>());
}

#[test]
fn the_guard_refuses_before_a_socket_is_opened() {
    let folder = &folder();
    let server = Server::start(folder);
    let upgrade = [
        ("connection", "upgrade"),
        ("upgrade", "websocket"),
        ("sec-websocket-version", "13"),
        ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
    ];
    let with = |more: &[(&str, &str)]| {
        let headers: Vec<_> = upgrade.iter().chain(more).copied().collect();
        server.client().get_with("/ws", &headers)
    };
    with(&[("origin", "http://evil.example")]).refused(403, "originNotAllowed");
    with(&[("sec-fetch-site", "cross-site")]).refused(403, "crossSite");
    server.stranger().get_with("/ws", &upgrade).refused(401, "tokenMissing");
    server.stranger().get_with("/", &[("host", "evil.example")]).refused(403, "hostNotAllowed");
}

#[test]
fn a_server_ends_by_a_signal_and_the_token_is_the_users_alone() {
    use std::os::unix::fs::MetadataExt;

    let folder = &folder();
    let mut server = Server::start(folder);
    let mut stream = server.client().stream("/api/v1/sessions/none/events", &[]);
    assert!(stream.next().is_none());
    let file = home(folder).join("server-token");
    assert_eq!(fs::metadata(&file).unwrap().mode() & 0o777, 0o600);
    assert_eq!(server.interrupt(), Some(0));
    // Other users could have read the token: such a file is refused.
    fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
    inspan(folder, &["serve", "--port", "0"]).expect(4).says("can be read by other users");
    // A pipe would be waited for.
    fs::remove_file(&file).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(&file).status().unwrap().success());
    inspan(folder, &["serve", "--port", "0"]).expect(4).says("it is not a regular file");
}

#[test]
fn a_server_that_others_can_reach_needs_a_name() {
    let folder = &folder();
    inspan(folder, &["serve", "--listen", "0.0.0.0", "--port", "0"]).expect(2).says("--allow-remote HOST");
    inspan(folder, &["serve", "--allow-remote", "http://x"]).expect(2).says("is not a host");
    // What it prints is an address that it answers under.
    let named = ["--port", "0", "--allow-remote", "inspan.example.org", "--json"];
    for listen in ["0.0.0.0", "127.0.0.2"] {
        let server = Server::start_as(folder, &[&["serve", "--listen", listen], &named[..]].concat());
        let page = server.stranger().get("/");
        assert_eq!(page.status, 200, "{listen}: {}", page.text);
    }
}

#[test]
fn a_run_has_its_page_for_as_long_as_it_lasts() {
    let folder = &folder();
    let mut run = client::Run::start(folder, &["run", "long.yaml", "--web", "--session-id", "paged"]);
    let url = run.page();
    let (address, rest) = url.strip_prefix("http://").unwrap().split_once("/#token=").unwrap();
    let (token, to) = rest.split_once("&to=").unwrap();
    assert_eq!(to, "/s/paged/graph");
    let client = Client::new(address, token);
    wait_for(&client, "paged", "running");
    fs::write(folder.join("go"), "").unwrap();
    assert_eq!(run.wait(), Some(0));
    assert!(client.try_get("/healthz").is_err());
}

#[test]
fn a_flow_that_cannot_run_is_refused_with_its_problems() {
    let folder = &folder();
    fs::write(folder.join("bad.yaml"), "name: bad\nnodes:\n  - { id: a, type: nothing }\n").unwrap();
    let server = Server::start(folder);
    let client = server.client();
    let refused = client.post("/api/v1/sessions", &json!({ "flow": "bad" }));
    let problem = refused.json();
    assert_eq!((refused.status, &problem["code"]), (422, &json!("invalidFlow")));
    assert_eq!(problem["diagnostics"][0]["code"], json!("unknown-node-type"));
    client.post("/api/v1/sessions", &json!({ "flow": "/etc/passwd" })).refused(404, "unknownFlow");
    // What the command line would do about it is no help here.
    let needs = "name: needs\nnodes:\n  - { id: a, type: echo, input: { text: '{{ flow.input.topic }}' } }\n";
    fs::write(folder.join("needs.yaml"), needs).unwrap();
    let refused = client.post("/api/v1/sessions", &json!({ "flow": "needs" })).json();
    assert_eq!((&refused["code"], &refused["hint"]), (&json!("invalidInput"), &Value::Null), "{refused}");
    let refused = client
        .post("/api/v1/sessions", &json!({ "flow": "ask", "inptu": {} }))
        .refused(400, "invalidRequest");
    assert!(refused.json()["detail"].as_str().unwrap().contains("inptu"), "{}", refused.text);
    for body in [json!(["ask", {}, {}, null]), json!("ask")] {
        let refused = client.post("/api/v1/sessions", &body).json();
        assert_eq!(refused["detail"], json!("the body must be a JSON object"), "{refused}");
    }
    let refused = client.get("/api/v1/sessions?state=running,nix").refused(400, "invalidRequest");
    assert!(refused.json()["detail"].as_str().unwrap().contains("no value `nix`"), "{}", refused.text);
    assert_eq!(client.get("/api/v1/sessions?state=open,success").status, 200);
    // Also where there is none to give.
    let refused = client.get("/api/v1/flows?sort=name").refused(400, "invalidRequest");
    assert!(refused.json()["detail"].as_str().unwrap().contains("`sort`"), "{}", refused.text);
}
