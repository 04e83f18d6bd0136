//! The lessons of the documents through the real Claude Code: their own files, and the answers that they promise.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use inspan_model_server::{ModelServer, Scenario};
use serde_json::json;
use walkdir::WalkDir;

use super::{
    rest::{SESSION, until_it_ended, until_it_works},
    words::{conversation, main_requests, same},
};
use crate::e2e::world::World;

/// Puts a lesson's files where the flow runs, and starts its model.
fn prepare(world: &mut World, lesson: &str) -> anyhow::Result<ModelServer> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/lessons").join(lesson);
    for entry in WalkDir::new(&folder).min_depth(1) {
        let entry = entry?;
        let target: PathBuf = world.work().join(entry.path().strip_prefix(&folder)?);
        if entry.file_type().is_dir() {
            std::fs::create_dir(&target)?;
        } else {
            std::fs::copy(entry.path(), &target)?;
        }
    }
    world.serve_scenario(Scenario::load(folder.join("scenario.json"))?)
}

pub(super) fn prompt_files(world: &mut World) -> anyhow::Result<()> {
    let server = prepare(world, "06")?;
    let (code, stdout, stderr) = world.verb(&["run", "flow.yaml"])?;
    ensure!(code == 0, "it ended with {code}: {stderr}");
    same("the result", &stdout.trim(), &"YES")?;
    same("the requests", &main_requests(&server).len(), &2)
}

pub(super) fn multi_turn(world: &mut World) -> anyhow::Result<()> {
    let server = prepare(world, "09")?;
    let (code, _, stderr) = world.verb(&["run", "flow.yaml", "--detach", "--session-id", SESSION])?;
    ensure!(code == 0, "the session did not begin: {stderr}");
    until_it_works(world, &["send", SESSION, "--to", "talk", "Something shorter, please."])?;
    until_it_works(world, &["close", SESSION, "talk"])?;
    until_it_ended(world)?;
    let said = conversation(main_requests(&server).last().context("no request came")?);
    let expected = [
        "user: Suggest a name for an ox. Answer with the name alone.",
        "assistant: Bartholomew",
        "user: Something shorter, please.",
    ];
    same("the last request", &json!(said), &json!(expected))
}
