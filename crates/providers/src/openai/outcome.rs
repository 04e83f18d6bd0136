//! How a response ended: with an output, with calls, or with an error.

use inspan_protocol::{AgentError, ErrorCode, StopReason, StreamEvent, beginning};

use super::decode::{AnswerEnding, MessagePhase, PartialResponse};
use crate::api::Verdict;
use crate::decode::head;

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
pub(super) fn judge(response: &PartialResponse) -> Verdict {
    if let Some(refusal) = &response.refusal {
        let words = beginning(refusal, 500);
        let lead = "the model refused";
        return Verdict::Error(refused(if words.is_empty() {
            lead.to_owned()
        } else {
            format!("{lead}: {words}")
        }));
    }
    match &response.ending {
        AnswerEnding::Completed if !response.calls.is_empty() => Verdict::Calls,
        AnswerEnding::Completed => Verdict::Output(StopReason::Complete, None),
        AnswerEnding::Incomplete(reason) => match reason.as_deref() {
            Some("max_output_tokens") => Verdict::Output(StopReason::MaxTokens, None),
            Some("content_filter") => Verdict::Error(
                refused("the vendor's filter stopped the answer".to_owned())
                    .with("category", "content_filter"),
            ),
            other => {
                let other = head(other.unwrap_or("none"));
                let message =
                    format!("the answer was cut off for the reason `{other}`; it may be incomplete");
                let warning = StreamEvent::warning("stopReason", message);
                Verdict::Output(StopReason::Complete, Some(warning))
            }
        },
        AnswerEnding::None => {
            let message = "the answer ended without saying how".to_owned();
            Verdict::Error(AgentError::new(ErrorCode::Protocol, message))
        }
    }
}

fn refused(message: String) -> AgentError {
    AgentError::new(ErrorCode::Refused, message).with("stopReason", "refusal")
}

/// The text of the output: the answer, or all text if the response is incomplete.
pub(super) fn text(response: &PartialResponse, stop_reason: StopReason) -> String {
    let texts = |phases: &[MessagePhase]| {
        let words =
            response.messages.iter().filter(|words| phases.contains(&words.phase) && !words.text.is_empty());
        words.map(|words| words.text.as_str()).collect::<Vec<_>>().join("\n\n")
    };
    let answer = texts(&[MessagePhase::Answer]);
    match stop_reason {
        StopReason::Complete if !answer.is_empty() => answer,
        _ => texts(&[MessagePhase::Commentary, MessagePhase::Answer]),
    }
}
