//! From the end of a turn to its output or its error: the last step of every turn, live or replayed.
//! Which end that is, is left to the decoder and the turn.

use inspan_protocol::{AgentError, Redactor, StopReason};

use super::decode::TurnEnd;
use super::error::{Verdict, judge};
use crate::output::TurnOutput;

/// Whether a turn was asked to stop.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Asked {
    /// It ran to its own end.
    ToGoOn,
    /// Its caller cancelled it.
    ToStop,
}

/// The output or error of a turn that the program ended.
///
/// A turn that ended well in the moment in which it was cancelled is complete: nothing of it is missing.
pub(super) fn conclude(end: TurnEnd, asked: Asked, redactor: &Redactor) -> Result<TurnOutput, AgentError> {
    match judge(&end) {
        // One whose last message asks for tools was to go on.
        Verdict::Output(StopReason::Complete) if asked == Asked::ToStop && !is_whole(&end) => {
            Ok(output(end, StopReason::Aborted))
        }
        Verdict::Output(reason) => Ok(output(end, reason)),
        Verdict::Error(_) if asked == Asked::ToStop => Ok(output(end, StopReason::Aborted)),
        Verdict::Error(mut error) => {
            error.message = redactor.text(&error.message);
            Err(error)
        }
    }
}

/// Whether the last message is all that there was to say.
fn is_whole(end: &TurnEnd) -> bool {
    end.structured.is_some() || end.finish.as_deref().is_some_and(|finish| finish != "tool-calls")
}

/// The output of a turn.
pub(super) fn output(end: TurnEnd, stop_reason: StopReason) -> TurnOutput {
    let mut text = if stop_reason == StopReason::Complete { end.text } else { end.said };
    if let (true, Some(structured)) = (text.is_empty(), &end.structured) {
        text = structured.to_string();
    }
    TurnOutput {
        text,
        structured_output: end.structured,
        usage: end.usage,
        cost_usd: end.cost_usd,
        model: end.model,
        num_turns: end.num_turns,
        ..TurnOutput::new(stop_reason)
    }
}
