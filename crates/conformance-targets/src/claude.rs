//! The provider `claude` in the suite: the real program.

use inspan_conformance::{Deviation, Exception, PLANTED, Place};
use inspan_protocol::{ErrorCode, IntoProvider};
use inspan_providers::ClaudeProvider;

use crate::target::{Target, deviates, variables};

pub(crate) const TARGET: Target = Target {
    provider: || ClaudeProvider::new().into_provider(),
    environment,
    exceptions: EXCEPTIONS,
    ..Target::PROGRAM
};

const EXCEPTIONS: &[Exception] = &[
    deviates(
        "max_tokens",
        Deviation::Text,
        "the program lets the model go on three times before it ends the turn",
    ),
    deviates(
        "error_404",
        Deviation::Requests(2),
        "the program asks a second time for a model that is not found, whatever its retries are set to",
    ),
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

fn environment(place: &Place<'_>) -> Vec<(String, String)> {
    variables(settings(place), place, "INSPAN_CLAUDE")
}

/// What every Claude Code is given, also the one that an ACP agent runs.
pub(crate) fn settings(place: &Place<'_>) -> [(&'static str, String); 5] {
    [
        ("ANTHROPIC_API_KEY", PLANTED.to_owned()),
        ("ANTHROPIC_BASE_URL", place.server.to_owned()),
        ("CLAUDE_CONFIG_DIR", place.folder.display().to_string()),
        ("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1".to_owned()),
        ("DISABLE_TELEMETRY", "1".to_owned()),
    ]
}
