//! One node as it is shown, and the frames that it runs, each with the nodes in it.

use std::{collections::BTreeMap, sync::Arc};

use inspan_flow_core::{Body, FrameIx, FramesKind, FramesProgress, Graph, NodeState, Run, TaskRef};
use inspan_protocol::{AgentError, Event, LogLevel, NodePath, NodeStatus, PromptKind, SkipReason, Timestamp};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::{
    DisplayStatus,
    agent::{AgentView, call},
    format::cut_after,
    page::shown,
    safe::clean,
    spent::SpendingTotal,
    state::Asking,
};

/// One node. What is not live is copied from the state of the run after each event of the node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeRow {
    /// The node's id.
    pub label: String,
    /// The node's type.
    pub node_type: Arc<str>,
    /// Its status; of a running node that has asked a person, waiting.
    pub status: NodeStatus,
    /// Where it is while no process runs the session.
    pub idle_status: NodeStatus,
    /// Which pass of its loop, counting from 1.
    pub pass: u32,
    /// The attempt of this pass, counting from 1.
    pub attempt: u32,
    /// Attempts over all passes.
    pub attempts: u32,
    /// When this pass began.
    pub started: Option<Timestamp>,
    /// How long the newest attempt took, in milliseconds.
    pub duration_ms: Option<u64>,
    /// How long the attempts before it took, over all passes.
    pub earlier_ms: u64,
    /// The newest failure of this pass.
    pub error: Option<Box<AgentError>>,
    /// Why it was skipped.
    pub skipped: Option<SkipReason>,
    /// Attempts of this pass that have failed, as far as they count against its retries.
    pub failures: u32,
    /// When it is retried, and how many attempts it may have.
    pub retry: Option<(Timestamp, u32)>,
    /// Attempts whose process was lost.
    pub interrupted: u32,
    /// Earlier passes that failed, each with its number.
    pub failed_passes: Vec<(u32, Box<AgentError>)>,
    /// Tool calls that its agents were denied.
    pub denied: Vec<String>,
    /// What went wrong in its work and was tolerated, each once.
    pub warnings: Vec<String>,
    /// The last line that its program wrote.
    pub output: String,
    /// How far it is with its frames, or was when it ended.
    pub progress: Option<FramesProgress>,
    /// Its frames by pass and index: those that are open, and those that ended and are still shown.
    pub frames: BTreeMap<(u32, u32), FrameRow>,
    /// The agent that works on it, where there are several.
    pub by: Option<String>,
    /// Its newest agent run.
    pub agent: Option<Box<AgentView>>,
    /// Tools that the agent runs before it called.
    pub earlier_calls: u32,
    /// Over all passes, attempts and frames.
    pub spent: SpendingTotal,
}

/// One frame of a node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FrameRow {
    /// Set while it is open.
    pub open: Option<FrameIx>,
    /// Running, complete, failed or cancelled.
    pub status: NodeStatus,
    /// The item of a foreach in short, or the pass of a loop.
    pub name: Option<String>,
    /// When it began.
    pub started: Option<Timestamp>,
    /// How long it took, in milliseconds.
    pub duration_ms: Option<u64>,
    /// Why it failed.
    pub error: Option<Box<AgentError>>,
    /// Its nodes, in the author's order.
    pub rows: Vec<NodeRow>,
}

/// How often an edge fired, and how often it did not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct EdgeCounts {
    /// How often it fired.
    pub fired: u32,
    /// How often it did not.
    pub skipped: u32,
}

/// Which frames stay once they have ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EndedFrames {
    /// The first that failed, and those with such frames within; of the others only what they cost, were denied and were
    /// warned of.
    #[default]
    Failed,
    /// All, of every pass.
    All,
}

/// Failed frames of one node that stay.
const FAILED: usize = 50;

/// Warnings of one node that are kept.
const WARNINGS: usize = 20;

/// The longest short form of an item, in characters.
const ITEM: usize = 32;

impl NodeRow {
    /// The rows of a body before anything has run.
    pub(crate) fn of_body(body: &Body) -> Vec<Self> {
        let row = |node: &inspan_flow_core::Node| Self {
            label: node.id.to_string(),
            node_type: Arc::clone(&node.node_type),
            pass: 1,
            ..Self::default()
        };
        body.nodes.iter().map(row).collect()
    }

    /// Copies what the run knows about a node.
    pub(crate) fn copy(&mut self, run: &Run, asking: &Asking, task: TaskRef) {
        let (graph, state) = (run.graph(), run.state());
        let node: &NodeState = state.node(task);
        if node.pass > self.pass {
            // The run forgets the failures of the earlier pass, and the console shows them.
            let failed = self.error.take_if(|_| self.status == NodeStatus::Failed);
            self.failed_passes.extend(failed.map(|error| (self.pass, error)));
            self.progress = None;
        }
        if node.attempts > self.attempts || node.duration_ms.is_none() {
            self.earlier_ms += self.duration_ms.unwrap_or_default();
        }
        let may_ask = matches!(node.status, NodeStatus::Running | NodeStatus::Pending);
        let asks = may_ask.then(|| asking.kind(|| state.path(graph, task))).flatten();
        // It never began again.
        let has_ended = state.outcome().is_some();
        let is_cancelled = node.status == NodeStatus::Pending && node.is_interrupted() && has_ended;
        self.status = match node.status {
            _ if asks.is_some() => NodeStatus::Waiting,
            _ if is_cancelled => NodeStatus::Cancelled,
            status => status,
        };
        self.idle_status = match node.status {
            // An agent that asks for a permission is gone with its process.
            _ if asks == Some(PromptKind::Input) => NodeStatus::Waiting,
            _ if is_cancelled => NodeStatus::Cancelled,
            NodeStatus::Pending if node.is_in_doubt() => NodeStatus::Waiting,
            NodeStatus::Pending if node.is_interrupted() => NodeStatus::Paused,
            status => status,
        };
        (self.pass, self.attempt, self.attempts) = (node.pass, node.attempt, node.attempts);
        (self.started, self.duration_ms, self.skipped) = (node.started_at, node.duration_ms, node.skipped);
        self.error.clone_from(&node.error);
        let known = |progress: &FramesProgress| {
            progress.total.is_some() || progress.open + progress.succeeded + progress.failed > 0
        };
        match (state.progress_of(task), &mut self.progress) {
            (Some(progress), _) => self.progress = Some(progress).filter(known),
            (None, Some(progress)) => progress.open = 0,
            (None, None) => {}
        }
        let retry = &state.spec(graph, task).policy.retry;
        self.failures = node.counted_failures(retry);
        self.retry = node.retry_at.map(|due| (due, retry.max_attempts));
    }

    /// How long all its attempts took, as its tokens and its cost are those of all; nothing while one is at work.
    pub fn worked_ms(&self) -> Option<u64> {
        Some(self.duration_ms? + self.earlier_ms)
    }

    /// How many tools its agents called, in all attempts.
    pub fn tool_calls(&self) -> u32 {
        self.earlier_calls + self.agent.as_ref().map_or(0, |agent| agent.tool_calls)
    }

    /// An attempt begins, without an agent so far.
    pub(crate) fn leave_agent(&mut self) {
        self.earlier_calls = self.tool_calls();
        self.agent = None;
    }

    /// Whether something happens with it that is to be seen first.
    pub fn is_lively(&self) -> bool {
        use NodeStatus::{Failed, Paused, Running, Waiting};
        matches!(self.status, Running | Waiting | Failed | Paused) || self.is_retried()
    }

    /// Whether it waits for its next attempt.
    fn is_retried(&self) -> bool {
        self.status == NodeStatus::Pending && self.error.is_some()
    }

    /// A frame of it has ended: of one that is no longer shown, what was denied in it stays, and its warnings.
    pub(crate) fn end_frame(&mut self, key: (u32, u32), ended: EndedFrames) {
        if ended == EndedFrames::All {
            return;
        }
        let kept = self.frames.values().filter(|frame| frame.open.is_none()).count();
        let Some(frame) = self.frames.get(&key) else { return };
        if !frame.has_failure() || kept > FAILED {
            self.forget_frames(|frame| *frame == key);
        }
    }

    /// Forgets frames, but not what was denied in them, nor what they were warned of.
    pub(crate) fn forget_frames(&mut self, is_one: impl Fn(&(u32, u32)) -> bool) {
        let forgotten: Vec<_> = self.frames.extract_if(.., |key, _| is_one(key)).collect();
        forgotten.into_iter().for_each(|(_, frame)| self.keep_notes(frame));
    }

    fn keep_notes(&mut self, frame: FrameRow) {
        for row in frame.rows {
            self.denied.extend(row.denied);
            row.warnings.into_iter().for_each(|warning| self.warn(warning));
            row.frames.into_values().for_each(|frame| self.keep_notes(frame));
        }
    }

    /// Keeps a warning, of those that are new and up to a number of them.
    pub(crate) fn warn(&mut self, warning: String) {
        if self.warnings.len() < WARNINGS && !self.warnings.contains(&warning) {
            self.warnings.push(warning);
        }
    }

    /// Keeps the last line with letters in it of what its program writes.
    pub(crate) fn append_output(&mut self, text: &str) {
        let mut lines = text.trim_end().rsplit('\n');
        let last = lines.next().unwrap_or_default();
        if text.contains('\n') || self.output.len() > LINE {
            self.output.clear();
        }
        self.output.push_str(last);
        if self.output.len() > LINE {
            let from = self.output.ceil_char_boundary(self.output.len() - LINE);
            self.output.drain(..from);
        }
    }
}

impl FrameRow {
    /// A frame that is open, with what has happened in it.
    pub(crate) fn new(run: &Run, asking: &Asking, owner: TaskRef, (index, frame): (u32, FrameIx)) -> Self {
        let (graph, state) = (run.graph(), run.state());
        let body = graph.body(state.body_of(frame));
        let mut rows = NodeRow::of_body(body);
        for (row, task) in rows.iter_mut().zip(tasks(body, frame)) {
            row.copy(run, asking, task);
            row.frames = open_frames(run, asking, task);
        }
        Self {
            open: Some(frame),
            status: NodeStatus::Running,
            name: match state.spec(graph, owner).frames.as_deref().map(|frames| &frames.kind) {
                Some(FramesKind::Loop { .. }) => Some(format!("pass {}", index + 1)),
                _ => state.item(owner, index).map(short),
            },
            rows,
            ..Self::default()
        }
    }

    /// Whether it failed, or a frame within it that is still shown.
    fn has_failure(&self) -> bool {
        let within = |row: &NodeRow| row.frames.values().any(Self::has_failure);
        self.status == NodeStatus::Failed || self.rows.iter().any(within)
    }

    /// How many of its nodes have ended.
    pub fn done(&self) -> usize {
        let has_ended = |row: &&NodeRow| {
            use NodeStatus::{Cancelled, Complete, Failed, Reused, Skipped};
            matches!(row.status, Complete | Failed | Reused | Skipped | Cancelled)
        };
        self.rows.iter().filter(has_ended).count()
    }

    /// What was spent in it.
    pub fn spent(&self) -> SpendingTotal {
        self.rows.iter().fold(SpendingTotal::default(), |sum, row| sum.plus(&row.spent))
    }

    /// Whether a node in it waits for a person, in a session with this status.
    pub fn asks(&self, session: DisplayStatus) -> bool {
        let within = |row: &NodeRow| row.frames.values().any(|frame| frame.asks(session));
        self.rows.iter().any(|row| shown(row, session) == NodeStatus::Waiting || within(row))
    }
}

/// What the paths of the nodes in a frame begin with; `owner` is the path of the node that runs it.
pub fn inside(owner: &str, (pass, index): (u32, u32), frame: &FrameRow) -> String {
    let pass = if pass > 1 { format!("#{pass}") } else { String::new() };
    let index = if frame.name.is_some() { format!("[{index}]") } else { String::new() };
    format!("{owner}{pass}{index}/")
}

/// The nodes of a body in one frame.
pub(crate) fn tasks(body: &Body, frame: FrameIx) -> impl Iterator<Item = TaskRef> {
    (0..).zip(&body.nodes).map(move |(at, _)| TaskRef { frame, node: inspan_flow_core::NodeIx(at) })
}

/// The open frames of a node.
pub(crate) fn open_frames(run: &Run, asking: &Asking, task: TaskRef) -> BTreeMap<(u32, u32), FrameRow> {
    let pass = run.state().node(task).pass;
    let frame = |(index, frame)| ((pass, index), FrameRow::new(run, asking, task, (index, frame)));
    run.state().open_frames(task).map(frame).collect()
}

/// Calls `see` for each part of a path, from the flow inwards: with the rows of the frame, the place of the node among
/// them, and whether it is the path's last. Whether there is a row for the whole path.
pub(crate) fn visit(
    rows: &mut [NodeRow],
    graph: &Graph,
    path: &NodePath,
    see: &mut dyn FnMut(&mut [NodeRow], usize, bool),
) -> bool {
    let (mut rows, mut body) = (rows, graph.flow());
    let mut parts = path.parts().peekable();
    while let Some(part) = parts.next() {
        let Some(ix) = body.find(part.node).filter(|ix| (ix.0 as usize) < rows.len()) else { return false };
        let (at, is_last) = (ix.0 as usize, parts.peek().is_none());
        see(rows, at, is_last);
        let key = (part.pass, part.index.unwrap_or_default());
        match (&body.node(ix).frames, rows[at].frames.get_mut(&key)) {
            _ if is_last => return true,
            (Some(inner), Some(frame)) => (rows, body) = (&mut frame.rows, graph.body(inner.body)),
            _ => return false,
        }
    }
    false
}

/// An item in few letters: what names it, if it is an object with a name, else its values if they are few.
fn short(item: &Value) -> String {
    const NAMING: [&str; 6] = ["id", "name", "key", "title", "path", "file"];
    let plain = |value: &Value| match value {
        Value::String(text) => Some(clean(text)),
        Value::Object(_) | Value::Array(_) => None,
        other => Some(other.to_string()),
    };
    let fields = |fields: &Map<String, Value>| {
        let field = |(key, value): (&String, &Value)| Some(format!("{}={}", clean(key), plain(value)?));
        fields.iter().map(field).collect::<Option<Vec<_>>>().map(|fields| fields.join(" "))
    };
    let named = NAMING.iter().find_map(|key| item.get(key)).and_then(plain);
    let text = named.or_else(|| plain(item)).or_else(|| item.as_object().and_then(fields));
    let text = text.unwrap_or_else(|| clean(&item.to_string()));
    cut_after(&text, ITEM)
}

/// The longest line of a program that is stored, in bytes; more than a terminal is wide.
const LINE: usize = 1024;

/// What an event warns of, if it does.
pub fn warning(event: &Event) -> Option<&str> {
    match event {
        Event::AgentWarning { message, .. }
        | Event::Log { level: LogLevel::Warn | LogLevel::Error, message, .. } => Some(message),
        _ => None,
    }
}

/// The names of the events that can warn.
pub const WARNING_EVENTS: [&str; 2] = ["agent:warning", "log"];

/// Tool calls that were denied to an agent, each in one line.
pub(crate) fn denied(denials: &[Value]) -> Vec<String> {
    let line = |denial: &Value| {
        Some(call(denial.get("toolName")?.as_str()?, denial.get("toolInput").unwrap_or(&Value::Null)))
    };
    denials.iter().filter_map(line).collect()
}

/// The path without the pass at its end.
pub fn label(path: &NodePath) -> &str {
    let text = path.as_str();
    if path.pass() > 1 { text.rsplit_once('#').map_or(text, |(base, _)| base) } else { text }
}

/// What the paths of a node's frame begin with: `each[3]/` of `each[3]/fix`, and nothing for a node of the flow.
pub(crate) fn around(path: &NodePath) -> &str {
    path.as_str().rfind('/').map_or("", |end| &path.as_str()[..=end])
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_item_is_named_in_few_letters() {
        let rows = [
            (json!("src/a.rs"), "src/a.rs"),
            (json!("two\n\u{1b}[31mlines"), "two lines"),
            (json!(7), "7"),
            (json!({ "body": "x", "title": "Fix it" }), "Fix it"),
            (json!({ "os": "linux", "version": 2 }), "os=linux version=2"),
            (json!({ "b": 2, "id": { "a": 1 } }), "{\"b\":2,\"id\":{\"a\":1}}"),
            (json!([1, 2]), "[1,2]"),
            (json!("ä".repeat(40)), "ääääääääääääääääääääääääääääääää…"),
        ];
        for (item, expected) in rows {
            assert_eq!(short(&item), expected, "{item}");
        }
    }

    #[test]
    fn what_was_denied_within_frames_is_kept_and_so_is_a_failure_that_was_tolerated() {
        let ended = |status, rows| FrameRow { status, rows, ..FrameRow::default() };
        let agent = |call: &str| NodeRow { denied: vec![call.to_owned()], ..NodeRow::default() };
        // An item of `outer`, whose node runs one item in which an agent was denied a call.
        let item = |inner: NodeStatus, call: &str| {
            let frames = BTreeMap::from([((1, 0), ended(inner, vec![agent(call)]))]);
            ended(NodeStatus::Complete, vec![NodeRow { frames, ..NodeRow::default() }])
        };
        let mut outer = NodeRow::default();
        for index in 0..60 {
            let inner = if index < 55 { NodeStatus::Failed } else { NodeStatus::Complete };
            outer.frames.insert((1, index), item(inner, &format!("Bash {index}")));
            outer.end_frame((1, index), EndedFrames::Failed);
        }
        assert_eq!(outer.frames.len(), FAILED);
        let lost: Vec<String> = (50..60).map(|index| format!("Bash {index}")).collect();
        assert_eq!(outer.denied, lost);
        // A new pass begins.
        outer.forget_frames(|(pass, _)| *pass == 1);
        assert_eq!((outer.frames.len(), outer.denied.len()), (0, 60));
    }

    #[test]
    fn a_path_has_a_frame_around_it_and_a_node_that_runs_the_frame() {
        let rows = ["fix", "fix#2", "each[3]/fix#12", "each#2[3]/sub/fix"].map(NodePath::new);
        let parts = rows.each_ref().map(|path| (label(path), around(path), path.owner()));
        assert_eq!(
            parts,
            [
                ("fix", "", None),
                ("fix", "", None),
                ("each[3]/fix", "each[3]/", Some(NodePath::new("each"))),
                ("each#2[3]/sub/fix", "each#2[3]/sub/", Some(NodePath::new("each#2[3]/sub"))),
            ]
        );
    }
}
