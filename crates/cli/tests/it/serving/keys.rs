//! Requests with a key: each counts once, whenever and through whatever server it comes. What ids may be.

use std::{collections::BTreeSet, fs};

use inspan_engine::{Clock, SystemClock};
use inspan_flow::{RunStore, SqliteOptions, SqliteStore};
use inspan_protocol::Command;
use serde_json::{Value, json};

use super::{LONG, client::Server, command, folder, run_quick, start, state, until, wait_for};
use crate::{
    processes::until_one_runs,
    program::{home, inspan},
};

#[test]
fn what_is_sent_twice_with_a_key_is_done_once_also_by_the_next_server() {
    let folder = &folder();
    let mut server = Server::start(folder);
    let body = json!({ "flow": "ask", "key": "start-once" });
    let session = start(&server.client(), body.clone());
    until(&server.client(), &session, "session:prompt", 1);
    let path = format!("/api/v1/sessions/{session}/commands");
    let reply = json!({ "command": { "type": "reply", "content": "one" }, "key": "reply-once" });
    let first = server.client().post(&path, &reply).expect(200);
    server.kill();
    let server = Server::start(folder);
    let client = server.client();
    wait_for(&client, &session, "success");
    assert_eq!(start(&client, body), session);
    assert_eq!(client.post(&path, &reply).json(), first.json());
    let other = json!({ "command": { "type": "reply", "content": "two" }, "key": "reply-once" });
    client.post(&path, &other).refused(409, "keyReused");
    client
        .post("/api/v1/sessions", &json!({ "flow": "ask", "input": { "topic": "x" }, "key": "start-once" }))
        .refused(409, "keyReused");
    assert_eq!(fs::read_to_string(folder.join("first.txt")).unwrap(), "ran\n");
}

#[test]
fn a_server_that_starts_resumes_what_another_one_had_stored_an_answer_for() {
    let folder = &folder();
    for id in ["stored", "later"] {
        inspan(folder, &["run", "ask.yaml", "--detach", "--session-id", id]).expect(0);
    }
    let server = Server::start(folder);
    for id in ["stored", "later"] {
        wait_for(&server.client(), id, "waiting");
    }
    drop(server);
    // What a server does before it resumes the session, where it is killed; and what a person leaves for later.
    let store = SqliteStore::open(home(folder).join("sessions.db"), &SqliteOptions::default()).unwrap();
    let reply = Command::Reply { prompt: "ask.1".into(), content: "one".to_owned(), choice: None };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(store.post_once(&"stored".into(), Some("k"), &reply, SystemClock.now())).unwrap();
    drop(store);
    inspan(folder, &["reply", "later", "one", "--no-resume"]).expect(0);
    let server = Server::start(folder);
    wait_for(&server.client(), "stored", "success");
    assert_eq!(state(&server.client(), "later"), json!("waiting"));
}

/// What ten callers are answered that ask at the same moment: the status and a field, each once.
fn at_once(server: &Server, path: &str, body: &Value, field: &str) -> BTreeSet<(u16, String)> {
    std::thread::scope(|scope| {
        let calls: Vec<_> = (0..10).map(|_| scope.spawn(|| server.client().post(path, body))).collect();
        let answers = calls.into_iter().map(|call| call.join().unwrap());
        answers.map(|answer| (answer.status, answer.json()[field].to_string())).collect()
    })
}

#[test]
fn requests_with_one_key_that_come_at_once_are_one() {
    let folder = &folder();
    let server = Server::start(folder);
    let body = json!({ "flow": "ask", "key": "start" });
    let started = at_once(&server, "/api/v1/sessions", &body, "sessionId");
    let [(201, session)] = &*started.into_iter().collect::<Vec<_>>() else { panic!("not one session") };
    let session: String = serde_json::from_str(session).unwrap();
    until(&server.client(), &session, "session:prompt", 1);
    let path = format!("/api/v1/sessions/{session}/commands");
    let reply = json!({ "command": { "type": "reply", "content": "one" }, "key": "reply" });
    let expected = BTreeSet::from([(200, json!(session).to_string())]);
    assert_eq!(at_once(&server, &path, &reply, "sessionId"), expected);
    wait_for(&server.client(), &session, "success");
    let all = server.client().get("/api/v1/sessions").json();
    assert_eq!(all["sessions"].as_array().unwrap().len(), 1, "{all}");
}

#[test]
fn a_request_that_comes_through_two_servers_at_once_is_one() {
    let folder = &folder();
    run_quick(folder);
    inspan(folder, &["run", "quick.yaml", "--session-id", "t"]);
    let servers = [(); 2].map(|()| Server::start(folder));
    for (session, command) in
        [("s", json!({ "type": "retry", "node": "a" })), ("t", json!({ "type": "resume" }))]
    {
        let path = format!("/api/v1/sessions/{session}/commands");
        let body = json!({ "command": command, "key": command["type"] });
        let answers: BTreeSet<_> = std::thread::scope(|scope| {
            let calls =
                servers.each_ref().map(|server| scope.spawn(|| at_once(server, &path, &body, "sessionId")));
            calls.into_iter().flat_map(|call| call.join().unwrap()).collect()
        });
        assert_eq!(answers.iter().map(|(status, _)| *status).collect::<Vec<_>>(), [200], "{answers:?}");
    }
    let all = servers[0].client().get("/api/v1/sessions").json();
    assert_eq!(all["sessions"].as_array().unwrap().len(), 4, "{all}");
}

#[test]
fn a_node_is_retried_once_in_a_session_that_continues_the_one_that_nothing_runs() {
    let folder = &folder();
    let server = Server::start(folder);
    let client = server.client();
    let session = start(&client, json!({ "flow": "long" }));
    let path = format!("/api/v1/sessions/{session}/commands");
    let retry = json!({ "command": { "type": "retry", "node": "wait" } });
    client.post(&path, &retry).refused(409, "sessionHeld");
    command(&client, &session, json!({ "type": "pause" })).expect(200);
    wait_for(&client, &session, "paused");
    command(&client, &session, json!({ "type": "retry", "node": "3" })).refused(404, "unknownNode");
    let fork = format!("/api/v1/sessions/{session}/fork");
    client.post(&fork, &json!({ "at": "3" })).refused(404, "unknownNode");
    let answers: Vec<_> = at_once(&server, &path, &retry, "sessionId").into_iter().collect();
    let [(200, next), (409, _)] = &*answers else { panic!("{answers:?}") };
    assert_eq!(state(&client, &session), "continued");
    let next: String = serde_json::from_str(next).unwrap();
    fs::write(folder.join("go"), "").unwrap();
    wait_for(&client, &next, "success");
    client.post(&path, &retry).refused(409, "sessionContinued");
}

#[test]
fn a_resumption_with_a_change_is_accepted_again_while_what_it_resumed_runs() {
    let folder = &folder();
    let limited = LONG.replace("name: long", "flow: { name: limited, policy: { budget: { tokens: 10 } } }");
    fs::write(folder.join("limited.yaml"), limited).unwrap();
    let server = Server::start(folder);
    let client = server.client();
    let session = start(&client, json!({ "flow": "limited" }));
    let path = format!("/api/v1/sessions/{session}/commands");
    for (change, other) in [
        (json!({ "budget": { "tokens": 20 } }), json!({ "budget": { "tokens": 30 } })),
        (json!({ "message": "go on" }), json!({ "message": "stop" })),
        // The log has it without the key.
        (json!({ "message": "use AKIAABCDEFGHIJKLMNOP" }), json!({ "message": "use another key" })),
    ] {
        until_one_runs(folder);
        command(&client, &session, json!({ "type": "pause" })).expect(200);
        let resume = |change: &Value, key: &str| {
            let mut command = change.clone();
            command["type"] = json!("resume");
            client.post(&path, &json!({ "command": command, "key": key }))
        };
        let key = change.to_string();
        let first = resume(&change, &key).expect(200);
        assert_eq!(resume(&change, &key).expect(200).json(), first.json());
        resume(&other, "other").refused(409, "sessionHeld");
    }
    let named = json!({ "command": { "type": "resume", "sessionId": "mine" }, "key": "n" });
    client.post(&path, &named).refused(400, "invalidRequest");
    command(&client, &session, json!({ "type": "stop" })).expect(200);
}

#[test]
fn a_key_is_for_one_request() {
    let folder = &folder();
    let server = Server::start(folder);
    let client = server.client();
    let start = json!({ "flow": "ask", "key": "k", "options": { "maxConcurrency": 1 } });
    let started = client.post("/api/v1/sessions", &start).expect(201);
    let session = started.json()["sessionId"].as_str().unwrap().to_owned();
    until(&client, &session, "session:prompt", 1);
    let commands = format!("/api/v1/sessions/{session}/commands");
    let fork = format!("/api/v1/sessions/{session}/fork");
    assert_eq!(client.post(&fork, &json!({ "at": "ask", "key": "f" })).status, 201);
    let reply = json!({ "type": "reply", "prompt": "ask", "content": "7" });
    assert_eq!(client.post(&commands, &json!({ "command": reply, "key": "r" })).status, 200);
    let elsewhere = json!({ "type": "reply", "prompt": "first", "content": "7" });
    let others = [
        ("/api/v1/sessions", json!({ "flow": "long", "key": "k" })),
        ("/api/v1/sessions", json!({ "flow": "ask", "key": "k" })),
        (&*fork, json!({ "at": "first", "key": "f" })),
        (&*fork, json!({ "at": "ask", "input": { "topic": "cows" }, "key": "f" })),
        (&*fork, json!({ "at": "ask", "key": "r" })),
        (&*commands, json!({ "command": { "type": "stop" }, "key": "f" })),
        (&*commands, json!({ "command": { "type": "retry", "node": "first" }, "key": "f" })),
        (&*commands, json!({ "command": elsewhere, "key": "r" })),
    ];
    for (path, body) in others {
        let refused = client.post(path, &body);
        assert_eq!((refused.status, refused.json()["code"].clone()), (409, json!("keyReused")), "{body}");
    }
}

#[test]
fn the_id_of_a_session_names_no_file() {
    let folder = &folder();
    let server = Server::start(folder);
    let victim = folder.join("victim.input.json");
    fs::write(&victim, "mine").unwrap();
    let path = folder.join("victim");
    for id in [path.to_str().unwrap(), "../../victim", "a/../../../victim", "-x", ""] {
        let body = json!({ "flow": "ask", "options": { "sessionId": id } });
        let refused = server.client().post("/api/v1/sessions", &body);
        assert!((400..500).contains(&refused.status), "{id}: {} {}", refused.status, refused.text);
    }
    assert_eq!(fs::read_to_string(victim).unwrap(), "mine");
}
