//! `inspan mcp`, with a raw client: every method, questions, progress, tasks, bad input, clients
//! and servers that disconnect.

use std::{fs, path::Path, time::Duration};

use serde_json::{Value, json};
use tokio::time::Instant;

use crate::commands::PERMISSION;
use crate::json_rpc::RpcClient;
use crate::processes::{kill, signal, until, until_one_runs};
use crate::program::{INSPAN, ended, folder_with, inspan, program};

/// It asks a person, and gives what its program says.
pub(crate) const GREET: &str = r#"
flow:
  name: greet
  description: Greets somebody
  input: { who: world }
  outputs: { greeting: "{{ say.stdout }}" }
nodes:
  - { id: how, type: human.input, input: { prompt: "How?", choices: [hello, bye] } }
  - { id: say, type: exec, dependsOn: [how], input: { argv: [echo, "{{ how.choice }} {{ flow.input.who }}"] } }
"#;

/// It runs until there is a file `go`.
const GATED: &str = r#"
flow: { name: gated, outputs: { said: "{{ last.stdout }}" } }
nodes:
  - { id: first, type: exec, input: { argv: [echo, first] } }
  - { id: gate, type: exec, dependsOn: [first], input: { argv: [sh, -c, "while [ ! -e go ]; do sleep 0.02; done"] } }
  - { id: last, type: exec, dependsOn: [gate], input: { argv: [echo, "{{ flow.input.topic }}"] } }
"#;

const LARGE: &str = r#"
flow: { name: large, outputs: { text: "{{ make.stdout }}" } }
nodes:
  - { id: make, type: exec, input: { argv: [sh, -c, "head -c 40000 /dev/zero | tr '\\0' x"] } }
"#;

const FAILS: &str = "
flow: { name: fails }
nodes:
  - { id: bad, type: exec, input: { argv: [sh, -c, 'exit 3'] } }
";

fn go(folder: &Path) {
    fs::write(folder.join("go"), "").unwrap();
}

fn until_the_gate_runs(folder: &Path) {
    until("the gate runs", || {
        inspan(folder, &["show", "@last", "gate", "--json"]).stdout.contains("running")
    });
}

/// What a client says of itself first.
pub(crate) fn client_info(capabilities: &Value) -> Value {
    json!({
        "protocolVersion": "2025-06-18", "capabilities": capabilities, "clientInfo": { "name": "test", "version": "1" },
    })
}

/// A client that has greeted the server.
fn client(folder: &Path, capabilities: &Value) -> RpcClient {
    client_with(folder, capabilities, &["mcp"])
}

fn client_with(folder: &Path, capabilities: &Value, arguments: &[&str]) -> RpcClient {
    let mut client = RpcClient::start(folder, arguments);
    let (greeted, _) = client.call("initialize", &client_info(capabilities));
    let said = json!([greeted["protocolVersion"], greeted["serverInfo"]["name"]]);
    assert_eq!(said, json!(["2025-06-18", "inspan"]));
    client.notify("notifications/initialized", &json!({}));
    client
}

fn tool(client: &mut RpcClient, name: &str, arguments: &Value) -> Value {
    client.call("tools/call", &json!({ "name": name, "arguments": arguments })).0
}

fn text(result: &Value) -> &str {
    result["content"][0]["text"].as_str().unwrap()
}

fn session(result: &Value) -> String {
    result["structuredContent"]["sessionId"].as_str().unwrap().to_owned()
}

#[test]
fn flows_are_tools_like_five_others() {
    let broken = "flow: { name: broken }\nnodes:\n  - { id: a, type: nothing.like.it }\n";
    let folder = &folder_with(&[("greet.yaml", GREET), ("gated.yaml", GATED), ("broken.yaml", broken)]);
    let mut client = client(folder, &json!({}));
    let (listed, _) = client.call("tools/list", &json!({}));
    let tools = listed["tools"].as_array().unwrap();
    let names: Vec<_> = tools.iter().map(|tool| tool["name"].as_str().unwrap()).collect();
    let expected =
        ["gated", "greet", "sessions", "session_status", "session_wait", "session_reply", "session_stop"];
    assert_eq!(names, expected);
    let topic = json!({ "description": "used by node `last`" });
    let schemas = [&tools[0]["inputSchema"], &tools[1]["inputSchema"]];
    let who = json!({ "type": "string", "default": "world" });
    assert_eq!(
        schemas,
        [
            &json!({ "type": "object", "properties": { "topic": topic }, "required": ["topic"] }),
            &json!({ "type": "object", "properties": { "who": who }, "required": [] }),
        ]
    );
    assert!(
        tools[1]["description"].as_str().unwrap().starts_with("Greets somebody. Starts the flow `greet`")
    );
    assert_eq!(client.close(), Some(0));
}

#[test]
fn a_tool_does_not_require_what_the_flow_has_a_default_for() {
    let flow = r#"
flow:
  name: build
  input: { branch: main, depth: 5 }
  inputSchema:
    type: object
    required: [branch, who]
    properties: { branch: { type: string }, depth: { type: integer, default: 1 }, who: { type: string } }
nodes: [{ id: a, type: echo, input: { text: "{{ flow.input.branch }} {{ flow.input.depth }}" } }]
"#;
    let folder = &folder_with(&[("build.yaml", flow)]);
    let mut client = client(folder, &json!({}));
    let (listed, _) = client.call("tools/list", &json!({}));
    let properties = json!({
        "branch": { "type": "string", "default": "main" },
        "depth": { "type": "integer", "default": 5 },
        "who": { "type": "string" },
    });
    assert_eq!(
        listed["tools"][0]["inputSchema"],
        json!({ "type": "object", "required": ["who"], "properties": properties })
    );
    assert_eq!(client.close(), Some(0));
}

#[test]
fn a_broken_flow_and_a_folder_that_is_not_there_are_reported() {
    let broken = "flow: { name: broken }\nnodes:\n  - { id: a, type: nothing.like.it }\n";
    let folder = &folder_with(&[("broken.yaml", broken)]);
    let closed = inspan(folder, &["mcp"]).expect(0);
    assert!(
        closed.stderr.starts_with("warning: flow `broken` is not offered as a tool: "),
        "{}",
        closed.stderr
    );
    let absent = inspan(folder, &["mcp", "--flows", "nowhere"]);
    assert_eq!((absent.code, absent.stderr.as_str()), (Some(2), "error: --flows: there is no ~/nowhere\n"));
}

#[test]
fn a_call_gives_the_outputs_or_says_what_went_wrong() {
    let folder = &folder_with(&[("gated.yaml", GATED), ("fails.yaml", FAILS)]);
    go(folder);
    let mut client = client(folder, &json!({}));
    let done = tool(&mut client, "gated", &json!({ "topic": "oxen" }));
    let id = session(&done);
    let data =
        json!({ "sessionId": id, "flow": "gated", "status": "success", "outputs": { "said": "oxen\n" } });
    assert_eq!((&done["structuredContent"], &done["isError"]), (&data, &json!(false)));

    let failed = tool(&mut client, "fails", &json!({}));
    assert_eq!(
        (&failed["structuredContent"]["status"], &failed["isError"]),
        (&json!("failed"), &json!(true))
    );
    assert!(text(&failed).contains("ended as `failed`: "), "{failed}");
    assert!(text(&failed).contains(&format!("run `inspan resume {}`", session(&failed))), "{failed}");

    let rows = [
        ("gated", json!({}), "missing input `topic`"),
        ("nobody", json!({}), "there is no tool `nobody`"),
        ("session_wait", json!({}), "the arguments are wrong: missing field `session`"),
        ("session_wait", json!({ "session": "x-none" }), "no session ID starts with `x-none`"),
        ("session_wait", json!({ "session": id, "seconds": 1e9 }), "`seconds` must be from 0 to 3600"),
        ("session_reply", json!({ "session": id, "answer": "x" }), "has no open question"),
        ("sessions", json!({ "limit": 51 }), "`limit` must be from 1 to 50"),
        ("sessions", json!({ "other": 1 }), "the arguments are wrong: unknown field `other`"),
    ];
    for (name, arguments, why) in rows {
        let refused = tool(&mut client, name, &arguments);
        assert_eq!(refused["isError"], json!(true), "{name}: {refused}");
        assert!(text(&refused).contains(why), "{name}: {refused}");
    }
    let status = tool(&mut client, "session_status", &json!({ "session": id }))["structuredContent"].take();
    let nodes: Vec<_> =
        status["nodes"].as_array().unwrap().iter().map(|node| (&node["id"], &node["status"])).collect();
    let complete = json!("complete");
    let ids = [json!("first"), json!("gate"), json!("last")];
    assert_eq!(nodes, ids.iter().map(|id| (id, &complete)).collect::<Vec<_>>());
}

/// Calls a flow as a client that waits for the answer, and is a program of a node.
const WITHIN: &str = r#"
mkfifo requests
"$0" mcp --flows flows --wait 10ms < requests > answers &
exec 3> requests
cat >&3 <<'END'
{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"test","version":"1"}}}
{"jsonrpc":"2.0","method":"notifications/initialized"}
{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"gated","arguments":{"topic":"oxen"}}}
END
while ! grep -q '"id":2' answers; do sleep 0.02; done
cat answers
"#;

/// Nothing that a node starts outlives it, where there is a guard.
#[cfg(target_os = "linux")]
#[test]
fn a_session_that_a_node_starts_is_waited_for_or_said_to_end_with_the_node() {
    let slow = GATED.replace("while [ ! -e go ]; do sleep 0.02; done", "sleep 0.3").replace("gated", "slow");
    let outer = json!({
        "flow": { "name": "outer", "mcpServers": { "flows": {
            "command": INSPAN, "args": ["mcp", "--flows", "flows", "--wait", "10ms"],
        } } },
        "nodes": [{ "id": "call", "type": "mcp.call", "input": {
            "server": "flows", "tool": "slow", "arguments": { "topic": "oxen" },
        } }],
    });
    let tells = json!({ "flow": { "name": "tells" }, "nodes": [
        { "id": "a", "type": "exec", "input": { "argv": ["sh", "-c", WITHIN, INSPAN] } },
    ] });
    let folder = &folder_with(&[
        ("flows/gated.yaml", GATED),
        ("flows/slow.yaml", &slow),
        ("outer.yaml", &outer.to_string()),
        ("tells.yaml", &tells.to_string()),
    ]);
    let called = inspan(folder, &["run", "outer.yaml", "--json"]).expect(0).json();
    assert_eq!(called["outputs"]["call"]["text"], json!("{\n  \"said\": \"oxen\\n\"\n}"), "{called}");

    let told = inspan(folder, &["run", "tells.yaml", "--json"]).expect(0).json();
    let answers = told["outputs"]["a"]["stdout"].as_str().unwrap();
    let ends = "A session that was started here and has not ended is interrupted when the node or agent that runs this server ends.";
    assert_eq!(answers.matches(ends).count(), 3, "the server, its tool and the answer: {answers}");
    assert!(answers.contains("is running. Call `session_wait` until it has ended; "), "{answers}");
    let sessions = inspan(folder, &["ps", "--all", "--json"]).json();
    let gated = sessions.as_array().unwrap().iter().find(|session| session["flow"] == json!("gated"));
    assert_eq!(gated.unwrap()["state"], json!("interrupted"), "{sessions}");
}

#[test]
fn a_question_is_answered_by_a_tool() {
    let folder = &folder_with(&[("greet.yaml", GREET)]);
    let mut client = client(folder, &json!({}));
    let asked = tool(&mut client, "greet", &json!({ "who": "oxen" }));
    let id = session(&asked);
    let question = json!({
        "id": "how.1", "node": "how", "kind": "input", "question": "[how] How?", "choices": ["hello", "bye"],
    });
    let data = &asked["structuredContent"];
    assert_eq!((&data["questions"], &asked["isError"]), (&json!([question]), &json!(false)));
    // A shell sees the same question.
    let inbox = inspan(folder, &["inbox", "--json"]).json();
    assert_eq!(inbox[0]["sessionId"], json!(id));

    let wrong = tool(&mut client, "session_reply", &json!({ "session": id, "choice": "maybe" }));
    assert!(text(&wrong).contains("`maybe` is not among the choices"), "{wrong}");
    // The question is known, and so it is no reason to answer before the time is up.
    let waits = tool(&mut client, "session_wait", &json!({ "session": id, "seconds": 0.2 }));
    assert_eq!(waits["structuredContent"]["questions"], json!([question]));
    let answered = tool(&mut client, "session_reply", &json!({ "session": id, "answer": "hello" }));
    assert_eq!(answered["structuredContent"]["answered"], json!("how.1"));
    let done = tool(&mut client, "session_wait", &json!({ "session": id }));
    assert_eq!(done["structuredContent"]["outputs"], json!({ "greeting": "hello oxen\n" }));
    let again =
        tool(&mut client, "session_reply", &json!({ "session": id, "question": "how.1", "choice": "bye" }));
    assert!(text(&again).contains("already answered: hello"), "{again}");
}

#[test]
fn a_question_whose_time_is_up_is_offered_to_nobody() {
    const LATE: &str = r#"
flow: { name: late }
nodes:
  - { id: how, type: human.input, input: { prompt: "How?", choices: [hello, bye], timeout: 200ms } }
"#;
    let folder = &folder_with(&[("late.yaml", LATE)]);
    inspan(folder, &["run", "late.yaml", "--session-id", "s"]).expect(3);
    let inbox = || inspan(folder, &["inbox", "--json"]).json();
    until("the time is up", || inbox()[0]["isExpired"] == json!(true));
    assert_eq!(inbox()[0]["commands"], json!(["inspan resume s"]));
    assert_eq!(inspan(folder, &["show", "s", "--json"]).json()["prompts"], inbox());

    let mut client = client(folder, &json!({}));
    let listed = tool(&mut client, "sessions", &json!({}));
    assert_eq!(listed["structuredContent"]["sessions"][0]["questions"], json!([]));
    let status = tool(&mut client, "session_status", &json!({ "session": "s" }));
    assert_eq!(status["structuredContent"]["questions"], json!([]));
    let late = tool(&mut client, "session_reply", &json!({ "session": "s", "choice": "hello" }));
    assert!(text(&late).contains("question `how.1` expired"), "{late}");
    let waits = tool(&mut client, "session_wait", &json!({ "session": "s", "seconds": 0.1 }));
    assert!(text(&waits).contains("no process runs it: `inspan resume s` continues it"), "{waits}");
}

/// Calls the flow, and answers its form in this way; the form and the result.
fn elicited(folder: &Path, answer: &Value) -> (Value, Value) {
    let mut client = client(folder, &json!({ "elicitation": {} }));
    let call = client.request("tools/call", &json!({ "name": "greet", "arguments": {} }));
    let form = client.next();
    assert_eq!(form["method"], json!("elicitation/create"), "{form}");
    client.send(json!({ "id": form["id"], "result": answer }));
    let (mut answered, _) = client.answer(call);
    (form["params"].clone(), answered["result"].take())
}

#[test]
fn a_client_with_forms_is_asked_while_its_call_waits() {
    let folder = &folder_with(&[("greet.yaml", GREET)]);
    let (form, done) = elicited(folder, &json!({ "action": "accept", "content": { "choice": "bye" } }));
    let choice = json!({ "type": "string", "title": "Choice", "enum": ["hello", "bye"] });
    let schema = json!({ "type": "object", "properties": { "choice": choice }, "required": ["choice"] });
    assert_eq!((&form["message"], &form["requestedSchema"]), (&json!("[how] How?"), &schema));
    assert_eq!(done["structuredContent"]["outputs"], json!({ "greeting": "bye world\n" }));
}

#[test]
fn a_form_that_is_not_accepted_leaves_the_question_open() {
    let folder = &folder_with(&[("greet.yaml", GREET)]);
    let answers = [
        json!({ "action": "decline" }),
        json!({ "action": "cancel" }),
        json!({ "action": "accept" }),
        json!({ "action": "accept", "content": { "choice": "maybe" } }),
        json!({ "nonsense": true }),
    ];
    for answer in answers {
        let (_, open) = elicited(folder, &answer);
        let data = &open["structuredContent"];
        assert_eq!(
            (&data["status"], &data["questions"][0]["id"]),
            (&json!("waiting"), &json!("how.1")),
            "{answer}"
        );
        let id = session(&open);
        inspan(folder, &["reply", &id, "--choice", "hello"]).expect(0);
    }
}

#[test]
fn a_question_that_is_answered_in_a_shell_takes_its_form_back() {
    let folder = &folder_with(&[("greet.yaml", GREET)]);
    let mut client = client(folder, &json!({ "elicitation": { "form": {} } }));
    let call = client.request("tools/call", &json!({ "name": "greet", "arguments": {} }));
    assert_eq!(client.next()["method"], json!("elicitation/create"));
    inspan(folder, &["reply", "--choice", "hello"]).expect(0);
    let (answered, before) = client.answer(call);
    assert_eq!(answered["result"]["structuredContent"]["outputs"], json!({ "greeting": "hello world\n" }));
    let methods: Vec<_> = before.iter().map(|message| message["method"].as_str().unwrap()).collect();
    assert_eq!(methods, ["notifications/cancelled"]);
}

#[test]
fn an_answer_that_comes_second_is_named_and_the_call_waits_for_what_comes_of_the_first() {
    let folder = &folder_with(&[("greet.yaml", GREET)]);
    inspan(folder, &["run", "greet.yaml", "--no-wait", "--session-id", "s"]).expect(3);
    let mut asked = client(folder, &json!({ "elicitation": {} }));
    let waits = |seconds| json!({ "session": "s", "seconds": seconds });
    let call = asked.request("tools/call", &json!({ "name": "session_wait", "arguments": waits(30.0) }));
    let form = asked.next();
    inspan(folder, &["reply", "s", "--choice", "hello", "--no-resume"]).expect(0);
    let waiting = tool(&mut client(folder, &json!({})), "session_wait", &waits(0.2));
    assert!(text(&waiting).contains("a stored answer or command is not applied yet"), "{waiting}");
    let bye = json!({ "action": "accept", "content": { "choice": "bye" } });
    asked.send(json!({ "id": form["id"], "result": bye }));
    inspan(folder, &["resume", "s"]).expect(0);
    let (answered, _) = asked.answer(call);
    let result = &answered["result"];
    assert_eq!(result["structuredContent"]["outputs"], json!({ "greeting": "hello world\n" }), "{result}");
    assert!(text(result).starts_with("The answer was not taken: "), "{result}");
    assert_eq!(result["structuredContent"]["refusedAnswers"], json!([text(result)]));
}

#[test]
fn a_call_does_not_wait_for_a_stored_pause_of_a_session_that_nobody_runs() {
    let folder = &folder_with(&[("gated.yaml", GATED)]);
    let arguments = ["run", "gated.yaml", "-i", "topic=x", "--session-id", "s"];
    let child = program(folder, &arguments).spawn().unwrap();
    // A process that is stopped while it writes keeps the store's lock. When the gate runs, it writes no more.
    until_the_gate_runs(folder);
    signal(&child, "STOP");
    let pause = program(folder, &["pause", "s"]).spawn().unwrap();
    until("the pause is stored", || inspan(folder, &["show", "s"]).stdout.contains("1 stored"));
    kill(child);
    ended(folder, pause);
    let began = Instant::now();
    let waits = json!({ "session": "s", "seconds": 30.0 });
    let waited = tool(&mut client(folder, &json!({})), "session_wait", &waits);
    assert_eq!(waited["structuredContent"]["status"], "interrupted", "{waited}");
    assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
}

#[test]
fn progress_grows_and_ends_with_the_call() {
    let folder = &folder_with(&[("gated.yaml", GATED)]);
    let mut client = client(folder, &json!({}));
    let params =
        json!({ "name": "gated", "arguments": { "topic": "x" }, "_meta": { "progressToken": "token" } });
    let call = client.request("tools/call", &params);
    let first = client.next();
    assert_eq!(
        (&first["method"], &first["params"]["progressToken"]),
        (&json!("notifications/progress"), &json!("token"))
    );
    until_the_gate_runs(folder);
    go(folder);
    let (_, before) = client.answer(call);
    let all = [vec![first], before].concat();
    let numbers: Vec<f64> =
        all.iter().map(|message| message["params"]["progress"].as_f64().unwrap()).collect();
    assert!(numbers.windows(2).all(|pair| pair[0] < pair[1]), "{numbers:?}");
}

#[test]
fn a_session_outlives_the_client_the_server_and_a_cancelled_call() {
    let folder = &folder_with(&[("gated.yaml", GATED)]);
    // The client is gone while its call waits.
    let mut gone = client(folder, &json!({}));
    gone.request("tools/call", &json!({ "name": "gated", "arguments": { "topic": "one" } }));
    until_one_runs(folder);
    assert_eq!(gone.close(), Some(0));

    // A new server sees it, and is killed while it waits.
    let mut second = client(folder, &json!({}));
    let listed = tool(&mut second, "sessions", &json!({ "open": true }));
    let id = listed["structuredContent"]["sessions"][0]["sessionId"].as_str().unwrap().to_owned();
    second.request("tools/call", &json!({ "name": "session_wait", "arguments": { "session": id } }));
    second.kill();

    // A call that is cancelled gets no answer, and ends nothing.
    let mut third = client(folder, &json!({}));
    let call =
        third.request("tools/call", &json!({ "name": "session_wait", "arguments": { "session": id } }));
    third.notify("notifications/cancelled", &json!({ "requestId": call, "reason": "enough" }));
    let status = tool(&mut third, "session_status", &json!({ "session": id }));
    assert_eq!(status["structuredContent"]["status"], json!("running"));

    // Two clients wait for one session, and both get its end.
    let mut fourth = client(folder, &json!({}));
    let wait = json!({ "name": "session_wait", "arguments": { "session": id } });
    let calls = [third.request("tools/call", &wait), fourth.request("tools/call", &wait)];
    go(folder);
    let outputs = json!({ "said": "one\n" });
    for (client, call) in [&mut third, &mut fourth].into_iter().zip(calls) {
        let (answer, _) = client.answer(call);
        assert_eq!(answer["result"]["structuredContent"]["outputs"], outputs);
    }
}

#[test]
fn a_call_answers_with_the_id_when_its_time_is_up_and_a_session_is_stopped() {
    let folder = &folder_with(&[("gated.yaml", GATED)]);
    let mut client = client_with(folder, &json!({}), &["mcp", "--wait", "1s"]);
    let running = tool(&mut client, "gated", &json!({ "topic": "x" }));
    let data = &running["structuredContent"];
    assert_eq!((&data["status"], &running["isError"]), (&json!("running"), &json!(false)));
    assert!(text(&running).contains("Call `session_wait`"), "{running}");
    let id = session(&running);
    let stopped = tool(&mut client, "session_stop", &json!({ "session": id, "reason": "enough" }));
    // It did what was asked.
    assert_eq!(
        (&stopped["structuredContent"]["status"], &stopped["isError"]),
        (&json!("stopped"), &json!(false))
    );
}

#[test]
fn a_budget_that_is_used_up_is_named_with_the_command_that_raises_it() {
    const SPENDS: &str = "
flow: { name: spends, policy: { budget: { tokens: 10 } } }
nodes:
  - { id: a, type: scripted.agent, input: { prompt: x, options: { turns: [[{ text: a }, { usage: { tokens: { inputTokens: 17 } } }]] } } }
  - { id: b, type: echo.agent, dependsOn: [a], input: { prompt: x } }
";
    let folder = &folder_with(&[("spends.yaml", SPENDS)]);
    let mut client = client(folder, &json!({}));
    let paused = tool(&mut client, "spends", &json!({}));
    let id = session(&paused);
    let why = format!(
        "session `{id}` of flow `spends` is paused: the flow exceeded its budget: 10 tokens (17 spent). To raise the budget and \
         continue: `inspan resume {id} --budget tokens=N`"
    );
    assert_eq!(text(&paused), why);
    let status = tool(&mut client, "session_status", &json!({ "session": id }))["structuredContent"].take();
    let said = [&status["message"], &status["limitToRaise"], &status["pausedBy"]];
    assert_eq!(said, [&json!(why), &json!("tokens"), &json!("budget")]);
    let uri = format!("inspan://session/{id}/output");
    let (_, refused) = client.refused("resources/read", &json!({ "uri": uri }));
    assert_eq!(refused, format!("session `{id}` has no outputs yet: it is paused"));
}

#[test]
fn large_outputs_are_a_link_that_can_be_read() {
    let folder = &folder_with(&[("large.yaml", LARGE)]);
    let mut client = client(folder, &json!({}));
    let done = tool(&mut client, "large", &json!({}));
    let uri = format!("inspan://session/{}/output", session(&done));
    let link = &done["content"].as_array().unwrap()[1];
    assert_eq!((&link["type"], &link["uri"]), (&json!("resource_link"), &json!(uri)));
    assert_eq!(done["structuredContent"].get("outputs"), None);
    let (read, _) = client.call("resources/read", &json!({ "uri": uri }));
    let outputs: Value = serde_json::from_str(read["contents"][0]["text"].as_str().unwrap()).unwrap();
    assert_eq!(outputs, json!({ "text": "x".repeat(40_000) }));
    let (listed, _) = client.call("resources/list", &json!({}));
    assert_eq!(listed["resources"][0]["uri"], json!(uri));
    let (templates, _) = client.call("resources/templates/list", &json!({}));
    let forms: Vec<_> =
        templates["resourceTemplates"].as_array().unwrap().iter().map(|form| &form["uriTemplate"]).collect();
    assert_eq!(forms, ["inspan://session/{id}", "inspan://session/{id}/output"]);
    for uri in
        ["file:///etc/passwd", "inspan://session/", "inspan://session/../x/output", "inspan://session/none"]
    {
        let (code, _) = client.refused("resources/read", &json!({ "uri": uri }));
        assert_eq!(code, -32002, "{uri}");
    }
}

#[test]
fn bad_input_is_refused_and_the_next_request_is_answered() {
    let folder = &folder_with(&[]);
    let mut client = client(folder, &json!({}));
    client.line("{");
    client.line(&format!("{{\"jsonrpc\":\"2.0\",\"id\":9,\"method\":\"{}\"}}", "x".repeat(5 * 1024 * 1024)));
    client.line("{\"jsonrpc\":\"2.0\",\"id\":true}");
    let (code, _) = client.refused("no/such/method", &json!({}));
    assert_eq!(code, -32601);
    let wrong = client.refused("tools/call", &json!({ "name": "sessions", "arguments": [1] }));
    let expected = "the parameters of `tools/call` are wrong: invalid type: sequence, expected a map";
    assert_eq!(wrong, (-32602, expected.to_owned()));
    assert_eq!(client.refused("tools/call", &json!({ "name": 1 })).0, -32602);
    assert_eq!(client.refused("resources/read", &Value::Null).0, -32602);
    assert_eq!(client.refused("tasks/get", &json!({ "taskId": "x" })).0, -32021);
    let (listed, _) = client.call("tools/list", &json!({}));
    assert_eq!(listed["tools"].as_array().unwrap().len(), 5);
}

/// What a client of the version without sessions sends with each request.
pub(crate) fn meta(capabilities: &Value) -> Value {
    json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": { "name": "test", "version": "1" },
        "io.modelcontextprotocol/clientCapabilities": capabilities,
    })
}

#[test]
fn a_client_of_the_newest_version_is_asked_by_rounds() {
    let folder = &folder_with(&[("greet.yaml", GREET), ("fails.yaml", FAILS)]);
    let meta = meta(&json!({ "elicitation": { "form": {} } }));
    let mut client = RpcClient::start(folder, &["mcp"]);
    let call = json!({ "name": "greet", "arguments": { "who": "ox" }, "_meta": meta });
    let (asked, _) = client.call("tools/call", &call);
    assert_eq!(asked["resultType"], json!("input_required"), "{asked}");
    assert_eq!(asked["inputRequests"]["how.1"]["method"], json!("elicitation/create"));
    // A client that declines gets the answer that the session waits, and the question stays open.
    let answered = |action: &str| {
        let mut again = call.clone();
        again["requestState"] = asked["requestState"].clone();
        again["inputResponses"] = json!({ "how.1": { "action": action, "content": { "choice": "hello" } } });
        again
    };
    let (open, _) = client.call("tools/call", &answered("decline"));
    assert_eq!(open["structuredContent"]["status"], json!("waiting"));
    let (done, _) = client.call("tools/call", &answered("accept"));
    assert_eq!(done["structuredContent"]["outputs"], json!({ "greeting": "hello ox\n" }));
    assert_eq!(inspan(folder, &["ps", "--all", "--json"]).stdout.matches("\"flow\": \"greet\"").count(), 1);
    let mut forged = answered("accept");
    forged["requestState"] = json!("nobody");
    let (refused, _) = client.call("tools/call", &forged);
    assert_eq!(refused["isError"], json!(true));
    // The session of one tool is not given by another.
    let mut of_another = answered("accept");
    of_another["name"] = json!("fails");
    let (refused, _) = client.call("tools/call", &of_another);
    let expected =
        format!("session `{}` is not of the flow `fails`", asked["requestState"].as_str().unwrap());
    assert!(text(&refused).contains(&expected), "{refused}");
}

/// It asks two questions, and a third once the second is answered.
const TWO: &str = r#"
flow: { name: two, outputs: { said: "{{ a.choice }} {{ b.choice }}" } }
nodes:
  - { id: a, type: human.input, input: { prompt: "A?", choices: [hello, bye] } }
  - { id: b, type: human.input, input: { prompt: "B?", choices: [hello, bye] } }
  - { id: last, type: human.input, dependsOn: [b], input: { prompt: "Last?", choices: [hello, bye] } }
"#;

/// Answers that say `bye` to these questions.
fn bye_to(questions: &[&str]) -> Value {
    let bye = json!({ "action": "accept", "content": { "choice": "bye" } });
    questions.iter().map(|id| ((*id).to_owned(), bye.clone())).collect::<serde_json::Map<_, _>>().into()
}

#[test]
fn a_round_with_an_answer_that_comes_second_takes_the_others_and_the_result_names_it() {
    let folder = &folder_with(&[("two.yaml", TWO)]);
    let meta = meta(&json!({ "elicitation": { "form": {} } }));
    let mut client = RpcClient::start(folder, &["mcp"]);
    inspan(folder, &["run", "two.yaml", "--no-wait", "--session-id", "s"]).expect(3);
    let round = |answers: Value| {
        json!({
            "name": "session_wait", "arguments": { "session": "s" }, "_meta": meta,
            "requestState": "s", "inputResponses": answers,
        })
    };
    inspan(folder, &["reply", "s", "a", "--choice", "hello"]).expect(3);
    // What a client says again, as after a response that it missed, is no other answer.
    for _ in 0..2 {
        let (asked, _) = client.call("tools/call", &round(bye_to(&["a.1", "b.1"])));
        let asked: Vec<_> = asked["inputRequests"].as_object().unwrap().keys().collect();
        assert_eq!(asked, ["last.1"]);
    }
    let (done, _) = client.call("tools/call", &round(bye_to(&["b.1", "last.1"])));
    let data = &done["structuredContent"];
    assert_eq!((&done["isError"], &data["outputs"]["said"]), (&json!(false), &json!("hello bye")), "{done}");
    let refused = "The answer was not taken: question `a.1` is already answered: hello";
    assert_eq!(data["refusedAnswers"], json!([refused]));
}

#[test]
fn a_task_takes_each_answer_that_is_not_the_second_and_its_result_names_those_that_are() {
    let folder = &folder_with(&[("two.yaml", TWO)]);
    let capabilities =
        json!({ "elicitation": { "form": {} }, "extensions": { "io.modelcontextprotocol/tasks": {} } });
    let meta = meta(&capabilities);
    let mut client = RpcClient::start(folder, &["mcp"]);
    inspan(folder, &["run", "two.yaml", "--no-wait", "--session-id", "s"]).expect(3);
    inspan(folder, &["reply", "s", "a", "--choice", "hello"]).expect(3);
    let get = |client: &mut RpcClient, is_it: &dyn Fn(&Value) -> bool| {
        let mut task = Value::Null;
        until("the task is there", || {
            task = client.call("tasks/get", &json!({ "taskId": "s", "_meta": meta })).0;
            is_it(&task)
        });
        task
    };
    for (question, answers) in [("b.1", bye_to(&["a.1", "b.1"])), ("last.1", bye_to(&["last.1"]))] {
        get(&mut client, &|task| task["inputRequests"].get(question).is_some());
        let update = json!({ "taskId": "s", "inputResponses": answers, "_meta": meta });
        for _ in 0..2 {
            client.call("tasks/update", &update);
        }
    }
    let task = get(&mut client, &|task| task["status"] == json!("completed"));
    let data = &task["result"]["structuredContent"];
    assert_eq!(data["outputs"]["said"], json!("hello bye"), "{task}");
    let refused = "The answer was not taken: question `a.1` is already answered: hello";
    assert_eq!(data["refusedAnswers"], json!([refused]));
}

#[test]
fn a_client_without_forms_cannot_allow_what_an_agent_asks_for() {
    let folder = &folder_with(&[("permission.yaml", PERMISSION)]);
    let mut client = client(folder, &json!({}));
    let asked = tool(&mut client, "permission", &json!({}));
    let (id, question) = (session(&asked), asked["structuredContent"]["questions"][0]["id"].clone());
    let allowed = json!({
        question.as_str().unwrap(): { "action": "accept", "content": { "decision": "allow" } },
    });
    let call = json!({
        "name": "permission", "arguments": {}, "requestState": id, "inputResponses": allowed,
    });
    let (open, _) = client.call("tools/call", &call);
    assert_eq!(open["structuredContent"]["questions"][0]["id"], question, "{open}");

    let meta = meta(&json!({ "extensions": { "io.modelcontextprotocol/tasks": {} } }));
    let mut other = RpcClient::start(folder, &["mcp"]);
    let update = json!({ "taskId": id, "inputResponses": allowed, "_meta": meta });
    let (code, why) = other.refused("tasks/update", &update);
    assert_eq!(code, -32602);
    assert!(why.contains("shows forms"), "{why}");
    let status = tool(&mut client, "session_status", &json!({ "session": id }));
    assert_eq!(status["structuredContent"]["questions"][0]["id"], question, "{status}");
}

#[test]
fn a_task_is_a_session() {
    let folder = &folder_with(&[("greet.yaml", GREET), ("gated.yaml", GATED)]);
    let capabilities =
        json!({ "elicitation": { "form": {} }, "extensions": { "io.modelcontextprotocol/tasks": {} } });
    let meta = meta(&capabilities);
    let mut client = RpcClient::start(folder, &["mcp"]);
    let (task, _) = client.call("tools/call", &json!({ "name": "greet", "arguments": {}, "_meta": meta }));
    assert_eq!((&task["resultType"], &task["status"]), (&json!("task"), &json!("working")), "{task}");
    let id = task["taskId"].clone();
    let of = |id: &Value| json!({ "taskId": id, "_meta": meta });
    let status = |client: &mut RpcClient, id: &Value, wanted: &str| {
        let mut task = Value::Null;
        until(wanted, || {
            task = client.call("tasks/get", &of(id)).0;
            task["status"] == json!(wanted)
        });
        task
    };
    let asked = status(&mut client, &id, "input_required");
    assert_eq!(asked["inputRequests"]["how.1"]["method"], json!("elicitation/create"));
    let mut update = of(&id);
    update["inputResponses"] = json!({ "how.1": { "action": "accept", "content": { "choice": "bye" } } });
    client.call("tasks/update", &update);
    // Another server answers for the same task.
    client.kill();
    let mut client = RpcClient::start(folder, &["mcp"]);
    let done = status(&mut client, &id, "completed");
    assert_eq!(done["result"]["structuredContent"]["outputs"], json!({ "greeting": "bye world\n" }));

    let (task, _) =
        client.call("tools/call", &json!({ "name": "gated", "arguments": { "topic": "x" }, "_meta": meta }));
    inspan(folder, &["pause", task["taskId"].as_str().unwrap()]);
    let paused = status(&mut client, &task["taskId"], "completed")["result"].clone();
    assert!(text(&paused).contains("is paused; `inspan resume"), "{paused}");
    client.call("tasks/cancel", &of(&task["taskId"]));
    status(&mut client, &task["taskId"], "cancelled");
    assert_eq!(client.refused("tasks/get", &of(&json!("nobody"))).0, -32602);
}

#[test]
fn the_task_of_a_client_without_forms_is_complete_once_its_session_asks() {
    let folder = &folder_with(&[("greet.yaml", GREET)]);
    let meta = meta(&json!({ "extensions": { "io.modelcontextprotocol/tasks": {} } }));
    let mut client = RpcClient::start(folder, &["mcp"]);
    let (task, _) = client.call("tools/call", &json!({ "name": "greet", "arguments": {}, "_meta": meta }));
    let mut asked = Value::Null;
    until("the task is complete", || {
        asked = client.call("tasks/get", &json!({ "taskId": task["taskId"], "_meta": meta })).0;
        asked["status"] == json!("completed")
    });
    let result = &asked["result"];
    assert_eq!(result["structuredContent"]["questions"][0]["id"], json!("how.1"));
    assert!(text(result).contains("answer with `session_reply`"), "{result}");
}
