//! The facts of a run: a fold over its event log, and nothing else. Live, resumed, recovered, replayed and forked runs
//! all come here by [`Facts::apply`]. What may be decided next follows from the facts and is in the agenda.
//!
//! | Fact | From | To |
//! |---|---|---|
//! | `task:start` | pending, waiting | running |
//! | `task:complete` | running | complete |
//! | `task:failed`, will retry | running | pending, with a time to try again |
//! | `task:failed` | running; cancelled by a budget before the run ends | failed |
//! | `task:cancelled` | running | cancelled |
//! | `task:agent` | pending, running | pending, with this agent |
//! | `task:interrupted` | running | pending, interrupted |
//! | `task:skipped` | pending | skipped |
//! | `task:reused` | pending | reused |
//! | `limit:wait` | running | waiting, with a time to try again |
//! | `flow:paused` | cancelled, if it is named | paused |
//! | `flow:resumed` | running, paused, cancelled by a pause | pending, interrupted |
//! | `loop:iterate` | any, if in the body | pending, one pass further |
//! | `edge:fired` of an edge that an earlier pass had skipped | skipped | pending, one pass further |
//! | `frame:start` | | a frame of the node opens; its nodes are pending |
//! | `frame:complete`, `frame:failed`, `frame:cancelled` | | the frame closes, and its nodes are forgotten |
//!
//! A fact that does not fit the node's status is late or a duplicate and changes nothing. What concerns the session
//! as a whole is in [`SessionFacts`], which a store folds too.

mod agent;
mod budget;
mod choice;
mod frame;
mod idle;
mod node;
mod session;
mod snapshot;
mod transition;
mod view;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, LazyLock},
    time::Duration,
};

use inspan_protocol::{
    AgentError, BudgetRaise, EdgeStatus, Envelope, ErrorCode, Event, FrameSpending, NodePath, NodeStatus,
    Outcome, PauseCause, Prompt, SessionStatus, Spending, Timestamp,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub(crate) use agent::is_work;
pub use budget::NotRaised;
pub(crate) use budget::{BudgetOwner, UsedUp};
pub(crate) use frame::{FrameEnd, FrameSet, FrameState, FrameTable, FramesStep, Full, frame_prefix};
pub use idle::CONTINUE;
pub(crate) use idle::{IT_IS_DONE, LET_IT_FAIL, RUN_AGAIN};
pub(crate) use node::OpenRun;
pub use node::{Conversation, EdgeState, NodeState};
pub use session::{SessionFacts, Waits};
pub use snapshot::SnapshotError;
pub use view::FramesProgress;
pub(crate) use view::failed_items;

use crate::graph::{Body, BodyIx, FrameIx, Graph, Node, TaskRef};
pub(crate) use transition::find_edge;

/// The events that are facts of a run; all others change nothing here.
pub const FACTS: &[&str] = &[
    "harness:start",
    "harness:complete",
    "phase:start",
    "phase:complete",
    "phase:failed",
    "task:start",
    "task:complete",
    "task:failed",
    "task:cancelled",
    "task:agent",
    "task:interrupted",
    "task:skipped",
    "task:reused",
    "frame:items",
    "frame:start",
    "frame:ending",
    "frame:complete",
    "frame:failed",
    "frame:cancelled",
    "edge:fired",
    "edge:skipped",
    "loop:iterate",
    "agent:start",
    "agent:turn",
    "agent:steer",
    "agent:session",
    "agent:spent",
    "agent:usage",
    "agent:complete",
    "session:message",
    "session:prompt",
    "session:reply",
    "session:pause",
    "session:abort",
    "flow:paused",
    "flow:resumed",
    "flow:waiting",
    "flow:ending",
    "limit:wait",
    "budget:spent",
    "budget:exceeded",
    "budget:carried",
];

/// Whether an event is a fact.
pub fn is_fact(event: &Event) -> bool {
    static TABLE: LazyLock<Vec<bool>> =
        LazyLock::new(|| Event::NAMES.iter().map(|name| FACTS.contains(name)).chain([false]).collect());
    TABLE.get(event.kind()).copied().unwrap_or_default()
}

/// The fold of a run's facts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Facts {
    pub(crate) session: SessionFacts,
    /// When a session that an earlier process began elsewhere was resumed in this log.
    pub(crate) continued_at: Option<Timestamp>,
    /// The time of the newest fact, and how long the session was idle between two processes.
    pub(crate) last_at: Timestamp,
    pub(crate) rested: Duration,
    /// How long nothing but usage limits was waited for, rests aside.
    #[serde(default)]
    pub(crate) limited: Duration,
    /// The time that the session took before the snapshot that it began with.
    pub(crate) used: Duration,
    /// What the flow gave at its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) outputs: Option<Arc<Value>>,
    pub(crate) phase_begun: bool,
    pub(crate) phase_ended: bool,
    /// How often something has ended: an attempt, or a turn of an agent.
    pub(crate) progress: u64,
    pub(crate) frames: FrameTable,
    /// Frames within the flow that are to end before their time.
    pub(crate) ending_frames: BTreeSet<FrameIx>,
    /// Whether some price was unknown already when the session was last resumed.
    pub(crate) unpriced_before: bool,
    /// The same for tokens.
    #[serde(default)]
    pub(crate) uncounted_before: bool,
    /// The most that one attempt of an agent has cost, in US dollars and in tokens.
    pub(crate) dearest: f64,
    #[serde(default)]
    pub(crate) most_tokens: u64,
    /// Whether a turn of an agent has said what it took.
    #[serde(default)]
    pub(crate) turn_reported: bool,
    /// The attempts of agents that run and share a budget.
    #[serde(default)]
    pub(crate) reserving: BTreeSet<TaskRef>,
    /// How often what waits for a budget may have become affordable: an attempt ended, what one takes became known, or a
    /// budget was raised.
    pub(crate) releases: u64,
    /// What the newest `budget:spent` said of tokens, and whether `budget:exceeded` was emitted since the session was
    /// last resumed.
    #[serde(rename = "toldTokens")]
    pub(crate) reported_tokens: u64,
    #[serde(rename = "budgetTold")]
    pub(crate) budget_reported: bool,
    /// What an earlier session had spent that this one continues.
    pub(crate) carried: Option<Spending>,
    /// What was spent in frames that have ended and may run again, by what the paths of their nodes begin with.
    #[serde(default)]
    pub(crate) spent_in: BTreeMap<String, FrameSpending>,
    /// Where the agents whose work was taken over from another session were in that, and the nodes with all their frames; each
    /// with its place in this one.
    #[serde(default)]
    pub(crate) taken_over: BTreeMap<NodePath, NodePath>,
    /// Budgets that were raised since the session began.
    pub(crate) raised: BudgetRaise,
    /// Set from the request to pause until the session is resumed.
    pub(crate) pausing: Option<Pause>,
    /// Why the run must end before its time: the first cause counts.
    pub(crate) ending: Option<Ending>,
    /// The event that is the cause of the ending, if it is an event.
    pub(crate) ended_by: Option<u64>,
    /// Whether a stop came while the run was ending: nothing that may cost money or waits begins any more.
    #[serde(default)]
    pub(crate) stopped_while_ending: bool,
    /// The tasks about which something may be decided since the newest event.
    #[serde(skip)]
    pub(crate) touched: Vec<TaskRef>,
}

/// A request to pause.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Pause {
    pub(crate) reason: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) cause: Option<PauseCause>,
    /// The event that asked for it.
    pub(crate) seq: u64,
}

/// Why a run ends before its time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ending {
    /// How the session ends.
    pub outcome: Outcome,
    /// What went wrong, if something did.
    pub error: Option<AgentError>,
}

impl Facts {
    /// The state before the first fact.
    pub fn new(graph: &Graph) -> Self {
        let mut frames = FrameTable::default();
        frames.push(FrameState::new(graph, FrameIx::FLOW, BodyIx::default()));
        Self { frames, ..Self::default() }
    }

    /// Takes one event of the log. Total and idempotent: an event that was taken before, comes late or is
    /// no fact of this run changes nothing.
    pub fn apply(&mut self, graph: &Graph, envelope: &Envelope) {
        let Envelope { seq, timestamp, context, event, .. } = envelope;
        self.take(graph, *seq, *timestamp, context.task.as_ref(), event);
    }

    /// As `apply`, with only what counts of an envelope.
    pub(crate) fn take(
        &mut self,
        graph: &Graph,
        seq: u64,
        at: Timestamp,
        task: Option<&NodePath>,
        event: &Event,
    ) {
        if seq <= self.session.last_seq {
            return;
        }
        let answered = match event {
            Event::SessionReply { prompt_id, .. } => self.session.prompt(prompt_id).cloned(),
            _ => None,
        };
        let spent = self.session.take(seq, at, task, event);
        let was_ending = self.ending.is_some();
        let was_limited = self.frames[FrameIx::FLOW].limited > 0;
        self.touched.clear();
        match event {
            Event::HarnessStart { .. } | Event::FlowWaiting { .. } => {}
            Event::HarnessComplete { .. }
            | Event::PhaseStart { .. }
            | Event::PhaseComplete { .. }
            | Event::PhaseFailed { .. }
            | Event::FlowPaused { .. }
            | Event::FlowResumed { .. }
            | Event::FlowEnding { .. }
            | Event::SessionPause { .. }
            | Event::SessionAbort { .. } => self.take_session_fact(graph, seq, at, event),
            Event::TaskStart { .. }
            | Event::TaskComplete { .. }
            | Event::TaskFailed { .. }
            | Event::TaskAgent { .. }
            | Event::TaskCancelled { .. }
            | Event::TaskInterrupted { .. }
            | Event::TaskSkipped { .. }
            | Event::TaskReused { .. }
            | Event::LimitWait { .. }
            | Event::FrameItems { .. }
            | Event::FrameStart { .. } => self.take_task_fact(graph, task, at, event),
            Event::FrameEnding { .. }
            | Event::FrameComplete { .. }
            | Event::FrameFailed { .. }
            | Event::FrameCancelled { .. } => self.take_frame_fact(graph, task, event),
            Event::EdgeFired { from, to } => {
                self.resolve(graph, task, from.as_str(), to.as_str(), EdgeStatus::Fired);
            }
            Event::EdgeSkipped { from, to } => {
                self.resolve(graph, task, from.as_str(), to.as_str(), EdgeStatus::Skipped);
            }
            Event::LoopIterate { from, to, iteration, nodes } => {
                let frame = self.frame_of(graph, task);
                let body = self.body(graph, frame);
                if let Some(edge) = find_edge(body, from.as_str(), to.as_str()) {
                    let state = &mut self.frames[frame];
                    let before = state.waiting();
                    state.iterate(body, edge, *iteration, nodes, &mut self.touched);
                    let sent_back = before - state.waiting();
                    self.count_limited(frame, -(sent_back as i32));
                }
            }
            Event::AgentStart { .. }
            | Event::AgentTurn { .. }
            | Event::AgentSteer { .. }
            | Event::AgentSession { .. }
            | Event::AgentSpent { .. }
            | Event::AgentUsage { .. }
            | Event::AgentComplete { .. } => self.take_agent_fact(graph, task, event, spent),
            Event::SessionMessage { content, run_id, agent_name, .. } => match (run_id, agent_name) {
                (None, Some(_)) => self.message_at(graph, task, content),
                _ => self.message(run_id.as_ref(), content),
            },
            Event::SessionPrompt(prompt) => {
                self.ask(graph, Prompt { task: task.cloned(), ..prompt.clone() });
            }
            Event::SessionReply { content, choice, .. } => {
                self.reply(graph, answered.as_ref(), content, choice.as_deref());
            }
            Event::BudgetSpent { tokens, .. } => self.reported_tokens = *tokens,
            Event::BudgetExceeded { frame, .. } => self.note_used_up(graph, task, *frame),
            Event::BudgetCarried { spent, nodes, raised, .. } => self.carry(graph, *spent, nodes, raised),
            Event::AgentListen { .. }
            | Event::AgentText { .. }
            | Event::AgentThinking { .. }
            | Event::AgentRetract { .. }
            | Event::AgentToolStart { .. }
            | Event::AgentToolComplete { .. }
            | Event::AgentWarning { .. }
            | Event::ExecOutput { .. }
            | Event::SessionClose { .. }
            | Event::SessionRejected { .. }
            | Event::ChannelRegistered { .. }
            | Event::ChannelStarted { .. }
            | Event::ChannelStopped { .. }
            | Event::ChannelUnregistered { .. }
            | Event::ChannelFailed { .. }
            | Event::Log { .. }
            | Event::Unknown(_) => return,
        }
        // The end of the phase repeats a cause and is not one itself.
        if !was_ending && self.ending.is_some() && !matches!(event, Event::PhaseFailed { .. }) {
            self.ended_by = Some(seq);
        }
        if was_limited || self.frames[FrameIx::FLOW].limited > 0 {
            self.note_limits(graph, task, at);
        }
        self.last_at = at;
    }

    /// What waited for a usage limit, or for its retry, when the session ended is not tried again.
    fn end_waits(&mut self) {
        let is_waiting = |node: &NodeState| node.retry_at.is_some() && !node.has_ended();
        let waiting = self.tasks().filter(|(_, node)| is_waiting(node)).map(|(task, _)| task);
        for task in waiting.collect::<Vec<_>>() {
            let node = self.node_mut(task);
            (node.status, node.retry_at) = (NodeStatus::Cancelled, None);
            self.touched.push(task);
        }
    }

    /// For a plan: what waits for a usage limit, or for its retry, waits no longer.
    pub(crate) fn let_waits_end(&mut self) {
        for frame in self.frames.iter_mut() {
            frame.nodes.iter_mut().for_each(|node| node.retry_at = None);
        }
    }

    /// Takes what concerns the session as a whole.
    fn take_session_fact(&mut self, graph: &Graph, seq: u64, at: Timestamp, event: &Event) {
        match event {
            Event::PhaseStart { .. } => self.phase_begun = true,
            Event::PhaseComplete { .. } => self.complete_phase(),
            Event::PhaseFailed { error, .. } => self.fail_phase(error),
            Event::HarnessComplete { outputs, .. } => {
                self.outputs.clone_from(outputs);
                self.end_waits();
            }
            Event::SessionPause { reason, cause } if self.session.status != SessionStatus::Paused => {
                self.pausing.get_or_insert_with(|| Pause { reason: reason.clone(), cause: *cause, seq });
            }
            Event::SessionAbort { reason } => {
                let error = reason.as_ref().map(|reason| {
                    AgentError::new(ErrorCode::Aborted, format!("the session was stopped: {reason}"))
                });
                if self.ending.is_none() {
                    self.stop_cleanup_in_frames(graph);
                } else if self.stop_cleanup(graph) {
                    (self.ending, self.ended_by) = (None, Some(seq));
                }
                self.end_early(Ending { outcome: Outcome::Stopped, error });
                let tasks: Vec<TaskRef> = self.tasks().map(|(task, _)| task).collect();
                tasks.into_iter().for_each(|task| self.clean_up_again(graph, task));
            }
            Event::FlowPaused { node_ids, .. } => self.pause(graph, node_ids),
            Event::FlowResumed { node_ids, message, messages, budget, idle_since } => {
                self.raised.merge(budget);
                self.releases += 1;
                let rest = at.since(idle_since.unwrap_or(self.last_at));
                self.resume(graph, node_ids, (message, messages), at, rest);
            }
            Event::FlowEnding { outcome, error } => {
                self.end_early(Ending { outcome: *outcome, error: error.clone() });
            }
            _ => {}
        }
    }

    /// Between the end of the phase and that of the session nothing may begin, also after a crash.
    fn complete_phase(&mut self) {
        self.phase_ended = true;
        // An older version took a failure as handled by a node that was skipped, and went on.
        let ends_well = |ending: &Ending| ending.outcome == Outcome::Success;
        let flow = &mut self.frames[FrameIx::FLOW];
        if flow.failure.is_some() && !self.ending.as_ref().is_some_and(ends_well) {
            flow.failure = None;
            flow.nodes.iter_mut().for_each(|node| node.tainted &= node.status != NodeStatus::Failed);
            (self.ending, self.ended_by) = (None, None);
            self.touch_frame(FrameIx::FLOW);
        }
    }

    /// The same after a failure.
    fn fail_phase(&mut self, error: &AgentError) {
        self.phase_ended = true;
        let outcome = self.outcome_of(error);
        self.end_early(Ending { outcome, error: Some(error.clone()) });
        // A flow whose time is up has failed by that, whatever else fails while it ends.
        self.frames[FrameIx::FLOW].failure = Some(error.clone());
    }

    /// Ends the run before its time, unless it ends already.
    fn end_early(&mut self, ending: Ending) {
        if self.ending.is_none() {
            self.ending = Some(ending);
            self.touch_frame(FrameIx::FLOW);
        }
    }

    /// The time that the session took so far, without pauses.
    fn used(&self) -> Duration {
        let here = self.started_at().map_or(Duration::ZERO, |started| self.last_at.since(started));
        self.used + here.saturating_sub(self.rested + self.limited)
    }

    /// How a session ends whose phase failed with this, unless its cause is among the facts already.
    fn outcome_of(&self, error: &AgentError) -> Outcome {
        match error.code {
            _ if self.failure() == Some(error) => Outcome::Partial,
            ErrorCode::BudgetExceeded => Outcome::BudgetExceeded,
            ErrorCode::Timeout => Outcome::TimedOut,
            ErrorCode::Aborted => Outcome::Stopped,
            _ => Outcome::Failed,
        }
    }

    /// The body that a frame runs.
    pub(crate) fn body<'g>(&self, graph: &'g Graph, frame: FrameIx) -> &'g Body {
        graph.body(self.frames[frame].body)
    }

    /// A task's node as the author wrote it, with the agent that works on it.
    pub fn spec<'g>(&self, graph: &'g Graph, task: TaskRef) -> &'g Node {
        let node = self.body(graph, task.frame).node(task.node);
        match &self.node(task).choice {
            Some(choice) => node.with_agent(choice.agent),
            None => node,
        }
    }

    /// The status of a task of an open frame.
    pub fn node(&self, task: TaskRef) -> &NodeState {
        &self.frames[task.frame].nodes[task.node]
    }

    pub(crate) fn node_mut(&mut self, task: TaskRef) -> &mut NodeState {
        &mut self.frames[task.frame].nodes[task.node]
    }

    /// The tasks of all open frames: those of the flow first, and then of each frame in the order in which it began.
    pub fn tasks(&self) -> impl DoubleEndedIterator<Item = (TaskRef, &NodeState)> {
        self.frames.iter().flat_map(FrameState::tasks)
    }

    /// The place of a task's next attempt or pass in the run.
    pub fn path(&self, graph: &Graph, task: TaskRef) -> NodePath {
        let frame = &self.frames[task.frame];
        frame.path(graph.body(frame.body), task.node)
    }

    /// The task at a path, if all that the path names is in the pass that it names.
    pub fn find(&self, graph: &Graph, path: Option<&NodePath>) -> Option<TaskRef> {
        let path = path?;
        let task = self.find_any_pass(graph, path)?;
        (self.node(task).pass == path.pass()).then_some(task)
    }

    /// The same, whatever the pass at the end of the path is.
    pub(crate) fn find_any_pass(&self, graph: &Graph, path: &NodePath) -> Option<TaskRef> {
        if !path.is_in_frame() {
            return graph.flow().find(path.node_and_pass().0).map(TaskRef::of_flow);
        }
        let mut frame = FrameIx::FLOW;
        let mut parts = path.parts().peekable();
        while let Some(part) = parts.next() {
            let node = self.body(graph, frame).find(part.node)?;
            let task = TaskRef { frame, node };
            if parts.peek().is_none() {
                return Some(task);
            }
            let state = self.node(task);
            if state.pass != part.pass {
                return None;
            }
            frame = *state.frames.as_ref()?.open.get(&part.index.unwrap_or_default())?;
        }
        None
    }

    /// The frame of the task of an event; that of the flow if the event names none.
    pub fn frame_of(&self, graph: &Graph, path: Option<&NodePath>) -> FrameIx {
        let task = path.filter(|path| path.is_in_frame()).and_then(|path| self.find_any_pass(graph, path));
        task.map_or(FrameIx::FLOW, |task| task.frame)
    }

    /// The frames around a frame, itself first and the flow last.
    pub(crate) fn around(&self, frame: FrameIx) -> impl Iterator<Item = &FrameState> {
        let owner = |frame: &&FrameState| frame.owner.map(|owner| &self.frames[owner.frame]);
        std::iter::successors(Some(&self.frames[frame]), owner)
    }
}
