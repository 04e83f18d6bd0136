//! The provider `codex` as the suite meets it: the real program, led to the model server by a configuration of its own.

use std::path::PathBuf;
use std::sync::Arc;

use inspan_conformance::{Call, Deviation, Exception, Kind, PLANTED, Place, Rig, Tool};
use inspan_protocol::{DynProvider, Environment, Erased, ErrorCode, StopReason};
use inspan_providers::{CodexProvider, find_codex};
use serde_json::{Map, Value, json};

/// What the program does in its own way.
const EXCEPTIONS: &[Exception] = &[
    Exception {
        behaviour: "error_429_retry_after",
        kind: Kind::Deviates(Deviation::NoRetryAfter),
        reason: "the program does not hand on how long the server asks to wait",
    },
    Exception {
        behaviour: "error_in_stream",
        kind: Kind::Deviates(Deviation::Fails(ErrorCode::Network)),
        reason: "the program passes over an error within the stream, and tells that the stream ended early",
    },
    Exception {
        behaviour: "garbage",
        kind: Kind::Deviates(Deviation::Ends(StopReason::Complete)),
        reason: "the program passes over an event that it cannot read",
    },
];

/// The rig of `codex`.
#[derive(Clone, Copy, Debug, Default)]
pub struct CodexRig;

impl Rig for CodexRig {
    fn provider(&self) -> Arc<dyn DynProvider> {
        Arc::new(Erased(CodexProvider::new()))
    }

    fn environment(&self, place: &Place<'_>) -> Vec<(String, String)> {
        let own = [("OPENAI_API_KEY", PLANTED.to_owned()), ("CODEX_HOME", home(place).display().to_string())];
        let program = place.outer.get("INSPAN_CODEX").map(|program| ("INSPAN_CODEX", program.to_owned()));
        own.into_iter().chain(program).map(|(name, value)| (name.to_owned(), value)).collect()
    }

    fn exceptions(&self) -> &'static [Exception] {
        EXCEPTIONS
    }

    fn missing(&self, outer: &Environment) -> Option<String> {
        find_codex(outer).err().map(|error| error.message)
    }

    fn call(&self, tool: Tool<'_>) -> Option<Call> {
        Some(Call { options: asking(), ..Call::shell(tool) })
    }
}

/// Options under which it asks before every command that does not only read.
fn asking() -> Map<String, Value> {
    let options = json!({ "approvalPolicy": "untrusted", "sandbox": "workspace-write" });
    options.as_object().cloned().unwrap_or_default()
}

/// A home whose configuration names the server; each server has one of its own. One that cannot be written is told by
/// the program, which then asks another server.
fn home(place: &Place<'_>) -> PathBuf {
    let port = place.server.rsplit(':').next().unwrap_or_default();
    let home = place.folder.join(port);
    drop(
        std::fs::create_dir_all(&home)
            .and_then(|()| std::fs::write(home.join("config.toml"), config(place.server))),
    );
    home
}

fn config(server: &str) -> String {
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

[model_providers.scripted]
name = "scripted"
base_url = "{server}/v1"
env_key = "OPENAI_API_KEY"
wire_api = "responses"
requires_openai_auth = false
supports_websockets = false
"#
    )
}
