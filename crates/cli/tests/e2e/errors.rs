//! Cases in which the vendor refuses, cannot be reached, or is not there: each a typed error and an exit code.

use anyhow::ensure;
use inspan_testkit::{Finished, Sandbox};
use serde_json::{Value, json};

use super::checks::{agent, count, ended, failure, main_requests, output, same, says, serve};

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
