//! Cases in which a session of the real program becomes idle or dies, and continues in a new process.

use inspan_testkit::{RunningProcess, Sandbox, pause};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use inspan_model_server::{ModelServer, RecordedRequest, RequestKind};
use serde_json::{Value, json};

use super::checks::{
    agent, conversation, ended, is_under_way, main_requests, output, output_of, same, says, scenario, serve,
    talks_slowly,
};

/// The session of each case.
pub(super) const SESSION: &str = "s";

/// A model that talks so slowly that there is time to interrupt it, and then answers.
fn slow(sandbox: &mut Sandbox) -> anyhow::Result<(ModelServer, RunningProcess)> {
    let server = serve(sandbox, &[talks_slowly(), says("I go on.")])?;
    let running = sandbox.start_flow(&agent("role=slow. Talk.", &json!({})), &["--session-id", SESSION])?;
    server.wait_until(sandbox.deadline().left(), |requests| is_under_way(requests, 6))?;
    // The conversation's id has to come all the way to the store before it is cut off.
    pause(Duration::from_millis(300));
    Ok((server, running))
}

/// The agent continued its own conversation, and got this message.
fn continued(server: &ModelServer, message: &str) -> anyhow::Result<()> {
    let said = conversation(main_requests(server).last().context("no second request came")?);
    let ends = (said.first().cloned(), said.last().cloned());
    let expected = (Some("user: role=slow. Talk.".to_owned()), Some(format!("user: {message}")));
    same("the ends of the conversation", &ends, &expected).with_context(|| format!("{said:?}"))
}

pub(super) fn paused_and_resumed(sandbox: &mut Sandbox) -> anyhow::Result<()> {
    let (server, running) = slow(sandbox)?;
    running.interrupt()?;
    let paused = running.finish()?;
    same("the code of the pause", &paused.code, &7).with_context(|| paused.to_string())?;
    let resumed = sandbox.resume(SESSION, &["--message", "Use tabs."])?;
    let summary: Value = resumed.expect_code(0)?.json()?;
    same("the answer", &output(&summary)["text"], &json!("I go on."))?;
    continued(&server, "Use tabs.")
}

pub(super) fn killed_and_resumed(sandbox: &mut Sandbox) -> anyhow::Result<()> {
    let (server, mut running) = slow(sandbox)?;
    running.kill()?;
    same("how it died", &running.finish()?.code, &137)?;
    let resumed = sandbox.resume(SESSION, &[])?;
    let summary: Value = resumed.expect_code(0)?.json()?;
    same("the answer", &output(&summary)["text"], &json!("I go on."))?;
    continued(&server, "continue")
}

/// Waits until a call of a verb succeeds.
pub(super) fn until_it_works(sandbox: &Sandbox, arguments: &[&str]) -> anyhow::Result<()> {
    loop {
        let (code, _, stderr) = output_of(sandbox, arguments)?;
        if code == 0 {
            return Ok(());
        }
        ensure!(!sandbox.deadline().is_over(), "`inspan {}` never worked: {stderr}", arguments.join(" "));
        pause(Duration::from_millis(100));
    }
}

/// Waits until the session in the background has ended, and gives what its agent made.
pub(super) fn until_it_ended(sandbox: &Sandbox) -> anyhow::Result<()> {
    loop {
        let (_, stdout, _) = output_of(sandbox, &["ps", "--all", "--json"])?;
        let sessions: Value = serde_json::from_str(&stdout).context("`ps` prints no JSON")?;
        if sessions.to_string().contains("success") {
            return Ok(());
        }
        ensure!(!sandbox.deadline().is_over(), "the session never ended: {sessions}");
        pause(Duration::from_millis(100));
    }
}

pub(super) fn approved_from_another_shell(sandbox: &mut Sandbox) -> anyhow::Result<()> {
    let input = json!({ "command": "touch made", "description": "make a file" });
    let call = json!({ "blocks": [{ "type": "tool_use", "name": "Bash", "input": input }] });
    let server = serve(sandbox, &[call.clone(), call, says("It is made.")])?;
    let file = sandbox.flow(&agent("role=maker. Make it.", &json!({})))?.display().to_string();
    let (code, _, stderr) = output_of(sandbox, &["run", &file, "--detach", "--session-id", SESSION])?;
    ensure!(code == 0, "the session did not begin: {stderr}");
    until_it_works(sandbox, &["reject", SESSION, "--reason", "not before you have a plan"])?;
    // The second question: one without its id is refused so soon after another was answered.
    until_it_works(sandbox, &["approve", SESSION, "a.1.2"])?;
    until_it_ended(sandbox)?;
    let told = main_requests(&server)
        .get(1)
        .is_some_and(|second| second.body.to_string().contains("not before you"));
    ensure!(told, "the model did not get the reason");
    ensure!(sandbox.work().join("made").exists(), "the tool did not run");
    Ok(())
}

/// The vendor says when its limit is lifted: the session is idle until then, and is resumed by another
/// process.
pub(super) fn usage_limit_waited_out(sandbox: &mut Sandbox) -> anyhow::Result<()> {
    let now = inspan_engine::Clock::now(&inspan_engine::SystemClock);
    let lifted = now.as_millis() / 1000 + 8;
    let message = format!("Claude AI usage limit reached|{lifted}");
    let error = json!({ "httpError": { "status": 429, "type": "rate_limit_error", "message": message } });
    let server = serve(sandbox, &[error, says("I am back.")])?;
    let flow = agent("role=busy. Work.", &json!({}));
    let waits = sandbox.run_flow(&flow, &["--session-id", SESSION, "--no-wait"])?;
    let summary: Value = waits.expect_code(75)?.json()?;
    same("the node", &summary["nodes"]["a"]["status"], &json!("waiting"))?;
    let resumed = sandbox.resume(SESSION, &[])?;
    let summary: Value = resumed.expect_code(0)?.json()?;
    same("the answer", &output(&summary)["text"], &json!("I am back."))?;
    same("the requests", &main_requests(&server).len(), &2)?;
    let now = inspan_engine::Clock::now(&inspan_engine::SystemClock);
    ensure!(now.as_millis() / 1000 >= lifted, "the limit was not waited out");
    Ok(())
}

/// An agent that calls tools for a long turn, in a flow with a budget that a part of the turn uses up.
pub(super) fn budget_within_a_turn(
    sandbox: &mut Sandbox,
    mut nodes: Value,
    shell: impl Fn(&str) -> Value,
) -> anyhow::Result<()> {
    let tool = || {
        let mut turn = shell("sleep 0.5");
        turn["usage"] = json!({ "inputTokens": 90, "outputTokens": 10 });
        turn
    };
    let tools: Vec<Value> = std::iter::repeat_with(tool).take(12).collect();
    let server = serve(sandbox, &[tools, vec![says("Done.")]].concat())?;
    nodes["flow"]["policy"] = json!({ "budget": { "tokens": 250 } });
    let run = sandbox.run_flow(&nodes, &["--session-id", SESSION])?;
    let summary = ended(&run, 5, "budgetExceeded")?;
    same("the state", &summary["status"], &json!("paused"))?;
    let requests = main_requests(&server).len();
    ensure!((3..6).contains(&requests), "the model was asked {requests} times: {run}");

    // The next process dies within the turn, and what it had spent counts.
    let mut goes_on = sandbox.start_session(&["resume", SESSION, "--budget", "tokens=700"])?;
    server.wait_until(sandbox.deadline().left(), |all| mains(all) >= requests + 3)?;
    pause(Duration::from_millis(300));
    goes_on.kill()?;
    same("how it died", &goes_on.finish()?.code, &137)?;
    sandbox.resume(SESSION, &[])?.expect_code(5)?;
    let requests = main_requests(&server).len();
    ensure!((7..11).contains(&requests), "the model was asked {requests} times for 700 tokens");
    let summary: Value = sandbox.resume(SESSION, &["--budget", "tokens=100000"])?.expect_code(0)?.json()?;
    same("the state", &summary["outcome"], &json!("success"))
}

/// An agent whose vendor fails once it has used a tool: it is tried again where it was.
pub(super) fn failed_within_a_turn(
    sandbox: &mut Sandbox,
    mut nodes: Value,
    shell: impl Fn(&str) -> Value,
) -> anyhow::Result<()> {
    let failing = json!({ "when": { "lastMessageContains": "Tool marker" }, "times": 1,
        "httpError": { "status": 529, "message": "Overloaded" } });
    let mut working = shell("echo ran >> ran.txt; echo Tool marker");
    working["when"] = json!({ "lastMessageContains": "role=tools" });
    let _server = scenario(sandbox, json!({ "turns": [failing, working, says("Done.")] }))?;
    nodes["nodes"][0]["policy"] = json!({ "retry": { "maxAttempts": 2 } });
    let summary = ended(&sandbox.run_flow(&nodes, &[])?, 0, "success")?;
    same("the attempts", &summary["nodes"]["a"]["attempts"], &json!(2))?;
    let ran = std::fs::read_to_string(sandbox.work().join("ran.txt"))?;
    same("what the tool did", &ran, &"ran\n".to_owned())
}

/// How often the model was asked to go on.
fn mains(requests: &[RecordedRequest]) -> usize {
    requests.iter().filter(|request| request.kind == RequestKind::Main).count()
}
