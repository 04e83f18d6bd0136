//! What happened in one node, item by item: its prompt, text and thinking, tool calls with their results and the files
//! they edited, program output, messages, questions, usage, failures. It is a fold of the events of the node.

mod edits;
mod item;

use std::collections::HashMap;

use inspan_protocol::{Envelope, Event, MessageMode, MultiTurn, NodePath, PromptId, RunId, Timestamp};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

pub use edits::{FileEdit, Hunk, file_edits};
pub use item::{Answer, ItemBody, StreamItem};

use crate::label;

/// A text grows no longer than this many bytes before it continues in a new item.
const LONGEST_TEXT: usize = 64 * 1024;
/// A longer value is shown by its beginning.
const LONGEST_VALUE: usize = 256 * 1024;

/// Some items of a node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StreamPage {
    /// The newest event that the items are made of.
    pub seq: u64,
    /// How many items there are.
    pub total: usize,
    /// The attempts that have items, in their order.
    pub attempts: Vec<StreamAttempt>,
    /// The items that were asked for, in their order.
    pub items: Vec<StreamItem>,
}

/// An attempt of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StreamAttempt {
    /// Which pass of its loop, counting from 1.
    pub pass: u32,
    /// Which attempt of the pass, counting from 1.
    pub attempt: u32,
}

/// Which items to show.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamSelect {
    /// Only items of this attempt.
    pub attempt: Option<u32>,
    /// Only items of this pass.
    pub pass: Option<u32>,
    /// Only items that changed after this event.
    pub since: Option<u64>,
    /// The first item, by its index; without it the last items are shown.
    pub from: Option<usize>,
    /// At most so many.
    pub limit: usize,
}

/// The items of one node as events come in.
#[derive(Clone, Debug)]
pub struct StreamFold {
    node: String,
    items: Vec<StreamItem>,
    seq: u64,
    attempt: u32,
    pass: u32,
    /// The runs that have begun and not ended.
    runs: HashMap<RunId, StreamRun>,
    /// The items of open tool calls.
    calls: Vec<(RunId, String, usize)>,
    questions: HashMap<PromptId, usize>,
    /// The text or thinking that the next piece continues, if nothing came in between.
    open: Option<usize>,
    /// Items before this one are beyond a retraction.
    settled: usize,
}

/// A run that has not ended.
#[derive(Clone, Copy, Debug)]
struct StreamRun {
    turn: u32,
    /// Whether a message to all is for it.
    multi_turn: MultiTurn,
}

impl StreamFold {
    /// The items of a node by its path. A path without a pass means all passes.
    pub fn new(node: &NodePath) -> Self {
        Self {
            node: node.as_str().to_owned(),
            items: Vec::new(),
            seq: 0,
            attempt: 0,
            pass: 1,
            runs: HashMap::new(),
            calls: Vec::new(),
            questions: HashMap::new(),
            open: None,
            settled: 0,
        }
    }

    /// Whether this event begins an attempt of the node, so that [`StreamFold::apply`] takes its input.
    pub fn begins(&self, envelope: &Envelope) -> bool {
        matches!(envelope.event, Event::TaskStart { .. })
            && envelope.context.task.as_ref().is_some_and(|path| self.is_of_node(path))
    }

    /// Whether an event may concern nodes other than the one in its context.
    pub fn is_for_many(event: &Event) -> bool {
        matches!(event, Event::SessionReply { .. } | Event::SessionMessage { .. } | Event::FlowResumed { .. })
    }

    fn is_of_node(&self, path: &NodePath) -> bool {
        path.as_str() == self.node || label(path) == self.node
    }

    /// Takes the next event of the log. `input` is what an attempt that begins was given, if it is known.
    pub fn apply(&mut self, envelope: &Envelope, input: Option<Value>) {
        self.seq = envelope.seq;
        match (&envelope.event, &envelope.context.task) {
            (Event::SessionReply { prompt_id, content, choice, is_default }, _) => {
                if let Some(item) = self.questions.remove(prompt_id).and_then(|at| self.items.get_mut(at)) {
                    item.answer(Answer {
                        content: content.clone(),
                        choice: choice.clone(),
                        is_default: *is_default,
                        at: envelope.timestamp,
                    });
                    item.until = envelope.seq;
                }
            }
            (Event::SessionMessage { content, run_id, agent_name, mode, .. }, _) => {
                let is_meant = match (run_id, agent_name) {
                    (Some(run), _) => self.runs.contains_key(run),
                    (None, Some(_)) => {
                        envelope.context.task.as_ref().is_some_and(|path| self.is_of_node(path))
                    }
                    (None, None) => self.runs.values().any(|run| run.multi_turn == MultiTurn::On),
                };
                if is_meant {
                    let steers = *mode == Some(MessageMode::Steer);
                    self.push(envelope, ItemBody::Message { text: content.clone(), steers });
                }
            }
            (Event::FlowResumed { node_ids, message, messages, .. }, _) => {
                if let Some(path) = node_ids.iter().find(|path| self.is_of_node(path)) {
                    let text = messages.get(path).unwrap_or(message).clone();
                    self.push(envelope, ItemBody::Message { text, steers: false });
                }
                (self.open, self.settled) = (None, self.items.len());
            }
            (event, Some(path)) if self.is_of_node(path) => {
                self.pass = path.pass();
                self.apply_to_node(event, envelope, input);
            }
            _ => {}
        }
    }

    fn apply_to_node(&mut self, event: &Event, envelope: &Envelope, input: Option<Value>) {
        let body = match event {
            Event::TaskStart { attempt, .. } => {
                self.attempt = *attempt;
                self.runs.clear();
                self.calls.clear();
                ItemBody::prompt(input)
            }
            Event::TaskComplete { result, duration_ms, .. } => {
                let (output, cut) = bounded(result);
                ItemBody::Output { output, cut, duration_ms: *duration_ms }
            }
            Event::TaskFailed { error, will_retry, .. } => {
                ItemBody::Error { error: error.clone(), will_retry: *will_retry }
            }
            Event::TaskSkipped { .. } => ItemBody::note("the node was skipped"),
            Event::TaskReused { from, error: Some(error), .. } => {
                self.push(envelope, ItemBody::note(format!("the failure was taken from {from}")));
                ItemBody::Error { error: error.clone(), will_retry: false }
            }
            Event::TaskReused { from, result, .. } => {
                self.push(envelope, ItemBody::note(format!("the output was taken from {from}")));
                let (output, cut) = bounded(result);
                ItemBody::Output { output, cut, duration_ms: 0 }
            }
            Event::TaskAgent { agent, .. } => ItemBody::note(format!("the agent {agent} works next")),
            Event::TaskInterrupted { never_began: true, .. } => {
                ItemBody::note("the attempt did not begin: the machine could not run it")
            }
            Event::TaskInterrupted { stopped: true, .. } => {
                ItemBody::note("the process was stopped, and the attempt with it")
            }
            Event::TaskInterrupted { .. } => ItemBody::note("the process was lost, and the attempt with it"),
            Event::TaskCancelled { .. } => ItemBody::note("the attempt was cancelled"),
            Event::LimitWait { provider, until, .. } => {
                ItemBody::note(format!("a usage limit of {provider} is waited out until {until}"))
            }
            Event::BudgetExceeded { limit, .. } => ItemBody::note(format!("the budget is used up: {limit}")),
            Event::SessionPrompt(prompt) => {
                self.questions.insert(prompt.prompt_id.clone(), self.items.len());
                ItemBody::Question { prompt: Box::new(prompt.clone()), answer: None }
            }
            Event::ExecOutput { stream, text, truncated } => {
                return self.append_output(envelope, *stream, text, *truncated);
            }
            event => return self.apply_agent(event, envelope),
        };
        self.push(envelope, body);
    }

    fn apply_agent(&mut self, event: &Event, envelope: &Envelope) {
        match event {
            Event::AgentStart { run_id, turn, provider, model, multi_turn, .. } => {
                self.runs.insert(run_id.clone(), StreamRun { turn: *turn, multi_turn: *multi_turn });
                let model = model.as_ref().map(|model| format!(" ({model})")).unwrap_or_default();
                self.push_of(envelope, run_id, ItemBody::note(format!("{provider}{model} began")));
            }
            Event::AgentComplete { run_id, .. } => drop(self.runs.remove(run_id)),
            Event::AgentTurn { run_id, turn, .. } => {
                if let Some(run) = self.runs.get_mut(run_id) {
                    run.turn = *turn;
                }
                (self.open, self.settled) = (None, self.items.len());
            }
            Event::AgentSteer { run_id, content, .. } => {
                self.push_of(envelope, run_id, ItemBody::Message { text: content.clone(), steers: true });
            }
            Event::AgentText { run_id, content, delta } => {
                let body = ItemBody::Text { text: content.clone(), retracted: false };
                self.append(envelope, run_id, body, *delta);
            }
            Event::AgentThinking { run_id, content, delta } => {
                let body = ItemBody::Thinking { text: content.clone(), retracted: false };
                self.append(envelope, run_id, body, *delta);
            }
            Event::AgentRetract { run_id } => self.retract(envelope, run_id),
            Event::AgentToolStart { run_id, tool_name, tool_use_id, input } => {
                self.calls.push((run_id.clone(), tool_use_id.clone(), self.items.len()));
                self.push_of(envelope, run_id, ItemBody::call(tool_use_id, tool_name, input));
                self.settled = self.items.len();
            }
            Event::AgentToolComplete { run_id, tool_use_id, result, is_error, .. } => {
                self.settled = self.items.len();
                self.open = None;
                let open = self.calls.iter().position(|(run, id, _)| run == run_id && id == tool_use_id);
                let Some(open) = open else { return };
                let (_, _, at) = self.calls.swap_remove(open);
                if let Some(item) = self.items.get_mut(at) {
                    item.complete_call(result, *is_error, envelope.timestamp);
                    item.until = envelope.seq;
                }
            }
            Event::AgentUsage { run_id, usage, cost_usd, context, .. } => {
                let body = ItemBody::Usage { usage: *usage, cost_usd: *cost_usd, context: *context };
                self.push_of(envelope, run_id, body);
            }
            Event::AgentWarning { run_id, code, message } => {
                let body = ItemBody::Warning { code: code.clone(), message: message.clone() };
                self.push_of(envelope, run_id, body);
            }
            _ => {}
        }
    }

    fn push(&mut self, envelope: &Envelope, body: ItemBody) {
        let (index, Envelope { seq, timestamp, .. }) = (self.items.len(), envelope);
        let run_id = envelope.context.agent.clone();
        let turn = run_id.as_ref().and_then(|run| self.turn(run));
        let (attempt, pass) = (self.attempt, self.pass);
        self.items.push(StreamItem {
            index,
            seq: *seq,
            until: *seq,
            at: *timestamp,
            attempt,
            pass,
            run_id,
            turn,
            body,
        });
        self.open = None;
    }

    fn turn(&self, run: &RunId) -> Option<u32> {
        self.runs.get(run).map(|run| run.turn)
    }

    fn push_of(&mut self, envelope: &Envelope, run: &RunId, body: ItemBody) {
        let turn = self.turn(run);
        self.push(envelope, body);
        if let Some(item) = self.items.last_mut() {
            item.turn = turn;
            item.run_id = Some(run.clone());
        }
    }

    /// Adds text or thinking, to the newest item if it continues it.
    fn append(&mut self, envelope: &Envelope, run: &RunId, body: ItemBody, continues: bool) {
        let open = self.open.filter(|_| continues).and_then(|at| self.items.get_mut(at));
        if let Some(item) = open.filter(|item| item.run_id.as_ref() == Some(run))
            && item.body.append(&body)
        {
            item.until = envelope.seq;
            return;
        }
        self.push_of(envelope, run, body);
        match continues {
            true => self.open = Some(self.items.len() - 1),
            // A whole text is beyond a retraction.
            false => self.settled = self.items.len(),
        }
    }

    fn append_output(
        &mut self,
        envelope: &Envelope,
        stream: inspan_protocol::OutputStream,
        text: &str,
        truncated: bool,
    ) {
        let body = ItemBody::Exec { stream, text: text.to_owned(), truncated };
        if let Some(item) = self.open.and_then(|at| self.items.get_mut(at))
            && item.body.append(&body)
        {
            item.until = envelope.seq;
            return;
        }
        self.push(envelope, body);
        self.open = Some(self.items.len() - 1);
    }

    /// The text and thinking since the last tool call, whole text or retraction are void.
    fn retract(&mut self, envelope: &Envelope, run: &RunId) {
        let settled = self.settled.min(self.items.len());
        for item in self.items[settled..].iter_mut().filter(|item| item.run_id.as_ref() == Some(run)) {
            if item.body.retract() {
                item.until = envelope.seq;
            }
        }
        self.push_of(envelope, run, ItemBody::Retract {});
        self.settled = self.items.len();
    }

    /// Some of the items.
    pub fn page(&self, select: StreamSelect) -> StreamPage {
        let of_attempt = |item: &&StreamItem| {
            select.attempt.is_none_or(|attempt| item.attempt == attempt)
                && select.pass.is_none_or(|pass| item.pass == pass)
        };
        let of = |item: &StreamItem| StreamAttempt { pass: item.pass, attempt: item.attempt };
        let mut attempts: Vec<StreamAttempt> = self.items.iter().map(of).collect();
        attempts.dedup();
        attempts.retain(|one| one.attempt > 0);
        let total = self.items.iter().filter(of_attempt).count();
        let wanted = self.items.iter().filter(of_attempt).filter(|item| {
            select.since.is_none_or(|since| item.until > since)
                && select.from.is_none_or(|from| item.index >= from)
        });
        let mut items: Vec<StreamItem> = match (select.from, select.since) {
            (None, None) => wanted.rev().take(select.limit).cloned().collect(),
            _ => wanted.take(select.limit).cloned().collect(),
        };
        if select.from.is_none() && select.since.is_none() {
            items.reverse();
        }
        StreamPage { seq: self.seq, total, attempts, items }
    }
}

/// A value, or its beginning as text and how many bytes it has in all.
fn bounded(value: &Value) -> (Value, Option<usize>) {
    let text = match value {
        Value::String(text) if text.len() <= LONGEST_VALUE => return (value.clone(), None),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    if text.len() <= LONGEST_VALUE {
        return (value.clone(), None);
    }
    let end = text.floor_char_boundary(LONGEST_VALUE);
    (Value::String(text[..end].to_owned()), Some(text.len()))
}

/// Milliseconds from one moment to another.
fn millis(from: Timestamp, to: Timestamp) -> u64 {
    to.since(from).as_millis().try_into().unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use inspan_protocol::Envelope;
    use serde_json::json;

    use super::*;
    use crate::testing::{envelope, flow_log, lines, stored_log};

    fn fold(node: &str, log: &[Envelope]) -> StreamFold {
        let mut fold = StreamFold::new(&NodePath::new(node));
        for envelope in log {
            let input = fold.begins(envelope).then(|| json!({ "prompt": "do it" }));
            fold.apply(envelope, input);
        }
        fold
    }

    fn all(fold: &StreamFold) -> StreamPage {
        fold.page(StreamSelect { limit: 1000, ..StreamSelect::default() })
    }

    #[test]
    fn a_message_is_an_item_of_the_nodes_that_it_went_to() {
        let begins = |node: &str, multi_turn: &str| {
            let run = format!("{node}.1");
            let event = json!({ "type": "agent:start", "agentName": node, "runId": run, "provider": "p",
                "turn": 1, "multiTurn": multi_turn });
            (node.to_owned(), event)
        };
        let ends = |node: &str| {
            let event = json!({ "type": "agent:complete", "agentName": node, "success": true, "runId": format!("{node}.1"),
                "stopReason": "complete", "usage": inspan_protocol::Usage::default(), "durationMs": 0 });
            (node.to_owned(), event)
        };
        let to_all = (String::new(), json!({ "type": "session:message", "content": "hi" }));
        let events =
            [begins("over", "on"), begins("once", "off"), begins("talk", "on"), ends("over"), to_all];
        let log = (1..).zip(events);
        let log = log.map(|(seq, (node, event))| envelope(seq, Timestamp::default(), &node, &event));
        let log: Vec<Envelope> = log.collect();
        let has_it = |node| {
            all(&fold(node, &log)).items.iter().any(|item| matches!(item.body, ItemBody::Message { .. }))
        };
        assert_eq!(["over", "once", "talk"].map(has_it), [false, false, true]);
    }

    #[test]
    fn recorded_sessions_have_the_items_of_each_node() {
        let nodes = [
            ("review_loop", "code"),
            ("review_loop", "review#2"),
            ("multi_turn", "talk"),
            ("human_input", "later"),
            ("retry", "busy"),
            ("agents_fallback", "solve"),
            ("exec_exits", "any"),
        ];
        for (flow, node) in nodes {
            insta::assert_snapshot!(
                format!("stream of {node} in {flow}").replace([' ', '#'], "_"),
                lines(&all(&fold(node, &flow_log(flow))))
            );
        }
        insta::assert_snapshot!(
            "stream_of_a_stored_session",
            lines(&all(&fold("count", &stored_log("finished"))))
        );
    }
}
