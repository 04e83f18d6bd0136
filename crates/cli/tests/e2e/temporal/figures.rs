//! How long things take on a cluster: an attempt, a pause, and the attempt after a worker was killed.
#![expect(clippy::print_stdout, reason = "figures are printed")]

use std::time::Duration;

use anyhow::ensure;
use inspan_testkit::{Sandbox, Stopwatch, eventually};
use serde_json::json;

use super::{
    cluster::{Cluster, HEARTBEAT, kill},
    commands::{SOON, begun, sleeper},
};

/// The bounds of a program built for tests on a busy machine, not the figures of `docs/fleet.md`.
const ATTEMPT: Duration = Duration::from_millis(1_000);
const PAUSE: Duration = Duration::from_secs(3);
const RESTART: Duration = Duration::from_secs(HEARTBEAT + 4);

/// How many nodes the chain has.
const CHAIN: usize = 20;

pub(in super::super) fn figures(sandbox: &mut Sandbox) -> anyhow::Result<()> {
    let cluster = Cluster::start(sandbox)?;
    let worker = cluster.worker()?;
    let sandbox = cluster.sandbox;

    let nodes = (0..CHAIN).map(|number| {
        let before: Vec<_> = number.checked_sub(1).map(|before| format!("n{before}")).into_iter().collect();
        json!({ "id": format!("n{number}"), "type": "exec", "dependsOn": before, "input": { "argv": ["true"] } })
    });
    let chain = json!({ "name": "chain", "nodes": nodes.collect::<Vec<_>>() });
    let result = sandbox.run_flow(&chain, &["--session-id", "chain"])?.expect(0)?.json()?;
    let took = Duration::from_millis(result["durationMs"].as_u64().unwrap_or(u64::MAX));
    let each = took / CHAIN as u32;
    println!("    one of {CHAIN} nodes in a chain: {each:?}");
    ensure!(each < ATTEMPT, "an attempt takes {each:?}");

    let work = json!({ "name": "work", "nodes": [sleeper("work", "600")] });
    let running = sandbox.start_flow(&work, &["--session-id", "paused"])?;
    begun(sandbox, 1)?;
    let watch = Stopwatch::start();
    sandbox.run(&["pause", "paused"])?.expect_code(0)?;
    let is_gone = || Ok(!sandbox.processes().values().any(|line| line == "sleep 600"));
    eventually(SOON, "the program has ended", is_gone)?;
    let paused = watch.elapsed();
    println!("    from `pause` to the end of the program: {paused:?}");
    running.finish()?.expect_code(7)?;
    ensure!(paused < PAUSE, "a pause takes {paused:?}");

    let running = sandbox.start_flow(&work, &["--session-id", "killed"])?;
    begun(sandbox, 2)?;
    let other = cluster.worker()?;
    let watch = Stopwatch::start();
    kill(worker)?;
    begun(sandbox, 3)?;
    let restarted = watch.elapsed();
    println!("    from `kill -9` to the next attempt: {restarted:?}");
    sandbox.run(&["stop", "killed"])?.expect_code(0)?;
    running.finish()?.expect_code(130)?;
    ensure!(restarted < RESTART, "a restart takes {restarted:?}");
    cluster.end(vec![other])
}
