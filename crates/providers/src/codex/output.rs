//! The output of a turn.

use inspan_protocol::{OutputFacts, ProviderOutput, ProviderSessionId};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::output::TurnOutput;

/// The end of one turn: what every provider gives, and the same again under the names that belong to Codex.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct CodexOutput {
    /// What every provider gives.
    #[serde(flatten)]
    pub turn: TurnOutput,
    /// The answer; the same as `text`.
    pub code: String,
    /// The conversation, to continue; the same as `sessionId`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_token: Option<ProviderSessionId>,
}

impl CodexOutput {
    pub(super) fn new(turn: TurnOutput) -> Self {
        Self { code: turn.text.clone(), session_token: turn.session_id.clone(), turn }
    }
}

impl ProviderOutput for CodexOutput {
    fn session_id(&self) -> Option<ProviderSessionId> {
        self.turn.session_id.clone()
    }

    fn facts(&self) -> OutputFacts {
        self.turn.facts()
    }
}
