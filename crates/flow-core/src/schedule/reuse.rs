//! Work that was done before and need not be done again. A node's output is reused if its type and its input,
//! with all bindings evaluated, are unchanged, and if the outputs of all its predecessors are reused too: what
//! a node does may depend on the side effects of its predecessors, and not only on their outputs.

use std::{borrow::Cow, collections::BTreeSet, sync::Arc};

use inspan_protocol::{AgentError, ErrorCode, Event, FrameSpending, NodePath, NodeStatus, Timestamp};
use serde_json::Value;

use super::{
    Reusable, ReuseReason, Run, StartNode,
    items::ItemMatch,
    resume::joined,
    reusable::{goes_on_without_items, policy_words},
    reusable_task::ReusableTask,
    select::Selected,
};
use crate::{
    expr::Template,
    graph::{EdgeOn, OnFailure, TaskRef},
    node::{NodeKind, Occupies},
    state::frame_prefix,
};

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

    /// Whether this flow did a task, with this input.
    fn is_of_same_flow(&self, task: &ReusableTask) -> bool {
        self.same_flow && !task.is_of_other_flow
    }

    /// Whether everything that is reused for a task gives what it gave then.
    fn has_same_values(&self, task: &ReusableTask) -> bool {
        self.same_values && !task.is_of_other_flow
    }

    /// Whether a node that runs frames is reused as a whole: nothing can have changed within them, and nothing there is to
    /// run again. Else its output is computed from the outputs of its frames.
    fn is_reused_whole(
        &self,
        at: TaskRef,
        reusable: &Reusable,
        before: &NodePath,
        task: &ReusableTask,
    ) -> bool {
        let is_same = || self.has_same_values(task) || self.times_out_again(at, reusable, task);
        is_same() && !reusable.runs_again_within(before) && self.selected(at) != Selected::Around
    }

    /// Whether a node that runs frames had run out of its own time, which says nothing of its frames, and would do the same
    /// again.
    fn times_out_again(&self, at: TaskRef, reusable: &Reusable, task: &ReusableTask) -> bool {
        let is_same_item = || self.path_before(reusable, at, ItemMatch::Same).is_some();
        task.final_error().is_some_and(|error| *error == self.timed_out(at))
            && task.frames.is_some()
            && task.frames == self.frames_words(at)
            && is_same_item()
    }

    /// The event that reuses a node's output, if that is possible; else the attempt may continue a conversation
    /// that was interrupted.
    pub(super) fn reuse(&self, attempt: &mut StartNode) -> Option<Event> {
        let at = attempt.node;
        let (reusable, before) = self.before(at)?;
        let task = reusable.task(&before)?;
        let runs_frames = self.facts.spec(&self.graph, at).kind == NodeKind::Frames;
        if runs_frames && !self.is_reused_whole(at, reusable, &before, task) {
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
        // A retry after a timeout starts over; a resume gives the agent more time, or money, for the work that it has begun.
        let leaves = |error: &AgentError| {
            error.leaves_conversation()
                || matches!(error.code, ErrorCode::Timeout | ErrorCode::BudgetExceeded)
        };
        let goes_on = task.error.as_ref().is_none_or(|error| task.worked && leaves(error));
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
        let is_same = self.is_of_same_flow(task);
        let stays =
            self.stays_handled(at, error, is_same) && (is_same || task.policy == policy_words(self, at));
        stays.then_some(error)
    }

    /// Whether this run goes on after a failure of a task too, so that the task need not run again for it. One that had too
    /// little money has enough now.
    fn stays_handled(&self, at: TaskRef, error: &AgentError, is_same_flow: bool) -> bool {
        let is_handled = |at: TaskRef| {
            let (spec, body) = (self.facts.spec(&self.graph, at), self.facts.body(&self.graph, at.frame));
            // Whether an edge with a condition fires is known only afterwards.
            let mut edges = body.edges_on(at.node, EdgeOn::Failure);
            spec.policy.on_failure == OnFailure::Continue || edges.any(|edge| body.edge(edge).when.is_none())
        };
        let owners = self.facts.around(at.frame).filter_map(|frame| frame.owner);
        let goes_on = is_same_flow
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
        if self.follows_work(at) {
            return Some(ReuseReason::Follows);
        }
        // Of the same values everything comes out the same, whatever it says of the session and its folder.
        if self.has_same_values(task) {
            return None;
        }
        let node = self.facts.spec(&self.graph, at);
        let agents = self.alternatives(at);
        if task.node_type != node.node_type && agents.is_none() {
            return Some(ReuseReason::Type);
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
            || self.follows_asked(at)
            || frame.owner.is_some_and(|owner| self.follows_work(owner))
    }

    /// Whether a task follows a node that was asked for, or in which something was, and that does not run: it is skipped, or its
    /// frames run nothing. That counts as work too.
    fn follows_asked(&self, at: TaskRef) -> bool {
        let Some(reusable) = self.reusable.as_ref().filter(|left| left.again().next().is_some()) else {
            return false;
        };
        let (frame, body) = (&self.facts.frames[at.frame], self.facts.body(&self.graph, at.frame));
        let (mut seen, mut open) = (BTreeSet::new(), vec![at.node]);
        while let Some(ix) = open.pop() {
            for from in frame.follows(body, ix) {
                let node = &frame.nodes[from];
                let runs_frames = body.node(from).kind == NodeKind::Frames && !node.is_reused();
                if !(runs_frames || node.status == NodeStatus::Skipped) || !seen.insert(from) {
                    continue;
                }
                let before = self.before(TaskRef { node: from, ..at });
                if before.is_some_and(|(_, before)| reusable.runs_again_around(&before)) {
                    return true;
                }
                open.push(from);
            }
        }
        false
    }
}
