//! Agents of the Agent Client Protocol in the suite: one table.

use std::path::{Path, PathBuf};

use inspan_conformance::{Deviation, Exception, PLANTED, Place};
use inspan_model_server::Endpoints;
use inspan_protocol::{ErrorCode, IntoProvider, StopReason};
use inspan_providers::AcpProvider;
use serde_json::{Value, json};

use crate::target::{Target, deviates, missing_on_path, not_applicable, object, on_path, variables};
use crate::{claude, opencode};

pub(crate) const TARGETS: [Target; 5] = [
    Target {
        provider: || AcpProvider::droid().into_provider(),
        environment: |place| {
            let settings = Endpoints::at(place.server).droid_settings(PLANTED);
            let own = [("FACTORY_API_KEY", PLANTED.to_owned())];
            with_home(own, place, "INSPAN_DROID", (".factory/settings.json", &settings))
        },
        options: || object(json!({ "model": "custom:Scripted-0" })),
        exceptions: DROID,
        lanes: 2,
        ..Target::PROGRAM
    },
    Target {
        provider: || AcpProvider::gemini().into_provider(),
        environment: |place| {
            let own = [
                ("GEMINI_API_KEY", PLANTED.to_owned()),
                ("GOOGLE_GEMINI_BASE_URL", Endpoints::at(place.server).gemini()),
            ];
            with_home(own, place, "INSPAN_GEMINI", (".gemini/settings.json", &Endpoints::gemini_settings()))
        },
        exceptions: GEMINI,
        lanes: 2,
        ..Target::PROGRAM
    },
    Target {
        provider: || AcpProvider::qwen().into_provider(),
        environment: |place| {
            let own = [
                ("OPENAI_API_KEY", PLANTED.to_owned()),
                ("OPENAI_BASE_URL", Endpoints::at(place.server).openai()),
                ("OPENAI_MODEL", "scripted-model".to_owned()),
            ];
            with_home(own, place, "INSPAN_QWEN", (".qwen/settings.json", &Endpoints::qwen_settings()))
        },
        exceptions: QWEN,
        lanes: 2,
        ..Target::PROGRAM
    },
    Target {
        name: Some("acp:opencode"),
        provider: || AcpProvider::new().into_provider(),
        environment: opencode::settings,
        options: || {
            object(json!({ "command": "opencode", "args": ["acp"], "passEnv": ["OPENAI_*", "OPENCODE_*"] }))
        },
        missing: |_, outer| missing_on_path("opencode", outer),
        exceptions: OPENCODE,
        lanes: 2,
        ..Target::PROGRAM
    },
    Target {
        name: Some("acp:claude-agent-acp"),
        provider: || AcpProvider::new().into_provider(),
        environment: claude_agent_acp,
        options: || object(json!({ "command": "claude-agent-acp", "passEnv": ["ANTHROPIC_*", "CLAUDE_*"] })),
        missing: |_, outer| missing_on_path("claude-agent-acp", outer),
        exceptions: CLAUDE,
        lanes: 2,
        ..Target::PROGRAM
    },
];

const DROID_AGAIN: &str = "the program tries again by itself";
const GEMINI_AGAIN: &str = "the program tries again by itself, whatever its settings say";
const GEMINI_MINUTE: &str =
    "within the minute in which a conversation began, the program erases it when another process takes it up";
const GEMINI_FORGETS: &str = "the program forgets a turn that was cancelled";
const QWEN_AGAIN: &str =
    "the program tries again by itself for minutes, and tells nobody; only the stall limit ends that";
const NO_STATUS: &str = "the protocol has no place for the status, and the words say nothing that is known";
const TRIES_AGAIN: &str = "the program tries again by itself for as long as it is let, and tells nobody; only the stall limit ends that";

const DROID: &[Exception] = &[
    deviates("text_in_pieces", Deviation::TextInOnePiece, "the program shows a message once it is whole"),
    deviates(
        "max_tokens",
        Deviation::NoEnd,
        "the program asks the model to continue for as long as its answers hit the limit",
    ),
    deviates(
        "prompt_as_written",
        Deviation::Prompt,
        "the agent takes a word after `/` for a command unless something stands before it",
    ),
    deviates(
        "cancel_mid_text",
        Deviation::NoEnd,
        "the program shows a message once it is whole, so that nothing is said when it is cancelled",
    ),
    deviates("usage", Deviation::Usage, "the program does not report tokens"),
    deviates("usage_per_turn", Deviation::Usage, "the program does not report tokens"),
    deviates(
        "permission_denied",
        Deviation::Text,
        "the program ends its turn when a question is answered with no",
    ),
    deviates(
        "permission_nobody",
        Deviation::Text,
        "the program ends its turn when a question is answered with no",
    ),
    deviates("error_413", Deviation::Requests(2), "the program shortens the conversation and asks again"),
    deviates("error_429", Deviation::Requests(4), DROID_AGAIN),
    deviates(
        "error_429_retry_after",
        Deviation::NoRetryAfter,
        "the program does not pass on how long the server asks to wait",
    ),
    deviates("error_500", Deviation::NoEnd, DROID_AGAIN),
    deviates("error_529", Deviation::NoEnd, DROID_AGAIN),
    deviates("error_in_stream", Deviation::NoEnd, DROID_AGAIN),
    deviates("truncated", Deviation::Requests(4), DROID_AGAIN),
    deviates(
        "garbage",
        Deviation::Fails(ErrorCode::Network),
        "the program reports an event that it cannot read as a connection that failed",
    ),
];

const GEMINI: &[Exception] = &[
    deviates("thinking", Deviation::Thinking, "the program puts a heading before each piece of a thought"),
    deviates(
        "max_tokens",
        Deviation::Ends(StopReason::Complete),
        "the program reports an answer that was cut off as complete",
    ),
    deviates("refusal", Deviation::Ends(StopReason::Complete), "the program reports a refusal as an answer"),
    deviates(
        "prompt_as_written",
        Deviation::Prompt,
        "the agent takes a word after `/` for a command unless something stands before it",
    ),
    not_applicable("resume_in_a_new_process", GEMINI_MINUTE),
    deviates("cancel_mid_text", Deviation::History, GEMINI_FORGETS),
    deviates(
        "usage",
        Deviation::Usage,
        "the program counts cached tokens as input, and does not say how many they are",
    ),
    not_applicable("usage_per_turn", GEMINI_MINUTE),
    deviates("message_steers", Deviation::History, GEMINI_FORGETS),
    deviates(
        "error_404",
        Deviation::Fails(ErrorCode::Overloaded),
        "the program reports a missing model as a failure of the server",
    ),
    deviates("error_429", Deviation::Requests(3), GEMINI_AGAIN),
    deviates(
        "error_429_retry_after",
        Deviation::NoRetryAfter,
        "the program does not pass on how long the server asks to wait",
    ),
    deviates("error_500", Deviation::Requests(3), GEMINI_AGAIN),
    deviates("error_529", Deviation::Requests(3), GEMINI_AGAIN),
    deviates(
        "error_in_stream",
        Deviation::Ends(StopReason::Complete),
        "the program ignores an error within the stream",
    ),
    deviates(
        "truncated",
        Deviation::Fails(ErrorCode::Overloaded),
        "the program reports a stream that breaks off as a failure of the server",
    ),
    deviates(
        "garbage",
        Deviation::Fails(ErrorCode::Overloaded),
        "the program reports an event that it cannot read as a failure of the server",
    ),
    deviates("connection_refused", Deviation::NoEnd, GEMINI_AGAIN),
];

const QWEN: &[Exception] = &[
    deviates(
        "max_tokens",
        Deviation::Ends(StopReason::Complete),
        "the program reports an answer that was cut off as complete",
    ),
    deviates(
        "refusal",
        Deviation::Fails(ErrorCode::Network),
        "the program does not read the part of an answer in which this vendor's model refuses",
    ),
    deviates(
        "prompt_as_written",
        Deviation::Prompt,
        "the agent takes a word after `/` for a command unless something stands before it",
    ),
    deviates("error_429", Deviation::NoEnd, QWEN_AGAIN),
    deviates("error_429_retry_after", Deviation::NoEnd, QWEN_AGAIN),
    deviates("error_500", Deviation::NoEnd, QWEN_AGAIN),
    deviates("error_529", Deviation::NoEnd, QWEN_AGAIN),
    deviates(
        "garbage",
        Deviation::Fails(ErrorCode::Network),
        "the program reports an event that it cannot read as a connection that failed",
    ),
];

const OPENCODE: &[Exception] = &[
    deviates(
        "max_tokens",
        Deviation::Ends(StopReason::Complete),
        "the program tells an answer that was cut off as one that ended",
    ),
    deviates(
        "refusal",
        Deviation::Ends(StopReason::Complete),
        "the program does not read the part of an answer in which this vendor's model refuses",
    ),
    deviates(
        "prompt_as_written",
        Deviation::Prompt,
        "the agent takes a word after `/` for a command unless something stands before it",
    ),
    deviates(
        "permission_denied",
        Deviation::Text,
        "the program ends its turn when a question is answered with no",
    ),
    deviates(
        "permission_nobody",
        Deviation::Text,
        "the program ends its turn when a question is answered with no",
    ),
    deviates(
        "key_nowhere",
        Deviation::Fails(ErrorCode::Network),
        "no key shows; the code is another one, since the protocol has no place for the status",
    ),
    deviates("error_400", Deviation::Fails(ErrorCode::Network), NO_STATUS),
    deviates("error_401", Deviation::Fails(ErrorCode::Network), NO_STATUS),
    deviates("error_403", Deviation::Fails(ErrorCode::Network), NO_STATUS),
    deviates("error_404", Deviation::Fails(ErrorCode::Network), NO_STATUS),
    deviates("error_429", Deviation::NoEnd, TRIES_AGAIN),
    deviates("error_429_retry_after", Deviation::NoEnd, TRIES_AGAIN),
    deviates("error_500", Deviation::NoEnd, TRIES_AGAIN),
    deviates("error_529", Deviation::NoEnd, TRIES_AGAIN),
    deviates("error_in_stream", Deviation::NoEnd, TRIES_AGAIN),
    deviates("truncated", Deviation::NoEnd, TRIES_AGAIN),
    deviates("garbage", Deviation::NoEnd, TRIES_AGAIN),
    deviates("connection_refused", Deviation::NoEnd, TRIES_AGAIN),
];

const CLAUDE: &[Exception] = &[
    deviates(
        "max_tokens",
        Deviation::Fails(ErrorCode::ContextLength),
        "the program lets the model go on three times, and then tells an error",
    ),
    deviates(
        "prompt_as_written",
        Deviation::Prompt,
        "the agent takes a word after `/` for a command unless something stands before it",
    ),
    deviates(
        "error_404",
        Deviation::Requests(2),
        "the program asks a second time for a model that is not found",
    ),
    deviates("error_413", Deviation::Fails(ErrorCode::InvalidRequest), NO_STATUS),
    deviates(
        "error_429_retry_after",
        Deviation::NoRetryAfter,
        "the program does not hand on how long the server asks to wait",
    ),
    deviates(
        "garbage",
        Deviation::Fails(ErrorCode::Network),
        "the program tells an event that it cannot read as a connection that failed",
    ),
];

/// The agent runs the Claude Code that `CLAUDE_CODE_EXECUTABLE` names, or the `claude` that the provider `claude` would run.
fn claude_agent_acp(place: &Place<'_>) -> Vec<(String, String)> {
    let mut all = variables(claude::settings(place), place, "CLAUDE_CODE_EXECUTABLE");
    all.push(("CLAUDE_CODE_MAX_RETRIES".to_owned(), "0".to_owned()));
    if place.outer.get("CLAUDE_CODE_EXECUTABLE").is_none() {
        let named = place.outer.get("INSPAN_CLAUDE").map(PathBuf::from);
        let claude = named.or_else(|| on_path("claude", place.outer));
        all.extend(claude.map(|path| ("CLAUDE_CODE_EXECUTABLE".to_owned(), path.display().to_string())));
    }
    all
}

/// The variables of a program that has its settings below the user's home: a home for each server, with these settings. If
/// they cannot be written, the program does not reach the server, and the suite reports that.
fn with_home<const N: usize>(
    own: [(&'static str, String); N],
    place: &Place<'_>,
    program: &str,
    (file, settings): (&str, &Value),
) -> Vec<(String, String)> {
    let home = place.folder.join(place.server.rsplit(':').next().unwrap_or_default());
    drop(write(&home.join(file), settings));
    let mut variables = variables(own, place, program);
    variables.push(("HOME".to_owned(), home.display().to_string()));
    variables
}

fn write(path: &Path, settings: &Value) -> std::io::Result<()> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    std::fs::write(path, settings.to_string())
}
