//! From the end of a turn to its output or its error: the last step of every turn, live or replayed.
//! Which end that is, is left to the decoder and the session.

use inspan_protocol::{AgentError, ProviderSessionId, Redactor, StopReason};

use super::decode::TurnEnd;
use super::error::{Verdict, judge};
use crate::instructed;
use crate::output::{PermissionDenial, TurnOutput};

/// Whether a turn was asked to stop.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Asked {
    /// It ran to its own end.
    ToGoOn,
    /// Its caller cancelled it.
    ToStop,
}

/// The form that an answer was asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) enum Form {
    #[default]
    Text,
    /// JSON stands in the text, by instruction.
    Json,
}

/// What a turn came to beside what its agent said.
#[derive(Debug)]
pub(super) struct Around<'a> {
    pub(super) session: &'a ProviderSessionId,
    pub(super) form: Form,
    pub(super) denials: Vec<PermissionDenial>,
    pub(super) duration_ms: u64,
}

/// The output or error of a turn that the agent ended.
///
/// A turn that ended well in the moment in which it was cancelled is complete: nothing of it is missing.
pub(super) fn conclude(
    end: TurnEnd,
    asked: Asked,
    around: Around<'_>,
    redactor: &Redactor,
) -> Result<TurnOutput, AgentError> {
    match judge(&end) {
        Verdict::Output(reason) => Ok(output(end, reason, around)),
        Verdict::Error(_) if asked == Asked::ToStop => Ok(output(end, StopReason::Aborted, around)),
        Verdict::Error(mut error) => {
            error.message = redactor.text(&error.message);
            Err(error)
        }
    }
}

/// The output of a turn.
pub(super) fn output(end: TurnEnd, stop_reason: StopReason, around: Around<'_>) -> TurnOutput {
    let complete = stop_reason == StopReason::Complete;
    let structured_output =
        if complete && around.form == Form::Json { instructed::extract(&end.answer) } else { None };
    TurnOutput {
        text: if complete { end.answer } else { end.said },
        structured_output,
        session_id: Some(around.session.clone()),
        usage: end.usage,
        cost_usd: end.cost_usd,
        model: end.model,
        num_turns: end.num_turns,
        stop_reason,
        duration_ms: around.duration_ms,
        permission_denials: around.denials,
    }
}
