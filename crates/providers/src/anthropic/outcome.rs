//! How a response ended: with an output, with calls, in the middle, or with an error.

use inspan_protocol::{AgentError, ErrorCode, StopReason, StreamEvent, beginning};
use serde_json::Value;

use super::decode::PartialResponse;
use crate::api::Verdict;
use crate::instructed::{self, Wanted};

/// The stop reason of a response that the vendor paused.
pub(super) const PAUSE: &str = "pause_turn";

/// Judges how a response ended.
///
/// | stop reason | outcome |
/// |---|---|
/// | `end_turn`, `stop_sequence` | `complete`; the calls are answered if there are any |
/// | `max_tokens` | output with `maxTokens` |
/// | `tool_use` | the calls are answered |
/// | `pause_turn` | it is asked to continue |
/// | what is not known | `complete`, with a warning |
/// | `refusal` | `REFUSED` |
/// | `model_context_window_exceeded` | `CONTEXT_LENGTH` |
/// | none, `tool_use` without a call | `PROTOCOL` |
pub(super) fn judge(response: &PartialResponse) -> Verdict {
    match response.stop_reason.as_deref() {
        // A call needs its result, whatever else the server says of the end.
        Some("end_turn" | "stop_sequence" | "tool_use") if !response.calls.is_empty() => Verdict::Calls,
        Some("end_turn" | "stop_sequence") => Verdict::Output(StopReason::Complete, None),
        Some(PAUSE) => Verdict::Paused,
        Some("max_tokens") => Verdict::Output(StopReason::MaxTokens, None),
        Some("refusal") => {
            let details = response.stop_details.clone().unwrap_or_default();
            let message = match details.explanation.as_deref().filter(|words| !words.trim().is_empty()) {
                Some(words) => format!("the model refused: {}", beginning(words, 500)),
                None => "the model refused".to_owned(),
            };
            let error = AgentError::new(ErrorCode::Refused, message).with("stopReason", "refusal");
            Verdict::Error(error.with("category", details.category))
        }
        Some("model_context_window_exceeded") => {
            let message = "the conversation is too long for the model: the answer no longer fits";
            let error = AgentError::new(ErrorCode::ContextLength, message);
            Verdict::Error(error.with("stopReason", "model_context_window_exceeded"))
        }
        None | Some("tool_use") => {
            let reason = response.stop_reason.as_deref().unwrap_or("none");
            let message = format!("the answer ended with the stop reason {reason}, which cannot be here");
            Verdict::Error(AgentError::new(ErrorCode::Protocol, message))
        }
        Some(other) => {
            let other: String = other.chars().filter(|c| c.is_alphanumeric() || *c == '_').take(40).collect();
            let message = format!("the answer ended with the stop reason `{other}`; it may not be all");
            let warning = StreamEvent::warning("stopReason", message);
            Verdict::Output(StopReason::Complete, Some(warning))
        }
    }
}

/// What was requested.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum OutputKind {
    /// Text.
    Text,
    /// JSON that fits a schema, which the vendor enforces.
    Structured,
    /// JSON that the model was told to give.
    Instructed(Wanted),
}

impl OutputKind {
    /// The structured output in the text of a complete response.
    pub(super) fn structured(self, text: &str) -> Option<Value> {
        match self {
            Self::Text => None,
            Self::Structured => serde_json::from_str(text).ok(),
            Self::Instructed(wanted) => instructed::extract(text, wanted),
        }
    }
}
