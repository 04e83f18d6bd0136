//! What the console knows of a session: a fold over its events, without a clock and without output. How it
//! looks is left to `tree`, `plain` and `summary`.

use std::{collections::HashMap, sync::Arc, time::Duration};

use inspan_engine::DEFAULT_IDLE_TIMEOUT;
use inspan_flow::{Retry, wait_before_retry};
use inspan_protocol::{
    AgentError, Envelope, Event, NodePath, NodeStatus, Outcome, Prompt, PromptId, PromptKind, RunId,
    SessionId, SkipReason, Timestamp, WaitingOn,
};
use serde_json::Value;

use super::{
    agent::{AgentView, Doing, call},
    spent::Spent,
};
use crate::safe::clean;

/// The widest column for names and types; what is longer pushes what follows it.
pub(crate) const COLUMN: usize = 28;

/// The flow as its author wrote it, as far as the console shows it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Plan {
    pub(crate) flow: String,
    /// Ids and types, in the author's order.
    pub(crate) nodes: Vec<(String, Arc<str>)>,
    pub(crate) loops: Vec<PlannedLoop>,
    /// Of nodes that are tried again, how.
    pub(crate) retries: HashMap<String, Retry>,
    /// Of agents that wait for messages, how long at most, where it is not the default.
    pub(crate) idle: HashMap<String, Duration>,
}

/// A loop edge.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PlannedLoop {
    pub(crate) from: String,
    pub(crate) to: String,
    pub(crate) max_iterations: u32,
    /// Its condition.
    pub(crate) when: Option<String>,
    /// The nodes that run again.
    pub(crate) body: Vec<String>,
}

/// The session as far as its events have told.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ConsoleState {
    pub(crate) flow: String,
    pub(crate) session: Option<SessionId>,
    pub(crate) started: Option<Timestamp>,
    pub(crate) ended: Option<Ended>,
    pub(crate) rows: Vec<Row>,
    pub(crate) questions: Vec<Question>,
    /// How often the open questions have changed.
    pub(crate) asked: u64,
    pub(crate) waiting: Option<(WaitingOn, Option<Timestamp>)>,
    pub(crate) error: Option<AgentError>,
    /// Budgets that were exceeded, of a node or of the flow.
    pub(crate) budgets: Vec<(Option<String>, String)>,
    pub(crate) course: Course,
    /// Events that were not seen because the console was too slow.
    pub(crate) missed: u64,
    /// Columns for the names of nodes.
    pub(crate) label_width: usize,
    last_seq: u64,
    loops: Vec<PlannedLoop>,
    retries: HashMap<String, Retry>,
    idle: HashMap<String, Duration>,
    by_label: HashMap<String, u32>,
    by_run: HashMap<RunId, String>,
}

/// Whether the session goes on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Course {
    #[default]
    Onwards,
    /// It was told to stop and has not ended yet.
    Stopping,
}

/// How the session ended.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Ended {
    pub(crate) outcome: Outcome,
    pub(crate) duration_ms: u64,
    pub(crate) cause: Cause,
}

/// Why the session ended, as far as its events do not tell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Cause {
    #[default]
    Own,
    /// A question that only a person could have answered.
    NobodyThere,
}

/// One node, or one node of one iteration of a frame.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Row {
    /// Its path without the pass.
    pub(crate) label: String,
    pub(crate) node_type: Arc<str>,
    pub(crate) status: NodeStatus,
    /// Which pass of its loop, counting from 1.
    pub(crate) pass: u32,
    pub(crate) attempt: u32,
    pub(crate) started: Option<Timestamp>,
    pub(crate) duration_ms: Option<u64>,
    pub(crate) error: Option<Box<AgentError>>,
    pub(crate) skipped: Option<SkipReason>,
    /// Attempts of this pass that have failed.
    pub(crate) failures: u32,
    /// When it is tried again, and how often it may be tried.
    pub(crate) retry: Option<(Timestamp, u32)>,
    /// Earlier passes that failed, each with its number.
    pub(crate) failed_passes: Vec<(u32, Box<AgentError>)>,
    /// What its agents were not allowed to do: the calls that were denied.
    pub(crate) denied: Vec<String>,
    /// The last line that its program wrote.
    pub(crate) output: String,
    /// Its newest output, of a node that a loop edge leaves.
    result: Option<Arc<Value>>,
    /// Its newest agent run.
    pub(crate) agent: Option<Box<AgentView>>,
    /// Over all passes and attempts.
    pub(crate) spent: Spent,
}

/// A question that waits for an answer.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Question {
    pub(crate) id: PromptId,
    pub(crate) task: Option<NodePath>,
    pub(crate) text: String,
    pub(crate) choices: Vec<String>,
    pub(crate) allow_text: bool,
    pub(crate) kind: PromptKind,
    pub(crate) detail: Option<Value>,
    pub(crate) deadline: Option<Timestamp>,
    pub(crate) default: Option<String>,
}

impl Question {
    pub(crate) fn new(prompt: &Prompt, task: Option<NodePath>) -> Self {
        Self {
            id: prompt.prompt_id.clone(),
            task,
            text: prompt.prompt.clone(),
            choices: prompt.choices.clone().unwrap_or_default(),
            allow_text: prompt.allows_text(),
            kind: prompt.kind,
            detail: prompt.detail.clone(),
            deadline: prompt.deadline,
            default: prompt.default.clone(),
        }
    }
}

impl ConsoleState {
    pub(crate) fn new(plan: Plan) -> Self {
        let Plan { flow, loops, retries, idle, .. } = plan;
        let mut state = Self { flow, loops, retries, idle, ..Self::default() };
        state.rows.reserve_exact(plan.nodes.len());
        state.by_label.reserve(plan.nodes.len());
        for (id, node_type) in plan.nodes {
            state.label_width = state.label_width.max(id.len().min(COLUMN));
            state.by_label.insert(id.clone(), state.rows.len() as u32);
            state.rows.push(Row { label: id, node_type, pass: 1, ..Row::default() });
        }
        state
    }

    /// What was spent in all.
    pub(crate) fn spent(&self) -> Spent {
        self.rows.iter().fold(Spent::default(), |sum, row| sum.plus(&row.spent))
    }

    /// An open question.
    pub(crate) fn question(&self, id: &PromptId) -> Option<&Question> {
        self.questions.iter().find(|question| question.id == *id)
    }

    /// Says that the session ended because a person was needed and none was there.
    pub(crate) fn nobody_there(&mut self) {
        if let Some(ended) = &mut self.ended {
            ended.cause = Cause::NobodyThere;
        }
    }

    /// Says that what comes next follows on what was shown before, whatever lies between.
    pub(crate) fn catch_up(&mut self) {
        (self.missed, self.last_seq) = (0, 0);
    }

    /// Says that the session rests, to be gone on with.
    pub(crate) fn rest(&mut self, outcome: Outcome, duration_ms: u64) {
        self.ended = Some(Ended { outcome, duration_ms, cause: Cause::Own });
    }

    /// Takes over where each node stands at the end, in case events of it were missed.
    pub(crate) fn settle<'a>(
        &mut self,
        nodes: impl Iterator<Item = (&'a str, NodeStatus, Option<AgentError>)>,
    ) {
        if self.missed == 0 {
            return;
        }
        for (id, status, error) in nodes {
            if let Some(row) = self.by_label.get(id).map(|at| &mut self.rows[*at as usize]) {
                row.status = status;
                row.error = error.map(Box::new);
            }
        }
    }

    /// The loop edge between two nodes.
    pub(crate) fn loop_between(&self, from: &str, to: &str) -> Option<&PlannedLoop> {
        self.loops.iter().find(|edge| edge.from == from && edge.to == to)
    }

    /// Why a loop edge fired: its condition, and what of the output of its source the condition reads.
    pub(crate) fn reason(&self, from: &str, to: &str) -> Option<String> {
        let when = self.loop_between(from, to)?.when.as_deref()?;
        let result = self.by_label.get(from).and_then(|at| self.rows[*at as usize].result.as_deref());
        let read = result.and_then(Value::as_object).into_iter().flatten().filter_map(|(key, value)| {
            let path = format!("{from}.{key}");
            let value = value.as_str().map_or_else(|| value.to_string(), |text| format!("{:?}", clean(text)));
            when.contains(&path).then(|| format!("{path} = {}", short(&value)))
        });
        let read: Vec<String> = read.collect();
        let read = if read.is_empty() { String::new() } else { format!(" ({})", read.join(", ")) };
        Some(format!("{}{read}", clean(when)))
    }

    /// Whether an agent waits for a message.
    pub(crate) fn listens(&self) -> bool {
        self.rows.iter().any(|row| self.listens_until(row).is_some())
    }

    /// Until when the agent of a node waits for a message, if it does.
    pub(crate) fn listens_until(&self, row: &Row) -> Option<Timestamp> {
        match row.agent.as_deref().map(|agent| &agent.doing) {
            Some(Doing::Listening(since)) if row.status == NodeStatus::Running => {
                Some(*since + *self.idle.get(&row.label).unwrap_or(&DEFAULT_IDLE_TIMEOUT))
            }
            _ => None,
        }
    }

    /// The row of a place in the run.
    pub(crate) fn row(&self, path: &NodePath) -> Option<&Row> {
        self.by_label.get(label(path)).map(|at| &self.rows[*at as usize])
    }

    pub(crate) fn fold(&mut self, envelope: &Envelope) {
        let at = envelope.timestamp;
        let task = envelope.context.task.as_ref();
        self.count(envelope.seq);
        let over = matches!(
            envelope.event,
            Event::TaskComplete { .. } | Event::TaskFailed { .. } | Event::TaskCancelled { .. }
        );
        if over && !self.questions.is_empty() {
            self.withdraw(|question| question.task.as_ref() == task);
        }
        match &envelope.event {
            Event::HarnessStart { .. } => {
                self.session = Some(envelope.context.session_id.clone());
                self.started = Some(at);
            }
            Event::HarnessComplete { outcome, duration_ms, .. } => {
                self.ended = Some(Ended { outcome: *outcome, duration_ms: *duration_ms, cause: Cause::Own });
                self.withdraw(|_| true);
                self.waiting = None;
            }
            Event::SessionAbort { .. } => self.course = Course::Stopping,
            Event::PhaseFailed { error, .. } => self.error = Some(error.clone()),
            Event::TaskStart { node_type, attempt, path, .. } => {
                let row = self.row_mut(path);
                let before = std::mem::take(row);
                *row = Row {
                    label: before.label,
                    node_type: node_type.clone(),
                    status: NodeStatus::Running,
                    pass: path.pass(),
                    attempt: *attempt,
                    started: Some(at),
                    failures: before.failures,
                    failed_passes: before.failed_passes,
                    denied: before.denied,
                    spent: before.spent,
                    ..Row::default()
                };
                self.waiting = None;
            }
            Event::TaskComplete { duration_ms, result, .. } => {
                let leaves = |label: &str| self.loops.iter().any(|edge| edge.from == label);
                let result_kept = task.is_some_and(|task| leaves(label(task))).then(|| Arc::clone(result));
                if let Some(row) = self.task_row(task) {
                    row.status = NodeStatus::Complete;
                    row.duration_ms = Some(*duration_ms);
                    row.failures = 0;
                    row.denied.extend(denied(result));
                    row.result = result_kept;
                }
            }
            Event::TaskFailed { error, will_retry, .. } => {
                let retry = task.and_then(|task| self.retries.get(label(task)).cloned());
                if let Some(row) = self.task_row(task) {
                    row.status = if *will_retry { NodeStatus::Pending } else { NodeStatus::Failed };
                    row.failures += 1;
                    row.retry = retry.filter(|_| *will_retry).map(|retry| {
                        (at + wait_before_retry(&retry, row.failures, error), retry.max_attempts)
                    });
                    row.duration_ms =
                        row.started.and_then(|start| at.since(start).as_millis().try_into().ok());
                    row.error = Some(Box::new(error.clone()));
                }
            }
            Event::TaskSkipped { reason, .. } => {
                if let Some(row) = self.task_row(task) {
                    row.status = NodeStatus::Skipped;
                    row.skipped = Some(*reason);
                }
            }
            Event::TaskReused { .. } => self.set_status(task, NodeStatus::Reused),
            Event::TaskCancelled { .. } => self.set_status(task, NodeStatus::Cancelled),
            Event::LoopIterate { from, to, .. } => self.begin_pass(from.as_str(), to.as_str()),
            Event::SessionPrompt(prompt) => self.ask(prompt, envelope.context.task.as_ref()),
            Event::SessionReply { prompt_id, .. } => self.answered(prompt_id),
            Event::FlowWaiting { on, until } => self.waiting = Some((*on, *until)),
            Event::FlowPaused { node_ids, .. } => {
                for path in node_ids {
                    self.row_mut(path).status = NodeStatus::Paused;
                }
            }
            Event::ExecOutput { text, .. } => {
                if let Some(row) = self.task_row(task) {
                    row.wrote(text);
                }
            }
            Event::BudgetExceeded { limit } => {
                self.budgets.push((task.map(|task| label(task).into()), limit.clone()));
            }
            Event::AgentStart { run_id, provider, model, multi_turn, .. } => {
                if let Some(row) = self.task_row(task) {
                    row.agent = Some(Box::new(AgentView::new(provider, model.as_deref(), *multi_turn)));
                    let label = row.label.clone();
                    self.by_run.insert(run_id.clone(), label);
                }
            }
            Event::AgentUsage { usage, cost_usd, run_id } => {
                if let Some(row) = self.run_row(run_id) {
                    row.spent.add(usage.total(), *cost_usd);
                    if let Some(agent) = &mut row.agent {
                        agent.fold(&envelope.event, at);
                    }
                }
            }
            Event::AgentText { run_id, .. }
            | Event::AgentThinking { run_id, .. }
            | Event::AgentRetract { run_id }
            | Event::AgentTurn { run_id, .. }
            | Event::AgentToolStart { run_id, .. }
            | Event::AgentToolComplete { run_id, .. }
            | Event::AgentComplete { run_id, .. } => {
                if let Some(agent) = self.run_row(run_id).and_then(|row| row.agent.as_mut()) {
                    agent.fold(&envelope.event, at);
                }
            }
            _ => {}
        }
    }

    /// The places in the order are dense, so a gap tells how much was missed.
    fn count(&mut self, seq: u64) {
        if self.last_seq > 0 {
            self.missed += seq.saturating_sub(self.last_seq + 1);
        }
        self.last_seq = seq.max(self.last_seq);
    }

    fn begin_pass(&mut self, from: &str, to: &str) {
        let body = self.loop_between(from, to).map(|edge| edge.body.clone()).unwrap_or_default();
        for id in body {
            if let Some(at) = self.by_label.get(id.as_str()) {
                let row = &mut self.rows[*at as usize];
                let failed = row.error.take().filter(|_| row.status == NodeStatus::Failed);
                row.failed_passes.extend(failed.map(|error| (row.pass, error)));
                row.status = NodeStatus::Pending;
                row.duration_ms = None;
                row.skipped = None;
                row.retry = None;
                row.failures = 0;
            }
        }
    }

    fn ask(&mut self, prompt: &Prompt, task: Option<&NodePath>) {
        self.questions.push(Question::new(prompt, task.cloned()));
        self.asked += 1;
        self.set_status(task, NodeStatus::Waiting);
    }

    fn answered(&mut self, prompt: &PromptId) {
        let Some(at) = self.questions.iter().position(|question| question.id == *prompt) else { return };
        let question = self.questions.remove(at);
        self.asked += 1;
        self.waiting = None;
        let still = self.questions.iter().any(|other| other.task == question.task);
        if let Some(row) = self.task_row(question.task.as_ref())
            && row.status == NodeStatus::Waiting
            && !still
        {
            row.status = NodeStatus::Running;
        }
    }

    /// A node that has ended waits for no answer.
    fn withdraw(&mut self, which: impl Fn(&Question) -> bool) {
        let before = self.questions.len();
        self.questions.retain(|question| !which(question));
        self.asked += u64::from(self.questions.len() < before);
    }

    fn set_status(&mut self, task: Option<&NodePath>, status: NodeStatus) {
        if let Some(row) = self.task_row(task) {
            row.status = status;
        }
    }

    fn run_row(&mut self, run: &RunId) -> Option<&mut Row> {
        let at = self.by_label.get(self.by_run.get(run)?)?;
        Some(&mut self.rows[*at as usize])
    }

    fn task_row(&mut self, task: Option<&NodePath>) -> Option<&mut Row> {
        task.map(|path| self.row_mut(path))
    }

    /// The row of a place; one within a frame gets its row when it is first heard of, after its owner's.
    fn row_mut(&mut self, path: &NodePath) -> &mut Row {
        let label = label(path);
        let at = match self.by_label.get(label) {
            Some(at) => *at as usize,
            None => self.insert(label),
        };
        &mut self.rows[at]
    }

    fn insert(&mut self, label: &str) -> usize {
        let owner = label.rfind('[').map_or("", |end| &label[..end]);
        let family = |row: &Row| row.label == owner || row.label.starts_with(&format!("{owner}["));
        let last = if owner.is_empty() { None } else { self.rows.iter().rposition(family) };
        let at = last.map_or(self.rows.len(), |last| last + 1);
        self.label_width = self.label_width.max((label.len() + indent(label)).min(COLUMN));
        self.rows.insert(at, Row { label: label.into(), pass: 1, ..Row::default() });
        self.by_label =
            self.rows.iter().enumerate().map(|(at, row)| (row.label.clone(), at as u32)).collect();
        at
    }
}

impl Row {
    /// Keeps the last line with letters in it of what its program writes.
    fn wrote(&mut self, text: &str) {
        let mut lines = text.trim_end().rsplit('\n');
        let last = lines.next().unwrap_or_default();
        if text.contains('\n') || self.output.len() > LINE {
            self.output.clear();
        }
        self.output.push_str(last);
        if self.output.len() > LINE {
            let from = self.output.len() - LINE;
            let from = (from..).find(|at| self.output.is_char_boundary(*at)).unwrap_or(self.output.len());
            self.output.drain(..from);
        }
    }
}

/// The longest line that is kept of what a program writes, in bytes; more than a terminal is wide.
const LINE: usize = 1024;

/// The calls that an agent was not allowed to make, as its output tells.
pub(super) fn denied(result: &Value) -> impl Iterator<Item = String> {
    let denials = result.get("permissionDenials").and_then(Value::as_array).into_iter().flatten();
    denials.filter_map(|denial| {
        Some(call(denial.get("toolName")?.as_str()?, denial.get("toolInput").unwrap_or(&Value::Null)))
    })
}

/// The longest value that is told of a condition, in letters.
const LONGEST: usize = 80;

fn short(text: &str) -> String {
    match text.char_indices().nth(LONGEST) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_owned(),
    }
}

/// Columns by which a node within frames stands further right.
pub(crate) fn indent(label: &str) -> usize {
    2 * label.matches('/').count()
}

/// The path without the pass at its end.
pub(crate) fn label(path: &NodePath) -> &str {
    let text = path.as_str();
    if path.pass() > 1 { text.rsplit_once('#').map_or(text, |(base, _)| base) } else { text }
}
