//! The provider `anthropic` as the suite meets it: over HTTP, without any program.

use std::sync::Arc;

use inspan_conformance::{Call, PLANTED, Place, Rig, Tool};
use inspan_model_server::Scenario;
use inspan_protocol::{DynProvider, Erased};
use inspan_providers::AnthropicProvider;

/// The rig of `anthropic`.
#[derive(Clone, Copy, Debug, Default)]
pub struct AnthropicRig;

impl Rig for AnthropicRig {
    fn provider(&self) -> Arc<dyn DynProvider> {
        Arc::new(Erased(AnthropicProvider::new()))
    }

    fn environment(&self, place: &Place<'_>) -> Vec<(String, String)> {
        [("ANTHROPIC_API_KEY", PLANTED), ("ANTHROPIC_BASE_URL", place.server)]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
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
