//! The provider `claude` as the suite meets it: the real program.

use std::sync::Arc;

use inspan_conformance::{Call, Deviation, Exception, Kind, PLANTED, Place, Rig, Tool};
use inspan_protocol::{DynProvider, Environment, Erased, ErrorCode};
use inspan_providers::{ClaudeProvider, find_claude};

/// What the program does in its own way.
const EXCEPTIONS: &[Exception] = &[
    Exception {
        behaviour: "max_tokens",
        kind: Kind::Deviates(Deviation::Text),
        reason: "the program lets the model go on three times before it ends the turn",
    },
    Exception {
        behaviour: "error_404",
        kind: Kind::Deviates(Deviation::Requests(2)),
        reason: "the program asks a second time for a model that is not found, whatever its retries are set to",
    },
    Exception {
        behaviour: "error_429_retry_after",
        kind: Kind::Deviates(Deviation::NoRetryAfter),
        reason: "the program does not hand on how long the server asks to wait",
    },
    Exception {
        behaviour: "garbage",
        kind: Kind::Deviates(Deviation::Fails(ErrorCode::Network)),
        reason: "the program tells an event that it cannot read as a connection that failed",
    },
];

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

    fn exceptions(&self) -> &'static [Exception] {
        EXCEPTIONS
    }

    fn missing(&self, outer: &Environment) -> Option<String> {
        find_claude(outer).err().map(|error| error.message)
    }

    fn call(&self, tool: Tool<'_>) -> Option<Call> {
        Some(Call::shell(tool))
    }
}
