//! How a session changes by its next event.

use std::time::Duration;

use inspan_flow_core::{FrameIx, Run, StaticValue, TaskRef};
use inspan_protocol::{DEFAULT_IDLE_TIMEOUT, Envelope, Event, NodeId, NodePath, NodeStatus, Timestamp};

use super::{AgentRunStart, Asking, Course, EarlyEnd, ExceededBudget, SessionView};
use crate::{
    agent::AgentView,
    row::around,
    row::{EndedFrames, FrameRow, NodeRow, denied, inside, label, tasks, visit, warning},
    safe::clean,
};

impl SessionView {
    /// Applies the next event.
    pub fn apply(&mut self, envelope: &Envelope) {
        self.count(envelope.seq);
        let task = envelope.context.task.as_ref();
        let answered = match &envelope.event {
            Event::SessionReply { prompt_id, .. } => {
                self.question(prompt_id).and_then(|prompt| prompt.task.clone())
            }
            _ => None,
        };
        match (&envelope.event, task) {
            (
                Event::FrameComplete { index, .. }
                | Event::FrameFailed { index, .. }
                | Event::FrameCancelled { index, .. },
                Some(owner),
            ) => self.end_frame(owner, *index, envelope),
            _ if self.ended_frames == EndedFrames::All => self.count_edge(envelope),
            _ => {}
        }
        self.run.apply(envelope);
        let about = answered.as_ref().or(task);
        if changes_nodes(&envelope.event, about) && self.asking.update(&self.run, &envelope.event, about) {
            self.asked += 1;
        }
        match (&envelope.event, about) {
            // No facts: only live data has changed.
            (event, _) if is_live(event) => {}
            (Event::EdgeFired { to, .. } | Event::EdgeSkipped { to, .. }, _) => self.copy_target(task, to),
            (Event::LoopIterate { .. }, _) => self.copy_frame(task),
            (event, Some(task)) => {
                if let Event::FrameStart { index, .. } = event {
                    self.begin_frame(task, *index, envelope.timestamp);
                }
                self.copy(task);
            }
            (event, None) if !changes_nodes(event, None) => {}
            (_, None) => self.copy_all(),
        }
        self.touch(about);
        self.newly_denied = denied(self.denied_calls.take(envelope));
        self.apply_live(envelope);
    }

    fn touch(&mut self, path: Option<&NodePath>) {
        if let (Some(touched), Some(path)) = (&mut self.touched, path) {
            touched.add(label(path));
        }
    }

    /// `seq` has no gaps, so a gap shows how many events were missed.
    fn count(&mut self, seq: u64) {
        if self.last_seq > 0 {
            self.missed += seq.saturating_sub(self.last_seq + 1);
        }
        self.last_seq = seq.max(self.last_seq);
    }

    /// Copies what the run knows about a node to its row.
    fn copy(&mut self, path: &NodePath) {
        let (run, asking) = (&self.run, &self.asking);
        let Some(task) = run.state().find(run.graph(), Some(path)) else { return };
        visit(&mut self.rows, run.graph(), path, &mut |rows, at, is_last| {
            if is_last {
                rows[at].copy(run, asking, task);
            }
        });
    }

    /// The same for the node that an edge enters; `path` is the node that it leaves.
    fn copy_target(&mut self, path: Option<&NodePath>, to: &NodeId) {
        let (run, asking) = (&self.run, &self.asking);
        let (graph, state) = (run.graph(), run.state());
        let frame = state.frame_of(graph, path);
        let Some(node) = graph.body(state.body_of(frame)).find(to.as_str()) else { return };
        let target = NodePath::new(&format!("{}{to}", path.map_or("", around)));
        visit(&mut self.rows, graph, &target, &mut |rows, at, is_last| {
            if is_last {
                rows[at].copy(run, asking, TaskRef { frame, node });
            }
        });
        self.touch(Some(&target));
    }

    /// The same for all nodes of the frame in which a node is.
    fn copy_frame(&mut self, path: Option<&NodePath>) {
        let (run, asking) = (&self.run, &self.asking);
        let (graph, state) = (run.graph(), run.state());
        let frame = state.frame_of(graph, path);
        let prefix = path.map_or("", around);
        let touched = &mut self.touched;
        let mut copy = |rows: &mut [NodeRow]| {
            for (row, task) in rows.iter_mut().zip(tasks(graph.body(state.body_of(frame)), frame)) {
                row.copy(run, asking, task);
                if let Some(touched) = touched {
                    touched.add(&format!("{prefix}{}", row.label));
                }
            }
        };
        match path.filter(|_| frame != FrameIx::FLOW) {
            None => copy(&mut self.rows),
            Some(path) => {
                visit(&mut self.rows, graph, path, &mut |rows, _, is_last| {
                    if is_last {
                        copy(rows);
                    }
                });
            }
        }
    }

    /// The same for all nodes of all open frames.
    fn copy_all(&mut self) {
        fn copy(rows: &mut [NodeRow], run: &Run, asking: &Asking, frame: FrameIx) {
            let (graph, state) = (run.graph(), run.state());
            for (row, task) in rows.iter_mut().zip(tasks(graph.body(state.body_of(frame)), frame)) {
                row.copy(run, asking, task);
                for inner in row.frames.values_mut() {
                    if let Some(frame) = inner.open {
                        copy(&mut inner.rows, run, asking, frame);
                    }
                }
            }
        }
        copy(&mut self.rows, &self.run, &self.asking, FrameIx::FLOW);
        if let Some(touched) = &mut self.touched {
            touched.all = true;
        }
    }

    /// A frame began: it has its own rows from now on.
    fn begin_frame(&mut self, owner: &NodePath, index: u32, now: Timestamp) {
        let (run, asking) = (&self.run, &self.asking);
        let (graph, state) = (run.graph(), run.state());
        let Some(task) = state.find(graph, Some(owner)) else { return };
        let Some(frame) = state.open_frames(task).find(|(at, _)| *at == index) else { return };
        let (keeps, touched) = (self.ended_frames, &mut self.touched);
        visit(&mut self.rows, graph, owner, &mut |rows, at, is_last| {
            if is_last {
                let pass = state.node(task).pass;
                if keeps == EndedFrames::Failed {
                    rows[at].forget_frames(|(of, _)| *of != pass);
                }
                let frame = FrameRow { started: Some(now), ..FrameRow::new(run, asking, task, frame) };
                if let Some(touched) = touched {
                    let prefix = inside(label(owner), (pass, index), &frame);
                    frame.rows.iter().for_each(|row| touched.add(&format!("{prefix}{}", row.label)));
                }
                rows[at].frames.insert((pass, index), frame);
            }
        });
    }

    /// A frame is about to end, and the run to forget it.
    fn end_frame(&mut self, owner: &NodePath, index: u32, envelope: &Envelope) {
        let graph = self.run.graph();
        let (ended, key) = (self.ended_frames, (owner.pass(), index));
        visit(&mut self.rows, graph, owner, &mut |rows, at, is_last| {
            let Some(frame) = rows[at].frames.get_mut(&key).filter(|_| is_last) else { return };
            if frame.open.take().is_none() {
                return;
            }
            frame.duration_ms = match &envelope.event {
                // The time in which no process ran the session does not count.
                Event::FrameComplete { duration_ms, .. } => Some(*duration_ms),
                _ => frame
                    .started
                    .and_then(|began| envelope.timestamp.since(began).as_millis().try_into().ok()),
            };
            frame.status = match &envelope.event {
                Event::FrameFailed { error, .. } => {
                    frame.error = Some(Box::new(error.clone()));
                    NodeStatus::Failed
                }
                Event::FrameCancelled { .. } => NodeStatus::Cancelled,
                _ => NodeStatus::Complete,
            };
            // What was interrupted, or waited for its next attempt, does not begin again.
            for row in frame.rows.iter_mut() {
                if row.retry.take().is_some() {
                    (row.status, row.idle_status) = (NodeStatus::Cancelled, NodeStatus::Cancelled);
                } else if matches!(row.idle_status, NodeStatus::Paused | NodeStatus::Waiting) {
                    row.idle_status = NodeStatus::Cancelled;
                    if row.status == NodeStatus::Waiting {
                        row.status = NodeStatus::Cancelled;
                    }
                }
            }
            rows[at].end_frame(key, ended);
        });
    }

    /// What is only shown.
    fn apply_live(&mut self, envelope: &Envelope) {
        let (event, task, now) = (&envelope.event, envelope.context.task.as_ref(), envelope.timestamp);
        let mut run = None;
        match event {
            Event::HarnessStart { .. } => self.session = Some(envelope.context.session_id.clone()),
            Event::HarnessComplete { outcome, duration_ms, .. } => self.set_paused(*outcome, *duration_ms),
            Event::SessionAbort { .. } => self.course = Course::Stopping,
            Event::FlowEnding { outcome, error } => {
                self.ending = Some(EarlyEnd { outcome: *outcome, error: error.clone() });
            }
            Event::PhaseFailed { error, .. } => self.error = Some(error.clone()),
            // What is still used up is reported again.
            Event::FlowResumed { .. } => self.budgets.clear(),
            Event::BudgetExceeded { .. } => {
                if let Some(budget) = ExceededBudget::of(envelope) {
                    budget.report_in(&mut self.budgets);
                }
            }
            // What ran before this attempt is gone.
            Event::TaskStart { .. } => self.by_run.retain(|_, run| Some(&run.path) != task),
            Event::AgentStart { run_id, .. } => {
                let open = |path: &NodePath| AgentRunStart { path: path.clone(), since: envelope.seq };
                self.by_run.extend(task.map(|task| (run_id.clone(), open(task))));
            }
            Event::AgentComplete { run_id, .. } => run = self.by_run.remove(run_id).map(|run| run.path),
            event => {
                run = event.run_id().and_then(|run| self.by_run.get(run)).map(|run| run.path.clone());
            }
        }
        let Some(path) = run.as_ref().or(task) else { return };
        self.touch(Some(path));
        let spent = self.unpriced_turns.take(event);
        let lost = matches!(event, Event::AgentComplete { .. }) && spent.is_some();
        let idle = match event {
            Event::AgentStart { .. } => self.idle_timeout(path),
            _ => DEFAULT_IDLE_TIMEOUT,
        };
        let (graph, state, newly_denied) = (self.run.graph(), self.run.state(), &self.newly_denied);
        let begins = match event {
            Event::TaskStart { node_type, .. } => state.find(graph, Some(path)).map(|task| (task, node_type)),
            Event::TaskReused { .. } => {
                state.find(graph, Some(path)).map(|task| (task, &state.spec(graph, task).node_type))
            }
            _ => None,
        };
        visit(&mut self.rows, graph, path, &mut |rows, at, is_last| {
            rows[at].spent.add(event);
            if lost {
                rows[at].spent.lose_price();
            }
            if is_last {
                if let Some((task, node_type)) = begins {
                    // An agent that took over worked in its own pass only.
                    let by = rows[at].by.take().and_then(|_| state.agent_of(graph, task));
                    rows[at].by = by.map(clean);
                    rows[at].node_type.clone_from(node_type);
                }
                apply_to_row(&mut rows[at], event, now, idle);
                rows[at].denied.extend_from_slice(newly_denied);
            }
        });
    }

    /// Takes an event once more that is in this fold already: what the agent of a run does that has not ended. A fold
    /// that was given no text of agents so becomes as one that was.
    pub fn apply_again(&mut self, envelope: &Envelope) {
        let event = &envelope.event;
        let Some(path) = event.run_id().and_then(|run| self.by_run.get(run)).map(|run| run.path.clone())
        else {
            return;
        };
        let idle = self.idle_timeout(&path);
        visit(&mut self.rows, self.run.graph(), &path, &mut |rows, at, is_last| {
            if is_last {
                apply_to_row(&mut rows[at], event, envelope.timestamp, idle);
            }
        });
    }

    /// How long the agent of a node waits for messages.
    fn idle_timeout(&self, path: &NodePath) -> Duration {
        let (graph, state) = (self.run.graph(), self.run.state());
        let task = state.find(graph, Some(path));
        match task.map(|task| state.spec(graph, task).input.part(&["options", "idleTimeoutMs"])) {
            Some(StaticValue::Known(ms)) => ms.as_u64().map_or(DEFAULT_IDLE_TIMEOUT, Duration::from_millis),
            _ => DEFAULT_IDLE_TIMEOUT,
        }
    }
}

/// Whether an event is what an agent or a program says, which is no fact of the run.
fn is_live(event: &Event) -> bool {
    matches!(event, Event::AgentText { .. } | Event::AgentThinking { .. } | Event::ExecOutput { .. })
}

/// Whether an event, of this node or of the session as a whole, may change what the run knows about nodes.
fn changes_nodes(event: &Event, task: Option<&NodePath>) -> bool {
    !is_live(event) && (task.is_some() || !concerns_no_node(event))
}

/// Whether an event without a place in the run changes no node.
fn concerns_no_node(event: &Event) -> bool {
    matches!(
        event,
        Event::BudgetSpent { .. }
            | Event::FlowWaiting { .. }
            | Event::HarnessStart { .. }
            | Event::PhaseStart { .. }
            | Event::SessionMessage { .. }
            | Event::SessionRejected { .. }
            | Event::ChannelRegistered { .. }
            | Event::ChannelStarted { .. }
            | Event::ChannelStopped { .. }
            | Event::ChannelUnregistered { .. }
            | Event::ChannelFailed { .. }
            | Event::Log { .. }
    )
}

fn apply_to_row(row: &mut NodeRow, event: &Event, now: Timestamp, idle: Duration) {
    match event {
        Event::TaskStart { .. } => {
            row.output.clear();
            row.leave_agent();
        }
        Event::TaskInterrupted { .. } => row.interrupted += 1,
        Event::TaskAgent { agent, .. } => row.by = Some(clean(agent)),
        Event::ExecOutput { text, .. } => row.append_output(text),
        Event::AgentStart { provider, model, multi_turn, .. } => {
            row.leave_agent();
            let mut agent = AgentView::new(provider, model.as_deref(), *multi_turn, idle);
            agent.apply(event, now);
            row.agent = Some(Box::new(agent));
        }
        event => {
            if let Some(message) = warning(event) {
                row.warn(clean(message));
            }
            if let Some(agent) = &mut row.agent {
                agent.apply(event, now);
            }
        }
    }
}
