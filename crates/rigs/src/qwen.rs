//! The provider `qwen` as the suite meets it: the real program, led to the model server by variables.

use std::sync::Arc;

use inspan_conformance::{Call, Exception, PLANTED, Place, Rig, Tool};
use inspan_protocol::{DynProvider, Environment, Erased};
use inspan_providers::AcpProvider;
use inspan_testkit::Endpoints;

use crate::named;

/// What the program does in its own way.
const EXCEPTIONS: &[Exception] = &[];

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
