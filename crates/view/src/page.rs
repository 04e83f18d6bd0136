//! What the page shows of a session: its state at any event, the patch that leads from one state to a later one, and
//! the frames of a node. All are made from one fold, the same that the console and `show` have.

mod frames;
mod node;
mod patch;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    path::PathBuf,
    sync::Arc,
};

use inspan_flow_core::{BodyIx, EdgeIx, EdgeOn, Graph, SessionFacts, SessionRecord};
use inspan_protocol::{Envelope, Event, NodePath, NodeStatus, Prompt, PromptKind, Redactor};
use inspan_store::{Liveness, SessionEntry};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value, json};

pub use frames::{FramePage, FrameSelect, ShownFrame};
pub use node::{FrameKind, PageAgent, PageFrames, PageNode};
pub use patch::{FrameNodes, PagePatch};

use crate::{
    Commands, FrameRow, NodeRow, Permission, SessionView,
    entry::{self, DisplayStatus},
    label, look,
    spent::SpendingTotal,
};

/// What is known of a session beside its events.
#[derive(Clone, Debug)]
pub struct PageSession {
    /// What was stored when it began.
    pub record: Arc<SessionRecord>,
    /// Its list entry. What it says about the events is not used: the state at an event is a fold of those before.
    pub entry: SessionEntry,
    /// The folder for what its nodes leave, if there is one.
    pub artifacts: Option<PathBuf>,
    /// How commands are written.
    pub commands: Commands,
}

/// The state of a session at an event.
#[derive(Clone, Debug, Default, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PageState {
    /// The newest event that it contains.
    pub seq: u64,
    /// All that is about the session as a whole: `session`, `file`, `input`, `prompts`, `totals`, `next` and more.
    #[serde(flatten)]
    pub head: Map<String, Value>,
    /// How often each edge fired and did not, of those that ever did either; by the places of the nodes.
    pub edges: Vec<PageEdge>,
    /// The nodes of the flow by their paths, and those of frames that were asked for.
    pub nodes: BTreeMap<String, PageNode>,
}

/// How often an edge fired, over all frames and passes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
pub struct PageEdge {
    /// The place of the node that it leaves.
    pub from: String,
    /// The place of the node that it enters.
    pub to: String,
    /// After which end of the node that it leaves it fires: two edges between the same nodes differ in it.
    pub on: EdgeOn,
    /// How often it fired.
    pub fired: u32,
    /// How often it did not.
    pub skipped: u32,
}

/// The events that only say what an agent writes, mostly more than half of a log. A fold does not
/// need those of the runs that have ended; for the others, all events since
/// [`SessionView::open_runs_since`] are then [applied again](PageFold::apply_again).
pub const LIVE_TEXT: &[&str] = &["agent:text", "agent:thinking"];

/// A session as its events make it, for the page.
#[derive(Clone, Debug)]
pub struct PageFold {
    view: SessionView,
    /// What the store's list says about these events.
    digest: SessionFacts,
    /// What the places of the nodes of each body begin with.
    places: Arc<HashMap<BodyIx, String>>,
    /// Takes the secrets out of items.
    redactor: Option<Redactor>,
}

impl PageFold {
    /// A session before its first stored event.
    pub fn new(record: &SessionRecord, graph: &Arc<Graph>) -> Self {
        let view = SessionView::of(record.run(graph)).with_all_frames().tracked();
        let mut places = HashMap::new();
        add_places(graph, BodyIx::default(), String::new(), &mut places);
        Self { view, digest: SessionFacts::default(), places: Arc::new(places), redactor: None }
    }

    /// Without the secrets in items, which the log has as they were given. The name of an item is cut, so it is too late to look
    /// for them in what is shown.
    #[must_use]
    pub fn redacting(self, redactor: Redactor) -> Self {
        Self { redactor: Some(redactor), ..self }
    }

    /// Takes the next event of the log.
    pub fn apply(&mut self, envelope: &Envelope) {
        self.digest.apply(envelope);
        let mut clean = None;
        if let (Some(redactor), Event::FrameItems { .. }) = (&self.redactor, &envelope.event) {
            let clean: &mut Envelope = clean.insert(envelope.clone());
            if let Event::FrameItems { items, .. } = &mut clean.event {
                *items = Arc::new(redactor.value(Value::clone(items)));
            }
        }
        self.view.apply(clean.as_ref().unwrap_or(envelope));
    }

    /// Takes an event once more: what the agent of a run does that has not ended. See [`LIVE_TEXT`].
    pub fn apply_again(&mut self, envelope: &Envelope) {
        self.view.apply_again(envelope);
    }

    /// The newest event.
    pub fn seq(&self) -> u64 {
        self.digest.last_seq
    }

    /// The fold that it is made of.
    pub fn view(&self) -> &SessionView {
        &self.view
    }

    /// What the flow gave, once it has ended.
    pub fn outputs(&self) -> Option<&Value> {
        self.view.run().state().outputs()
    }

    /// How long the session took in milliseconds; of one that has not ended, up to its newest event.
    pub fn duration_ms(&self, entry: &SessionEntry) -> Option<u64> {
        let facts = self.view.run().state();
        if facts.outcome().is_some() {
            return Some(facts.duration_ms());
        }
        entry.digest.took_ms()
    }

    /// What was spent in all.
    pub(crate) fn spent(&self, entry: &SessionEntry) -> SpendingTotal {
        let mut spent = self.view.spent();
        if entry.has_cut_turns() {
            spent.lose_price();
        }
        spent
    }

    /// The list entry as it was at the newest event of this fold. A process ran the session while events followed.
    pub fn entry(&self, session: &PageSession) -> SessionEntry {
        let mut entry = session.entry.clone();
        if self.digest.last_seq < entry.digest.last_seq {
            (entry.liveness, entry.unanswered, entry.continued_by) = (Liveness::Alive, 0, None);
        }
        entry.digest = self.digest.clone();
        entry
    }

    /// The whole state. `open` are the paths of frames, such as `each[3]`, whose nodes are shown too.
    pub fn state(&self, session: &PageSession, open: &BTreeSet<String>) -> PageState {
        let entry = self.entry(session);
        let mut nodes = BTreeMap::new();
        self.add_nodes(&self.view.rows, "", DisplayStatus::of(&entry), &mut nodes);
        for frame in open {
            nodes.extend(self.frame_nodes(session, frame));
        }
        PageState { seq: self.seq(), head: self.head(session, &entry), edges: self.edges(), nodes }
    }

    /// The nodes of one frame by their paths; none if there is no such frame.
    pub fn frame_nodes(&self, session: &PageSession, frame: &str) -> BTreeMap<String, PageNode> {
        let mut nodes = BTreeMap::new();
        if let Some(found) = self.view.frame_at(&NodePath::new(frame)) {
            let status = DisplayStatus::of(&self.entry(session));
            self.add_nodes(&found.rows, &format!("{frame}/"), status, &mut nodes);
        }
        nodes
    }

    fn add_nodes(
        &self,
        rows: &[NodeRow],
        prefix: &str,
        status: DisplayStatus,
        nodes: &mut BTreeMap<String, PageNode>,
    ) {
        for row in rows {
            let path = format!("{prefix}{}", row.label);
            nodes.insert(path.clone(), PageNode::of(row, path, status));
        }
    }

    fn edges(&self) -> Vec<PageEdge> {
        let edges = self.view.all_edge_counts().filter_map(|edge| self.edge(edge));
        let mut edges: Vec<PageEdge> = edges.collect();
        edges.sort_unstable();
        edges
    }

    fn edge(&self, (body, edge): (BodyIx, EdgeIx)) -> Option<PageEdge> {
        let counts = self.view.edge_counts(body, edge);
        let (prefix, body) = (self.places.get(&body)?, self.view.run().graph().body(body));
        let place = |node| format!("{prefix}{}", body.node(node).id);
        let edge = body.edge(edge);
        let (from, to) = (place(edge.from), place(edge.to));
        Some(PageEdge { from, to, on: edge.on, fired: counts.fired, skipped: counts.skipped })
    }

    /// All that is about the session as a whole.
    fn head(&self, session: &PageSession, entry: &SessionEntry) -> Map<String, Value> {
        let (facts, record) = (self.view.run().state(), &session.record);
        let asked = entry::open_questions(entry).filter(|_| !DisplayStatus::of(entry).has_ended());
        let asked = asked.map(|prompt| question(entry, prompt, &session.commands, false));
        let next = session.commands.next(entry).into_iter();
        let next = next.map(|(command, what)| json!({ "command": command, "what": what }));
        let known = [
            ("at", json!(entry.digest.updated_at)),
            ("session", entry::json(entry)),
            ("file", json!(record.flow.file)),
            ("input", json!(record.input)),
            ("artifacts", json!(session.artifacts)),
            ("durationMs", json!(self.duration_ms(entry))),
            ("parent", json!(record.parent)),
            ("error", json!(facts.failure())),
            ("ending", json!(self.view.ending.as_ref().filter(|_| facts.outcome().is_none()))),
            ("totals", self.totals(entry)),
            ("prompts", asked.collect()),
            ("next", next.collect()),
        ];
        // An output may be null.
        let output = self.outputs().map(|output| ("output", output.clone()));
        let known = known.into_iter().filter(|(_, value)| !value.is_null()).chain(output);
        known.map(|(key, value)| (key.to_owned(), value)).collect()
    }

    fn totals(&self, entry: &SessionEntry) -> Value {
        let status = DisplayStatus::of(entry);
        let mut counts: BTreeMap<&str, u32> = BTreeMap::new();
        for row in &self.view.rows {
            *counts.entry(look::word(shown(row, status))).or_default() += 1;
        }
        let spent = self.spent(entry);
        let mut totals = json!({ "nodes": counts, "tokens": spent.tokens });
        match (spent.known_usd(), spent.known_part()) {
            (Some(usd), _) => totals["costUsd"] = json!(usd),
            (None, Some(part)) => totals["knownUsd"] = json!(part),
            (None, None) => {}
        }
        totals
    }
}

/// The status of a node as people see it, in a session with this status.
pub fn shown(row: &NodeRow, session: DisplayStatus) -> NodeStatus {
    let asks = row.status == NodeStatus::Waiting && !session.has_lost_process();
    idle_status(if asks { row.status } else { row.idle_status }, session)
}

/// The status of a frame as people see it: one in which a node waits for a person waits for that person.
pub fn shown_frame(frame: &FrameRow, session: DisplayStatus) -> NodeStatus {
    match idle_status(frame.status, session) {
        NodeStatus::Running | NodeStatus::Interrupted if frame.asks(session) => NodeStatus::Waiting,
        status => status,
    }
}

/// A status in a session with that status, in which nothing may run.
pub fn idle_status(status: NodeStatus, session: DisplayStatus) -> NodeStatus {
    match (status, session) {
        (NodeStatus::Running | NodeStatus::Paused, _) if session.has_lost_process() => {
            NodeStatus::Interrupted
        }
        (NodeStatus::Running, DisplayStatus::Paused) => NodeStatus::Paused,
        // All that has begun waits, with what runs it in its frames.
        (NodeStatus::Running, DisplayStatus::Waiting) => NodeStatus::Waiting,
        (status, _) => status,
    }
}

/// Whether a node asks a person itself, and so waits also where no process runs the session: by the open questions, and the
/// path of the node with or without its pass.
pub fn asks_itself(open: &[Prompt], node: &str) -> bool {
    let is_of_node = |path: &NodePath| path.as_str() == node || label(path) == node;
    open.iter()
        .filter(|prompt| prompt.kind == PromptKind::Input)
        .any(|prompt| prompt.task.as_ref().is_some_and(is_of_node))
}

/// An open question with what it takes to answer it, or to resume the session once its time is up.
pub fn question(entry: &SessionEntry, prompt: &Prompt, commands: &Commands, is_late: bool) -> Value {
    let mut value = json!(prompt);
    value["sessionId"] = json!(entry.session);
    value["flow"] = json!(entry.flow);
    value["state"] = json!(DisplayStatus::of(entry).word());
    value["commands"] = json!(commands.for_question(entry, prompt, is_late));
    if is_late {
        value["isExpired"] = Value::Bool(true);
    }
    if let Some(permission) = Permission::of(prompt.kind, prompt.detail.as_ref(), &prompt.prompt) {
        value["permission"] = permission.json();
    }
    value
}

/// A body that several nodes run, or that runs itself, has the place of the first.
fn add_places(graph: &Graph, body: BodyIx, prefix: String, places: &mut HashMap<BodyIx, String>) {
    if places.contains_key(&body) {
        return;
    }
    places.insert(body, prefix.clone());
    for node in &graph.body(body).nodes {
        if let Some(frames) = &node.frames {
            add_places(graph, frames.body, format!("{prefix}{}/", node.id), places);
        }
    }
}
