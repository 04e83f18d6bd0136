//! What a turn gives, and the way from its end to it: the last step of every turn, live or replayed.
//! Which end that is, is left to the decoder and the session.

use inspan_protocol::{AgentError, OutputFacts, ProviderOutput, ProviderSessionId, Redactor, StopReason};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::decode::TurnEnd;
use super::error::{Verdict, judge};
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
    /// The conversation, to go on with; the same as `sessionId`.
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

/// Whether a turn was asked to stop.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Asked {
    /// It ran to its own end.
    ToGoOn,
    /// Its caller cancelled it.
    ToStop,
}

/// Whether the answer was to be JSON of a schema.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Shape {
    /// Any text.
    Free,
    /// JSON.
    Structured,
}

/// The output or error of a turn that the program ended.
///
/// A turn that ended well in the moment in which it was cancelled is complete: nothing of it is missing.
pub(super) fn conclude(
    end: TurnEnd,
    asked: Asked,
    shape: Shape,
    redactor: &Redactor,
) -> Result<TurnOutput, AgentError> {
    match judge(&end) {
        Verdict::Output(reason) => Ok(output(end, reason, shape)),
        Verdict::Error(_) if asked == Asked::ToStop => Ok(output(end, StopReason::Aborted, shape)),
        Verdict::Error(mut error) => {
            error.message = redactor.text(&error.message);
            Err(error)
        }
    }
}

/// The output of a turn.
pub(super) fn output(end: TurnEnd, stop_reason: StopReason, shape: Shape) -> TurnOutput {
    let whole = stop_reason == StopReason::Complete;
    let text = if whole { end.text } else { end.said };
    // The program hands on what the model wrote, and checks nothing.
    let structured_output =
        if whole && shape == Shape::Structured { serde_json::from_str(&text).ok() } else { None };
    TurnOutput {
        text,
        structured_output,
        session_id: end.session_id,
        usage: end.usage,
        cost_usd: None,
        model: end.model,
        num_turns: end.num_turns,
        stop_reason,
        duration_ms: end.duration_ms,
        permission_denials: end.permission_denials,
    }
}
