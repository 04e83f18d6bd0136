//! The provider `acp` as the suite meets it: over OpenCode, and over the agent that runs Claude Code.

use std::sync::Arc;

use inspan_conformance::{Call, Deviation, Exception, Kind, PLANTED, Place, Rig, Tool};
use inspan_protocol::{DynProvider, Environment, Erased, ErrorCode, StopReason};
use inspan_providers::{AcpProvider, find_claude};
use serde_json::{Map, Value, json};

use crate::opencode::settled;

/// Why a code is not what the status would have it.
const NO_STATUS: &str = "the protocol has no place for the status, and the words say nothing that is known";
/// Why a turn does not end.
const TRIES_AGAIN: &str = "the program tries again by itself for as long as it is let, and tells nobody; only the stall limit ends that";

/// What OpenCode does in its own way.
const OPENCODE: &[Exception] = &[
    Exception {
        behaviour: "max_tokens",
        kind: Kind::Deviates(Deviation::Ends(StopReason::Complete)),
        reason: "the program tells an answer that was cut off as one that ended",
    },
    Exception {
        behaviour: "refusal",
        kind: Kind::Deviates(Deviation::Ends(StopReason::Complete)),
        reason: "the program does not read the part of an answer in which this vendor's model refuses",
    },
    Exception {
        behaviour: "prompt_as_written",
        kind: Kind::Deviates(Deviation::Prompt),
        reason: "the agent takes a word after `/` for a command unless something stands before it",
    },
    Exception {
        behaviour: "permission_denied",
        kind: Kind::Deviates(Deviation::Text),
        reason: "the program ends its turn when a question is answered with no",
    },
    Exception {
        behaviour: "permission_nobody",
        kind: Kind::Deviates(Deviation::Text),
        reason: "the program ends its turn when a question is answered with no",
    },
    Exception {
        behaviour: "key_nowhere",
        kind: Kind::Deviates(Deviation::Fails(ErrorCode::Network)),
        reason: "no key shows; the code is another one, since the protocol has no place for the status",
    },
    Exception {
        behaviour: "error_400",
        kind: Kind::Deviates(Deviation::Fails(ErrorCode::Network)),
        reason: NO_STATUS,
    },
    Exception {
        behaviour: "error_401",
        kind: Kind::Deviates(Deviation::Fails(ErrorCode::Network)),
        reason: NO_STATUS,
    },
    Exception {
        behaviour: "error_403",
        kind: Kind::Deviates(Deviation::Fails(ErrorCode::Network)),
        reason: NO_STATUS,
    },
    Exception {
        behaviour: "error_404",
        kind: Kind::Deviates(Deviation::Fails(ErrorCode::Network)),
        reason: NO_STATUS,
    },
    Exception { behaviour: "error_429", kind: Kind::Deviates(Deviation::NoEnd), reason: TRIES_AGAIN },
    Exception {
        behaviour: "error_429_retry_after",
        kind: Kind::Deviates(Deviation::NoEnd),
        reason: TRIES_AGAIN,
    },
    Exception { behaviour: "error_500", kind: Kind::Deviates(Deviation::NoEnd), reason: TRIES_AGAIN },
    Exception { behaviour: "error_529", kind: Kind::Deviates(Deviation::NoEnd), reason: TRIES_AGAIN },
    Exception { behaviour: "error_in_stream", kind: Kind::Deviates(Deviation::NoEnd), reason: TRIES_AGAIN },
    Exception { behaviour: "truncated", kind: Kind::Deviates(Deviation::NoEnd), reason: TRIES_AGAIN },
    Exception { behaviour: "garbage", kind: Kind::Deviates(Deviation::NoEnd), reason: TRIES_AGAIN },
    Exception {
        behaviour: "connection_refused",
        kind: Kind::Deviates(Deviation::NoEnd),
        reason: TRIES_AGAIN,
    },
];

/// What the agent over Claude Code does in its own way.
const CLAUDE: &[Exception] = &[
    Exception {
        behaviour: "max_tokens",
        kind: Kind::Deviates(Deviation::Fails(ErrorCode::ContextLength)),
        reason: "the program lets the model go on three times, and then tells an error",
    },
    Exception {
        behaviour: "prompt_as_written",
        kind: Kind::Deviates(Deviation::Prompt),
        reason: "the agent takes a word after `/` for a command unless something stands before it",
    },
    Exception {
        behaviour: "error_404",
        kind: Kind::Deviates(Deviation::Requests(2)),
        reason: "the program asks a second time for a model that is not found",
    },
    Exception {
        behaviour: "error_413",
        kind: Kind::Deviates(Deviation::Fails(ErrorCode::InvalidRequest)),
        reason: NO_STATUS,
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

/// The rigs of `acp`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AcpRig {
    /// `opencode acp`.
    OpenCode,
    /// `claude-agent-acp`.
    Claude,
}

impl AcpRig {
    fn command(self) -> &'static str {
        match self {
            Self::OpenCode => "opencode",
            Self::Claude => "claude-agent-acp",
        }
    }
}

impl Rig for AcpRig {
    fn provider(&self) -> Arc<dyn DynProvider> {
        Arc::new(Erased(AcpProvider::new()))
    }

    fn name(&self) -> String {
        format!("acp:{}", self.command())
    }

    fn options(&self) -> Map<String, Value> {
        let options = match self {
            Self::OpenCode => {
                json!({ "command": "opencode", "args": ["acp"], "passEnv": ["OPENAI_*", "OPENCODE_*"] })
            }
            Self::Claude => json!({ "command": "claude-agent-acp", "passEnv": ["ANTHROPIC_*", "CLAUDE_*"] }),
        };
        options.as_object().cloned().unwrap_or_default()
    }

    fn environment(&self, place: &Place<'_>) -> Vec<(String, String)> {
        if *self == Self::OpenCode {
            return settled(place);
        }
        let text = |text: &str| text.to_owned();
        let program = place.outer.get("CLAUDE_CODE_EXECUTABLE").map(str::to_owned);
        let program =
            program.or_else(|| find_claude(place.outer).ok().map(|path| path.display().to_string()));
        let own = [
            ("ANTHROPIC_API_KEY", text(PLANTED)),
            ("ANTHROPIC_BASE_URL", text(place.server)),
            ("CLAUDE_CONFIG_DIR", place.folder.display().to_string()),
            ("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", text("1")),
            ("DISABLE_TELEMETRY", text("1")),
            ("CLAUDE_CODE_MAX_RETRIES", text("0")),
        ];
        let program = program.map(|program| ("CLAUDE_CODE_EXECUTABLE", program));
        own.into_iter().chain(program).map(|(name, value)| (text(name), value)).collect()
    }

    fn exceptions(&self) -> &'static [Exception] {
        match self {
            Self::OpenCode => OPENCODE,
            Self::Claude => CLAUDE,
        }
    }

    fn missing(&self, outer: &Environment) -> Option<String> {
        let path = outer.get("PATH").unwrap_or_default();
        let found = std::env::split_paths(path).any(|folder| folder.join(self.command()).is_file());
        (!found).then(|| format!("the program `{}` is not on the PATH", self.command()))
    }

    fn call(&self, tool: Tool<'_>) -> Option<Call> {
        Some(Call::shell(tool))
    }

    fn lanes(&self) -> usize {
        2
    }
}
