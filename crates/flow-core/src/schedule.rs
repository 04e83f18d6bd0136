//! What runs next. [`Run::next`] makes one decision at a time from the facts; the runtime executes it and reports
//! what happened by [`Run::apply`]. Nothing here waits, and time is a parameter.
//!
//! The order of decisions: begin the session, end early or pause if there is cause, resolve the edges of what
//! has ended, start what is ready in the order of the graph, wait, end.

mod action;
mod agenda;
mod budget;
mod carry;
mod conclude;
mod conversations;
mod end;
mod fallback;
pub(crate) mod files;
mod foreach;
mod frames;
mod inherit;
mod items;
mod loops;
mod plan;
mod ready;
mod resume;
mod reusable;
mod reusable_task;
mod reuse;
mod reuse_order;
mod select;
mod settle;

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    path::Path,
    sync::{Arc, OnceLock},
};

use inspan_protocol::{
    AgentError, Envelope, ErrorCode, Event, NodePath, NodeStatus, Outcome, RunSnapshot, SessionId,
    SessionStatus, Timestamp,
};
use serde_json::{Map, Value, json};

use crate::{
    expr::{Passes, Scope},
    graph::{Body, EdgeIx, FrameIx, FramesKind, Graph, NodeIx, SessionMode, TaskRef},
    node::NodeKind,
    state::{Facts, NodeState},
};
pub use action::{Action, AttemptEnd, CancelCause, StartNode};
pub(crate) use agenda::Agenda;
pub(crate) use carry::CarriedRun;
pub(crate) use foreach::{MOST_ITEMS, product};
use items::ItemBefore;
pub(crate) use plan::NotReused;
pub use plan::{Plan, Planned, ReuseDecision, ReuseReason};
pub use resume::{Interrupted, MessageError};
pub use reusable::Reusable;
use reuse_order::Deferral;
pub use select::Missing;
pub(crate) use select::Selected;

/// A run: its graph, what it was given, and the fold of its facts.
#[derive(Clone, Debug)]
pub struct Run {
    graph: Arc<Graph>,
    session: SessionId,
    flow: Value,
    vars: Value,
    max_concurrency: u32,
    facts: Facts,
    agenda: Agenda,
    /// When the newest decision was asked for.
    looked_at: Timestamp,
    /// Attempts whose end was requested, by node: a decision is given once.
    cancelled: Vec<(TaskRef, u32, CancelCause)>,
    /// Nodes about which this process has asked a person, with the interrupted attempt.
    asked: BTreeMap<TaskRef, u32>,
    /// Tasks that could start and must wait, mostly agents for a budget. They are asked again when something of their own
    /// changes, and all of them after a release.
    held: BTreeSet<TaskRef>,
    /// Tasks that could start and wait until what came before them in the earlier session is reused.
    put_off: BTreeSet<TaskRef>,
    /// Nodes that decide whether a failure is handled, and are not to be skipped.
    handlers_that_run: BTreeSet<TaskRef>,
    /// How many releases there were when they were asked.
    releases: u64,
    /// Loop edges that are to fire once nothing else of their loops can run, and the newest fact when they were last
    /// checked.
    going_back: Vec<(FrameIx, EdgeIx)>,
    going_back_at: u64,
    /// Nodes, and the flow, of which a log entry says that a price is unknown.
    warned: Vec<Option<TaskRef>>,
    /// The same for tokens.
    warned_of_tokens: Vec<Option<TaskRef>>,
    has_node_budgets: bool,
    /// Work of an earlier session that need not be done again.
    reusable: Option<Arc<Reusable>>,
    /// Whether that session ran the same flow with the same input.
    same_flow: bool,
    /// Whether everything that is reused there gives what it gave then.
    same_values: bool,
    /// The nodes of each body that end its frame, if there is such work.
    ends: Vec<Vec<NodeIx>>,
    /// `flow` as it is the same in each session that does this work: any id, and any folder.
    any_flow: OnceLock<Value>,
    /// The folder `flow.artifacts` by the path that led to it.
    artifacts_named: String,
    /// Whether its agents are played from recordings, whose limits were waited for already.
    is_replay: bool,
    /// Where the items of each node were in the earlier session.
    items_before: BTreeMap<TaskRef, Vec<ItemBefore>>,
    planning: Planning,
}

/// Whether the decisions are only shown, and not executed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Planning {
    #[default]
    Off,
    On,
}

impl Run {
    /// A run before its first fact. `input` is what the flow was given, defaults included.
    pub fn new(
        graph: Arc<Graph>,
        session: &SessionId,
        input: Map<String, Value>,
        max_concurrency: Option<u32>,
    ) -> Self {
        let flow = json!({ "name": graph.name, "sessionId": session, "input": input });
        let vars = graph.state.clone().into();
        let limit = max_concurrency.or(graph.flow().policy.max_concurrency).unwrap_or(u32::MAX).max(1);
        let facts = Facts::new(&graph);
        let agenda = Agenda::rebuild(&graph, &facts);
        let nodes = graph.bodies.iter().flat_map(|body| &body.nodes);
        let has_node_budgets = nodes.into_iter().any(|node| node.policy.budget.is_some())
            || graph.bodies.iter().skip(1).any(|body| body.policy.budget.is_some());
        Self {
            graph,
            session: session.clone(),
            flow,
            vars,
            max_concurrency: limit,
            facts,
            agenda,
            looked_at: Timestamp::default(),
            cancelled: Vec::new(),
            asked: BTreeMap::new(),
            held: BTreeSet::new(),
            put_off: BTreeSet::new(),
            handlers_that_run: BTreeSet::new(),
            releases: 0,
            going_back: Vec::new(),
            going_back_at: 0,
            warned: Vec::new(),
            warned_of_tokens: Vec::new(),
            has_node_budgets,
            reusable: None,
            same_flow: false,
            same_values: false,
            ends: Vec::new(),
            any_flow: OnceLock::new(),
            artifacts_named: String::new(),
            is_replay: false,
            items_before: BTreeMap::new(),
            planning: Planning::Off,
        }
    }

    /// The same run, whose templates see this folder as `flow.artifacts`: it is for what the nodes of the session
    /// leave. What earlier sessions left may be `named` by another path to the same folder.
    #[must_use]
    pub fn with_artifacts(mut self, folder: &Path, named: &Path) -> Self {
        self.flow["artifacts"] = folder.to_string_lossy().into();
        self.artifacts_named = named.to_string_lossy().into();
        self
    }

    /// The same run, whose agents are played from recordings.
    #[must_use]
    pub fn replayed(self) -> Self {
        Self { is_replay: true, ..self }
    }

    /// The graph.
    pub fn graph(&self) -> &Arc<Graph> {
        &self.graph
    }

    /// The fold so far.
    pub fn state(&self) -> &Facts {
        &self.facts
    }

    /// How many attempts may work at once.
    pub(crate) fn max_concurrency(&self) -> u32 {
        self.max_concurrency
    }

    /// The session.
    pub(crate) fn session(&self) -> &SessionId {
        &self.session
    }

    /// Takes one event of the log.
    pub fn apply(&mut self, envelope: &Envelope) {
        let Envelope { seq, timestamp, context, event, .. } = envelope;
        self.take(*seq, *timestamp, context.task.as_ref(), event);
    }

    /// As `apply`, with only what counts of an envelope.
    fn take(&mut self, seq: u64, at: Timestamp, task: Option<&NodePath>, event: &Event) {
        if seq > self.facts.session.last_seq {
            self.facts.take(&self.graph, seq, at, task, event);
            self.agenda.update(&self.graph, &self.facts);
            for task in self.facts.touched.drain(..) {
                self.held.remove(&task);
                self.put_off.remove(&task);
                self.handlers_that_run.remove(&task);
            }
            match event {
                Event::FrameComplete { .. } | Event::FrameFailed { .. } | Event::FrameCancelled { .. } => {
                    self.forget_closed_frames();
                }
                Event::FrameItems { .. } if self.reusable.is_some() => {
                    let owner = task.and_then(|path| self.facts.find_any_pass(&self.graph, path));
                    owner.into_iter().for_each(|owner| self.find_items(owner));
                }
                _ => {}
            }
        }
    }

    /// What was decided about tasks of frames that are closed counts no more.
    fn forget_closed_frames(&mut self) {
        let is_open = |frame: FrameIx| self.facts.frames.get(frame).is_some();
        self.cancelled.retain(|(task, ..)| is_open(task.frame));
        self.asked.retain(|task, _| is_open(task.frame));
        self.held.retain(|task| is_open(task.frame));
        self.put_off.retain(|task| is_open(task.frame));
        self.handlers_that_run.retain(|task| is_open(task.frame));
        self.items_before.retain(|owner, _| is_open(owner.frame));
        self.going_back.retain(|(frame, _)| is_open(*frame));
        for warned in [&mut self.warned, &mut self.warned_of_tokens] {
            warned.retain(|task| task.is_none_or(|task| is_open(task.frame)));
        }
    }

    /// Puts the next decision into `actions`, which is empty before; it stays so if there is nothing to do
    /// until something happens. Every emitted event must be applied before this is called again.
    pub fn next(&mut self, now: Timestamp, actions: &mut Vec<Action>) {
        if self.facts.session.status == SessionStatus::Idle {
            actions.push(emit(Event::HarnessStart { name: self.graph.name.clone() }));
            return;
        }
        if !self.facts.phase_begun {
            actions.push(emit(Event::PhaseStart { name: self.graph.phase.clone(), phase_number: Some(1) }));
            return;
        }
        if self.facts.session.outcome.is_some() || self.facts.session.status == SessionStatus::Paused {
            return;
        }
        if self.facts.phase_ended {
            // The process died between the end of the phase and that of the session.
            let ending = self.facts.ending.clone();
            let (outcome, error) = ending.map_or((Outcome::Success, None), |end| (end.outcome, end.error));
            return self.finish(outcome, error, now, actions);
        }
        self.looked_at = now;
        if self.releases != self.facts.releases {
            self.releases = self.facts.releases;
            self.held.clear();
        }
        self.look_at_time(now, actions);
        if actions.is_empty() {
            self.check_budgets(actions);
        }
        if !actions.is_empty() {
            return;
        }
        if self.facts.ending.is_some() {
            return self.wind_down(now, actions);
        }
        if self.facts.pausing.is_some() {
            return self.pause_when_idle(actions);
        }
        self.follow_up(now, actions);
        while actions.is_empty()
            && let Some(task) = self.candidate(now)
        {
            self.consider(task, Deferral::Allowed, actions);
        }
        if actions.is_empty() {
            self.reuse_ends(actions);
        }
        if actions.is_empty() {
            self.open_next_frame(now, actions);
        }
        if actions.is_empty() {
            self.start_deferred(actions);
        }
        if actions.is_empty() {
            self.rest(now, actions);
        }
    }

    /// Decides what follows from the ends of nodes and frames.
    fn follow_up(&mut self, now: Timestamp, actions: &mut Vec<Action>) {
        self.wind_down_frames(actions);
        if actions.is_empty() {
            self.settle_ended(actions);
        }
        if actions.is_empty() {
            self.step_frames(now, actions);
        }
        if actions.is_empty() {
            self.go_back(actions);
        }
    }

    /// The fold as data; `input` is what the flow was given.
    pub fn snapshot(&self, input: &Map<String, Value>) -> RunSnapshot {
        self.facts.snapshot(&self.graph, &self.session, input)
    }

    /// Begins with a saved state instead of an empty one.
    pub fn restore(&mut self, snapshot: &RunSnapshot) {
        self.facts = Facts::restore(&self.graph, snapshot);
        self.agenda = Agenda::rebuild(&self.graph, &self.facts);
        self.going_back.clear();
    }

    /// When to ask again even if nothing happens.
    pub fn wake_at(&self) -> Option<Timestamp> {
        let node = self.agenda.next_timer(self.looked_at);
        let flow = self
            .flow_deadline()
            .filter(|_| self.facts.ending.is_none() && self.facts.session.outcome.is_none());
        node.into_iter().chain(flow).min()
    }

    /// The attempts that must be in flight now.
    pub fn outstanding(&self) -> Vec<StartNode> {
        let at_work = |node: &NodeState| node.status == NodeStatus::Running && node.frames.is_none();
        let running = self.facts.tasks().filter(|(_, node)| at_work(node));
        running.map(|(task, node)| self.attempt(task, node.attempt)).collect()
    }

    /// The input of the newest attempt of a task, evaluated from the present state of the run: exact right
    /// after its `task:start`. `None` for a node that runs frames, and if the input cannot be evaluated.
    pub fn input_of(&self, path: &NodePath) -> Option<Value> {
        let task = self.facts.find(&self.graph, Some(path))?;
        let node = self.facts.spec(&self.graph, task);
        if node.kind == NodeKind::Frames {
            return None;
        }
        self.scoped(task.frame, &self.locals(task), |scope| node.input.resolve(scope)).ok()
    }

    fn attempt(&self, task: TaskRef, attempt: u32) -> StartNode {
        let node = self.facts.spec(&self.graph, task);
        let state = &self.facts.node(task);
        // The items of a foreach and the input of a subflow are evaluated once it has begun.
        let input = match node.kind {
            NodeKind::Frames => Ok(Value::Null),
            _ => self.scoped(task.frame, &self.locals(task), |scope| node.input.resolve(scope)),
        };
        let input = input.map_err(AgentError::from);
        let interrupted = state.interrupted.then(|| Box::new(self.interrupted(task)));
        let has_message = interrupted.as_ref().is_some_and(|cut| cut.message.is_some());
        let own = (has_message && state.has_named()).then_some(task);
        let named = self.conversation_to_join(task);
        let (conversation, branches) = match (own, named) {
            (Some(own), named) => {
                let fork = named.and_then(|(mode, known)| (mode == SessionMode::Fork).then_some(known));
                (self.facts.node(own).conversation.clone(), fork)
            }
            (None, Some((SessionMode::Fork, known))) => (None, Some(known)),
            (None, named) => (named.map(|(_, known)| known), None),
        };
        let mail = if has_message { Vec::new() } else { self.unanswered_mail(task) };
        StartNode {
            node: task,
            path: self.facts.path(&self.graph, task),
            attempt,
            input,
            conversation,
            branches,
            mail,
            interrupted,
        }
    }

    /// The next node whose edges can be resolved. One whose loop is about to go round waits for that.
    fn next_ended(&self) -> Option<TaskRef> {
        let goes_back = |task: &TaskRef| {
            let mut loops = self.facts.spec(&self.graph, *task).loops.iter();
            loops.any(|edge| self.going_back.contains(&(task.frame, *edge)))
        };
        self.agenda.ended().find(|task| self.going_back.is_empty() || !goes_back(task))
    }

    fn cancel(&mut self, node: TaskRef, reason: CancelCause, actions: &mut Vec<Action>) {
        let attempt = self.facts.node(node).attempt;
        if !self.cancelled.iter().any(|&(task, n, _)| task == node && n == attempt) {
            self.cancelled.push((node, attempt, reason));
            actions.push(Action::Cancel { node, attempt, reason });
        }
    }

    /// Has the time of a running attempt end at this moment.
    pub(crate) fn put_off_attempt(&mut self, node: TaskRef, deadline: Timestamp) {
        self.facts.put_off_attempt(node, deadline);
        self.agenda.update(&self.graph, &self.facts);
    }

    fn flow_deadline(&self) -> Option<Timestamp> {
        let left = self.graph.flow().policy.timeout?.saturating_sub(self.facts.used);
        let is_limited = self.facts.frames[FrameIx::FLOW].limited_since.is_some();
        let deadline = self.facts.started_at()? + self.facts.rested + self.facts.limited + left;
        Some(deadline).filter(|_| !is_limited)
    }

    /// Cancels attempts whose time is up, and ends the run if its own is.
    fn look_at_time(&mut self, now: Timestamp, actions: &mut Vec<Action>) {
        if self.facts.ending.is_none() && self.flow_deadline().is_some_and(|deadline| deadline <= now) {
            let limit = self.graph.flow().policy.timeout.unwrap_or_default();
            let message = format!("flow `{}` did not end within its timeout of {limit:?}", self.graph.name);
            let error = AgentError::new(ErrorCode::Timeout, message);
            return actions.push(ending(Outcome::TimedOut, error));
        }
        self.end_overdue_frames(now, actions);
        let at_work = |node: &NodeState| node.status == NodeStatus::Running && node.frames.is_none();
        // An answer ends its node, however late the node begins again with it.
        let is_late = |node: &NodeState, task: TaskRef| at_work(node) && !self.is_answered(task, node);
        let expired = self.agenda.due(now).filter(|task| is_late(self.facts.node(*task), *task));
        for task in expired.collect::<Vec<_>>() {
            self.cancel(task, CancelCause::TimedOut, actions);
        }
    }

    /// Evaluates with what the expressions of a frame see: its own nodes and names, and those around it.
    pub(crate) fn scoped<R>(
        &self,
        frame: FrameIx,
        locals: &Value,
        evaluate: impl FnOnce(&Scope<'_>) -> R,
    ) -> R {
        self.scoped_in(&self.flow, frame, locals, evaluate)
    }

    /// The same with another value of `flow`.
    fn scoped_in<R>(
        &self,
        flow: &Value,
        frame: FrameIx,
        locals: &Value,
        evaluate: impl FnOnce(&Scope<'_>) -> R,
    ) -> R {
        let mut evaluate = Some(evaluate);
        let mut result = None;
        self.within_scope(flow, frame, locals, &mut |scope| {
            result = evaluate.take().map(|evaluate| evaluate(scope));
        });
        result.expect("a scope is entered once")
    }

    fn within_scope(
        &self,
        flow: &Value,
        frame: FrameIx,
        locals: &Value,
        evaluate: &mut dyn FnMut(&Scope<'_>),
    ) {
        let state = &self.facts.frames[frame];
        let (set, kind) = match state.owner {
            Some(owner) => (
                self.facts.node(owner).frames.as_deref(),
                self.facts.spec(&self.graph, owner).frames.as_deref().map(|frames| &frames.kind),
            ),
            None => (None, None),
        };
        let make =
            || set.map(|set| set.passes_before(state.index)).unwrap_or_else(|| Value::Array(Vec::new()));
        let own = Passes::new(&make);
        let passes = matches!(kind, Some(FramesKind::Loop { .. })).then_some(&own);
        let scope = Scope { passes, ..Scope::new(&state.outputs, flow, &self.vars, locals) };
        let Some(owner) = state.owner else { return evaluate(&scope) };
        match &self.facts.body(&self.graph, frame).subflow {
            Some(subflow) => {
                let mut flow = flow.clone();
                if let Some(flow) = flow.as_object_mut() {
                    flow.insert("name".to_owned(), subflow.name.clone().into());
                    flow.insert("input".to_owned(), state.input.as_deref().cloned().unwrap_or_default());
                }
                evaluate(&Scope { flow: &flow, state: &subflow.state, ..scope });
            }
            None => self.within_scope(flow, owner.frame, &self.locals(owner), &mut |outer| {
                evaluate(&Scope { flow: outer.flow, state: outer.state, outer: Some(outer), ..scope });
            }),
        }
    }

    /// What the expressions of a task, and of the edges out of it, see beside the nodes.
    pub(crate) fn locals(&self, task: TaskRef) -> Cow<'_, Value> {
        self.facts.locals(task)
    }
}

fn emit(event: Event) -> Action {
    Action::Emit { task: None, event }
}

/// The decision to end the run before its time.
fn ending(outcome: Outcome, error: AgentError) -> Action {
    emit(Event::FlowEnding { outcome, error: Some(error) })
}

fn edge_name(body: &Body, edge: &crate::graph::Edge) -> String {
    format!("`{} -> {}`", body.node(edge.from).id, body.node(edge.to).id)
}

#[cfg(test)]
mod tests;
