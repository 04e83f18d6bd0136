//! What an earlier session has left: read from its log.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use inspan_protocol::{
    BudgetLimits, BudgetRaise, Envelope, Event, FrameSpending, NodeId, NodePath, NodeStatus,
    ProviderSessionId, SessionId, Spending,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{
    Run,
    inherit::Begun,
    reusable_task::{ReusableTask, TurnInConversation},
};
use crate::{
    graph::{Budget, FrameIx, FramesKind, Graph, OnItemError, TaskRef},
    state::{Facts, NotRaised},
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
    pub(super) hash: String,
    #[serde(default)]
    pub(super) input: Value,
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

    /// Forgets what was raised of limits that the author has changed since.
    pub fn forget_raises(&mut self, before: &Graph, now: &Graph) {
        type Written = Option<Option<Budget>>;
        let forget = |raised: &mut BudgetLimits, before: Written, now: Written| {
            let (Some(before), Some(now)) = (before, now) else { return false };
            let limits =
                |budget: Option<Budget>| budget.map_or((None, None), |budget| (budget.usd, budget.tokens));
            let (is_gone, before, now) = (before.is_some() && now.is_none(), limits(before), limits(now));
            raised.usd = raised.usd.filter(|_| !is_gone && before.0 == now.0);
            raised.tokens = raised.tokens.filter(|_| !is_gone && before.1 == now.1);
            *raised != BudgetLimits::default()
        };
        let budget = |graph: &Graph| Some(graph.flow().policy.budget);
        self.raised.flow.take_if(|raised| !forget(raised, budget(before), budget(now)));
        let of_node = |graph: &Graph, place: &NodePath| Some(graph.find_place(place).ok()?.policy.budget);
        self.raised.nodes.retain(|place, raised| forget(raised, of_node(before, place), of_node(now, place)));
        let of_body = |graph: &Graph, place: &NodePath| Some(graph.find_body(place).ok()?.policy.budget);
        self.raised
            .bodies
            .retain(|place, raised| forget(raised, of_body(before, place), of_body(now, place)));
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

/// Whether a node that runs frames runs them all, also after one that failed. One that stops there tries it again: what
/// it would still run depends on when it fails.
pub(super) fn goes_on_without_items(run: &Run, owner: TaskRef) -> bool {
    let frames = run.facts.spec(&run.graph, owner).frames.as_deref();
    matches!(
        frames.map(|frames| &frames.kind),
        Some(FramesKind::Foreach { on_item_error: OnItemError::Continue, .. })
    )
}

/// The policy of a node, to compare.
pub(super) fn policy_words(run: &Run, at: TaskRef) -> String {
    format!("{:?}", run.facts.spec(&run.graph, at).policy)
}
