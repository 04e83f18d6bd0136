//! The provider `anthropic`: the Messages API over HTTP, with the tools of the program and of MCP servers.
//!
//! The vendor stores no conversation, so the adapter does: a turn takes its conversation from the store, adds the user's
//! message and writes it before the request is sent. A turn that fails removes the message, so that it can be tried again;
//! a cancelled turn leaves it and the text until then; after a crash the message stays. Once a tool has run, its call and
//! its result stay, whatever follows: what was done once must not look undone.

use inspan_protocol::{AgentError, ErrorCode, ProviderCapabilities, StopReason, StreamEvent};
use serde_json::Value;

use self::decode::Response;
use crate::api::{Verdict, api_provider};
use crate::output::TurnOutput;

mod api;
mod decode;
mod error;
mod history;
mod options;
mod request;
mod schema;
#[cfg(test)]
mod tests;
mod wire;

pub use options::{AnthropicInput, AnthropicOptions, PromptCache};

use api::Messages;

api_provider! {
    /// Calls the Messages API. One call is one turn of one conversation, with as many requests as its tools need.
    AnthropicProvider for Messages, AnthropicInput => TurnOutput, "Claude API", ProviderCapabilities {
        streaming: true,
        structured_output: true,
        permissions: true,
        tools: true,
        host_tools: true,
        thinking: true,
        images: true,
        cost: false,
        native_steer: false,
    }
}

/// The stop reason of a response that the vendor paused.
const PAUSE: &str = "pause_turn";

/// Judges how a response ended.
///
/// | stop reason | outcome |
/// |---|---|
/// | `end_turn`, `stop_sequence` | `complete` |
/// | `max_tokens` | output with `maxTokens` |
/// | `tool_use` | the calls are answered |
/// | `pause_turn` | it is asked to continue |
/// | what is not known | `complete`, with a warning |
/// | `refusal` | `REFUSED` |
/// | `model_context_window_exceeded` | `CONTEXT_LENGTH` |
/// | none, `tool_use` without a call | `PROTOCOL` |
fn judge(response: &Response) -> Verdict {
    match response.stop_reason.as_deref() {
        Some("end_turn" | "stop_sequence") => Verdict::Output(StopReason::Complete, None),
        Some("tool_use") if !response.calls.is_empty() => Verdict::Calls,
        Some(PAUSE) => Verdict::Paused,
        Some("max_tokens") => Verdict::Output(StopReason::MaxTokens, None),
        Some("refusal") => {
            let details = response.stop_details.clone().unwrap_or_default();
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
            let reason = response.stop_reason.as_deref().unwrap_or("none");
            let message = format!("the answer ended with the stop reason {reason}, which cannot be here");
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

/// What was requested.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Wanted {
    /// Text.
    Text,
    /// JSON that fits a schema.
    Structured,
}

impl Wanted {
    /// The structured output in the text of a complete response.
    fn structured(self, text: &str) -> Option<Value> {
        match self {
            Self::Text => None,
            Self::Structured => serde_json::from_str(text).ok(),
        }
    }
}
