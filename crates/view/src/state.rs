//! What is shown of a session: the state of its run, which `inspan_flow` folds, and beside it only what the
//! run does not need to know: what agents do right now, the last line of a program, what was denied, how frames ended.
//! It has no clock and writes nothing.

mod apply;
mod asking;

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    sync::Arc,
};

use inspan_flow_core::{Body, BodyIx, Edge, EdgeIx, FrameIx, Frames, FramesKind, Graph, Node, Run, TaskRef};
use inspan_protocol::{
    AgentError, DeniedCalls, EdgeStatus, Envelope, Event, NodePath, NodeStatus, Outcome, Prompt, PromptId,
    RunId, SessionId, Timestamp, UnpricedTurns,
};
use serde::Serialize;
use serde_json::{Map, Value};

use crate::{
    agent::AgentActivity,
    format::cut_after,
    row::{EdgeCounts, EndedFrames, FrameRow, NodeRow, label, open_frames, tasks, visit},
    safe::clean,
    spent::SpendingTotal,
};

pub(crate) use self::asking::Asking;

/// The widest column for names and types; what is longer pushes what follows it.
pub const COLUMN: usize = 28;

/// A session as its events show it so far.
#[derive(Clone, Debug)]
pub struct SessionView {
    /// The flow's name.
    pub flow: String,
    /// The session, once it has begun.
    pub session: Option<SessionId>,
    /// How the session ended, or why its process left it.
    pub ended: Option<FinalStatus>,
    /// One row for each node, in the order of the flow.
    pub rows: Vec<NodeRow>,
    /// How often the open questions have changed, or were asked again.
    pub asked: u64,
    /// Why the flow failed.
    pub error: Option<AgentError>,
    /// Budgets that were exceeded, each once, as it was reported last.
    pub budgets: Vec<ExceededBudget>,
    /// Whether a stop was requested.
    pub course: Course,
    /// Set once the flow is to end before all of it has run.
    pub ending: Option<EarlyEnd>,
    /// Events that were not seen because the console was too slow.
    pub missed: u64,
    /// The tool calls that the newest event says were denied.
    pub newly_denied: Vec<String>,
    /// Columns for the paths of nodes.
    pub path_width: usize,
    /// Columns for the names of all nodes where those in frames are indented.
    pub tree_width: usize,
    asking: Asking,
    ended_frames: EndedFrames,
    /// How often each edge fired over all frames and passes; counted where all frames stay.
    edges: HashMap<(BodyIx, EdgeIx), EdgeCounts>,
    last_seq: u64,
    run: Run,
    /// The node of each agent run that has not ended.
    by_run: HashMap<RunId, AgentRunStart>,
    unpriced_turns: UnpricedTurns,
    denied_calls: DeniedCalls,
    /// What has changed, if that is tracked.
    touched: Option<Touched>,
}

/// An agent run that has not ended.
#[derive(Clone, Debug)]
struct AgentRunStart {
    path: NodePath,
    /// The event that began it.
    since: u64,
}

/// A budget that was exceeded.
#[derive(Clone, Debug)]
pub struct ExceededBudget {
    /// The node, or its frame, whose budget it is; the flow's without one.
    pub place: Option<String>,
    /// Which limit to raise, if a limit was reached.
    pub to_raise: Option<String>,
    /// Its size, and what was spent.
    pub limit: String,
}

impl ExceededBudget {
    /// The budget that an event reports.
    pub fn of(envelope: &Envelope) -> Option<Self> {
        let Event::BudgetExceeded { limit, budget, frame } = &envelope.event else { return None };
        let of_frame = |node: &str| match frame {
            Some(frame) => format!("{node}[{frame}]"),
            None => node.to_owned(),
        };
        let place = envelope.context.task.as_ref().map(|path| of_frame(label(path)));
        Some(Self { place, to_raise: budget.clone(), limit: limit.clone() })
    }

    /// Puts it in the place of what was reported of the same budget before: it is reported again whenever the session is resumed.
    pub fn report_in(self, budgets: &mut Vec<Self>) {
        let is_same = |known: &Self| {
            known.place == self.place && known.owners().any(|known| self.owners().any(|own| own == known))
        };
        budgets.retain(|known| !is_same(known));
        budgets.push(self);
    }

    /// Whose budgets are used up, as `--budget` names them: what is before each limit. The flow's has no name.
    fn owners(&self) -> impl Iterator<Item = Option<&str>> {
        let limits = self.to_raise.as_deref().unwrap_or_default().split(',');
        limits.map(|limit| limit.rsplit_once('.').map(|(owner, _)| owner))
    }

    /// The sentence about it.
    pub fn text(&self) -> String {
        let place = self.place.as_deref().unwrap_or("the flow");
        format!("{place} exceeded its budget: {}", self.limit)
    }
}

/// Whether the session continues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Course {
    /// It continues.
    #[default]
    Running,
    /// A stop was requested, and the session has not ended yet.
    Stopping,
}

/// Why the flow ends before all of it has run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct EarlyEnd {
    /// How it will end.
    pub outcome: Outcome,
    /// Why, if it is a failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<AgentError>,
}

/// How the session ended.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FinalStatus {
    /// How it ended.
    pub outcome: Outcome,
    /// How long it took, in milliseconds.
    pub duration_ms: u64,
    /// What its events do not say about its end.
    pub cause: Cause,
}

/// Why the session ended, as far as its events do not say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cause {
    /// The flow ended by itself.
    #[default]
    Flow,
    /// A question that only a person could have answered.
    Unattended,
}

impl Default for SessionView {
    /// A session of a flow that cannot be compiled.
    fn default() -> Self {
        Self::new(&Arc::default())
    }
}

impl SessionView {
    /// A session that begins with this flow.
    pub fn new(graph: &Arc<Graph>) -> Self {
        Self::of(Run::new(Arc::clone(graph), &SessionId::from(""), Map::new(), None))
    }

    /// A session whose run is in this state.
    pub fn of(run: Run) -> Self {
        let graph = run.graph();
        let rows = NodeRow::of_body(graph.flow());
        let label_width = rows.iter().map(|row| row.label.len().min(COLUMN)).max().unwrap_or(0);
        let path_width = label_width.max(path_width(graph, graph.flow(), 0, 0).min(COLUMN));
        let mut state = Self {
            flow: graph.name.clone(),
            session: None,
            ended: None,
            rows,
            asked: 0,
            error: None,
            budgets: Vec::new(),
            course: Course::default(),
            ending: None,
            missed: 0,
            path_width,
            tree_width: label_width.max(inner_width(graph, graph.flow(), 0)),
            asking: Asking::of(&run),
            ended_frames: EndedFrames::default(),
            edges: HashMap::new(),
            last_seq: 0,
            run,
            by_run: HashMap::new(),
            unpriced_turns: UnpricedTurns::default(),
            newly_denied: Vec::new(),
            denied_calls: DeniedCalls::default(),
            touched: None,
        };
        let (run, asking) = (&state.run, &state.asking);
        for (row, task) in state.rows.iter_mut().zip(tasks(run.graph().flow(), FrameIx::FLOW)) {
            row.copy(run, asking, task);
            row.frames = open_frames(run, asking, task);
        }
        state
    }

    /// From now on frames that have ended stay.
    pub fn with_all_frames(mut self) -> Self {
        self.ended_frames = EndedFrames::All;
        let state = self.run.state();
        let frames = std::iter::once(FrameIx::FLOW)
            .chain(state.tasks().flat_map(|(task, _)| state.open_frames(task).map(|(_, frame)| frame)));
        for frame in frames {
            for (at, edge) in (0..).zip(state.edges_of(frame)) {
                let counts = self.edges.entry((state.body_of(frame), EdgeIx(at))).or_default();
                counts.fired += edge.iterations.max(u32::from(edge.status == EdgeStatus::Fired));
                counts.skipped += u32::from(edge.status == EdgeStatus::Skipped);
            }
        }
        self
    }

    /// From now on it is noted what changes.
    pub fn tracked(mut self) -> Self {
        self.touched = Some(Touched::default());
        self
    }

    /// What has changed since this was last asked; nothing where it is not noted.
    pub fn take_touched(&mut self) -> Touched {
        self.touched.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// The edges that fired or did not, over all frames and passes.
    pub fn all_edge_counts(&self) -> impl Iterator<Item = (BodyIx, EdgeIx)> {
        self.edges.iter().filter(|(_, counts)| counts.fired + counts.skipped > 0).map(|(edge, _)| *edge)
    }

    /// How often an edge fired, over all frames and passes.
    pub fn edge_counts(&self, body: BodyIx, edge: EdgeIx) -> EdgeCounts {
        self.edges.get(&(body, edge)).copied().unwrap_or_default()
    }

    fn count_edge(&mut self, envelope: &Envelope) {
        let (from, to, fired) = match &envelope.event {
            Event::EdgeFired { from, to } | Event::LoopIterate { from, to, .. } => (from, to, 1),
            Event::EdgeSkipped { from, to } => (from, to, 0),
            _ => return,
        };
        let (graph, state, path) = (self.run.graph(), self.run.state(), envelope.context.task.as_ref());
        let ix = state.body_of(state.frame_of(graph, path));
        let edge = match envelope.event {
            Event::LoopIterate { .. } => {
                let body = graph.body(ix);
                let ends = body.find(from.as_str()).zip(body.find(to.as_str()));
                ends.and_then(|(from, to)| {
                    body.node(from).loops.iter().copied().find(|edge| body.edge(*edge).to == to)
                })
            }
            _ => state.open_edge(graph, path, from.as_str(), to.as_str()),
        };
        if let Some(edge) = edge {
            let counts = self.edges.entry((ix, edge)).or_default();
            counts.fired += fired;
            counts.skipped += 1 - fired;
            if let Some(touched) = &mut self.touched {
                touched.edges.insert((ix, edge));
            }
        }
    }

    /// The event that began the oldest agent run that has not ended.
    pub fn open_runs_since(&self) -> Option<u64> {
        self.by_run.values().map(|run| run.since).min()
    }

    /// The state of the run.
    pub fn run(&self) -> &Run {
        &self.run
    }

    /// What was spent in all.
    pub fn spent(&self) -> SpendingTotal {
        self.rows.iter().fold(SpendingTotal::default(), |sum, row| sum.plus(&row.spent))
    }

    /// Notes that the process that ran the session is gone: what the turns took that it was at is unknown.
    pub fn lose_process(&mut self) {
        let graph = self.run.graph();
        for open in self.by_run.values() {
            visit(&mut self.rows, graph, &open.path, &mut |rows, at, _| rows[at].spent.lose_price());
        }
    }

    /// The open questions, the oldest first.
    pub fn questions(&self) -> impl Iterator<Item = &Prompt> {
        self.run.state().prompts().iter().filter(|prompt| self.asking.is_shown(prompt))
    }

    /// An open question.
    pub fn question(&self, id: &PromptId) -> Option<&Prompt> {
        self.questions().find(|question| question.prompt_id == *id)
    }

    /// Whether a failure of the flow is that of one of its nodes, where it is shown.
    pub fn is_of_node(&self, error: &AgentError) -> bool {
        let failed = self.rows.iter().filter(|row| row.status == NodeStatus::Failed);
        failed.filter_map(|row| row.error.as_ref()).any(|of_node| of_node.message == error.message)
    }

    /// Notes that the session ended because a question needed a person.
    pub fn set_unattended(&mut self) {
        if let Some(ended) = &mut self.ended {
            ended.cause = Cause::Unattended;
        }
    }

    /// Events of earlier processes were applied: a gap between them and the next event does not mean that
    /// events were missed.
    pub fn end_history(&mut self) {
        (self.missed, self.last_seq) = (0, 0);
    }

    /// Notes that the session is paused or waits.
    pub fn set_paused(&mut self, outcome: Outcome, duration_ms: u64) {
        self.ended = Some(FinalStatus { outcome, duration_ms, cause: Cause::default() });
    }

    /// Takes over the final status of each node, in case events were missed.
    pub fn set_final<'a>(&mut self, nodes: impl Iterator<Item = (&'a str, NodeStatus, Option<AgentError>)>) {
        if self.missed == 0 {
            return;
        }
        for (id, status, error) in nodes {
            visit(&mut self.rows, self.run.graph(), &NodePath::new(id), &mut |rows, at, is_last| {
                if is_last {
                    (rows[at].status, rows[at].error) = (status, error.clone().map(Box::new));
                }
            });
        }
    }

    /// The loop edge that an event names.
    pub fn loop_between(&self, envelope: &Envelope, from: &str, to: &str) -> Option<&Edge> {
        let (_, body) = self.frame_of(envelope.context.task.as_ref());
        let (from, to) = (body.find(from)?, body.find(to)?);
        let loops = body.node(from).loops.iter().map(|edge| body.edge(*edge));
        loops.into_iter().find(|edge| edge.to == to)
    }

    /// Why a loop edge fired: its condition, and what of the output of its source the condition reads.
    pub fn reason(&self, envelope: &Envelope, from: &str, to: &str) -> Option<String> {
        let when = self.loop_between(envelope, from, to)?.when.as_ref()?.to_string();
        let (frame, body) = self.frame_of(envelope.context.task.as_ref());
        let result = self.run.state().output(TaskRef { frame, node: body.find(from)? });
        let read = result.and_then(Value::as_object).into_iter().flatten().filter_map(|(key, value)| {
            let path = format!("{from}.{key}");
            let value = value.as_str().map_or_else(|| value.to_string(), |text| format!("{:?}", clean(text)));
            when.contains(&path).then(|| format!("{path} = {}", cut_after(&value, LONGEST)))
        });
        let read: Vec<String> = read.collect();
        let read = if read.is_empty() { String::new() } else { format!(" ({})", read.join(", ")) };
        Some(format!("{}{read}", clean(&when)))
    }

    /// The open frame in which a node is, and its body.
    fn frame_of(&self, path: Option<&NodePath>) -> (FrameIx, &Body) {
        let (graph, state) = (self.run.graph(), self.run.state());
        let frame = state.frame_of(graph, path);
        (frame, graph.body(state.body_of(frame)))
    }

    /// Whether an agent waits for a message.
    pub fn listens(&self) -> bool {
        fn any(rows: &[NodeRow]) -> bool {
            let listens = |row: &NodeRow| {
                row.listens_until().is_some() || row.frames.values().any(|frame| any(&frame.rows))
            };
            rows.iter().any(listens)
        }
        any(&self.rows)
    }

    /// The row of a place in the run; the pass at its end does not count.
    pub fn row(&self, path: &NodePath) -> Option<&NodeRow> {
        let (graph, mut rows, mut parts) = (self.run.graph(), &self.rows, path.parts().peekable());
        let mut body = graph.flow();
        loop {
            let part = parts.next()?;
            let ix = body.find(part.node)?;
            let row = rows.get(ix.0 as usize)?;
            if parts.peek().is_none() {
                return Some(row);
            }
            rows = &row.frames.get(&(part.pass, part.index.unwrap_or_default()))?.rows;
            body = graph.body(body.node(ix).frames.as_ref()?.body);
        }
    }

    /// A frame by what the paths in it begin with: `each#2[3]`, or `sub` for the only frame of a subflow.
    pub fn frame_at(&self, path: &NodePath) -> Option<&FrameRow> {
        let last = path.parts().last()?;
        let frame = self.row(path)?.frames.get(&(last.pass, last.index.unwrap_or_default()))?;
        // Only where a node has one frame is the frame not numbered.
        (last.index.is_some() == frame.name.is_some()).then_some(frame)
    }

    /// A frame by its path, `each[3]`, with its whole path; if that names no pass, the frame of the newest.
    pub fn frame(&self, path: &NodePath) -> Option<(&FrameRow, NodePath)> {
        let (last, row) = (path.parts().last()?, self.row(path)?);
        let (around, end) = path
            .as_str()
            .rsplit_once('/')
            .map_or(("", path.as_str()), |(_, end)| (&path.as_str()[..path.as_str().len() - end.len()], end));
        let pass = if end.contains('#') { last.pass } else { row.pass };
        let index = last.index?;
        let written = if pass > 1 { format!("#{pass}") } else { String::new() };
        let whole = NodePath::new(&format!("{around}{}{written}[{index}]", last.node));
        Some((row.frames.get(&(pass, index))?, whole))
    }
}

impl NodeRow {
    /// Until when its agent waits for a message, if it does.
    pub fn listens_until(&self) -> Option<Timestamp> {
        match self.agent.as_deref().map(|agent| &agent.doing) {
            Some(AgentActivity::Listening { until }) if self.status == NodeStatus::Running => Some(*until),
            _ => None,
        }
    }
}

/// Columns that the deepest names take: each frame and each node in it is indented one step more.
fn inner_width(graph: &Graph, body: &Body, depth: usize) -> usize {
    let inner = |node: &Node| {
        let frames = node.frames.as_deref().filter(|_| depth < DEEPEST);
        let step = |kind: &FramesKind| {
            if matches!(kind, FramesKind::Subflow { .. } | FramesKind::Pack) { STEP } else { 2 * STEP }
        };
        let within = frames
            .map_or(0, |frames| step(&frames.kind) + inner_width(graph, graph.body(frames.body), depth + 1));
        node.id.as_str().len().min(COLUMN).max(within)
    };
    body.nodes.iter().map(inner).max().unwrap_or(0)
}

/// Columns that the longest path takes while indices have one digit.
fn path_width(graph: &Graph, body: &Body, prefix: usize, depth: usize) -> usize {
    let path = |node: &Node| {
        let own = prefix + node.id.as_str().len();
        let frames = node.frames.as_deref().filter(|_| depth < DEEPEST);
        let inner =
            |frames: &Frames| path_width(graph, graph.body(frames.body), own + "[0]/".len(), depth + 1);
        frames.map_or(own, inner).max(own)
    };
    body.nodes.iter().map(path).max().unwrap_or(0)
}

/// Columns by which the content of a node is indented.
const STEP: usize = 3;

/// Bodies within bodies for which columns are laid out.
const DEEPEST: usize = 3;

/// The longest value of a condition that is shown, in characters.
const LONGEST: usize = 80;

/// Which parts of a session have changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Touched {
    /// Every node may have.
    pub all: bool,
    /// The paths of nodes, without the passes at their ends.
    pub nodes: BTreeSet<String>,
    /// Edges that fired or did not.
    pub edges: HashSet<(BodyIx, EdgeIx)>,
}

impl Touched {
    fn add(&mut self, path: &str) {
        if !self.all && !self.nodes.contains(path) {
            self.nodes.insert(path.to_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_that_is_reported_again_takes_the_place_of_its_former_report() {
        let report = |place: Option<&str>, to_raise: &str, limit: &str| ExceededBudget {
            place: place.map(str::to_owned),
            to_raise: Some(to_raise.to_owned()),
            limit: limit.to_owned(),
        };
        let mut budgets = Vec::new();
        for (place, to_raise, limit) in [
            (Some("a"), "a.usd", "first"),
            (Some("a"), "b.usd", "of b"),
            (None, "tokens", "of the flow"),
            (Some("a"), "a.usd,a.tokens", "second"),
            (None, "usd,tokens", "of the flow, second"),
            (Some("c"), "c/.usd,c.usd", "of c and its frames"),
            (Some("c"), "c.usd", "of c"),
        ] {
            report(place, to_raise, limit).report_in(&mut budgets);
        }
        let limits: Vec<&str> = budgets.iter().map(|budget| budget.limit.as_str()).collect();
        assert_eq!(limits, ["of b", "second", "of the flow, second", "of c"]);
    }
}
