//! The provider `claude` as the suite meets it: the real program.

use std::sync::Arc;

use inspan_conformance::{Call, PLANTED, Place, Rig, Tool};
use inspan_protocol::{DynProvider, Erased};
use inspan_providers::ClaudeProvider;
use serde_json::{Map, json};

/// The rig of `claude`.
#[derive(Clone, Copy, Debug, Default)]
pub struct ClaudeRig;

impl Rig for ClaudeRig {
    fn provider(&self) -> Arc<dyn DynProvider> {
        Arc::new(Erased(ClaudeProvider::new()))
    }

    fn environment(&self, place: &Place<'_>) -> Vec<(String, String)> {
        let config = place.folder.display().to_string();
        let own = [
            ("ANTHROPIC_API_KEY", PLANTED),
            ("ANTHROPIC_BASE_URL", place.server),
            ("CLAUDE_CONFIG_DIR", config.as_str()),
            ("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1"),
            ("DISABLE_TELEMETRY", "1"),
        ];
        let program = place.outer.get("INSPAN_CLAUDE").map(|program| ("INSPAN_CLAUDE", program));
        own.into_iter().chain(program).map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
    }

    fn call(&self, tool: Tool<'_>) -> Option<Call> {
        let command = match tool {
            Tool::MakeFile(name) => format!("touch {name}"),
            Tool::RunOn(name, seconds) => format!("touch {name} && sleep {seconds}"),
            _ => return None,
        };
        let input = json!({ "command": command, "description": "make a file" });
        Some(Call { name: "Bash".to_owned(), input, options: Map::new() })
    }
}
