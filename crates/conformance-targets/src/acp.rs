//! Agents of the Agent Client Protocol in the suite: one table.

use std::path::PathBuf;
use std::sync::Arc;

use inspan_conformance::{ConformanceTarget, Deviation, Exception, PLANTED, TargetContext};
use inspan_protocol::{DynProvider, Environment, ErrorCode, IntoProvider, StopReason};
use inspan_providers::{AcpProvider, OpenCodeProvider};
use serde_json::json;

use crate::programs::{
    ASKS_WITHOUT_FEATURES, GARBAGE_IS_NETWORK, NO_RETRY_AFTER, REFUSAL_NOT_READ, ask_before_changes,
    claude_variables, object, opencode_variables, program, text, variables,
};

pub(crate) const TARGETS: [ConformanceTarget; 5] = [
    ConformanceTarget {
        options: || object(json!({ "model": "custom:Scripted-0" })),
        exceptions: DROID,
        ..agent(
            || AcpProvider::droid().into_provider(),
            |_| variables([("FACTORY_API_KEY", PLANTED.to_owned())]),
        )
    },
    ConformanceTarget {
        exceptions: GEMINI,
        ..agent(
            || AcpProvider::gemini().into_provider(),
            |context| {
                variables([
                    ("GEMINI_API_KEY", PLANTED.to_owned()),
                    ("GOOGLE_GEMINI_BASE_URL", context.server.to_owned()),
                ])
            },
        )
    },
    ConformanceTarget {
        exceptions: QWEN,
        ..agent(
            || AcpProvider::qwen().into_provider(),
            |context| {
                variables([
                    ("OPENAI_API_KEY", PLANTED.to_owned()),
                    ("OPENAI_BASE_URL", format!("{}/v1", context.server)),
                    ("OPENAI_MODEL", "scripted-model".to_owned()),
                ])
            },
        )
    },
    ConformanceTarget {
        name: Some("acp:opencode"),
        options: || {
            object(json!({ "command": "opencode", "args": ["acp"], "passEnv": ["OPENAI_*", "OPENCODE_*"] }))
        },
        missing: |_, caller_env| missing_on_path("opencode", caller_env),
        exceptions: OPENCODE,
        ..agent(any, |context| {
            let program = OpenCodeProvider::new().into_provider().setup().program();
            let settings = program.and_then(|program| context.model_settings(&program, ask_before_changes));
            opencode_variables(context).into_iter().chain(settings).collect()
        })
    },
    ConformanceTarget {
        name: Some("acp:claude-agent-acp"),
        options: || object(json!({ "command": "claude-agent-acp", "passEnv": ["ANTHROPIC_*", "CLAUDE_*"] })),
        missing: |_, caller_env| missing_on_path("claude-agent-acp", caller_env),
        exceptions: CLAUDE,
        ..agent(any, claude_agent_acp)
    },
];

/// What the agents have in common.
const fn agent(
    provider: fn() -> Arc<dyn DynProvider>,
    environment: fn(&TargetContext<'_>) -> Vec<(String, String)>,
) -> ConformanceTarget {
    ConformanceTarget { workers: 2, ..program(provider, environment) }
}

fn any() -> Arc<dyn DynProvider> {
    AcpProvider::new().into_provider()
}

const SLASH_COMMANDS: Exception = Exception::deviates(
    &["prompt_as_written"],
    Deviation::Prompt,
    "the agent takes a word after `/` for a command unless other text is before it",
);
const CUT_IS_COMPLETE: Exception = Exception::deviates(
    &["max_tokens"],
    Deviation::Ends(StopReason::Complete),
    "the program reports an answer that was cut off as complete",
);
const NO_STATUS: &str = "the protocol has no place for the status, and the words say nothing that is known";

const DROID_RETRIES: &str = "the program tries again by itself";
const GEMINI_RETRIES: &str = "the program tries again by itself, whatever its settings say";
const GEMINI_MINUTE: &str =
    "within the minute in which a conversation began, the program erases it when another process resumes it";
const QWEN_RETRIES: &str =
    "the program tries again by itself for minutes without reporting it; only the stall limit ends that";
const OPENCODE_RETRIES: &str =
    "the program tries again by itself without end and without reporting it; only the stall limit ends that";

const DROID: &[Exception] = &[
    Exception::deviates(
        &["text_in_pieces"],
        Deviation::TextInOnePiece,
        "the program shows a message once it is whole",
    ),
    Exception::deviates(
        &["max_tokens"],
        Deviation::NoEnd,
        "the program asks the model to continue for as long as its answers hit the limit",
    ),
    SLASH_COMMANDS,
    Exception::deviates(
        &["cancel_mid_text"],
        Deviation::NoEnd,
        "the program shows a message once it is whole, so that there is no text when it is cancelled",
    ),
    Exception::deviates(&["usage", "usage_per_turn"], Deviation::Usage, "the program does not report tokens"),
    Exception::deviates(
        &["error_413"],
        Deviation::Requests(2),
        "the program shortens the conversation and asks again",
    ),
    NO_RETRY_AFTER,
    Exception::deviates(&["error_429", "truncated"], Deviation::Requests(4), DROID_RETRIES),
    Exception::deviates(&["error_500", "error_529", "error_in_stream"], Deviation::NoEnd, DROID_RETRIES),
    GARBAGE_IS_NETWORK,
];

const GEMINI: &[Exception] = &[
    Exception::deviates(
        &["thinking"],
        Deviation::Thinking,
        "the program puts a heading before each piece of a thought",
    ),
    CUT_IS_COMPLETE,
    Exception::deviates(
        &["refusal"],
        Deviation::Ends(StopReason::Complete),
        "the program reports a refusal as an answer",
    ),
    SLASH_COMMANDS,
    Exception::not_applicable(&["resume_in_a_new_process", "usage_per_turn"], GEMINI_MINUTE),
    Exception::deviates(
        &["cancel_mid_text", "message_steers"],
        Deviation::History,
        "the program forgets a turn that was cancelled",
    ),
    Exception::deviates(
        &["usage"],
        Deviation::Usage,
        "the program counts cached tokens as input, and does not report how many they are",
    ),
    Exception::deviates(
        &["error_404"],
        Deviation::Fails(ErrorCode::Overloaded),
        "the program reports a missing model as a failure of the server",
    ),
    Exception::deviates(&["error_429", "error_500", "error_529"], Deviation::Requests(3), GEMINI_RETRIES),
    NO_RETRY_AFTER,
    Exception::deviates(
        &["error_in_stream"],
        Deviation::Ends(StopReason::Complete),
        "the program ignores an error within the stream",
    ),
    Exception::deviates(
        &["truncated"],
        Deviation::Fails(ErrorCode::Overloaded),
        "the program reports a stream that breaks off as a failure of the server",
    ),
    Exception::deviates(
        &["garbage"],
        Deviation::Fails(ErrorCode::Overloaded),
        "the program reports an event that it cannot read as a failure of the server",
    ),
    Exception::deviates(&["connection_refused"], Deviation::NoEnd, GEMINI_RETRIES),
];

const QWEN: &[Exception] = &[
    CUT_IS_COMPLETE,
    Exception::deviates(&["refusal"], Deviation::Fails(ErrorCode::Network), REFUSAL_NOT_READ),
    SLASH_COMMANDS,
    Exception::deviates(
        &["error_429", "error_429_retry_after", "error_500", "error_529"],
        Deviation::NoEnd,
        QWEN_RETRIES,
    ),
    GARBAGE_IS_NETWORK,
];

const OPENCODE: &[Exception] = &[
    CUT_IS_COMPLETE,
    Exception::deviates(&["refusal"], Deviation::Ends(StopReason::Complete), REFUSAL_NOT_READ),
    SLASH_COMMANDS,
    Exception::deviates(
        &["key_nowhere"],
        Deviation::Fails(ErrorCode::Network),
        "no key shows; the code is another one, since the protocol has no place for the status",
    ),
    Exception::deviates(
        &["error_400", "error_401", "error_403", "error_404"],
        Deviation::Fails(ErrorCode::Network),
        NO_STATUS,
    ),
    Exception::deviates(
        &[
            "error_429",
            "error_429_retry_after",
            "error_500",
            "error_529",
            "error_in_stream",
            "truncated",
            "garbage",
            "connection_refused",
        ],
        Deviation::NoEnd,
        OPENCODE_RETRIES,
    ),
];

const CLAUDE: &[Exception] = &[
    Exception::deviates(
        &["max_tokens"],
        Deviation::Fails(ErrorCode::ContextLength),
        "the program lets the model continue three times, and then reports an error",
    ),
    SLASH_COMMANDS,
    Exception::deviates(&["error_400"], Deviation::Requests(6), ASKS_WITHOUT_FEATURES),
    Exception::deviates(
        &["error_404"],
        Deviation::Requests(2),
        "the program asks a second time for a model that is not found",
    ),
    Exception::deviates(&["error_413"], Deviation::Fails(ErrorCode::InvalidRequest), NO_STATUS),
    NO_RETRY_AFTER,
    GARBAGE_IS_NETWORK,
];

/// The agent runs the Claude Code that `CLAUDE_CODE_EXECUTABLE` names, or the `claude` that the provider `claude` would
/// run.
fn claude_agent_acp(context: &TargetContext<'_>) -> Vec<(String, String)> {
    let named =
        ["CLAUDE_CODE_EXECUTABLE", "INSPAN_CLAUDE"].into_iter().find_map(|name| context.caller_env.get(name));
    let claude = named.map(PathBuf::from).or_else(|| on_path("claude", context.caller_env));
    let mut all = claude_variables(context);
    all.push(("CLAUDE_CODE_MAX_RETRIES".to_owned(), "0".to_owned()));
    all.extend(claude.map(|path| ("CLAUDE_CODE_EXECUTABLE".to_owned(), text(&path))));
    all
}

/// Where a program is on the `PATH`.
fn on_path(command: &str, caller_env: &Environment) -> Option<PathBuf> {
    let path = caller_env.get("PATH").unwrap_or_default();
    std::env::split_paths(path).map(|folder| folder.join(command)).find(|path| path.is_file())
}

/// Says that a program is not on the `PATH`, if so.
fn missing_on_path(command: &str, caller_env: &Environment) -> Option<String> {
    let missing = on_path(command, caller_env).is_none();
    missing.then(|| format!("the program `{command}` is not on the PATH"))
}
