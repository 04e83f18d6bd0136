//! The signs and words that stand for statuses and reasons, the same in the picture and in the lines.

use inspan_protocol::{AgentError, NodeStatus, Outcome, SkipReason};

use super::{
    format,
    line::{Line, Tone, clean},
    state::{Cause, Ended, Question},
};

/// The sign of a status.
pub(crate) fn sign(status: NodeStatus) -> (Tone, &'static str) {
    match status {
        NodeStatus::Running => (Tone::Accent, "▸"),
        NodeStatus::Complete => (Tone::Good, "✔"),
        NodeStatus::Failed => (Tone::Bad, "✘"),
        NodeStatus::Skipped => (Tone::Faint, "↷"),
        NodeStatus::Reused => (Tone::Good, "≡"),
        NodeStatus::Cancelled => (Tone::Warning, "■"),
        NodeStatus::Paused => (Tone::Warning, "‖"),
        NodeStatus::Waiting => (Tone::Warning, "?"),
        _ => (Tone::Faint, "·"),
    }
}

/// Why a node did not run.
pub(crate) fn skipped(reason: SkipReason) -> &'static str {
    match reason {
        SkipReason::When => "its condition does not hold",
        SkipReason::Edge => "no edge leads to it in this run",
        _ => "something before it failed, or the flow ended",
    }
}

/// How a session ended, with its sign.
pub(crate) fn outcome(ended: &Ended) -> (Tone, &'static str, &'static str) {
    match ended.outcome {
        Outcome::Stopped if ended.cause == Cause::NobodyThere => (Tone::Warning, "?", "waits for a person"),
        Outcome::Paused => (Tone::Warning, "‖", "paused"),
        Outcome::Waiting => (Tone::Warning, "?", "waits"),
        Outcome::Success => (Tone::Good, "✔", "succeeded"),
        Outcome::Partial => (Tone::Warning, "✘", "succeeded in part"),
        Outcome::Stopped => (Tone::Warning, "■", "stopped"),
        Outcome::BudgetExceeded => (Tone::Bad, "✘", "used up its budget"),
        Outcome::TimedOut => (Tone::Bad, "✘", "ran out of time"),
        _ => (Tone::Bad, "✘", "failed"),
    }
}

/// An error in one line, its code at the end.
pub(crate) fn error(line: &mut Line, error: &AgentError) {
    let mut said = error.message.lines();
    line.push(Tone::Plain, &clean(said.next().unwrap_or_default()));
    if said.next().is_some() {
        line.push(Tone::Plain, "…");
    }
    line.push(Tone::Faint, &format!(" [{}]", error.code));
}

/// The answers that a question takes, and what happens without one.
pub(crate) fn answers(question: &Question) -> Option<String> {
    let mut parts = Vec::new();
    if !question.choices.is_empty() {
        parts.push(question.choices.iter().map(|choice| clean(choice)).collect::<Vec<_>>().join(" / "));
    }
    match (&question.default, question.deadline) {
        (Some(default), Some(at)) => {
            parts.push(format!("`{}` at {} UTC", clean(default), format::clock(at)));
        }
        (Some(default), None) => parts.push(format!("default `{}`", clean(default))),
        (None, Some(at)) => parts.push(format!("until {} UTC", format::clock(at))),
        (None, None) => {}
    }
    (!parts.is_empty()).then(|| parts.join("; "))
}
