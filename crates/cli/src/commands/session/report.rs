//! The end of a session as its caller sees it: the exit code, the one JSON object, or the flow's own
//! result as text.

use inspan_flow::{FlowRunResult, FramesKind, Graph, Node, NodeIx};
use inspan_protocol::{AgentError, NodeStatus, Outcome, Prompt, SessionId, SessionStatus};
use serde_json::{Value, json};

use crate::{exit::Exit, terminal};
use inspan_view::Commands;

/// How many questions are named that wait; one who answers needs an example or two.
const MOST_HINTS: usize = 3;

/// The report of an ended session.
pub(super) struct SessionReport<'a> {
    pub(super) exit: Exit,
    result: &'a FlowRunResult,
    waiting: &'a [Prompt],
    keeps: Persistence,
}

/// Whether the session is stored, so that it can be resumed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Persistence {
    Session,
    Nothing,
}

impl<'a> SessionReport<'a> {
    /// `by` is the signal that stopped the session, if one did.
    pub(super) fn new(
        result: &'a FlowRunResult,
        waiting: &'a [Prompt],
        by: Option<Exit>,
        keeps: Persistence,
    ) -> Self {
        let exit = match (result.outcome, by, waiting) {
            (Outcome::Stopped, Some(signal), _) => signal,
            // Without a store it cannot wait for a person.
            (Outcome::Stopped, None, [_, ..]) if keeps == Persistence::Nothing => Exit::Waiting,
            (outcome, ..) => {
                let error = result.error.as_ref().map(|error| error.code);
                Exit::of_session(outcome, result.waits_on(), error)
            }
        };
        Self { exit, result, waiting, keeps }
    }

    /// The status of each node at the end.
    pub(super) fn nodes(&self) -> impl Iterator<Item = (&str, NodeStatus, Option<AgentError>)> {
        self.result.nodes.iter().map(|(id, report)| (id.as_str(), report.status, report.error))
    }

    /// The outcome and the time of an idle session; `None` if it has ended.
    pub(super) fn idle(&self) -> Option<(Outcome, u64)> {
        let is_idle = matches!(self.result.status, SessionStatus::Paused | SessionStatus::Waiting);
        is_idle.then_some((self.result.outcome, self.result.duration_ms))
    }

    /// What the caller can do about it.
    pub(super) fn hints(&self, commands: &Commands) -> Vec<String> {
        let id = &self.result.session_id;
        match (self.result.outcome, self.keeps) {
            (Outcome::BudgetExceeded, _) if self.result.status == SessionStatus::Paused => {
                let (command, what) = commands.raise_budget(id, self.result.limit_to_raise());
                vec![format!("{what}: `{command}`")]
            }
            (Outcome::Paused, _) => vec![format!("continue with `{}`", commands.command("resume", id, ""))],
            (Outcome::Waiting, _) => {
                let open = self.result.open_prompts().iter();
                let mut hints: Vec<_> =
                    open.take(MOST_HINTS).map(|open| answering(id, open, commands)).collect();
                let more = self.result.open_prompts().len().saturating_sub(MOST_HINTS);
                if more > 0 {
                    hints.push(format!("{more} more questions wait: `inspan inbox` lists all"));
                }
                if hints.is_empty() {
                    let resume = commands.command("resume", id, "");
                    hints.push(format!("continue with `{resume}` when the limit resets"));
                }
                hints
            }
            (Outcome::Success | Outcome::Stopped, Persistence::Session) => Vec::new(),
            (Outcome::BudgetExceeded, Persistence::Session) if self.result.limit_to_raise().is_some() => {
                let (command, what) = commands.raise_budget(id, self.result.limit_to_raise());
                vec![format!("{what}: `{command}`; finished work is reused")]
            }
            (_, Persistence::Session) => {
                let resume = commands.command("resume", id, "");
                let mut hints = vec![format!("fix it, then run `{resume}`; finished work is reused")];
                if let [first, more @ ..] = &self.result.handled_failures()[..] {
                    let (others, it) = match more {
                        [] => (String::new(), "it"),
                        _ => (format!(" and {} more", more.len()), "them"),
                    };
                    let again = commands.command("resume", id, "--failed");
                    hints.push(format!(
                        "`{first}`{others} failed but the flow continued, so this is finished work: `{again}` retries {it} too"
                    ));
                }
                hints
            }
            (_, Persistence::Nothing) => {
                let waits = |question: &Prompt| {
                    let node =
                        question.task.as_ref().map_or("the flow".to_owned(), |task| format!("`{task}`"));
                    format!(
                        "{node} is waiting for a person: run it at a terminal, or give the question a `default`"
                    )
                };
                self.waiting.iter().map(waits).collect()
            }
        }
    }

    /// The one object of `--json`.
    pub(super) fn json(&self) -> Value {
        let mut value = json!(self.result);
        value["outcome"] = json!(self.exit.word());
        value["exitCode"] = json!(self.exit.code());
        let open = self.result.open_prompts();
        value["prompts"] = match open {
            // Of a session that is not stored, and was stopped because no person could answer.
            [] if self.exit == Exit::Waiting => {
                json!(self.waiting)
            }
            open => json!(open),
        };
        value
    }

    /// The flow's result as text: its declared outputs, else the outputs of its last nodes.
    pub(super) fn print(&self, graph: &Graph) {
        if let Some(declared) = self.result.outputs.declared() {
            match &declared {
                Value::Object(fields) if fields.len() > 1 => {
                    for (name, value) in fields {
                        terminal::data_line(&format!("{name}: {}", words(value).trim_end()));
                    }
                }
                declared => {
                    terminal::data_line(words(only(declared)).trim_end());
                }
            }
            return;
        }
        let mut last = Vec::new();
        for (at, node) in graph.flow().nodes.iter().enumerate() {
            if node.outgoing.is_empty() {
                self.collect(graph, NodeIx(u32::try_from(at).unwrap_or(u32::MAX)), &mut last);
            }
        }
        let only = last.len() == 1;
        for node in last {
            let id = &graph.flow().node(node).id;
            let Some(output) = self.result.outputs.get(id) else { continue };
            let text = words(of_frames(graph.flow().node(node), output));
            let text = text.trim_matches('\n').trim_end();
            if only {
                terminal::data_line(text);
            } else {
                terminal::data_line(&format!("{id}: {text}"));
            }
        }
    }

    /// A node that has something to say, or those before one that only directs.
    fn collect(&self, graph: &Graph, node: NodeIx, last: &mut Vec<NodeIx>) {
        let spec = graph.flow().node(node);
        let complete = self
            .result
            .nodes
            .get(&spec.id)
            .is_some_and(|report| matches!(report.status, NodeStatus::Complete | NodeStatus::Reused));
        if !complete || last.contains(&node) {
            return;
        }
        let output = self.result.outputs.get(&spec.id);
        let has_value =
            output.is_some_and(|output| &*spec.node_type == "control.noop" && !output["value"].is_null());
        if spec.node_type.starts_with("control.") && spec.frames.is_none() && !has_value {
            for edge in &spec.incoming {
                self.collect(graph, graph.flow().edge(*edge).from, last);
            }
        } else {
            last.push(node);
        }
    }
}

/// What the frames of a node gave, of the output of one that runs frames.
fn of_frames<'a>(node: &Node, output: &'a Value) -> &'a Value {
    match &node.frames {
        Some(frames) if matches!(frames.kind, FramesKind::Foreach { .. }) => &output["values"],
        Some(frames) if !matches!(frames.kind, FramesKind::Pack) => only(&output["outputs"]),
        _ => output,
    }
}

/// The value of an object that has one field; any other value itself.
fn only(value: &Value) -> &Value {
    match value {
        Value::Object(fields) if fields.len() == 1 => fields.values().next().unwrap_or(value),
        value => value,
    }
}

/// The text of an output where it has one; else JSON.
fn words(output: &Value) -> String {
    let text = ["text", "content", "stdout"].iter().find_map(|key| output.get(key)?.as_str());
    match (text, output.get("value").unwrap_or(output)) {
        (Some(text), _) => text.to_owned(),
        (None, Value::String(text)) => text.clone(),
        (None, value) => serde_json::to_string_pretty(value).unwrap_or_default(),
    }
}

/// The command that answers a question.
fn answering(session: &SessionId, open: &Prompt, commands: &Commands) -> String {
    let node = open.task.as_ref().map_or("the flow".to_owned(), |task| format!("`{task}`"));
    let answers = commands.answers(session, open);
    let more = if answers.len() > 1 { "; `inspan inbox` lists the other answers" } else { "" };
    let answer = answers.first().map(String::as_str).unwrap_or("inspan inbox");
    format!("{node} is waiting for a person: answer with `{answer}`{more}")
}
