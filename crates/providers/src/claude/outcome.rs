//! From the end of a turn to its output or its error: the last step of every turn, live or replayed.
//! Which end that is, is left to the decoder and the session.

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
        Verdict::Output(reason) => Ok(output(end, reason)),
        Verdict::Error(_) if asked == Asked::ToStop => Ok(output(end, StopReason::Aborted)),
        Verdict::Error(mut error) => {
            error.message = redactor.text(&error.message);
            Err(error)
        }
    }
}

/// The output of a turn.
pub(super) fn output(end: TurnEnd, stop_reason: StopReason) -> TurnOutput {
    let text = if stop_reason == StopReason::Complete { end.text } else { end.said };
    TurnOutput {
        text,
        structured_output: end.structured_output,
        session_id: end.session_id,
        usage: end.usage,
        cost_usd: end.cost_usd,
        model: end.model,
        num_turns: end.num_turns,
        stop_reason,
        duration_ms: end.duration_ms,
        permission_denials: end.permission_denials,
    }
}
