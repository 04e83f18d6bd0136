//! The agent CLIs without `inspan`, and the cases that are the same for every provider: the conformance suite, and one flow
//! whose log has one shape.

use anyhow::{Context as _, ensure};
use inspan_conformance::{THREE_NODES, TargetContext, shape};
use inspan_model_server::ModelServer;
use inspan_protocol::Environment;
use inspan_testkit::{Agent, Sandbox};
use serde_json::{Value, json};

use super::checks::{ended, main_requests, output_of, same, says, serve};

/// A shell command by whichever tool the agent has for it, then an answer to what it printed.
fn turns() -> [Value; 2] {
    let shell = json!({ "type": "shell", "command": "echo printed-$((40 + 2))" });
    let printed = json!({ "lastMessageContains": "printed-42" });
    let mut last = says("All done.");
    last["when"] = printed;
    [json!({ "blocks": [shell] }), last]
}

pub(super) fn codex(sandbox: &mut Sandbox) -> anyhow::Result<()> {
    let server = serve(sandbox, &turns())?;
    let free = ["-c", "approval_policy=never", "-c", "sandbox_mode=danger-full-access"];
    let arguments = [&["exec", "--json", "--skip-git-repo-check"], &free[..], &["Run it."]].concat();
    let run = sandbox.run_agent(Agent::Codex, &arguments, "")?;
    run.expect_code(0)?;
    ensure!(run.stdout.contains("All done."), "the answer is missing: {run}");
    same("the requests", &main_requests(&server).len(), &2)
}

pub(super) fn opencode(sandbox: &mut Sandbox) -> anyhow::Result<()> {
    let server = serve(sandbox, &turns())?;
    let run = sandbox.run_agent(Agent::OpenCode, &["run", "--format", "json", "Run it."], "")?;
    run.expect_code(0)?;
    ensure!(run.stdout.contains("All done."), "the answer is missing: {run}");
    same("the requests", &main_requests(&server).len(), &2)
}

pub(super) fn claude_acp(sandbox: &mut Sandbox) -> anyhow::Result<()> {
    let initialize = json!({
        "jsonrpc": "2.0",
        "id": 1,
        "method": "initialize",
        "params": { "protocolVersion": 1, "clientCapabilities": {} }
    });
    let run = sandbox.run_agent(Agent::ClaudeAcp, &[], &format!("{initialize}\n"))?;
    run.expect_code(0)?;
    let line = run.stdout.lines().next().with_context(|| format!("it said nothing: {run}"))?;
    let answer: Value = serde_json::from_str(line)?;
    same("the version", &answer["result"]["agentInfo"]["version"], &json!(Agent::ClaudeAcp.version()))
}

/// `inspan doctor` finds every program and every key, and each of them answers.
pub(super) fn greeted(sandbox: &mut Sandbox) -> anyhow::Result<()> {
    let server = serve(sandbox, &[says("never asked")])?;
    let (code, stdout, stderr) = output_of(sandbox, &["doctor", "--json"])?;
    let output: Value =
        serde_json::from_str(&stdout).with_context(|| format!("no report: {stdout}{stderr}"))?;
    let rows = ["programs", "services"].map(|key| output[key].as_array().cloned().unwrap_or_default());
    let greeted: Vec<String> = rows
        .into_iter()
        .flatten()
        .filter(|row| row["handshake"].is_object())
        .map(|row| format!("{}: {}", row["provider"], row["handshake"]["problem"]))
        .collect();
    let all = ["claude", "codex", "opencode", "anthropic", "openai"].map(|name| format!("\"{name}\": null"));
    same("who was greeted", &greeted, &all.to_vec())?;
    same("the exit code", &code, &0)?;
    same("what the model was asked", &main_requests(&server).len(), &0)
}

/// `inspan doctor --conformance` finds no failure.
pub(super) fn conformance(sandbox: &mut Sandbox, target: &str) -> anyhow::Result<()> {
    let (code, stdout, stderr) = output_of(sandbox, &["doctor", "--conformance", target, "--json"])?;
    let output: Value =
        serde_json::from_str(&stdout).with_context(|| format!("no report: {stdout}{stderr}"))?;
    let rows = output["reports"]
        .as_array()
        .into_iter()
        .flatten()
        .flat_map(|report| report["rows"].as_array().cloned().unwrap_or_default());
    let failed: Vec<String> = rows
        .filter(|row| row["outcome"] == "failed")
        .map(|row| format!("{}: {}", row["behaviour"], row["finding"]))
        .collect();
    ensure!(failed.is_empty(), "{}", failed.join("\n"));
    same("the exit code", &code, &0)?;
    same("the reports", &output["reports"].as_array().map(Vec::len), &Some(1))
}

/// The flow that every provider runs leaves a log of the shape that all leave.
pub(super) fn three_nodes(sandbox: &mut Sandbox, target: &str) -> anyhow::Result<()> {
    let (flow, _server) = serve_three_nodes(sandbox, target)?;
    let run = sandbox.run_flow(&flow, &[])?;
    ended(&run, 0, "success")?;
    let expected: Vec<String> = THREE_NODES.iter().map(|&line| line.to_owned()).collect();
    same("the shape of the log", &shape(&run.events), &expected)
}

/// The flow that every provider runs, for this target, and the model server that its agents ask.
pub(super) fn serve_three_nodes(sandbox: &mut Sandbox, target: &str) -> anyhow::Result<(Value, ModelServer)> {
    let target = inspan_conformance_targets::find(target)
        .into_iter()
        .next()
        .with_context(|| format!("no target `{target}`"))?;
    let provider = target.provider().descriptor().provider_type;
    let (flow, scenario) = inspan_conformance::three_nodes(&provider, &target.options());
    let server = sandbox.serve(target.scenario(scenario))?;
    let caller_env: Environment = sandbox.env().clone().into_iter().collect();
    let folder = sandbox.work().join("vendor");
    std::fs::create_dir(&folder)?;
    let context = TargetContext { server: &server.base_url(), folder: &folder, caller_env: &caller_env };
    for (name, value) in target.environment(&context) {
        sandbox.set(&name, &value);
    }
    Ok((flow, server))
}
