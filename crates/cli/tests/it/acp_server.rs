//! `inspan acp`, with a raw client and with our own: every method, questions, cancelling, loading,
//! bad input, an editor that disconnects.

use std::{fs, path::Path};

use serde_json::{Value, json};

use crate::commands::PERMISSION;
use crate::json_rpc::RpcClient;
use crate::mcp_server::GREET;
use crate::processes::{until, until_one_runs};
use crate::program::{INSPAN, folder_with, home, inspan};

mod between_turns;

const TALK: &str = r#"
flow: { name: talk }
nodes:
  - { id: run, type: exec, input: { argv: [echo, started] } }
  - { id: speak, type: echo.agent, dependsOn: [run], input: { prompt: "{{ flow.input.topic }}" } }
"#;

const CHAT: &str = r#"
flow: { name: chat }
nodes:
  - { id: chat, type: echo.agent, input: { prompt: "hi", options: { multiTurn: true, idleTimeoutMs: 60000 } } }
"#;

const GATED: &str = r#"
flow: { name: gated }
nodes:
  - { id: gate, type: exec, input: { argv: [sh, -c, "while [ ! -e go ]; do sleep 0.02; done; echo passed"] } }
"#;

const ASKED_BESIDE: &str = r#"
flow: { name: both }
nodes:
  - { id: gate, type: exec, input: { argv: [sh, -c, "while [ ! -e go ]; do sleep 0.02; done; echo passed"] } }
  - { id: ask, type: human.input, input: { prompt: "Delete what?" } }
"#;

fn greeted(folder: &Path, capabilities: &Value) -> RpcClient {
    let mut client = RpcClient::start(folder, &["acp"]);
    let (said, _) =
        client.call("initialize", &json!({ "protocolVersion": 1, "clientCapabilities": capabilities }));
    assert_eq!((&said["protocolVersion"], &said["agentInfo"]["name"]), (&json!(1), &json!("inspan")));
    client
}

/// An editor with a conversation; its id, and the commands that it was offered.
fn editor(folder: &Path, capabilities: &Value) -> (RpcClient, String, Vec<Value>) {
    let mut client = greeted(folder, capabilities);
    let (opened, _) = client.call("session/new", &json!({ "cwd": folder, "mcpServers": [] }));
    let offered = client.next()["params"]["update"]["availableCommands"].take();
    let id = opened["sessionId"].as_str().unwrap().to_owned();
    (client, id, offered.as_array().unwrap().clone())
}

fn prompt(client: &mut RpcClient, session: &str, text: &str) -> u64 {
    let text = json!([{ "type": "text", "text": text }]);
    client.request("session/prompt", &json!({ "sessionId": session, "prompt": text }))
}

/// Prompts, and waits for the end of the turn: its stop reason and the updates.
fn turn(client: &mut RpcClient, session: &str, text: &str) -> (Value, Vec<Value>) {
    let id = prompt(client, session, text);
    let (answer, before) = client.answer(id);
    (answer["result"]["stopReason"].clone(), updates(&before))
}

fn updates(messages: &[Value]) -> Vec<Value> {
    let updates = messages.iter().filter(|message| message["method"] == "session/update");
    updates.map(|message| message["params"]["update"].clone()).collect()
}

/// Updates in few words: the kind and what matters of it.
fn short(updates: &[Value]) -> Vec<String> {
    let word = |value: &Value| value.as_str().unwrap_or_default().trim().to_owned();
    let line = |update: &Value| {
        let rest = match update["sessionUpdate"].as_str().unwrap() {
            "plan" => {
                let entries = update["entries"].as_array().unwrap().iter();
                let entries =
                    entries.map(|entry| format!("{} {}", word(&entry["content"]), word(&entry["status"])));
                entries.collect::<Vec<_>>().join(", ")
            }
            "tool_call" => format!("{} {}", word(&update["toolCallId"]), word(&update["status"])),
            "tool_call_update" => format!(
                "{} {} {}",
                word(&update["toolCallId"]),
                word(&update["status"]),
                word(&update["content"][0]["content"]["text"])
            ),
            _ => word(&update["content"]["text"]),
        };
        format!("{}: {rest}", update["sessionUpdate"].as_str().unwrap())
    };
    updates.iter().map(line).collect()
}

/// How a conversation that is stored is named.
fn stored(folder: &Path, session: &str) -> Value {
    json!({ "sessionId": session, "cwd": folder, "mcpServers": [] })
}

/// Loads a conversation: the updates that show it.
fn load(client: &mut RpcClient, folder: &Path, session: &str) -> Vec<String> {
    short(&updates(&client.call("session/load", &stored(folder, session)).1))
}

/// What an editor can do that shows forms.
fn forms() -> Value {
    json!({ "elicitation": { "form": {} } })
}

/// The answer to a form with choices.
fn chosen(question: &Value, choice: &str) -> Value {
    json!({ "id": question["id"], "result": { "action": "accept", "content": { "choice": choice } } })
}

/// A person reads a question.
fn read() {
    inspan_testkit::pause(std::time::Duration::from_millis(550));
}

/// The next message that is a request to the editor.
fn asked(client: &mut RpcClient) -> Value {
    loop {
        let message = client.next();
        if message.get("id").is_some() && message.get("method").is_some() {
            return message;
        }
    }
}

#[test]
fn a_flow_is_a_command_and_its_events_are_updates_in_order() {
    let folder = &folder_with(&[("greet.yaml", GREET), ("talk.yaml", TALK)]);
    let (mut client, id, commands) = editor(folder, &json!({}));
    let offered = [
        json!({ "name": "greet", "description": "Greets somebody", "input": { "hint": "who, or a JSON object" } }),
        json!({ "name": "talk", "description": "Runs the flow talk", "input": { "hint": "topic, or a JSON object" } }),
    ];
    assert_eq!(commands, offered);
    let (stop, updates) = turn(&mut client, &id, "/talk oxen");
    assert_eq!(stop, json!("end_turn"));
    let expected = [
        "plan: run pending, speak pending",
        "tool_call: node:run#1 in_progress",
        "plan: run in_progress, speak pending",
        "tool_call_update: node:run#1 completed started",
        "plan: run completed, speak pending",
        "plan: run completed, speak in_progress",
        "agent_message_chunk: oxen",
        "plan: run completed, speak completed",
        "agent_message_chunk: Flow `talk` ended well.",
    ];
    assert_eq!(short(&updates), expected);
    assert_eq!(client.close(), Some(0));
    // The session is one like any other.
    inspan(folder, &["show", &format!("{id}-1"), "--json"]).expect(0);
}

#[test]
fn a_question_of_a_flow_is_a_form_or_a_text_and_no_request_for_permission() {
    let folder = &folder_with(&[("greet.yaml", GREET)]);
    let (mut client, id, _) = editor(folder, &json!({}));
    let call = prompt(&mut client, &id, "/greet");
    let (_, before) = client.answer(call);
    assert!(before.iter().all(|message| message.get("id").is_none()), "{before:?}");
    let waits = "This waits for you:\n\n- [how] How?\n    1. hello\n    2. bye\n";
    assert!(short(&updates(&before)).last().unwrap().contains(waits), "{before:?}");
    let (_, said) = turn(&mut client, &id, "2");
    assert_eq!(short(&said).last().unwrap(), "agent_message_chunk: Flow `greet` ended well.\n\nbye world");

    let (mut client, id, _) = editor(folder, &forms());
    let call = prompt(&mut client, &id, r#"/greet {"who":"ox"}"#);
    let question = asked(&mut client);
    let choices = &question["params"]["requestedSchema"]["properties"]["choice"]["enum"];
    assert_eq!(
        (&question["method"], choices, &question["params"]["message"]),
        (&json!("elicitation/create"), &json!(["hello", "bye"]), &json!("[how] How?"))
    );
    client.send(chosen(&question, "bye"));
    let (answer, before) = client.answer(call);
    assert_eq!(answer["result"]["stopReason"], json!("end_turn"));
    let shown = short(&updates(&before));
    assert!(shown.contains(&"tool_call_update: question:how.1 completed bye".to_owned()), "{shown:?}");
    assert_eq!(shown.last().unwrap(), "agent_message_chunk: Flow `greet` ended well.\n\nbye ox");
}

#[test]
fn a_question_whose_time_is_up_is_closed() {
    let flow = "flow: { name: ask }\nnodes:\n  - { id: how, type: human.input, input: { prompt: 'How?', timeout: 300ms } }\n";
    let folder = &folder_with(&[("ask.yaml", flow)]);
    let (mut client, id, _) = editor(folder, &json!({}));
    let shown = short(&turn(&mut client, &id, "/ask").1);
    assert!(
        shown.contains(&"tool_call_update: question:how.1 failed no longer open".to_owned()),
        "{shown:?}"
    );
    // Also for an editor that comes later.
    let mut client = greeted(folder, &json!({}));
    let shown = load(&mut client, folder, &id);
    assert!(
        shown.contains(&"tool_call_update: question:how.1 failed no longer open".to_owned()),
        "{shown:?}"
    );
}

#[test]
fn a_text_answers_a_question_that_is_still_shown() {
    let folder = &folder_with(&[("greet.yaml", GREET)]);
    let (mut client, id, _) = editor(folder, &forms());
    let call = prompt(&mut client, &id, "/greet");
    asked(&mut client);
    // It was typed before anybody could read the question.
    let unread = prompt(&mut client, &id, "hello");
    let (_, before) = client.answer(unread);
    let shown = short(&updates(&before));
    assert!(shown.iter().any(|shown| shown.contains("which has just come:\n\n[how] How?")), "{shown:?}");
    read();
    let wrong = prompt(&mut client, &id, "maybe");
    let (_, before) = client.answer(wrong);
    let shown = short(&updates(&before));
    assert!(shown.iter().any(|shown| shown.contains("answers none of: `hello`, `bye`")), "{shown:?}");
    let text = prompt(&mut client, &id, "bye");
    // The two are answered in any order.
    let (mut messages, mut open) = (Vec::new(), vec![json!(call), json!(text)]);
    while !open.is_empty() {
        let message = client.next();
        open.retain(|id| message.get("method").is_some() || message["id"] != *id);
        messages.push(message);
    }
    let shown = short(&updates(&messages));
    assert_eq!(shown.last().unwrap(), "agent_message_chunk: Flow `greet` ended well.\n\nbye world");
}

#[test]
fn a_question_that_is_not_answered_stays_open_for_a_shell_and_for_the_next_prompt() {
    let folder = &folder_with(&[("greet.yaml", GREET)]);
    let (mut client, id, _) = editor(folder, &forms());
    let answers = [
        json!({ "result": { "action": "cancel" } }),
        json!({ "result": { "action": "accept", "content": { "choice": "maybe" } } }),
        json!({ "result": {} }),
        json!({ "error": { "code": -1, "message": "no" } }),
    ];
    for (number, mut answer) in (1..).zip(answers) {
        let call = prompt(&mut client, &id, "/greet");
        answer["id"] = asked(&mut client)["id"].clone();
        client.send(answer.clone());
        let (ended, before) = client.answer(call);
        assert_eq!(ended["result"]["stopReason"], json!("end_turn"), "{answer}");
        let shown = short(&updates(&before));
        assert!(shown.last().unwrap().starts_with("agent_message_chunk: This waits for you:"), "{shown:?}");
        let session = format!("{id}-{number}");
        assert_eq!(inspan(folder, &["reply", &session, "--choice", "hello"]).code, Some(0), "{answer}");
        // It is shown also without a turn.
        while !client.next().to_string().contains("Flow `greet` ended well.") {}
    }
    let call = prompt(&mut client, &id, "/greet");
    let question = asked(&mut client);
    client.send(json!({ "id": question["id"], "result": { "action": "decline" } }));
    client.answer(call);
    let (stop, updates) = turn(&mut client, &id, "bye");
    assert_eq!(stop, json!("end_turn"));
    assert_eq!(short(&updates).last().unwrap(), "agent_message_chunk: Flow `greet` ended well.\n\nbye world");
}

#[test]
fn a_permission_that_is_cancelled_or_lost_is_answered_by_a_text_and_asked_again_once_loaded() {
    let folder = &folder_with(&[("permission.yaml", PERMISSION)]);
    let (mut client, id, _) = editor(folder, &json!({}));
    let call = prompt(&mut client, &id, "/permission");
    let cancel = |client: &mut RpcClient| {
        let question = asked(client);
        assert_eq!(question["method"], json!("session/request_permission"));
        let cancelled = json!({ "outcome": { "outcome": "cancelled" } });
        client.send(json!({ "id": question["id"], "result": cancelled }));
    };
    cancel(&mut client);
    let (ended, before) = client.answer(call);
    assert_eq!(ended["result"]["stopReason"], json!("end_turn"));
    let waits = "agent_message_chunk: This waits for you:";
    assert!(short(&updates(&before)).last().unwrap().starts_with(waits), "{before:?}");
    let (_, said) = turn(&mut client, &id, "yes please");
    let refused = "agent_message_chunk: `yes please` answers none of: `allow`, `always`, `deny`";
    assert_eq!(short(&said), [refused]);
    client.kill();

    let mut client = greeted(folder, &json!({}));
    load(&mut client, folder, &id);
    cancel(&mut client);
    read();
    let (stop, said) = turn(&mut client, &id, "yes");
    assert_eq!(stop, json!("end_turn"));
    assert_eq!(short(&said).last().unwrap(), "agent_message_chunk: Flow `permission` ended well.");
}

#[test]
fn an_editor_with_forms_is_asked_for_texts() {
    let ask = r#"
flow: { name: ask, outputs: { why: "{{ why.content }}" } }
nodes:
  - { id: why, type: human.input, input: { prompt: "Why?" } }
"#;
    let folder = &folder_with(&[("ask.yaml", ask)]);
    let (mut client, id, _) = editor(folder, &json!({ "elicitation": { "form": {} } }));
    let call = prompt(&mut client, &id, "/ask");
    let form = asked(&mut client);
    assert_eq!(
        (&form["method"], &form["params"]["message"]),
        (&json!("elicitation/create"), &json!("[why] Why?"))
    );
    client.send(json!({ "id": form["id"], "result": { "action": "accept", "content": { "answer": "so" } } }));
    let (_, before) = client.answer(call);
    assert_eq!(short(&updates(&before)).last().unwrap(), "agent_message_chunk: Flow `ask` ended well.\n\nso");
}

#[test]
fn cancelling_pauses_and_a_shell_or_a_message_resumes() {
    let folder = &folder_with(&[("gated.yaml", GATED)]);
    let (mut client, id, _) = editor(folder, &json!({}));
    let call = prompt(&mut client, &id, "/gated");
    until_one_runs(folder);
    client.notify("session/cancel", &json!({ "sessionId": id }));
    let (ended, _) = client.answer(call);
    assert_eq!(ended["result"]["stopReason"], json!("cancelled"));
    let session = format!("{id}-1");
    let state = || inspan(folder, &["show", &session, "--json"]).stdout;
    assert!(state().contains("paused"), "{}", state());

    // A message resumes it; cancelling the request by its own id pauses it as well.
    let call = prompt(&mut client, &id, "go on");
    until_one_runs(folder);
    client.notify("$/cancel_request", &json!({ "requestId": call }));
    let (ended, said) = client.answer(call);
    assert_eq!(ended["result"]["stopReason"], json!("cancelled"));
    let lost = "agent_message_chunk: no agent was interrupted, so none gets the message";
    assert!(short(&updates(&said)).contains(&lost.to_owned()), "{said:?}");
    fs::write(folder.join("go"), "").unwrap();
    inspan(folder, &["resume", &session]).expect(0);
    // What happens in the shell is shown, and once more when the conversation is loaded.
    while !client.next().to_string().contains("Flow `gated` ended well.") {}
    let shown = load(&mut client, folder, &id);
    assert_eq!(shown.first().unwrap(), "plan: gate pending");
    assert_eq!(shown.last().unwrap(), "agent_message_chunk: Flow `gated` ended well.");
}

#[test]
fn a_conversation_with_a_turn_in_progress_is_not_loaded_and_nothing_is_shown_again() {
    let folder = &folder_with(&[("talk.yaml", TALK), ("gated.yaml", GATED)]);
    let (mut client, id, _) = editor(folder, &json!({}));
    turn(&mut client, &id, "/talk one");
    let call = prompt(&mut client, &id, "/gated");
    while !client.next().to_string().contains("gate") {}
    let load = client.request("session/load", &stored(folder, &id));
    let (refused, before) = client.answer(load);
    assert_eq!(refused["error"]["code"], json!(-32600), "{refused}");
    let shown = short(&updates(&before));
    assert!(!shown.iter().any(|line| line.contains("one") || line.starts_with("user")), "{shown:?}");
    fs::write(folder.join("go"), "").unwrap();
    assert_eq!(client.answer(call).0["result"]["stopReason"], json!("end_turn"));
}

#[test]
fn a_prompt_while_a_flow_runs_is_a_message_to_its_agents() {
    let folder = &folder_with(&[("chat.yaml", CHAT)]);
    let (mut client, id, _) = editor(folder, &json!({}));
    let call = prompt(&mut client, &id, "/chat");
    until("the agent listens", || {
        inspan(folder, &["logs", &format!("{id}-1"), "--json", "--type", "agent:usage"])
            .stdout
            .contains("agent:usage")
    });
    let mut said = Vec::new();
    while !said.contains(&"agent_message_chunk: hi".to_owned()) {
        said.extend(short(&updates(&[client.next()])));
    }
    let message = prompt(&mut client, &id, "again");
    let (answer, before) = client.answer(message);
    assert_eq!(answer["result"]["stopReason"], json!("end_turn"));
    said.extend(short(&updates(&before)));
    while !said.contains(&"agent_message_chunk: again".to_owned()) {
        said.extend(short(&updates(&[client.next()])));
    }
    inspan(folder, &["close", &format!("{id}-1"), "chat"]).expect(0);
    assert_eq!(client.answer(call).0["result"]["stopReason"], json!("end_turn"));
}

#[test]
fn a_command_is_no_answer_while_a_turn_runs() {
    let folder = &folder_with(&[("both.yaml", ASKED_BESIDE)]);
    let (mut client, id, _) = editor(folder, &json!({}));
    let call = prompt(&mut client, &id, "/both");
    while !client.next().to_string().contains("Delete what?") {}
    let message = prompt(&mut client, &id, "/both again");
    let (answer, before) = client.answer(message);
    assert_eq!(answer["result"]["stopReason"], json!("end_turn"));
    let refused = "agent_message_chunk: `/both` starts a flow, and one runs in this conversation";
    let said = short(&updates(&before));
    assert!(said.iter().any(|line| line.starts_with(refused)), "{said:?}");
    read();
    let message = prompt(&mut client, &id, "/tmp/cache");
    assert_eq!(client.answer(message).0["result"]["stopReason"], json!("end_turn"));
    fs::write(folder.join("go"), "").unwrap();
    assert_eq!(client.answer(call).0["result"]["stopReason"], json!("end_turn"));
    inspan(folder, &["show", &format!("{id}-1"), "ask", "--json"]).prints("/tmp/cache");
}

#[test]
fn conversations_are_listed_loaded_resumed_and_closed() {
    let folder = &folder_with(&[("talk.yaml", TALK)]);
    let (mut client, id, _) = editor(folder, &json!({}));
    turn(&mut client, &id, "/talk one");
    turn(&mut client, &id, "/talk two");
    inspan(folder, &["run", "talk.yaml", "-i", "topic=shell", "--session-id", "shell"]);
    assert_eq!(client.close(), Some(0));

    let mut client = greeted(folder, &json!({}));
    let (listed, _) = client.call("session/list", &json!({ "cwd": &**folder }));
    assert_eq!(between_turns::ids_of(&listed["sessions"], "sessionId"), [json!("shell"), json!(id)]);
    let link = folder.join("link");
    std::os::unix::fs::symlink(&**folder, &link).unwrap();
    let (by_link, _) = client.call("session/list", &json!({ "cwd": link }));
    assert_eq!(by_link["sessions"], listed["sessions"]);
    let (elsewhere, _) = client.call("session/list", &json!({ "cwd": "/nowhere" }));
    assert_eq!(elsewhere, json!({ "sessions": [] }));
    let (beyond, _) = client.call("session/list", &json!({ "cursor": u64::MAX.to_string() }));
    assert_eq!(beyond, json!({ "sessions": [] }));
    let of = |id: &str| stored(folder, id);
    let shown: Vec<_> =
        load(&mut client, folder, &id).into_iter().filter(|line| line.starts_with("user")).collect();
    let typed = |topic: &str| format!(r#"user_message_chunk: /talk {{"topic":"{topic}"}}"#);
    assert_eq!(shown, [typed("one"), typed("two")]);
    // A session that a shell has started is a conversation too.
    let shell = "agent_message_chunk: shell".to_owned();
    assert!(load(&mut client, folder, "shell").contains(&shell));
    // What it starts belongs to it.
    turn(&mut client, "shell", "/talk three");
    let (again, _) = client.call("session/list", &json!({ "cwd": &**folder }));
    assert_eq!(between_turns::ids_of(&again["sessions"], "sessionId"), [json!("shell"), json!(id)]);
    let loaded = load(&mut client, folder, "shell");
    assert!(loaded.contains(&shell) && loaded.contains(&typed("three")), "{loaded:?}");
    let (_, before) = client.call("session/resume", &of(&id));
    assert!(
        short(&updates(&before)).iter().all(|line| line.starts_with("available_commands_update")),
        "{before:?}"
    );
    client.call("session/close", &json!({ "sessionId": id }));
    assert_eq!(client.refused("session/close", &json!({ "sessionId": id })).0, -32002);
    assert_eq!(client.refused("session/load", &of("nobody")).0, -32002);
    assert_eq!(client.refused("session/load", &of("acp-000000000000")).0, -32002);
    assert_eq!(client.refused("session/load", &of("../x")).0, -32002);
    assert_eq!(client.refused("session/load", &stored(&folder.join("gone"), &id)).0, -32602);
}

#[test]
fn bad_input_is_refused_and_the_next_request_is_answered() {
    let folder = &folder_with(&[("talk.yaml", TALK), ("greet.yaml", GREET)]);
    let mut client = RpcClient::start(folder, &["acp"]);
    assert_eq!(client.refused("session/new", &json!({})).0, -32600);
    assert_eq!(client.refused("initialize", &json!({})).0, -32602);
    client.call("initialize", &json!({ "protocolVersion": 7 }));
    client.line("{");
    assert_eq!(client.next()["error"]["code"], json!(-32700));
    client.line(&"x".repeat(5 * 1024 * 1024));
    assert_eq!(client.next()["error"]["code"], json!(-32700));
    client.notify("no/such/notification", &json!({}));
    client.notify("session/cancel", &json!({ "sessionId": "nobody" }));
    let text = json!([{ "type": "text", "text": "hi" }]);
    let rows = [
        ("no/such/method", json!({}), -32601),
        ("session/set_mode", json!({ "sessionId": "x", "modeId": "y" }), -32601),
        ("authenticate", json!({ "methodId": "x" }), -32602),
        ("session/new", json!({ "cwd": "here", "mcpServers": [] }), -32602),
        ("session/new", json!({ "cwd": "/nowhere", "mcpServers": [] }), -32602),
        ("session/new", json!({ "cwd": folder.join("talk.yaml"), "mcpServers": [] }), -32602),
        ("session/new", json!({}), -32602),
        ("session/prompt", json!({ "sessionId": "nobody", "prompt": text }), -32002),
        ("session/list", json!({ "cursor": "x" }), -32602),
    ];
    for (method, params, code) in rows {
        assert_eq!(client.refused(method, &params).0, code, "{method} {params}");
    }
    let (opened, _) = client.call("session/new", &json!({ "cwd": &**folder, "mcpServers": [] }));
    let id = opened["sessionId"].as_str().unwrap().to_owned();
    let image =
        json!({ "sessionId": id, "prompt": [{ "type": "image", "data": "", "mimeType": "image/png" }] });
    assert_eq!(client.refused("session/prompt", &image).0, -32602);
    assert_eq!(client.refused("session/prompt", &json!({ "sessionId": id, "prompt": [] })).0, -32602);
    let rows = [
        ("/nobody", "There is no flow `nobody`."),
        ("hello", "Start a flow with its command:"),
        ("/talk {", "the input is not JSON"),
        ("/talk {}", "missing input `topic`"),
    ];
    for (text, why) in rows {
        let (stop, updates) = turn(&mut client, &id, text);
        let shown = short(&updates);
        assert_eq!(stop, json!("end_turn"));
        assert!(shown.last().unwrap().contains(why), "{text}: {shown:?}");
    }
}

#[test]
fn a_session_outlives_its_editor() {
    let folder = &folder_with(&[("gated.yaml", GATED)]);
    let (mut client, id, _) = editor(folder, &json!({}));
    prompt(&mut client, &id, "/gated");
    until_one_runs(folder);
    client.kill();
    // A new editor opens it while it runs, and waits for its end.
    let mut second = greeted(folder, &json!({}));
    load(&mut second, folder, &id);
    fs::write(folder.join("go"), "").unwrap();
    inspan(folder, &["logs", &format!("{id}-1"), "-f", "--type", "harness:complete"]).expect(0);
    assert_eq!(second.close(), Some(0));
}

#[test]
fn a_session_that_runs_is_watched_once_it_is_loaded() {
    let folder = &folder_with(&[("greet.yaml", GREET), ("talk.yaml", TALK)]);
    inspan(folder, &["run", "greet.yaml", "--no-input", "--session-id", "shell"]).expect(3);
    let mut client = greeted(folder, &json!({}));
    load(&mut client, folder, "shell");
    inspan(folder, &["reply", "shell", "--choice", "hello"]).expect(0);
    // Nothing was prompted here.
    let mut seen = Vec::new();
    let end = "agent_message_chunk: Flow `greet` ended well.\n\nhello world";
    while seen.last().map(String::as_str) != Some(end) {
        seen.extend(short(&updates(&[client.next()])));
    }
    let done = "tool_call_update: node:say#1 completed hello world".to_owned();
    assert!(seen.contains(&done), "{seen:?}");
    // A prompt shows what comes after that, and nothing twice.
    let (stop, after) = turn(&mut client, "shell", "/talk oxen");
    let first = short(&after).remove(0);
    assert_eq!((stop, first.as_str()), (json!("end_turn"), "plan: run pending, speak pending"));
    assert_eq!(client.close(), Some(0));
}

#[test]
fn our_own_client_runs_a_flow_as_an_agent() {
    let inner = &folder_with(&[]);
    fs::write(inner.join("talk.yaml"), TALK).unwrap();
    let folder = &folder_with(&[]);
    let store = home(folder).join("sessions.db");
    let options = json!({
        "command": INSPAN, "args": ["acp", "--flows", &**inner, "--store", store],
    });
    // A prompt of a node is never a command, and so it is the text of the only flow.
    let input = json!({ "prompt": "oxen", "options": options });
    let flow =
        json!({ "flow": { "name": "outer" }, "nodes": [{ "id": "a", "type": "acp.agent", "input": input }] });
    fs::write(folder.join("flow.yaml"), flow.to_string()).unwrap();
    let ran = inspan(folder, &["run", "flow.yaml", "--json"]).expect(0);
    let result = ran.json();
    let text = result["outputs"]["a"]["text"].as_str().unwrap();
    assert_eq!(text.trim(), "oxen\n\nFlow `talk` ended well.");
    let id = result["outputs"]["a"]["sessionId"].as_str().unwrap();
    inspan(folder, &["show", &format!("{id}-1")]).expect(0);
}
