//! The facts of the session as a whole. They need no graph, so a store folds them too, and a list reads no log.

use inspan_protocol::{
    Envelope, Event, NodePath, Outcome, PauseCause, Prompt, PromptId, PromptKind, SessionStatus, Spending,
    Timestamp, UnpricedTurns, Usage, WaitingOn,
};
use serde::{Deserialize, Serialize};

/// What the events of a session say about the session as a whole.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SessionFacts {
    /// Its status.
    pub status: SessionStatus,
    /// How it ended.
    pub outcome: Option<Outcome>,
    /// When it began.
    pub started_at: Option<Timestamp>,
    /// The time of its newest event.
    pub updated_at: Option<Timestamp>,
    /// How long it took in milliseconds, once it has ended; absent if it ended before this was kept.
    pub duration_ms: Option<u64>,
    /// Its newest event.
    pub last_seq: u64,
    /// What it waits for.
    pub waits: Option<Waits>,
    /// Why it is paused, unless a person or a program paused it.
    pub paused_by: Option<PauseCause>,
    /// The limits to raise, as `--budget` names them, with commas: those that were used up last, until the session is resumed or
    /// ends in another way.
    pub limit_to_raise: Option<String>,
    /// Unanswered questions, oldest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub prompts: Vec<Prompt>,
    /// Known cost in US dollars.
    pub cost_usd: f64,
    /// Whether some turn's price is unknown, so that the sum is too.
    pub unpriced: bool,
    /// Whether nothing is known of the tokens of some turn.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub uncounted: bool,
    /// The agent runs in a turn of which a part has no price yet.
    #[serde(skip_serializing_if = "UnpricedTurns::is_empty")]
    pub unpriced_turns: UnpricedTurns,
    /// Tokens of all agents.
    pub usage: Usage,
}

/// What a session waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Waits {
    /// What for.
    pub on: WaitingOn,
    /// Until when, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
}

impl SessionFacts {
    /// How long it took in milliseconds; of a session that has not ended, up to its newest event.
    pub fn took_ms(&self) -> Option<u64> {
        let so_far = || u64::try_from(self.updated_at?.since(self.started_at?).as_millis()).ok();
        self.duration_ms.or_else(so_far)
    }

    /// Applies the next event of the log.
    pub fn apply(&mut self, envelope: &Envelope) {
        let Envelope { seq, timestamp, context, event, .. } = envelope;
        self.take(*seq, *timestamp, context.task.as_ref(), event);
    }

    /// The same. Gives what the event says was spent.
    pub(super) fn take(
        &mut self,
        seq: u64,
        at: Timestamp,
        task: Option<&NodePath>,
        event: &Event,
    ) -> Option<Spending> {
        self.last_seq = seq;
        self.updated_at = Some(at);
        let spent = self.unpriced_turns.take(event).map(|(usage, spent)| {
            self.usage += usage;
            self.cost_usd += spent.cost_usd;
            self.unpriced |= spent.unpriced;
            self.uncounted |= spent.uncounted;
            spent
        });
        match event {
            Event::HarnessStart { .. } if self.started_at.is_none() => {
                self.status = SessionStatus::Running;
                self.started_at = Some(at);
            }
            Event::HarnessComplete { outcome, duration_ms, .. } => {
                self.duration_ms = Some(*duration_ms);
                self.status = SessionStatus::of_outcome(*outcome);
                self.outcome = Some(*outcome);
                self.waits = None;
                if *outcome != Outcome::BudgetExceeded {
                    self.limit_to_raise = None;
                }
                self.prompts.clear();
            }
            Event::BudgetExceeded { budget, .. } => self.limit_to_raise.clone_from(budget),
            Event::FlowPaused { cause, budget, .. } => {
                self.status = SessionStatus::Paused;
                self.paused_by = *cause;
                self.limit_to_raise.clone_from(budget);
            }
            // An answer may have come between the decision to wait and its event; then there is nothing to wait for.
            Event::FlowWaiting { on: WaitingOn::Input, .. } if self.waits_for_input().next().is_none() => {}
            Event::FlowWaiting { on, until } => {
                self.status = SessionStatus::Waiting;
                self.waits = Some(Waits { on: *on, until: *until });
            }
            Event::FlowResumed { .. } => {
                self.status = SessionStatus::Running;
                (self.waits, self.paused_by, self.limit_to_raise) = (None, None, None);
                // The agents that asked for a permission are gone; the flow's questions are asked again.
                self.prompts.retain(|open| open.kind == PromptKind::Input);
            }
            Event::TaskStart { .. } | Event::TaskCancelled { .. } => self.wake(),
            Event::TaskComplete { .. }
            | Event::TaskFailed { .. }
            | Event::TaskAgent { .. }
            | Event::TaskReused { .. }
            | Event::LimitWait { .. } => {
                self.prompts.retain(|open| open.task.is_none() || open.task.as_ref() != task);
                self.wake();
            }
            Event::FrameComplete { index, .. }
            | Event::FrameFailed { index, .. }
            | Event::FrameCancelled { index, .. } => {
                self.prompts.retain(|open| !is_in_frame(open.task.as_ref(), task, *index));
            }
            // A message may have interrupted the turn in which the agent asked for a permission.
            Event::TaskInterrupted { .. } | Event::AgentTurn { .. } => {
                self.prompts.retain(|open| open.kind == PromptKind::Input || open.task.as_ref() != task);
                self.wake();
            }
            Event::SessionPrompt(prompt) => {
                self.prompts.retain(|open| open.prompt_id != prompt.prompt_id);
                self.prompts.push(Prompt { task: task.cloned(), ..prompt.clone() });
            }
            Event::SessionReply { prompt_id, .. } if self.prompt(prompt_id).is_some() => {
                self.prompts.retain(|open| open.prompt_id != *prompt_id);
                self.wake();
            }
            _ => {}
        }
        spent
    }

    fn wake(&mut self) {
        if self.status == SessionStatus::Waiting {
            self.status = SessionStatus::Running;
            self.waits = None;
        }
    }

    /// The open question with this id.
    pub(crate) fn prompt(&self, id: &PromptId) -> Option<&Prompt> {
        self.prompts.iter().find(|open| open.prompt_id == *id)
    }

    /// The questions to people that keep the flow waiting.
    pub(crate) fn waits_for_input(&self) -> impl Iterator<Item = &Prompt> {
        self.prompts.iter().filter(|prompt| prompt.kind == PromptKind::Input)
    }

    /// What it cost, unless some of it is unknown.
    pub fn known_cost(&self) -> Option<f64> {
        (!self.unpriced).then_some(self.cost_usd)
    }

    /// What is known of a cost that is not known as a whole.
    pub fn known_part(&self) -> Option<f64> {
        (self.unpriced && self.cost_usd > 0.0).then_some(self.cost_usd)
    }
}

/// Whether a task is in this frame of the node at `owner`, or further in.
fn is_in_frame(task: Option<&NodePath>, owner: Option<&NodePath>, index: u32) -> bool {
    let (Some(task), Some(owner)) = (task, owner) else { return false };
    let inner = task.as_str().strip_prefix(owner.as_str());
    inner.is_some_and(|inner| inner.starts_with('/') || inner.starts_with(&format!("[{index}]/")))
}
