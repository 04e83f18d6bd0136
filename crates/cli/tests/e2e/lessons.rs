//! The lessons of the documents through the real Claude Code: their own files, and the answers that they show.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, ensure};
use inspan_model_server::{ModelServer, Scenario};
use inspan_testkit::Sandbox;
use serde_json::json;

use super::{
    checks::{conversation, main_requests, output_of, same},
    resume::{SESSION, until_it_ended, until_it_works},
};

/// Puts a lesson's files where the flow runs, and starts its model.
fn prepare(sandbox: &mut Sandbox, lesson: &str) -> anyhow::Result<ModelServer> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/lessons").join(lesson);
    let copied = Command::new("cp").arg("-r").args([folder.join("."), sandbox.work()]).status()?;
    ensure!(copied.success(), "the files of the lesson could not be copied");
    sandbox.serve(Scenario::load(folder.join("scenario.json"))?)
}

pub(super) fn prompt_files(sandbox: &mut Sandbox) -> anyhow::Result<()> {
    let server = prepare(sandbox, "06")?;
    let (code, stdout, stderr) = output_of(sandbox, &["run", "flow.yaml"])?;
    ensure!(code == 0, "it ended with {code}: {stderr}");
    same("the result", &stdout.trim(), &"YES")?;
    same("the requests", &main_requests(&server).len(), &2)
}

pub(super) fn multi_turn(sandbox: &mut Sandbox) -> anyhow::Result<()> {
    let server = prepare(sandbox, "09")?;
    let (code, _, stderr) = output_of(sandbox, &["run", "flow.yaml", "--detach", "--session-id", SESSION])?;
    ensure!(code == 0, "the session did not begin: {stderr}");
    until_it_works(sandbox, &["send", SESSION, "--to", "talk", "Something shorter, please."])?;
    until_it_works(sandbox, &["close", SESSION, "talk"])?;
    until_it_ended(sandbox)?;
    let said = conversation(main_requests(&server).last().context("no request came")?);
    let expected = [
        "user: Suggest a name for an ox. Answer with the name alone.",
        "assistant: Bartholomew",
        "user: Something shorter, please.",
    ];
    same("the last request", &json!(said), &json!(expected))
}
