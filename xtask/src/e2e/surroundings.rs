//! What each agent's program needs around it in the world of a case: folders, variables, and the way to the model.

use std::path::Path;

use anyhow::Context as _;
use inspan_model_server::Endpoints;

use super::install::Agent;

/// Planted as the keys of every case; no artefact may contain one of them.
pub(super) const PLANTED_KEYS: [(&str, &str); 2] = [
    ("ANTHROPIC_API_KEY", inspan_conformance::PLANTED),
    ("OPENAI_API_KEY", "sk-proj-planted-7c2e5a904b1f48d3-not-a-key"),
];

/// Nothing listens there.
pub(super) fn nowhere() -> Endpoints {
    Endpoints::at("http://127.0.0.1:1")
}

impl Agent {
    /// Its own folders within the world's.
    fn folders(self) -> &'static [&'static str] {
        match self {
            Self::Claude => &["claude"],
            Self::Codex => &["codex"],
            Self::OpenCode => &["xdg/config/opencode", "xdg/data", "xdg/state", "xdg/cache"],
            Self::ClaudeAcp => &[],
            Self::Droid => &["home/.factory"],
            Self::Gemini => &["home/.gemini"],
            Self::Qwen => &["home/.qwen"],
        }
    }

    /// Makes its folders, and returns its variables.
    pub(super) fn settle(self, world: &Path) -> anyhow::Result<Vec<(&'static str, String)>> {
        for name in self.folders() {
            let folder = world.join(name);
            std::fs::create_dir_all(&folder)
                .with_context(|| format!("failed to make {}", folder.display()))?;
        }
        self.lead_to(&nowhere(), world)?;
        let text = |name: &str| world.join(name).display().to_string();
        let on = || "1".to_owned();
        let key = inspan_conformance::PLANTED.to_owned();
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
            Self::Droid => vec![("FACTORY_API_KEY", key)],
            Self::Gemini => vec![("GEMINI_API_KEY", key)],
            Self::Qwen => vec![("OPENAI_MODEL", "scripted-model".to_owned())],
        })
    }

    /// Writes the settings through which it reaches the model server, for programs that take no variable for it.
    pub(super) fn lead_to(self, server: &Endpoints, world: &Path) -> anyhow::Result<()> {
        let (place, text) = match self {
            Self::Claude | Self::ClaudeAcp => return Ok(()),
            Self::Codex => ("codex/config.toml", server.codex_config()),
            Self::OpenCode => ("xdg/config/opencode/opencode.json", server.opencode_config().to_string()),
            Self::Droid => {
                let settings = server.droid_settings(inspan_conformance::PLANTED);
                ("home/.factory/settings.json", settings.to_string())
            }
            Self::Gemini => ("home/.gemini/settings.json", Endpoints::gemini_settings().to_string()),
            Self::Qwen => ("home/.qwen/settings.json", Endpoints::qwen_settings().to_string()),
        };
        let path = world.join(place);
        std::fs::write(&path, text).with_context(|| format!("failed to write {}", path.display()))
    }
}
