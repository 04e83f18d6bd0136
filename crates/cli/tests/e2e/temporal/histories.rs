//! Sessions that began with another version of Inspan continue with this one: it repeats what the histories of their
//! workflows say, those that were recorded and new ones. `INSPAN_BLESS=1` records the new ones.

use std::{fs, path::Path, time::Duration};

use anyhow::{Context as _, ensure};
use inspan_temporal::{recorded_history, replay_history};
use inspan_testkit::{Sandbox, pause};
use serde_json::json;
use tokio::runtime::Runtime;

use super::{
    cluster::{Cluster, kill},
    commands::{SOON, begun, sleeper},
};

/// Whether the histories of this run are stored.
#[expect(clippy::disallowed_methods, reason = "a test has no command line of its own")]
fn is_blessed() -> bool {
    std::env::var_os("INSPAN_BLESS").is_some_and(|value| value == "1")
}

/// The history is repeated as it is, and refused with other attempts.
fn check(runtime: &Runtime, history: Vec<u8>) -> anyhow::Result<()> {
    runtime.block_on(replay_history(&history)).map_err(anyhow::Error::msg)?;
    let other = String::from_utf8(history)?.replace("\"activity_id\":\"", "\"activity_id\":\"other.");
    ensure!(runtime.block_on(replay_history(other.as_bytes())).is_err(), "other attempts were not noticed");
    Ok(())
}

pub(in super::super) fn histories(sandbox: &mut Sandbox) -> anyhow::Result<()> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/temporal");
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let cluster = Cluster::start(sandbox)?;
    let first = cluster.worker()?;
    let sandbox = cluster.sandbox;
    let mut slow = sleeper("slow", "2");
    slow["dependsOn"] = json!(["ask"]);
    let each = json!({ "id": "each", "type": "control.foreach", "input": { "items": [1, 2, 3] },
        "body": { "nodes": [sleeper("work", "0.{{ item }}")] } });
    let ask =
        json!({ "id": "ask", "type": "human.input", "dependsOn": ["each"], "input": { "prompt": "Which?" } });
    let wait = json!({ "id": "wait", "type": "control.wait", "dependsOn": ["slow"], "input": { "ms": 200 } });
    let flow = json!({ "name": "history", "nodes": [each, ask, slow, wait] });
    for session in ["killed", "stopped"] {
        sandbox.run_flow(&flow, &["--session-id", session])?.expect_code(3)?;
    }
    sandbox.run(&["reply", "killed", "left"])?.expect_code(0)?;
    begun(sandbox, 7)?;
    kill(first)?;
    let second = cluster.worker()?;
    begun(sandbox, 8)?;
    sandbox.run(&["pause", "killed"])?.expect_code(0)?;
    cluster.wait_for("killed", "paused", SOON)?;
    sandbox.run(&["resume", "killed"])?.expect_code(0)?;
    sandbox.run(&["reply", "stopped", "left"])?.expect_code(0)?;
    begun(sandbox, 10)?;
    sandbox.run(&["stop", "stopped"])?.expect_code(0)?;
    // The workflow ends right after the session.
    pause(Duration::from_millis(500));
    let address = cluster.engine.parse::<inspan_temporal::Cluster>()?;
    for session in ["killed", "stopped"] {
        let history = runtime.block_on(recorded_history(&address, &session.into()))?;
        if is_blessed() {
            fs::create_dir_all(&folder)?;
            fs::write(folder.join(format!("{session}.json")), &history)?;
        }
        check(&runtime, history).with_context(|| session.to_owned())?;
    }
    let mut count = 0;
    for file in fs::read_dir(folder)? {
        let path = file?.path();
        check(&runtime, fs::read(&path)?).with_context(|| path.display().to_string())?;
        count += 1;
    }
    ensure!(count > 0, "there are no recorded histories");
    cluster.end(vec![second])
}
