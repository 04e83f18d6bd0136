//! The digest: what happened since a moment, from the events of all sessions alone. Failures first, then money, what
//! waits for a person, and what was done.

mod render;

use std::collections::BTreeMap;

use inspan_protocol::{
    DeniedCalls, Envelope, Event, NodePath, Outcome, SessionId, Spending, Timestamp, UnpricedTurns,
};
use inspan_sessions::is_late;
use inspan_store::{RunStore, Select, SessionEntry, StoreError};
use inspan_view::{
    Commands, DisplayStatus, Permission,
    entry::{open_questions, waits_for},
};
use serde::Serialize;

pub use render::DigestForm;

use crate::{
    message::{Message, line, lines},
    notice::{Notice, NoticeKind, delivery_id},
};

/// The version of the JSON form.
const VERSION: u16 = 1;
/// How many failed nodes of one session are listed, and how long each error is, in characters.
const NODES: usize = 5;
const ERROR: usize = 300;
/// The events that a digest reads.
const EVENTS: &[&str] = &[
    "agent:start",
    "agent:turn",
    "agent:spent",
    "agent:usage",
    "agent:complete",
    "limit:wait",
    "task:agent",
    "task:cancelled",
    "task:complete",
    "task:failed",
    "phase:failed",
    "harness:complete",
];

/// What happened in a time.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Digest {
    /// The version of this form.
    pub v: u16,
    /// From when.
    pub since: Timestamp,
    /// Until when.
    pub until: Timestamp,
    /// Sessions that did not end well, whose process is gone, or that cannot be read.
    pub failed: Vec<DigestSession>,
    /// What was spent.
    pub spent: Money,
    /// What waits for a person, however long it has waited.
    pub waiting: Vec<WaitingItem>,
    /// Sessions that ended well or were stopped.
    pub done: Vec<DigestSession>,
    /// Sessions that run now.
    pub running: Vec<DigestSession>,
}

/// One session of a digest.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DigestSession {
    /// The session.
    pub session: SessionId,
    /// Its flow.
    pub flow: String,
    /// Its status, in the word of `inspan ps`.
    pub state: &'static str,
    /// Its newest event.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at: Option<Timestamp>,
    /// How long it took, if it has ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<u64>,
    /// How many nodes finished in the time of the digest.
    pub finished_nodes: u64,
    /// How many tool calls their agents were denied.
    pub denied_calls: u64,
    /// What was spent in the time of the digest, in US dollars, if all of it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost_usd: Option<f64>,
    /// Why it failed, where that is not the error of a node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The nodes that failed for good.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<FailedNode>,
    /// How many more nodes failed for good.
    #[serde(skip_serializing_if = "is_zero")]
    pub more_errors: u64,
    /// Why it cannot be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub damage: Option<String>,
    /// What to do about it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub commands: Vec<String>,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// A node that failed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FailedNode {
    /// The node.
    pub node: NodePath,
    /// Why.
    pub error: String,
}

/// Money and tokens.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Money {
    /// In US dollars, as far as it is known.
    pub usd: f64,
    /// Whether all of it is known.
    pub is_complete: bool,
    /// Tokens.
    pub tokens: u64,
    /// By flow, the most expensive first.
    pub flows: Vec<FlowMoney>,
}

/// What the sessions of one flow spent.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FlowMoney {
    /// The flow.
    pub flow: String,
    /// In US dollars, as far as it is known.
    pub usd: f64,
    /// Whether all of it is known.
    pub is_complete: bool,
    /// Tokens.
    pub tokens: u64,
}

/// Something that waits for a person.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WaitingItem {
    /// The session.
    pub session: SessionId,
    /// Its flow.
    pub flow: String,
    /// The node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<NodePath>,
    /// The question, or what it waits for.
    pub what: String,
    /// When its time is up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Timestamp>,
    /// What answers it or continues the session.
    pub commands: Vec<String>,
}

/// What one session spent and did.
#[derive(Default)]
struct Sum {
    spent: Spending,
    unpriced_turns: UnpricedTurns,
    finished: u64,
    denied_calls: DeniedCalls,
    denied: u64,
    duration_ms: Option<u64>,
    error: Option<String>,
    errors: BTreeMap<NodePath, String>,
}

impl Digest {
    /// The digest of a store.
    ///
    /// # Errors
    /// The list of sessions cannot be read. A session that cannot be read is among the failed ones.
    pub async fn of(
        store: &dyn RunStore,
        since: Timestamp,
        until: Timestamp,
        commands: &Commands,
    ) -> Result<Self, StoreError> {
        let mut digest = Self {
            v: VERSION,
            since,
            until,
            failed: Vec::new(),
            spent: Money { is_complete: true, ..Money::default() },
            waiting: Vec::new(),
            done: Vec::new(),
            running: Vec::new(),
        };
        let mut flows: BTreeMap<String, Spending> = BTreeMap::new();
        // A replay costs nothing, and fails or waits as its recording did.
        let entries = store.entries("", usize::MAX).await?;
        for mut entry in entries.into_iter().filter(|entry| !entry.is_replay) {
            digest.add_waiting(&entry, commands);
            let is_of_time = entry.digest.updated_at.is_some_and(|updated| updated >= since);
            if !is_of_time && entry.damage.is_none() {
                continue;
            }
            let events = match &entry.damage {
                Some(_) => Vec::new(),
                None => match store.read(&entry.session, 1, Select::Names(EVENTS)).await {
                    Ok(events) => events,
                    Err(error) => {
                        entry.damage = Some(error.to_string());
                        Vec::new()
                    }
                },
            };
            let mut sum = Sum::default();
            events.iter().for_each(|event| sum.apply(event, event.timestamp >= since));
            sum.spent.unpriced |= entry.has_cut_turns();
            *flows.entry(entry.flow.clone()).or_default() += sum.spent;
            digest.add(&entry, sum, commands);
        }
        let flow = |(flow, spent): (String, Spending)| FlowMoney {
            flow: line(&flow, 100),
            usd: spent.cost_usd,
            is_complete: !spent.unpriced,
            tokens: spent.tokens,
        };
        digest.spent.flows = flows.into_iter().filter(|(_, spent)| !spent.is_zero()).map(flow).collect();
        digest.spent.flows.sort_by(|a, b| b.usd.total_cmp(&a.usd));
        for flow in &digest.spent.flows {
            digest.spent.usd += flow.usd;
            digest.spent.is_complete &= flow.is_complete;
            digest.spent.tokens += flow.tokens;
        }
        // Whose time is up first comes first.
        digest.waiting.sort_by_key(|item| (item.deadline.is_none(), item.deadline));
        Ok(digest)
    }

    /// The message that sends it through a channel.
    pub fn message(&self, channel: &str) -> Message {
        let [since, until] = [self.since.to_string(), self.until.to_string()];
        let title = format!("Inspan, {}", self.title());
        let notice = Notice::new(NoticeKind::Digest, self.until, title, self.text(DigestForm::Text));
        Message::about(delivery_id(&["digest", channel, &since, &until]), channel, notice)
    }

    fn add_waiting(&mut self, entry: &SessionEntry, commands: &Commands) {
        let status = DisplayStatus::of(entry);
        if status.has_ended() || status == DisplayStatus::Damaged {
            return;
        }
        let item = |node: Option<NodePath>, what: String, deadline, commands| WaitingItem {
            session: entry.session.clone(),
            flow: line(&entry.flow, 100),
            node,
            what,
            deadline,
            commands,
        };
        let before = self.waiting.len();
        for prompt in open_questions(entry) {
            let permission = Permission::of(prompt.kind, prompt.detail.as_ref(), &prompt.prompt);
            let what =
                permission.map_or_else(|| line(&prompt.prompt, ERROR), |permission| permission.title());
            let answers = commands.for_question(entry, prompt, is_late(entry, prompt, self.until));
            self.waiting.push(item(prompt.task.clone(), what, prompt.deadline, answers));
        }
        if self.waiting.len() > before {
            return;
        }
        let (next, can): (Vec<_>, Vec<_>) = commands.next(entry).into_iter().unzip();
        let what = match status {
            DisplayStatus::Paused => format!("paused: {}", can.join(", ")),
            DisplayStatus::Waiting if entry.owner.is_none() => {
                let what = waits_for(entry).map(|what| format!(" for {what}"));
                format!("waiting{}, and no process runs it", what.unwrap_or_default())
            }
            _ => return,
        };
        self.waiting.push(item(None, what, None, next));
    }

    fn add(&mut self, entry: &SessionEntry, sum: Sum, commands: &Commands) {
        let status = DisplayStatus::of(entry);
        let list = match status {
            DisplayStatus::Ended(Outcome::Success | Outcome::Stopped) => &mut self.done,
            DisplayStatus::Ended(_) | DisplayStatus::Interrupted | DisplayStatus::Damaged => &mut self.failed,
            DisplayStatus::Running => &mut self.running,
            // A process waits for a limit.
            DisplayStatus::Waiting if entry.owner.is_some() && open_questions(entry).next().is_none() => {
                &mut self.running
            }
            // The session that continues it is in the list, and what waits has its own.
            DisplayStatus::Continued | DisplayStatus::Waiting | DisplayStatus::Paused => return,
        };
        let error = sum.error.filter(|error| !sum.errors.values().any(|of_node| of_node == error));
        let more_errors = sum.errors.len().saturating_sub(NODES) as u64;
        let errors = sum.errors.into_iter().map(|(node, error)| FailedNode { node, error });
        let mut errors: Vec<FailedNode> = errors.collect();
        // As text, `each[116]` comes before `each[9]`.
        let place = |failed: &FailedNode| {
            let parts = failed.node.parts().map(|part| (part.node.to_owned(), part.pass, part.index));
            parts.collect::<Vec<_>>()
        };
        errors.sort_by_cached_key(place);
        errors.truncate(NODES);
        list.push(DigestSession {
            session: entry.session.clone(),
            flow: line(&entry.flow, 100),
            state: status.word(),
            at: entry.digest.updated_at,
            duration_ms: sum.duration_ms,
            finished_nodes: sum.finished,
            denied_calls: sum.denied,
            cost_usd: (!sum.spent.unpriced).then_some(sum.spent.cost_usd),
            error,
            errors,
            more_errors,
            damage: entry.damage.as_ref().map(|damage| line(damage, ERROR)),
            commands: commands.next(entry).into_iter().map(|(command, _)| command).collect(),
        });
    }
}

impl Sum {
    /// Adds an event of the time of the digest; one from before only says which turns were open then, and what was told.
    fn apply(&mut self, envelope: &Envelope, is_of_time: bool) {
        let task = envelope.context.task.as_ref();
        let spent = self.unpriced_turns.take(&envelope.event);
        let denied = self.denied_calls.take(envelope).len() as u64;
        if !is_of_time {
            return;
        }
        if let Some((_, spent)) = spent {
            self.spent += spent;
        }
        self.denied += denied;
        match (&envelope.event, task) {
            (Event::TaskComplete { .. }, task) => {
                self.finished += 1;
                // It failed, and then it did not.
                task.map(|task| self.errors.remove(task));
            }
            (Event::TaskFailed { error, will_retry: false, .. }, Some(task)) => {
                self.errors.insert(task.clone(), lines(&error.message, ERROR));
            }
            (Event::PhaseFailed { error, .. }, _) => self.error = Some(lines(&error.message, ERROR)),
            (Event::HarnessComplete { duration_ms, .. }, _) => self.duration_ms = Some(*duration_ms),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_says_what_was_spent_is_read() {
        assert!(UnpricedTurns::EVENTS.iter().all(|name| EVENTS.contains(name)));
    }
}
