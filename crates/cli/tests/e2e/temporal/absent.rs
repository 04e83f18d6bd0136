//! A server that does not answer, and a server without a worker: every command ends, and says what is stored.

use std::{fs, time::Duration};

use anyhow::ensure;
use inspan_testkit::{Finished, RunningProcess, Sandbox, Stopwatch, eventually, pause};
use rustix::process::Signal;
use serde_json::{Value, json};

use super::{
    super::checks::same,
    cluster::{Cluster, signal},
    commands::{SOON, begun, listed, sleeper},
};

/// How long a command waits for workers at the most.
const RESPONSE: Duration = Duration::from_secs(20);

/// What a command printed that has failed with this code, for this reason.
fn failed(command: Finished, code: i32, why: &str) -> anyhow::Result<Value> {
    let printed = command.expect(code)?.json()?;
    let message = printed["error"]["message"].as_str().unwrap_or_default();
    ensure!(message.contains(why), "the message is {message}");
    Ok(printed)
}

pub(in super::super) fn no_server(sandbox: &mut Sandbox) -> anyhow::Result<()> {
    let mut cluster = Cluster::start(sandbox)?;
    let worker = cluster.worker()?;
    let sandbox = cluster.sandbox;
    let flow = sandbox.flow(&json!({ "name": "away", "nodes": [sleeper("work", "60")] }))?;
    let flow = flow.display().to_string();
    cluster.detach(&flow, "one")?;
    begun(sandbox, 1)?;
    let elsewhere = cluster.engine.replace("/default?", "/nowhere?");
    let refused = sandbox.run(&["run", &flow, "--json", "--engine", &elsewhere])?;
    failed(refused, 4, "has no namespace `nowhere`; nothing was stored")?;
    // Nothing can be stored where a file is in the place of the folder.
    let unusable = sandbox.artefacts().join("unusable");
    fs::create_dir(&unusable)?;
    fs::write(unusable.join("sessions"), "")?;
    let elsewhere = format!("{}&queue=other", cluster.engine.replace("/shared", "/unusable"));
    let refused = sandbox.run(&["run", &flow, "--json", "--engine", &elsewhere])?;
    let refused = failed(refused, 4, "the shared sessions cannot be read or written: ")?;
    let hint = refused["error"]["hint"].as_str().unwrap_or_default();
    ensure!(hint.contains("it must be there, have space"), "the help is {hint}");
    // The id is that of a session which runs and is stored elsewhere.
    for (more, by) in
        [("", "a session that is stored in another folder or bucket"), ("&queue=other", "`queue=inspan`")]
    {
        let elsewhere = format!("{}{more}", cluster.engine.replace("/shared", "/other"));
        let taken = sandbox.run(&["run", &flow, "--json", "--session-id", "one", "--engine", &elsewhere])?;
        failed(taken, 2, by)?;
    }
    cluster.kill_server()?;
    for more in [&[][..], &["--detach"]] {
        let refused = sandbox.run(&[&["run", &flow, "--json"], more].concat())?;
        let printed = failed(refused, 4, "does not answer")?;
        same("the session", &printed["sessionId"], &Value::Null)?;
    }
    for command in ["pause", "stop", "resume"] {
        let refused = sandbox.run(&[command, "one", "--json"])?;
        failed(refused, 4, "nothing was stored")?;
    }
    let list = sandbox.run(&["ps", "--all", "--json"])?.expect(0)?.json()?;
    same("the sessions", &list.as_array().map(Vec::len), &Some(1))?;
    same("the commands that wait", &listed(sandbox, "one")?["unansweredCommands"], &json!(0))?;
    cluster.restart_server()?;
    cluster.sandbox.run(&["stop", "one"])?.expect_code(0)?;
    cluster.end(vec![worker])
}

pub(in super::super) fn no_worker(sandbox: &mut Sandbox) -> anyhow::Result<()> {
    let cluster = Cluster::start(sandbox)?;
    let sandbox = cluster.sandbox;
    let flow = json!({ "name": "alone", "nodes": [sleeper("work", "0")] });
    let start = |session: &str| {
        let running = sandbox.start_flow(&flow, &["--session-id", session])?;
        wrote(&running, "they wait for `inspan worker`")?;
        Ok::<_, anyhow::Error>(running)
    };
    let (two, one) = (start("two")?, start("one")?);
    // The first signal has the session paused, and the wait for it has an end.
    let watch = Stopwatch::start();
    signal(&two, Signal::TERM)?;
    wrote(&two, "waiting until the workers of temporal://")?;
    // The second one ends the command at once.
    one.interrupt()?;
    wrote(&one, "waiting until the workers of temporal://")?;
    eventually(
        SOON,
        "the pause is stored",
        || Ok(listed(sandbox, "one")?["unansweredCommands"] == json!(1)),
    )?;
    // The command has heard of it a moment later.
    pause(Duration::from_secs(1));
    let again = Stopwatch::start();
    one.interrupt()?;
    let ended =
        failed(one.finish()?, 130, "stopped waiting until session `one` is paused; the pause is stored")?;
    ensure!(again.elapsed() < Duration::from_secs(5), "it took {:?}", again.elapsed());
    same("the session", &ended["sessionId"], &json!("one"))?;
    let ended = failed(two.finish()?, 143, "session `two` is not paused after 20s; the pause is stored")?;
    ensure!(
        watch.elapsed() >= RESPONSE && watch.elapsed() < RESPONSE + SOON,
        "it took {:?}",
        watch.elapsed()
    );
    let hint = ended["error"]["hint"].as_str().unwrap_or_default();
    ensure!(hint.contains("`inspan resume two`"), "the help is {hint}");
    // What was said is true.
    let worker = cluster.worker()?;
    for session in ["one", "two"] {
        cluster.wait_for(session, "paused", SOON)?;
        let resumed = sandbox.resume(session, &[])?.expect(0)?.json()?;
        same("the outcome", &resumed["outcome"], &json!("success"))?;
    }
    cluster.end(vec![worker])
}

/// Waits until a command has written this for people.
fn wrote(command: &RunningProcess, text: &str) -> anyhow::Result<()> {
    let has_written = || Ok(fs::read_to_string(&command.stderr)?.contains(text));
    eventually(SOON, &format!("it writes `{text}`"), has_written)
}
