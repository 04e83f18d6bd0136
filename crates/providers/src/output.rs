//! What every provider here gives at the end of a turn, so that a node can change its provider without changing its
//! readers.

use inspan_protocol::{OutputFacts, ProviderOutput, ProviderSessionId, StopReason, Usage};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The end of one turn.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct TurnOutput {
    /// The answer. When the turn was cut short (`maxTurns`, `maxTokens`, `aborted`) it is all that was said until
    /// then, the messages separated by blank lines.
    pub text: String,
    /// The answer in the schema that was asked for, as the vendor gave it. Absent if the model never gave one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub structured_output: Option<Value>,
    /// The vendor's conversation, to continue. Absent if the turn ended before there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<ProviderSessionId>,
    /// Tokens of this turn, those of sub-agents included.
    pub usage: Usage,
    /// Cost of this turn in US dollars. Absent means unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_usd: Option<f64>,
    /// The model that answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
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

impl TurnOutput {
    /// An output that says nothing yet.
    pub(crate) fn new(stop_reason: StopReason) -> Self {
        Self {
            text: String::new(),
            structured_output: None,
            session_id: None,
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
    fn session_id(&self) -> Option<ProviderSessionId> {
        self.session_id.clone()
    }

    fn facts(&self) -> OutputFacts {
        OutputFacts {
            text: self.text.clone(),
            structured_output: self.structured_output.clone(),
            session: self.session_id.clone(),
            stop_reason: self.stop_reason,
            usage: self.usage,
            cost_usd: self.cost_usd,
            num_turns: self.num_turns,
        }
    }
}
