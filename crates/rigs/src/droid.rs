//! The provider `droid` as the suite meets it: the real program, led to the model server by a model of the user in its settings.

use std::sync::Arc;

use inspan_conformance::{Call, Deviation, Exception, Kind, PLANTED, Place, Rig, Tool};
use inspan_model_server::Endpoints;
use inspan_protocol::{DynProvider, Environment, Erased, ErrorCode};
use inspan_providers::AcpProvider;
use serde_json::{Map, Value, json};

use crate::named;

/// Why there are several requests, or a turn does not end.
const AGAIN: &str = "the program tries again by itself";

/// What the program does in its own way.
const EXCEPTIONS: &[Exception] = &[
    Exception {
        behaviour: "text_in_pieces",
        kind: Kind::Deviates(Deviation::TextInOnePiece),
        reason: "the program shows a message once it is whole",
    },
    Exception {
        behaviour: "max_tokens",
        kind: Kind::Deviates(Deviation::NoEnd),
        reason: "the program asks the model to continue for as long as its answers hit the limit",
    },
    Exception {
        behaviour: "prompt_as_written",
        kind: Kind::Deviates(Deviation::Prompt),
        reason: "the agent takes a word after `/` for a command unless something stands before it",
    },
    Exception {
        behaviour: "cancel_mid_text",
        kind: Kind::Deviates(Deviation::NoEnd),
        reason: "the program shows a message once it is whole, so that nothing is said when it is cancelled",
    },
    Exception {
        behaviour: "usage",
        kind: Kind::Deviates(Deviation::Usage),
        reason: "the program does not report tokens",
    },
    Exception {
        behaviour: "usage_per_turn",
        kind: Kind::Deviates(Deviation::Usage),
        reason: "the program does not report tokens",
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
        behaviour: "error_413",
        kind: Kind::Deviates(Deviation::Requests(2)),
        reason: "the program shortens the conversation and asks again",
    },
    Exception { behaviour: "error_429", kind: Kind::Deviates(Deviation::Requests(4)), reason: AGAIN },
    Exception {
        behaviour: "error_429_retry_after",
        kind: Kind::Deviates(Deviation::NoRetryAfter),
        reason: "the program does not pass on how long the server asks to wait",
    },
    Exception { behaviour: "error_500", kind: Kind::Deviates(Deviation::NoEnd), reason: AGAIN },
    Exception { behaviour: "error_529", kind: Kind::Deviates(Deviation::NoEnd), reason: AGAIN },
    Exception { behaviour: "error_in_stream", kind: Kind::Deviates(Deviation::NoEnd), reason: AGAIN },
    Exception { behaviour: "truncated", kind: Kind::Deviates(Deviation::Requests(4)), reason: AGAIN },
    Exception {
        behaviour: "garbage",
        kind: Kind::Deviates(Deviation::Fails(ErrorCode::Network)),
        reason: "the program reports an event that it cannot read as a connection that failed",
    },
];

/// The rig of `droid`.
#[derive(Clone, Copy, Debug, Default)]
pub struct DroidRig;

impl Rig for DroidRig {
    fn provider(&self) -> Arc<dyn DynProvider> {
        Arc::new(Erased(AcpProvider::droid()))
    }

    fn options(&self) -> Map<String, Value> {
        let options = json!({ "model": "custom:Scripted-0" });
        options.as_object().cloned().unwrap_or_default()
    }

    fn environment(&self, place: &Place<'_>) -> Vec<(String, String)> {
        let settings = Endpoints::at(place.server).droid_settings(PLANTED);
        let own = [("FACTORY_API_KEY", PLANTED.to_owned())];
        named::environment(place, "INSPAN_DROID", (".factory/settings.json", &settings), own)
    }

    fn exceptions(&self) -> &'static [Exception] {
        EXCEPTIONS
    }

    fn missing(&self, outer: &Environment) -> Option<String> {
        named::missing("droid", outer)
    }

    fn call(&self, tool: Tool<'_>) -> Option<Call> {
        Some(Call::shell(tool))
    }

    fn lanes(&self) -> usize {
        2
    }
}
