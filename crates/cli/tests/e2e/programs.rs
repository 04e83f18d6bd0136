//! The cases that are the same for every provider: the conformance suite, and one flow whose log has one shape.

use anyhow::{Context as _, ensure};
use inspan_conformance::{THREE_NODES, TargetContext, shape};
use inspan_model_server::ModelServer;
use inspan_protocol::Environment;
use inspan_testkit::{Finished, Sandbox};
use serde_json::Value;

use super::checks::{ended, main_requests, output_of, same, says, serve};

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
    has_the_shape(&sandbox.run_flow(&flow, &[])?)
}

/// The run of that flow has succeeded, and its log has the shape that all have.
pub(super) fn has_the_shape(run: &Finished) -> anyhow::Result<()> {
    ended(run, 0, "success")?;
    let expected: Vec<String> = THREE_NODES.iter().map(|&line| line.to_owned()).collect();
    same("the shape of the log", &shape(&run.events), &expected)
}

/// The flow that every provider runs, for this target, and the model server that its agents ask.
pub(super) fn serve_three_nodes(sandbox: &mut Sandbox, target: &str) -> anyhow::Result<(Value, ModelServer)> {
    let target = inspan_conformance_targets::find(target)
        .into_iter()
        .next()
        .with_context(|| format!("no target `{target}`"))?;
    let provider = (target.provider)().descriptor().provider_type;
    let (flow, scenario) = inspan_conformance::three_nodes(&provider, &(target.options)());
    let server = sandbox.serve(target.scenario(scenario))?;
    let caller_env: Environment = sandbox.env().clone().into_iter().collect();
    let folder = sandbox.work().join("vendor");
    std::fs::create_dir(&folder)?;
    let context = TargetContext { server: &server.base_url(), folder: &folder, caller_env: &caller_env };
    for (name, value) in target.variables(&context) {
        sandbox.set(&name, &value);
    }
    Ok((flow, server))
}
