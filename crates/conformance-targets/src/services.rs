//! The providers that need no program in the suite.

use std::sync::Arc;

use inspan_conformance::{Call, ConformanceTarget, PLANTED, Place, Prompt, Reach, Tool};
use inspan_model_server::{Block, Scenario, Turn};
use inspan_protocol::{DynProvider, IntoProvider};
use inspan_providers::{AnthropicProvider, EchoProvider, OpenAiProvider, ScriptedProvider};
use serde_json::{Value, json};

/// The target for a service that is called over HTTP with a key.
#[derive(Clone, Copy)]
pub(crate) struct ServiceTarget {
    provider: fn() -> Arc<dyn DynProvider>,
    /// The variable that holds the key.
    key: &'static str,
    /// The variable that holds the address of the service.
    address: &'static str,
    /// What the address has after the address of the server.
    path: &'static str,
}

/// The target for `anthropic`.
pub(crate) const ANTHROPIC: ServiceTarget = ServiceTarget {
    provider: || AnthropicProvider::new().into_provider(),
    key: "ANTHROPIC_API_KEY",
    address: "ANTHROPIC_BASE_URL",
    path: "",
};

/// The target for `openai`.
pub(crate) const OPENAI: ServiceTarget = ServiceTarget {
    provider: || OpenAiProvider::new().into_provider(),
    key: "OPENAI_API_KEY",
    address: "OPENAI_BASE_URL",
    path: "/v1",
};

impl ConformanceTarget for ServiceTarget {
    fn provider(&self) -> Arc<dyn DynProvider> {
        (self.provider)()
    }

    fn environment(&self, place: &Place<'_>) -> Vec<(String, String)> {
        let address = format!("{}{}", place.server, self.path);
        vec![(self.key.to_owned(), PLANTED.to_owned()), (self.address.to_owned(), address)]
    }

    fn call(&self, tool: Tool<'_>) -> Option<Call> {
        Call::of_program(tool)
    }

    fn scenario(&self, scenario: Scenario) -> Scenario {
        // A request without tools is its usual one, and nothing on the side.
        Scenario { aux_detect: false, ..scenario }
    }
}

/// The target for `echo`.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct EchoTarget;

impl ConformanceTarget for EchoTarget {
    fn provider(&self) -> Arc<dyn DynProvider> {
        EchoProvider.into_provider()
    }

    fn environment(&self, _: &Place<'_>) -> Vec<(String, String)> {
        Vec::new()
    }

    fn reach(&self) -> Reach {
        Reach::Nobody
    }
}

/// The target for `scripted`.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ScriptedTarget;

impl ConformanceTarget for ScriptedTarget {
    fn provider(&self) -> Arc<dyn DynProvider> {
        ScriptedProvider.into_provider()
    }

    fn environment(&self, _: &Place<'_>) -> Vec<(String, String)> {
        Vec::new()
    }

    fn reach(&self) -> Reach {
        Reach::Nobody
    }

    fn input(&self, prompt: &Prompt<'_>) -> Value {
        let mut options = prompt.options.clone();
        // It thinks as the script says, whatever is asked for.
        options.remove("thinking");
        let turns: Vec<Value> = prompt.scenario.turns.iter().map(steps).collect();
        options.insert("turns".to_owned(), json!(turns));
        json!({ "prompt": prompt.text, "options": options })
    }
}

/// The steps of a turn, as far as a script can say them.
fn steps(turn: &Turn) -> Value {
    let step = |block: &Block| match block {
        Block::Text { text, .. } => Some(json!({ "text": text })),
        Block::Thinking { text, .. } => Some(json!({ "thinking": text })),
        _ => None,
    };
    let usage = json!({ "usage": { "tokens": {
        "inputTokens": turn.usage.input_tokens, "outputTokens": turn.usage.output_tokens,
        "cacheReadTokens": turn.usage.cache_read_tokens, "cacheCreationTokens": turn.usage.cache_creation_tokens,
    } } });
    turn.blocks.iter().filter_map(step).chain([usage]).collect()
}
