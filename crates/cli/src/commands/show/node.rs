//! `inspan show ID NODE`: one node, attempt by attempt: its output, program output, agent text
//! and errors.

use std::collections::BTreeMap;

use inspan_flow::Select;
use inspan_protocol::{AgentError, Envelope, Event, NodePath, OutputStream};
use serde::Serialize;
use serde_json::{Value, json};

use crate::exit::Exit;
use crate::failure::Failure;
use crate::invocation::Invocation;
use crate::invocation::OutputForm;
use crate::store;
use crate::terminal;
use inspan_view::{DisplayStatus, Line, Tone, format, label, look, safe, safe::clean};

/// One attempt of a node.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Attempt {
    path: String,
    attempt: u32,
    /// The agent that worked, if several may.
    #[serde(skip_serializing_if = "Option::is_none")]
    agent: Option<String>,
    status: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    duration_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    output: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<AgentError>,
    #[serde(skip_serializing_if = "String::is_empty")]
    stdout: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    stderr: String,
    /// What its agent said.
    #[serde(skip_serializing_if = "String::is_empty")]
    text: String,
}

/// The events about a node.
const NAMES: &[&str] = &[
    "task:start",
    "task:complete",
    "task:failed",
    "task:skipped",
    "task:reused",
    "task:agent",
    "task:cancelled",
    "task:interrupted",
    "exec:output",
    "agent:text",
    "agent:retract",
    "frame:complete",
    "frame:failed",
    "frame:cancelled",
    "harness:complete",
];

pub(super) fn run(session: &str, name: &str, invocation: &Invocation) -> Result<Exit, Failure> {
    let (entry, id, mut attempts) = store::block_on(async {
        let store = store::open_reader(invocation)?;
        let entry = store::find(store.as_ref(), session).await?;
        let record = store.record(&entry.session).await?;
        let graph = store::graph_of(&record)?;
        let id = inspan_sessions::node_path(&graph, name)?.to_string();
        let log = store.read(&entry.session, record.first_seq(), Select::Names(NAMES)).await?;
        let mut attempts = Vec::new();
        let mut agents = BTreeMap::new();
        log.iter().for_each(|envelope| fold(&mut attempts, &mut agents, &id, envelope));
        Ok((entry, id, attempts))
    })?;
    rest(&mut attempts, DisplayStatus::of(&entry));
    match invocation.form {
        OutputForm::Json => {
            invocation.json(&json!({ "sessionId": entry.session, "node": id, "attempts": attempts }));
        }
        OutputForm::Text if attempts.is_empty() => {
            terminal::progress(&format!("node `{id}` has not run yet\n"));
        }
        OutputForm::Text => drop(invocation.print(attempts.iter().flat_map(lines))),
    }
    Ok(Exit::Success)
}

/// What runs by the log does not in a session with this status.
fn rest(attempts: &mut [Attempt], session: DisplayStatus) {
    let status = match session {
        DisplayStatus::Paused => "paused",
        DisplayStatus::Interrupted => "interrupted",
        DisplayStatus::Waiting => "waiting",
        _ => return,
    };
    attempts.iter_mut().filter(|attempt| attempt.status == "running").for_each(|open| open.status = status);
}

/// Takes an event up. `agents` are those that were chosen, by the place of the node.
fn fold(attempts: &mut Vec<Attempt>, agents: &mut BTreeMap<NodePath, String>, id: &str, envelope: &Envelope) {
    if let Some(ended) = end(envelope) {
        end_open(attempts, &ended);
        return;
    }
    let is_asked = |path: &&NodePath| path.as_str() == id || label(path) == id;
    let Some(path) = envelope.context.task.as_ref().filter(is_asked) else { return };
    let new = |status, attempt| Attempt { path: path.to_string(), attempt, status, ..Attempt::default() };
    match &envelope.event {
        Event::TaskStart { attempt, .. } => {
            let agent = agents.get(path).cloned();
            if let Some(cut) =
                attempts.last_mut().filter(|last| last.path == path.as_str() && last.status == "running")
            {
                cut.status = "interrupted";
            }
            attempts.push(Attempt { agent, ..new("running", *attempt) });
        }
        Event::TaskAgent { agent, after, result, error, .. } => {
            agents.insert(path.clone(), agent.clone());
            if let Some(last) = attempts.last_mut().filter(|_| after.is_some()) {
                last.status = "passed on";
                last.agent.clone_from(after);
                last.output = result.as_deref().cloned();
                last.error.clone_from(error);
            }
        }
        Event::TaskSkipped { .. } => attempts.push(new("skipped", 0)),
        Event::TaskReused { result, error, .. } => {
            let output = error.is_none().then(|| Value::clone(result));
            attempts.push(Attempt { output, error: error.clone(), ..new("reused", 0) });
        }
        event => {
            let Some(last) = attempts.last_mut() else { return };
            match event {
                Event::TaskComplete { result, duration_ms, .. } => {
                    last.status = "complete";
                    last.output = Some(Value::clone(result));
                    last.duration_ms = Some(*duration_ms);
                }
                Event::TaskFailed { error, .. } => {
                    last.status = "failed";
                    last.error = Some(error.clone());
                }
                Event::TaskCancelled { .. } => last.status = "cancelled",
                Event::TaskInterrupted { .. } => last.status = "interrupted",
                Event::ExecOutput { stream: OutputStream::Stdout, text, .. } => last.stdout.push_str(text),
                Event::ExecOutput { text, .. } => last.stderr.push_str(text),
                Event::AgentText { content, delta, .. } => {
                    if !delta && !last.text.is_empty() {
                        last.text.push('\n');
                    }
                    last.text.push_str(content);
                }
                Event::AgentRetract { .. } => last.text.clear(),
                _ => {}
            }
        }
    }
}

/// What an event ends, as the beginnings of the paths in it.
fn end(envelope: &Envelope) -> Option<[String; 2]> {
    match (&envelope.event, &envelope.context.task) {
        (Event::HarnessComplete { .. }, _) => Some([String::new(), String::new()]),
        (
            Event::FrameComplete { index, .. }
            | Event::FrameFailed { index, .. }
            | Event::FrameCancelled { index, .. },
            Some(owner),
        ) => Some([format!("{owner}[{index}]/"), format!("{owner}/")]),
        _ => None,
    }
}

/// What was interrupted and never began again is cancelled once what it is in has ended.
fn end_open(attempts: &mut [Attempt], ended: &[String; 2]) {
    for at in 0..attempts.len() {
        let is_in = ended.iter().any(|start| attempts[at].path.starts_with(start));
        let is_last = attempts[at + 1..].iter().all(|later| later.path != attempts[at].path);
        if is_in && is_last && matches!(attempts[at].status, "running" | "interrupted") {
            attempts[at].status = "cancelled";
        }
    }
}

fn lines(attempt: &Attempt) -> Vec<Line> {
    let mut head = Line::new();
    head.push(Tone::Strong, &attempt.path);
    if attempt.attempt > 1 {
        head.push(Tone::Plain, &format!("  attempt {}", attempt.attempt));
    }
    if let Some(agent) = &attempt.agent {
        head.push(Tone::Accent, &format!("  {}", clean(agent)));
    }
    head.push(Tone::Plain, &format!("  {}", attempt.status));
    if let Some(ms) = attempt.duration_ms {
        head.push(Tone::Faint, &format!(" in {}", format::millis(ms)));
    }
    let mut lines = vec![head];
    let mut part = |name: &str, text: &str| {
        if text.trim().is_empty() {
            return;
        }
        lines.push(Line::new().with(Tone::Accent, &format!("  {name}")));
        lines.extend(safe::text(text.trim_end()).lines().map(|said| {
            Line::new().with(Tone::Plain, "    ").with(Tone::Plain, &said.replace('\t', "    "))
        }));
    };
    part("stdout", &attempt.stdout);
    part("stderr", &attempt.stderr);
    let output = attempt.output.as_ref();
    // What an agent said is its output's text, and what a program wrote is its output's too.
    if output.and_then(|output| output.get("text")).is_none() {
        part("text", &attempt.text);
    }
    if let Some(output) = output {
        part("output", &serde_json::to_string_pretty(output).unwrap_or_default());
    }
    if let Some(error) = &attempt.error {
        let mut line = Line::new();
        look::error(&mut line, error);
        part("error", &line.text());
        if error.message.contains('\n') {
            part("message", &error.message);
        }
        if let Some(detail) = &error.detail {
            part("detail", &serde_json::to_string_pretty(detail).unwrap_or_default());
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The attempts of `each[0]/w` after these events, by their places.
    fn statuses(events: &[(&str, Value)]) -> Vec<&'static str> {
        let (mut attempts, mut agents) = (Vec::new(), BTreeMap::new());
        for (seq, (task, event)) in (1..).zip(events) {
            let context = json!({ "sessionId": "s", "task": task });
            let id = "00000000-0000-8000-8000-000000000001";
            let envelope = json!({ "v": 1, "id": id, "seq": seq, "timestamp": "2026-01-01T12:00:00.000Z", "context": context, "event": event });
            let envelope = serde_json::from_value(envelope).unwrap();
            fold(&mut attempts, &mut agents, "each[0]/w", &envelope);
        }
        attempts.iter().map(|attempt| attempt.status).collect()
    }

    #[test]
    fn what_was_interrupted_is_cancelled_once_what_it_is_in_has_ended() {
        let start = |attempt: u32| {
            let event = json!({ "type": "task:start", "taskId": "w", "nodeType": "echo", "attempt": attempt, "path": "each[0]/w" });
            ("each[0]/w", event)
        };
        let cancelled =
            |index: u32| ("each", json!({ "type": "frame:cancelled", "taskId": "each", "index": index }));
        let end = (
            "each",
            json!({ "type": "harness:complete", "success": true, "outcome": "success", "durationMs": 1 }),
        );
        assert_eq!(statuses(&[start(1), cancelled(1)]), ["running"]);
        assert_eq!(statuses(&[start(1), start(2)]), ["interrupted", "running"]);
        assert_eq!(statuses(&[start(1), start(2), cancelled(0)]), ["interrupted", "cancelled"]);
        assert_eq!(statuses(&[start(1), end]), ["cancelled"]);
    }
}
