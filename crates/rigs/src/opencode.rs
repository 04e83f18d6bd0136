//! The provider `opencode` as the suite meets it: the real program, led to the model server by settings of its own.

use std::path::PathBuf;
use std::sync::Arc;

use inspan_conformance::{Call, Deviation, Exception, Kind, PLANTED, Place, Rig, Tool};
use inspan_protocol::{DynProvider, Environment, Erased, ErrorCode, StopReason};
use inspan_providers::{OpenCodeProvider, find_opencode};
use serde_json::json;

/// What the program does in its own way.
const EXCEPTIONS: &[Exception] = &[
    Exception {
        behaviour: "refusal",
        kind: Kind::Deviates(Deviation::Ends(StopReason::Complete)),
        reason: "the program does not read the part of an answer in which this vendor's model refuses",
    },
    Exception {
        behaviour: "error_429",
        kind: Kind::Deviates(Deviation::Fails(ErrorCode::Overloaded)),
        reason: "the program tells the words of what it would try again, and neither status nor code",
    },
];

/// The rig of `opencode`.
#[derive(Clone, Copy, Debug, Default)]
pub struct OpenCodeRig;

impl Rig for OpenCodeRig {
    fn provider(&self) -> Arc<dyn DynProvider> {
        Arc::new(Erased(OpenCodeProvider::new()))
    }

    fn environment(&self, place: &Place<'_>) -> Vec<(String, String)> {
        let program = place
            .outer
            .get("INSPAN_OPENCODE")
            .map(|program| ("INSPAN_OPENCODE".to_owned(), program.to_owned()));
        settled(place).into_iter().chain(program).collect()
    }

    fn exceptions(&self) -> &'static [Exception] {
        EXCEPTIONS
    }

    fn missing(&self, outer: &Environment) -> Option<String> {
        find_opencode(outer).err().map(|error| error.message)
    }

    fn call(&self, tool: Tool<'_>) -> Option<Call> {
        Some(Call::shell(tool))
    }

    /// Its server alone takes half a gigabyte of memory.
    fn lanes(&self) -> usize {
        2
    }
}

/// The variables under which the program asks this server, with settings and folders of its own for each server.
/// Settings that cannot be written are told by the program, which then knows no model.
pub(crate) fn settled(place: &Place<'_>) -> Vec<(String, String)> {
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
