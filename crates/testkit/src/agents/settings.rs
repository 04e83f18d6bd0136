//! What each agent CLI needs in a sandbox: folders, variables, and the settings through which it reaches the model.

use std::path::Path;

use anyhow::Context as _;
use inspan_model_server::Endpoints;

use super::Agent;
use crate::sandbox::{PLANTED_KEYS, no_endpoints};

impl Agent {
    /// Its folders in the sandbox.
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
    pub(crate) fn prepare(self, sandbox: &Path) -> anyhow::Result<Vec<(&'static str, String)>> {
        for name in self.folders() {
            let folder = sandbox.join(name);
            std::fs::create_dir_all(&folder)
                .with_context(|| format!("failed to make {}", folder.display()))?;
        }
        self.configure(&no_endpoints(), sandbox)?;
        let text = |name: &str| sandbox.join(name).display().to_string();
        let on = || "1".to_owned();
        let key = PLANTED_KEYS[0].1.to_owned();
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
    pub(crate) fn configure(self, server: &Endpoints, sandbox: &Path) -> anyhow::Result<()> {
        let (place, text) = match self {
            Self::Claude | Self::ClaudeAcp => return Ok(()),
            Self::Codex => ("codex/config.toml", server.codex_config()),
            Self::OpenCode => ("xdg/config/opencode/opencode.json", server.opencode_config().to_string()),
            Self::Droid => {
                let settings = server.droid_settings(PLANTED_KEYS[0].1);
                ("home/.factory/settings.json", settings.to_string())
            }
            Self::Gemini => ("home/.gemini/settings.json", Endpoints::gemini_settings().to_string()),
            Self::Qwen => ("home/.qwen/settings.json", Endpoints::qwen_settings().to_string()),
        };
        let path = sandbox.join(place);
        std::fs::write(&path, text).with_context(|| format!("failed to write {}", path.display()))
    }
}
