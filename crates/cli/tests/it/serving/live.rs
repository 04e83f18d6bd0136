//! A session that is watched over a WebSocket: the state with all its patches is what the API and `inspan show` say, at
//! the end and at events before.

use serde_json::{Map, Value, json};

use super::client::{Client, Server, Socket};
use super::{command, start};
use crate::program::{folder_with, inspan};

/// A list, a loop and a person.
const FLOW: &str = "\
name: watched
nodes:
  - { id: begin, type: echo, input: { text: go } }
  - id: each
    type: control.foreach
    dependsOn: [begin]
    input: { items: [a, b, c], as: item, onItemError: continue }
    body:
      nodes:
        - { id: work, type: exec, input: { argv: [test, '{{ item }}', '!=', b] } }
        - { id: after, type: echo, dependsOn: [work], input: { text: '{{ item }}' } }
  - id: again
    type: control.loop
    dependsOn: [each]
    input: { until: 'frame.index > 0', maxIterations: 3 }
    body:
      nodes:
        - { id: pass, type: exec, input: { argv: [echo, passed] } }
  - { id: ok, type: human.input, dependsOn: [again], input: { prompt: 'Ship?', choices: ['yes', 'no'] } }
  - { id: end, type: exec, dependsOn: [ok], input: { argv: [echo, '{{ ok.content }}'] } }
";

/// What the page does with a patch.
fn patched(state: &mut Value, patch: &Value) {
    for (key, value) in patch.as_object().unwrap() {
        match key.as_str() {
            "set" => state["nodes"].as_object_mut().unwrap().extend(value.as_object().unwrap().clone()),
            "gone" => {
                let nodes = state["nodes"].as_object_mut().unwrap();
                value.as_array().unwrap().iter().for_each(|path| drop(nodes.remove(path.as_str().unwrap())));
            }
            "edges" => {
                let ends = |edge: &Value| (edge["from"].to_string(), edge["to"].to_string());
                let edges = state["edges"].as_array_mut().unwrap();
                let new = value.as_array().unwrap();
                edges.retain(|edge| !new.iter().any(|other| ends(other) == ends(edge)));
                let fired = |edge: &&Value| edge["fired"] != 0 || edge["skipped"] != 0;
                edges.extend(new.iter().filter(fired).cloned());
                edges.sort_by_key(ends);
            }
            key if value.is_null() => drop(state.as_object_mut().unwrap().remove(key)),
            key => state[key] = value.clone(),
        }
    }
}

/// A state without what may change after the last event: who runs the session, and until when.
fn settled(state: &Value) -> Value {
    let mut state = state.clone();
    let fields = state["session"].as_object_mut().unwrap();
    fields.remove("owner");
    state
}

fn state(client: &Client, session: &str, query: &str) -> Value {
    let answer = client.get(&format!("/api/v1/sessions/{session}?open=each[1]{query}")).expect(200);
    answer.json()
}

/// Follows the session until its end: the state that the patches lead to, and how many there were.
fn watch(socket: &mut Socket, client: &Client, session: &str) -> (Value, usize) {
    socket.send(&json!({ "subscribe": session, "state": true, "open": ["each[1]"] }));
    let (mut seen, mut patches) = (Value::Null, 0);
    let mut is_answered = false;
    loop {
        let message = socket.next();
        assert_eq!(message["session"], session, "{message}");
        match (message.get("state"), message.get("patch")) {
            (Some(state), _) => seen = state.clone(),
            (_, Some(patch)) => {
                patched(&mut seen, patch);
                patches += 1;
            }
            _ => {
                assert_eq!(message["end"], true, "{message}");
                return (seen, patches);
            }
        }
        if !is_answered && let Some(prompt) = seen["prompts"].as_array().and_then(|prompts| prompts.first()) {
            let reply = json!({ "type": "reply", "prompt": prompt["promptId"], "choice": "yes" });
            command(client, session, reply).expect(200);
            is_answered = true;
        }
    }
}

/// The fields of a node that `inspan show --json` has too; the page has more of its frames.
fn shared(shown: &Map<String, Value>, node: &Value) -> Value {
    let mut found = Map::new();
    for (key, value) in shown {
        let mut own = node[key].clone();
        if let (Some(frames), Some(known)) = (own.as_object_mut(), value.as_object()) {
            frames.retain(|key, _| known.contains_key(key));
        }
        found.insert(key.clone(), own);
    }
    found.into()
}

#[test]
fn what_a_viewer_has_after_all_patches_is_what_the_api_and_show_say() {
    let folder = &folder_with(&[("watched.yaml", FLOW)]);
    let server = Server::start(folder);
    let client = server.client();
    let session = start(&client, json!({ "flow": "watched" }));
    let mut socket = Socket::open(&server);
    let (seen, patches) = watch(&mut socket, &client, &session);
    assert!(patches > 1, "{patches}");
    let now = state(&client, &session, "");
    assert_eq!(settled(&seen), settled(&now));
    assert_eq!(now["session"]["state"], "success", "{now}");
    assert!(now["nodes"].as_object().unwrap().contains_key("each[1]/work"), "{now}");

    let shown = inspan(folder, &["show", &session, "--json"]);
    let shown = shown.json();
    for id in ["begin", "each", "again", "ok", "end", "each[1]/work", "each[1]/after"] {
        let known = shown["nodes"][id].as_object().unwrap();
        assert_eq!(shared(known, &now["nodes"][id]), Value::Object(known.clone()), "{id}");
    }
    assert_eq!(shown["durationMs"], now["durationMs"]);
    assert_eq!(shown["costUsd"], now["session"]["costUsd"]);

    let last = now["seq"].as_u64().unwrap();
    let moments = [1, last / 4, last / 2, last - 2, last];
    for from in moments {
        for to in moments {
            let mut moved = state(&client, &session, &format!("&at={from}"));
            let path = format!("/api/v1/sessions/{session}/patch?from={from}&at={to}&open=each[1]");
            patched(&mut moved, &client.get(&path).json());
            assert_eq!(moved, state(&client, &session, &format!("&at={to}")), "from {from} to {to}");
        }
    }
}

#[test]
fn every_view_of_a_session_is_answered_at_any_event() {
    let folder = &folder_with(&[("watched.yaml", FLOW)]);
    let server = Server::start(folder);
    let client = server.client();
    let session = start(&client, json!({ "flow": "watched" }));
    watch(&mut Socket::open(&server), &client, &session);
    let get = |path: &str| {
        let answer = client.get(&format!("/api/v1/sessions/{session}/{path}"));
        assert_eq!(answer.status, 200, "{path}: {}", answer.text);
        answer.json()
    };
    let frames = get("frames?node=each&status=failed");
    assert_eq!((&frames["total"], &frames["frames"][0]["path"]), (&json!(1), &json!("each[1]")));
    let timeline = get("timeline");
    let critical: Vec<&str> =
        timeline["criticalPath"].as_array().unwrap().iter().flat_map(Value::as_str).collect();
    assert_eq!((critical.first(), critical.last()), (Some(&"begin"), Some(&"end")), "{timeline}");
    assert!(timeline["rows"].as_array().unwrap().len() >= 5, "{timeline}");
    let stream = get("stream?node=end");
    let kinds: Vec<&str> =
        stream["items"].as_array().unwrap().iter().flat_map(|item| item["kind"].as_str()).collect();
    assert_eq!(kinds, ["prompt", "exec", "output"]);
    assert_eq!(stream["items"][0]["input"]["argv"], json!(["echo", "yes"]));
    assert_eq!(get("stream?node=end&at=3")["items"], json!([]));
    assert_eq!(get("cost")["byNode"], json!([]));
    let graph = get("graph");
    assert_eq!(graph["nodes"].as_array().unwrap().len(), 5);
    assert!(graph["nodes"][0]["w"].as_f64().unwrap() > 0.0 && graph["w"].as_f64().unwrap() > 0.0, "{graph}");
    assert_eq!(get("why?node=end&at=1")["sessionId"], session.as_str());
    for path in ["stream?node=nobody", "events?node=nobody&follow=0"] {
        let unknown = client.get(&format!("/api/v1/sessions/{session}/{path}"));
        assert_eq!((unknown.status, unknown.json()["code"].as_str()), (404, Some("unknownNode")), "{path}");
    }
    let report =
        client.get_with(&format!("/api/v1/sessions/{session}/report"), &[("accept", "text/markdown")]);
    assert!(report.text.starts_with("# watched\n"), "{}", report.text);
}
