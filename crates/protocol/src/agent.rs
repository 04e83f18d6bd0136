//! What is common to every agent whatever its vendor: usage, stop reasons, and the facts about an input or
//! an output that the engine needs without knowing the vendor's field names.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use crate::{ProviderSessionId, TurnId};

/// Tokens of one turn or one run. A count that the vendor does not give stays zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Usage {
    /// Tokens read that were not in the vendor's cache.
    pub input_tokens: u64,
    /// Tokens written, reasoning included where the vendor counts it so.
    pub output_tokens: u64,
    /// Tokens read from the vendor's cache.
    pub cache_read_tokens: u64,
    /// Tokens written to the vendor's cache.
    pub cache_creation_tokens: u64,
    /// Tokens spent on reasoning, where the vendor says so.
    pub reasoning_tokens: u64,
}

impl Usage {
    /// All tokens, each counted once.
    pub fn total(&self) -> u64 {
        [self.output_tokens, self.cache_read_tokens, self.cache_creation_tokens]
            .into_iter()
            .fold(self.input_tokens, u64::saturating_add)
    }
}

impl std::ops::AddAssign for Usage {
    fn add_assign(&mut self, other: Self) {
        self.input_tokens = self.input_tokens.saturating_add(other.input_tokens);
        self.output_tokens = self.output_tokens.saturating_add(other.output_tokens);
        self.cache_read_tokens = self.cache_read_tokens.saturating_add(other.cache_read_tokens);
        self.cache_creation_tokens = self.cache_creation_tokens.saturating_add(other.cache_creation_tokens);
        self.reasoning_tokens = self.reasoning_tokens.saturating_add(other.reasoning_tokens);
    }
}

impl std::ops::Sub for Usage {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        Self {
            input_tokens: self.input_tokens.saturating_sub(other.input_tokens),
            output_tokens: self.output_tokens.saturating_sub(other.output_tokens),
            cache_read_tokens: self.cache_read_tokens.saturating_sub(other.cache_read_tokens),
            cache_creation_tokens: self.cache_creation_tokens.saturating_sub(other.cache_creation_tokens),
            reasoning_tokens: self.reasoning_tokens.saturating_sub(other.reasoning_tokens),
        }
    }
}

/// What a turn, or a part of one, took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TurnSpending {
    /// Tokens.
    pub usage: Usage,
    /// Cost in US dollars; absent means unknown.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "read_cost")]
    pub cost_usd: Option<f64>,
}

impl std::ops::Sub for TurnSpending {
    type Output = Self;

    /// What is left of a turn. A price that was unknown before counts as nothing.
    fn sub(self, before: Self) -> Self {
        Self {
            usage: self.usage - before.usage,
            cost_usd: self.cost_usd.map(|usd| (usd - before.cost_usd.unwrap_or_default()).max(0.0)),
        }
    }
}

/// How much of its context a conversation fills.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ContextUse {
    /// Tokens of the last request to the model and of its answer.
    pub used_tokens: u64,
    /// How many the model takes; absent if the vendor does not say so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window_tokens: Option<u64>,
}

impl ContextUse {
    /// What the vendor says, where it can be: nothing is used up by no tokens, and no model takes none.
    pub fn believable(used_tokens: u64, window_tokens: Option<u64>) -> Option<Self> {
        let window_tokens = window_tokens.filter(|window| *window > 0);
        (used_tokens > 0).then_some(Self { used_tokens, window_tokens })
    }
}

/// The most that one turn is believed to cost, in US dollars.
const MOST_USD: f64 = 1e6;

/// A cost in US dollars as it comes from outside: one that cannot be is unknown.
pub fn believable_cost(usd: Option<f64>) -> Option<f64> {
    usd.filter(|usd| (0.0..=MOST_USD).contains(usd))
}

/// For fields with a cost.
pub(crate) fn read_cost<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<f64>, D::Error> {
    Option::deserialize(deserializer).map(believable_cost)
}

/// Why a turn or a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub enum StopReason {
    /// The agent reported that it is done.
    Complete,
    /// The answer hit the token limit.
    MaxTokens,
    /// The limit of turns was reached.
    MaxTurns,
    /// The model refused.
    Refusal,
    /// The call was cancelled; the output has what was done so far.
    Aborted,
    /// The call failed.
    Error,
}

/// How much a model may think before it answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum ThinkingLevel {
    /// No thinking.
    Off,
    /// The least the vendor offers.
    Minimal,
    /// A little.
    Low,
    /// The usual amount.
    Medium,
    /// Much.
    High,
    /// The most the vendor offers.
    Xhigh,
}

/// How long a multi-turn run waits for a message unless its input says otherwise.
pub const DEFAULT_IDLE_TIMEOUT: Duration = Duration::from_secs(60);

/// Whether a run waits for further messages once a turn has ended and none is there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum MultiTurn {
    /// The run ends.
    #[default]
    Off,
    /// The run waits up to the idle timeout for the next message.
    On,
}

impl MultiTurn {
    /// Whether the run ends.
    pub const fn is_off(&self) -> bool {
        matches!(self, Self::Off)
    }
}

/// What the engine must know about an input without knowing the vendor.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct InputFacts {
    /// The requested model.
    pub model: Option<String>,
    /// The vendor's conversation that the input continues.
    pub session: Option<ProviderSessionId>,
    /// Whether the run waits for messages between turns.
    pub multi_turn: MultiTurn,
    /// How long it waits for one; the engine's default if absent.
    pub idle_timeout: Option<Duration>,
    /// How many model turns the run may take in all.
    pub max_turns: Option<u32>,
    /// The JSON Schema that the structured output must fit.
    pub output_schema: Option<Value>,
}

/// What the engine must know about an output without knowing the vendor.
#[derive(Clone, Debug, PartialEq)]
pub struct OutputFacts {
    /// The text of the answer.
    pub text: String,
    /// The structured output, if there is one.
    pub structured_output: Option<Value>,
    /// The vendor's conversation, to continue.
    pub session: Option<ProviderSessionId>,
    /// The end of this turn in the conversation, where a branch can begin.
    pub turn_id: Option<TurnId>,
    /// Why the turn ended.
    pub stop_reason: StopReason,
    /// Tokens of this turn.
    pub usage: Usage,
    /// Cost of this turn in US dollars; absent means unknown, never free.
    pub cost_usd: Option<f64>,
    /// Model turns that this call took.
    pub num_turns: u32,
}

impl OutputFacts {
    /// A whole answer in one model turn, of which nothing but the text is known.
    pub fn text(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            structured_output: None,
            session: None,
            turn_id: None,
            stop_reason: StopReason::Complete,
            usage: Usage::default(),
            cost_usd: None,
            num_turns: 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::Event;

    #[test]
    fn a_cost_that_cannot_be_is_unknown() {
        let rows = [
            (Some(0.0), Some(0.0)),
            (Some(0.0042), Some(0.0042)),
            (Some(-5.0), None),
            (Some(1e308), None),
            (Some(f64::INFINITY), None),
            (Some(f64::NAN), None),
            (None, None),
        ];
        assert_eq!(rows.map(|(usd, _)| believable_cost(usd)), rows.map(|(_, known)| known));
        let usage = |cost: serde_json::Value| json!({ "type": "agent:usage", "usage": {}, "costUsd": cost, "runId": "run-1" });
        let read = |cost| serde_json::from_value::<Event>(usage(cost)).unwrap();
        let expected = |cost_usd| Event::AgentUsage {
            usage: Usage::default(),
            cost_usd,
            context: None,
            turn_id: None,
            reported: None,
            uncounted: false,
            run_id: "run-1".into(),
        };
        let seen = [json!(1e308), json!(-1), json!(null), json!(1.5)].map(read);
        assert_eq!(seen, [None, None, None, Some(1.5)].map(expected));
    }

    proptest! {
        #[test]
        fn counts_of_tokens_never_overflow(counts in prop::array::uniform5(any::<u64>())) {
            let [input_tokens, output_tokens, cache_read_tokens, cache_creation_tokens, reasoning_tokens] = counts;
            let one = Usage {
                input_tokens, output_tokens, cache_read_tokens, cache_creation_tokens, reasoning_tokens,
            };
            let mut sum = one;
            sum += Usage { input_tokens: u64::MAX, ..one };
            prop_assert_eq!(sum.input_tokens, u64::MAX);
            prop_assert_eq!(sum.total(), u64::MAX);
            prop_assert_eq!(serde_json::from_value::<Usage>(json!(sum)).unwrap(), sum);
        }
    }
}
