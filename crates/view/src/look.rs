//! The signs and words for statuses and reasons, the same in the picture and in the lines.

use inspan_protocol::{
    AgentError, AgentReason, CancelReason, NodeStatus, Outcome, Prompt, SessionStatus, SkipReason, Timestamp,
};

use crate::{
    format,
    line::{Line, Tone},
    safe::clean,
    state::{Cause, FinalStatus},
};

/// The sign of a status.
pub fn sign(status: NodeStatus) -> (Tone, &'static str) {
    match status {
        NodeStatus::Running => (Tone::Accent, "▸"),
        NodeStatus::Complete => (Tone::Good, "✔"),
        NodeStatus::Failed => (Tone::Bad, "✘"),
        NodeStatus::Skipped => (Tone::Faint, "↷"),
        NodeStatus::Reused => (Tone::Good, "≡"),
        NodeStatus::Cancelled => (Tone::Warning, "■"),
        NodeStatus::Paused | NodeStatus::Interrupted => (Tone::Warning, "‖"),
        NodeStatus::Waiting => (Tone::Warning, "?"),
        _ => (Tone::Faint, "·"),
    }
}

/// The word for a status.
pub fn word(status: NodeStatus) -> &'static str {
    match status {
        NodeStatus::Running => "running",
        NodeStatus::Complete => "complete",
        NodeStatus::Failed => "failed",
        NodeStatus::Skipped => "skipped",
        NodeStatus::Reused => "reused",
        NodeStatus::Cancelled => "cancelled",
        NodeStatus::Paused => "paused",
        NodeStatus::Interrupted => "interrupted",
        NodeStatus::Waiting => "waiting",
        _ => "pending",
    }
}

/// The tone of a line of a difference in the unified form.
pub fn difference(line: &str) -> Tone {
    match line.chars().next() {
        Some('+') => Tone::Good,
        Some('-') => Tone::Bad,
        Some('@') => Tone::Faint,
        _ => Tone::Plain,
    }
}

/// Why a node did not run.
pub fn skipped(reason: SkipReason) -> &'static str {
    match reason {
        SkipReason::When => "its condition was false",
        SkipReason::Edge => "no edge into it fired",
        SkipReason::NotSelected => "not selected by `--only`",
        _ => "a node before it failed, or the flow ended",
    }
}

/// Which agent works on a node, and why.
pub fn agent_chosen(agent: &str, reason: AgentReason) -> String {
    let agent = clean(agent);
    match reason {
        AgentReason::Failed => format!("the agent {agent} takes over after a failure"),
        AgentReason::Condition => {
            format!("the agent {agent} takes over: the condition of the fallback holds")
        }
        AgentReason::Limit => format!("the agent {agent} takes over at a usage limit"),
        _ => format!("by the agent {agent}"),
    }
}

/// Why a running attempt was cancelled.
pub fn cancelled(reason: CancelReason) -> &'static str {
    match reason {
        CancelReason::Stop => "the session was stopped",
        CancelReason::Pause => "the session is pausing",
        CancelReason::Budget => "a budget is used up",
        CancelReason::Timeout => "a timeout expired",
        CancelReason::End => "a `control.end` ended what it is in",
        _ => "another node failed",
    }
}

/// How a session ended, with its sign.
pub fn outcome(ended: &FinalStatus) -> (Tone, &'static str, &'static str) {
    match ended.outcome {
        Outcome::Stopped if ended.cause == Cause::Unattended => (Tone::Warning, "?", "waiting for a person"),
        Outcome::Paused => (Tone::Warning, "‖", "paused"),
        Outcome::Waiting => (Tone::Warning, "?", "waiting"),
        Outcome::Success => (Tone::Good, "✔", "succeeded"),
        Outcome::Partial => (Tone::Warning, "✘", "partial"),
        Outcome::Stopped => (Tone::Warning, "■", "stopped"),
        Outcome::BudgetExceeded => (Tone::Bad, "✘", "exceeded its budget"),
        Outcome::TimedOut => (Tone::Bad, "✘", "timed out"),
        _ => (Tone::Bad, "✘", "failed"),
    }
}

/// Why a flow ends before all of it has run.
pub fn ending(line: &mut Line, outcome: Outcome, error: Option<&AgentError>) {
    match error {
        Some(error) => self::error(line, error),
        None => drop(line.push(Tone::Plain, SessionStatus::of_outcome(outcome).word())),
    }
}

/// An error in one line, its code at the end.
pub fn error(line: &mut Line, error: &AgentError) {
    let mut said = error.message.lines();
    line.push(Tone::Plain, &clean(said.next().unwrap_or_default()));
    if said.next().is_some() {
        line.push(Tone::Plain, "…");
    }
    line.push(Tone::Faint, &format!(" [{}]", error.code));
}

/// An answer to a question, and whether somebody gave it.
pub fn answer(content: &str, choice: Option<&str>, is_default: bool) -> String {
    let by = if is_default { " (the default: nobody answered)" } else { "" };
    format!("{}{by}", choice.unwrap_or(content))
}

/// The answers that a question takes, and what happens without one, as it is asked now.
pub fn answers(question: &Prompt, now: Timestamp) -> Option<String> {
    let mut parts = Vec::new();
    let choices = question.choices.as_deref().unwrap_or_default();
    if !choices.is_empty() {
        parts.push(choices.iter().map(|choice| clean(choice)).collect::<Vec<_>>().join(" / "));
    }
    match (&question.default, question.deadline) {
        (Some(default), Some(at)) => {
            parts.push(format!("`{}` at {}", clean(default), format::until(at, now)));
        }
        (Some(default), None) => parts.push(format!("default `{}`", clean(default))),
        (None, Some(at)) => parts.push(format!("until {}", format::until(at, now))),
        (None, None) => {}
    }
    (!parts.is_empty()).then(|| parts.join("; "))
}
