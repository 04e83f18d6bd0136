//! What of a session's events is worth a notification, and the words for it.

use std::time::Duration;

use inspan_protocol::{Envelope, Event, NodePath, Outcome, PauseCause, Prompt, SessionId, Timestamp};
use inspan_view::{Commands, Line, Permission, format, safe::spelled_out};
use serde::{Deserialize, Serialize};

use crate::message::{line, lines};
use inspan_view::format::cut;

/// The longest title, in characters.
const TITLE: usize = 200;
/// The longest text of one notice, in characters. What a person must consent to is never cut: see [`Notice::is_whole`].
const TEXT: usize = 2_000;

/// A question that is larger, in bytes, is sent in part: receivers refuse large requests.
const QUESTION: usize = 64 * 1024;

/// A limit that is lifted so soon is no news: a vendor that refuses still when its moment has come is waited for again and again.
const SHORT_LIMIT: Duration = Duration::from_secs(5 * 60);

/// What a notice is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NoticeKind {
    /// A question waits for a person.
    Question,
    /// A node failed for good, or the session did not end well.
    Failure,
    /// A budget is used up.
    Budget,
    /// A vendor's usage limit is waited out.
    Limit,
    /// The session ended.
    End,
    /// A digest of many sessions, sent on request.
    Digest,
    /// A test of the channel, sent on request.
    Test,
}

impl NoticeKind {
    /// What a channel's `on` can name.
    pub const CONFIGURABLE: [Self; 5] = [Self::Question, Self::Failure, Self::Limit, Self::Budget, Self::End];

    /// Its word.
    pub fn word(self) -> &'static str {
        match self {
            Self::Question => "question",
            Self::Failure => "failure",
            Self::Budget => "budget",
            Self::Limit => "limit",
            Self::End => "end",
            Self::Digest => "digest",
            Self::Test => "test",
        }
    }

    /// The configurable kind with this word.
    pub fn of_word(word: &str) -> Option<Self> {
        Self::CONFIGURABLE.into_iter().find(|kind| kind.word() == word)
    }
}

/// One thing to tell a person.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Notice {
    /// What it is about.
    pub kind: NoticeKind,
    /// The event that it comes from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seq: Option<u64>,
    /// When that happened.
    pub at: Timestamp,
    /// The node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<NodePath>,
    /// One line.
    pub title: String,
    /// More, over several lines; perhaps empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub text: String,
    /// The question, if it is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub question: Option<Prompt>,
    /// Whether the time of the question is up: no answer counts.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_expired: bool,
    /// What to do about it, as commands for a shell.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub commands: Vec<String>,
}

/// The events that can be notices.
pub(crate) const EVENTS: &[&str] =
    &["session:prompt", "task:failed", "limit:wait", "budget:exceeded", "flow:paused", "harness:complete"];

impl Notice {
    /// One that is about no event, no node and no question.
    pub(crate) fn new(kind: NoticeKind, at: Timestamp, title: String, text: String) -> Self {
        Self {
            kind,
            seq: None,
            at,
            node: None,
            title,
            text,
            question: None,
            is_expired: false,
            commands: Vec::new(),
        }
    }

    /// The notice of an event, if the event is worth one. Says of a question whether its time is up.
    pub(crate) fn of(
        envelope: &Envelope,
        commands: &Commands,
        is_expired: impl Fn(&Prompt) -> bool,
    ) -> Option<Self> {
        let session = &envelope.context.session_id;
        let node = envelope.context.task.clone();
        let notice = |kind: NoticeKind, title: String, text: String, commands: Vec<String>| Self {
            seq: Some(envelope.seq),
            node: node.clone(),
            commands,
            ..Self::new(kind, envelope.timestamp, cut(&title, TITLE), cut(&text, TEXT))
        };
        let place = node.as_ref().map_or("the flow".to_owned(), |node| format!("`{node}`"));
        Some(match &envelope.event {
            Event::SessionPrompt(prompt) => {
                let mut prompt = Prompt { task: node.clone(), ..prompt.clone() };
                let is_expired = is_expired(&prompt);
                let (title, text) = asked(&prompt, &place, is_expired);
                let next = match is_expired {
                    true => vec![commands.command("resume", session, "")],
                    false => commands.answers(session, &prompt),
                };
                if serde_json::to_vec(&prompt).is_ok_and(|json| json.len() > QUESTION) {
                    prompt.detail = None;
                    prompt.prompt = cut(&prompt.prompt, TEXT);
                }
                let notice = notice(NoticeKind::Question, title, text, next);
                Self { question: Some(prompt), is_expired, ..notice }
            }
            Event::TaskFailed { error, will_retry: false, .. } => {
                let text = lines(&error.message, TEXT);
                notice(
                    NoticeKind::Failure,
                    format!("{place} failed"),
                    text,
                    vec![commands.command("why", session, "")],
                )
            }
            Event::LimitWait { provider, until, .. } if until.since(envelope.timestamp) > SHORT_LIMIT => {
                let title = format!(
                    "{place} waits for a usage limit of {} until {}",
                    line(provider, 60),
                    format::moment(*until)
                );
                notice(NoticeKind::Limit, title, String::new(), Vec::new())
            }
            Event::BudgetExceeded { limit, budget, frame } => {
                let of = match (&node, frame) {
                    (None, _) => "the session".to_owned(),
                    (Some(node), None) => format!("`{node}`"),
                    (Some(node), Some(frame)) => format!("`{node}[{frame}]`"),
                };
                let title = format!("the budget of {of} is used up");
                notice(
                    NoticeKind::Budget,
                    title,
                    lines(limit, TEXT),
                    vec![commands.raise_budget(session, budget.as_deref()).0],
                )
            }
            // A budget has its own notice.
            Event::FlowPaused { reason, cause: Some(PauseCause::Store), .. } => notice(
                NoticeKind::Failure,
                "the session paused: its store is full".to_owned(),
                lines(reason.as_deref().unwrap_or_default(), TEXT),
                vec![commands.command("resume", session, "")],
            ),
            Event::HarnessComplete { outcome, duration_ms, .. } => {
                let next = match outcome {
                    Outcome::Success => Vec::new(),
                    _ => vec![commands.command("why", session, "")],
                };
                let title = format!("{} after {}", ended(*outcome), format::millis(*duration_ms));
                notice(NoticeKind::End, title, String::new(), next)
            }
            _ => return None,
        })
    }

    /// The notice that the process of a session is gone, which no event reports.
    pub(crate) fn of_loss(session: &SessionId, at: Timestamp, commands: &Commands) -> Self {
        let title = "the process that ran the session is gone".to_owned();
        let text = "It was killed, or the machine was restarted. What was finished is stored.".to_owned();
        let commands = vec![commands.command("resume", session, "")];
        Self { commands, ..Self::new(NoticeKind::Failure, at, title, text) }
    }

    /// Whether a channel that wants these kinds gets it. An end that is a failure is both.
    pub(crate) fn is_wanted(&self, on: &[NoticeKind], event: &Event) -> bool {
        let failed = matches!(
            event,
            Event::HarnessComplete { outcome: Outcome::Failed | Outcome::Partial | Outcome::TimedOut, .. }
        );
        let is_budget = matches!(event, Event::HarnessComplete { outcome: Outcome::BudgetExceeded, .. });
        on.contains(&self.kind)
            || (failed && on.contains(&NoticeKind::Failure))
            || (is_budget && on.contains(&NoticeKind::Budget))
    }

    /// Whether all of the question is shown, so that it can be answered where it is read.
    pub(crate) fn is_whole(&self) -> bool {
        !self.title.ends_with('…') && !self.text.ends_with('…')
    }
}

/// The word for how a session ended.
fn ended(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Success => "done",
        Outcome::Partial => "ended with failures",
        Outcome::Stopped => "stopped",
        Outcome::BudgetExceeded => "ended: the budget is used up",
        Outcome::TimedOut => "ended: its time was up",
        _ => "failed",
    }
}

/// The title and the text of a question. For a permission: the tool and its whole arguments, then the agent's words.
fn asked(prompt: &Prompt, place: &str, is_expired: bool) -> (String, String) {
    let permission = Permission::of(prompt.kind, prompt.detail.as_ref(), &prompt.prompt);
    let (title, mut text) = match &permission {
        Some(permission) => {
            let lines: Vec<String> = permission.lines().iter().map(Line::text).collect();
            (format!("{place} asks: {}", permission.title()), lines)
        }
        None => (format!("{place} asks a question"), vec![spelled_out(&prompt.prompt)]),
    };
    match (&prompt.default, prompt.deadline) {
        (default, Some(at)) if is_expired => {
            let then = match default {
                Some(default) => format!("takes {}", line(default, 200)),
                None => "lets the node fail".to_owned(),
            };
            let at = format::moment(at);
            text.push(format!("expired at {at}: it takes no answer, and resuming the session {then}"));
        }
        (Some(default), Some(at)) => {
            text.push(format!("without an answer by {}: {}", format::moment(at), line(default, 200)));
        }
        (None, Some(at)) => text.push(format!("expires at {}, then the node fails", format::moment(at))),
        _ => {}
    }
    (title, text.join("\n"))
}

/// The id of a delivery: the same whenever it is sent, and different for each channel, session and part of its log.
pub(crate) fn delivery_id(parts: &[&str]) -> String {
    use sha2::{Digest as _, Sha256};
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part.as_bytes());
    }
    let hex: String = hash.finalize().iter().take(12).map(|byte| format!("{byte:02x}")).collect();
    format!("ntf-{hex}")
}

/// The id of the notification that a session lost its process after an event.
pub(crate) fn id_of_loss(channel: &str, session: &SessionId, created: Timestamp, last: u64) -> String {
    let [created, last] = [created.to_string(), last.to_string()];
    delivery_id(&[channel, session.as_str(), &created, "lost", &last])
}

/// The id of what a session's events from `from` to `until` say to a channel.
pub(crate) fn id_of(channel: &str, session: &SessionId, created: Timestamp, from: u64, until: u64) -> String {
    let [created, from, until] = [created.to_string(), from.to_string(), until.to_string()];
    delivery_id(&[channel, session.as_str(), &created, &from, &until])
}

#[cfg(test)]
mod tests {
    use inspan_protocol::{AgentError, ErrorCode, EventContext};
    use serde_json::{Value, json};

    use super::*;

    fn envelope(event: Value) -> Envelope {
        let context = EventContext::session(SessionId::from("run-1")).with_task(NodePath::new("gate"));
        Envelope::new(context, 7, Timestamp::from_millis(0), serde_json::from_value(event).unwrap())
    }

    #[test]
    fn each_event_says_what_happened_and_what_to_do() {
        let error = json!(AgentError::new(ErrorCode::Process, "it broke"));
        let rows = [
            (
                json!({ "type": "task:failed", "taskId": "gate", "error": error, "willRetry": false }),
                Some(("failure", "`gate` failed", "it broke", vec!["inspan why run-1"])),
            ),
            (json!({ "type": "task:failed", "taskId": "gate", "error": error, "willRetry": true }), None),
            (
                json!({ "type": "limit:wait", "provider": "claude", "until": "1970-01-01T02:00:00.000Z" }),
                Some((
                    "limit",
                    "`gate` waits for a usage limit of claude until 1970-01-01 02:00:00 UTC",
                    "",
                    vec![],
                )),
            ),
            (
                json!({ "type": "budget:exceeded", "limit": "5 USD (5.2 spent)", "budget": "gate/.usd", "frame": 2 }),
                Some((
                    "budget",
                    "the budget of `gate[2]` is used up",
                    "5 USD (5.2 spent)",
                    vec!["inspan resume run-1 --budget gate/.usd=N"],
                )),
            ),
            (
                json!({ "type": "harness:complete", "success": true, "outcome": "success", "durationMs": 61_000 }),
                Some(("end", "done after 1m 01s", "", vec![])),
            ),
            (
                json!({ "type": "harness:complete", "success": false, "outcome": "timedOut", "durationMs": 2_000 }),
                Some(("end", "ended: its time was up after 2.0s", "", vec!["inspan why run-1"])),
            ),
            (
                json!({
                    "type": "session:prompt", "promptId": "p", "prompt": "Allow `Bash`?", "kind": "permission",
                    "choices": ["allow", "deny"],
                    "detail": { "toolName": "Bash", "input": { "command": "rm -rf \u{202e}x", "timeout": 5 } },
                }),
                Some((
                    "question",
                    "`gate` asks: Allow Bash rm -rf \\u{202e}x?",
                    "command: rm -rf \\u{202e}x\ntimeout: 5",
                    vec!["inspan approve run-1 p", "inspan reject run-1 p"],
                )),
            ),
            (
                json!({
                    "type": "session:prompt", "promptId": "p", "prompt": "Ship?", "kind": "input",
                    "deadline": "1970-01-01T00:00:00.000Z",
                }),
                Some((
                    "question",
                    "`gate` asks a question",
                    "Ship?\nexpired at 1970-01-01 00:00:00 UTC: it takes no answer, and resuming the session lets the node fail",
                    vec!["inspan resume run-1"],
                )),
            ),
            (json!({ "type": "task:complete", "taskId": "gate", "result": 1, "durationMs": 1 }), None),
            (
                json!({ "type": "flow:paused", "nodeIds": [], "reason": "the disk is full", "cause": "store" }),
                Some((
                    "failure",
                    "the session paused: its store is full",
                    "the disk is full",
                    vec!["inspan resume run-1"],
                )),
            ),
            (json!({ "type": "flow:paused", "nodeIds": [], "reason": "later" }), None),
            (json!({ "type": "flow:paused", "nodeIds": [], "cause": "budget" }), None),
        ];
        let commands = Commands::default();
        for (event, expected) in rows {
            let notice = Notice::of(&envelope(event.clone()), &commands, |prompt| {
                prompt.is_over(Timestamp::from_millis(1))
            });
            let got = notice.as_ref().map(|notice| {
                let commands = notice.commands.iter().map(String::as_str).collect();
                (notice.kind.word(), notice.title.as_str(), notice.text.as_str(), commands)
            });
            assert_eq!(got, expected, "{event}");
        }
    }

    #[test]
    fn a_large_question_is_sent_in_part() {
        let input = json!({ "file_path": "a", "content": "x".repeat(3_000_000) });
        let event = json!({
            "type": "session:prompt", "promptId": "p", "prompt": "y".repeat(3_000), "kind": "permission",
            "choices": ["allow", "deny"], "detail": { "toolName": "Write", "input": input },
        });
        let notice = Notice::of(&envelope(event), &Commands::default(), |_| false).unwrap();
        assert!(!notice.is_whole() && notice.commands.len() == 2, "{:?}", notice.commands);
        assert!(serde_json::to_vec(&notice).unwrap().len() < 8_000);
    }

    #[test]
    fn an_end_that_is_a_failure_is_both() {
        let end = |outcome: &str| {
            let event =
                json!({ "type": "harness:complete", "success": false, "outcome": outcome, "durationMs": 1 });
            let envelope = envelope(event);
            let notice = Notice::of(&envelope, &Commands::default(), |_| false).unwrap();
            [NoticeKind::End, NoticeKind::Failure, NoticeKind::Budget, NoticeKind::Question]
                .map(|kind| notice.is_wanted(&[kind], &envelope.event))
        };
        let outcomes = ["success", "stopped", "failed", "budgetExceeded"].map(end);
        let only_end = [true, false, false, false];
        assert_eq!(outcomes, [only_end, only_end, [true, true, false, false], [true, false, true, false]]);
    }
}
