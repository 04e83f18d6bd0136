//! Cases in which agent and model talk: turns, conversations resumed, and answers of a given structure;
//! and lessons of the documents, with their own files and the answers that they show.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, ensure};
use inspan_model_server::{ModelServer, Scenario};
use inspan_protocol::MessageMode;
use inspan_testkit::Sandbox;
use serde_json::json;

use super::checks::{
    agent, agent_node, conversation, count, ended, flow, main_requests, output, output_of, same, says, serve,
};
use super::person::{self, PersonStep};
use super::resume::{SESSION, until_it_ended, until_it_works};

pub(super) fn two_turns_by_session(sandbox: &mut Sandbox) -> anyhow::Result<()> {
    let server = serve(sandbox, &[says("The first."), says("The second.")])?;
    let mut second = agent_node("b", "role=two. Next: {{ a.text }}", &json!({}));
    second["dependsOn"] = json!(["a"]);
    second["session"] = json!("a");
    let run = sandbox.run_flow(&flow(&[agent_node("a", "role=two. Begin.", &json!({})), second]), &[])?;
    let summary = ended(&run, 0, "success")?;
    let texts = [&summary["outputs"]["a"]["text"], &summary["outputs"]["b"]["text"]];
    same("the texts", &texts, &[&json!("The first."), &json!("The second.")])?;
    let sessions = [&summary["outputs"]["a"]["sessionId"], &summary["outputs"]["b"]["sessionId"]];
    same("the conversation of both", &sessions[0], &sessions[1])?;
    let requests = main_requests(&server);
    let expected = ["user: role=two. Begin.", "assistant: The first.", "user: role=two. Next: The first."];
    same("the second request", &conversation(&requests[1]), &expected.map(str::to_owned).to_vec())
}

pub(super) fn two_turns_by_message(sandbox: &mut Sandbox) -> anyhow::Result<()> {
    let server = serve(sandbox, &[says("I have begun."), says("I heard you."), says("Farewell.")])?;
    let flow = agent("role=talk. Begin.", &json!({ "multiTurn": true, "idleTimeoutMs": 20000 }));
    let steps = [
        PersonStep::after("agent:usage", 1, |hub| {
            let run = hub.active_runs().pop().ok_or("no run is active")?;
            hub.send_to_run(run, "More.", MessageMode::FollowUp).map_err(|error| error.to_string())
        }),
        PersonStep::after("agent:usage", 2, |hub| {
            let run = hub.active_runs().pop().ok_or("no run is active")?;
            hub.send_to_run(run.clone(), "The last.", MessageMode::FollowUp)
                .map_err(|error| error.to_string())?;
            hub.close(run).map_err(|error| error.to_string())
        }),
    ];
    let result = person::run(sandbox, &flow, steps)?;
    same("the outcome", &result.outcome, &inspan_protocol::Outcome::Success)?;
    let requests = main_requests(&server);
    let expected = [
        "user: role=talk. Begin.",
        "assistant: I have begun.",
        "user: More.",
        "assistant: I heard you.",
        "user: The last.",
    ];
    same("the third request", &conversation(&requests[2]), &expected.map(str::to_owned).to_vec())?;
    same("the requests", &requests.len(), &3)?;
    let events: Vec<_> = result.events.iter().map(|envelope| (**envelope).clone()).collect();
    let counts = ["agent:start", "agent:complete", "session:message", "session:close"]
        .map(|name| count(&events, name));
    same("the events", &counts, &[1, 1, 2, 1])
}

pub(super) fn recorded_then_replayed(sandbox: &mut Sandbox) -> anyhow::Result<()> {
    let server = serve(sandbox, &[says("This is kept.")])?;
    let flow = agent("role=kept. Say it.", &json!({}));
    let folder = sandbox.artefacts().join("tapes");
    let folder = folder.to_str().context("the folder has no name")?;
    let recorded = ended(&sandbox.run_flow(&flow, &["--record", folder])?, 0, "success")?;
    // What answers now is not there: whatever is asked of it fails.
    drop(server);
    sandbox.set("PATH", "/nowhere");
    let replayed = ended(&sandbox.run_flow(&flow, &["--replay", folder])?, 0, "success")?;
    same("the replayed output", &output(&replayed), &output(&recorded))?;
    same("the answer", &output(&replayed)["text"], &json!("This is kept."))
}

/// Puts a lesson's files where the flow runs, and starts its model.
fn prepare_lesson(sandbox: &mut Sandbox, lesson: &str) -> anyhow::Result<ModelServer> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/lessons").join(lesson);
    let copied = Command::new("cp").arg("-r").args([folder.join("."), sandbox.work()]).status()?;
    ensure!(copied.success(), "the files of the lesson could not be copied");
    sandbox.serve(Scenario::load(folder.join("scenario.json"))?)
}

pub(super) fn lesson_prompt_files(sandbox: &mut Sandbox) -> anyhow::Result<()> {
    let server = prepare_lesson(sandbox, "06")?;
    let (code, stdout, stderr) = output_of(sandbox, &["run", "flow.yaml"])?;
    ensure!(code == 0, "it ended with {code}: {stderr}");
    same("the result", &stdout.trim(), &"YES")?;
    same("the requests", &main_requests(&server).len(), &2)
}

pub(super) fn lesson_multi_turn(sandbox: &mut Sandbox) -> anyhow::Result<()> {
    let server = prepare_lesson(sandbox, "09")?;
    let (code, _, stderr) = output_of(sandbox, &["run", "flow.yaml", "--detach", "--session-id", SESSION])?;
    ensure!(code == 0, "the session did not begin: {stderr}");
    until_it_works(sandbox, &["send", SESSION, "--to", "talk", "Something shorter, please."])?;
    until_it_works(sandbox, &["close", SESSION, "talk"])?;
    until_it_ended(sandbox)?;
    let sent = conversation(main_requests(&server).last().context("no request came")?);
    let expected = [
        "user: Suggest a name for an ox. Answer with the name alone.",
        "assistant: Bartholomew",
        "user: Something shorter, please.",
    ];
    same("the last request", &json!(sent), &json!(expected))
}
