//! What an editor sees and may type while no turn is in progress: sessions that a shell continues, refused messages, texts that
//! begin with `/`, a budget that is used up.

use std::process::Command;

use super::*;

/// It asks once there is a file `go`.
const SHIP: &str = r#"
flow: { name: ship }
nodes:
  - { id: gate, type: exec, input: { argv: [sh, -c, "while [ ! -e go ]; do sleep 0.02; done; echo passed"] } }
  - { id: ask, type: human.input, dependsOn: [gate], input: { prompt: "Ship it?", choices: ["yes", "no"] } }
"#;

const PATH: &str = r#"
flow: { name: my flow, outputs: { path: "{{ path.content }}" } }
nodes:
  - { id: path, type: human.input, input: { prompt: "Which path?" } }
"#;

const SPENDS: &str = "
flow: { name: spends, policy: { budget: { tokens: 10 } } }
nodes:
  - { id: a, type: scripted.agent, input: { prompt: x, options: { turns: [[{ text: a }, { usage: { tokens: { inputTokens: 17 } } }]] } } }
  - { id: b, type: scripted.agent, dependsOn: [a], input: { prompt: x, options: { turns: [[{ text: b }]] } } }
";

const MENDED: &str = r#"
flow: { name: mended }
nodes:
  - { id: first, type: echo.agent, input: { prompt: "{{ flow.input.topic }}" } }
  - { id: check, type: exec, dependsOn: [first], input: { argv: [test, -e, go] }, policy: { retry: { maxAttempts: 2, backoff: 10ms } } }
"#;

const SHIPPED: &str = "agent_message_chunk: Flow `ship` ended well.";

/// An agent whose tool call waits for a permission, and a program that does not end.
const CALLS: &str = "
flow: { name: calls }
nodes:
  - { id: gate, type: exec, input: { argv: [sleep, '60'] } }
  - id: ask
    type: scripted.agent
    input: { prompt: x, options: { turns: [[{ tool: { name: Bash, input: { command: ls }, result: out, ask: true } }]] } }
";

/// What is shown until this is.
fn shown_until(client: &mut RpcClient, wanted: &str) -> Vec<String> {
    let mut seen = Vec::new();
    while !seen.iter().any(|line: &String| line.contains(wanted)) {
        seen.extend(short(&updates(&[client.next()])));
    }
    seen
}

pub(super) fn ids_of(listed: &Value, key: &str) -> Vec<Value> {
    listed.as_array().unwrap().iter().map(|known| known[key].clone()).collect()
}

#[test]
fn a_message_reaches_the_session_that_continues_the_one_of_the_conversation() {
    let folder = &folder_with(&[("ship.yaml", SHIP)]);
    let (mut client, id, _) = editor(folder, &forms());
    let call = prompt(&mut client, &id, "/ship");
    until_one_runs(folder);
    client.notify("session/cancel", &json!({ "sessionId": id }));
    client.answer(call);
    fs::write(folder.join("ship.yaml"), SHIP.replace("Ship it?", "Ship it now?")).unwrap();
    fs::write(folder.join("go"), "").unwrap();
    inspan(folder, &["resume", &format!("{id}-1"), "--edited", "--detach"]).expect(0);
    // It is shown, without the command that was typed before, and what it asks is asked here.
    let mut seen = Vec::new();
    let question = loop {
        match client.next() {
            question if question.get("id").is_some() => break question,
            other => seen.push(other),
        }
    };
    let is_typed = |line: &&String| line.starts_with("user_message_chunk");
    assert_eq!(short(&updates(&seen)).iter().find(is_typed), None);
    assert_eq!(question["params"]["message"], json!("[ask] Ship it now?"));
    read();
    let (stop, said) = turn(&mut client, &id, "yes");
    assert_eq!(stop, json!("end_turn"));
    assert_eq!(short(&said).last().unwrap(), SHIPPED);
    // Nothing was started for the answer, and the two are one conversation.
    let sessions = inspan(folder, &["ps", "--all", "--json"]).json();
    assert_eq!(ids_of(&sessions, "state"), [json!("success"), json!("continued")]);
    let (listed, _) = client.call("session/list", &json!({ "cwd": &**folder }));
    assert_eq!(ids_of(&listed["sessions"], "sessionId"), [json!(id)]);
    let loaded = load(&mut client, folder, &id);
    assert!(
        loaded.contains(&SHIPPED.to_owned()) && loaded.iter().filter(is_typed).count() == 1,
        "{loaded:?}"
    );
}

#[test]
fn after_a_message_that_is_refused_a_conversation_is_still_watched() {
    let folder = &folder_with(&[("ship.yaml", SHIP)]);
    inspan(folder, &["run", "ship.yaml", "--detach", "--session-id", "shell"]).expect(0);
    let mut client = greeted(folder, &forms());
    load(&mut client, folder, "shell");
    let (_, said) = turn(&mut client, "shell", "hello");
    assert!(short(&said).last().unwrap().contains("listens"), "{said:?}");
    let (_, said) = turn(&mut client, "shell", "/ship");
    let runs = "agent_message_chunk: `/ship` starts a flow, and session `shell` of this conversation runs";
    assert!(short(&said).last().unwrap().starts_with(runs), "{said:?}");
    fs::write(folder.join("go"), "").unwrap();
    let question = asked(&mut client);
    client.send(chosen(&question, "yes"));
    shown_until(&mut client, SHIPPED);
}

#[test]
fn a_text_that_begins_as_a_command_is_an_answer_unless_it_is_one() {
    let folder = &folder_with(&[("path.yaml", PATH), ("talk.yaml", TALK)]);
    let (mut client, id, _) = editor(folder, &json!({}));
    // A conversation that is open and empty can be loaded, and is still open.
    assert_eq!(load(&mut client, folder, &id), Vec::<String>::new());
    turn(&mut client, &id, "/my-flow");
    let (_, said) = turn(&mut client, &id, "/talk oxen");
    let refused = format!("`/talk` starts a flow, and session `{id}-1` of this conversation waits for you");
    assert!(short(&said).last().unwrap().contains(&refused), "{said:?}");
    let (_, said) = turn(&mut client, &id, "/tmp/cache");
    let ended = "agent_message_chunk: Flow `my flow` ended well.\n\n/tmp/cache";
    assert_eq!(short(&said).last().unwrap(), ended);
    let loaded = load(&mut client, folder, &id);
    assert!(loaded.contains(&"user_message_chunk: /my-flow".to_owned()), "{loaded:?}");
    // The session can also be opened by its own id.
    assert!(load(&mut client, folder, &format!("{id}-1")).contains(&ended.to_owned()));
}

#[test]
fn a_budget_that_is_used_up_is_named_with_the_command_that_raises_it() {
    let folder = &folder_with(&[("spends.yaml", SPENDS)]);
    let (mut client, id, _) = editor(folder, &json!({}));
    let raise = format!("`inspan resume {id}-1 --budget tokens=N`");
    let paused = format!(
        "agent_message_chunk: The session is paused: the flow exceeded its budget: 10 tokens (17 spent). To raise the budget \
         and continue: {raise}"
    );
    // A message cannot raise it, and so it starts no process.
    for text in ["/spends", "go on"] {
        let (_, said) = turn(&mut client, &id, text);
        assert_eq!(short(&said).last(), Some(&paused), "{text}");
    }
    inspan(folder, &["resume", &format!("{id}-1"), "--budget", "tokens=100"]).expect(0);
    shown_until(&mut client, "Flow `spends` ended well.");
}

#[test]
fn a_text_after_a_failure_starts_nothing_and_names_the_command_that_does() {
    let folder = &folder_with(&[("mended.yaml", MENDED)]);
    let (mut client, id, _) = editor(folder, &json!({}));
    let resume = format!("Fix it, then run `inspan resume {id}-1`; finished work is reused.");
    for text in ["/mended oxen", "try again"] {
        let (_, said) = turn(&mut client, &id, text);
        assert!(short(&said).last().unwrap().contains(&resume), "{text}: {said:?}");
        let again = short(&said).iter().filter(|line| line.contains(". Attempt 2 of 2 begins at ")).count();
        assert_eq!(again, usize::from(text.starts_with('/')));
    }
    fs::write(folder.join("go"), "").unwrap();
    inspan(folder, &["resume", &format!("{id}-1")]).expect(0);
    let (_, said) = turn(&mut client, &id, "/mended yokes");
    assert!(short(&said).contains(&"agent_message_chunk: yokes".to_owned()), "{said:?}");
    // After one that was shown to end well a text starts the only flow.
    read();
    let (_, said) = turn(&mut client, &id, "ploughs");
    assert!(short(&said).contains(&"agent_message_chunk: ploughs".to_owned()), "{said:?}");
}

#[test]
fn a_text_that_may_be_meant_for_a_session_that_another_has_just_ended_starts_nothing() {
    let folder = &folder_with(&[("greet.yaml", GREET)]);
    let (mut client, id, _) = editor(folder, &json!({}));
    let refused = |client: &mut RpcClient, text: &str, word: &str| {
        let (_, said) = turn(client, &id, text);
        let ended = format!("ended as `{word}`, and takes no message.");
        assert!(short(&said).last().unwrap().contains(&ended), "{said:?}");
    };
    turn(&mut client, &id, "/greet");
    inspan(folder, &["reply", &format!("{id}-1"), "--choice", "hello"]).expect(0);
    shown_until(&mut client, "Flow `greet` ended well.");
    read();
    refused(&mut client, "hello", "success");
    turn(&mut client, &id, "/greet");
    inspan(folder, &["stop", &format!("{id}-2")]).expect(0);
    refused(&mut client, "why?", "stopped");
    turn(&mut client, &id, "/greet");
    read();
    turn(&mut client, &id, "bye");
    refused(&mut client, "typed before the end was read", "success");
    assert_eq!(inspan(folder, &["ps", "--all", "--json"]).json().as_array().unwrap().len(), 3);
}

#[test]
fn tool_calls_of_a_process_that_died_are_shown_as_interrupted() {
    let folder = &folder_with(&[("calls.yaml", CALLS)]);
    inspan(folder, &["run", "calls.yaml", "--detach", "--session-id", "shell"]).expect(0);
    until("it asks", || inspan(folder, &["inbox"]).stdout.contains("shell"));
    let process = inspan(folder, &["ps", "--json"]).json()[0]["owner"]["pid"].to_string();
    assert!(Command::new("kill").args(["-s", "KILL", &process]).status().unwrap().success());
    let mut client = greeted(folder, &json!({}));
    let mut seen = load(&mut client, folder, "shell");
    let has_asked = seen.iter().any(|line| line.starts_with("tool_call: ") && line.contains("ask"));
    seen.extend(shown_until(&mut client, "node:gate#1 failed"));
    let ended: Vec<_> = seen.iter().filter(|line| line.ends_with("failed interrupted")).collect();
    assert!(has_asked && ended.len() == 2, "{seen:?}");
}

#[test]
fn commands_that_are_offered_name_the_store() {
    let folder = &folder_with(&[("mended.yaml", MENDED)]);
    let mut client = RpcClient::start(folder, &["acp", "--store", "here.db"]);
    client.call("initialize", &json!({ "protocolVersion": 1, "clientCapabilities": {} }));
    let (opened, _) = client.call("session/new", &json!({ "cwd": &**folder, "mcpServers": [] }));
    let id = opened["sessionId"].as_str().unwrap();
    let resume = format!("`inspan resume {id}-1 --store {}`", folder.join("here.db").display());
    for text in ["/mended oxen", "try again"] {
        let (_, said) = turn(&mut client, id, text);
        assert!(short(&said).last().unwrap().contains(&resume), "{text}: {said:?}");
    }
}
