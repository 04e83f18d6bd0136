//! What each agent CLI needs in a sandbox: folders, variables, and the settings through which it reaches the model.

use std::path::Path;

use anyhow::Context as _;
use inspan_protocol::{ModelServerAddress, ProgramSetup};

use super::Agent;
use crate::sandbox::PLANTED_KEYS;

impl Agent {
    /// Makes its folders, and returns its variables.
    pub(crate) fn prepare(self, sandbox: &Path) -> anyhow::Result<Vec<(String, String)>> {
        let on = || "1".to_owned();
        let key = PLANTED_KEYS[0].1.to_owned();
        let variables = match self {
            Self::Claude => vec![
                ("DISABLE_TELEMETRY", on()),
                ("DISABLE_AUTOUPDATER", on()),
                ("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", on()),
            ],
            Self::Codex => Vec::new(),
            Self::OpenCode => {
                // In a new home it installs a package of its own from the registry, and in its first turn it reads a list
                // of thousands of models and of all files: most of its time, and in vain here.
                let (npm, models) = (sandbox.join("home/.npmrc"), sandbox.join("home/models.json"));
                for (path, text) in [(&npm, "offline=true\n"), (&models, "{}\n")] {
                    std::fs::write(path, text)
                        .with_context(|| format!("failed to write {}", path.display()))?;
                }
                vec![
                    ("OPENCODE_MODELS_PATH", models.display().to_string()),
                    ("OPENCODE_DISABLE_FFF", on()),
                    ("OPENCODE_DISABLE_MODELS_FETCH", on()),
                    ("OPENCODE_DISABLE_AUTOUPDATE", on()),
                    ("OPENCODE_DISABLE_LSP_DOWNLOAD", on()),
                    ("OPENCODE_DISABLE_DEFAULT_PLUGINS", on()),
                    ("OPENCODE_DISABLE_SHARE", on()),
                    ("OPENCODE_DISABLE_CLAUDE_CODE", on()),
                    ("OPENCODE_DISABLE_EMBEDDED_WEB_UI", on()),
                ]
            }
            Self::ClaudeAcp => {
                vec![("CLAUDE_CODE_EXECUTABLE", sandbox.join("bin/claude").display().to_string())]
            }
            Self::Droid => vec![("FACTORY_API_KEY", key)],
            Self::Gemini => vec![("GEMINI_API_KEY", key)],
            Self::Qwen => vec![("OPENAI_MODEL", "scripted-model".to_owned())],
        };
        let folders: &[&str] = match self {
            Self::Claude => &["CLAUDE_CONFIG_DIR"],
            Self::OpenCode => &["XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME"],
            _ => &[],
        };
        let folders = folders.iter().map(|variable| own_folder(sandbox, variable));
        let variables = variables.into_iter().map(|(name, value)| Ok((name.to_owned(), value)));
        variables.chain(folders).collect()
    }
}

/// Writes the settings by which this program asks the model server; the variable that names their folder.
pub(crate) fn write_settings(
    program: &ProgramSetup,
    server: &str,
    sandbox: &Path,
) -> anyhow::Result<Option<(String, String)>> {
    let Some(settings) = program.model_settings else { return Ok(None) };
    let settings = settings(&ModelServerAddress { base: server, key: PLANTED_KEYS[0].1 });
    let (variable, folder) = own_folder(sandbox, settings.folder)?;
    let path = Path::new(&folder).join(settings.file);
    make(path.parent().unwrap_or(&path))?;
    std::fs::write(&path, settings.text()).with_context(|| format!("failed to write {}", path.display()))?;
    Ok(Some((variable, folder)))
}

/// Makes the folder that this variable is to name, and returns both.
fn own_folder(sandbox: &Path, variable: &str) -> anyhow::Result<(String, String)> {
    let folder = sandbox.join(variable.to_lowercase());
    make(&folder)?;
    Ok((variable.to_owned(), folder.display().to_string()))
}

fn make(folder: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(folder).with_context(|| format!("failed to make {}", folder.display()))
}
