//! Flows whose agents ask the Responses API, against the scripted model server.

use std::fs;

use inspan_model_server::{Block, Turn};
use inspan_testkit::MCP_SERVER;
use serde_json::{Value, json};

use crate::api_agents::{Api, files, folder, server};
use crate::program::ran;

const API: Api = Api {
    provider: "openai",
    key: ("OPENAI_API_KEY", "sk-proj-planted-0123456789"),
    address: ("OPENAI_BASE_URL", "/v1"),
    model: "gpt-5-mini",
    said: "input",
};

#[test]
fn a_flow_of_three_agents_mends_its_output_and_goes_on_in_a_conversation() {
    let reviewed = API.a_flow_of_three_agents_mends_its_output_and_goes_on_in_a_conversation();
    let again = &reviewed.outputs["again"];
    assert_eq!((&again["text"], &again["content"]), (&json!("Oxen pull well."), &json!("Oxen pull well.")));
    assert_eq!(
        (&again["threadId"], &again["sessionId"]),
        (&reviewed.outputs["write"]["threadId"], &again["threadId"])
    );
    let asked = |request: usize| &reviewed.requests[request].body;
    assert_eq!(asked(3)["instructions"], "You write.");
    assert_eq!(asked(1)["reasoning"], json!({ "effort": "minimal", "summary": "auto" }));
}

#[test]
fn an_overloaded_server_is_asked_again_by_the_flow_and_by_nobody_else() {
    API.an_overloaded_server_is_asked_again_by_the_flow_and_by_nobody_else();
}

#[test]
fn a_flow_that_was_interrupted_or_killed_goes_on_in_its_conversation() {
    API.a_flow_that_was_interrupted_or_killed_goes_on_in_its_conversation();
}

#[test]
fn what_is_missing_or_not_offered_is_said_before_anything_starts() {
    API.what_is_missing_or_not_offered_is_said_before_anything_starts();
}

#[test]
fn an_agent_of_a_flow_calls_the_tools_of_a_server() {
    let flow = "
flow: { name: tools }
nodes:
  - id: a
    type: openai.agent
    input:
      prompt: hello
      options:
        allowedTools: [mcp__herd__say]
        mcpServers: { herd: { command: sh, args: [herd.sh], env: { HERD_TOKEN: '${HERD_TOKEN}' } } }
";
    let call = |name: &str| Block::tool(name, json!({ "text": "moo" }));
    let calls = Turn { blocks: vec![call("mcp__herd__say"), call("mcp__herd__count")], ..Turn::default() };
    let server = server([calls, Turn::text("Heard.")]);
    let folder = folder(flow);
    fs::write(folder.path().join("herd.sh"), MCP_SERVER).unwrap();
    let arguments = ["run", "flow.yaml", "--json", "--events", "events.jsonl"];
    let mut command = API.command(folder.path(), &server, &arguments);
    let ran = ran(folder.path(), command.env("HERD_TOKEN", "planted-herd-token"));
    assert_eq!(ran.code, Some(0), "{}{}", ran.stdout, ran.stderr);
    let result: Value = serde_json::from_str(&ran.stdout).unwrap();
    let output = &result["outputs"]["a"];
    assert_eq!((&output["content"], &output["numTurns"]), (&json!("Heard."), &json!(2)));
    // There is no person to ask for the other.
    assert_eq!(output["permissionDenials"][0]["toolName"], "mcp__herd__count");
    let events = fs::read_to_string(folder.path().join("events.jsonl")).unwrap();
    assert_eq!(events.matches("agent:tool:complete").count(), 2, "{events}");
    let mut kept = ran.stdout;
    files(folder.path(), &mut kept);
    assert!(kept.contains("Heard.") && !kept.contains("planted-herd-token"), "{kept}");
}
