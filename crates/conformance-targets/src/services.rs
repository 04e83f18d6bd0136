//! The providers that need no program in the suite.

use std::sync::Arc;

use inspan_conformance::{Call, ConformanceTarget, PLANTED, Place, Prompt, Reach, Tool};
use inspan_model_server::{Block, Scenario, Turn};
use inspan_protocol::{DynProvider, IntoProvider};
use inspan_providers::{AnthropicProvider, EchoProvider, OpenAiProvider, ScriptedProvider};
use serde_json::{Value, json};

/// The target for `anthropic`.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AnthropicTarget;

impl ConformanceTarget for AnthropicTarget {
    fn provider(&self) -> Arc<dyn DynProvider> {
        AnthropicProvider::new().into_provider()
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

/// The target for `openai`.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct OpenAiTarget;

impl ConformanceTarget for OpenAiTarget {
    fn provider(&self) -> Arc<dyn DynProvider> {
        OpenAiProvider::new().into_provider()
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
