//! The provider `droid` as the suite meets it: the real program, led to the model server by a model of the user in its settings.

use std::sync::Arc;

use inspan_conformance::{Call, Exception, Kind, PLANTED, Place, Rig, Tool};
use inspan_protocol::{DynProvider, Environment, Erased};
use inspan_providers::AcpProvider;
use inspan_testkit::Endpoints;
use serde_json::{Map, Value, json};

use crate::named;

/// Why there are several requests, or a turn does not end.
const AGAIN: &str = "the program tries again by itself";

/// What the program does in its own way.
const EXCEPTIONS: &[Exception] = &[
    Exception {
        behaviour: "text_in_pieces",
        kind: Kind::Deviates("the text does not come in pieces"),
        reason: "the program shows a message once it is whole",
    },
    Exception {
        behaviour: "max_tokens",
        kind: Kind::Deviates("the turn does not end"),
        reason: "the program asks the model to continue for as long as its answers hit the limit",
    },
    Exception {
        behaviour: "prompt_as_written",
        kind: Kind::Deviates("the model does not hear `/nosuch words` as it is written"),
        reason: "the agent takes a word after `/` for a command unless something stands before it",
    },
    Exception {
        behaviour: "cancel_mid_text",
        kind: Kind::Deviates("the turn does not end"),
        reason: "the program shows a message once it is whole, so that nothing is said when it is cancelled",
    },
    Exception {
        behaviour: "usage",
        kind: Kind::Deviates(
            "the usage of the output: Usage { input_tokens: 0, output_tokens: 0, cache_read_tokens: 0, cache_creation_tokens: 0, reasoning_tokens: 0 }, not Usage { input_tokens: 101, output_tokens: 23, cache_read_tokens: 40, cache_creation_tokens: 0, reasoning_tokens: 0 }",
        ),
        reason: "the program does not report tokens",
    },
    Exception {
        behaviour: "usage_per_turn",
        kind: Kind::Deviates(
            "the usage of the first turn: Usage { input_tokens: 0, output_tokens: 0, cache_read_tokens: 0, cache_creation_tokens: 0, reasoning_tokens: 0 }, not Usage { input_tokens: 101, output_tokens: 23, cache_read_tokens: 0, cache_creation_tokens: 0, reasoning_tokens: 0 }",
        ),
        reason: "the program does not report tokens",
    },
    Exception {
        behaviour: "permission_denied",
        kind: Kind::Deviates("the text: \"\", not \"That is all.\""),
        reason: "the program ends its turn when a question is answered with no",
    },
    Exception {
        behaviour: "permission_nobody",
        kind: Kind::Deviates("the text: \"\", not \"That is all.\""),
        reason: "the program ends its turn when a question is answered with no",
    },
    Exception {
        behaviour: "error_413",
        kind: Kind::Deviates("the requests of the model: 2, not 1"),
        reason: "the program shortens the conversation and asks again",
    },
    Exception {
        behaviour: "error_429",
        kind: Kind::Deviates("the requests of the model: 4, not 1"),
        reason: AGAIN,
    },
    Exception {
        behaviour: "error_429_retry_after",
        kind: Kind::Deviates("the wait that is asked for: None, not Some(7s)"),
        reason: "the program does not pass on how long the server asks to wait",
    },
    Exception { behaviour: "error_500", kind: Kind::Deviates("the turn does not end"), reason: AGAIN },
    Exception { behaviour: "error_529", kind: Kind::Deviates("the turn does not end"), reason: AGAIN },
    Exception { behaviour: "error_in_stream", kind: Kind::Deviates("the turn does not end"), reason: AGAIN },
    Exception {
        behaviour: "truncated",
        kind: Kind::Deviates("the requests of the model: 4, not 1"),
        reason: AGAIN,
    },
    Exception {
        behaviour: "garbage",
        kind: Kind::Deviates("the code: Network, not Protocol"),
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
