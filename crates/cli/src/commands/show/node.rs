//! `inspan show ID NODE`: one node, attempt by attempt: its output, program output, agent text
//! and errors.

use std::collections::BTreeMap;

use inspan_flow::{Select, SessionEntry};
use inspan_protocol::{AgentError, Envelope, Event, NodePath, NodeStatus, OutputStream, PathPart};
use serde::Serialize;
use serde_json::{Value, json};

use crate::exit::Exit;
use crate::failure::Failure;
use crate::invocation::Invocation;
use crate::invocation::OutputForm;
use crate::store;
use crate::terminal;
use inspan_view::{
    DisplayStatus, Line, Tone, asks_itself, format, idle_status, look, safe, safe::clean, warning,
};

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
    /// What went wrong in its work and was tolerated.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
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
    "limit:wait",
    "exec:output",
    "agent:text",
    "agent:retract",
    "agent:warning",
    "log",
    "frame:complete",
    "frame:failed",
    "frame:cancelled",
    "harness:complete",
];

pub(super) fn run(session: &str, name: &str, invocation: &Invocation) -> Result<Exit, Failure> {
    let (entry, id, mut attempts) = store::read(invocation, async |store| {
        let entry = store::find(store.as_ref(), session).await?;
        let record = store.record(&entry.session).await?;
        let graph = store::graph_of(&record)?;
        let asked = inspan_sessions::node_path(&graph, name)?;
        let id = asked.to_string();
        let log = store.read(&entry.session, record.first_seq(), Select::Names(NAMES)).await?;
        let mut attempts = Attempts::new(asked);
        log.iter().for_each(|envelope| attempts.apply(envelope));
        Ok((entry, id, attempts.all))
    })?;
    rest(&mut attempts, &entry);
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
fn rest(attempts: &mut [Attempt], session: &SessionEntry) {
    let shown = DisplayStatus::of(session);
    for open in attempts.iter_mut().filter(|attempt| attempt.status == "running") {
        let waits = asks_itself(&session.digest.prompts, &open.path);
        let status = if waits { NodeStatus::Waiting } else { idle_status(NodeStatus::Running, shown) };
        open.status = look::word(status);
    }
}

/// The attempts of the nodes that were asked for, as events tell them.
struct Attempts {
    asked: NodePath,
    all: Vec<Attempt>,
    /// The newest of each node.
    newest: BTreeMap<String, usize>,
    /// The agents that were chosen.
    agents: BTreeMap<NodePath, String>,
}

impl Attempts {
    fn new(asked: NodePath) -> Self {
        Self { asked, all: Vec::new(), newest: BTreeMap::new(), agents: BTreeMap::new() }
    }

    fn newest(&mut self, path: &NodePath) -> Option<&mut Attempt> {
        self.newest.get(path.as_str()).map(|at| &mut self.all[*at])
    }

    fn push(&mut self, path: &NodePath, attempt: Attempt) {
        if let Some(before) = self.newest(path) {
            before.status = match before.status {
                "running" => "interrupted",
                "waiting" => "usage limit",
                other => other,
            };
        }
        self.newest.insert(path.to_string(), self.all.len());
        self.all.push(Attempt { path: path.to_string(), ..attempt });
    }

    /// Takes an event up.
    fn apply(&mut self, envelope: &Envelope) {
        if let Some(ended) = end(envelope) {
            return self.end_open(&ended);
        }
        let Some(path) = envelope.context.task.as_ref().filter(|path| is_asked(path, &self.asked)) else {
            return;
        };
        let new = |status| Attempt { status, ..Attempt::default() };
        match &envelope.event {
            Event::TaskStart { attempt, .. } => {
                let agent = self.agents.get(path).cloned();
                self.push(path, Attempt { agent, attempt: *attempt, ..new("running") });
            }
            Event::TaskAgent { agent, after, result, error, .. } => {
                self.agents.insert(path.clone(), agent.clone());
                if let Some(last) = self.newest(path).filter(|_| after.is_some()) {
                    last.status = "passed on";
                    last.agent.clone_from(after);
                    last.output = result.as_deref().cloned();
                    last.error.clone_from(error);
                }
            }
            Event::TaskSkipped { .. } => self.push(path, new("skipped")),
            Event::TaskReused { result, error, .. } => {
                let output = error.is_none().then(|| Value::clone(result));
                self.push(path, Attempt { output, error: error.clone(), ..new("reused") });
            }
            event => drop(self.newest(path).map(|last| last.apply(event))),
        }
    }

    /// What was interrupted and never began again is cancelled once what it is in has ended.
    fn end_open(&mut self, ended: &[String; 2]) {
        for start in ended {
            let within = self.newest.range(start.clone()..).take_while(|(path, _)| path.starts_with(start));
            for (_, at) in within {
                let attempt = &mut self.all[*at];
                if matches!(attempt.status, "running" | "waiting" | "interrupted") {
                    attempt.status = "cancelled";
                }
            }
        }
    }
}

impl Attempt {
    /// Takes an event up that comes while it is open.
    fn apply(&mut self, event: &Event) {
        match event {
            Event::TaskComplete { result, duration_ms, .. } => {
                self.status = "complete";
                self.output = Some(Value::clone(result));
                self.duration_ms = Some(*duration_ms);
            }
            Event::TaskFailed { error, .. } => {
                self.status = "failed";
                self.error = Some(error.clone());
            }
            Event::TaskCancelled { .. } => self.status = "cancelled",
            Event::TaskInterrupted { .. } => self.status = "interrupted",
            Event::LimitWait { .. } => self.status = "waiting",
            Event::ExecOutput { stream: OutputStream::Stdout, text, .. } => self.stdout.push_str(text),
            Event::ExecOutput { text, .. } => self.stderr.push_str(text),
            Event::AgentText { content, delta, .. } => {
                if !delta && !self.text.is_empty() {
                    self.text.push('\n');
                }
                self.text.push_str(content);
            }
            Event::AgentRetract { .. } => self.text.clear(),
            event => self.warnings.extend(warning(event).map(str::to_owned)),
        }
    }
}

/// Whether a node is the one that was asked for. A frame that is not named is any, and so is a pass.
fn is_asked(path: &NodePath, asked: &NodePath) -> bool {
    let same = |(part, asked): (PathPart<'_>, PathPart<'_>)| {
        let is_pass = part.pass == asked.pass || asked.pass == 1 && asked.index.is_none();
        part.node == asked.node && is_pass && asked.index.is_none_or(|index| part.index == Some(index))
    };
    path.parts().count() == asked.parts().count() && path.parts().zip(asked.parts()).all(same)
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
    part("warnings", &attempt.warnings.join("\n"));
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
    use inspan_protocol::{EventContext, Timestamp};

    use super::*;

    /// The status of each attempt of a node after these events.
    fn statuses(asked: &str, events: &[(&str, Value)]) -> Vec<&'static str> {
        let mut attempts = Attempts::new(NodePath::new(asked));
        for (seq, (task, event)) in (1..).zip(events) {
            let context = EventContext::session("s".into()).with_task(NodePath::new(task));
            let event = serde_json::from_value(event.clone()).unwrap();
            attempts.apply(&Envelope::new(context, seq, Timestamp::default(), event));
        }
        attempts.all.iter().map(|attempt| attempt.status).collect()
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
        assert_eq!(statuses("each[0]/w", &[start(1), cancelled(1)]), ["running"]);
        assert_eq!(statuses("each[0]/w", &[start(1), start(2)]), ["interrupted", "running"]);
        assert_eq!(statuses("each[0]/w", &[start(1), start(2), cancelled(0)]), ["interrupted", "cancelled"]);
        assert_eq!(statuses("each[0]/w", &[start(1), end.clone()]), ["cancelled"]);
        let limit = (
            "each[0]/w",
            json!({ "type": "limit:wait", "provider": "p", "until": "2026-01-07T12:00:00.000Z" }),
        );
        assert_eq!(statuses("each[0]/w", &[start(1), limit.clone()]), ["waiting"]);
        assert_eq!(statuses("each[0]/w", &[start(1), limit.clone(), start(2)]), ["usage limit", "running"]);
        assert_eq!(statuses("each[0]/w", &[start(1), limit, end]), ["cancelled"]);
        let reused = ("each[0]/w", json!({ "type": "task:reused", "taskId": "w", "result": 1, "from": "s" }));
        assert_eq!(statuses("each[0]/w", &[start(1), reused]), ["interrupted", "reused"]);
    }

    #[test]
    fn a_node_that_is_named_without_its_frame_is_that_of_each_frame() {
        let start = |path: &'static str| {
            (
                path,
                json!({ "type": "task:start", "taskId": "w", "nodeType": "echo", "attempt": 1, "path": path }),
            )
        };
        let done =
            |path| (path, json!({ "type": "task:complete", "taskId": "w", "result": 1, "durationMs": 1 }));
        let cancelled = ("each", json!({ "type": "frame:cancelled", "taskId": "each", "index": 1 }));
        let events = [
            start("each[0]/w"),
            start("each[1]/w"),
            start("each#2[1]/w"),
            start("other[0]/w"),
            done("each[0]/w"),
            cancelled,
        ];
        assert_eq!(statuses("each/w", &events), ["complete", "cancelled", "running"]);
        assert_eq!(statuses("each[1]/w", &events), ["cancelled"]);
    }
}
