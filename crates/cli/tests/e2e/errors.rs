//! Cases in which the vendor refuses, cannot be reached, or is not there: each a typed error and an exit code.

use anyhow::ensure;
use inspan_testkit::{Finished, Sandbox};
use serde_json::{Value, json};

use super::checks::{
    agent, count, ended, failure, main_requests, names_the_missing, output, same, says, serve,
    without_programs,
};

fn http_error(status: u16, kind: &str, message: &str) -> Value {
    json!({ "httpError": { "status": status, "type": kind, "message": message } })
}

/// A run that fails with this exit code and error, having asked the model so often.
fn refused(
    sandbox: &mut Sandbox,
    turn: Value,
    code: i32,
    error: &str,
    retryable: bool,
) -> anyhow::Result<Finished> {
    let server = serve(sandbox, &[turn])?;
    let run = sandbox.run_flow(&agent("role=refused. Answer.", &json!({})), &[])?;
    reported(&run, code, error, retryable)?;
    // The program's own retries are off: attempts are the flow's, and this flow has one.
    same("the requests", &main_requests(&server).len(), &1)?;
    Ok(run)
}

fn reported(run: &Finished, code: i32, error: &str, retryable: bool) -> anyhow::Result<()> {
    run.expect_code(code)?;
    let failure = failure(run)?;
    let error_facts = json!([failure["code"], failure["retryable"], failure["provider"]]);
    same("the error", &error_facts, &json!([error, retryable, "claude"]))?;
    same("the runs", &[count(&run.events, "agent:start"), count(&run.events, "agent:complete")], &[1, 1])?;
    ensure!(!run.stderr.contains("panicked"), "it panicked: {run}");
    Ok(())
}

pub(super) fn status_401(sandbox: &mut Sandbox) -> anyhow::Result<()> {
    refused(sandbox, http_error(401, "authentication_error", "invalid x-api-key"), 4, "AUTH", false).map(drop)
}

pub(super) fn status_429(sandbox: &mut Sandbox) -> anyhow::Result<()> {
    let turn = http_error(429, "rate_limit_error", "This request would exceed your rate limit");
    refused(sandbox, turn, 1, "RATE_LIMITED", true).map(drop)
}

pub(super) fn status_529(sandbox: &mut Sandbox) -> anyhow::Result<()> {
    refused(sandbox, http_error(529, "overloaded_error", "Overloaded"), 1, "OVERLOADED", true).map(drop)
}

pub(super) fn status_529_then_ok(sandbox: &mut Sandbox) -> anyhow::Result<()> {
    let server = serve(sandbox, &[http_error(529, "overloaded_error", "Overloaded"), says("Here I am.")])?;
    let mut flow = agent("role=busy. Answer.", &json!({}));
    flow["nodes"][0]["policy"] = json!({ "retry": { "maxAttempts": 2, "backoff": "500ms" } });
    let run = sandbox.run_flow(&flow, &[])?;
    let summary = ended(&run, 0, "success")?;
    same("the answer", &output(&summary)["text"], &json!("Here I am."))?;
    same("the attempts", &summary["nodes"]["a"]["attempts"], &json!(2))?;
    same("the requests", &main_requests(&server).len(), &2)
}

pub(super) fn connection_refused(sandbox: &mut Sandbox) -> anyhow::Result<()> {
    // The port of a server that has just gone is one where nobody listens.
    let server = serve(sandbox, &[says("Never.")])?;
    drop(server);
    let run = sandbox.run_flow(&agent("role=refused. Answer.", &json!({})), &[])?;
    reported(&run, 1, "NETWORK", true)
}

pub(super) fn unknown_session(sandbox: &mut Sandbox) -> anyhow::Result<()> {
    let server = serve(sandbox, &[says("Never.")])?;
    let resume = json!({ "resume": "00000000-0000-4000-8000-00000000dead" });
    let run = sandbox.run_flow(&agent("role=unknown. Go on.", &resume), &[])?;
    run.expect_code(1)?;
    let failure = failure(&run)?;
    same("the error", &json!([failure["code"], failure["retryable"]]), &json!(["INVALID_REQUEST", false]))?;
    let message = failure["message"].as_str().unwrap_or_default();
    ensure!(message.contains("00000000-0000-4000-8000-00000000dead"), "the session is not named: {message}");
    same("the requests", &main_requests(&server).len(), &0)
}

pub(super) fn missing_program(sandbox: &mut Sandbox) -> anyhow::Result<()> {
    without_programs(sandbox)?;
    let run = sandbox.run_flow(&agent("role=missing. Answer.", &json!({})), &[])?;
    names_the_missing(&run, "claude")?;
    let summary = run.json()?;
    same("the summary", &json!([summary["outcome"], summary["exitCode"]]), &json!(["configuration", 4]))
}
