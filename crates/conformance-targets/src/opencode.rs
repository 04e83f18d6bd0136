//! The provider `opencode` in the suite: the real program, directed to the model server by settings of its own.

use std::path::PathBuf;

use inspan_conformance::{Deviation, Exception, PLANTED, Place};
use inspan_protocol::{ErrorCode, IntoProvider, StopReason};
use inspan_providers::OpenCodeProvider;
use serde_json::json;

use crate::target::{Target, deviates, variables};

pub(crate) const TARGET: Target = Target {
    provider: || OpenCodeProvider::new().into_provider(),
    environment: |place| variables([], place, "INSPAN_OPENCODE").into_iter().chain(settings(place)).collect(),
    exceptions: EXCEPTIONS,
    // Its server alone takes half a gigabyte of memory.
    lanes: 2,
    ..Target::PROGRAM
};

const EXCEPTIONS: &[Exception] = &[
    deviates(
        "refusal",
        Deviation::Ends(StopReason::Complete),
        "the program does not read the part of an answer in which this vendor's model refuses",
    ),
    deviates(
        "error_429",
        Deviation::Fails(ErrorCode::Overloaded),
        "the program tells the words of what it would try again, and neither status nor code",
    ),
];

/// The variables under which the program calls this server, with settings and folders of its own for each server.
/// If the settings cannot be written, the program knows no model, and the suite reports that.
pub(crate) fn settings(place: &Place<'_>) -> Vec<(String, String)> {
    let home = place.folder.join(place.server.rsplit(':').next().unwrap_or_default());
    let folder = |name: &str| home.join(name);
    let config = folder("config/opencode");
    drop(write(&config, place.server));
    let text = |path: PathBuf| path.display().to_string();
    let off = ["MODELS_FETCH", "AUTOUPDATE", "LSP_DOWNLOAD", "DEFAULT_PLUGINS", "SHARE", "CLAUDE_CODE"];
    let folders = [
        ("XDG_CONFIG_HOME", text(folder("config"))),
        ("XDG_DATA_HOME", text(folder("data"))),
        ("XDG_STATE_HOME", text(folder("state"))),
        ("XDG_CACHE_HOME", text(folder("cache"))),
        ("OPENAI_API_KEY", PLANTED.to_owned()),
    ];
    let quiet = off.map(|what| (format!("OPENCODE_DISABLE_{what}"), "1".to_owned()));
    folders.into_iter().map(|(name, value)| (name.to_owned(), value)).chain(quiet).collect()
}

/// One provider with one model; no sharing, no updates, no compaction that would ask the model again.
fn write(folder: &std::path::Path, server: &str) -> std::io::Result<()> {
    let model = json!({
        "name": "Scripted",
        "limit": { "context": 200_000, "output": 8192 },
        "cost": { "input": 3, "output": 15 },
        "tool_call": true,
        "reasoning": true,
    });
    let settings = json!({
        "model": "scripted/scripted-model",
        "small_model": "scripted/scripted-model",
        "autoupdate": false,
        "share": "disabled",
        "snapshot": false,
        "compaction": { "auto": false },
        "enabled_providers": ["scripted"],
        "permission": { "bash": "ask", "edit": "ask" },
        "provider": { "scripted": {
            "npm": "@ai-sdk/openai-compatible",
            "name": "scripted",
            "options": { "baseURL": format!("{server}/v1"), "apiKey": "{env:OPENAI_API_KEY}" },
            "models": { "scripted-model": model },
        } },
    });
    std::fs::create_dir_all(folder)?;
    std::fs::write(folder.join("opencode.json"), settings.to_string())
}
