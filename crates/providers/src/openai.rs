//! The provider `openai`: the Responses API over HTTP, with the tools of the program and of MCP servers.
//!
//! Unless a call names a conversation of the vendor, the vendor is asked to store nothing and the adapter stores the
//! conversation: a turn takes it from the store, adds the user's message and writes it before the request is sent. A turn
//! that fails removes the message, so that it can be tried again; a cancelled turn leaves it and the text until then; after
//! a crash the message stays. Once a tool has run, its call and its result stay, whatever follows: what was done once must
//! not look undone.

use inspan_protocol::{AgentError, ErrorCode, ProviderCapabilities, StopReason, StreamEvent};

use self::decode::{Ending, Phase, Response};
use crate::api::{Verdict, api_provider};
use crate::decode::head;
use crate::output::vendor_output;

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

pub use options::{OpenAiInput, OpenAiOptions, ThinkingSummary};

use api::Responses;

vendor_output! {
    /// The end of one turn, with the names that users of this vendor know beside those that all providers have.
    OpenAiOutput {
        /// The answer: the same as `text`.
        content,
        /// The conversation, to continue it: the same as `sessionId`.
        thread_id
    }
}

api_provider! {
    /// Calls the Responses API. One call is one turn of one conversation, with as many requests as its tools need.
    OpenAiProvider for Responses, OpenAiInput => OpenAiOutput, "OpenAI API", ProviderCapabilities {
        streaming: true,
        structured_output: true,
        permissions: true,
        tools: true,
        thinking: true,
        images: true,
        cost: false,
        native_steer: false,
        host_tools: true,
    }
}

/// Judges how a response ended.
///
/// | end | outcome |
/// |---|---|
/// | a refusal in a message | `REFUSED` |
/// | completed, with calls of functions | the calls are answered |
/// | completed | `complete` |
/// | incomplete, `max_output_tokens` | output with `maxTokens` |
/// | incomplete, `content_filter` | `REFUSED` |
/// | incomplete, anything else | `complete`, with a warning |
fn judge(response: &Response) -> Verdict {
    if let Some(refusal) = &response.refusal {
        let words: String = refusal.chars().take(500).collect();
        let lead = "the model refused";
        return Verdict::Error(refused(if words.is_empty() {
            lead.to_owned()
        } else {
            format!("{lead}: {words}")
        }));
    }
    match &response.ending {
        Ending::Completed if !response.calls.is_empty() => Verdict::Calls,
        Ending::Completed => Verdict::Output(StopReason::Complete, None),
        Ending::Incomplete(reason) => match reason.as_deref() {
            Some("max_output_tokens") => Verdict::Output(StopReason::MaxTokens, None),
            Some("content_filter") => Verdict::Error(
                refused("the vendor's filter stopped the answer".to_owned())
                    .with("category", "content_filter"),
            ),
            other => {
                let other = head(other.unwrap_or("none"));
                let message = format!("the answer was cut short for the reason `{other}`; it may not be all");
                let warning = StreamEvent::Warning { code: "stopReason".to_owned(), message };
                Verdict::Output(StopReason::Complete, Some(warning))
            }
        },
        Ending::None => {
            let message = "the answer ended without saying how".to_owned();
            Verdict::Error(AgentError::new(ErrorCode::Protocol, message))
        }
    }
}

fn refused(message: String) -> AgentError {
    AgentError::new(ErrorCode::Refused, message).with("stopReason", "refusal")
}

/// The text of the output: the answer, or all text if the response was cut short.
fn text(response: &Response, stop_reason: StopReason) -> String {
    let texts = |phases: &[Phase]| {
        let words =
            response.messages.iter().filter(|words| phases.contains(&words.phase) && !words.text.is_empty());
        words.map(|words| words.text.as_str()).collect::<Vec<_>>().join("\n\n")
    };
    let answer = texts(&[Phase::Answer]);
    match stop_reason {
        StopReason::Complete if !answer.is_empty() => answer,
        _ => texts(&[Phase::Commentary, Phase::Answer]),
    }
}
