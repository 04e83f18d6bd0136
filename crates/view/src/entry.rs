//! One session in a list: its status, as a line for people and as an object for programs.

use inspan_protocol::{Outcome, PauseCause, Prompt, PromptKind, SessionStatus, Timestamp, WaitingOn};
use inspan_store::{Liveness, SessionEntry};
use serde_json::{Value, json};

use crate::{format, line::Tone, permission::Permission, safe::clean};

/// The status of a session, as users see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DisplayStatus {
    /// A process runs it.
    Running,
    /// Nothing can run until a person answers or a limit is lifted.
    Waiting,
    /// It is paused.
    Paused,
    /// The process that ran it is gone, and it has not ended.
    Interrupted,
    /// It has not ended, and another session continues it.
    Continued,
    /// It has ended.
    Ended(Outcome),
    /// It cannot be read, or parts of it are lost.
    Damaged,
}

impl DisplayStatus {
    /// The status of a stored session.
    pub fn of(entry: &SessionEntry) -> Self {
        if entry.damage.is_some() {
            return Self::Damaged;
        }
        if let Some(outcome) = entry.digest.outcome {
            return Self::Ended(outcome);
        }
        if entry.continued_by.is_some() {
            return Self::Continued;
        }
        match entry.digest.status {
            SessionStatus::Paused => Self::Paused,
            _ if entry.is_lost() => Self::Interrupted,
            SessionStatus::Waiting => Self::Waiting,
            _ => Self::Running,
        }
    }

    /// The word for it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Waiting => "waiting",
            Self::Paused => "paused",
            Self::Interrupted => "interrupted",
            Self::Continued => "continued",
            Self::Damaged => "damaged",
            Self::Ended(Outcome::Success) => "success",
            Self::Ended(Outcome::Partial) => "partial",
            Self::Ended(Outcome::Stopped) => "stopped",
            Self::Ended(Outcome::BudgetExceeded) => "budgetExceeded",
            Self::Ended(Outcome::TimedOut) => "timedOut",
            Self::Ended(_) => "failed",
        }
    }

    /// Every status of a session, once each.
    pub const ALL: [Self; 12] = [
        Self::Running,
        Self::Waiting,
        Self::Paused,
        Self::Interrupted,
        Self::Continued,
        Self::Damaged,
        Self::Ended(Outcome::Success),
        Self::Ended(Outcome::Partial),
        Self::Ended(Outcome::Stopped),
        Self::Ended(Outcome::BudgetExceeded),
        Self::Ended(Outcome::TimedOut),
        Self::Ended(Outcome::Failed),
    ];

    /// The words for it in a sentence.
    pub fn label(self) -> &'static str {
        match self {
            Self::Ended(Outcome::BudgetExceeded) => "budget exceeded",
            Self::Ended(Outcome::TimedOut) => "timed out",
            other => other.word(),
        }
    }

    /// The sign of it.
    pub fn sign(self) -> &'static str {
        match self {
            Self::Running => "▸",
            Self::Waiting => "?",
            Self::Paused => "‖",
            Self::Interrupted | Self::Ended(Outcome::Stopped) => "■",
            Self::Continued => "≡",
            Self::Ended(Outcome::Success) => "✔",
            Self::Ended(_) | Self::Damaged => "✘",
        }
    }

    /// What it means to people.
    pub fn tone(self) -> Tone {
        match self {
            Self::Running => Tone::Accent,
            Self::Waiting | Self::Paused | Self::Interrupted => Tone::Warning,
            Self::Ended(Outcome::Success) => Tone::Good,
            Self::Ended(Outcome::Partial | Outcome::Stopped) => Tone::Warning,
            Self::Continued => Tone::Faint,
            Self::Ended(_) | Self::Damaged => Tone::Bad,
        }
    }

    /// Whether the process that ran it is gone, and did not leave on purpose.
    pub fn has_lost_process(self) -> bool {
        matches!(self, Self::Interrupted | Self::Continued)
    }

    /// Whether nothing more happens in this session.
    pub fn has_ended(self) -> bool {
        matches!(self, Self::Ended(_) | Self::Continued)
    }
}

/// The questions of a session that an answer can still reach.
pub fn open_questions(entry: &SessionEntry) -> impl Iterator<Item = &Prompt> {
    // The agents that asked are gone with the process, and of two answers that wait only the first counts.
    let is_lost =
        |prompt: &Prompt| prompt.kind != PromptKind::Input || entry.answered.contains(&prompt.prompt_id);
    let gone = entry.liveness == Liveness::Gone;
    entry.digest.prompts.iter().filter(move |prompt| !(gone && is_lost(prompt)))
}

/// What a session waits for, in a few words, or why it cannot be read.
pub fn waits_for(entry: &SessionEntry) -> Option<String> {
    if let Some(damage) = &entry.damage {
        return Some(clean(damage));
    }
    if DisplayStatus::of(entry).has_ended() {
        return None;
    }
    if entry.unanswered > 0 && entry.liveness == Liveness::Gone {
        let what = if entry.unanswered == 1 {
            "1 stored command".to_owned()
        } else {
            format!("{} stored commands", entry.unanswered)
        };
        return Some(format!("`inspan resume`, to apply {what}"));
    }
    let mut open = open_questions(entry);
    if let Some(first) = open.next() {
        let more = open.count();
        let more = if more > 0 { format!(" (+{more})") } else { String::new() };
        let node = first.task.as_ref().map(|task| format!("{task}: ")).unwrap_or_default();
        let permission = Permission::of(first.kind, first.detail.as_ref(), &first.prompt);
        let question = permission.map_or_else(|| clean(&first.prompt), |permission| permission.title());
        return Some(format!("{node}{question}{more}"));
    }
    if entry.digest.paused_by == Some(PauseCause::Budget) {
        return Some("a larger budget".to_owned());
    }
    usage_limit(entry).or_else(|| worker(entry)).or_else(|| match entry.unanswered {
        0 => None,
        1 => Some("1 command not applied yet".to_owned()),
        count => Some(format!("{count} commands not applied yet")),
    })
}

/// The worker of the cluster that a session or its nodes wait for, in a few words.
pub fn worker(entry: &SessionEntry) -> Option<String> {
    if entry.is_unknown {
        return Some("its server, which does not answer: it may run or not".to_owned());
    }
    if let Some(since) = entry.undecided_since {
        return Some(format!("a worker, since {}: none has taken it", format::moment(since)));
    }
    let (first, more) = entry.waiting_for_worker.split_first()?;
    let more = if more.is_empty() { String::new() } else { format!(" (+{})", more.len()) };
    let node = clean(first.as_str());
    Some(match entry.waiting_for_machine.get(first) {
        Some(machine) => {
            format!("a worker on {} for {node}{more}: its agent's conversation is there", clean(machine))
        }
        None => format!("a worker for {node}{more}"),
    })
}

/// The usage limit of a vendor that a session waits for, in a few words.
pub fn usage_limit(entry: &SessionEntry) -> Option<String> {
    let waits = entry.digest.waits.filter(|waits| waits.on == WaitingOn::Limit)?;
    Some(match waits.until {
        Some(until) => format!("a usage limit, until {}", format::moment(until)),
        None => "a usage limit".to_owned(),
    })
}

/// `$0.0042`, or that it is not known; nothing where no agent ran.
pub fn cost(entry: &SessionEntry) -> String {
    let digest = &entry.digest;
    match (entry.known_cost(), entry.known_part()) {
        (Some(usd), _) if usd == 0.0 && digest.usage.total() == 0 => "-".to_owned(),
        (Some(usd), _) => format::dollars(usd),
        (None, Some(part)) => format!(">{}", format::dollars(part)),
        (None, None) => "unknown".to_owned(),
    }
}

/// How long ago a session was made.
pub fn age(entry: &SessionEntry, now: Timestamp) -> String {
    // The time of a lost session is unknown.
    if entry.created_at == Timestamp::default() {
        return "-".to_owned();
    }
    format::age(now.since(entry.created_at))
}

/// The object for programs.
pub fn json(entry: &SessionEntry) -> Value {
    let digest = &entry.digest;
    // While the session runs, what was used up may end only a part of it.
    let rests = digest.paused_by.is_some() || digest.outcome.is_some();
    let lives = match entry.liveness {
        Liveness::Alive => "alive",
        Liveness::Elsewhere => "elsewhere",
        Liveness::Gone => "gone",
    };
    let owner = entry.owner.as_ref();
    without_nulls(json!({
        "sessionId": entry.session,
        "flow": entry.flow,
        "state": DisplayStatus::of(entry).word(),
        "createdAt": entry.created_at,
        "usage": digest.usage,
        "questions": open_questions(entry).count(),
        "unansweredCommands": entry.unanswered,
        "lastSeq": digest.last_seq,
        "startedAt": digest.started_at,
        "updatedAt": digest.updated_at,
        "durationMs": digest.took_ms(),
        "costUsd": entry.known_cost(),
        "knownUsd": entry.known_part(),
        "damage": entry.damage,
        "continuedBy": entry.continued_by,
        "isReplay": entry.is_replay.then_some(true),
        "pausedBy": digest.paused_by,
        "limitToRaise": digest.limit_to_raise.as_ref().filter(|_| rests),
        "waits": digest.waits.filter(|_| !DisplayStatus::of(entry).has_ended()),
        "waitsFor": waits_for(entry),
        "waitingForWorker": Some(&entry.waiting_for_worker).filter(|nodes| !nodes.is_empty()),
        "waitingForMachine": Some(&entry.waiting_for_machine).filter(|nodes| !nodes.is_empty()),
        "undecidedSince": entry.undecided_since,
        "isUnknown": entry.is_unknown.then_some(true),
        "owner": owner.map(|owner| json!({ "pid": owner.pid, "host": owner.host, "is": lives })),
    }))
}

/// An object without the fields that are null: what is not known, or does not apply, is left out.
pub fn without_nulls(mut value: Value) -> Value {
    if let Some(fields) = value.as_object_mut() {
        fields.retain(|_, field| !field.is_null());
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Recorded;

    #[test]
    fn a_list_a_page_and_a_timeline_say_how_long_the_session_says_it_took() {
        let recorded = Recorded::flow("chain");
        let took = recorded.log.iter().find_map(|envelope| match &envelope.event {
            inspan_protocol::Event::HarnessComplete { duration_ms, .. } => Some(*duration_ms),
            _ => None,
        });
        // The channels end after the session.
        let mut late = recorded.log.last().unwrap().clone();
        (late.seq, late.timestamp) = (late.seq + 1, late.timestamp + std::time::Duration::from_secs(9));
        late.event = inspan_protocol::Event::ChannelStopped { name: "console".to_owned() };
        let mut entry = recorded.session.entry.clone();
        let mut timeline = crate::TimelineFold::default();
        entry.digest = Default::default();
        for envelope in recorded.log.iter().chain([&late]) {
            entry.digest.apply(envelope);
            timeline.apply(envelope);
        }
        let timeline = timeline.timeline("", 10);
        assert_eq!([json(&entry)["durationMs"].as_u64(), timeline.duration_ms], [took, took]);
        assert!(timeline.to < Some(late.timestamp));
    }

    #[test]
    fn a_session_of_a_cluster_says_what_is_known_of_it() {
        let mut entry = Recorded::flow("chain").session.entry;
        entry.digest.status = SessionStatus::Running;
        assert_eq!(worker(&entry), None);
        entry.undecided_since = Some(Timestamp::default());
        let since = format!("a worker, since {}: none has taken it", format::moment(Timestamp::default()));
        assert_eq!(worker(&entry), Some(since));
        entry.is_unknown = true;
        assert_eq!(worker(&entry).unwrap(), "its server, which does not answer: it may run or not");
        assert_eq!(json(&entry)["isUnknown"], true);
    }

    #[test]
    fn what_a_turn_took_that_was_cut_short_is_unknown_and_its_node_interrupted() {
        use inspan_protocol::{Event, NodeStatus, Usage};

        let mut entry = Recorded::flow("chain").session.entry;
        entry.digest = Default::default();
        entry.digest.usage = Usage { input_tokens: 10, ..Usage::default() };
        let begins: Event = serde_json::from_value(json!({
            "type": "agent:start", "agentName": "a", "runId": "r", "provider": "p", "turn": 1, "multiTurn": "off"
        }))
        .unwrap();
        let _nothing = entry.digest.unpriced_turns.take(&begins);
        entry.digest.status = SessionStatus::Running;
        let seen = |entry: &SessionEntry| {
            let status = crate::page::idle_status(NodeStatus::Running, DisplayStatus::of(entry));
            (cost(entry), json(entry)["costUsd"].as_f64(), status)
        };
        entry.liveness = Liveness::Alive;
        assert_eq!(seen(&entry), ("$0".to_owned(), Some(0.0), NodeStatus::Running));
        entry.liveness = Liveness::Gone;
        assert_eq!(seen(&entry), ("unknown".to_owned(), None, NodeStatus::Interrupted));
        entry.continued_by = Some("t".into());
        assert_eq!(seen(&entry), ("unknown".to_owned(), None, NodeStatus::Interrupted));
        entry.digest.cost_usd = 0.5;
        assert_eq!(cost(&entry), ">$0.5000");
    }

    #[test]
    fn a_session_that_spent_money_and_no_tokens_has_a_cost() {
        let mut entry = Recorded::flow("chain").session.entry;
        entry.digest = Default::default();
        assert_eq!(cost(&entry), "-");
        entry.digest.cost_usd = 0.2;
        assert_eq!(cost(&entry), "$0.2000");
    }
}
