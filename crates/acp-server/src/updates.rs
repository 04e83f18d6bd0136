//! The events of a session as updates of an editor: the plan, tool calls, what agents say. Pure: it has no clock and asks
//! nobody. The same events give the same updates, live and when an old conversation is loaded.

use std::collections::HashMap;

use inspan_protocol::{
    AgentError, Envelope, Event, LogLevel, NodePath, NodeStatus, Outcome, Prompt, PromptId, RunId, SessionId,
};
use inspan_sessions::{OpenSession, question_text};
use inspan_view::{Commands, NodeRow, SessionView, call, format, look};
use serde_json::{Value, json};

use crate::questions::{call_id, in_words};
use crate::wire::{chunk, says};

/// The longest text of a tool's result or a program's output that is sent, in characters.
const LONGEST: usize = 16_000;

/// Whether the person has seen what they typed themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InputEcho {
    /// The editor shows it.
    Shown,
    /// The conversation is loaded.
    Replayed,
}

/// One session as a conversation.
#[derive(Debug)]
pub(crate) struct Updates {
    session: SessionId,
    view: SessionView,
    plan: Vec<Value>,
    /// Whether more than one node has an agent, so that messages name the node.
    has_speakers: bool,
    speaking: Option<RunId>,
    /// What programs printed so far.
    printed: HashMap<NodePath, String>,
    /// The tool calls of agents that have no result yet, each with its node.
    calls: Vec<(Option<NodePath>, String)>,
    asked: HashMap<PromptId, String>,
    /// The commands that people are offered.
    commands: Commands,
    /// The command that started the session, unless the editor shows it already.
    typed: Option<String>,
}

impl Updates {
    /// Those of a session, which this command starts.
    pub(crate) fn new(session: &OpenSession, command: &str, commands: &Commands) -> Self {
        let OpenSession { graph, record, .. } = session;
        let agents = graph.bodies.iter().flat_map(|body| &body.nodes);
        let agents = agents.filter(|node| node.node_type.ends_with(".agent")).count();
        Self {
            session: record.session.clone(),
            view: SessionView::of(record.run(graph)),
            plan: Vec::new(),
            has_speakers: agents > 1,
            speaking: None,
            printed: HashMap::new(),
            calls: Vec::new(),
            asked: HashMap::new(),
            commands: commands.clone(),
            // One that continues another was started by no command.
            typed: record.continues().is_none().then(|| match record.input.is_empty() {
                true => format!("/{command}"),
                false => format!("/{command} {}", json!(record.input)),
            }),
        }
    }

    /// The person has just typed the command that started the session.
    pub(crate) fn know_command(&mut self) {
        self.typed = None;
    }

    /// The updates of the next event.
    pub(crate) fn of(&mut self, envelope: &Envelope, typed: InputEcho) -> Vec<Value> {
        self.view.apply(envelope);
        let mut updates = Vec::new();
        self.spoken(envelope, &mut updates);
        self.worked(envelope, &mut updates);
        self.asked(envelope, typed, &mut updates);
        self.ended(envelope, typed, &mut updates);
        if !matches!(
            envelope.event,
            Event::AgentText { .. } | Event::AgentThinking { .. } | Event::ExecOutput { .. }
        ) {
            self.planned(&mut updates);
        }
        updates
    }

    /// What agents say.
    fn spoken(&mut self, envelope: &Envelope, updates: &mut Vec<Value>) {
        let (kind, run, content) = match &envelope.event {
            Event::AgentText { run_id, content, .. } => ("agent_message_chunk", run_id, content.as_str()),
            Event::AgentThinking { run_id, content, .. } => ("agent_thought_chunk", run_id, content.as_str()),
            Event::AgentRetract { run_id } => {
                ("agent_message_chunk", run_id, "\n\n(The last text is void: the agent starts it again.)\n\n")
            }
            _ => return,
        };
        let node = envelope.context.task.as_ref();
        if self.has_speakers && self.speaking.as_ref() != Some(run) {
            self.speaking = Some(run.clone());
            let node = node.map_or("agent", NodePath::as_str);
            updates.push(says(&format!("\n\n**{node}**\n\n")));
        }
        let mut update = chunk(kind, content);
        update["messageId"] = json!(run);
        updates.push(update);
    }

    /// What agents and nodes do.
    fn worked(&mut self, envelope: &Envelope, updates: &mut Vec<Value>) {
        let has_ended = matches!(
            envelope.event,
            Event::TaskComplete { .. }
                | Event::TaskFailed { .. }
                | Event::TaskCancelled { .. }
                | Event::TaskInterrupted { .. }
        );
        if has_ended {
            let task = &envelope.context.task;
            let open = self.calls.extract_if(.., |(of, _)| of == task);
            updates.extend(open.map(|(_, call)| finished(&call, true, "interrupted")));
        }
        match (&envelope.event, &envelope.context.task) {
            (Event::AgentToolStart { tool_name, tool_use_id, input, run_id }, task) => {
                let id = format!("{run_id}/{tool_use_id}");
                updates.push(json!({
                    "sessionUpdate": "tool_call",
                    "toolCallId": id,
                    "title": call(tool_name, input),
                    "kind": kind_of(tool_name),
                    "status": "in_progress",
                    "rawInput": input,
                }));
                self.calls.push((task.clone(), id));
            }
            (Event::AgentToolComplete { tool_use_id, result, is_error, run_id, .. }, _) => {
                let call = format!("{run_id}/{tool_use_id}");
                self.calls.retain(|(_, open)| *open != call);
                let mut update = finished(&call, *is_error, &plain(result));
                update["rawOutput"] = result.clone();
                updates.push(update);
            }
            (Event::TaskStart { node_type, attempt, path, .. }, Some(task)) if is_work(node_type) => {
                self.printed.insert(task.clone(), String::new());
                updates.push(json!({
                    "sessionUpdate": "tool_call",
                    "toolCallId": format!("node:{path}#{attempt}"),
                    "title": format!("{path} ({node_type})"),
                    "kind": if **node_type == *"exec" { "execute" } else { "other" },
                    "status": "in_progress",
                }));
            }
            (Event::ExecOutput { text, .. }, Some(task)) => {
                if let Some(printed) = self.printed.get_mut(task).filter(|printed| printed.len() < LONGEST) {
                    printed.push_str(text);
                }
            }
            (Event::TaskComplete { result, .. }, Some(task)) => {
                if let Some(printed) = self.printed.remove(task) {
                    let text = if printed.is_empty() { plain(result) } else { printed };
                    updates.push(finished(&self.node_call(task), false, &text));
                }
            }
            (Event::TaskFailed { error, .. }, Some(task)) => {
                if let Some(printed) = self.printed.remove(task) {
                    updates.push(finished(
                        &self.node_call(task),
                        true,
                        &format!("{printed}\n{}", error.message),
                    ));
                }
            }
            (Event::TaskCancelled { .. } | Event::TaskInterrupted { .. }, Some(task)) => {
                if let Some(printed) = self.printed.remove(task) {
                    updates.push(finished(&self.node_call(task), true, &format!("{printed}\ninterrupted")));
                }
            }
            _ => {}
        }
    }

    /// The updates of tool calls that were in progress when the process of the session died.
    pub(crate) fn process_lost(&mut self) -> Vec<Value> {
        let (calls, printed) = (std::mem::take(&mut self.calls), std::mem::take(&mut self.printed));
        let of_agents = calls.iter().map(|(_, call)| finished(call, true, "interrupted"));
        let of_nodes = printed
            .iter()
            .map(|(task, printed)| finished(&self.node_call(task), true, &format!("{printed}\ninterrupted")));
        of_agents.chain(of_nodes).collect()
    }

    /// The tool call of the node's newest attempt.
    fn node_call(&self, task: &NodePath) -> String {
        let attempt = self.view.row(task).map_or(1, |row| row.attempt.max(1));
        format!("node:{task}#{attempt}")
    }

    /// What a person was asked and said.
    fn asked(&mut self, envelope: &Envelope, typed: InputEcho, updates: &mut Vec<Value>) {
        match &envelope.event {
            Event::SessionPrompt(prompt) => {
                let prompt = Prompt { task: envelope.context.task.clone(), ..prompt.clone() };
                let call = call_id(&prompt);
                // A process that resumes the session asks again.
                if self.asked.insert(prompt.prompt_id.clone(), call.clone()).is_some() {
                    return;
                }
                let mut update = json!({
                    "sessionUpdate": "tool_call",
                    "toolCallId": call,
                    "title": question_text(&prompt),
                    "kind": "other",
                    "status": "pending",
                });
                if prompt.choices.is_some() {
                    update["content"] = json!([{
                        "type": "content", "content": { "type": "text", "text": in_words(&prompt) },
                    }]);
                }
                updates.push(update);
            }
            Event::SessionReply { prompt_id, content, choice, is_default } => {
                if let Some(call) = self.asked.remove(prompt_id) {
                    updates.push(finished(
                        &call,
                        false,
                        &look::answer(content, choice.as_deref(), *is_default),
                    ));
                }
            }
            Event::SessionMessage { content, .. } if typed == InputEcho::Replayed => {
                updates.push(chunk("user_message_chunk", content));
            }
            _ => {}
        }
    }

    /// The updates of questions that were closed without an answer.
    pub(crate) fn closed(&mut self, questions: &[PromptId]) -> Vec<Value> {
        let calls = questions.iter().filter_map(|question| self.asked.remove(question));
        calls.map(|call| finished(&call, true, "no longer open")).collect()
    }

    /// What failed, and how the session ended.
    fn ended(&mut self, envelope: &Envelope, typed: InputEcho, updates: &mut Vec<Value>) {
        match &envelope.event {
            Event::HarnessStart { .. } if typed == InputEcho::Replayed => {
                updates.extend(self.typed.as_deref().map(|typed| chunk("user_message_chunk", typed)));
            }
            Event::Log { level: LogLevel::Warn | LogLevel::Error | LogLevel::Info, message, .. } => {
                updates.push(says(&format!("\n\n{message}\n\n")));
            }
            Event::LimitWait { provider, until, .. } => {
                let node = envelope.context.task.as_ref().map_or("agent", NodePath::as_str);
                let until = format::moment(*until);
                updates.push(says(&format!(
                    "\n\nNode `{node}` waits for a usage limit of {provider}, until {until}.\n\n"
                )));
            }
            Event::TaskFailed { error, will_retry, task_id } => {
                let task = envelope.context.task.as_ref();
                let node = task.map_or(task_id.as_str(), NodePath::as_str);
                let row = task.and_then(|task| self.view.row(task)).filter(|_| *will_retry);
                let retry = row.and_then(|row| {
                    let (due, of) = row.retry?;
                    Some(format!(". Attempt {} of {of} begins at {}", row.failures + 1, format::moment(due)))
                });
                let retry = retry.unwrap_or_default();
                updates.push(says(&format!("\n\nNode `{node}` failed: {}{retry}\n\n", error.message)));
            }
            Event::HarnessComplete { outcome, outputs, .. } => {
                let outputs =
                    outputs.as_deref().map(|outputs| format!("\n\n{}", plain(outputs))).unwrap_or_default();
                let ended = match outcome {
                    Outcome::Success => "ended well".to_owned(),
                    outcome => {
                        let why =
                            self.view.error.as_ref().map(|error: &AgentError| format!(": {}", error.message));
                        format!("ended as `{}`{}", word(*outcome), why.unwrap_or_default())
                    }
                };
                let next = self.commands.after_failure(&self.session, *outcome);
                let next = next.map(|next| format!(" {next}")).unwrap_or_default();
                updates.push(says(&format!("\n\nFlow `{}` {ended}.{next}{outputs}\n", self.view.flow)));
            }
            _ => {}
        }
    }

    /// The plan, if it has changed.
    fn planned(&mut self, updates: &mut Vec<Value>) {
        let plan: Vec<Value> = self.view.rows.iter().map(entry).collect();
        if plan != self.plan {
            self.plan.clone_from(&plan);
            updates.push(json!({ "sessionUpdate": "plan", "entries": plan }));
        }
    }
}

/// A node as an entry of the plan. The protocol has three words, so the rest is in the text.
fn entry(row: &NodeRow) -> Value {
    let status = match row.status {
        NodeStatus::Running | NodeStatus::Waiting => "in_progress",
        NodeStatus::Complete
        | NodeStatus::Reused
        | NodeStatus::Skipped
        | NodeStatus::Failed
        | NodeStatus::Cancelled => "completed",
        _ => "pending",
    };
    let note = match row.status {
        NodeStatus::Failed => " - failed",
        NodeStatus::Skipped => " - skipped",
        NodeStatus::Cancelled => " - cancelled",
        NodeStatus::Reused => " - reused",
        NodeStatus::Waiting => " - waits",
        NodeStatus::Paused => " - paused",
        _ => "",
    };
    let pass = if row.pass > 1 { format!(" (pass {})", row.pass) } else { String::new() };
    let items = row.progress.as_ref().and_then(|progress| {
        let total = progress.total?;
        Some(format!(" ({} of {total})", progress.succeeded + progress.failed))
    });
    let content = format!("{}{pass}{}{note}", row.label, items.unwrap_or_default());
    json!({ "content": content, "priority": "medium", "status": status })
}

/// Whether a node's own work is shown as a tool call: not that of agents, which have their own, nor of nodes that only direct.
fn is_work(node_type: &str) -> bool {
    !(node_type.ends_with(".agent") || node_type.starts_with("control.") || node_type.starts_with("human."))
}

/// The end of a tool call.
fn finished(call: &str, is_error: bool, text: &str) -> Value {
    let text: String = text.chars().take(LONGEST).collect();
    json!({
        "sessionUpdate": "tool_call_update",
        "toolCallId": call,
        "status": if is_error { "failed" } else { "completed" },
        "content": [{ "type": "content", "content": { "type": "text", "text": text } }],
    })
}

/// The protocol's word for what a tool does, by the names that agents give to tools.
fn kind_of(tool: &str) -> &'static str {
    let tool = tool.to_lowercase();
    let has = |words: &[&str]| words.iter().any(|word| tool.contains(word));
    match () {
        () if has(&["bash", "shell", "exec", "command", "terminal"]) => "execute",
        () if has(&["edit", "write", "patch", "replace"]) => "edit",
        () if has(&["grep", "glob", "search", "find"]) => "search",
        () if has(&["fetch", "http", "web"]) => "fetch",
        () if has(&["read", "view", "list", "cat"]) => "read",
        () if has(&["think", "todo", "plan"]) => "think",
        () => "other",
    }
}

fn word(outcome: Outcome) -> String {
    json!(outcome).as_str().unwrap_or("failed").to_owned()
}

/// A value as a person reads it: the text of an output that has one, else JSON.
fn plain(value: &Value) -> String {
    let text = ["text", "content", "stdout", "value"].iter().find_map(|key| value.get(key)?.as_str());
    let only = || match value.as_object() {
        Some(fields) if fields.len() == 1 => fields.values().next().and_then(Value::as_str),
        _ => None,
    };
    match value.as_str().or(text).or_else(only) {
        Some(text) => text.to_owned(),
        None => serde_json::to_string_pretty(value).unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tools_have_the_protocols_kinds() {
        let tools = ["Bash", "apply_patch", "Grep", "WebFetch", "Read", "TodoWrite", "mcp__x__y"];
        assert_eq!(tools.map(kind_of), ["execute", "edit", "search", "fetch", "read", "edit", "other"]);
    }

    #[test]
    fn an_entry_of_the_plan_says_in_words_what_the_protocol_has_no_word_for() {
        let row =
            |status, pass| entry(&NodeRow { label: "fix".to_owned(), status, pass, ..NodeRow::default() });
        let shown =
            |status, pass| (row(status, pass)["content"].clone(), row(status, pass)["status"].clone());
        let rows = [
            (NodeStatus::Pending, 1, "fix", "pending"),
            (NodeStatus::Running, 2, "fix (pass 2)", "in_progress"),
            (NodeStatus::Waiting, 1, "fix - waits", "in_progress"),
            (NodeStatus::Complete, 1, "fix", "completed"),
            (NodeStatus::Failed, 3, "fix (pass 3) - failed", "completed"),
            (NodeStatus::Skipped, 1, "fix - skipped", "completed"),
            (NodeStatus::Reused, 1, "fix - reused", "completed"),
            (NodeStatus::Cancelled, 1, "fix - cancelled", "completed"),
            (NodeStatus::Paused, 1, "fix - paused", "pending"),
        ];
        for (status, pass, content, word) in rows {
            assert_eq!(shown(status, pass), (json!(content), json!(word)));
        }
    }
}
