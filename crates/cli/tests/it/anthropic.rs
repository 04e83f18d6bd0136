//! Flows whose agents ask the Messages API, against the scripted model server: what the user sees, that a conversation
//! goes on in another process, and that the key stands nowhere.

use std::{fs, path::Path, process::Command, time::Duration};

use inspan_testkit::{Ending, Matcher, ModelServer, RecordedRequest, Scenario, Turn};
use serde_json::{Value, json};

use crate::{
    processes::{signal, until},
    program::{Ran, program, ran},
};

const PLANTED: &str = "sk-ant-planted-0123456789";

const REVIEW: &str = "
flow: { name: review, input: { topic: oxen } }
nodes:
  - id: write
    type: anthropic.agent
    input: { prompt: 'write about {{ flow.input.topic }}', options: { systemPrompt: 'You write.' } }
  - id: judge
    type: agent.run
    dependsOn: [write]
    input:
      provider: anthropic
      prompt: 'judge: {{ write.text }}'
      options:
        model: claude-sonnet-4-5
        thinking: minimal
        outputSchema: { type: object, required: [score], properties: { score: { type: integer, minimum: 1 } } }
  - id: again
    type: anthropic.agent
    session: write
    dependsOn: [judge]
    input: { prompt: 'the score is {{ judge.structuredOutput.score }}' }
";

fn server(turns: impl IntoIterator<Item = Turn>) -> ModelServer {
    ModelServer::start(Scenario { aux_detect: false, ..Scenario::of(turns) }).unwrap()
}

fn folder(flow: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("flow.yaml"), flow).unwrap();
    folder
}

fn command(folder: &Path, server: &ModelServer, arguments: &[&str]) -> Command {
    let mut command = program(folder, arguments);
    command.env("ANTHROPIC_API_KEY", PLANTED).env("ANTHROPIC_BASE_URL", server.base_url());
    command
}

fn run(folder: &Path, server: &ModelServer, arguments: &[&str]) -> Ran {
    ran(folder, &mut command(folder, server, arguments))
}

fn answers() -> [Turn; 4] {
    [
        Turn::text("Oxen pull.").when(Matcher::last("write about")),
        Turn { times: Some(1), ..Turn::text("seven").when(Matcher::last("judge:")) },
        Turn { structured: Some(json!({ "score": 7 })), ..Turn::default() }
            .when(Matcher::last("does not fit")),
        Turn::text("Oxen pull well.").when(Matcher::last("the score is 7")),
    ]
}

/// Every file below a folder, read as text.
fn files(folder: &Path, text: &mut String) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files(&path, text);
        } else {
            text.push_str(&String::from_utf8_lossy(&fs::read(&path).unwrap()));
        }
    }
}

#[test]
fn a_flow_of_three_agents_mends_its_output_and_goes_on_in_a_conversation() {
    let server = server(answers());
    let folder = folder(REVIEW);
    let arguments = ["run", "flow.yaml", "--json", "--events", "events.jsonl", "--record", "recordings"];
    let ran = run(folder.path(), &server, &arguments);
    assert_eq!(ran.code, Some(0), "{}{}", ran.stdout, ran.stderr);
    let result: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(result["outputs"]["again"]["text"], "Oxen pull well.");
    let requests = server.requests();
    let first = |request: usize| requests[request].body["messages"][0]["content"][0]["text"].clone();
    let roles = |request: usize| requests[request].body["messages"].as_array().unwrap().len();
    assert_eq!(
        (
            requests.len(),
            [roles(0), roles(1), roles(2), roles(3)],
            first(3),
            &requests[3].body["system"][0]["text"]
        ),
        (4, [1, 1, 3, 3], json!("write about oxen"), &json!("You write."))
    );
    assert_eq!(requests[1].body["thinking"], json!({ "type": "enabled", "budget_tokens": 1024 }));
    let mut kept = format!("{}{}", ran.stdout, ran.stderr);
    files(folder.path(), &mut kept);
    assert!(kept.contains("Oxen pull well.") && kept.contains("\"provider\":\"anthropic\""));
    assert!(!kept.contains(PLANTED));

    // What was recorded answers without any server.
    let replayed = inspan_alone(folder.path(), &["run", "flow.yaml", "--json", "--replay", "recordings"]);
    let replayed: Value = serde_json::from_str(&replayed.stdout).unwrap();
    assert_eq!(
        (&replayed["outputs"]["again"]["text"], server.requests().len()),
        (&json!("Oxen pull well."), 4)
    );
}

/// A run without the server's address, but with a key that leads nowhere.
fn inspan_alone(folder: &Path, arguments: &[&str]) -> Ran {
    let mut command = program(folder, arguments);
    ran(folder, command.env("ANTHROPIC_API_KEY", PLANTED).env("ANTHROPIC_BASE_URL", "http://127.0.0.1:1"))
}

#[test]
fn an_overloaded_server_is_asked_again_by_the_flow_and_by_nobody_else() {
    let flow = "
flow: { name: again }
nodes:
  - { id: a, type: anthropic.agent, input: { prompt: hello }, policy: { retry: { maxAttempts: 3, backoff: 10ms } } }
";
    let server = server([Turn::error(529), Turn::error(500), Turn::text("Here.")]);
    let folder = folder(flow);
    let ran = run(folder.path(), &server, &["run", "flow.yaml", "--json"]);
    assert_eq!((ran.code, server.requests().len()), (Some(0), 3), "{}{}", ran.stdout, ran.stderr);
    assert!(server.requests().iter().all(|request| request.body["messages"].as_array().unwrap().len() == 1));
}

#[test]
fn a_flow_that_was_interrupted_or_killed_goes_on_in_its_conversation() {
    let flow = "
flow: { name: long }
nodes:
  - { id: a, type: anthropic.agent, input: { prompt: hello } }
";
    let stalls = Turn { stall_after: Some(6), ..Turn::text("said before it was cancelled") };
    let roles: [(_, _, &[&str]); 2] =
        [("INT", Some(7), &["user", "assistant", "user"]), ("KILL", None, &["user", "user"])];
    for (name, code, expected) in roles {
        let server = server([stalls.clone(), Turn::text("Back.")]);
        let folder = folder(flow);
        let mut child = command(
            folder.path(),
            &server,
            &["run", "flow.yaml", "--session-id", "s", "--events", "events.jsonl"],
        )
        .spawn()
        .unwrap();
        let soon = Duration::from_secs(30);
        let stalled = |ending: Ending| {
            move |seen: &[RecordedRequest]| seen.first().is_some_and(|one| one.ending == ending)
        };
        server.wait_until(soon, stalled(Ending::Stalled)).unwrap();
        // What the server has sent is not what the flow has heard.
        until("the flow heard something", || {
            fs::read_to_string(folder.path().join("events.jsonl"))
                .is_ok_and(|events| events.contains("agent:text"))
        });
        signal(&child, name);
        assert_eq!(child.wait().unwrap().code(), code, "{name}");
        server.wait_until(soon, stalled(Ending::ClientGone)).unwrap();
        let ran = run(folder.path(), &server, &["resume", "s", "--json"]);
        assert_eq!(ran.code, Some(0), "{name}: {}{}", ran.stdout, ran.stderr);
        let body = &server.requests()[1].body;
        let roles: Vec<&str> = body["messages"]
            .as_array()
            .unwrap()
            .iter()
            .map(|message| message["role"].as_str().unwrap())
            .collect();
        assert_eq!(roles, expected, "{name}: {body}");
    }
}

#[test]
fn what_is_missing_or_not_offered_is_said_before_anything_starts() {
    let server = server([Turn::text("never")]);
    let folder = folder(REVIEW);
    let ran_without = ran(folder.path(), &mut program(folder.path(), &["run", "flow.yaml"]));
    assert_eq!(ran_without.code, Some(4));
    assert!(ran_without.stderr.contains("there is no key"), "{}", ran_without.stderr);
    assert!(ran_without.stderr.contains("set ANTHROPIC_API_KEY"), "{}", ran_without.stderr);
    let tools = "
flow: { name: tools }
nodes:
  - { id: a, type: anthropic.agent, input: { prompt: hello, options: { permissionMode: plan } } }
";
    fs::write(folder.path().join("tools.yaml"), tools).unwrap();
    let refused = run(folder.path(), &server, &["run", "tools.yaml"]);
    assert_eq!((refused.code, server.requests().len()), (Some(2), 0));
    assert!(
        refused.stderr.contains("`anthropic.agent` has no option `permissionMode`"),
        "{}",
        refused.stderr
    );
    let doctor = run(folder.path(), &server, &["doctor"]);
    assert!(doctor.stdout.contains("127.0.0.1, with ANTHROPIC_API_KEY"), "{}", doctor.stdout);
    assert!(!format!("{}{}", doctor.stdout, doctor.stderr).contains(PLANTED));
}
