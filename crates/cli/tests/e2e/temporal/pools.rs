//! Pools of machines, and what `inspan doctor` reports about a cluster.

use std::fs;

use anyhow::ensure;
use inspan_testkit::{Sandbox, eventually};
use serde_json::{Value, json};

use super::{
    super::checks::same,
    cluster::Cluster,
    commands::{SOON, begun, sleeper},
};

/// What `inspan doctor` reports about the cluster.
fn engine(sandbox: &Sandbox) -> anyhow::Result<Value> {
    let doctor = sandbox.run(&["doctor", "--offline", "--json"])?;
    let report: Value = serde_json::from_str(&doctor.stdout)?;
    Ok(report["engine"].clone())
}

pub(in super::super) fn pools(sandbox: &mut Sandbox) -> anyhow::Result<()> {
    let mut cluster = Cluster::start(sandbox)?;
    let sandbox = cluster.sandbox;
    same("the workers", &engine(sandbox)?["workers"], &json!([]))?;

    let mut drawn = sleeper("draw", "0");
    drawn["pool"] = json!("gpu");
    drawn["dependsOn"] = json!(["plan"]);
    let flow = json!({ "name": "pools", "nodes": [sleeper("plan", "0"), drawn] });
    let gpu = cluster.worker_with(&["--pool", "gpu", "--pool", "gpu", "--machine", "one"])?;
    let nameless = sandbox.run(&["worker", "--machine", " "])?;
    nameless.expect_code(2)?;
    ensure!(nameless.stderr.contains("the name of a machine cannot be empty"), "{nameless}");
    let is_known = || Ok(engine(sandbox)?["workers"].as_array().is_some_and(|workers| workers.len() == 1));
    eventually(SOON, "the server knows the worker", is_known)?;
    let running = sandbox.start_flow(&flow, &["--session-id", "pools"])?;
    let warned = |pool: &str| {
        let wrote = fs::read_to_string(&running.stderr)?;
        Ok(wrote.contains(&format!("no worker takes nodes of the pool `{pool}` now")))
    };
    eventually(SOON, "the pool without a worker is named", || warned("default"))?;
    ensure!(!warned("gpu")?, "the pool with a worker was named");
    // The worker of the other pool decides for the session, and takes nothing.
    cluster.wait_for("pools", "running", SOON)?;
    ensure!(!sandbox.path("begun").exists(), "the worker of `gpu` took a node without a pool");
    let plain = cluster.worker_with(&["--machine", "two"])?;
    begun(sandbox, 2)?;
    same("the outcome", &running.finish()?.expect(0)?.json()?["outcome"], &json!("success"))?;

    let version = env!("CARGO_PKG_VERSION");
    let worker = |name: &str, pools: &str| format!("{name}, inspan {version}, pools {pools}, 16 slots");
    let workers = engine(sandbox)?["workers"].clone();
    let workers = workers.as_array().into_iter().flatten().filter_map(Value::as_str);
    let without_process = |worker: &str| {
        let parts = worker.split(", ").filter(|part| !part.starts_with("process "));
        parts.collect::<Vec<_>>().join(", ")
    };
    let workers: Vec<_> = workers.map(without_process).collect();
    same("the workers", &workers, &vec![worker("one", "gpu"), worker("two", "default")])?;
    // What waits for a pool without a worker is not waited for.
    let mut waiting = sleeper("wait", "0");
    waiting["pool"] = json!("nobodys");
    let flow = sandbox.flow(&json!({ "name": "nobodys", "nodes": [waiting] }))?.display().to_string();
    for (command, state) in [("pause", "paused"), ("stop", "stopped")] {
        cluster.detach(&flow, state)?;
        cluster.wait_for(state, "running", SOON)?;
        let waits = || Ok(cluster.show(state)?["waitingForWorker"] == json!(["wait"]));
        eventually(SOON, "the node waits for a worker", waits)?;
        for arguments in [&["ps"][..], &["show", state], &["why", state]] {
            let said = sandbox.run(arguments)?;
            said.expect_code(0)?;
            ensure!(said.to_string().contains("a worker for wait"), "{arguments:?}: {said}");
        }
        sandbox.run(&[command, state])?.expect_code(0)?;
        same("the state", &cluster.show(state)?["state"], &json!(state))?;
    }
    // Nobody sends the notifications of what runs without a command that shows it.
    let silent = sandbox.run(&["doctor", "--offline"])?;
    ensure!(!silent.stdout.contains("workers send nothing"), "{silent}");
    let channel = "[channels.script]\ntype = \"command\"\nargv = [\"true\"]\n";
    fs::write(sandbox.path("inspan.toml"), channel)?;
    let detached = sandbox.run(&["run", &flow, "--session-id", "unsent", "--detach"])?;
    detached.expect_code(0)?;
    ensure!(detached.stderr.contains("keep `inspan notify deliver` or `inspan serve` running"), "{detached}");
    let doctor = sandbox.run(&["doctor", "--offline"])?;
    ensure!(doctor.stdout.contains("workers send nothing"), "{doctor}");
    sandbox.run(&["stop", "unsent"])?.expect_code(0)?;
    cluster.kill_server()?;
    let problem = engine(cluster.sandbox)?["problem"].to_string();
    ensure!(problem.contains("does not answer"), "the problem is {problem}");
    cluster.restart_server()?;
    cluster.end(vec![gpu, plain])
}
