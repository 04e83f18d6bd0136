//! What the console shows of a session: the state of its run, which `inspan_flow` folds, and beside it only what the
//! run does not need to know: what agents do right now, the last line of a program, what was denied. It has no clock and
//! writes nothing.

use std::{collections::HashMap, sync::Arc, time::Duration};

use inspan_engine::DEFAULT_IDLE_TIMEOUT;
use inspan_flow::{Edge, FramesProgress, Graph, NodeIx, Run, StaticValue, TaskRef};
use inspan_protocol::{
    AgentError, Envelope, Event, NodePath, NodeStatus, Outcome, Prompt, PromptId, RunId, SessionId,
    SkipReason, Timestamp,
};
use serde::Serialize;
use serde_json::{Map, Value};

use super::{
    agent::{AgentView, Doing, call},
    spent::Spent,
};
use crate::safe::clean;

/// The widest column for names and types; what is longer pushes what follows it.
pub(crate) const COLUMN: usize = 28;

/// A session as its events show it so far.
#[derive(Debug)]
pub(crate) struct ConsoleState {
    pub(crate) flow: String,
    pub(crate) session: Option<SessionId>,
    pub(crate) ended: Option<Ended>,
    /// One row for each node, in the order of the flow.
    pub(crate) rows: Vec<Row>,
    /// The open questions.
    pub(crate) questions: Vec<Prompt>,
    /// How often the open questions have changed.
    pub(crate) asked: u64,
    pub(crate) error: Option<AgentError>,
    /// Budgets that were exceeded, of a node or of the flow.
    pub(crate) budgets: Vec<(Option<String>, String)>,
    pub(crate) course: Course,
    /// Set once the flow is to end before all of it has run.
    pub(crate) ending: Option<Ending>,
    /// Events that were not seen because the console was too slow.
    pub(crate) missed: u64,
    /// Columns for the names of nodes.
    pub(crate) label_width: usize,
    last_seq: u64,
    run: Run,
    /// The node of each agent run.
    by_run: HashMap<RunId, usize>,
}

/// Whether the session continues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Course {
    #[default]
    Running,
    /// A stop was requested, and the session has not ended yet.
    Stopping,
}

/// Why the flow ends before all of it has run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Ending {
    pub(crate) outcome: Outcome,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<AgentError>,
}

/// How the session ended.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Ended {
    pub(crate) outcome: Outcome,
    pub(crate) duration_ms: u64,
    pub(crate) cause: Cause,
}

/// Why the session ended, as far as its events do not say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Cause {
    #[default]
    Flow,
    /// A question that only a person could have answered.
    Unattended,
}

/// One node. What is not live is copied from the state of the run after each event of the node.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Row {
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
    /// When it is retried, and how many attempts it may have.
    pub(crate) retry: Option<(Timestamp, u32)>,
    /// Attempts whose process was lost.
    pub(crate) interrupted: u32,
    /// Earlier passes that failed, each with its number.
    pub(crate) failed_passes: Vec<(u32, Box<AgentError>)>,
    /// Tool calls that its agents were denied.
    pub(crate) denied: Vec<String>,
    /// The last line that its program wrote.
    pub(crate) output: String,
    /// How far it is with its frames, while it runs them.
    pub(crate) frames: Option<FramesProgress>,
    /// Its newest agent run.
    pub(crate) agent: Option<Box<AgentView>>,
    /// Over all passes and attempts.
    pub(crate) spent: Spent,
}

impl Default for ConsoleState {
    /// A session of a flow that cannot be compiled.
    fn default() -> Self {
        Self::new(&Arc::default())
    }
}

impl ConsoleState {
    /// A session that begins with this flow.
    pub(crate) fn new(graph: &Arc<Graph>) -> Self {
        Self::of(Run::new(Arc::clone(graph), &SessionId::from(""), Map::new(), None))
    }

    /// A session whose run stands here.
    pub(crate) fn of(run: Run) -> Self {
        let graph = run.graph();
        let row = |id: &str, node_type: &Arc<str>| Row {
            label: id.to_owned(),
            node_type: Arc::clone(node_type),
            ..Row::default()
        };
        let rows: Vec<Row> =
            graph.flow().nodes.iter().map(|node| row(node.id.as_str(), &node.node_type)).collect();
        let label_width = rows.iter().map(|row| row.label.len().min(COLUMN)).max().unwrap_or(0);
        let mut state = Self {
            flow: graph.name.clone(),
            session: None,
            ended: None,
            rows,
            questions: Vec::new(),
            asked: 0,
            error: None,
            budgets: Vec::new(),
            course: Course::default(),
            ending: None,
            missed: 0,
            label_width,
            last_seq: 0,
            run,
            by_run: HashMap::new(),
        };
        state.copy_all();
        state
    }

    /// The state of the run.
    pub(crate) fn run(&self) -> &Run {
        &self.run
    }

    /// What was spent in all.
    pub(crate) fn spent(&self) -> Spent {
        self.rows.iter().fold(Spent::default(), |sum, row| sum.plus(&row.spent))
    }

    /// An open question.
    pub(crate) fn question(&self, id: &PromptId) -> Option<&Prompt> {
        self.questions.iter().find(|question| question.prompt_id == *id)
    }

    /// Notes that the session ended because a question needed a person.
    pub(crate) fn set_unattended(&mut self) {
        if let Some(ended) = &mut self.ended {
            ended.cause = Cause::Unattended;
        }
    }

    /// Events of earlier processes were applied: a gap between them and the next event is none that was missed.
    pub(crate) fn end_history(&mut self) {
        (self.missed, self.last_seq) = (0, 0);
    }

    /// Notes that the session is paused or waits.
    pub(crate) fn set_paused(&mut self, outcome: Outcome, duration_ms: u64) {
        self.ended = Some(Ended { outcome, duration_ms, cause: Cause::default() });
    }

    /// Takes over the final status of each node, in case events were missed.
    pub(crate) fn set_final<'a>(
        &mut self,
        nodes: impl Iterator<Item = (&'a str, NodeStatus, Option<AgentError>)>,
    ) {
        if self.missed == 0 {
            return;
        }
        for (id, status, error) in nodes {
            if let Some(row) = self.rows.iter_mut().find(|row| row.label == id) {
                row.status = status;
                row.error = error.map(Box::new);
            }
        }
    }

    /// The loop edge between two nodes.
    pub(crate) fn loop_between(&self, from: &str, to: &str) -> Option<&Edge> {
        let graph = self.run.graph();
        let (from, to) = (graph.flow().find(from)?, graph.flow().find(to)?);
        let loops = graph.flow().node(from).loops.iter().map(|edge| graph.flow().edge(*edge));
        loops.into_iter().find(|edge| edge.to == to)
    }

    /// Why a loop edge fired: its condition, and what of the output of its source the condition reads.
    pub(crate) fn reason(&self, from: &str, to: &str) -> Option<String> {
        let when = self.loop_between(from, to)?.when.as_ref()?.to_string();
        let result = self.run.state().output(TaskRef::of_flow(self.run.graph().flow().find(from)?));
        let read = result.and_then(Value::as_object).into_iter().flatten().filter_map(|(key, value)| {
            let path = format!("{from}.{key}");
            let value = value.as_str().map_or_else(|| value.to_string(), |text| format!("{:?}", clean(text)));
            when.contains(&path).then(|| format!("{path} = {}", short(&value)))
        });
        let read: Vec<String> = read.collect();
        let read = if read.is_empty() { String::new() } else { format!(" ({})", read.join(", ")) };
        Some(format!("{}{read}", clean(&when)))
    }

    /// Whether an agent waits for a message.
    pub(crate) fn listens(&self) -> bool {
        self.rows.iter().any(|row| self.listens_until(row).is_some())
    }

    /// Until when the agent of a node waits for a message, if it does.
    pub(crate) fn listens_until(&self, row: &Row) -> Option<Timestamp> {
        match row.agent.as_deref().map(|agent| &agent.doing) {
            Some(Doing::Listening(since)) if row.status == NodeStatus::Running => {
                Some(*since + self.idle_timeout(&row.label).unwrap_or(DEFAULT_IDLE_TIMEOUT))
            }
            _ => None,
        }
    }

    /// How long the agent of a node waits for messages, if the flow says so.
    fn idle_timeout(&self, node: &str) -> Option<Duration> {
        let graph = self.run.graph();
        match graph.flow().node(graph.flow().find(node)?).input.part(&["options", "idleTimeoutMs"]) {
            StaticValue::Known(ms) => ms.as_u64().map(Duration::from_millis),
            _ => None,
        }
    }

    /// The row of a place in the run.
    pub(crate) fn row(&self, path: &NodePath) -> Option<&Row> {
        Some(&self.rows[self.index(path)?])
    }

    fn index(&self, path: &NodePath) -> Option<usize> {
        // What happens in a frame is shown with the node of the flow that runs it.
        let node = path.parts().next()?.node;
        self.run.graph().flow().find(node).map(|ix| ix.0 as usize)
    }

    /// Applies the next event.
    pub(crate) fn apply(&mut self, envelope: &Envelope) {
        self.count(envelope.seq);
        if matches!(envelope.event, Event::LoopIterate { .. }) {
            self.note_failed_passes(envelope);
        } else {
            self.run.apply(envelope);
        }
        let task = envelope.context.task.as_ref().and_then(|path| self.index(path));
        match task {
            Some(at) => {
                self.copy(at);
                self.apply_live(at, envelope);
            }
            None => self.copy_all(),
        }
        self.update_questions();
        match &envelope.event {
            Event::HarnessStart { .. } => self.session = Some(envelope.context.session_id.clone()),
            Event::HarnessComplete { outcome, duration_ms, .. } => self.set_paused(*outcome, *duration_ms),
            Event::SessionAbort { .. } => self.course = Course::Stopping,
            Event::FlowEnding { outcome, error } => {
                self.ending = Some(Ending { outcome: *outcome, error: error.clone() });
            }
            Event::PhaseFailed { error, .. } => self.error = Some(error.clone()),
            Event::BudgetExceeded { limit } => {
                let node = task.map(|at| self.rows[at].label.clone());
                self.budgets.push((node, limit.clone()));
            }
            event => self.apply_agent(event, envelope.timestamp),
        }
    }

    /// `seq` has no gaps, so a gap shows how many events were missed.
    fn count(&mut self, seq: u64) {
        if self.last_seq > 0 {
            self.missed += seq.saturating_sub(self.last_seq + 1);
        }
        self.last_seq = seq.max(self.last_seq);
    }

    /// Copies what the run knows of a node to its row.
    fn copy(&mut self, at: usize) {
        let (graph, state, ix) =
            (self.run.graph(), self.run.state(), NodeIx(u32::try_from(at).unwrap_or(u32::MAX)));
        let (Some(node), Some(row)) = (state.nodes().get(at), self.rows.get_mut(at)) else { return };
        let asks =
            node.status == NodeStatus::Running && state.asked_by(graph, TaskRef::of_flow(ix)).is_some();
        row.status = if asks { NodeStatus::Waiting } else { node.status };
        (row.pass, row.attempt, row.failures) = (node.pass, node.attempt, node.failures());
        (row.started, row.duration_ms, row.skipped) = (node.started_at, node.duration_ms, node.skipped);
        row.error.clone_from(&node.error);
        row.frames = state.progress_of(TaskRef::of_flow(ix));
        row.retry = node.retry_at.map(|due| (due, graph.flow().node(ix).policy.retry.max_attempts));
    }

    fn copy_all(&mut self) {
        for at in 0..self.rows.len() {
            self.copy(at);
        }
    }

    /// A loop goes into its next pass: the run forgets the failures of this one, and the console shows them.
    fn note_failed_passes(&mut self, envelope: &Envelope) {
        self.run.apply(envelope);
        for (row, node) in self.rows.iter_mut().zip(self.run.state().nodes()) {
            let failed = row.error.take_if(|_| row.status == NodeStatus::Failed && node.pass > row.pass);
            row.failed_passes.extend(failed.map(|error| (row.pass, error)));
        }
    }

    fn update_questions(&mut self) {
        let (graph, state) = (self.run.graph(), self.run.state());
        let open = state.prompts().iter().filter(|prompt| {
            let ix = prompt.task.as_ref().and_then(|task| graph.flow().find(task.node()));
            let node = ix.and_then(|ix| state.nodes().get(ix.0 as usize));
            // A node that was cancelled no longer waits for its answer here.
            !node.is_some_and(|node| node.status == NodeStatus::Cancelled) && state.outcome().is_none()
        });
        if !open
            .clone()
            .map(|prompt| &prompt.prompt_id)
            .eq(self.questions.iter().map(|prompt| &prompt.prompt_id))
        {
            self.questions = open.cloned().collect();
            self.asked += 1;
        }
    }

    /// What is only shown of a node.
    fn apply_live(&mut self, at: usize, envelope: &Envelope) {
        let row = &mut self.rows[at];
        match &envelope.event {
            Event::TaskStart { .. } => {
                row.output.clear();
                row.agent = None;
            }
            Event::TaskComplete { result, .. } => row.denied.extend(denied(result)),
            Event::TaskInterrupted { .. } => row.interrupted += 1,
            Event::ExecOutput { text, .. } => row.append_output(text),
            Event::AgentStart { run_id, provider, model, multi_turn, .. } => {
                row.agent = Some(Box::new(AgentView::new(provider, model.as_deref(), *multi_turn)));
                self.by_run.insert(run_id.clone(), at);
            }
            _ => {}
        }
    }

    /// What an agent does.
    fn apply_agent(&mut self, event: &Event, now: Timestamp) {
        let run = match event {
            Event::AgentUsage { run_id, .. }
            | Event::AgentText { run_id, .. }
            | Event::AgentThinking { run_id, .. }
            | Event::AgentRetract { run_id }
            | Event::AgentTurn { run_id, .. }
            | Event::AgentToolStart { run_id, .. }
            | Event::AgentToolComplete { run_id, .. }
            | Event::AgentComplete { run_id, .. } => run_id,
            // The fold of the run has what the console shows of these.
            Event::HarnessStart { .. }
            | Event::HarnessComplete { .. }
            | Event::PhaseStart { .. }
            | Event::PhaseComplete { .. }
            | Event::PhaseFailed { .. }
            | Event::TaskStart { .. }
            | Event::TaskComplete { .. }
            | Event::TaskFailed { .. }
            | Event::TaskSkipped { .. }
            | Event::TaskReused { .. }
            | Event::TaskAgent { .. }
            | Event::TaskInterrupted { .. }
            | Event::TaskCancelled { .. }
            | Event::EdgeFired { .. }
            | Event::EdgeSkipped { .. }
            | Event::LoopIterate { .. }
            | Event::AgentStart { .. }
            | Event::AgentSteer { .. }
            | Event::AgentSession { .. }
            | Event::AgentWarning { .. }
            | Event::ExecOutput { .. }
            | Event::SessionMessage { .. }
            | Event::SessionPrompt(_)
            | Event::SessionReply { .. }
            | Event::SessionClose { .. }
            | Event::SessionAbort { .. }
            | Event::SessionPause { .. }
            | Event::SessionRejected { .. }
            | Event::FlowPaused { .. }
            | Event::FlowResumed { .. }
            | Event::FlowWaiting { .. }
            | Event::FlowEnding { .. }
            | Event::BudgetSpent { .. }
            | Event::BudgetExceeded { .. }
            | Event::BudgetCarried { .. }
            | Event::LimitWait { .. }
            | Event::ChannelRegistered { .. }
            | Event::ChannelStarted { .. }
            | Event::ChannelStopped { .. }
            | Event::ChannelUnregistered { .. }
            | Event::ChannelFailed { .. }
            | Event::Log { .. }
            | Event::FrameItems { .. }
            | Event::FrameStart { .. }
            | Event::FrameEnding { .. }
            | Event::FrameComplete { .. }
            | Event::FrameFailed { .. }
            | Event::FrameCancelled { .. }
            | Event::Unknown(_) => return,
        };
        let Some(row) = self.by_run.get(run).map(|at| &mut self.rows[*at]) else { return };
        if let Event::AgentUsage { usage, cost_usd, .. } = event {
            row.spent.add(usage.total(), *cost_usd);
        }
        if let Some(agent) = &mut row.agent {
            agent.apply(event, now);
        }
    }
}

impl Row {
    /// Keeps the last line with letters in it of what its program writes.
    fn append_output(&mut self, text: &str) {
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

/// The longest line of a program that is stored, in bytes; more than a terminal is wide.
const LINE: usize = 1024;

/// The tool calls that an agent was denied, from its output.
pub(super) fn denied(result: &Value) -> impl Iterator<Item = String> {
    let denials = result.get("permissionDenials").and_then(Value::as_array).into_iter().flatten();
    denials.filter_map(|denial| {
        Some(call(denial.get("toolName")?.as_str()?, denial.get("toolInput").unwrap_or(&Value::Null)))
    })
}

/// The longest value of a condition that is shown, in characters.
const LONGEST: usize = 80;

fn short(text: &str) -> String {
    match text.char_indices().nth(LONGEST) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_owned(),
    }
}

/// The path without the pass at its end.
pub(crate) fn label(path: &NodePath) -> &str {
    let text = path.as_str();
    if path.pass() > 1 { text.rsplit_once('#').map_or(text, |(base, _)| base) } else { text }
}
