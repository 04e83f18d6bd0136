//! One session in a list: as a line for people and as an object for programs.

use inspan_flow::{Liveness, SessionEntry};
use inspan_protocol::{PauseCause, Prompt, PromptKind, Timestamp, WaitingOn};
use serde_json::{Value, json};

use super::DisplayStatus;
use crate::console::{Permission, clean, format};

/// The questions of a session that an answer can still reach.
pub(in crate::commands) fn open_questions(entry: &SessionEntry) -> impl Iterator<Item = &Prompt> {
    // Who asked for a permission is gone with the process.
    let gone = entry.liveness == Liveness::Gone;
    entry.digest.prompts.iter().filter(move |prompt| !(gone && prompt.kind == PromptKind::Permission))
}

/// What a session waits for, in a few words, or why it cannot be read.
pub(in crate::commands) fn waits_for(entry: &SessionEntry) -> Option<String> {
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
    match entry.digest.waits {
        Some(waits) if waits.on == WaitingOn::Limit => Some(match waits.until {
            Some(until) => format!("a usage limit, until {}", format::moment(until)),
            None => "a usage limit".to_owned(),
        }),
        _ if entry.unanswered > 0 => Some(match entry.unanswered {
            1 => "1 command not applied yet".to_owned(),
            count => format!("{count} commands not applied yet"),
        }),
        _ => None,
    }
}

/// `$0.0042`, or that it is not known; nothing where no agent ran.
pub(in crate::commands) fn cost(entry: &SessionEntry) -> String {
    let digest = &entry.digest;
    match digest.known_cost() {
        Some(_) if digest.usage.total() == 0 => "-".to_owned(),
        Some(usd) => format::dollars(usd),
        None if digest.cost_usd > 0.0 => format!(">{}", format::dollars(digest.cost_usd)),
        None => "unknown".to_owned(),
    }
}

/// How long ago a session was made.
pub(in crate::commands) fn age(entry: &SessionEntry, now: Timestamp) -> String {
    // Of a session that is lost nobody knows.
    if entry.created_at == Timestamp::default() {
        return "-".to_owned();
    }
    format::age(now.since(entry.created_at))
}

/// The object for programs.
pub(in crate::commands) fn json(entry: &SessionEntry) -> Value {
    let digest = &entry.digest;
    let mut value = json!({
        "sessionId": entry.session,
        "flow": entry.flow,
        "state": DisplayStatus::of(entry).word(),
        "createdAt": entry.created_at,
        "usage": digest.usage,
        "questions": open_questions(entry).count(),
        "unansweredCommands": entry.unanswered,
        "lastSeq": digest.last_seq,
    });
    let mut put = |key: &str, known: Option<Value>| {
        if let Some(known) = known {
            value[key] = known;
        }
    };
    put("startedAt", digest.started_at.map(|at| json!(at)));
    put("updatedAt", digest.updated_at.map(|at| json!(at)));
    put("costUsd", digest.known_cost().map(|usd| json!(usd)));
    put("damage", entry.damage.as_ref().map(|damage| json!(damage)));
    put("continuedBy", entry.continued_by.as_ref().map(|by| json!(by)));
    put("pausedBy", digest.paused_by.map(|cause| json!(cause)));
    let waits = digest.waits.filter(|_| !DisplayStatus::of(entry).has_ended());
    put("waits", waits.map(|waits| json!(waits)));
    put(
        "owner",
        entry.owner.as_ref().map(|owner| {
            let lives = match entry.liveness {
                Liveness::Alive => "alive",
                Liveness::Elsewhere => "elsewhere",
                Liveness::Gone => "gone",
            };
            json!({ "pid": owner.pid, "host": owner.host, "is": lives })
        }),
    );
    value
}
