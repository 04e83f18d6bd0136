//! Work that was done before and need not be done again. A node's output is reused if its type and its input,
//! with all bindings evaluated, are unchanged, and if the outputs of all its predecessors are reused too: what
//! a node does may depend on the side effects of its predecessors, and not only on their outputs.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use inspan_protocol::{
    AgentError, BudgetRaise, Envelope, ErrorCode, Event, FrameSpending, NodeId, NodePath, NodeStatus,
    ProviderSessionId, SessionId, Spending, Timestamp,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{
    ReuseReason, Run, StartNode,
    inherit::Begun,
    items::ItemMatch,
    resume::joined,
    reusable_task::{ReusableTask, TurnInConversation},
    select::Selected,
};
use crate::{
    expr::Template,
    graph::{EdgeOn, FrameIx, FramesKind, Graph, OnFailure, OnItemError, TaskRef},
    node::{NodeKind, Occupies},
    state::{Facts, NotRaised, frame_prefix},
};

/// What an earlier session has left.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Reusable {
    pub(super) session: SessionId,
    /// Those that it reuses itself, the newest first.
    #[serde(default)]
    older: Vec<SessionId>,
    /// The hash of its flow, and the input of that.
    #[serde(default)]
    hash: String,
    #[serde(default)]
    input: Value,
    pub(super) tasks: BTreeMap<NodePath, ReusableTask>,
    /// What identified the items of each node that gave them keys.
    #[serde(default)]
    pub(super) keys: BTreeMap<NodePath, Vec<String>>,
    /// The items of each node.
    #[serde(default)]
    pub(super) items: BTreeMap<NodePath, Arc<Value>>,
    /// What counts against its budgets: in all, and by its nodes.
    spent: Spending,
    spent_by: BTreeMap<NodeId, Spending>,
    /// What counts against budgets within frames, by what the paths of the frame's nodes begin with.
    #[serde(default)]
    pub(super) spent_in: BTreeMap<String, FrameSpending>,
    /// Its budgets that were raised.
    #[serde(default)]
    raised: BudgetRaise,
    /// The place that runs again because it was asked for, and so do its later passes.
    pub(super) again: Option<NodePath>,
    /// More of them.
    #[serde(default)]
    pub(super) also_again: Vec<NodePath>,
    /// The nodes and items of the flow that failed and after which it went on.
    #[serde(default)]
    pub(super) handled_failures: Vec<NodePath>,
    /// The places in the file of tasks that are tried again although the session went on after they had failed.
    #[serde(default)]
    pub(super) tried_again: BTreeSet<NodePath>,
    /// Whether the session may go on itself, in the conversations that are taken over too.
    #[serde(default)]
    pub(super) may_go_on: bool,
    /// The conversations that went on after the last event that counts, each with a node that they went on at.
    #[serde(default)]
    pub(super) went_on: BTreeMap<ProviderSessionId, NodePath>,
    /// The turns in its conversations, those that it has taken over first.
    #[serde(default)]
    pub(super) turns: Vec<TurnInConversation>,
    /// The conversations that it continued on a branch, each with the newest branch.
    #[serde(default)]
    pub(super) branched: BTreeMap<ProviderSessionId, ProviderSessionId>,
    /// Where what it could still take over itself was in the session before, each with its place in this one.
    #[serde(skip)]
    pub(super) inherited: BTreeMap<NodePath, NodePath>,
}

impl Reusable {
    /// What a session has left, from its run before the first event and its log, up to an event. If the run reuses the
    /// work of another session itself, what it has not taken over yet is left too.
    pub fn of(mut run: Run, log: &[Arc<Envelope>], until: u64) -> Self {
        let graph = run.graph.clone();
        let mut found = Self {
            session: run.session.clone(),
            hash: graph.hash.clone(),
            input: run.flow["input"].clone(),
            older: run.reusable.iter().flat_map(|from| from.sessions().cloned()).collect(),
            tasks: BTreeMap::new(),
            keys: BTreeMap::new(),
            items: BTreeMap::new(),
            spent: Spending::default(),
            spent_by: BTreeMap::new(),
            spent_in: BTreeMap::new(),
            raised: BudgetRaise::default(),
            again: None,
            also_again: Vec::new(),
            handled_failures: Vec::new(),
            tried_again: BTreeSet::new(),
            may_go_on: false,
            went_on: BTreeMap::new(),
            turns: Vec::new(),
            branched: BTreeMap::new(),
            inherited: BTreeMap::new(),
        };
        for envelope in log.iter().skip_while(|envelope| envelope.seq <= until) {
            if let (Event::AgentSession { session_id, .. }, Some(path)) =
                (&envelope.event, &envelope.context.task)
            {
                found.went_on.insert(session_id.clone(), path.clone());
            }
        }
        let mut begun = Begun::new();
        for envelope in log.iter().take_while(|envelope| envelope.seq <= until) {
            let path = envelope.context.task.as_ref();
            match (&envelope.event, path) {
                (Event::FrameItems { keys: named, items: all, .. }, Some(path)) => {
                    found.items.insert(path.clone(), all.clone());
                    if !named.is_empty() {
                        found.keys.insert(path.clone(), named.clone());
                    }
                }
                (
                    Event::FrameComplete { index, .. }
                    | Event::FrameFailed { index, .. }
                    | Event::FrameCancelled { index, .. },
                    path,
                ) => {
                    if let Some(frame) = run.facts.open_frame_of(&graph, path, *index) {
                        found.note_frame(&run, frame, &begun);
                    }
                }
                (Event::LoopIterate { .. }, path) => {
                    found.note_failures(&run, run.facts.frame_of(&graph, path))
                }
                (Event::FrameStart { index, .. }, Some(path)) => {
                    begun.entry(path.clone()).or_default().insert(*index);
                }
                (Event::TaskStart { since, session_id, .. }, Some(path)) => {
                    let Some(at) = run.facts.find_any_pass(&graph, path) else { continue };
                    let before = found.tasks.remove(path);
                    let task = ReusableTask::begun(&run, at, before, session_id.as_ref(), *since, envelope);
                    found.tasks.insert(path.clone(), task);
                }
                (Event::TaskReused { result, session_id, turn_id, error, .. }, Some(path)) => {
                    let Some(at) = run.facts.find_any_pass(&graph, path) else { continue };
                    let task = ReusableTask {
                        output: error.is_none().then(|| result.clone()),
                        error: error.clone(),
                        conversation: session_id.clone(),
                        turn_id: turn_id.clone(),
                        answered_by_person: run.was_answered_before(at),
                        ..ReusableTask::of(&run, at)
                    };
                    found.tasks.insert(path.clone(), task);
                }
                (Event::SessionReply { prompt_id, is_default, .. }, _) => {
                    found.note_who_answered(&run, prompt_id, *is_default);
                }
                (Event::TaskAgent { after: Some(_), .. }, Some(path)) => {
                    let at = run.facts.find_any_pass(&graph, path);
                    let begun = found.tasks.entry(path.clone());
                    if let Some(at) = at {
                        begun.or_insert_with(|| ReusableTask::of(&run, at)).take(&envelope.event);
                    }
                }
                (event, Some(path)) => {
                    found.note_branch(&run, path, event);
                    if let Some(task) = found.tasks.get_mut(path) {
                        task.take(event);
                        run.keep_conversation(path, task);
                        found.turns.extend(task.turn_of(path, event));
                    }
                }
                _ => {}
            }
            run.apply(envelope);
        }
        for frame in run.facts.frames.iter() {
            found.note_frame(&run, frame.id, &begun);
        }
        // In a log that was cut earlier they are known to have gone on.
        if log.last().is_none_or(|last| last.seq <= until) {
            run.end_unseen();
        }
        found.note_mail(&run);
        found.note_answers(&run);
        if run.facts.session.outcome.is_some() {
            found.withdraw_questions();
        }
        found.take_older_turns(&run);
        run.count_older();
        found.handled_failures = run.facts.handled_failures(&graph);
        found.spent = run.facts.spent();
        found.spent_by = run.facts.frames[FrameIx::FLOW].spending(graph.flow()).nodes;
        found.raised = run.facts.raised;
        found
    }

    /// Notes what was spent in a frame, and what its nodes could still take over.
    fn note_frame(&mut self, run: &Run, frame: FrameIx, begun: &Begun) {
        let state = &run.facts.frames[frame];
        if state.owner.is_some() && !state.spent.is_zero() {
            let spending = state.spending(run.facts.body(&run.graph, frame));
            self.spent_in.insert(state.prefix.clone(), spending);
        }
        self.note_failures(run, frame);
        self.inherit(run, frame, begun);
    }

    /// Notes which failures of a frame's nodes were handled.
    fn note_failures(&mut self, run: &Run, frame: FrameIx) {
        let state = &run.facts.frames[frame];
        let goes_on = state.owner.is_some_and(|owner| goes_on_without_items(run, owner));
        for (task, node) in state.tasks().filter(|(_, node)| node.status == NodeStatus::Failed) {
            if let Some(noted) = self.tasks.get_mut(&run.facts.path(&run.graph, task)) {
                noted.is_handled = !node.tainted || goes_on;
                noted.policy = policy_words(run, task);
            }
        }
    }

    /// Whether the session went on after the failure of a task: it was handled in its frame, or that of the node around
    /// it was.
    pub(super) fn went_on_after(&self, path: &NodePath) -> bool {
        self.tasks.get(path).filter(|task| !task.is_tried_again).is_some_and(|task| {
            let is_owners = || {
                task.final_error().is_some() && path.owner().is_some_and(|owner| self.went_on_after(&owner))
            };
            task.is_handled || is_owners()
        })
    }

    /// The session, what it has spent, and what single nodes of it have.
    pub(super) fn spending(&self) -> (&SessionId, Spending, &BTreeMap<NodeId, Spending>) {
        (&self.session, self.spent, &self.spent_by)
    }

    /// The session, and those whose work it reuses itself.
    pub(super) fn sessions(&self) -> impl Iterator<Item = &SessionId> {
        [&self.session].into_iter().chain(&self.older)
    }

    /// Its budgets that were raised.
    pub(super) fn raised(&self) -> &BudgetRaise {
        &self.raised
    }

    /// As [`Run::check_raise`], for the session that reuses this work.
    pub fn check_raise(&self, graph: &Graph, budgets: &BudgetRaise) -> Result<(), NotRaised> {
        let mut facts = Facts::new(graph);
        facts.carry(graph, self.spent, &self.spent_by, &self.raised);
        facts.check_raise(graph, budgets)
    }

    /// Raises budgets of the session that reuses this work.
    pub fn raise(&mut self, budgets: &BudgetRaise) {
        self.raised.merge(budgets);
    }

    /// Forgets what was raised of budgets that the author has changed since.
    pub fn forget_raises(&mut self, before: &Graph, now: &Graph) {
        let budget = |graph: &Graph| graph.flow().policy.budget;
        if budget(before) != budget(now) {
            self.raised.flow = None;
        }
        let of_node = |graph: &Graph, place: &NodePath| Some(graph.find_place(place).ok()?.policy.budget);
        self.raised.nodes.retain(|place, _| of_node(before, place) == of_node(now, place));
        let of_body = |graph: &Graph, place: &NodePath| Some(graph.find_body(place).ok()?.policy.budget);
        self.raised.bodies.retain(|place, _| of_body(before, place) == of_body(now, place));
    }

    pub(super) fn task(&self, path: &NodePath) -> Option<&ReusableTask> {
        self.tasks.get(path).filter(|_| !self.runs_again(path))
    }

    /// The tasks in the frames of another one.
    pub(super) fn within<'a>(&'a self, owner: &'a NodePath) -> impl Iterator<Item = &'a NodePath> {
        self.tasks.keys().filter(move |path| {
            let rest = path.as_str().strip_prefix(owner.as_str());
            rest.is_some_and(|rest| rest.starts_with(['/', '[']))
        })
    }

    /// Whether a task was done, or failed and the session went on after that.
    pub(super) fn has_finished(&self, path: &NodePath) -> bool {
        self.tasks.get(path).is_some_and(|task| task.output.is_some()) || self.went_on_after(path)
    }

    /// Whether it has run a task at this place, in this pass.
    pub(super) fn has(&self, path: &NodePath) -> bool {
        self.tasks.contains_key(path)
    }

    /// Whether it has run a node of this pass, or anything in this frame.
    pub fn has_run(&self, place: &NodePath) -> bool {
        self.tasks.keys().any(|path| path.is_within(place))
    }

    /// Says that the session may go on while another one reuses its work.
    pub fn branch_off(&mut self) {
        self.may_go_on = true;
        self.forget_unfinished();
        self.tasks.values_mut().for_each(|task| task.since = None);
    }

    /// Questions that were open when the session ended are asked anew, with their whole time: nobody could answer them
    /// since.
    fn withdraw_questions(&mut self) {
        self.tasks.values_mut().filter(|task| task.asked).for_each(|task| task.since = None);
    }

    /// Drops the conversations of interrupted attempts: they start new ones. For a session that branches off while
    /// the old one may still continue them.
    pub(crate) fn forget_unfinished(&mut self) {
        self.tasks.values_mut().for_each(ReusableTask::forget_unfinished);
    }

    /// The same for those conversations alone that the session has continued since. The others are continued by the session
    /// that replaces it: what their agents did is paid.
    pub(crate) fn forget_continued(&mut self) {
        let went_on = &self.went_on;
        let is_used = |known: &ProviderSessionId| went_on.contains_key(known);
        let tasks = self.tasks.values_mut();
        tasks
            .filter(|task| task.conversation.as_ref().is_some_and(is_used))
            .for_each(ReusableTask::forget_unfinished);
    }
}

impl Run {
    /// Makes the run reuse what an earlier session has done, if there is one.
    #[must_use]
    pub fn reusing(mut self, reusable: impl Into<Option<Arc<Reusable>>>) -> Self {
        self.reusable = reusable.into();
        self.same_flow = self
            .reusable
            .as_ref()
            .is_some_and(|reusable| reusable.hash == self.graph.hash && reusable.input == self.flow["input"]);
        self.same_values = self.same_flow && !self.reusable.as_ref().is_some_and(|left| left.enters_again());
        self.find_ends();
        self.find_all_items();
        self
    }

    /// Whether a node that runs frames is reused as a whole: nothing can have changed within them, and nothing there is to
    /// run again. Else its output is computed from the outputs of its frames.
    fn is_reused_whole(&self, at: TaskRef, reusable: &Reusable, before: &NodePath) -> bool {
        let is_same = || self.same_values || self.times_out_again(at, reusable, before);
        is_same() && !reusable.runs_again_within(before) && self.selected(at) != Selected::Around
    }

    /// Whether a node that runs frames had run out of its own time, which says nothing of its frames, and would do the same
    /// again.
    fn times_out_again(&self, at: TaskRef, reusable: &Reusable, before: &NodePath) -> bool {
        let Some(task) = reusable.task(before) else { return false };
        let is_same_item = || self.path_before(reusable, at, ItemMatch::Same).is_some();
        task.final_error().is_some_and(|error| *error == self.timed_out(at))
            && task.frames.is_some()
            && task.frames == self.frames_words(at)
            && reusable.input == self.flow["input"]
            && is_same_item()
    }

    /// The event that reuses a node's output, if that is possible; else the attempt may continue a conversation
    /// that was interrupted.
    pub(super) fn reuse(&self, attempt: &mut StartNode) -> Option<Event> {
        let at = attempt.node;
        let (reusable, before) = self.before(at)?;
        let task = reusable.task(&before)?;
        let runs_frames = self.facts.spec(&self.graph, at).kind == NodeKind::Frames;
        if runs_frames && !self.is_reused_whole(at, reusable, &before) {
            return None;
        }
        if self.differs(at, task, attempt.input.as_ref().ok()).is_some() {
            return None;
        }
        let reused = |result, error| Event::TaskReused {
            task_id: self.facts.spec(&self.graph, at).id.clone(),
            from: format!("{}/{before}", reusable.session),
            session_id: task.conversation.as_ref().map(|known| reusable.newest(known).clone()),
            turn_id: task.turn_id.clone(),
            result,
            error,
        };
        if let Some(output) = &task.output {
            let output = self.with_own_files(output).map_or_else(|| output.clone(), Arc::new);
            return Some(reused(output, None));
        }
        let failure = self.failure_taken_over(at, reusable, &before);
        let tried = self.facts.node(at).choice.as_ref().map_or(0, |choice| choice.tried.len());
        if let Some(event) = task.fallbacks.get(tried) {
            // What the agents before it did is done, also if the last one failed.
            return Some(event.clone());
        }
        if let Some(output) = task.undecided().filter(|_| tried == task.fallbacks.len()) {
            match self.after_output(at, output.clone()).map_err(|event| *event) {
                Ok(output) => return Some(reused(Arc::new(output), None)),
                Err(Event::TaskFailed { error, .. }) => attempt.input = Err(error),
                Err(event) => return Some(event),
            }
        }
        if let Some(error) = failure {
            return Some(reused(Arc::default(), Some(error.clone())));
        }
        if tried > task.fallbacks.len() {
            return None;
        }
        if let Some(since) = task.since.filter(|_| self.only_waits(at)) {
            attempt.interrupted.get_or_insert_default().since.get_or_insert(since);
        }
        let answered = self.stored_answer(attempt, task);
        if let Some(output) = answered.as_ref().and_then(|answered| self.output_of_answer(at, answered)) {
            return Some(reused(Arc::new(output), None));
        }
        let (asked, reply) = answered.unzip();
        if reply.is_some() {
            let cut = attempt.interrupted.get_or_insert_default();
            (cut.asked, cut.reply) = (asked.clone(), reply.clone());
        }
        let goes_on = task.error.as_ref().is_none_or(|error| task.worked && error.leaves_conversation());
        let fresh = self.facts.node(at).failures == 0 && goes_on;
        // A node that has named a conversation in this session continues that one.
        let own = attempt.interrupted.as_ref().is_some_and(|cut| cut.message.is_some());
        if let Some(session_id) = task.conversation.as_ref().filter(|_| fresh && !own) {
            let session_id = session_id.clone();
            attempt.conversation = Some(crate::state::Conversation::new(session_id));
            let since = attempt.interrupted.as_ref().and_then(|cut| cut.since);
            let message = Some(joined(&std::mem::take(&mut attempt.mail)));
            let before = Some((reusable.session.clone(), before));
            let older = task.older.clone();
            let cut = super::Interrupted { since, message, asked, reply, before, older };
            attempt.interrupted = Some(Box::new(cut));
        }
        None
    }

    /// Whether a task only waits, for a person or a time, and no attempt of this pass has failed.
    fn only_waits(&self, at: TaskRef) -> bool {
        let spec = self.facts.spec(&self.graph, at);
        let waits = spec.occupies == Occupies::Nothing && spec.kind != NodeKind::Frames;
        waits && self.facts.node(at).failures == 0
    }

    /// When the wait began that an attempt goes on with, if that was in an earlier session.
    pub(super) fn waits_since(&self, attempt: &StartNode) -> Option<Timestamp> {
        let is_own = self.facts.node(attempt.node).interrupted;
        attempt.interrupted.as_ref().filter(|_| !is_own)?.since
    }

    /// The failure of a task that this run takes over: the session went on after it, and this run does too.
    pub(super) fn failure_taken_over<'a>(
        &self,
        at: TaskRef,
        reusable: &'a Reusable,
        before: &NodePath,
    ) -> Option<&'a AgentError> {
        let task = reusable.task(before)?;
        let error = task.final_error().filter(|_| reusable.went_on_after(before))?;
        let stays =
            self.stays_handled(at, error) && (self.same_flow || task.policy == policy_words(self, at));
        stays.then_some(error)
    }

    /// Whether this run goes on after a failure of a task too, so that the task need not run again for it. One that had too
    /// little money has enough now.
    fn stays_handled(&self, at: TaskRef, error: &AgentError) -> bool {
        let is_handled = |at: TaskRef| {
            let (spec, body) = (self.facts.spec(&self.graph, at), self.facts.body(&self.graph, at.frame));
            // Whether an edge with a condition fires is known only afterwards.
            let mut edges = body.edges_on(at.node, EdgeOn::Failure);
            spec.policy.on_failure == OnFailure::Continue || edges.any(|edge| body.edge(edge).when.is_none())
        };
        let owners = self.facts.around(at.frame).filter_map(|frame| frame.owner);
        let goes_on = self.same_flow
            || is_handled(at)
            || owners.into_iter().any(|owner| is_handled(owner) || goes_on_without_items(self, owner));
        goes_on && (error.code != ErrorCode::BudgetExceeded || !self.can_afford(at))
    }

    /// Whether the frames of a node can be run again of outputs that are reused: it completed, and nothing it follows
    /// on was really run since.
    pub(super) fn can_reuse_frames(&self, attempt: &StartNode) -> bool {
        let before = self.before(attempt.node);
        before.is_some_and(|(reusable, path)| {
            let task = reusable.task(&path).filter(|_| reusable.has_finished(&path));
            task.is_some_and(|task| self.differs(attempt.node, task, attempt.input.as_ref().ok()).is_none())
        })
    }

    /// What the earlier session spent in a frame that begins now for the first time.
    pub(super) fn spent_before(&self, owner: TaskRef, index: u32) -> Option<FrameSpending> {
        let reusable = self.reusable.as_ref().filter(|reusable| !reusable.spent_in.is_empty())?;
        let kind = &self.facts.spec(&self.graph, owner).frames.as_deref()?.kind;
        let now = frame_prefix(&self.facts.path(&self.graph, owner), kind, index);
        if self.facts.spent_in.contains_key(&now) {
            return None;
        }
        let prefix = self.prefix_before(reusable, owner, index, ItemMatch::Same)?;
        reusable.spent_in.get(&prefix).cloned()
    }

    /// Why a task is another one than before, if it is; `given` is its input, if it has been evaluated.
    pub(super) fn differs(
        &self,
        at: TaskRef,
        task: &ReusableTask,
        given: Option<&Value>,
    ) -> Option<ReuseReason> {
        // Of the same values everything comes out the same, whatever it says of the session and its folder.
        if self.same_values {
            return self.follows_work(at).then_some(ReuseReason::Follows);
        }
        let node = self.facts.spec(&self.graph, at);
        let agents = self.alternatives(at);
        if task.node_type != node.node_type && agents.is_none() {
            return Some(ReuseReason::Type);
        }
        if self.follows_work(at) {
            return Some(ReuseReason::Follows);
        }
        if task.session != self.session_words(at) {
            return Some(ReuseReason::Session);
        }
        if let Some(agents) = agents {
            let [agents, before] =
                [Some(agents), task.agents.clone()].map(|agents| Some(task.but_open_conditions(agents?)));
            let own = || self.with_own_files(before.as_ref()?);
            let same = agents == before || agents == own();
            return (!same).then_some(ReuseReason::Input);
        }
        // If it could not be evaluated before, and cannot be now, it is the same too.
        let now = self.any_input(at);
        let [now, before, given] =
            [now.as_ref(), task.input.as_ref(), given].map(|input| input.map(|input| task.compared(input)));
        let own = || before.as_ref().and_then(|before| self.with_own_files(before)).map(Cow::Owned);
        let same = given == before || now == before || (now.is_some() && own() == now);
        (!same).then_some(ReuseReason::Input)
    }

    /// The input of a task in whatever session it is evaluated.
    pub(super) fn any_input(&self, at: TaskRef) -> Option<Value> {
        let node = self.facts.spec(&self.graph, at);
        if node.kind == NodeKind::Frames {
            return Some(Value::Null);
        }
        self.in_any_session(at, &node.input)
    }

    /// The same of an input that an agent of the task would have.
    pub(super) fn in_any_session(&self, at: TaskRef, input: &Template) -> Option<Value> {
        let flow = self.any_flow.get_or_init(|| {
            let mut flow = self.flow.clone();
            flow["sessionId"] = "${sessionId}".into();
            flow["artifacts"] = "${artifacts}".into();
            flow
        });
        self.scoped_in(flow, at.frame, &self.locals(at), |scope| input.resolve(scope).ok())
    }

    /// Whether a predecessor of a task was really run in this session, around its frame too.
    pub(super) fn follows_work(&self, at: TaskRef) -> bool {
        let frame = &self.facts.frames[at.frame];
        frame.follows_work(self.facts.body(&self.graph, at.frame), at.node)
            || frame.owner.is_some_and(|owner| self.follows_work(owner))
    }
}

/// Whether a node that runs frames runs them all, also after one that failed. One that stops there tries it again: what
/// it would still run depends on when it fails.
fn goes_on_without_items(run: &Run, owner: TaskRef) -> bool {
    let frames = run.facts.spec(&run.graph, owner).frames.as_deref();
    matches!(
        frames.map(|frames| &frames.kind),
        Some(FramesKind::Foreach { on_item_error: OnItemError::Continue, .. })
    )
}

/// The policy of a node, to compare.
fn policy_words(run: &Run, at: TaskRef) -> String {
    format!("{:?}", run.facts.spec(&run.graph, at).policy)
}
