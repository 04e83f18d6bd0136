//! The fold, saved, and a fold that begins with a saved one.

use std::{sync::Arc, time::Duration};

use inspan_protocol::{
    AgentSessionRef, EdgeStatus, EndedFrameSnapshot, FrameSnapshot, FramesSnapshot, NodePath, NodeSnapshot,
    NodeStatus, Outcome, RunSnapshot, SNAPSHOT_VERSION, SessionId, SessionSpending, SessionStatus, Spending,
};
use serde_json::{Map, Value};

use super::{
    Conversation, EdgeState, Ending, Facts, FrameEnd, FrameSet, FrameState, NodeState, node::AgentChoice,
};
use crate::{
    graph::{Body, EdgeIx, FrameIx, Graph, TaskRef},
    node::NodeKind,
};

/// Why a session cannot continue from a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SnapshotError {
    /// It is of another version.
    #[error(
        "the snapshot of session `{session}` has version {found}, and this program reads version {known}"
    )]
    Version {
        /// The session.
        session: SessionId,
        /// The snapshot's version.
        found: u16,
        /// The version that is read here.
        known: u16,
    },
    /// It is of another flow.
    #[error("flow `{flow}` has changed since the snapshot of session `{session}` was taken")]
    Flow {
        /// The session.
        session: SessionId,
        /// The flow.
        flow: String,
    },
}

impl Facts {
    /// The fold as data. `input` is what the flow was given.
    pub(crate) fn snapshot(
        &self,
        graph: &Graph,
        session: &SessionId,
        input: &Map<String, Value>,
    ) -> RunSnapshot {
        let tasks = || self.tasks();
        let path = |task: TaskRef| self.path(graph, task);
        let edges = self
            .frames
            .iter()
            .flat_map(|frame| frame.edges.entries().map(move |(ix, state)| (frame, ix, state)));
        let edges = edges.map(|(frame, ix, state)| {
            let body = graph.body(frame.body);
            let edge = body.edge(ix);
            let key = format!("{}{}->{}", frame.prefix, body.node(edge.from).id, body.node(edge.to).id);
            (key, edge.cycle.is_some(), *state)
        });
        let edges: Vec<_> = edges.collect();
        let outputs = tasks().filter_map(|(task, _)| Some((path(task), self.output(task)?.clone())));
        let agents = tasks().filter_map(|(task, node)| {
            let known = node.conversation.as_ref()?;
            let node_type = &self.conversation_agent(graph, task).node_type;
            let provider = node_type.strip_suffix(".agent").unwrap_or(node_type).to_owned();
            Some((path(task), AgentSessionRef { provider, ..saved_conversation(known) }))
        });
        RunSnapshot {
            version: SNAPSHOT_VERSION,
            session_id: session.clone(),
            flow_name: graph.name.clone(),
            flow_hash: graph.hash.clone(),
            status: self.session.status,
            input: input.clone(),
            outputs: outputs.collect(),
            node_status: tasks().map(|(task, node)| (path(task), node.status)).collect(),
            nodes: tasks()
                .map(|(task, node)| (path(task), self.saved_node(graph, task, node)))
                .filter(|(_, saved)| *saved != NodeSnapshot::default())
                .collect(),
            attempts: tasks()
                .filter(|(_, node)| node.attempt > 0)
                .map(|(task, node)| (path(task), node.attempt))
                .collect(),
            errors: tasks()
                .filter_map(|(task, node)| Some((path(task), (**node.error.as_ref()?).clone())))
                .collect(),
            edge_status: edges.iter().map(|(key, _, state)| (key.clone(), state.status)).collect(),
            loop_counters: edges
                .iter()
                .filter(|(_, is_loop, _)| *is_loop)
                .map(|(key, _, state)| (key.clone(), state.iterations))
                .collect(),
            frames: self.frames.iter().filter_map(|frame| self.saved_frame(graph, frame)).collect(),
            agent_sessions: agents.collect(),
            pending_prompts: self.session.prompts.clone(),
            spent: SessionSpending {
                cost_usd: self.session.known_cost(),
                tokens: self.session.usage.total(),
                known_usd: self.session.cost_usd,
                uncounted: self.session.uncounted,
                dearest_usd: self.dearest,
                most_tokens: self.most_tokens,
                carried: self.carried,
            },
            spent_in: self.spent_in.clone(),
            taken_over: self.taken_over.clone(),
            raised: self.raised.clone(),
            used_ms: self.used().as_millis() as u64,
            failure: self.failure().cloned(),
            ending: self.ending.as_ref().map(|ending| ending.outcome),
            state: graph.state.clone(),
            last_seq: self.session.last_seq,
        }
    }

    /// The fold that a snapshot was made of, as far as the snapshot has it; what was running counts as
    /// interrupted. Nodes and edges that the graph does not have are left out.
    pub(crate) fn restore(graph: &Graph, snapshot: &RunSnapshot) -> Self {
        let mut state = Self::new(graph);
        state.session.status = SessionStatus::Paused;
        state.phase_begun = snapshot.status != SessionStatus::Idle;
        state.session.last_seq = snapshot.last_seq;
        state.session.cost_usd = snapshot.spent.known_usd.max(snapshot.spent.cost_usd.unwrap_or_default());
        state.session.unpriced = snapshot.spent.cost_usd.is_none();
        state.session.uncounted = snapshot.spent.uncounted;
        state.dearest = snapshot.spent.dearest_usd;
        state.most_tokens = snapshot.spent.most_tokens;
        state.turn_reported = snapshot.spent.tokens > 0;
        state.carried = snapshot.spent.carried;
        state.spent_in.clone_from(&snapshot.spent_in);
        state.taken_over.clone_from(&snapshot.taken_over);
        state.raised.clone_from(&snapshot.raised);
        state.used = Duration::from_millis(snapshot.used_ms);
        state.frames[FrameIx::FLOW].failure.clone_from(&snapshot.failure);
        state.ending = snapshot.ending.map(|outcome| Ending { outcome, error: snapshot.failure.clone() });
        state.session.usage.input_tokens = snapshot.spent.tokens;
        state.session.prompts.clone_from(&snapshot.pending_prompts);
        let depth = |path: &NodePath| path.parts().count();
        let deepest = snapshot.node_status.keys().map(depth).max().unwrap_or_default();
        for level in 1..=deepest {
            for (path, status) in snapshot.node_status.iter().filter(|(path, _)| depth(path) == level) {
                state.restore_task(graph, snapshot, path, *status);
            }
            for frame in snapshot.frames.iter().filter(|frame| depth(&frame.owner) == level) {
                state.restore_frame(graph, frame);
            }
        }
        for frame in state.frames.iter_mut() {
            frame.restore_edges(graph.body(frame.body), snapshot);
        }
        if state.ending.as_ref().is_some_and(|ending| ending.outcome == Outcome::Success) {
            let ends = |(task, _): &(TaskRef, &NodeState)| state.spec(graph, *task).kind == NodeKind::End;
            let end =
                state.frames[FrameIx::FLOW].tasks().filter(ends).find_map(|(task, _)| state.output(task));
            let outputs = end.and_then(|end| end.get("outputs")).cloned().map(Arc::new);
            state.frames[FrameIx::FLOW].outputs_at_end = outputs;
        }
        let waiting = state.tasks().filter(|(_, node)| node.status == NodeStatus::Waiting);
        for task in waiting.map(|(task, _)| task).collect::<Vec<_>>() {
            state.count_limited(task.frame, 1);
        }
        state.touched.clear();
        state
    }

    fn saved_node(&self, graph: &Graph, task: TaskRef, node: &NodeState) -> NodeSnapshot {
        let mut saved = node.saved();
        if node.choice.is_some() {
            saved.agents = self.agents_of(graph, task);
        }
        saved
    }

    fn restore_task(&mut self, graph: &Graph, snapshot: &RunSnapshot, path: &NodePath, status: NodeStatus) {
        let Some(task) = self.find_any_pass(graph, path) else { return };
        let runs_frames = self.spec(graph, task).kind == NodeKind::Frames;
        let agents = self.spec(graph, task).agents.as_deref();
        let choice = snapshot.nodes.get(path).zip(agents);
        let choice = choice.and_then(|(saved, agents)| AgentChoice::load(agents, &saved.agents));
        let node = self.node_mut(task);
        node.choice = choice.map(Box::new);
        node.pass = path.pass();
        node.status = match status {
            NodeStatus::Running if !runs_frames => NodeStatus::Paused,
            other => other,
        };
        node.attempt = snapshot.attempts.get(path).copied().unwrap_or_default();
        node.error = snapshot.errors.get(path).cloned().map(Box::new);
        if let Some(known) = snapshot.agent_sessions.get(path) {
            node.conversation = Some(loaded(known));
        }
        if let Some(saved) = snapshot.nodes.get(path) {
            node.load(saved);
        }
        if let Some((agents, known)) = agents.zip(snapshot.agent_sessions.get(path)) {
            let is_its =
                |node_type: &str| node_type.strip_suffix(".agent").unwrap_or(node_type) == known.provider;
            let current = node.choice.as_ref().map_or(0, |choice| choice.agent);
            let spec = graph.body(self.frames[task.frame].body).node(task.node);
            let all = [current].into_iter().chain(0..agents.names.len() as u32);
            let speaker = all.into_iter().find(|agent| is_its(&spec.with_agent(*agent).node_type));
            self.node_mut(task).more().speaker = speaker.unwrap_or(current);
        }
        let node = self.node_mut(task);
        if let Some(asked) = snapshot.pending_prompts.iter().find(|prompt| prompt.task.as_ref() == Some(path))
        {
            node.more().asked = Some(asked.clone());
        }
        let output = snapshot.outputs.get(path).cloned().map(Arc::new);
        self.frames[task.frame].outputs[task.node] = output;
    }

    fn saved_frame(&self, graph: &Graph, frame: &FrameState) -> Option<FrameSnapshot> {
        let owner = frame.owner?;
        let item = self.node(owner).frames.as_ref().and_then(|set| set.item(frame.index));
        Some(FrameSnapshot {
            owner: self.path(graph, owner),
            index: frame.index,
            item: item.cloned(),
            input: frame.input.as_deref().cloned(),
            started_at: frame.started_at,
            outputs: frame.outputs_at_end.as_deref().cloned(),
            ending: frame.ending.as_ref().map(|ending| ending.outcome),
            failure: frame.failure.clone(),
            spent: frame.spent,
            attempts: (frame.attempts_before, frame.most_attempts),
        })
    }

    fn restore_frame(&mut self, graph: &Graph, saved: &FrameSnapshot) {
        let FrameSnapshot { owner, index, input, started_at, .. } = saved;
        let Some(owner) = self.find_any_pass(graph, owner) else { return };
        let input = input.clone().map(Arc::new);
        self.open_frame(graph, owner, *index, input.as_ref(), None, *started_at);
        let id = self.node(owner).frames.as_ref().and_then(|set| set.open.get(index).copied());
        let Some(id) = id else { return };
        let frame = &mut self.frames[id];
        frame.outputs_at_end = saved.outputs.clone().map(Arc::new);
        frame.ending = saved.ending.map(|outcome| Ending { outcome, error: saved.failure.clone() });
        frame.failure.clone_from(&saved.failure);
        frame.spent = saved.spent;
        (frame.attempts_before, frame.most_attempts) = saved.attempts;
        if frame.ending.is_some() {
            self.ending_frames.insert(id);
        }
    }
}

impl FrameState {
    fn restore_edges(&mut self, body: &Body, snapshot: &RunSnapshot) {
        for (at, edge) in body.edges.iter().enumerate() {
            let ix = EdgeIx(at as u32);
            let key = format!("{}{}->{}", self.prefix, body.node(edge.from).id, body.node(edge.to).id);
            let status = snapshot.edge_status.get(&key).copied().unwrap_or_default();
            let pass = self.nodes[edge.from].pass;
            let iterations = snapshot.loop_counters.get(&key).copied().unwrap_or_default();
            self.edges[ix] = EdgeState { status, pass, iterations };
            if edge.cycle.is_none() && status != EdgeStatus::Pending {
                let node = &mut self.nodes[edge.to];
                node.unresolved = node.unresolved.saturating_sub(1);
                node.fired += u32::from(status == EdgeStatus::Fired);
            }
        }
    }
}

/// A conversation of a node of a body; its provider is that of the node.
fn saved_conversation(known: &Conversation) -> AgentSessionRef {
    let Conversation { session_id, turn_id, turns, taken_over } = known.clone();
    AgentSessionRef { provider: String::new(), session_id, turn_id, turns, taken_over }
}

fn loaded(known: &AgentSessionRef) -> Conversation {
    let AgentSessionRef { session_id, turn_id, turns, taken_over, .. } = known.clone();
    Conversation { session_id, turn_id, turns, taken_over }
}

impl FrameSet {
    fn saved(&self) -> FramesSnapshot {
        let ended = self.ended.iter().enumerate().filter_map(|(index, end)| {
            let mut saved = EndedFrameSnapshot {
                index: index as u32,
                outputs: None,
                error: None,
                attempts: 0,
                again: false,
            };
            match end.as_ref()? {
                FrameEnd::Complete(outputs) => saved.outputs = Some((**outputs).clone()),
                FrameEnd::Failed(error, attempts) => {
                    saved.error = Some((**error).clone());
                    saved.attempts = *attempts;
                }
                FrameEnd::Cancelled(attempts) => saved.attempts = *attempts,
                FrameEnd::Again(attempts) => (saved.attempts, saved.again) = (*attempts, true),
            }
            Some(saved)
        });
        FramesSnapshot {
            items: self.items.as_deref().cloned(),
            keys: self.keys.clone(),
            max_concurrency: self.max_concurrency,
            ended: ended.collect(),
            done: self.done,
            agent_sessions: self
                .conversations
                .iter()
                .map(|known| known.as_ref().map(saved_conversation))
                .collect(),
        }
    }

    fn load(saved: &FramesSnapshot) -> Self {
        let mut set = Self {
            items: saved.items.clone().map(Arc::new),
            keys: saved.keys.clone(),
            max_concurrency: saved.max_concurrency,
            done: saved.done,
            ..Self::default()
        };
        set.conversations = saved.agent_sessions.iter().map(|known| known.as_ref().map(loaded)).collect();
        for end in &saved.ended {
            let loaded = match (&end.outputs, &end.error, end.again) {
                (Some(outputs), ..) => FrameEnd::Complete(Arc::new(outputs.clone())),
                (None, Some(error), _) => FrameEnd::Failed(Box::new(error.clone()), end.attempts),
                (None, None, true) => FrameEnd::Again(end.attempts),
                (None, None, false) => FrameEnd::Cancelled(end.attempts),
            };
            set.close(end.index, loaded);
        }
        set.skip_begun();
        set
    }
}

impl NodeState {
    fn saved(&self) -> NodeSnapshot {
        let more = self.more.clone().unwrap_or_default();
        NodeSnapshot {
            attempts: self.attempts,
            failures: self.failures,
            failures_in_a_row: self.failures_in_a_row,
            tainted: self.tainted,
            handled: self.handled,
            interrupted: self.interrupted,
            doubt: self.needs_confirmation,
            never_began: self.never_began,
            cleans_up: self.cleans_up,
            sent_back: self.sent_back,
            failed_passes: self.failed_passes,
            follows_work: self.follows_work,
            since: self.since,
            retry_at: self.retry_at,
            named: more.named,
            worked: more.worked,
            messages: more.taken.into_iter().chain(more.waiting).collect(),
            resume: more.resume,
            denied: more.denied,
            asked: more.asked.filter(|_| more.reply.is_some()),
            reply: more.reply,
            cost_usd: more.spent.cost_usd,
            unpriced: more.spent.unpriced,
            uncounted: more.spent.uncounted,
            tokens: more.spent.tokens,
            carried: more.carried,
            agents: Vec::new(),
            frames: self.frames.as_deref().map(FrameSet::saved),
            deadline: self.deadline.filter(|_| self.frames.is_some()),
        }
    }

    fn load(&mut self, saved: &NodeSnapshot) {
        self.attempts = saved.attempts;
        self.failures = saved.failures;
        self.failures_in_a_row = saved.failures_in_a_row;
        self.tainted = saved.tainted;
        self.handled = saved.handled;
        self.interrupted = saved.interrupted;
        self.needs_confirmation = saved.doubt;
        self.never_began = saved.never_began;
        self.cleans_up = saved.cleans_up;
        self.sent_back = saved.sent_back;
        self.failed_passes = saved.failed_passes;
        self.follows_work = saved.follows_work;
        self.since = saved.since;
        self.retry_at = saved.retry_at;
        self.frames = saved.frames.as_ref().map(|frames| Box::new(FrameSet::load(frames)));
        self.deadline = saved.deadline;
        let more = self.more();
        more.named = saved.named;
        more.worked = saved.worked;
        more.resume.clone_from(&saved.resume);
        more.denied.clone_from(&saved.denied);
        more.taken.clone_from(&saved.messages);
        more.asked.clone_from(&saved.asked);
        more.reply.clone_from(&saved.reply);
        let NodeSnapshot { cost_usd, tokens, unpriced, uncounted, .. } = *saved;
        more.spent = Spending { cost_usd, tokens, unpriced, uncounted };
        (more.cost_before, more.tokens_before) = (cost_usd, tokens);
        more.carried = saved.carried;
    }
}
