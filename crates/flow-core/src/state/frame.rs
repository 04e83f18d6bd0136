//! One frame of a run: the nodes and edges of a body, with their states. What happens between the nodes of one frame
//! happens here; the flow itself is the first frame.

mod set;
mod table;

use std::{collections::BTreeSet, sync::Arc};

use inspan_protocol::{
    AgentError, EdgeStatus, ErrorCode, Event, FrameSpending, NodeId, NodePath, NodeStatus, Outcome, Spending,
    Timestamp,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{
    Ending, Facts,
    node::{EdgeState, NodeState},
};
use crate::{
    graph::{
        Body, BodyIx, EdgeIx, EdgeOn, FrameIx, Frames, FramesKind, Graph, Join, NodeIx, OnItemError, TaskRef,
    },
    ids::IndexVec,
};
pub(crate) use set::{FrameEnd, FrameSet, FramesStep};
pub(crate) use table::FrameTable;

/// The status of one frame.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
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
    /// The most attempts that a node in it, or further in, has had when it ran before, and has had in all.
    pub(crate) attempts_before: u32,
    pub(crate) most_attempts: u32,
    /// Why it must end before its time: the first cause counts. Of the flow, see `Facts::ending`.
    pub(crate) ending: Option<Ending>,
    /// The event by which it does.
    #[serde(default)]
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
            owner: None,
            index: 0,
            prefix: String::new(),
            nodes: nodes.iter().map(state).collect(),
            edges: graph.body(body).edges.iter().map(|_| EdgeState::default()).collect(),
            outputs: nodes.iter().map(|_| None).collect(),
            started_at: Timestamp::default(),
            deadline: None,
            running: 0,
            slots: 0,
            attempts_before: 0,
            most_attempts: 0,
            ending: None,
            ended_by: None,
            failure: None,
            outputs_at_end: None,
            spent: Spending::default(),
            budget_reported: false,
            input: None,
            locals: Arc::new(json!({ "frame": { "pass": 1 } })),
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
        if begins && node.status == NodeStatus::Pending && node.attempt == 0 {
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
        // What a merge did not wait for is not its predecessor, and neither is what led nowhere if anything else led to it.
        let only_fired = body.node(ix).join == Join::Any && self.nodes[ix].fired > 0;
        let counts = |status: EdgeStatus| match only_fired {
            true => status == EdgeStatus::Fired,
            false => status != EdgeStatus::Pending,
        };
        let ran = |edge: &EdgeIx| {
            let from = body.edge(*edge).from;
            counts(self.edges[*edge].status) && self.nodes[from].is_work(body.node(from).kind)
        };
        self.nodes[ix].follows_work || body.node(ix).incoming.iter().any(ran)
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
            if node.status == NodeStatus::Pending && node.attempt == 0 {
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
            if !named.is_empty() && node.status == NodeStatus::Pending && node.attempt == 0 {
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

impl Facts {
    /// The items of a foreach are known.
    pub(super) fn set_items(
        &mut self,
        task: TaskRef,
        items: &Arc<Value>,
        keys: &[String],
        most: Option<u32>,
    ) {
        let set = self.node_mut(task).frames.get_or_insert_default();
        if set.items.is_none() {
            set.items = Some(items.clone());
            keys.clone_into(&mut set.keys);
        }
        set.max_concurrency = most;
        self.touched.push(task);
    }

    pub(super) fn open_frame(
        &mut self,
        graph: &Graph,
        owner: TaskRef,
        index: u32,
        input: Option<&Arc<Value>>,
        carried: Option<&FrameSpending>,
        at: Timestamp,
    ) {
        let Some(frames) = self.spec(graph, owner).frames.as_deref() else { return };
        let id = self.frames.next();
        let mut frame = FrameState::new(graph, id, frames.body);
        frame.owner = Some(owner);
        frame.index = index;
        let path = self.path(graph, owner);
        frame.prefix = frame_prefix(&path, &frames.kind, index);
        frame.started_at = at;
        frame.deadline = graph.body(frames.body).policy.timeout.map(|timeout| at + timeout);
        frame.input = input.cloned();
        frame.attempts_before = self.frames[owner.frame].attempts_before;
        let parent = self.frames[owner.frame].locals.clone();
        let node = self.node_mut(owner);
        // A pass of a loop depends on what the passes before it did.
        let mut follows_work = node.worked && matches!(frames.kind, FramesKind::Loop { .. });
        let Some(set) = node.frames.as_deref_mut().filter(|set| set.is_left(index)) else { return };
        if let Some(FrameEnd::Again(attempts)) = set.end(index) {
            frame.attempts_before = frame.attempts_before.max(*attempts);
            // Another attempt begins anew: what an earlier session has left was taken over by the first.
            follows_work = true;
        }
        frame.nodes.iter_mut().for_each(|node| node.follows_work = follows_work);
        frame.locals = Arc::new(set.locals(frames, index, &parent));
        for (node, known) in frame.nodes.iter_mut().zip(&set.conversations) {
            node.conversation.clone_from(known);
        }
        set.open.insert(index, id);
        set.skip_begun();
        self.touched.extend(frame.tasks().map(|(task, _)| task));
        self.touched.push(owner);
        if let Some(before) = self.spent_in.remove(&frame.prefix).as_ref().or(carried) {
            frame.carry(graph.body(frames.body), before);
        }
        self.frames.push(frame);
    }

    /// Takes how a frame ends.
    pub(super) fn take_frame_fact(&mut self, graph: &Graph, owner: Option<&NodePath>, event: &Event) {
        match event {
            Event::FrameEnding { index, error, .. } => {
                if let Some(frame) = self.open_frame_of(graph, owner, *index) {
                    self.end_frame_early(frame, error, error.code == ErrorCode::Aborted);
                }
            }
            Event::FrameComplete { index, outputs, ends_loop, .. } => {
                self.close_frame(graph, owner, *index, *ends_loop, |_| FrameEnd::Complete(outputs.clone()));
            }
            Event::FrameFailed { index, error, .. } => {
                let error = Box::new(error.clone());
                self.close_frame(graph, owner, *index, false, |attempts| FrameEnd::Failed(error, attempts));
            }
            Event::FrameCancelled { index, .. } => {
                self.close_frame(graph, owner, *index, false, FrameEnd::Cancelled);
            }
            _ => {}
        }
    }

    /// The open frame of a node with this index.
    pub(crate) fn open_frame_of(
        &self,
        graph: &Graph,
        owner: Option<&NodePath>,
        index: u32,
    ) -> Option<FrameIx> {
        let owner = self.find(graph, owner)?;
        self.node(owner).frames.as_ref()?.open.get(&index).copied()
    }

    fn close_frame(
        &mut self,
        graph: &Graph,
        owner: Option<&NodePath>,
        index: u32,
        ends_loop: bool,
        end: impl FnOnce(u32) -> FrameEnd,
    ) {
        let Some(id) = self.open_frame_of(graph, owner, index) else { return };
        let Some(frame) = self.frames.close(id) else { return };
        let attempts = frame.nodes.iter().map(|node| node.attempt).max().unwrap_or_default();
        let attempts = attempts.max(frame.most_attempts).max(frame.attempts_before);
        self.progress += 1;
        self.touched.extend(frame.tasks().map(|(task, _)| task));
        if let Some(owner) = frame.owner {
            let is_loop = |frames: &Frames| matches!(frames.kind, FramesKind::Loop { .. });
            let is_loop = self.spec(graph, owner).frames.as_deref().is_some_and(is_loop);
            let end = end(attempts);
            self.note_spent(graph, owner, &frame, matches!(end, FrameEnd::Complete(_)));
            if let Some(set) = self.node_mut(owner).frames.as_deref_mut() {
                set.close(index, end);
                set.done = ends_loop;
                if is_loop {
                    set.conversations = frame.nodes.iter().map(|node| node.conversation.clone()).collect();
                }
            }
            self.ending_frames.remove(&id);
            let around = &mut self.frames[owner.frame];
            around.most_attempts = around.most_attempts.max(attempts);
            self.touched.push(owner);
        }
    }

    /// A frame ends before its time, because of a failure or because it is cancelled.
    pub(super) fn end_frame_early(&mut self, frame: FrameIx, error: &AgentError, is_cancelled: bool) {
        if self.frames[frame].ending.is_none() {
            let outcome = if is_cancelled { Outcome::Stopped } else { Outcome::Failed };
            let state = &mut self.frames[frame];
            state.ending = Some(Ending { outcome, error: Some(error.clone()) });
            state.ended_by = Some(self.session.last_seq);
            self.ending_frames.insert(frame);
            self.touch_frame(frame);
        }
    }

    /// A `control.end` ends its frame, or the flow, with success.
    pub(super) fn end_frame_well(&mut self, frame: FrameIx, result: &Arc<Value>) {
        let outputs = result.get("outputs").map(|outputs| Arc::new(outputs.clone()));
        let state = &mut self.frames[frame];
        if frame == FrameIx::FLOW {
            if self.ending.is_none() {
                state.outputs_at_end = outputs;
                self.end_early(Ending { outcome: Outcome::Success, error: None });
            }
        } else if state.ending.is_none() {
            state.outputs_at_end = outputs;
            state.ending = Some(Ending { outcome: Outcome::Success, error: None });
            state.ended_by = Some(self.session.last_seq);
            self.ending_frames.insert(frame);
            self.touch_frame(frame);
        }
    }

    /// What may be decided about the tasks of a frame, and of the frames within it, has changed.
    pub(super) fn touch_frame(&mut self, frame: FrameIx) {
        let within = self.tasks_within(frame);
        self.touched.extend(self.frames[frame].owner.into_iter().chain(within));
    }

    /// The tasks of a frame, and of the frames within it.
    pub(crate) fn tasks_within(&self, frame: FrameIx) -> Vec<TaskRef> {
        let (mut tasks, mut open) = (Vec::new(), vec![frame]);
        while let Some(frame) = open.pop() {
            for (task, node) in self.frames[frame].tasks() {
                tasks.push(task);
                open.extend(node.frames.iter().flat_map(|set| set.open.values()));
            }
        }
        tasks
    }

    /// Lifts the limits of how many frames of a node are open at a time.
    pub(crate) fn open_all_frames(&mut self) {
        let nodes = self.frames.iter_mut().flat_map(|frame| frame.nodes.iter_mut());
        nodes.filter_map(|node| node.frames.as_mut()).for_each(|set| set.max_concurrency = None);
    }

    /// What is to be decided about the frames that a task runs.
    pub(crate) fn frames_step(&self, graph: &Graph, task: TaskRef) -> Option<FramesStep> {
        let node = self.node(task);
        let set = node.frames.as_deref().filter(|_| node.status == NodeStatus::Running)?;
        let all_closed = set.open.is_empty();
        if self.is_ending(task.frame) {
            return all_closed.then_some(FramesStep::Decide);
        }
        let frames = self.spec(graph, task).frames.as_deref()?;
        let FramesKind::Foreach { on_item_error, .. } = &frames.kind else {
            return all_closed.then_some(FramesStep::Decide);
        };
        let Some(total) = set.total() else { return Some(FramesStep::Decide) };
        let breaks_off = set.failed > 0 && *on_item_error != OnItemError::Continue;
        if breaks_off || set.next >= total {
            // The end of those that run is requested once.
            let must_end = |frame: &FrameIx| self.frames[*frame].ending.is_none();
            let tells = *on_item_error == OnItemError::Fail && set.open.values().any(must_end);
            return (all_closed || (breaks_off && tells)).then_some(FramesStep::Decide);
        }
        // An item that fails may still have work to clean up after itself; nothing begins beside that.
        let fails = |frame: &FrameIx| {
            self.frames[*frame].ending.as_ref().is_some_and(|ending| ending.outcome == Outcome::Failed)
        };
        if *on_item_error != OnItemError::Continue && set.open.values().any(fails) {
            return None;
        }
        let works = |frame: &&FrameIx| self.frames[**frame].running == 0 || self.frames[**frame].slots > 0;
        let working = || set.open.values().filter(works).count() as u32;
        set.max_concurrency.is_none_or(|most| working() < most).then_some(FramesStep::Open)
    }

    /// The node around a task that lets no other frame work beside those that do, with how many these are: a frame that
    /// only waited has given up its place.
    pub(crate) fn full_around(&self, task: TaskRef) -> Option<(TaskRef, u32)> {
        self.around(task.frame).filter(|frame| frame.slots == 0).find_map(|frame| {
            let owner = frame.owner?;
            let set = self.node(owner).frames.as_deref()?;
            set.max_concurrency.filter(|most| set.working >= *most).map(|most| (owner, most))
        })
    }

    /// Whether a task may start although its frame is to end: it cleans up. The end of the flow waits for no usage limit.
    pub(crate) fn may_clean_up(&self, graph: &Graph, task: TaskRef) -> bool {
        let node = self.node(task);
        let is_limited = node.status == NodeStatus::Waiting && self.ending.is_some();
        (node.attempt == 0 || node.cleans_up) && !is_limited && self.follows_any_end(graph, task)
    }

    /// Whether an edge that fires in any case has led to a task.
    pub(crate) fn follows_any_end(&self, graph: &Graph, task: TaskRef) -> bool {
        let (frame, body) = (&self.frames[task.frame], self.body(graph, task.frame));
        let fired = |edge: &EdgeIx| {
            body.edge(*edge).on == EdgeOn::Any && frame.edges[*edge].status == EdgeStatus::Fired
        };
        body.node(task.node).incoming.iter().any(fired)
    }

    /// Whether a frame, or one around it, is to end before its time.
    pub(crate) fn is_ending(&self, frame: FrameIx) -> bool {
        self.ending.is_some() || self.around(frame).any(|frame| frame.ending.is_some())
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
