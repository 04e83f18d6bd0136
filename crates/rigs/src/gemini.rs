//! The provider `gemini` as the suite meets it: the real program, led to the model server by variables.

use std::sync::Arc;

use inspan_conformance::{Call, Deviation, Exception, Kind, PLANTED, Place, Rig, Tool};
use inspan_model_server::Endpoints;
use inspan_protocol::{DynProvider, Environment, Erased, ErrorCode, StopReason};
use inspan_providers::AcpProvider;

use crate::named;

/// Why there are several requests, or a turn does not end.
const AGAIN: &str = "the program tries again by itself, whatever its settings say";
/// Why a conversation is not taken up in another process.
const MINUTE: &str =
    "within the minute in which a conversation began, the program erases it when another process takes it up";
/// Why a model does not hear of a turn.
const FORGETS: &str = "the program forgets a turn that was cancelled";

/// What the program does in its own way.
const EXCEPTIONS: &[Exception] = &[
    Exception {
        behaviour: "thinking",
        kind: Kind::Deviates(Deviation::Thinking),
        reason: "the program puts a heading before each piece of a thought",
    },
    Exception {
        behaviour: "max_tokens",
        kind: Kind::Deviates(Deviation::Ends(StopReason::Complete)),
        reason: "the program reports an answer that was cut off as complete",
    },
    Exception {
        behaviour: "refusal",
        kind: Kind::Deviates(Deviation::Ends(StopReason::Complete)),
        reason: "the program reports a refusal as an answer",
    },
    Exception {
        behaviour: "prompt_as_written",
        kind: Kind::Deviates(Deviation::Prompt),
        reason: "the agent takes a word after `/` for a command unless something stands before it",
    },
    Exception { behaviour: "resume_in_a_new_process", kind: Kind::NotApplicable, reason: MINUTE },
    Exception { behaviour: "cancel_mid_text", kind: Kind::Deviates(Deviation::History), reason: FORGETS },
    Exception {
        behaviour: "usage",
        kind: Kind::Deviates(Deviation::Usage),
        reason: "the program counts cached tokens as input, and does not say how many they are",
    },
    Exception { behaviour: "usage_per_turn", kind: Kind::NotApplicable, reason: MINUTE },
    Exception { behaviour: "message_steers", kind: Kind::Deviates(Deviation::History), reason: FORGETS },
    Exception {
        behaviour: "error_404",
        kind: Kind::Deviates(Deviation::Fails(ErrorCode::Overloaded)),
        reason: "the program reports a missing model as a failure of the server",
    },
    Exception { behaviour: "error_429", kind: Kind::Deviates(Deviation::Requests(3)), reason: AGAIN },
    Exception {
        behaviour: "error_429_retry_after",
        kind: Kind::Deviates(Deviation::NoRetryAfter),
        reason: "the program does not pass on how long the server asks to wait",
    },
    Exception { behaviour: "error_500", kind: Kind::Deviates(Deviation::Requests(3)), reason: AGAIN },
    Exception { behaviour: "error_529", kind: Kind::Deviates(Deviation::Requests(3)), reason: AGAIN },
    Exception {
        behaviour: "error_in_stream",
        kind: Kind::Deviates(Deviation::Ends(StopReason::Complete)),
        reason: "the program ignores an error within the stream",
    },
    Exception {
        behaviour: "truncated",
        kind: Kind::Deviates(Deviation::Fails(ErrorCode::Overloaded)),
        reason: "the program reports a stream that breaks off as a failure of the server",
    },
    Exception {
        behaviour: "garbage",
        kind: Kind::Deviates(Deviation::Fails(ErrorCode::Overloaded)),
        reason: "the program reports an event that it cannot read as a failure of the server",
    },
    Exception { behaviour: "connection_refused", kind: Kind::Deviates(Deviation::NoEnd), reason: AGAIN },
];

/// The rig of `gemini`.
#[derive(Clone, Copy, Debug, Default)]
pub struct GeminiRig;

impl Rig for GeminiRig {
    fn provider(&self) -> Arc<dyn DynProvider> {
        Arc::new(Erased(AcpProvider::gemini()))
    }

    fn environment(&self, place: &Place<'_>) -> Vec<(String, String)> {
        let settings = Endpoints::gemini_settings();
        let own = [
            ("GEMINI_API_KEY", PLANTED.to_owned()),
            ("GOOGLE_GEMINI_BASE_URL", Endpoints::at(place.server).gemini()),
        ];
        named::environment(place, "INSPAN_GEMINI", (".gemini/settings.json", &settings), own)
    }

    fn exceptions(&self) -> &'static [Exception] {
        EXCEPTIONS
    }

    fn missing(&self, outer: &Environment) -> Option<String> {
        named::missing("gemini", outer)
    }

    fn call(&self, tool: Tool<'_>) -> Option<Call> {
        Some(Call::shell(tool))
    }

    fn lanes(&self) -> usize {
        2
    }
}
