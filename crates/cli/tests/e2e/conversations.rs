//! What a recording keeps of a conversation, and what it leaves out; and lessons of the documents, with their own files and
//! the answers that they show.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, ensure};
use inspan_model_server::{ModelServer, Scenario};
use inspan_protocol::Event;
use inspan_testkit::Sandbox;
use serde_json::json;

use super::checks::{agent, conversation, ended, main_requests, output, output_of, same, says, serve};
use super::resume::{SESSION, until_it_ended, until_it_works};

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

/// An agent that reads its environment gets its own key. Still, the key is in no event, no store, no output and
/// no recording: the search of all artefacts at the end of the case would find it.
pub(super) fn key_left_out_of_everything(sandbox: &mut Sandbox) -> anyhow::Result<()> {
    let input = json!({ "command": "printenv ANTHROPIC_API_KEY; echo looked", "description": "look" });
    let call = json!({ "blocks": [{ "type": "tool_use", "name": "Bash", "input": input }] });
    let _server = serve(sandbox, &[call, says("I have looked.")])?;
    let tapes = sandbox.artefacts().join("tapes");
    let folder = tapes.to_str().context("the folder has no name")?;
    let flow = agent("role=looker. Look.", &json!({ "allowedTools": ["Bash"] }));
    let run = sandbox.run_flow(&flow, &["--record", folder])?;
    ended(&run, 0, "success")?;
    let mut recorded = String::new();
    for tape in std::fs::read_dir(&tapes)? {
        recorded.push_str(&std::fs::read_to_string(tape?.path())?);
    }
    ensure!(
        recorded.contains("[redacted ANTHROPIC_API_KEY]\\nlooked"),
        "the tool was not recorded: {recorded}"
    );
    let is_shown = run.events.iter().any(|envelope| match &envelope.event {
        Event::AgentToolComplete { result, .. } => {
            result.to_string().contains("[redacted ANTHROPIC_API_KEY]")
        }
        _ => false,
    });
    ensure!(is_shown, "the tool's answer does not show what was taken out: {run}");
    Ok(())
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
