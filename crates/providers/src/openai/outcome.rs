//! From the end of an answer to an output or an error: the last step of every turn, live or replayed.
//! Errors that the vendor says are left to `error.rs`.

use inspan_protocol::{AgentError, ErrorCode, StopReason, StreamEvent};

use super::decode::{Ending, Phase, Said};
use super::schema::Form;
use crate::kind::Kind;
use crate::output::TurnOutput;
use crate::streamed::event::head;

/// How an answer ended.
#[derive(Debug, PartialEq)]
pub(super) enum Verdict {
    /// With an output, and what is to be warned of.
    Output(StopReason, Option<StreamEvent>),
    /// With an error.
    Error(AgentError),
}

/// Judges the end of an answer.
///
/// | end | outcome |
/// |---|---|
/// | a refusal in a message | `REFUSED` |
/// | completed | `complete` |
/// | incomplete, `max_output_tokens` | output with `maxTokens` |
/// | incomplete, `content_filter` | `REFUSED` |
/// | incomplete, anything else | `complete`, with a warning |
/// | a call of a function | `PROTOCOL`: none was offered |
pub(super) fn judge(said: &Said) -> Verdict {
    if let Some(refusal) = &said.refusal {
        let words: String = refusal.chars().take(500).collect();
        let lead = "the model refused";
        return Verdict::Error(refused(if words.is_empty() {
            lead.to_owned()
        } else {
            format!("{lead}: {words}")
        }));
    }
    if let Some(call) = said.calls.first() {
        let message = format!("the model called the function `{}`, and none was offered", head(&call.name));
        return Verdict::Error(AgentError::new(ErrorCode::Protocol, message).kind("unexpectedTool"));
    }
    match &said.ending {
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

/// The output of a turn; the session and the time are the caller's to add.
pub(super) fn output(said: Said, stop_reason: StopReason, form: Option<&Form>) -> TurnOutput {
    let text = text(&said, stop_reason);
    let structured_output = match (form, stop_reason) {
        // One that is no JSON is none: the engine asks for another.
        (Some(form), StopReason::Complete) => form.answer(&text),
        _ => None,
    };
    TurnOutput {
        structured_output,
        usage: said.usage,
        num_turns: u32::from(said.response.is_some() || said.model.is_some() || !text.is_empty()),
        model: said.model,
        text,
        ..TurnOutput::new(stop_reason)
    }
}

/// The answer; of a turn that was cut short all that was said.
fn text(said: &Said, stop_reason: StopReason) -> String {
    let texts = |phases: &[Phase]| {
        let words =
            said.messages.iter().filter(|words| phases.contains(&words.phase) && !words.text.is_empty());
        words.map(|words| words.text.as_str()).collect::<Vec<_>>().join("\n\n")
    };
    let answer = texts(&[Phase::Answer]);
    match stop_reason {
        StopReason::Complete if !answer.is_empty() => answer,
        _ => texts(&[Phase::Commentary, Phase::Answer]),
    }
}
