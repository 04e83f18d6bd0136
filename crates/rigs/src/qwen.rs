//! The provider `qwen` as the suite meets it: the real program, led to the model server by variables.

use std::sync::Arc;

use inspan_conformance::{Call, Deviation, Exception, Kind, PLANTED, Place, Rig, Tool};
use inspan_model_server::Endpoints;
use inspan_protocol::{DynProvider, Environment, Erased, ErrorCode, StopReason};
use inspan_providers::AcpProvider;

use crate::named;

/// Why a turn does not end.
const AGAIN: &str =
    "the program tries again by itself for minutes, and tells nobody; only the stall limit ends that";

/// What the program does in its own way.
const EXCEPTIONS: &[Exception] = &[
    Exception {
        behaviour: "max_tokens",
        kind: Kind::Deviates(Deviation::Ends(StopReason::Complete)),
        reason: "the program reports an answer that was cut off as complete",
    },
    Exception {
        behaviour: "refusal",
        kind: Kind::Deviates(Deviation::Fails(ErrorCode::Network)),
        reason: "the program does not read the part of an answer in which this vendor's model refuses",
    },
    Exception {
        behaviour: "prompt_as_written",
        kind: Kind::Deviates(Deviation::Prompt),
        reason: "the agent takes a word after `/` for a command unless something stands before it",
    },
    Exception { behaviour: "error_429", kind: Kind::Deviates(Deviation::NoEnd), reason: AGAIN },
    Exception { behaviour: "error_429_retry_after", kind: Kind::Deviates(Deviation::NoEnd), reason: AGAIN },
    Exception { behaviour: "error_500", kind: Kind::Deviates(Deviation::NoEnd), reason: AGAIN },
    Exception { behaviour: "error_529", kind: Kind::Deviates(Deviation::NoEnd), reason: AGAIN },
    Exception {
        behaviour: "garbage",
        kind: Kind::Deviates(Deviation::Fails(ErrorCode::Network)),
        reason: "the program reports an event that it cannot read as a connection that failed",
    },
];

/// The rig of `qwen`.
#[derive(Clone, Copy, Debug, Default)]
pub struct QwenRig;

impl Rig for QwenRig {
    fn provider(&self) -> Arc<dyn DynProvider> {
        Arc::new(Erased(AcpProvider::qwen()))
    }

    fn environment(&self, place: &Place<'_>) -> Vec<(String, String)> {
        let settings = Endpoints::qwen_settings();
        let own = [
            ("OPENAI_API_KEY", PLANTED.to_owned()),
            ("OPENAI_BASE_URL", Endpoints::at(place.server).openai()),
            ("OPENAI_MODEL", "scripted-model".to_owned()),
        ];
        named::environment(place, "INSPAN_QWEN", (".qwen/settings.json", &settings), own)
    }

    fn exceptions(&self) -> &'static [Exception] {
        EXCEPTIONS
    }

    fn missing(&self, outer: &Environment) -> Option<String> {
        named::missing("qwen", outer)
    }

    fn call(&self, tool: Tool<'_>) -> Option<Call> {
        Some(Call::shell(tool))
    }

    fn lanes(&self) -> usize {
        2
    }
}
