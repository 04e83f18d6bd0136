//! Cases in which a turn fails, or does not end by itself: a vendor that refuses, Ctrl-C, a timeout.

use inspan_testkit::{Sandbox, Stopwatch, called, pause};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use inspan_model_server::{ExchangeState, RecordedRequest, RequestKind};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use super::agents::{AgentCli as _, Claude, until_it_runs};
use super::checks::{
    GONE, agent, conversation, ended, failure, interrupted, is_under_way, main_requests, output, same, says,
    serve, session_of, talks_slowly,
};

fn mains(requests: &[RecordedRequest]) -> Vec<ExchangeState> {
    requests
        .iter()
        .filter(|request| request.kind == RequestKind::Main)
        .map(|request| request.ending)
        .collect()
}

pub(super) fn mid_text(sandbox: &mut Sandbox) -> anyhow::Result<()> {
    let server = serve(sandbox, &[talks_slowly(), says("I go on.")])?;
    let running = sandbox.start_flow(&agent("role=slow. Talk.", &json!({})), &["--no-store"])?;
    server.wait_until(sandbox.deadline().left(), |requests| is_under_way(requests, 6))?;
    // The text has to come all the way to the log before it is cut off.
    pause(Duration::from_millis(300));
    let run = interrupted(running)?;
    let over =
        |requests: &[RecordedRequest]| mains(requests).iter().all(|ending| *ending != ExchangeState::Open);
    let requests = server.wait_until(sandbox.deadline().left(), over)?;
    same("how the server saw it end", &mains(&requests), &vec![ExchangeState::ClientGone])?;

    let session = session_of(&run.events)?;
    let second = sandbox.run_flow(&agent("role=again. Go on.", &json!({ "resume": session })), &[])?;
    let summary = ended(&second, 0, "success")?;
    same("the answer", &output(&summary)["text"], &json!("I go on."))?;
    let said = conversation(main_requests(&server).last().context("no second request came")?);
    let ends = (said.first().cloned(), said.last().cloned());
    let expected = (Some("user: role=slow. Talk.".to_owned()), Some("user: role=again. Go on.".to_owned()));
    same("the ends of the conversation", &ends, &expected).with_context(|| format!("{said:?}"))
}

pub(super) fn mid_tool(sandbox: &mut Sandbox) -> anyhow::Result<()> {
    let _server = serve(sandbox, &[Claude::shell("sleep 613"), says("Never.")])?;
    let running = sandbox.start_flow(&agent("role=tool. Wait.", &Claude::free()), &["--no-store"])?;
    until_it_runs(sandbox, "sleep 613")?;
    interrupted(running).map(drop)
}

pub(super) fn runtime_killed_mid_tool(sandbox: &mut Sandbox) -> anyhow::Result<()> {
    let took = until_none_is_left(sandbox)?;
    ensure!(took < Duration::from_secs(1), "the last process was gone after {took:?}");
    Ok(())
}

/// Kills the runtime while an agent's tool is at work, and says how long it took until nothing was left of it: not
/// the agent, not the tool, nor what the tool started in other process sessions and without its environment.
fn until_none_is_left(sandbox: &mut Sandbox) -> anyhow::Result<Duration> {
    let line = format!("sleep 614.{}", std::process::id());
    let command = format!(
        "setsid {line} & nohup {line} >/dev/null 2>&1 & (env -i setsid sh -c '({line} &); exit' >/dev/null 2>&1 &) ; {line}"
    );
    let _server = serve(sandbox, &[Claude::shell(&command), says("Never.")])?;
    let mut running = sandbox.start_flow(&agent("role=tool. Wait.", &Claude::free()), &[])?;
    let is_left = |sandbox: &Sandbox| !sandbox.processes().is_empty() || !called(&line).is_empty();
    while called(&line).len() < 4 {
        ensure!(!sandbox.deadline().is_over(), "the tool never began");
        pause(Duration::from_millis(20));
    }
    let cut = Stopwatch::start();
    running.kill()?;
    while is_left(sandbox) && cut.elapsed() < GONE {
        pause(Duration::from_millis(1));
    }
    let took = cut.elapsed();
    let left = [called(&line), sandbox.processes().into_keys().collect()].concat();
    for pid in left.iter().filter_map(|pid| Pid::from_raw(*pid)) {
        // One that has gone meanwhile is what was wanted.
        let _ = kill_process(pid, Signal::KILL);
    }
    same("what is left", &left, &Vec::new())?;
    same("how it ended", &running.finish()?.code, &137)?;
    Ok(took)
}

pub(super) fn node_timeout(sandbox: &mut Sandbox) -> anyhow::Result<()> {
    let _server = serve(sandbox, &[json!({ "hang": true })])?;
    let mut flow = agent("role=late. Answer.", &json!({}));
    flow["nodes"][0]["policy"] = json!({ "timeout": "4s" });
    let run = sandbox.run_flow(&flow, &[])?;
    ended(&run, 1, "failed")?;
    let failure = failure(&run)?;
    same("the error", &json!([failure["code"], failure["retryable"]]), &json!(["TIMEOUT", true]))
}

fn http_error(status: u16, kind: &str, message: &str) -> Value {
    json!({ "httpError": { "status": status, "type": kind, "message": message } })
}

pub(super) fn key_refused(sandbox: &mut Sandbox) -> anyhow::Result<()> {
    let server = serve(sandbox, &[http_error(401, "authentication_error", "invalid x-api-key")])?;
    let run = sandbox.run_flow(&agent("role=refused. Answer.", &json!({})), &[])?;
    run.expect_code(4)?;
    let failure = failure(&run)?;
    let error_facts = json!([failure["code"], failure["retryable"], failure["provider"]]);
    same("the error", &error_facts, &json!(["AUTH", false, "claude"]))?;
    // The program's own retries are off: attempts are the flow's, and this flow has one.
    same("the requests", &main_requests(&server).len(), &1)?;
    ensure!(!run.stderr.contains("panicked"), "it panicked: {run}");
    Ok(())
}

pub(super) fn overloaded_then_ok(sandbox: &mut Sandbox) -> anyhow::Result<()> {
    let server = serve(sandbox, &[http_error(529, "overloaded_error", "Overloaded"), says("Here I am.")])?;
    let mut flow = agent("role=busy. Answer.", &json!({}));
    flow["nodes"][0]["policy"] = json!({ "retry": { "maxAttempts": 2, "backoff": "500ms" } });
    let summary = ended(&sandbox.run_flow(&flow, &[])?, 0, "success")?;
    same("the answer", &output(&summary)["text"], &json!("Here I am."))?;
    same("the attempts", &summary["nodes"]["a"]["attempts"], &json!(2))?;
    same("the requests", &main_requests(&server).len(), &2)
}
