//! What all cases share: flows, what the model says, and the result of a run.

use std::fmt::Debug;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use inspan_engine::check_order;
use inspan_model_server::{ModelServer, RecordedRequest, RequestKind};
use inspan_protocol::{Envelope, Event};
use inspan_testkit::{Finished, RunningProcess, Sandbox, Stopwatch, eventually};
use serde_json::{Value, json};

/// How long a run may take to stop once it is interrupted or killed.
pub(super) const GONE: Duration = Duration::from_secs(10);

/// A flow of one node `a`, a Claude agent.
pub(super) fn agent(prompt: &str, options: &Value) -> Value {
    flow(&[agent_node("a", prompt, options)])
}

pub(super) fn agent_node(id: &str, prompt: &str, options: &Value) -> Value {
    json!({ "id": id, "type": "claude.agent", "input": { "prompt": prompt, "options": options } })
}

pub(super) fn flow(nodes: &[Value]) -> Value {
    json!({ "flow": { "name": "e2e" }, "nodes": nodes })
}

/// A turn of the scripted model that says this.
pub(super) fn says(text: &str) -> Value {
    json!({ "blocks": [{ "type": "text", "text": text }] })
}

/// A turn of the scripted model that talks so slowly that there is time to interrupt it.
pub(super) fn talks_slowly() -> Value {
    let text = "One word after another, for as long as it may take to be interrupted.";
    json!({ "blocks": [{ "type": "text", "text": text, "chunks": 60 }], "chunkMs": 500 })
}

pub(super) fn same<T: PartialEq + Debug>(what: &str, actual: &T, expected: &T) -> anyhow::Result<()> {
    let shown = |value: &T| format!("{value:?}").chars().take(SHOWN).collect::<String>();
    ensure!(actual == expected, "{what} is\n  {}\nand not\n  {}", shown(actual), shown(expected));
    Ok(())
}

/// How much of a value is shown when it is not what it should be: a whole request would bury everything.
const SHOWN: usize = 2_000;

/// The run ended with this code, its log is in order, and the word of its outcome is this.
pub(super) fn ended(run: &Finished, code: i32, outcome: &str) -> anyhow::Result<Value> {
    run.expect_code(code)?;
    check_order(&run.events)
        .map_err(anyhow::Error::msg)
        .with_context(|| format!("the log is out of order: {run}"))?;
    let summary = run.json()?;
    same("the outcome", &summary["outcome"], &json!(outcome)).with_context(|| run.to_string())?;
    Ok(summary)
}

/// Interrupts a run, which stops in time.
pub(super) fn interrupted(running: RunningProcess) -> anyhow::Result<Finished> {
    let cut = Stopwatch::start();
    running.interrupt()?;
    let run = running.finish()?;
    let took = cut.elapsed();
    ended(&run, 130, "stopped")?;
    ensure!(took < GONE, "it took {took:?} to stop");
    Ok(run)
}

/// Checks that a run failed because its agent knows no such conversation, without a request to the model.
pub(super) fn no_such_session(run: &Finished, server: &ModelServer) -> anyhow::Result<()> {
    run.expect_code(1)?;
    let failure = failure(run)?;
    let error_facts = json!([failure["code"], failure["detail"]["kind"]]);
    same("the error", &error_facts, &json!(["INVALID_REQUEST", "sessionNotFound"]))?;
    same("the requests", &main_requests(server).len(), &0)
}

/// The error of the newest `task:failed` of the run.
pub(super) fn failure(run: &Finished) -> anyhow::Result<Value> {
    let failed = run.events.iter().rev().find_map(|envelope| match &envelope.event {
        Event::TaskFailed { error, .. } => Some(error),
        _ => None,
    });
    Ok(serde_json::to_value(failed.with_context(|| format!("no node failed: {run}"))?)?)
}

/// How often an event of this name is in the log.
pub(super) fn count(events: &[Envelope], name: &str) -> usize {
    events.iter().filter(|envelope| envelope.event.name() == name).count()
}

/// Whether each tool that ended was an error, in order.
pub(super) fn tool_ends(events: &[Envelope]) -> Vec<bool> {
    let ends = events.iter().filter_map(|envelope| match &envelope.event {
        Event::AgentToolComplete { is_error, .. } => Some(*is_error),
        _ => None,
    });
    ends.collect()
}

/// The text of all `agent:text` events, joined.
pub(super) fn spoken(events: &[Envelope]) -> String {
    let texts = events.iter().filter_map(|envelope| match &envelope.event {
        Event::AgentText { content, .. } => Some(content.as_str()),
        _ => None,
    });
    texts.collect()
}

/// The vendor's conversation, as the log names it.
pub(super) fn session_of(events: &[Envelope]) -> anyhow::Result<String> {
    let session = events.iter().find_map(|envelope| match &envelope.event {
        Event::AgentSession { session_id, .. } => Some(session_id.to_string()),
        _ => None,
    });
    session.context("the log tells no conversation")
}

/// The requests of the main line.
pub(super) fn main_requests(server: &ModelServer) -> Vec<RecordedRequest> {
    server.requests().into_iter().filter(|request| request.kind == RequestKind::Main).collect()
}

/// Whether so much of an answer of the main line has gone out.
pub(super) fn is_under_way(requests: &[RecordedRequest], events: usize) -> bool {
    requests.iter().any(|request| request.kind == RequestKind::Main && request.events_sent >= events)
}

/// What user and assistant said, as `role: text` of each text block; what the program adds by itself is left out.
pub(super) fn conversation(request: &RecordedRequest) -> Vec<String> {
    let messages = request.body["messages"].as_array().cloned().unwrap_or_default();
    let said = messages.iter().flat_map(|message| {
        let role = message["role"].as_str().unwrap_or_default().to_owned();
        let blocks = match &message["content"] {
            Value::String(text) => vec![text.clone()],
            content => content.as_array().into_iter().flatten().filter_map(text_of).collect(),
        };
        blocks.into_iter().map(move |text| (role.clone(), text))
    });
    said.filter(|(role, text)| role != "system" && !text.trim_start().starts_with("<system-reminder>"))
        .map(|(role, text)| format!("{role}: {}", text.trim()))
        .collect()
}

fn text_of(block: &Value) -> Option<String> {
    block["text"].as_str().map(str::to_owned)
}

/// The output of node `a`.
pub(super) fn output(summary: &Value) -> &Value {
    &summary["outputs"]["a"]
}

/// A sandbox with a server.
pub(super) fn serve(sandbox: &mut Sandbox, turns: &[Value]) -> anyhow::Result<ModelServer> {
    scenario(sandbox, json!({ "turns": turns }))
}

/// Starts a model server that answers by this scenario.
pub(super) fn scenario(sandbox: &mut Sandbox, scenario: Value) -> anyhow::Result<ModelServer> {
    sandbox.serve(serde_json::from_value(scenario).context("not a scenario")?)
}

/// Runs a command that drives no session: its exit code, stdout and stderr.
pub(super) fn output_of(sandbox: &Sandbox, arguments: &[&str]) -> anyhow::Result<(i32, String, String)> {
    let run = sandbox.run(arguments)?;
    Ok((run.code, run.stdout, run.stderr))
}

/// The first line that a program writes to stdout, once it contains this.
pub(super) fn first_line(process: &RunningProcess, part: &str) -> anyhow::Result<String> {
    let stdout = process.stderr.with_extension("stdout");
    let mut line = String::new();
    eventually(Duration::from_secs(60), "the program prints its address", || {
        line = std::fs::read_to_string(&stdout)?.lines().next().unwrap_or_default().to_owned();
        Ok(line.contains(part))
    })?;
    Ok(line)
}

/// Leaves the sandbox without any program.
pub(super) fn without_programs(sandbox: &mut Sandbox) -> anyhow::Result<()> {
    let empty = sandbox.work().join("empty");
    std::fs::create_dir(&empty)?;
    sandbox.set("PATH", &empty.display().to_string());
    Ok(())
}

/// The run of a flow whose agent's program is missing says what to do about it.
pub(super) fn names_the_missing(run: &Finished, program: &str) -> anyhow::Result<()> {
    run.expect_code(4)?;
    // Found before anything is started, so there is no session, and no event of one.
    same("the events", &run.events.len(), &0)?;
    let error = run.json()?["error"].to_string();
    let tells = |word: &&str| error.contains(word);
    ensure!(
        ["`a`", &format!("`{program}`"), "npm install", "CONFIG_MISSING"].iter().all(tells),
        "it does not say what to do: {error}"
    );
    Ok(())
}
