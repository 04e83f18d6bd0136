//! The interfaces with the programs that use them: the real Claude Code and the real Codex as MCP clients of
//! `inspan mcp`, over standard input and output and over HTTP, and an editor made of the public SDK of the Agent
//! Client Protocol for `inspan acp`.

use std::process::Command;

use anyhow::{Context as _, ensure};
use inspan_model_server::ModelServer;
use inspan_testkit::{Agent, Finished, RunningProcess, Sandbox};
use serde_json::{Value, json};

use super::checks::{first_line, main_requests, output_of, same, says, serve};

/// A flow that asks a person.
const GREET: &str = r#"
flow: { name: greet, description: Greets somebody., input: { who: world }, outputs: { greeting: "{{ say.stdout }}" } }
nodes:
  - { id: how, type: human.input, input: { prompt: "How?", choices: [hello, bye] } }
  - { id: say, type: exec, dependsOn: [how], input: { argv: [echo, "{{ how.choice }} {{ flow.input.who }}"] } }
"#;

/// A model that starts the flow as a tool, answers its question, waits, and says so.
fn model(sandbox: &mut Sandbox) -> anyhow::Result<ModelServer> {
    let call = |name: &str, input: Value| json!({ "blocks": [{ "type": "tool_use", "name": format!("mcp__inspan__{name}"), "input": input }] });
    // There is one session, so the beginning that all ids have names it.
    let turns = [
        call("greet", json!({ "who": "oxen" })),
        call("session_reply", json!({ "session": "flow-", "answer": "hello" })),
        call("session_wait", json!({ "session": "flow-" })),
        says("They are greeted."),
    ];
    serve(sandbox, &turns)
}

/// The arguments of the server, whose environment is the client's choice.
fn arguments(sandbox: &Sandbox) -> anyhow::Result<Vec<String>> {
    sandbox.write("greet.yaml", GREET)?;
    let store = sandbox.home().join("sessions.db");
    let text = |path: &std::path::Path| path.display().to_string();
    Ok(vec![
        "mcp".to_owned(),
        "--flows".to_owned(),
        text(&sandbox.work()),
        "--store".to_owned(),
        text(&store),
    ])
}

/// The model got the question and then the result, and a shell sees the session.
fn proved(sandbox: &Sandbox, server: &ModelServer) -> anyhow::Result<()> {
    let requests: Vec<String> =
        main_requests(server).iter().map(|request| request.body.to_string()).collect();
    same("the requests", &requests.len(), &4)?;
    ensure!(
        requests[1].contains("waits for a person"),
        "the model was not told of the question: {}",
        requests[1]
    );
    let end: String = requests[3].chars().skip(requests[3].chars().count().saturating_sub(3000)).collect();
    ensure!(requests[3].contains(r"hello oxen"), "the model was not told the result: …{end}");
    let (code, listed, _) = output_of(sandbox, &["ps", "--all", "--json"])?;
    let listed: Value = serde_json::from_str(&listed).with_context(|| listed.clone())?;
    let sessions: Vec<_> =
        listed.as_array().into_iter().flatten().map(|one| json!([one["flow"], one["state"]])).collect();
    same("the sessions", &(code, sessions), &(0, vec![json!(["greet", "success"])]))
}

/// `inspan mcp --http`, and what a client needs for it.
pub(super) struct HttpServer {
    process: RunningProcess,
    pub(super) url: String,
    pub(super) token: String,
}

impl HttpServer {
    /// Serves the flows of the working folder.
    fn start(sandbox: &Sandbox) -> anyhow::Result<Self> {
        Self::start_for(sandbox, ".")
    }

    pub(super) fn start_for(sandbox: &Sandbox, flows: &str) -> anyhow::Result<Self> {
        let process = sandbox.start(sandbox.command(&["mcp", "--http", "127.0.0.1:0", "--flows", flows]))?;
        let url = first_line(&process, "/mcp")?;
        let token = std::fs::read_to_string(sandbox.home().join("server-token"))?.trim().to_owned();
        Ok(Self { process, url, token })
    }

    /// The configuration of Claude Code for it.
    pub(super) fn claude(&self) -> Value {
        let headers = json!({ "Authorization": format!("Bearer {}", self.token) });
        json!({ "type": "http", "url": self.url, "headers": headers })
    }

    pub(super) fn stop(self) -> anyhow::Result<()> {
        self.process.interrupt()?;
        self.process.finish()?.expect_code(0).map(drop)
    }
}

/// Claude Code with this server may call these tools.
pub(super) fn claude(
    sandbox: &Sandbox,
    server: &Value,
    tools: &[&str],
    prompt: &str,
) -> anyhow::Result<Vec<String>> {
    sandbox.write("mcp.json", &json!({ "mcpServers": { "inspan": server } }).to_string())?;
    let allowed: Vec<String> = tools.iter().map(|name| format!("mcp__inspan__{name}")).collect();
    let config = sandbox.path("mcp.json").display().to_string();
    let words = ["-p", prompt, "--mcp-config", &config, "--allowedTools", &allowed.join(",")];
    Ok(words.map(str::to_owned).to_vec())
}

fn claude_greets(sandbox: &Sandbox, model: &ModelServer, server: &Value) -> anyhow::Result<()> {
    let tools = ["greet", "session_reply", "session_wait"];
    let words = claude(sandbox, server, &tools, "role=user. Greet the oxen.")?;
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    greeted(sandbox, model, &sandbox.run_agent(Agent::Claude, &words, "")?)
}

fn codex_greets(sandbox: &Sandbox, model: &ModelServer, settings: [(&str, Value); 2]) -> anyhow::Result<()> {
    let [first, second] = settings.map(|(key, value)| format!("mcp_servers.inspan.{key}={value}"));
    let bypass = "--dangerously-bypass-approvals-and-sandbox";
    let words =
        ["exec", "--skip-git-repo-check", bypass, "-c", &first, "-c", &second, "role=user. Greet the oxen."];
    greeted(sandbox, model, &sandbox.run_agent(Agent::Codex, &words, "")?)
}

fn greeted(sandbox: &Sandbox, model: &ModelServer, run: &Finished) -> anyhow::Result<()> {
    run.expect_code(0)?;
    same("the last words", &run.stdout.trim(), &"They are greeted.")?;
    proved(sandbox, model)
}

pub(super) fn mcp_claude(sandbox: &mut Sandbox) -> anyhow::Result<()> {
    let model = model(sandbox)?;
    let server = json!({ "command": env!("CARGO_BIN_EXE_inspan"), "args": arguments(sandbox)? });
    claude_greets(sandbox, &model, &server)
}

pub(super) fn mcp_claude_http(sandbox: &mut Sandbox) -> anyhow::Result<()> {
    let model = model(sandbox)?;
    sandbox.write("greet.yaml", GREET)?;
    let server = HttpServer::start(sandbox)?;
    claude_greets(sandbox, &model, &server.claude())?;
    server.stop()
}

pub(super) fn mcp_codex(sandbox: &mut Sandbox) -> anyhow::Result<()> {
    let model = model(sandbox)?;
    let command = json!(env!("CARGO_BIN_EXE_inspan"));
    codex_greets(sandbox, &model, [("command", command), ("args", json!(arguments(sandbox)?))])
}

pub(super) fn mcp_codex_http(sandbox: &mut Sandbox) -> anyhow::Result<()> {
    let model = model(sandbox)?;
    sandbox.write("greet.yaml", GREET)?;
    let server = HttpServer::start(sandbox)?;
    sandbox.set("INSPAN_TOKEN", &server.token);
    let token = ("bearer_token_env_var", json!("INSPAN_TOKEN"));
    codex_greets(sandbox, &model, [("url", json!(server.url)), token])?;
    server.stop()
}

/// An editor of the public SDK: it sends these prompts to a new conversation, or loads the one of a session.
pub(super) fn editor(sandbox: &Sandbox, prompts: &[&str], load: Option<&str>) -> anyhow::Result<Value> {
    sandbox.write("client.mjs", include_str!("interfaces/client.mjs"))?;
    // The SDK comes with the agent that is built on it: PACKAGE/dist/index.js is beside sdk/dist/v1/stable/acp.js.
    let agent = Agent::ClaudeAcp.installed()?;
    let scope = agent.ancestors().nth(3).context("the agent lies at an unknown place")?;
    let mut command = Command::new("node");
    command.arg(sandbox.path("client.mjs")).arg(scope.join("sdk/dist/v1/stable/acp.js")).arg(sandbox.work());
    command.arg(load.unwrap_or("new")).args(prompts).args(["--", env!("CARGO_BIN_EXE_inspan"), "acp"]);
    sandbox.enclose(&mut command);
    let run = sandbox.start(command)?.finish()?;
    run.expect_code(0)?;
    serde_json::from_str(run.stdout.trim()).with_context(|| run.to_string())
}

pub(super) fn acp_public_client(sandbox: &mut Sandbox) -> anyhow::Result<()> {
    sandbox.write("greet.yaml", GREET)?;
    let seen = editor(sandbox, &["/greet oxen", "hello", "/nothing"], None)?;
    let facts = json!([seen["agent"], seen["questions"], seen["stops"], seen["loaded"]]);
    // What a flow asks is no request for permission, which a client could answer by itself.
    let expected = json!(["inspan", [], ["end_turn", "end_turn", "end_turn"], true]);
    same("what the client saw", &facts, &expected)?;
    let text = seen["text"].as_str().unwrap_or_default();
    ensure!(
        text.contains("1. hello")
            && text.contains("hello oxen")
            && text.contains("There is no flow `nothing`."),
        "it was not told: {text}"
    );
    let kinds = ["available_commands_update", "plan", "tool_call", "tool_call_update", "agent_message_chunk"];
    let updates = seen["updates"].as_array().context("no updates came")?;
    ensure!(kinds.iter().all(|kind| updates.contains(&json!(kind))), "an update is missing: {updates:?}");
    let session = format!("{}-1", seen["sessionId"].as_str().unwrap_or_default());
    let (code, shown, _) = output_of(sandbox, &["show", &session])?;
    ensure!(code == 0 && shown.contains("greet"), "a shell does not see it: {shown}");
    Ok(())
}
