//! What people do with a session of a cluster: look at it, pause, resume, stop and answer it.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use inspan_testkit::{Sandbox, Stopwatch, eventually};
use serde_json::{Value, json};

use super::{
    super::checks::{count, same},
    cluster::{Cluster, kill},
};

/// How long a session may take for what it does at once, on a busy machine.
pub(super) const SOON: Duration = Duration::from_secs(30);

/// A node that appends a line to a file when it begins, and runs for so many seconds.
pub(super) fn sleeper(id: &str, seconds: &str) -> Value {
    let script = format!("echo {id} >> begun; exec sleep {seconds}");
    json!({ "id": id, "type": "exec", "input": { "argv": ["sh", "-c", script] } })
}

/// Waits until the nodes have begun so often in all.
pub(super) fn begun(sandbox: &Sandbox, times: usize) -> anyhow::Result<()> {
    eventually(SOON, &format!("{times} attempts have begun"), || {
        let lines = std::fs::read_to_string(sandbox.path("begun")).unwrap_or_default();
        Ok(lines.lines().count() >= times)
    })
}

/// What `ps` lists of a session.
pub(super) fn listed(sandbox: &Sandbox, session: &str) -> anyhow::Result<Value> {
    let list = sandbox.run(&["ps", "--all", "--json"])?.expect(0)?.json()?;
    let one = list.as_array().into_iter().flatten().find(|one| one["sessionId"] == session);
    one.cloned().with_context(|| format!("{session} is not in {list}"))
}

pub(in super::super) fn paused_and_resumed(sandbox: &mut Sandbox) -> anyhow::Result<()> {
    let cluster = Cluster::start(sandbox)?;
    let worker = cluster.worker()?;
    let sandbox = cluster.sandbox;
    let next = json!({ "id": "next", "type": "exec", "dependsOn": ["work"], "input": { "argv": ["true"] } });
    let flow = json!({ "name": "paused", "nodes": [sleeper("work", "4"), next] });
    let running = sandbox.start_flow(&flow, &["--session-id", "one"])?;
    begun(sandbox, 1)?;
    same("the state", &listed(sandbox, "one")?["state"], &json!("running"))?;
    let edited = json!({ "name": "paused", "nodes": [sleeper("work", "5")] });
    sandbox.flow(&edited)?;
    refused(sandbox, &["resume", "one", "--edited", "--session-id", "two"], "session `one` is run by")?;
    sandbox.flow(&flow)?;
    sandbox.run(&["pause", "one"])?.expect_code(0)?;
    let paused = running.finish()?.expect(7)?.json()?;
    same("the outcome", &paused["outcome"], &json!("paused"))?;
    same("the state", &listed(sandbox, "one")?["state"], &json!("paused"))?;
    same("what is shown", &cluster.show("one")?["state"], &json!("paused"))?;
    let asleep = |line: &String| line.contains("sleep 4");
    ensure!(!sandbox.processes().values().any(asleep), "the program of the paused session runs on");
    for arguments in [["--tell", "work=go"], ["--message", " "]] {
        let why = if arguments[0] == "--tell" {
            "no agent of node `work` was interrupted"
        } else {
            "the message is empty"
        };
        refused(sandbox, &[&["resume", "one"], &arguments[..]].concat(), why)?;
    }
    same("the state", &listed(sandbox, "one")?["state"], &json!("paused"))?;
    let resumed = sandbox.resume("one", &[])?.expect(0)?.json()?;
    same("the outcome", &resumed["outcome"], &json!("success"))?;
    let log = cluster.log("one")?;
    same("how often it was resumed", &count(&log, "flow:resumed"), &1)?;
    same("how often nodes have completed", &count(&log, "task:complete"), &2)?;
    sandbox.run(&["pause", "one"])?.expect_code(2)?;
    // What another session continues takes no command any more.
    let running = sandbox.start_flow(&flow, &["--session-id", "three"])?;
    begun(sandbox, 3)?;
    sandbox.run(&["pause", "three"])?.expect_code(0)?;
    running.finish()?.expect_code(7)?;
    sandbox.flow(&edited)?;
    sandbox.run(&["resume", "three", "--edited", "--session-id", "four"])?.expect_code(0)?;
    refused(sandbox, &["stop", "three"], "session `three` was already resumed as session `four`")?;
    same("the state", &listed(sandbox, "four")?["state"], &json!("success"))?;
    cluster.end(vec![worker])
}

fn refused(sandbox: &Sandbox, arguments: &[&str], why: &str) -> anyhow::Result<()> {
    let refused = sandbox.run(arguments)?;
    ensure!(refused.code != 0 && refused.stderr.contains(why), "{arguments:?}: {}", refused.stderr);
    Ok(())
}

pub(in super::super) fn stopped(sandbox: &mut Sandbox) -> anyhow::Result<()> {
    let cluster = Cluster::start(sandbox)?;
    let worker = cluster.worker()?;
    let sandbox = cluster.sandbox;
    let flow = json!({ "name": "stopped", "nodes": [sleeper("work", "60")] });
    let running = sandbox.start_flow(&flow, &["--session-id", "one"])?;
    begun(sandbox, 1)?;
    let watch = Stopwatch::start();
    sandbox.run(&["stop", "one"])?.expect_code(0)?;
    let stopped = running.finish()?.expect(130)?.json()?;
    same("the outcome", &stopped["outcome"], &json!("stopped"))?;
    ensure!(watch.elapsed() < SOON, "it took {:?}", watch.elapsed());
    same("what is shown", &cluster.show("one")?["state"], &json!("stopped"))?;
    // Ctrl-C in the terminal that shows the session pauses it too.
    let running = sandbox.start_flow(&flow, &["--session-id", "two"])?;
    begun(sandbox, 2)?;
    running.interrupt()?;
    running.finish()?.expect_code(7)?;
    cluster.wait_for("two", "paused", SOON)?;
    // Also after it has taken the default of a question.
    let ask = json!({ "prompt": "Go?", "choices": ["yes", "no"], "default": "no" });
    let ask = json!({ "id": "ask", "type": "human.input", "input": ask });
    let flow = json!({ "name": "asks", "nodes": [sleeper("work", "60"), ask] });
    let running = sandbox.start_flow(&flow, &["--session-id", "three"])?;
    begun(sandbox, 3)?;
    eventually(SOON, "the default is taken", || Ok(count(&cluster.log("three")?, "session:reply") == 1))?;
    sandbox.run(&["pause", "three"])?.expect_code(0)?;
    running.finish()?.expect_code(7)?;
    cluster.end(vec![worker])
}

/// A question is open while no worker runs, is answered meanwhile, and the next worker continues.
pub(in super::super) fn person_outlives_workers(sandbox: &mut Sandbox) -> anyhow::Result<()> {
    let cluster = Cluster::start(sandbox)?;
    let worker = cluster.worker()?;
    let sandbox = cluster.sandbox;
    let flow = json!({ "name": "asks", "nodes": [
        sleeper("before", "0"),
        { "id": "who", "type": "human.input", "dependsOn": ["before"], "input": { "prompt": "Who are you?" } },
        { "id": "greet", "type": "exec", "dependsOn": ["who"], "input": { "argv": ["printf", "%s", "{{ who.content }}"] } },
    ] });
    sandbox.run_flow(&flow, &["--session-id", "one"])?.expect_code(3)?;
    kill(worker)?;
    let inbox = sandbox.run(&["inbox", "--json"])?.expect(0)?.json()?;
    same("the question", &inbox[0]["prompt"], &json!("Who are you?"))?;
    same("what is listed", &listed(sandbox, "one")?["state"], &json!("waiting"))?;
    let worker = cluster.worker()?;
    same("what is listed", &listed(sandbox, "one")?["state"], &json!("waiting"))?;
    sandbox.run(&["reply", "one", "Ada"])?.expect_code(0)?;
    cluster.wait_for("one", "success", SOON)?;
    let greet = sandbox.run(&["show", "one", "greet", "--json"])?.expect(0)?.json()?;
    same("the answer", &greet["attempts"][0]["output"]["stdout"], &json!("Ada"))?;
    let lines = std::fs::read_to_string(sandbox.path("begun"))?;
    same("how often the first node ran", &lines.lines().count(), &1)?;
    cluster.end(vec![worker])
}

/// Three megabytes go from one node to another, which is more than the server takes in one message.
pub(in super::super) fn large_output(sandbox: &mut Sandbox) -> anyhow::Result<()> {
    let cluster = Cluster::start(sandbox)?;
    let worker = cluster.worker()?;
    let script = "head -c 3000000 /dev/zero | tr '\\0' x";
    let flow = json!({ "name": "large", "nodes": [
        { "id": "much", "type": "exec", "input": { "argv": ["sh", "-c", script] } },
        { "id": "said", "type": "echo.agent", "dependsOn": ["much"], "input": { "prompt": "{{ much.stdout }}" } },
    ] });
    let result = cluster.sandbox.run_flow(&flow, &["--session-id", "one"])?.expect(0)?.json()?;
    for (node, key) in [("much", "stdout"), ("said", "text")] {
        let size = result["outputs"][node][key].as_str().map(str::len);
        same(node, &size, &Some(3_000_000))?;
    }
    cluster.end(vec![worker])
}
