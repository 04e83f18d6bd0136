//! From the end of an answer to an output or an error: the last step of every turn, live or replayed.
//! Errors that the vendor says are left to `error.rs`.

use inspan_protocol::{AgentError, ErrorCode, StopReason, StreamEvent};
use serde_json::Value;

use super::decode::Said;
use crate::kind::Kind;
use crate::output::TurnOutput;

/// How an answer ended.
#[derive(Debug, PartialEq)]
pub(super) enum Verdict {
    /// With an output, and what is to be warned of.
    Output(StopReason, Option<StreamEvent>),
    /// With calls of tools, whose answers it waits for.
    Calls,
    /// In the middle: the vendor goes on when it is asked to.
    Paused,
    /// With an error.
    Error(AgentError),
}

/// Judges the end of an answer.
///
/// | stop reason | outcome |
/// |---|---|
/// | `end_turn`, `stop_sequence` | `complete` |
/// | `max_tokens` | output with `maxTokens` |
/// | `tool_use` | the calls are answered |
/// | `pause_turn` | it is asked to go on |
/// | what is not known | `complete`, with a warning |
/// | `refusal` | `REFUSED` |
/// | `model_context_window_exceeded` | `CONTEXT_LENGTH` |
/// | none, `tool_use` without a call | `PROTOCOL` |
pub(super) fn judge(said: &Said) -> Verdict {
    match said.stop_reason.as_deref() {
        Some("end_turn" | "stop_sequence") => Verdict::Output(StopReason::Complete, None),
        Some("tool_use") if !said.calls.is_empty() => Verdict::Calls,
        Some("pause_turn") => Verdict::Paused,
        Some("max_tokens") => Verdict::Output(StopReason::MaxTokens, None),
        Some("refusal") => {
            let details = said.stop_details.clone().unwrap_or_default();
            let message = match details.explanation.as_deref().filter(|words| !words.trim().is_empty()) {
                Some(words) => format!("the model refused: {}", words.chars().take(500).collect::<String>()),
                None => "the model refused".to_owned(),
            };
            let error = AgentError::new(ErrorCode::Refused, message).with("stopReason", "refusal");
            Verdict::Error(match details.category {
                Some(category) => error.with("category", category),
                None => error,
            })
        }
        Some("model_context_window_exceeded") => {
            let message = "the conversation is too long for the model: the answer did not fit any more";
            let error = AgentError::new(ErrorCode::ContextLength, message);
            Verdict::Error(error.with("stopReason", "model_context_window_exceeded"))
        }
        None | Some("tool_use") => {
            let said = said.stop_reason.as_deref().unwrap_or("none");
            let message = format!("the answer ended with the stop reason {said}, which cannot be here");
            Verdict::Error(AgentError::new(ErrorCode::Protocol, message))
        }
        Some(other) => {
            let other: String = other.chars().filter(|c| c.is_alphanumeric() || *c == '_').take(40).collect();
            let message = format!("the answer ended with the stop reason `{other}`; it may not be all");
            let warning = StreamEvent::Warning { code: "stopReason".to_owned(), message };
            Verdict::Output(StopReason::Complete, Some(warning))
        }
    }
}

/// The output of a turn; the session and the time are the caller's to add.
pub(super) fn output(said: Said, stop_reason: StopReason, wanted: Wanted) -> TurnOutput {
    let structured_output = match (wanted, stop_reason) {
        // One that is no JSON is none: the engine asks for another.
        (Wanted::Structured, StopReason::Complete) => serde_json::from_str::<Value>(&said.text).ok(),
        _ => None,
    };
    TurnOutput {
        structured_output,
        usage: said.usage,
        num_turns: u32::from(said.model.is_some() || !said.text.is_empty()),
        model: said.model,
        text: said.text,
        ..TurnOutput::new(stop_reason)
    }
}

/// What kind of answer was asked for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Wanted {
    /// Words.
    Text,
    /// JSON of a schema.
    Structured,
}
