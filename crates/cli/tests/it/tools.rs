//! Flows whose agents call tools of a real MCP server, against the scripted model: what the model and the user get,
//! that a crash runs nothing twice, and that no process is left.

use std::{
    collections::BTreeMap,
    fs,
    path::Path,
    process::{Child, Command},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use inspan_flow::{FlowRunner, Loaded, builtin_nodes, compile};
use inspan_model_server::{Block, ModelServer, Turn};
use inspan_protocol::{FnTool, HostTools, Outcome, ToolOutput};
use inspan_testkit::{MCP_SERVER, running_servers};
use serde_json::{Map, json};

use crate::{
    api_agents::{server, written},
    processes::{signal, until},
    program::{Folder, Ran, ended, flow_folder, folder_with, inspan, program, ran},
};

const PLANTED: &str = "planted-herd-token-0123456789";

/// A flow of one agent with the server, whose token comes from the environment.
fn folder(rule: &str) -> Folder {
    let folder = folder_with(&[]);
    let flow = format!(
        "
flow: {{ name: herd }}
nodes:
  - id: a
    type: anthropic.agent
    input:
      prompt: how many?
      options:
        {rule}
        mcpServers:
          herd: {{ command: sh, args: [herd.sh], env: {{ HERD_TOKEN: '${{HERD_PASS}}' }} }}
"
    );
    fs::write(folder.join("flow.yaml"), flow).unwrap();
    fs::write(folder.join("herd.sh"), MCP_SERVER).unwrap();
    folder
}

fn command(folder: &Path, server: &ModelServer, arguments: &[&str]) -> Command {
    let mut command = program(folder, arguments);
    command
        .env("ANTHROPIC_API_KEY", "sk-ant-planted-0123456789")
        .env("ANTHROPIC_BASE_URL", server.base_url())
        .env("HERD_PASS", PLANTED);
    command
}

fn run(folder: &Path, server: &ModelServer, arguments: &[&str]) -> Ran {
    ran(folder, &mut command(folder, server, arguments))
}

/// What the last message of a request answers to each call.
fn answers(server: &ModelServer, request: usize) -> Vec<String> {
    let body = server.requests()[request].body.clone();
    let results = body["messages"].as_array().unwrap().iter().flat_map(|message| {
        let blocks = message["content"].as_array().cloned().unwrap_or_default();
        blocks.into_iter().filter(|block| block["type"] == "tool_result")
    });
    results.map(|block| block["content"][0]["text"].as_str().unwrap_or_default().to_owned()).collect()
}

#[test]
fn a_flow_calls_a_real_server_and_its_secret_stays_there() {
    let both = Turn {
        blocks: vec![Block::tool("mcp__herd__count", json!({})), Block::tool("mcp__herd__secret", json!({}))],
        ..Turn::default()
    };
    let server = server([both, Turn::text("One.")]);
    let folder = &folder("allowedTools: [mcp__herd]");
    let arguments = ["run", "flow.yaml", "--json", "--events", "events.jsonl"];
    let ran = run(folder, &server, &arguments).expect(0);
    let result = ran.json();
    let output = &result["outputs"]["a"];
    assert_eq!((&output["text"], &output["numTurns"]), (&json!("One."), &json!(2)));
    assert_eq!(answers(&server, 1), ["1 oxen", "token [redacted HERD_TOKEN], key none"]);
    let events = fs::read_to_string(folder.join("events.jsonl")).unwrap();
    let count = |name: &str| events.matches(&format!("\"{name}\"")).count();
    assert_eq!((count("agent:tool:start"), count("agent:tool:complete")), (2, 2));
    let shown = format!("{}{}{:?}{}", ran.stdout, ran.stderr, server.requests(), written(folder));
    assert!(shown.contains("One.") && !shown.contains(PLANTED), "{shown}");
    until("no process of the server is left", || running_servers(folder).is_empty());
}

#[test]
fn what_nobody_allows_is_denied_and_reported() {
    let server = server([Turn::tool("mcp__herd__count", json!({})), Turn::text("No.")]);
    let folder = &folder("maxTurns: 5");
    let ran = run(folder, &server, &["run", "flow.yaml", "--json"]).expect(0);
    let result = ran.json();
    assert_eq!(result["outputs"]["a"]["permissionDenials"][0]["toolName"], "mcp__herd__count");
    assert!(answers(&server, 1)[0].contains("denied"), "{:?}", answers(&server, 1));
    run(folder, &server, &["digest"]).expect(0).prints("1 node finished, 1 tool call was denied");
    assert!(!folder.join("herd.log").exists());
    until("no process of the server is left", || running_servers(folder).is_empty());
}

/// A call of the scripted agent that nobody allows.
const DENIED: &str = "{ tool: { name: Bash, input: { command: rm }, result: r, ask: true } }";

/// How often it is said that such a call was denied.
fn times_told(folder: &Path, arguments: &[&str]) -> usize {
    let said = inspan(folder, arguments);
    (said.stdout + &said.stderr).matches("denied: Bash").count()
}

#[test]
fn what_was_denied_to_an_agent_that_failed_or_was_replaced_is_told_too() {
    let call = DENIED;
    let flow = format!(
        "flow:
  name: denied
  policy: {{ failFast: false }}
  agents:
    cheap: {{ type: scripted.agent, options: {{ turns: [[{call}, {{ text: 'no' }}]] }} }}
    strong: {{ type: scripted.agent, options: {{ turns: [[{{ text: 'yes' }}]] }} }}
    broken: {{ type: scripted.agent, options: {{ turns: [[{call}, {{ error: {{ code: PROCESS, message: lost }} }}]] }} }}
nodes:
  - {{ id: answers, agent: cheap, input: {{ prompt: x }}, fallback: [{{ agent: strong, when: answers.text == 'no' }}] }}
  - {{ id: breaks, agent: broken, input: {{ prompt: x }}, fallback: [{{ agent: strong }}] }}
  - {{ id: fails, agent: broken, input: {{ prompt: x }} }}
"
    );
    let folder = flow_folder(&flow);
    let told = |arguments: &[&str]| times_told(&folder, arguments);
    // The line of each agent, and those of the summary.
    assert_eq!(told(&["run", "--no-input", "--session-id", "s"]), 6);
    assert_eq!(told(&["show", "s"]), 3);
    for node in ["answers", "breaks", "fails"] {
        assert_eq!(told(&["why", "s", node]), 1, "{node}");
    }
    let digest = inspan(&folder, &["digest"]).stdout;
    assert!(digest.contains("3 tool calls were denied"), "{digest}");
}

#[test]
fn a_denied_call_is_told_once_however_its_attempt_ends() {
    let agent = |policy: &str, more: &str, turns: &str| {
        let input = format!("{{ prompt: x, options: {{ {more} turns: [[{DENIED}, {turns}] }} }}");
        format!("{{ id: a, type: scripted.agent, policy: {{ {policy} }}, input: {input} }}")
    };
    let schema = "outputSchema: { type: object, required: [n] },";
    let lost = agent("", "", "{ error: { code: PROCESS, message: lost } }]");
    let each = format!(
        "{{ id: each, type: control.foreach, input: {{ items: [1] }}, body: {{ nodes: [{lost}] }} }}"
    );
    let rows = [
        ("timeout", "a", agent("timeout: 2s", "", "hang]")),
        ("repair", "a", agent("", schema, "{ structured: { m: 1 } }], [{ structured: { n: 2 } }]")),
        ("foreach", "each[0]/a", each),
    ];
    for (name, node, nodes) in rows {
        let folder = &flow_folder(&format!("flow: {{ name: {name} }}\nnodes:\n  - {nodes}\n"));
        let told = |arguments: &[&str]| times_told(folder, arguments);
        assert_eq!(told(&["run", "flow.yaml", "--session-id", "s", "--no-input"]), 2, "{name}");
        assert_eq!((told(&["show", "s"]), told(&["why", "s", node])), (1, 1), "{name}");
        inspan(folder, &["digest"]).prints(", 1 tool call was denied");
    }
}

#[test]
fn what_was_denied_before_a_pause_is_in_the_output_and_in_the_recording() {
    let folder = &flow_folder(&format!(
        "
flow: {{ name: paused }}
nodes:
  - {{ id: a, type: scripted.agent, input: {{ prompt: x, options: {{ turns: [[{DENIED}, hang], [{DENIED}]] }} }} }}
  - {{ id: b, type: echo, dependsOn: [a], when: a.permissionDenials, input: {{ text: told }} }}
"
    ));
    let first = ["run", "flow.yaml", "--session-id", "s", "--no-input", "--record", "tapes"];
    let first = program(folder, &first).spawn().unwrap();
    let has = |event: &str| inspan(folder, &["logs", "s", "--json", "--type", event]).stdout.contains(event);
    until("the call was denied", || has("agent:tool:complete"));
    inspan(folder, &["pause", "s"]).expect(0);
    ended(folder, first).expect(7);
    let told = |arguments: &[&str]| times_told(folder, arguments);
    assert_eq!((told(&["show", "s"]), told(&["why", "s", "a"])), (1, 1));
    let outputs = |arguments: &[&str]| inspan(folder, arguments).expect(0).json()["outputs"].clone();
    let both = outputs(&["resume", "s", "--no-input", "--json"]);
    let ids = ["tool-1-1", "tool-2-1"]
        .map(|id| json!({ "toolName": "Bash", "toolUseId": id, "toolInput": { "command": "rm" } }));
    assert_eq!((&both["a"]["permissionDenials"], &both["b"]["text"]), (&json!(ids), &json!("told")));
    assert_eq!(told(&["why", "s", "a"]), 2);
    inspan(folder, &["digest"]).prints(", 2 tool calls were denied");
    let again = outputs(&["run", "flow.yaml", "--session-id", "r", "--replay", "tapes", "--json"]);
    assert_eq!(again["a"]["permissionDenials"], both["a"]["permissionDenials"]);
    for session in ["s", "r"] {
        inspan(folder, &["show", session]).prints("⚠ denied: Bash rm; Bash rm\n");
    }
}

#[test]
fn a_flow_that_was_killed_or_stopped_within_a_tool_does_not_run_it_again() {
    for (name, message) in [("KILL", "the call was interrupted"), ("INT", "the call was stopped")] {
        let server = server([Turn::tool("mcp__herd__hang", json!({})), Turn::text("Back.")]);
        let folder = &folder("allowedTools: [mcp__herd]");
        let log = folder.join("herd.log");
        let mut child: Child =
            command(folder, &server, &["run", "flow.yaml", "--session-id", "s"]).spawn().unwrap();
        until("the tool hangs", || fs::read_to_string(&log).is_ok_and(|log| log.contains("hang")));
        let pids = folder.join("herd.pids");
        until("its child is noted", || fs::read_to_string(&pids).is_ok_and(|pids| pids.lines().count() == 2));
        signal(&child, name);
        child.wait().unwrap();
        until("no process of the server is left", || running_servers(folder).is_empty());
        run(folder, &server, &["resume", "s", "--json"]).expect(0);
        let answered = answers(&server, 1);
        assert!(answered.len() == 1 && answered[0].starts_with(message), "{name}: {answered:?}");
        assert_eq!(fs::read_to_string(&log).unwrap().matches("hang").count(), 1, "{name}");
        until("no process of the server is left", || running_servers(folder).is_empty());
    }
}

#[test]
fn a_server_that_does_not_start_fails_the_flow_by_its_name() {
    let server = server([Turn::text("never")]);
    let folder = &folder("maxTurns: 5");
    fs::write(folder.join("herd.sh"), "echo lost $HERD_TOKEN >&2; exit 4").unwrap();
    let ran = run(folder, &server, &["run", "flow.yaml"]);
    assert_eq!((ran.code, server.requests().len()), (Some(1), 0));
    let message = "the MCP server `herd` ended with exit code 4; it said: lost [redacted HERD_TOKEN]";
    assert!(ran.stderr.contains(message), "{}", ran.stderr);
}

#[tokio::test]
async fn a_flow_of_a_program_calls_its_functions_within_the_turns_of_the_whole_run() {
    let flow = "
flow: { name: counted }
nodes:
  - id: a
    type: anthropic.agent
    input:
      prompt: how many?
      options: { maxTurns: 3, allowedTools: [count], outputSchema: { type: object, required: [oxen] } }
";
    let call = || Turn::tool("count", json!({}));
    // The answer does not fit, and fixing it has one turn of three left.
    let server = server([call(), Turn::text("many"), call(), Turn::text("never")]);
    let folder = &folder_with(&[]);
    let env = [
        ("ANTHROPIC_API_KEY", "none".to_owned()),
        ("ANTHROPIC_BASE_URL", server.base_url()),
        ("INSPAN_HOME", folder.display().to_string()),
    ];
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&calls);
    let tool = FnTool::new("count", "Counts.", json!({}), move |_, _| {
        counted.fetch_add(1, Ordering::SeqCst);
        async { Ok(ToolOutput::text("16")) }
    });
    let nodes = builtin_nodes(&inspan_providers::builtin().into_iter().collect());
    let compiled = compile(&Loaded::from_text("flow.yaml", flow, BTreeMap::new()), &nodes).unwrap();
    let runner = FlowRunner::builder(Arc::new(compiled.graph), nodes)
        .env(env.map(|(name, value)| (name.to_owned(), value)).into_iter().collect())
        .tools(HostTools::default().with(tool))
        .build();
    let result = runner.run(Map::new()).await.unwrap();
    assert_eq!(
        (result.outcome, server.requests().len(), calls.load(Ordering::SeqCst)),
        (Outcome::Failed, 3, 1)
    );
    let answered = answers(&server, 1);
    assert_eq!(answered, ["16"]);
}
