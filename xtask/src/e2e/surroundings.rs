//! What each agent's program needs around it in the world of a case: folders, variables, and the way to the model.
//! Putting the programs there is left to `install.rs`, the world itself to `world.rs`.

use std::path::Path;

use anyhow::Context as _;
use serde_json::json;

use super::install::Agent;

/// Planted as the keys of every case; no artefact may contain one of them.
pub(super) const PLANTED_KEYS: [(&str, &str); 2] = [
    ("ANTHROPIC_API_KEY", inspan_conformance::PLANTED),
    ("OPENAI_API_KEY", "sk-proj-planted-7c2e5a904b1f48d3-not-a-key"),
];

/// Nothing listens there.
pub(super) const NOWHERE: &str = "http://127.0.0.1:1";

/// What leads clients of either vendor to the server, whether they are programs or `inspan` itself.
pub(super) fn ways_to(server: &str) -> [(&'static str, String); 2] {
    [("ANTHROPIC_BASE_URL", server.to_owned()), ("OPENAI_BASE_URL", format!("{server}/v1"))]
}

impl Agent {
    /// Its own folders within the world's.
    fn folders(self) -> &'static [&'static str] {
        match self {
            Self::Claude => &["claude"],
            Self::Codex => &["codex"],
            Self::OpenCode => &["xdg/config/opencode", "xdg/data", "xdg/state", "xdg/cache"],
            Self::ClaudeAcp => &[],
        }
    }

    /// Makes its folders, and returns its variables.
    pub(super) fn settle(self, world: &Path) -> anyhow::Result<Vec<(&'static str, String)>> {
        for name in self.folders() {
            let folder = world.join(name);
            std::fs::create_dir_all(&folder)
                .with_context(|| format!("failed to make {}", folder.display()))?;
        }
        self.lead_to(NOWHERE, world)?;
        let text = |name: &str| world.join(name).display().to_string();
        let on = || "1".to_owned();
        Ok(match self {
            Self::Claude => vec![
                ("CLAUDE_CONFIG_DIR", text("claude")),
                ("DISABLE_TELEMETRY", on()),
                ("DISABLE_AUTOUPDATER", on()),
                ("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", on()),
            ],
            Self::Codex => vec![("CODEX_HOME", text("codex"))],
            Self::OpenCode => vec![
                ("XDG_CONFIG_HOME", text("xdg/config")),
                ("XDG_DATA_HOME", text("xdg/data")),
                ("XDG_STATE_HOME", text("xdg/state")),
                ("XDG_CACHE_HOME", text("xdg/cache")),
                ("OPENCODE_DISABLE_MODELS_FETCH", on()),
                ("OPENCODE_DISABLE_AUTOUPDATE", on()),
                ("OPENCODE_DISABLE_LSP_DOWNLOAD", on()),
                ("OPENCODE_DISABLE_DEFAULT_PLUGINS", on()),
                ("OPENCODE_DISABLE_SHARE", on()),
                ("OPENCODE_DISABLE_CLAUDE_CODE", on()),
            ],
            Self::ClaudeAcp => vec![("CLAUDE_CODE_EXECUTABLE", text("bin/claude"))],
        })
    }

    /// Writes the settings through which it reaches the model server, for programs that take no variable for it.
    pub(super) fn lead_to(self, server: &str, world: &Path) -> anyhow::Result<()> {
        let (place, text) = match self {
            Self::Claude | Self::ClaudeAcp => return Ok(()),
            Self::Codex => ("codex/config.toml", codex_config(server)),
            Self::OpenCode => ("xdg/config/opencode/opencode.json", opencode_config(server)),
        };
        let path = world.join(place);
        std::fs::write(&path, text).with_context(|| format!("failed to write {}", path.display()))
    }
}

/// Its own retries are off, since those of the engine are under test, and it asks nobody but the model.
fn codex_config(server: &str) -> String {
    format!(
        r#"model = "scripted-model"
model_provider = "scripted"
check_for_update_on_startup = false

[analytics]
enabled = false

[feedback]
enabled = false

[otel]
exporter = "none"

[features]
unbounded_connection_retries = false

[model_providers.scripted]
name = "scripted"
base_url = "{server}/v1"
env_key = "OPENAI_API_KEY"
wire_api = "responses"
requires_openai_auth = false
supports_websockets = false
request_max_retries = 0
stream_max_retries = 0
"#
    )
}

/// One provider with one model; no sharing, no updates, no compaction that would ask the model again.
fn opencode_config(server: &str) -> String {
    let model = json!({
        "name": "Scripted",
        "limit": { "context": 200_000, "output": 8192 },
        "cost": { "input": 3, "output": 15 },
        "tool_call": true,
        "reasoning": true
    });
    let config = json!({
        "model": "scripted/scripted-model",
        "small_model": "scripted/scripted-model",
        "autoupdate": false,
        "share": "disabled",
        "snapshot": false,
        "compaction": { "auto": false },
        "enabled_providers": ["scripted"],
        "provider": {
            "scripted": {
                "npm": "@ai-sdk/openai-compatible",
                "name": "scripted",
                "options": { "baseURL": format!("{server}/v1"), "apiKey": "{env:OPENAI_API_KEY}" },
                "models": { "scripted-model": model }
            }
        }
    });
    config.to_string()
}
