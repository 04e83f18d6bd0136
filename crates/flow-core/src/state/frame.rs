//! One frame of a run: the nodes and edges of a body, with their states. What happens between the nodes of one frame
//! happens here; the flow itself is the first frame.

mod facts;
mod set;
mod table;

use std::{cell::LazyCell, collections::BTreeSet, sync::Arc};

use inspan_protocol::{AgentError, EdgeStatus, NodeId, NodePath, NodeStatus, Spending, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{
    Ending,
    node::{EdgeState, NodeState},
};
use crate::{
    graph::{Body, BodyIx, EdgeIx, EdgeOn, FrameIx, FramesKind, Graph, Join, NodeIx, TaskRef},
    ids::IndexVec,
};
pub(crate) use facts::Full;
pub(crate) use set::{FrameEnd, FrameSet, FramesStep};
pub(crate) use table::FrameTable;

/// The status of one frame.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct FrameState {
    pub(crate) id: FrameIx,
    pub(crate) body: BodyIx,
    /// The node that runs it, and which of its frames it is; the flow itself has none.
    pub(crate) owner: Option<TaskRef>,
    pub(crate) index: u32,
    /// What the paths of its nodes begin with: `scan[4]/`.
    pub(crate) prefix: String,
    pub(crate) nodes: IndexVec<NodeIx, NodeState>,
    pub(crate) edges: IndexVec<EdgeIx, EdgeState>,
    #[serde(with = "optional")]
    pub(crate) outputs: IndexVec<NodeIx, Option<Arc<Value>>>,
    pub(crate) started_at: Timestamp,
    /// When its time is up.
    pub(crate) deadline: Option<Timestamp>,
    /// Attempts at work in it and in the frames within it, and how many of them take a place for work.
    pub(crate) running: u32,
    pub(crate) slots: u32,
    /// Nodes in it and in the frames within it that wait for a usage limit.
    #[serde(default)]
    pub(crate) limited: u32,
    /// Since when it waits for nothing else.
    pub(crate) limited_since: Option<Timestamp>,
    /// The most attempts that a node in it, or further in, has had when it ran before, and has had in all.
    pub(crate) attempts_before: u32,
    pub(crate) most_attempts: u32,
    /// Why it must end before its time: the first cause counts. Of the flow, see `Facts::ending`.
    pub(crate) ending: Option<Ending>,
    /// The event by which it does.
    pub(crate) ended_by: Option<u64>,
    /// The first failure that nothing handled.
    pub(crate) failure: Option<AgentError>,
    /// What it gives, if a `control.end` says so.
    pub(crate) outputs_at_end: Option<Arc<Value>>,
    /// What its agents have spent, those of the frames within it included.
    pub(crate) spent: Spending,
    /// Whether `budget:exceeded` was emitted for it since the session was last resumed.
    #[serde(default)]
    pub(crate) budget_reported: bool,
    /// The input, if the body is a flow by itself.
    pub(crate) input: Option<Arc<Value>>,
    /// The names that its templates see beside the nodes: the item, `frame`, `previous`.
    pub(crate) locals: Arc<Value>,
}

/// What the paths of the nodes of a frame begin with.
pub(crate) fn frame_prefix(owner: &NodePath, kind: &FramesKind, index: u32) -> String {
    match kind {
        FramesKind::Subflow { .. } | FramesKind::Pack => format!("{owner}/"),
        _ => format!("{owner}[{index}]/"),
    }
}

impl FrameState {
    pub(super) fn new(graph: &Graph, id: FrameIx, body: BodyIx) -> Self {
        let nodes = &graph.body(body).nodes;
        let state = |node: &crate::graph::Node| NodeState {
            pass: 1,
            unresolved: node.incoming.len() as u32,
            ..NodeState::default()
        };
        Self {
            id,
            body,
            nodes: nodes.iter().map(state).collect(),
            edges: graph.body(body).edges.iter().map(|_| EdgeState::default()).collect(),
            outputs: nodes.iter().map(|_| None).collect(),
            locals: Arc::new(json!({ "frame": { "pass": 1 } })),
            ..Self::default()
        }
    }

    /// A node of this frame.
    pub(crate) fn task(&self, node: NodeIx) -> TaskRef {
        TaskRef { frame: self.id, node }
    }

    /// All nodes of this frame.
    pub(crate) fn tasks(&self) -> impl DoubleEndedIterator<Item = (TaskRef, &NodeState)> {
        self.nodes.entries().map(|(ix, node)| (self.task(ix), node))
    }

    /// How many of its own nodes wait for a usage limit.
    pub(super) fn waiting(&self) -> u32 {
        self.nodes.iter().filter(|node| node.status == NodeStatus::Waiting).count() as u32
    }

    /// Whether all that is left in it waits for usage limits: nothing works, and nobody is asked.
    pub(super) fn is_limited(&self) -> bool {
        self.limited > 0 && self.running == 0
    }

    /// The path of a node's next attempt or pass.
    pub(crate) fn path(&self, body: &Body, ix: NodeIx) -> NodePath {
        NodePath::in_frame(&self.prefix, &body.node(ix).id, self.nodes[ix].pass)
    }

    /// Resolves an edge; the nodes about which something can be decided by that are put into `touched`.
    pub(super) fn resolve(
        &mut self,
        body: &Body,
        edge: EdgeIx,
        status: EdgeStatus,
        seq: u64,
        touched: &mut Vec<TaskRef>,
    ) {
        let (from, to) = (body.edge(edge).from, body.edge(edge).to);
        let source = &self.nodes[from];
        let (tainted, pass) = (source.taints(), source.pass);
        // What waited for this loop comes after what is due already.
        let cycle = body.edge(edge).cycle.as_ref();
        let held = cycle.into_iter().flat_map(|cycle| &cycle.releases).copied();
        let held: Vec<NodeIx> = held.filter(|ix| *ix != from && !self.settles(body, *ix)).collect();
        let state = &mut self.edges[edge];
        let before = std::mem::replace(&mut state.status, status);
        state.pass = pass;
        touched.extend([self.task(from), self.task(to)]);
        if cycle.is_some() {
            held.iter().for_each(|ix| self.nodes[*ix].settles = seq);
            touched.extend(held.into_iter().map(|ix| self.task(ix)));
            return;
        }
        if before != EdgeStatus::Pending {
            return self.reopen(body, to, status);
        }
        let node = &mut self.nodes[to];
        node.unresolved = node.unresolved.saturating_sub(1);
        node.fired += u32::from(status == EdgeStatus::Fired);
        node.tainted |= tainted && status == EdgeStatus::Skipped && body.edge(edge).on == EdgeOn::Success;
        let first = body.node(to).join == Join::Any && status == EdgeStatus::Fired && node.fired == 1;
        let begins = node.unresolved == 0 || first;
        if begins && node.has_not_begun() {
            self.clear(&body.node(to).loop_nodes);
        }
    }

    /// Whether a node has ended and some edge of it can be resolved now.
    pub(crate) fn settles(&self, body: &Body, ix: NodeIx) -> bool {
        let node = body.node(ix);
        if !self.nodes[ix].has_ended() {
            return false;
        }
        let is_pending = |edge: &EdgeIx| self.edges[*edge].status == EdgeStatus::Pending;
        let left = |edge: &EdgeIx| self.edges[*edge].status == EdgeStatus::Skipped;
        node.loops.iter().any(is_pending)
            || node
                .outgoing
                .iter()
                .any(|edge| self.is_open(body, *edge) && body.edge(*edge).leaves.iter().all(left))
    }

    /// Whether an edge is to be resolved: not yet, or only in an earlier pass of its source. The latter is so in
    /// logs of older versions alone, which resolved the edges out of a loop in its first pass.
    pub(crate) fn is_open(&self, body: &Body, edge: EdgeIx) -> bool {
        let state = self.edges[edge];
        state.status == EdgeStatus::Pending || state.pass < self.nodes[body.edge(edge).from].pass
    }

    /// Whether a predecessor of a node in this frame was really run in this session.
    pub(crate) fn follows_work(&self, body: &Body, ix: NodeIx) -> bool {
        let ran = |from: NodeIx| self.nodes[from].is_work(body.node(from).kind);
        self.nodes[ix].follows_work || self.follows(body, ix).any(ran)
    }

    /// The predecessors that a node follows. What a merge of any did not wait for does not count, and edges that were skipped
    /// only if none fired.
    pub(crate) fn follows(&self, body: &Body, ix: NodeIx) -> impl Iterator<Item = NodeIx> {
        let only_fired = body.node(ix).join == Join::Any && self.nodes[ix].fired > 0;
        let counts = move |edge: &EdgeIx| match self.edges[*edge].status {
            EdgeStatus::Fired => true,
            EdgeStatus::Skipped => !only_fired,
            _ => false,
        };
        let edges = body.node(ix).incoming.iter().copied().filter(counts);
        edges.map(|edge| body.edge(edge).from)
    }

    /// An older version skipped this node in the first pass of a loop that it follows.
    fn reopen(&mut self, body: &Body, ix: NodeIx, status: EdgeStatus) {
        let node = &self.nodes[ix];
        match node.status {
            NodeStatus::Skipped if status == EdgeStatus::Fired => self.begin_pass(body, ix, false),
            NodeStatus::Pending if node.attempt == 0 => self.count_edges(body, ix),
            _ => {}
        }
    }

    /// A loop that starts again sees nothing of its earlier runs.
    fn clear(&mut self, nodes: &[NodeIx]) {
        for ix in nodes {
            let node = &self.nodes[*ix];
            if node.has_not_begun() {
                self.outputs[*ix] = None;
            }
        }
    }

    /// Sends the nodes of a loop back, one pass further.
    pub(super) fn iterate(
        &mut self,
        body: &Body,
        edge: EdgeIx,
        iteration: u32,
        named: &[NodeId],
        touched: &mut Vec<TaskRef>,
    ) {
        let Some(cycle) = &body.edge(edge).cycle else { return };
        if iteration <= self.edges[edge].iterations {
            return;
        }
        let from = body.edge(edge).from;
        let source = &self.nodes[from];
        let follows_work = source.follows_work || source.is_work(body.node(from).kind);
        let named: Vec<NodeIx> = named.iter().filter_map(|id| body.find(id.as_str())).collect();
        let nodes = if named.is_empty() { &cycle.direct } else { &named };
        let mut inside = vec![false; body.nodes.len()];
        nodes.iter().for_each(|ix| inside[ix.0 as usize] = true);
        for &ix in nodes {
            for &incoming in &body.node(ix).incoming {
                if inside[body.edge(incoming).from.0 as usize] {
                    self.edges[incoming].status = EdgeStatus::Pending;
                }
            }
            for &inner in &body.node(ix).loops {
                self.edges[inner].status = EdgeStatus::Pending;
            }
        }
        for inner in &cycle.inner {
            self.edges[*inner].iterations = 0;
        }
        self.edges[edge].iterations = iteration;
        for &ix in nodes {
            let node = &mut self.nodes[ix];
            if !named.is_empty() && node.has_not_begun() {
                // It has this pass before it still.
                node.follows_work |= follows_work;
                node.sent_back = false;
                self.count_edges(body, ix);
            } else {
                self.begin_pass(body, ix, follows_work);
            }
        }
        let (from, to) = (body.edge(edge).from, body.edge(edge).to);
        self.nodes[to].sent_back = true;
        touched.extend(nodes.iter().copied().chain([from, to]).map(|ix| self.task(ix)));
    }

    /// Resets a node to its state before it ran, with the next pass; its edges do not change.
    fn begin_pass(&mut self, body: &Body, ix: NodeIx, follows_work: bool) {
        let state = &mut self.nodes[ix];
        let mut more = state.more.take();
        if let Some(more) = &mut more {
            (more.asked, more.reply, more.resume, more.named) = (None, None, None, false);
            more.waiting.clear();
            more.taken.clear();
        }
        *state = NodeState {
            pass: state.pass + 1,
            attempts: state.attempts,
            conversation: state.conversation.take(),
            failed_passes: state.failed_passes + u32::from(state.status == NodeStatus::Failed),
            follows_work,
            more,
            ..NodeState::default()
        };
        self.count_edges(body, ix);
    }

    pub(super) fn count_edges(&mut self, body: &Body, ix: NodeIx) {
        let (mut unresolved, mut fired, mut tainted) = (0, 0, false);
        for &incoming in &body.node(ix).incoming {
            let edge = body.edge(incoming);
            match self.edges[incoming].status {
                EdgeStatus::Fired => fired += 1,
                EdgeStatus::Skipped => {
                    tainted |= self.nodes[edge.from].taints() && edge.on == EdgeOn::Success
                }
                _ => unresolved += 1,
            }
        }
        let node = &mut self.nodes[ix];
        (node.unresolved, node.fired, node.tainted) = (unresolved, fired, tainted);
    }

    /// The nodes that decide whether the failure of a node is handled: the edges for it have fired, and none has begun.
    pub(super) fn undecided<'a>(
        &'a self,
        body: &'a Body,
        failed: NodeIx,
    ) -> impl Iterator<Item = NodeIx> + 'a {
        let is_open = self.is_undecided(failed);
        let edges = body.edges_on(failed, EdgeOn::Failure).filter(move |_| is_open);
        let fired = edges.filter(|edge| self.edges[*edge].status == EdgeStatus::Fired);
        fired.map(|edge| body.edge(edge).to).filter(|to| self.nodes[*to].has_not_begun())
    }

    /// Whether a node has failed, and no node that handles that has begun.
    fn is_undecided(&self, ix: NodeIx) -> bool {
        self.nodes[ix].status == NodeStatus::Failed && !self.nodes[ix].handled
    }

    /// A failure that would keep a node from running if nothing handles it, and a node that decides that. One that waits for
    /// this node itself decides nothing before it. Failures that are known to be handled are left out.
    pub(crate) fn doubt_before(
        &self,
        body: &Body,
        ix: NodeIx,
        is_known: impl Fn(NodeIx) -> bool,
    ) -> Option<(NodeIx, NodeIx)> {
        let node = &self.nodes[ix];
        let is_skipped = |edge: &EdgeIx| self.edges[*edge].status == EdgeStatus::Skipped;
        let is_before_all = (body.node(ix).join == Join::Any && node.fired > 0)
            || !body.node(ix).incoming.iter().any(is_skipped);
        if !node.has_not_begun() || is_before_all {
            return None;
        }
        let (mut seen, mut next) = (BTreeSet::from([ix]), vec![ix]);
        let late = LazyCell::new(|| self.waiting_for(body, ix));
        while let Some(at) = next.pop() {
            for edge in body.node(at).incoming.iter().map(|edge| (*edge, body.edge(*edge))) {
                let from = edge.1.from;
                let is_success = edge.1.on == EdgeOn::Success;
                if !is_success || self.edges[edge.0].status != EdgeStatus::Skipped || !seen.insert(from) {
                    continue;
                }
                let decides = self.undecided(body, from).find(|by| !late.contains(by));
                if let Some(by) = decides.filter(|_| !is_known(from)) {
                    return Some((from, by));
                }
                if self.nodes[from].status == NodeStatus::Skipped {
                    next.push(from);
                }
            }
        }
        None
    }

    /// The nodes that wait for a node: over edges, for loops to end, or for it to decide whether a failure is handled.
    pub(crate) fn waiting_for(&self, body: &Body, early: NodeIx) -> BTreeSet<NodeIx> {
        let to = |edge: &EdgeIx| body.edge(*edge).to;
        let (mut found, mut failures, mut next) = (BTreeSet::new(), BTreeSet::new(), vec![early]);
        while let Some(at) = next.pop() {
            if !found.insert(at) {
                continue;
            }
            next.extend(body.node(at).outgoing.iter().map(to));
            for left in &body.loops {
                let edge = body.edge(*left);
                let Some(cycle) = edge.cycle.as_ref().filter(|cycle| cycle.quiet.contains(&at)) else {
                    continue;
                };
                let held = cycle.releases.iter().flat_map(|source| &body.node(*source).outgoing);
                let held = held.filter(|edge| body.edge(**edge).leaves.contains(left));
                next.extend(held.chain(&body.node(edge.from).outgoing).map(to));
            }
            let decides = self.nodes[at].has_not_begun();
            let led = self.failures_led(body, at).filter(|ix| decides && self.is_undecided(*ix));
            for failed in led.filter(|ix| failures.insert(*ix)) {
                next.extend(body.edges_on(failed, EdgeOn::Success).map(|edge| to(&edge)));
            }
        }
        found
    }

    /// The nodes whose failures have led to a node.
    fn failures_led<'a>(&'a self, body: &'a Body, ix: NodeIx) -> impl Iterator<Item = NodeIx> + 'a {
        let edges = body.node(ix).incoming.iter().copied();
        let fired = edges.filter(|edge| self.edges[*edge].status == EdgeStatus::Fired);
        fired.map(|edge| body.edge(edge)).filter(|edge| edge.on == EdgeOn::Failure).map(|edge| edge.from)
    }

    /// Whether an edge for a failure has led to a node that can begin, so that whether it does counts for others.
    pub(crate) fn handles(&self, body: &Body, ix: NodeIx) -> bool {
        self.nodes[ix].has_not_begun() && self.failures_led(body, ix).next().is_some()
    }

    /// The events of the unhandled failures that keep a node from running, oldest first.
    pub(crate) fn failures_before(&self, body: &Body, ix: NodeIx) -> Vec<u64> {
        let (mut seen, mut next) = (BTreeSet::from([ix]), vec![ix]);
        let mut found = BTreeSet::new();
        while let Some(ix) = next.pop() {
            for &edge in &body.node(ix).incoming {
                let from = body.edge(edge).from;
                let source = &self.nodes[from];
                let is_skipped = self.edges[edge].status == EdgeStatus::Skipped;
                if !is_skipped || !source.taints() || !seen.insert(from) {
                    continue;
                }
                match source.status {
                    NodeStatus::Failed => drop(found.insert(source.failed_seq)),
                    _ => next.push(from),
                }
            }
        }
        found.into_iter().filter(|seq| *seq > 0).collect()
    }
}

/// An output may be `null`, which JSON cannot tell from an absent one: each is a list of at most one.
mod optional {
    use std::sync::Arc;

    use serde::{Deserialize, Deserializer, Serializer};
    use serde_json::Value;

    use crate::ids::{IndexVec, NodeIx};

    type Outputs = IndexVec<NodeIx, Option<Arc<Value>>>;

    pub(super) fn serialize<S: Serializer>(outputs: &Outputs, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(outputs.iter().map(Option::as_slice))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Outputs, D::Error> {
        let lists = Vec::<Vec<Arc<Value>>>::deserialize(deserializer)?;
        Ok(lists.into_iter().map(|list| list.into_iter().next()).collect())
    }
}
