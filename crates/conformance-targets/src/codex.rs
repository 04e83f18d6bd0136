//! The provider `codex` in the suite: the real program, directed to the model server by a configuration of its own.

use std::path::PathBuf;

use inspan_conformance::{Call, Deviation, Exception, PLANTED, Place};
use inspan_protocol::{ErrorCode, IntoProvider, StopReason};
use inspan_providers::CodexProvider;
use serde_json::{Map, Value, json};

use crate::target::{Target, deviates, variables};

pub(crate) const TARGET: Target = Target {
    provider: || CodexProvider::new().into_provider(),
    environment,
    call: |tool| Some(Call { options: asking(), ..Call::shell(tool) }),
    exceptions: EXCEPTIONS,
    ..Target::PROGRAM
};

const EXCEPTIONS: &[Exception] = &[
    deviates(
        "error_429_retry_after",
        Deviation::NoRetryAfter,
        "the program does not hand on how long the server asks to wait",
    ),
    deviates(
        "error_in_stream",
        Deviation::Fails(ErrorCode::Network),
        "the program passes over an error within the stream, and tells that the stream ended early",
    ),
    deviates(
        "garbage",
        Deviation::Ends(StopReason::Complete),
        "the program passes over an event that it cannot read",
    ),
];

fn environment(place: &Place<'_>) -> Vec<(String, String)> {
    let own = [("OPENAI_API_KEY", PLANTED.to_owned()), ("CODEX_HOME", home(place).display().to_string())];
    variables(own, place, "INSPAN_CODEX")
}

/// Options under which it asks before every command that does not only read.
fn asking() -> Map<String, Value> {
    let options = json!({ "approvalPolicy": "untrusted", "sandbox": "workspace-write" });
    options.as_object().cloned().unwrap_or_default()
}

/// A home whose configuration names the server; each server has one of its own. If it cannot be written, the program calls
/// another server, and the suite reports that.
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
