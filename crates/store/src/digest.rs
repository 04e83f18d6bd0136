//! A summary of a session's events for lists. The store writes it in the transaction that appends the events, so a
//! list reads no log. The state of a run itself is the fold in `inspan_flow_core`.

use inspan_protocol::{
    Envelope, Event, Outcome, PauseCause, Prompt, PromptKind, SessionStatus, Timestamp, Usage, WaitingOn,
};
use serde::{Deserialize, Serialize};

/// The summary of a session: a fold of its events.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Digest {
    /// Its status.
    pub status: SessionStatus,
    /// How it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outcome: Option<Outcome>,
    /// When it began.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
    /// The time of its newest event.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub updated_at: Option<Timestamp>,
    /// Its newest event.
    pub last_seq: u64,
    /// What it waits for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waits: Option<Waits>,
    /// Why it is paused, unless a person or a program paused it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paused_by: Option<PauseCause>,
    /// Unanswered questions, oldest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub prompts: Vec<Prompt>,
    /// Known cost in US dollars.
    pub cost_usd: f64,
    /// Whether some cost is unknown.
    pub unpriced: bool,
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

impl Digest {
    /// Takes the next event of the log.
    pub fn take(&mut self, envelope: &Envelope) {
        self.last_seq = envelope.seq;
        self.updated_at = Some(envelope.timestamp);
        match &envelope.event {
            Event::HarnessStart { .. } => {
                self.started_at = Some(envelope.timestamp);
                self.status = SessionStatus::Running;
            }
            Event::HarnessComplete { outcome, .. } => {
                self.outcome = Some(*outcome);
                self.status = SessionStatus::of_outcome(*outcome);
                self.waits = None;
                self.prompts.clear();
            }
            Event::FlowPaused { cause, .. } => {
                self.status = SessionStatus::Paused;
                self.paused_by = *cause;
            }
            Event::FlowWaiting { on, until } => {
                self.status = SessionStatus::Waiting;
                self.waits = Some(Waits { on: *on, until: *until });
            }
            Event::FlowResumed { .. } => {
                self.wake();
                // The agents that asked for a permission are gone; the flow's questions are asked again.
                self.prompts.retain(|open| open.kind == PromptKind::Input);
            }
            Event::TaskStart { .. } => self.wake(),
            Event::TaskComplete { .. } | Event::TaskFailed { .. } | Event::TaskReused { .. } => {
                self.wake();
                let task = envelope.context.task.as_ref();
                self.prompts.retain(|open| open.task.is_none() || open.task.as_ref() != task);
            }
            Event::SessionPrompt(prompt) => {
                self.prompts.retain(|open| open.prompt_id != prompt.prompt_id);
                self.prompts.push(Prompt { task: envelope.context.task.clone(), ..prompt.clone() });
            }
            Event::SessionReply { prompt_id, .. } => {
                self.prompts.retain(|open| open.prompt_id != *prompt_id);
                self.wake();
            }
            Event::AgentUsage { usage, cost_usd, .. } => {
                self.usage += *usage;
                match cost_usd {
                    Some(cost) => self.cost_usd += cost,
                    None => self.unpriced = true,
                }
            }
            _ => {}
        }
    }

    fn wake(&mut self) {
        self.status = SessionStatus::Running;
        self.waits = None;
        self.paused_by = None;
    }

    /// What it cost, unless some of it is unknown.
    pub fn known_cost(&self) -> Option<f64> {
        (!self.unpriced).then_some(self.cost_usd)
    }
}
