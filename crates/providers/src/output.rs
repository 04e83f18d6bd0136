//! What every provider here gives at the end of a turn, so that a node can change its provider without changing its
//! readers.

use inspan_protocol::{
    AgentError, ContextUse, OutputFacts, ProviderOutput, ProviderSessionId, StopReason, StreamEvent, TurnId,
    Usage,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use serde_with::skip_serializing_none;

/// The end of one turn.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct TurnOutput {
    /// The answer. When the turn ended early (`maxTurns`, `maxTokens`, `aborted`) it is all text until
    /// then, the messages separated by blank lines.
    pub text: String,
    /// The answer in the requested schema, as the vendor returned it. Absent if the model returned none.
    #[serde(default)]
    pub structured_output: Option<Value>,
    /// The vendor's conversation, to continue. Absent if the turn ended before there was one.
    #[serde(default)]
    pub session_id: Option<ProviderSessionId>,
    /// The end of this turn in the conversation: a branch can begin there (`options.forkAt`). Absent if the vendor names
    /// no such place.
    #[serde(default)]
    pub turn_id: Option<TurnId>,
    /// Tokens of this turn, those of sub-agents included.
    pub usage: Usage,
    /// Cost of this turn in US dollars. Absent means unknown.
    #[serde(default)]
    pub cost_usd: Option<f64>,
    /// The model that answered.
    #[serde(default)]
    pub model: Option<String>,
    /// Messages that the model wrote in this turn.
    pub num_turns: u32,
    /// Why the turn ended.
    pub stop_reason: StopReason,
    /// How long the turn took, in milliseconds.
    pub duration_ms: u64,
    /// Tools that the agent wanted to use and was not allowed to.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub permission_denials: Vec<PermissionDenial>,
}

/// One use of a tool that was not allowed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PermissionDenial {
    /// The tool.
    pub tool_name: String,
    /// The vendor's id of the call.
    pub tool_use_id: String,
    /// The arguments.
    pub tool_input: Value,
}

/// The same failure, with the calls that were not allowed before it.
pub(crate) fn with_denials(error: AgentError, denials: &[PermissionDenial]) -> AgentError {
    error.with_denials(&denials.iter().map(|denial| json!(denial)).collect::<Vec<_>>())
}

impl Default for TurnOutput {
    /// That of a turn whose end is not known yet.
    fn default() -> Self {
        Self::new(StopReason::Aborted)
    }
}

impl TurnOutput {
    /// The same for a turn that ended so: the answer is its text if it is complete, else all text until then.
    pub(crate) fn ended(self, stop_reason: StopReason, full_text: String) -> Self {
        let text = if stop_reason == StopReason::Complete { self.text } else { full_text };
        Self { text, stop_reason, ..self }
    }

    /// An output that says nothing yet.
    pub(crate) fn new(stop_reason: StopReason) -> Self {
        Self {
            text: String::new(),
            structured_output: None,
            session_id: None,
            turn_id: None,
            usage: Usage::default(),
            cost_usd: None,
            model: None,
            num_turns: 0,
            stop_reason,
            duration_ms: 0,
            permission_denials: Vec::new(),
        }
    }
}

impl ProviderOutput for TurnOutput {
    fn facts(&self) -> OutputFacts {
        OutputFacts {
            text: self.text.clone(),
            structured_output: self.structured_output.clone(),
            session: self.session_id.clone(),
            turn_id: self.turn_id.clone(),
            stop_reason: self.stop_reason,
            usage: self.usage,
            cost_usd: self.cost_usd,
            num_turns: self.num_turns,
        }
    }
}

/// Whether a text can be the end of a turn: it comes from outside, and becomes part of arguments and addresses.
pub(crate) fn is_turn_id(turn: &TurnId) -> bool {
    let turn = turn.as_str();
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    !turn.is_empty() && turn.len() <= 100 && turn.bytes().all(fits) && !turn.starts_with('-')
}

/// The most, in US dollars, that is accepted. More is an error of the agent, as is a negative cost.
const MOST: f64 = 1_000_000.0;

/// The cost if it can be one, else the warning that it is unknown.
pub(crate) fn plausible(usd: f64) -> Result<f64, StreamEvent> {
    if (0.0..=MOST).contains(&usd) {
        return Ok(usd);
    }
    let message = format!("the agent says that it cost {usd:e} USD, which cannot be; the cost is unknown");
    Err(StreamEvent::warning("implausibleCost", message))
}

/// How much of its context the conversation fills, where the vendor says so.
pub(crate) fn context_use(used_tokens: u64, window_tokens: Option<u64>) -> Option<StreamEvent> {
    ContextUse::believable(used_tokens, window_tokens).map(|context| StreamEvent::Context { context })
}

/// An output that has the answer and the conversation again under the vendor's own names.
macro_rules! vendor_output {
    ($(#[$doc:meta])* $name:ident { $(#[$text_doc:meta])* $text:ident, $(#[$session_doc:meta])* $session:ident }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, ::serde::Serialize, ::serde::Deserialize, ::schemars::JsonSchema)]
        #[serde(rename_all = "camelCase")]
        #[non_exhaustive]
        pub struct $name {
            $(#[$text_doc])*
            pub $text: String,
            $(#[$session_doc])*
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub $session: Option<::inspan_protocol::ProviderSessionId>,
            /// What the outputs of all providers have.
            #[serde(flatten)]
            pub turn: $crate::output::TurnOutput,
        }

        impl From<$crate::output::TurnOutput> for $name {
            fn from(turn: $crate::output::TurnOutput) -> Self {
                Self { $text: turn.text.clone(), $session: turn.session_id.clone(), turn }
            }
        }

        impl ::inspan_protocol::ProviderOutput for $name {
            fn facts(&self) -> ::inspan_protocol::OutputFacts {
                self.turn.facts()
            }
        }
    };
}

pub(crate) use vendor_output;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cost_is_a_number_that_can_be_a_price() {
        for cost in [0.0, 0.0004, 999_999.0] {
            assert_eq!(plausible(cost), Ok(cost));
        }
        for cost in [-0.01, 1e308, 1_000_001.0, f64::INFINITY, f64::NAN] {
            assert!(plausible(cost).is_err(), "{cost}");
        }
        let reported = plausible(1e308).unwrap_err();
        let message = "the agent says that it cost 1e308 USD, which cannot be; the cost is unknown";
        assert_eq!(reported, StreamEvent::warning("implausibleCost", message));
    }
}
