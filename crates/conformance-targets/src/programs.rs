//! The agent CLIs `claude`, `codex` and `opencode` in the suite.

use std::path::Path;
use std::sync::Arc;

use inspan_conformance::{ConformanceTarget, Deviation, Exception, ModelCall, PLANTED, TargetContext};
use inspan_protocol::{DynProvider, ErrorCode, IntoProvider, StopReason};
use inspan_providers::{ClaudeProvider, CodexProvider, OpenCodeProvider};
use serde_json::{Map, Value, json};

pub(crate) const TARGETS: [ConformanceTarget; 3] = [
    ConformanceTarget {
        exceptions: CLAUDE,
        ..program(|| ClaudeProvider::new().into_provider(), claude_variables)
    },
    ConformanceTarget {
        // The adapter has to set the retries.
        change_settings: |config| {
            let lines = config.as_str().unwrap_or_default().lines();
            let left: Vec<_> =
                lines.filter(|line| !line.contains("retries") && *line != "[features]").collect();
            *config = left.join("\n").into();
        },
        // With these options it asks before every command that does not only read.
        call: |tool| {
            let options = object(json!({ "approvalPolicy": "untrusted", "sandbox": "workspace-write" }));
            Some(ModelCall { options, ..ModelCall::shell(tool) })
        },
        exceptions: CODEX,
        ..program(
            || CodexProvider::new().into_provider(),
            |_| variables([("OPENAI_API_KEY", PLANTED.to_owned())]),
        )
    },
    ConformanceTarget {
        change_settings: ask_before_changes,
        exceptions: OPENCODE,
        // Its server alone takes half a gigabyte of memory.
        workers: 2,
        ..program(|| OpenCodeProvider::new().into_provider(), opencode_variables)
    },
];

/// An agent CLI whose shell tool asks without further options.
pub(crate) const fn program(
    provider: fn() -> Arc<dyn DynProvider>,
    environment: fn(&TargetContext<'_>) -> Vec<(String, String)>,
) -> ConformanceTarget {
    ConformanceTarget {
        call: |tool| Some(ModelCall::shell(tool)),
        ..ConformanceTarget::new(provider, environment)
    }
}

/// An agent CLI that does not report how long the server asks to wait.
pub(crate) const NO_RETRY_AFTER: Exception = Exception::deviates(
    &["error_429_retry_after"],
    Deviation::NoRetryAfter,
    "the program does not pass on how long the server asks to wait",
);
/// An agent CLI that reports an event it cannot read as a failed connection.
pub(crate) const GARBAGE_IS_NETWORK: Exception = Exception::deviates(
    &["garbage"],
    Deviation::Fails(ErrorCode::Network),
    "the program reports an event that it cannot read as a connection that failed",
);
/// Claude Code takes a request that is refused for one of its newer features, and tries without them. No variable changes that.
pub(crate) const ASKS_WITHOUT_FEATURES: &str =
    "the program asks five times more, each time with fewer of its newer features";
/// A format in which an agent CLI does not read a refusal.
pub(crate) const REFUSAL_NOT_READ: &str =
    "the program does not read the part of an answer in which this vendor's model refuses";

const CLAUDE: &[Exception] = &[
    Exception::deviates(
        &["max_tokens"],
        Deviation::Text,
        "the program lets the model continue three times before it ends the turn",
    ),
    Exception::deviates(&["error_400"], Deviation::Requests(6), ASKS_WITHOUT_FEATURES),
    Exception::deviates(
        &["error_404"],
        Deviation::Requests(2),
        "the program asks a second time for a model that is not found, whatever its retries are set to",
    ),
    NO_RETRY_AFTER,
    GARBAGE_IS_NETWORK,
];

const CODEX: &[Exception] = &[
    NO_RETRY_AFTER,
    Exception::deviates(
        &["error_in_stream"],
        Deviation::Fails(ErrorCode::Network),
        "the program ignores an error within the stream, and reports that the stream ended early",
    ),
    Exception::deviates(
        &["garbage"],
        Deviation::Ends(StopReason::Complete),
        "the program ignores an event that it cannot read",
    ),
];

const OPENCODE: &[Exception] = &[
    Exception::deviates(&["refusal"], Deviation::Ends(StopReason::Complete), REFUSAL_NOT_READ),
    Exception::deviates(
        &["error_429"],
        Deviation::Fails(ErrorCode::Overloaded),
        "the program reports the words of what it would try again, and neither status nor code",
    ),
];

/// What every Claude Code is given, also the one that an ACP agent runs.
pub(crate) fn claude_variables(context: &TargetContext<'_>) -> Vec<(String, String)> {
    variables([
        ("ANTHROPIC_API_KEY", PLANTED.to_owned()),
        ("ANTHROPIC_BASE_URL", context.server.to_owned()),
        ("CLAUDE_CONFIG_DIR", text(context.folder)),
        ("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1".to_owned()),
        ("DISABLE_TELEMETRY", "1".to_owned()),
    ])
}

/// A key and separate folders for each server; nothing else is called.
pub(crate) fn opencode_variables(context: &TargetContext<'_>) -> Vec<(String, String)> {
    let home = context.own_folder();
    let folder = |name: &str| text(&home.join(name));
    // In a new home it installs a package of its own from the registry, and in its first turn it reads a list of
    // thousands of models and of all files.
    context.write(".npmrc", "offline=true\n");
    let models = context.write("models.json", "{}\n");
    let own = variables([
        ("HOME", text(&home)),
        ("XDG_DATA_HOME", folder("data")),
        ("XDG_STATE_HOME", folder("state")),
        ("XDG_CACHE_HOME", folder("cache")),
        ("OPENCODE_MODELS_PATH", text(&models)),
        ("OPENAI_API_KEY", PLANTED.to_owned()),
    ]);
    let off = [
        "FFF",
        "MODELS_FETCH",
        "AUTOUPDATE",
        "LSP_DOWNLOAD",
        "DEFAULT_PLUGINS",
        "SHARE",
        "CLAUDE_CODE",
        "EMBEDDED_WEB_UI",
    ];
    own.into_iter().chain(off.map(|what| (format!("OPENCODE_DISABLE_{what}"), "1".to_owned()))).collect()
}

/// OpenCode asks before each command and each change of a file.
pub(crate) fn ask_before_changes(settings: &mut Value) {
    settings["permission"] = json!({ "bash": "ask", "edit": "ask" });
}

/// Variables for an environment.
pub(crate) fn variables<const N: usize>(variables: [(&str, String); N]) -> Vec<(String, String)> {
    variables.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

pub(crate) fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(fields) => fields,
        _ => Map::new(),
    }
}

pub(crate) fn text(path: &Path) -> String {
    path.display().to_string()
}
