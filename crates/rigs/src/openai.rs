//! The provider `openai` as the suite meets it: the Responses API over HTTP, without any program.

use std::sync::Arc;

use inspan_conformance::{Call, PLANTED, Place, Rig, Tool};
use inspan_model_server::Scenario;
use inspan_protocol::{DynProvider, Erased};
use inspan_providers::OpenAiProvider;

/// The rig of `openai`.
#[derive(Clone, Copy, Debug, Default)]
pub struct OpenAiRig;

impl Rig for OpenAiRig {
    fn provider(&self) -> Arc<dyn DynProvider> {
        Arc::new(Erased(OpenAiProvider::new()))
    }

    fn environment(&self, place: &Place<'_>) -> Vec<(String, String)> {
        [("OPENAI_API_KEY", PLANTED.to_owned()), ("OPENAI_BASE_URL", format!("{}/v1", place.server))]
            .map(|(name, value)| (name.to_owned(), value))
            .to_vec()
    }

    fn call(&self, tool: Tool<'_>) -> Option<Call> {
        Call::of_program(tool)
    }

    fn scenario(&self, scenario: Scenario) -> Scenario {
        // A request without tools is its usual one, and nothing on the side.
        Scenario { aux_detect: false, ..scenario }
    }
}
