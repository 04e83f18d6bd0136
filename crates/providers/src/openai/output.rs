//! The output of a turn, with the names that users of this vendor know beside those that all providers have.

use inspan_protocol::{OutputFacts, ProviderOutput, ProviderSessionId};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::output::TurnOutput;

/// The end of one turn.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct OpenAiOutput {
    /// The answer: the same as `text`.
    pub content: String,
    /// The conversation, to continue it: the same as `sessionId`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thread_id: Option<ProviderSessionId>,
    /// What the outputs of all providers have.
    #[serde(flatten)]
    pub turn: TurnOutput,
}

impl From<TurnOutput> for OpenAiOutput {
    fn from(turn: TurnOutput) -> Self {
        Self { content: turn.text.clone(), thread_id: turn.session_id.clone(), turn }
    }
}

impl ProviderOutput for OpenAiOutput {
    fn session_id(&self) -> Option<ProviderSessionId> {
        self.turn.session_id()
    }

    fn facts(&self) -> OutputFacts {
        self.turn.facts()
    }
}
