//! How the states of tasks change when an attempt begins or ends and when an edge is resolved.

use std::sync::Arc;

use inspan_protocol::{
    AgentError, EdgeStatus, ErrorCode, Event, LONGEST_WAIT, NodePath, NodeStatus, Outcome, ProviderSessionId,
    SkipReason, Timestamp,
};
use serde_json::{Value, json};

use super::{Conversation, Ending, Facts, idle::CONTINUE};
use crate::graph::{Body, EdgeIx, EdgeOn, FailFast, FrameIx, Graph, NodeIx, Occupies, OnFailure, TaskRef};
use crate::node::NodeKind;

impl Facts {
    /// Takes what becomes of a node, unless it is late or a duplicate.
    pub(super) fn take_task_fact(
        &mut self,
        graph: &Graph,
        path: Option<&NodePath>,
        at: Timestamp,
        event: &Event,
    ) {
        let Some(task) = self.find(graph, path) else { return };
        let is_cut = self.is_cut_for_good(task);
        if is_cut && matches!(event, Event::TaskStart { .. } | Event::TaskReused { .. }) {
            // In logs of earlier versions it begins once more to fail.
            self.interrupt(graph, task, None);
        }
        let fails = is_cut && matches!(event, Event::TaskFailed { .. });
        if !fails && !follows(event, self.node(task).status) {
            return;
        }
        match event {
            Event::TaskCancelled { permission_denials, .. } | Event::LimitWait { permission_denials, .. }
                if !permission_denials.is_empty() =>
            {
                self.node_mut(task).more().denied.extend_from_slice(permission_denials);
            }
            Event::TaskComplete { .. } | Event::TaskFailed { .. } | Event::TaskAgent { .. } => {
                self.node_mut(task).more.iter_mut().for_each(|more| more.denied.clear());
            }
            _ => {}
        }
        match event {
            Event::TaskStart { attempt, cleans_up, since, session_id, messages, .. } => {
                if !messages.is_empty() {
                    // What came in this session came later.
                    self.node_mut(task).more().taken.splice(..0, messages.iter().cloned());
                }
                self.start(graph, task, *attempt, *cleans_up, session_id.as_ref(), at);
                if let Some(since) = since {
                    self.node_mut(task).since = Some(*since);
                }
                self.begin_time(graph, task, at);
            }
            Event::TaskComplete { result, duration_ms, .. } => {
                self.end(graph, task, NodeStatus::Complete, Some(*duration_ms));
                self.give(graph, task, result);
            }
            Event::TaskFailed { error, will_retry, .. } => self.fail(graph, task, error, *will_retry, at),
            Event::TaskAgent { agent, after, error, .. } => {
                self.take_agent(graph, task, agent, after.as_deref(), error.as_ref(), at);
            }
            Event::TaskCancelled { never_began, .. } => {
                self.end(graph, task, NodeStatus::Cancelled, None);
                self.node_mut(task).never_began = *never_began;
                self.clean_up_again(graph, task);
            }
            Event::TaskInterrupted { never_began, stopped, .. } => {
                self.node_mut(task).never_began = *never_began;
                self.lose(graph, task, *stopped);
            }
            Event::TaskSkipped { reason, .. } => self.skip_node(graph, task, *reason),
            Event::TaskReused { from, result, session_id, turn_id, error, .. } => {
                self.note_taken_over(graph, task, from);
                let conversation = session_id.clone().map(|session_id| Conversation {
                    turn_id: turn_id.clone(),
                    // One at least.
                    turns: 1,
                    taken_over: true,
                    ..Conversation::new(session_id)
                });
                self.reuse(graph, task, result, conversation);
                match error {
                    None => self.give(graph, task, result),
                    Some(error) => {
                        self.node_mut(task).status = NodeStatus::Failed;
                        self.note_failure(graph, task, error);
                    }
                }
            }
            Event::LimitWait { until, .. } => self.wait_for_limit(graph, task, *until, at),
            Event::FrameItems { items, keys, max_concurrency, .. } => {
                self.set_items(task, items, keys, *max_concurrency);
            }
            Event::FrameStart { index, input, carried, .. } => {
                self.open_frame(graph, task, *index, input.as_ref(), carried.as_deref(), at);
            }
            _ => {}
        }
    }

    /// `known` is the conversation of the session before in which its agent goes on.
    fn start(
        &mut self,
        graph: &Graph,
        task: TaskRef,
        attempt: u32,
        cleans_up: bool,
        known: Option<&ProviderSessionId>,
        at: Timestamp,
    ) {
        let spec = self.spec(graph, task);
        // Logs of older versions say nothing of it.
        let cleans_up = cleans_up || self.is_ending(task.frame);
        if self.node(task).status == NodeStatus::Waiting {
            self.count_limited(task.frame, -1);
        }
        let node = self.node_mut(task);
        node.status = NodeStatus::Running;
        node.attempt = attempt;
        node.attempts += 1;
        node.started_at = Some(at);
        node.retry_at = None;
        node.error = None;
        node.duration_ms = None;
        node.needs_confirmation = false;
        node.never_began = false;
        node.cleans_up = cleans_up;
        let continues = std::mem::take(&mut node.interrupted);
        if !continues {
            node.since = Some(at);
        }
        if let Some(more) = &mut node.more {
            more.named &= continues;
            more.worked &= more.resume.is_some();
            let resume = more.resume.take();
            let starts_over = resume.is_none() && known.is_none();
            // The message counts as undelivered until a turn has answered it.
            more.taken.extend(resume.filter(|message| message != CONTINUE));
            more.taken.append(&mut more.waiting);
            if starts_over {
                // Messages to it follow its first turn.
                std::mem::swap(&mut more.waiting, &mut more.taken);
            }
            (more.cost_before, more.tokens_before) = (more.spent.cost_usd, more.spent.tokens);
            more.asks = false;
        }
        if let Some(known) = known {
            // It is tried again in that conversation, whenever it fails here.
            let speaker = node.choice.as_ref().map_or(0, |choice| choice.agent);
            node.conversation.get_or_insert_with(|| Conversation::new(known.clone()));
            let more = node.more();
            (more.speaker, more.named, more.worked) = (speaker, true, true);
        }
        self.touched.push(task);
        if spec.kind == NodeKind::Frames {
            let follows_work = self.frames[task.frame].follows_work(self.body(graph, task.frame), task.node);
            let node = self.node_mut(task);
            node.follows_work = follows_work;
            node.frames.get_or_insert_default().begin_again();
        } else {
            self.count_running(task.frame, spec.occupies, 1);
            if self.shares_budget(graph, task) {
                self.reserving.insert(task);
            }
            let owners: Vec<TaskRef> = self.around(task.frame).filter_map(|frame| frame.owner).collect();
            owners.into_iter().for_each(|owner| self.node_mut(owner).worked = true);
        }
        self.settle_failures_before(graph, task);
    }

    /// The time of an attempt begins. Where people are asked or a time is waited for, it does not begin anew because the process
    /// ended that waited.
    fn begin_time(&mut self, graph: &Graph, task: TaskRef, at: Timestamp) {
        let spec = self.spec(graph, task);
        let (limit, waits) = (spec.policy.timeout, spec.occupies == Occupies::Nothing);
        let node = self.node_mut(task);
        let began = node.since.filter(|_| waits).unwrap_or(at);
        node.deadline = limit.map(|limit| began + limit);
    }

    /// Counts an attempt that begins or ends in its frame and in all around it.
    pub(super) fn count_running(&mut self, frame: FrameIx, occupies: Occupies, change: i32) {
        let mut next = Some(frame);
        while let Some(ix) = next {
            let frame = &mut self.frames[ix];
            // A foreach counts the frames that work.
            self.touched.extend(frame.owner);
            frame.running = frame.running.saturating_add_signed(change);
            let (owner, before) = (frame.owner, frame.slots);
            if occupies == Occupies::Slot {
                frame.slots = frame.slots.saturating_add_signed(change);
            }
            let works = i32::from(frame.slots > 0) - i32::from(before > 0);
            if let Some(set) = owner.and_then(|owner| self.node_mut(owner).frames.as_mut()) {
                set.working = set.working.saturating_add_signed(works);
            }
            next = owner.map(|owner| owner.frame);
        }
    }

    /// Attempts that are at work, people and waits included.
    pub(crate) fn running(&self) -> u32 {
        self.frames[FrameIx::FLOW].running
    }

    /// Attempts that take a place for work.
    pub(crate) fn slots(&self) -> u32 {
        self.frames[FrameIx::FLOW].slots
    }

    pub(super) fn end(&mut self, graph: &Graph, task: TaskRef, status: NodeStatus, duration_ms: Option<u64>) {
        let seq = self.session.last_seq;
        self.release(task);
        let node = self.node_mut(task);
        let was_running = std::mem::replace(&mut node.status, status) == NodeStatus::Running;
        node.duration_ms = duration_ms;
        node.deadline = None;
        node.settles = seq;
        if status == NodeStatus::Complete
            && let Some(more) = &mut node.more
        {
            more.taken.clear();
            more.waiting.clear();
        }
        if node.has_ended()
            && let Some(set) = node.frames.take()
        {
            set.open.into_values().for_each(|frame| drop(self.take_frame(graph, frame)));
            if task.frame == FrameIx::FLOW {
                let path = self.path(graph, task);
                ["/", "["].iter().for_each(|next| self.forget_spent_in(&format!("{path}{next}")));
            }
        }
        self.touched.push(task);
        let spec = self.spec(graph, task);
        if was_running && spec.kind != NodeKind::Frames {
            self.count_running(task.frame, spec.occupies, -1);
        }
        // Who was cancelled may go on, and then its question is still open.
        if status != NodeStatus::Cancelled {
            self.progress += 1;
            self.forget_prompts(task);
        }
    }

    fn fail(&mut self, graph: &Graph, task: TaskRef, error: &AgentError, will_retry: bool, at: Timestamp) {
        let duration = self.node(task).started_at.map(|started| at.since(started).as_millis() as u64);
        let status = if will_retry { NodeStatus::Pending } else { NodeStatus::Failed };
        self.end(graph, task, status, duration);
        let retry = &self.spec(graph, task).policy.retry;
        let node = self.node_mut(task);
        node.failures += 1;
        node.failures_in_a_row += 1;
        if will_retry {
            node.retry_at = Some(at + retry.wait(node.failures, error));
            node.go_on_after(error);
        }
        self.note_failure(graph, task, error);
    }

    /// The newest failure of a node, and if it is the last one what follows of it.
    pub(super) fn note_failure(&mut self, graph: &Graph, task: TaskRef, error: &AgentError) {
        let body = self.body(graph, task.frame);
        let spec = self.spec(graph, task);
        let seq = self.session.last_seq;
        let node = self.node_mut(task);
        node.failed_seq = seq;
        node.error = Some(Box::new(error.clone()));
        if node.status != NodeStatus::Failed {
            return;
        }
        let sees_error = body.sees_failure(task.node);
        let handled = spec.policy.on_failure == OnFailure::Continue;
        let marker = (handled || sees_error)
            .then(|| Arc::new(self.with_agents(graph, task, json!({ "failed": true, "error": error }))));
        self.frames[task.frame].outputs[task.node] = marker;
        if handled {
            return;
        }
        self.node_mut(task).tainted = true;
        if !body.handles_failure(task.node) {
            self.fail_frame(graph, task.frame, error);
        }
    }

    fn skip_node(&mut self, graph: &Graph, task: TaskRef, reason: SkipReason) {
        let seq = self.session.last_seq;
        let frame = &mut self.frames[task.frame];
        let follows_work = frame.follows_work(graph.body(frame.body), task.node);
        let node = &mut frame.nodes[task.node];
        node.status = NodeStatus::Skipped;
        node.skipped = Some(reason);
        node.tainted = reason == SkipReason::Failure;
        node.follows_work = follows_work;
        node.settles = seq;
        frame.outputs[task.node] = None;
        self.touched.push(task);
        self.settle_failures_before(graph, task);
    }

    fn reuse(
        &mut self,
        graph: &Graph,
        task: TaskRef,
        result: &Arc<Value>,
        conversation: Option<Conversation>,
    ) {
        let seq = self.session.last_seq;
        let by = result.get("by").and_then(Value::as_str);
        if let (Some(agents), Some(by)) = (&self.spec(graph, task).agents, by) {
            let agent = agents.find(by).unwrap_or_default();
            self.node_mut(task).choice.get_or_insert_default().agent = agent;
            self.node_mut(task).more().speaker = agent;
        }
        let node = self.node_mut(task);
        node.status = NodeStatus::Reused;
        node.needs_confirmation = false;
        node.settles = seq;
        if conversation.is_some() {
            node.conversation = conversation;
        }
        self.touched.push(task);
        self.forget_prompts(task);
        self.settle_failures_before(graph, task);
    }

    /// Takes the output of a task; that of `control.end` ends its frame.
    fn give(&mut self, graph: &Graph, task: TaskRef, result: &Arc<Value>) {
        self.frames[task.frame].outputs[task.node] = Some(result.clone());
        if self.spec(graph, task).kind == NodeKind::End {
            self.end_frame_well(task.frame, result);
        }
    }

    /// A failure that nothing in its frame handles.
    fn fail_frame(&mut self, graph: &Graph, frame: FrameIx, error: &AgentError) {
        self.frames[frame].failure.get_or_insert_with(|| error.clone());
        let fails_fast = self.body(graph, frame).policy.fail_fast == FailFast::On;
        if frame != FrameIx::FLOW {
            if fails_fast {
                self.end_frame_early(frame, error, false);
            }
        } else if error.code == ErrorCode::BudgetExceeded {
            self.end_early(Ending { outcome: Outcome::BudgetExceeded, error: Some(error.clone()) });
        } else if fails_fast {
            self.end_early(Ending { outcome: Outcome::Failed, error: Some(error.clone()) });
        }
    }

    /// A vendor's limit ended the attempt; it continues, in its own conversation if there is one, once the limit
    /// is lifted.
    fn wait_for_limit(&mut self, graph: &Graph, task: TaskRef, until: Timestamp, at: Timestamp) {
        // Logs of earlier versions hold waits that no vendor can mean; these are over at once.
        let until = if until > at + LONGEST_WAIT { at } else { until };
        self.end(graph, task, NodeStatus::Waiting, None);
        self.count_limited(task.frame, 1);
        let node = self.node_mut(task);
        node.interrupted = true;
        node.retry_at = Some(until);
        if node.has_named() {
            node.more().resume = Some(CONTINUE.to_owned());
        }
    }

    pub(super) fn resolve(
        &mut self,
        graph: &Graph,
        path: Option<&NodePath>,
        from: &str,
        to: &str,
        status: EdgeStatus,
    ) {
        let Some(edge) = self.open_edge(graph, path, from, to) else { return };
        let frame = self.frame_of(graph, path);
        let body = self.body(graph, frame);
        let state = &mut self.frames[frame];
        state.resolve(body, edge, status, self.session.last_seq, &mut self.touched);
        self.settle_failure(graph, frame, edge);
    }

    /// A node that may handle failures begins or is skipped.
    fn settle_failures_before(&mut self, graph: &Graph, task: TaskRef) {
        let body = self.body(graph, task.frame);
        for &edge in &body.node(task.node).incoming {
            // One that is known to be unhandled stays so, whatever runs in a later pass.
            if !self.frames[task.frame].nodes[body.edge(edge).from].tainted {
                self.settle_failure(graph, task.frame, edge);
            }
        }
    }

    /// The edge that the next event about one from a node to another resolves; `path` is the place of the first node.
    /// Of edges between the same nodes, for different ends, that for failures is resolved first; the others follow in the
    /// author's order.
    pub fn open_edge(&self, graph: &Graph, path: Option<&NodePath>, from: &str, to: &str) -> Option<EdgeIx> {
        let frame = self.frame_of(graph, path);
        let body = self.body(graph, frame);
        let open = edges_between(body, from, to).filter(|&edge| self.frames[frame].is_open(body, edge));
        open.min_by_key(|&edge| !body.resolves_first(edge))
    }

    /// Says of the failure that an edge is for whether it is handled. It is once one of the edges for it has fired and the
    /// node there has begun, and counts as handled while one may begin. It is the frame's if none can any more.
    fn settle_failure(&mut self, graph: &Graph, frame: FrameIx, edge: EdgeIx) {
        let body = self.body(graph, frame);
        let from = body.edge(edge).from;
        let state = &mut self.frames[frame];
        let is_for_failures = body.edge(edge).on == EdgeOn::Failure;
        if !is_for_failures || state.nodes[from].status != NodeStatus::Failed || state.nodes[from].handled {
            return;
        }
        let may_be_handled = state.undecided(body, from).next().is_some();
        let (mut is_handled, mut is_open) = (false, false);
        for edge in body.edges_on(from, EdgeOn::Failure) {
            let has_begun = state.nodes[body.edge(edge).to].has_begun();
            let status = state.edges[edge].status;
            is_handled |= status == EdgeStatus::Fired && has_begun;
            is_open |= status == EdgeStatus::Pending;
        }
        state.nodes[from].handled = is_handled;
        let is_handled = is_handled || may_be_handled;
        if state.nodes[from].tainted == is_handled {
            state.nodes[from].tainted = !is_handled;
            self.recount_what_follows(graph, frame, from);
        }
        let error = (!is_handled && !is_open).then(|| self.frames[frame].nodes[from].error.clone());
        if let Some(error) = error.flatten() {
            self.fail_frame(graph, frame, &error);
        }
    }

    /// An edge that leaves a loop is resolved after the others of its node, so a failure may be handled after nodes
    /// were kept from running by it. And a node that handles it may be skipped after others wait for what else they need.
    fn recount_what_follows(&mut self, graph: &Graph, frame: FrameIx, from: NodeIx) {
        let body = self.body(graph, frame);
        let state = &mut self.frames[frame];
        let mut open = vec![from];
        while let Some(ix) = open.pop() {
            for &edge in &body.node(ix).outgoing {
                let to = body.edge(edge).to;
                let node = &state.nodes[to];
                let (is_skipped, was_tainted) = (node.status == NodeStatus::Skipped, node.tainted);
                if !node.has_not_begun() && !is_skipped {
                    continue;
                }
                state.count_edges(body, to);
                if is_skipped && state.nodes[to].tainted != was_tainted {
                    open.push(to);
                }
                self.touched.push(state.task(to));
            }
        }
    }
}

/// Whether an event follows the status that its node is in.
fn follows(event: &Event, status: NodeStatus) -> bool {
    match event {
        Event::TaskStart { .. } => matches!(status, NodeStatus::Pending | NodeStatus::Waiting),
        Event::TaskAgent { .. } => matches!(status, NodeStatus::Pending | NodeStatus::Running),
        Event::TaskSkipped { .. } | Event::TaskReused { .. } => status == NodeStatus::Pending,
        _ => status == NodeStatus::Running,
    }
}

impl Body {
    /// Whether an edge is resolved before the others out of its node: whether a failure is handled is known before its
    /// consequences are. The others follow in the author's order.
    pub(crate) fn resolves_first(&self, edge: EdgeIx) -> bool {
        self.edge(edge).on == EdgeOn::Failure
    }

    /// The edges out of a node that may fire after such an end.
    pub(crate) fn edges_on(&self, node: NodeIx, on: EdgeOn) -> impl Iterator<Item = EdgeIx> {
        self.node(node).outgoing.iter().copied().filter(move |edge| self.edge(*edge).on == on)
    }

    /// Whether an edge may handle the failure of a node.
    pub(crate) fn handles_failure(&self, node: NodeIx) -> bool {
        self.edges_on(node, EdgeOn::Failure).next().is_some()
    }

    /// The edges that fire in any case.
    pub(crate) fn edges_that_clean_up(&self) -> impl Iterator<Item = EdgeIx> {
        let edges = (0..self.edges.len() as u32).map(EdgeIx);
        edges.filter(|edge| self.edge(*edge).on == EdgeOn::Any && self.edge(*edge).cycle.is_none())
    }

    /// Whether a successor of a node sees its failure.
    fn sees_failure(&self, node: NodeIx) -> bool {
        self.handles_failure(node) || self.edges_on(node, EdgeOn::Any).next().is_some()
    }
}

/// The edge of a body with these ends.
pub(crate) fn find_edge(body: &Body, from: &str, to: &str) -> Option<EdgeIx> {
    edges_between(body, from, to).next()
}

/// The edges from one node to another: at most one for each end of the first.
fn edges_between<'b>(body: &'b Body, from: &str, to: &str) -> impl Iterator<Item = EdgeIx> + use<'b> {
    let ends = body.find(from).zip(body.find(to));
    let candidates = ends.map(|(from, to)| {
        let node = body.node(from);
        // A fan-out can have thousands of edges, its targets few: look from the side that has fewer.
        let target = body.node(to);
        let candidates =
            if target.incoming.len() < node.outgoing.len() { &target.incoming } else { &node.outgoing };
        candidates.iter().chain(&node.loops).copied()
    });
    candidates.into_iter().flatten().filter(move |&edge| {
        let edge = body.edge(edge);
        ends == Some((edge.from, edge.to))
    })
}
