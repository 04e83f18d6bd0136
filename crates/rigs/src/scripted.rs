//! The provider `scripted` as the suite meets it: it plays the scenario's texts and thoughts itself and asks nobody.

use std::sync::Arc;

use inspan_conformance::{Place, Prompt, Reach, Rig};
use inspan_model_server::{Block, Turn};
use inspan_protocol::{DynProvider, Erased};
use inspan_providers::ScriptedProvider;
use serde_json::{Value, json};

/// The rig of `scripted`.
#[derive(Clone, Copy, Debug, Default)]
pub struct ScriptedRig;

impl Rig for ScriptedRig {
    fn provider(&self) -> Arc<dyn DynProvider> {
        Arc::new(Erased(ScriptedProvider))
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
