//! Workers that stop by a signal or receive nothing from the server: their agents end before others begin.
#![expect(clippy::print_stdout, reason = "figures are printed")]

use std::{fs, time::Duration};

use anyhow::ensure;
use inspan_protocol::Event;
use inspan_testkit::{Sandbox, Stopwatch, eventually, pause};
use rustix::process::Signal;
use serde_json::json;

use super::{
    super::checks::{same, scenario},
    agents::{alone, alone_until, asked, at_work, conversations, programs, talkers},
    cluster::{Cluster, signal},
    commands::{SOON, begun, sleeper},
    kills::attempts,
};

/// After how many seconds a worker counts as lost here: what is given up starts again long before.
const LONG: u64 = 8;
/// How long it may take until what was given up starts again, on a busy machine.
const MOVED: Duration = Duration::from_secs(5);

/// What a case with an agent that talks slowly expects of its model: the finished agent is asked
/// once, and the other one gets the message to continue in its conversation.
const FIRST: &str = "user: role=slow. Talk.";

fn asked_once(server: &inspan_model_server::ModelServer) -> anyhow::Result<()> {
    same("what the finished agent was asked", &asked(server, "role=one. Work.").len(), &1)?;
    let expected = [FIRST, "user: continue"].map(str::to_owned).to_vec();
    same("what was asked in the conversation", &asked(server, "role=slow. Talk."), &expected)
}

/// A worker gets the signal to stop, and then again, and gives an agent and a command to another worker.
pub(in super::super) fn worker_stops(sandbox: &mut Sandbox) -> anyhow::Result<()> {
    let mut command = sleeper("three", "3");
    command["dependsOn"] = json!(["one"]);
    let (model, flow) = talkers(command);
    let server = scenario(sandbox, model)?;
    let cluster = Cluster::with_heartbeat(sandbox, LONG)?;
    let first = cluster.worker()?;
    let sandbox = cluster.sandbox;
    sandbox.write("flow.yaml", &flow.to_string())?;
    cluster.detach("flow.yaml", "s")?;
    at_work(&cluster, &server, "s", [1, 2])?;
    begun(sandbox, 1)?;
    let other = cluster.worker()?;
    let watch = Stopwatch::start();
    signal(&first, Signal::TERM)?;
    begun(sandbox, 2)?;
    let moved = watch.elapsed();
    first.finish()?.expect_code(0)?;
    println!(
        "    from SIGTERM to the next attempt {moved:?}, to the end of the worker {:?}",
        watch.elapsed()
    );
    ensure!(moved < MOVED, "it took {moved:?} until the attempts began again");
    alone_until(&cluster, "s", "success")?;
    asked_once(&server)?;
    let log = cluster.log("s")?;
    let told = log.iter().filter(|event| matches!(event.event, Event::TaskInterrupted { stopped: true, .. }));
    same("the attempts of which the log says that their worker was stopped", &told.count(), &2)?;
    let tried: Vec<_> = attempts(&log)?.into_values().collect();
    same("the attempts of one, three and two", &tried, &vec![1, 2, 2])?;

    // What does not end when it is asked to: the second signal ends the worker at once.
    let script = "trap '' TERM INT; echo deaf >> begun; for n in 1 2 3 4 5 6; do sleep 1; done";
    let deaf = json!({ "name": "deaf", "nodes": [
        { "id": "deaf", "type": "exec", "input": { "argv": ["sh", "-c", script] } },
    ] });
    sandbox.write("deaf.yaml", &deaf.to_string())?;
    cluster.detach("deaf.yaml", "deaf")?;
    begun(sandbox, 3)?;
    signal(&other, Signal::TERM)?;
    // What comes sooner is the same signal.
    pause(Duration::from_millis(300));
    signal(&other, Signal::TERM)?;
    let watch = Stopwatch::start();
    let ended = other.finish()?;
    println!(
        "    from the second SIGTERM to the end of the worker {:?}, with code {}",
        watch.elapsed(),
        ended.code
    );
    eventually(Duration::from_secs(2), "no program is left of it", || {
        Ok(!sandbox.processes().values().any(|line| line.contains("deaf >> begun")))
    })?;
    cluster.end(Vec::new())
}

/// The server is away for longer than a worker may be silent: the agent has ended before another one continues.
pub(in super::super) fn long_outage(sandbox: &mut Sandbox) -> anyhow::Result<()> {
    let (model, flow) = talkers(sleeper("three", "0"));
    let server = scenario(sandbox, model)?;
    let mut cluster = Cluster::start(sandbox)?;
    let workers = vec![cluster.worker()?, cluster.worker()?];
    cluster.sandbox.write("flow.yaml", &flow.to_string())?;
    cluster.detach("flow.yaml", "s")?;
    at_work(&cluster, &server, "s", [1, 2])?;
    let talks = conversations(&cluster.log("s")?).remove("two").unwrap_or_default();
    let is_there = |cluster: &Cluster<'_>| programs(cluster.sandbox).iter().any(|one| talks.contains(one));
    ensure!(is_there(&cluster), "the agent is not at work: {talks:?}");
    cluster.kill_server()?;
    eventually(SOON, "the agent has ended", || Ok(!is_there(&cluster)))?;
    cluster.restart_server()?;
    alone_until(&cluster, "s", "success")?;
    asked_once(&server)?;
    cluster.end(workers)
}

/// A worker is frozen for longer than it may be silent, and then continues. Another worker of the machine waits until its
/// agent has ended, and only then resumes the conversation.
pub(in super::super) fn frozen_worker(sandbox: &mut Sandbox) -> anyhow::Result<()> {
    let (model, flow) = talkers(sleeper("three", "0"));
    let server = scenario(sandbox, model)?;
    let cluster = Cluster::start(sandbox)?;
    let first = cluster.worker()?;
    cluster.sandbox.write("flow.yaml", &flow.to_string())?;
    cluster.detach("flow.yaml", "s")?;
    at_work(&cluster, &server, "s", [1, 2])?;
    let other = cluster.worker()?;
    signal(&first, Signal::STOP)?;
    eventually(SOON, "the other worker waits for the lock", || {
        alone(cluster.sandbox)?;
        Ok(fs::read_to_string(&other.stderr)?.contains("another worker of this machine still runs it"))
    })?;
    same("the turns", &asked(&server, "role=slow. Talk.").len(), &1)?;
    signal(&first, Signal::CONT)?;
    alone_until(&cluster, "s", "success")?;
    asked_once(&server)?;
    cluster.end(vec![first, other])
}
