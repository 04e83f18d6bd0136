//! Cases that are the same for every provider: the list of behaviours, and one flow whose log has one shape.

use anyhow::{Context as _, ensure};
use inspan_conformance::{Place, THREE_NODES, shape};
use inspan_protocol::Environment;
use inspan_testkit::Sandbox;
use serde_json::Value;

use super::checks::{ended, output_of, same};

/// `inspan doctor --conformance` finds nothing to complain of.
pub(super) fn list(sandbox: &mut Sandbox, rig: &str) -> anyhow::Result<()> {
    let (code, stdout, stderr) = output_of(sandbox, &["doctor", "--conformance", rig, "--json"])?;
    let told: Value =
        serde_json::from_str(&stdout).with_context(|| format!("no report: {stdout}{stderr}"))?;
    let rows = told["reports"]
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
    same("the reports", &told["reports"].as_array().map(Vec::len), &Some(1))
}

/// The flow that every provider runs leaves a log of the shape that all leave.
pub(super) fn three_nodes(sandbox: &mut Sandbox, target: &str) -> anyhow::Result<()> {
    let target = inspan_conformance_targets::find(target)
        .into_iter()
        .next()
        .with_context(|| format!("no target `{target}`"))?;
    let provider = target.provider().descriptor().provider_type;
    let (flow, scenario) = inspan_conformance::three_nodes(&provider, &target.options());
    let server = sandbox.serve(target.scenario(scenario))?;
    let outer: Environment = sandbox.env().clone().into_iter().collect();
    let folder = sandbox.work().join("vendor");
    std::fs::create_dir(&folder)?;
    let place = Place { server: &server.base_url(), folder: &folder, outer: &outer };
    for (name, value) in target.environment(&place) {
        sandbox.set(&name, &value);
    }
    let run = sandbox.run_flow(&flow, &[])?;
    ended(&run, 0, "success")?;
    let expected: Vec<String> = THREE_NODES.iter().map(|&line| line.to_owned()).collect();
    same("the shape of the log", &shape(&run.events), &expected)
}
