//! Money: what may still be spent is checked before an agent starts and after each of its turns.

use std::collections::BTreeSet;

use inspan_protocol::{AgentError, ErrorCode, Event, LogLevel, NodeStatus, Outcome, PauseCause, Timestamp};
use serde_json::Map;

use super::{Action, CancelCause, Planning, Reusable, Run, emit, ending};
use crate::{
    graph::{Budget, FrameIx, Graph, OnExceeded, OnUnknown, TaskRef},
    node::NodeKind,
    state::{BudgetOwner, Facts, NodeState, UsedUp},
};

/// Whether an agent may start, as far as money goes.
#[derive(Debug)]
pub(super) enum BudgetDecision {
    Yes,
    /// Ask again when something has happened: an agent that ends may release what is reserved for it, and a
    /// budget may be raised.
    Later,
    /// The flow's budget is used up, and the flow ends.
    No,
    /// The budget of a frame around the node, or of the node that runs it, is used up, and the frame ends.
    NotInFrame(FrameIx, AgentError),
    /// The node's own budget is used up, and the node fails.
    Never(AgentError),
}

/// What is not known of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unknown {
    Price,
    Tokens,
}

impl Run {
    /// Emits what was spent and which budgets are used up, and cancels what would spend more than there is.
    pub(super) fn check_budgets(&mut self, actions: &mut Vec<Action>) {
        if self.carry_over(actions) {
            return;
        }
        if let Some(budget) = self.facts.budget(&self.graph) {
            let session = &self.facts.session;
            let unpriced = session.unpriced && !self.facts.unpriced_before;
            let uncounted = session.uncounted && !self.facts.uncounted_before;
            if unpriced && self.warn(None, Unknown::Price, budget, actions)
                || uncounted && self.warn(None, Unknown::Tokens, budget, actions)
            {
                return;
            }
            let tokens = self.facts.session.usage.total();
            if tokens != self.facts.reported_tokens {
                let cost_usd = (!self.facts.session.unpriced).then_some(self.facts.session.cost_usd);
                actions.push(emit(Event::BudgetSpent { cost_usd, tokens }));
                return;
            }
            if let Some(used_up) = self.facts.flow_used_up(&self.graph) {
                if !self.facts.budget_reported {
                    actions.push(self.exceeded(&used_up));
                    return;
                }
                self.cancel_running_agents(budget, actions);
            }
        }
        if self.knows_node_budgets() {
            self.cancel_over_budget(actions);
        }
    }

    /// Whether any node or frame has a budget, so that runs without one need not check each node.
    fn knows_node_budgets(&self) -> bool {
        let raised = &self.facts.raised;
        self.has_node_budgets || !raised.nodes.is_empty() || !raised.bodies.is_empty()
    }

    /// Emits what an earlier session has spent that this one continues, once; gives whether it did.
    fn carry_over(&self, actions: &mut Vec<Action>) -> bool {
        let Some(reusable) = self.reusable.as_ref().filter(|_| self.facts.carried.is_none()) else {
            return false;
        };
        let (from, spent, nodes) = reusable.spending();
        let raised = reusable.raised();
        if spent.is_zero() && raised.is_empty() {
            return false;
        }
        let (from, nodes, raised) = (from.clone(), nodes.clone(), raised.clone());
        let event = Event::BudgetCarried { from, spent, nodes, raised };
        actions.push(emit(event));
        true
    }

    /// The same for a session whose log has no such event, since it never began: who continues it counts that too.
    pub(super) fn count_older(&mut self) {
        if let Some(older) = self.reusable.clone() {
            let (_, spent, nodes) = older.spending();
            self.facts.carry(&self.graph, spent, nodes, older.raised());
        }
    }

    /// The agents that are in the middle of a turn; one that has just ended its last may finish, and one that ends with the
    /// flow or its frame is not cancelled twice.
    fn spenders(&self) -> Vec<TaskRef> {
        self.facts.tasks().map(|(task, _)| task).filter(|task| self.spends(*task)).collect()
    }

    fn spends(&self, task: TaskRef) -> bool {
        let node = self.facts.node(task);
        node.status == NodeStatus::Running && node.spends() && !self.facts.must_end(task)
    }

    /// Cancels the agents that spend, or ends the run.
    fn cancel_running_agents(&mut self, budget: Budget, actions: &mut Vec<Action>) {
        let (spenders, why) = (self.spenders(), self.why_cancelled(budget));
        match why {
            CancelCause::OverBudget if self.facts.ending.is_none() => {
                actions.extend((!spenders.is_empty()).then(|| self.end_over_budget()));
            }
            _ => spenders.into_iter().for_each(|task| self.cancel(task, why, actions)),
        }
    }

    /// Why an agent is cancelled of whose budget nothing is left. A run that ends waits for no larger one.
    fn why_cancelled(&self, budget: Budget) -> CancelCause {
        match budget.on_exceeded {
            OnExceeded::Pause if self.facts.ending.is_none() => CancelCause::Pausing,
            _ => CancelCause::OverBudget,
        }
    }

    fn cancel_over_budget(&mut self, actions: &mut Vec<Action>) {
        // The innermost is the last: of what was used up together, that event names all limits to raise.
        for frame in self.facts.frames.iter().map(|frame| frame.id).collect::<Vec<_>>() {
            let state = &self.facts.frames[frame];
            let used_up = self.facts.frame_used_up(&self.graph, state);
            if let Some(used_up) = used_up.filter(|_| state.owner.is_some() && !state.budget_reported) {
                actions.push(self.exceeded(&used_up));
            }
            for task in state.tasks().map(|(task, _)| task).collect::<Vec<_>>() {
                self.cancel_over_own_budget(task, actions);
            }
        }
        self.cancel_over_budget_around(actions);
    }

    fn cancel_over_own_budget(&mut self, task: TaskRef, actions: &mut Vec<Action>) {
        let Some(budget) = self.facts.node_budget(&self.graph, task) else { return };
        let more = self.facts.node(task).more.as_ref();
        let was_reported = more.is_some_and(|more| more.budget_reported);
        let unpriced = more.is_some_and(|more| more.spent.unpriced && !more.unpriced_before);
        let uncounted = more.is_some_and(|more| more.spent.uncounted && !more.uncounted_before);
        if unpriced {
            self.warn(Some(task), Unknown::Price, budget, actions);
        }
        if uncounted {
            self.warn(Some(task), Unknown::Tokens, budget, actions);
        }
        let Some(used_up) = self.facts.node_used_up(&self.graph, task) else { return };
        if !was_reported {
            actions.push(self.exceeded(&used_up));
        }
        if self.spends(task) {
            self.cancel(task, self.why_cancelled(budget), actions);
        }
    }

    fn exceeded(&self, used_up: &UsedUp) -> Action {
        let (task, frame) = match used_up.owner {
            BudgetOwner::Task(task) => (Some(task), None),
            BudgetOwner::Frame(frame) => {
                let frame = &self.facts.frames[frame];
                (frame.owner, frame.owner.map(|_| frame.index))
            }
        };
        // Raising this one alone would not help where those around it are used up too.
        let all = self.facts.all_used_up(&self.graph, used_up.owner);
        let budget = self.facts.limit_names(&self.graph, &all);
        Action::Emit {
            task: task.map(|task| self.facts.path(&self.graph, task)),
            event: Event::BudgetExceeded { limit: used_up.limit.clone(), budget, frame },
        }
    }

    /// Cancels agents in frames whose budget, or whose node's budget, is used up, or ends these frames.
    fn cancel_over_budget_around(&mut self, actions: &mut Vec<Action>) {
        let mut ended = BTreeSet::new();
        for task in self.spenders().into_iter().filter(|task| task.frame != FrameIx::FLOW) {
            let Some(used_up) = self.facts.used_up_around(&self.graph, task) else { continue };
            match self.frame_without_budget(task, &used_up) {
                Some(frame) if ended.insert(frame) => {
                    actions.extend(self.end_frame(frame, self.over_budget(Some(&used_up))));
                }
                Some(_) => {}
                None => self.cancel(task, self.why_cancelled(used_up.budget), actions),
            }
        }
    }

    /// The frame that ends because of a budget that is used up for a task in it; none if the budget is the task's own or
    /// pauses, or if the frame ends already, so that the task cleans up.
    fn frame_without_budget(&self, task: TaskRef, used_up: &UsedUp) -> Option<FrameIx> {
        let is_its = |frame: FrameIx, owner: Option<TaskRef>| match used_up.owner {
            BudgetOwner::Frame(ix) => frame == ix,
            BudgetOwner::Task(node) => owner == Some(node),
        };
        let fails = used_up.budget.on_exceeded == OnExceeded::Fail && !self.facts.node(task).cleans_up;
        let frame = self.facts.around(task.frame).find(|frame| is_its(frame.id, frame.owner));
        frame.map(|frame| frame.id).filter(|frame| fails && !self.facts.is_ending(*frame))
    }

    /// Reports once that a limit of a budget cannot be enforced; returns whether it was reported now.
    fn warn(
        &mut self,
        node: Option<TaskRef>,
        unknown: Unknown,
        budget: Budget,
        actions: &mut Vec<Action>,
    ) -> bool {
        let what = match unknown {
            Unknown::Price => {
                budget.usd.map(|usd| (format!("{usd} USD"), "the price of a turn is", "counts"))
            }
            Unknown::Tokens => {
                let limit = |tokens| (format!("{tokens} tokens"), "the tokens of a turn are", "count");
                budget.tokens.map(limit)
            }
        };
        let what = what.filter(|_| budget.on_unknown == OnUnknown::Warn);
        let Some((limit, what_is, counts)) = what else { return false };
        let warned = match unknown {
            Unknown::Price => &mut self.warned,
            Unknown::Tokens => &mut self.warned_of_tokens,
        };
        if warned.contains(&node) {
            return false;
        }
        warned.push(node);
        let whose = match node {
            Some(task) => format!("node `{}`", self.facts.spec(&self.graph, task).id),
            None => format!("flow `{}`", self.graph.name),
        };
        let message = format!("{what_is} unknown and {counts} as nothing in the budget of {whose}: {limit}");
        let event = Event::Log { level: LogLevel::Warn, message, fields: Map::new() };
        actions.push(Action::Emit { task: node.map(|task| self.facts.path(&self.graph, task)), event });
        true
    }

    /// Ends the run because its budget is used up; `budget:exceeded` is in the log by now.
    pub(super) fn end_over_budget(&self) -> Action {
        ending(Outcome::BudgetExceeded, self.over_budget(self.facts.flow_used_up(&self.graph).as_ref()))
    }

    /// Whether there is enough left for this node.
    pub(super) fn afford(&self, task: TaskRef) -> BudgetDecision {
        let is_agent = self.facts.spec(&self.graph, task).kind == NodeKind::Agent;
        // A plan says what is done once there is enough.
        if !is_agent || self.planning == Planning::On {
            return BudgetDecision::Yes;
        }
        self.left_for(task)
    }

    /// Of the budgets that count for a task, the one that is used up.
    fn used_up_for(&self, task: TaskRef) -> Option<UsedUp> {
        let around = || self.facts.used_up_around(&self.graph, task);
        let around = self.knows_node_budgets().then(around).flatten();
        around.or_else(|| self.facts.flow_used_up(&self.graph))
    }

    /// Of an agent that begins: why it cannot now if a budget for it is used up, and whether it waits for a larger one.
    pub(super) fn is_over_budget(&self, task: TaskRef) -> Option<(AgentError, bool)> {
        let is_agent = self.facts.spec(&self.graph, task).kind == NodeKind::Agent;
        let used_up = self.used_up_for(task).filter(|_| is_agent)?;
        Some((self.over_budget(Some(&used_up)), matches!(self.left_for(task), BudgetDecision::Later)))
    }

    /// Whether there is enough left for an agent, also in a plan.
    pub(super) fn can_afford(&self, task: TaskRef) -> bool {
        matches!(self.left_for(task), BudgetDecision::Yes)
    }

    fn left_for(&self, task: TaskRef) -> BudgetDecision {
        // A run that ends does not pause for a larger budget.
        let pauses = self.facts.ending.is_none();
        if self.knows_node_budgets()
            && let Some(used_up) = self.facts.used_up_around(&self.graph, task)
        {
            return match (used_up.budget.on_exceeded, self.frame_without_budget(task, &used_up)) {
                (OnExceeded::Pause, _) if pauses => BudgetDecision::Later,
                (OnExceeded::Pause, _) => BudgetDecision::Never(self.over_budget(Some(&used_up))),
                (OnExceeded::Fail, Some(frame)) => {
                    BudgetDecision::NotInFrame(frame, self.over_budget(Some(&used_up)))
                }
                (OnExceeded::Fail, None) => BudgetDecision::Never(self.over_budget(Some(&used_up))),
            };
        }
        if let Some(used_up) = self.facts.flow_used_up(&self.graph) {
            return match used_up.budget.on_exceeded {
                OnExceeded::Pause if pauses => BudgetDecision::Later,
                OnExceeded::Fail if pauses => BudgetDecision::No,
                _ => BudgetDecision::Never(self.over_budget(Some(&used_up))),
            };
        }
        match self.facts.waits_for_reserved(&self.graph, task) {
            Some(_) => BudgetDecision::Later,
            None => BudgetDecision::Yes,
        }
    }

    /// Whether a node that runs nothing now will, once its time has come, and has a budget for it.
    pub(super) fn something_is_due_later(&self, now: Timestamp) -> bool {
        let waits = |node: &NodeState| {
            matches!(node.status, NodeStatus::Pending | NodeStatus::Waiting) && node.retry_at.is_some()
        };
        self.agenda.next_timer(now).is_some()
            && self
                .facts
                .tasks()
                .any(|(task, node)| waits(node) && !matches!(self.afford(task), BudgetDecision::Later))
    }

    /// Pauses the session if only budgets stop it: agents wait for money, or were cancelled in the middle of a
    /// turn because there was none left. Returns whether it does.
    pub(super) fn pause_for_budget(&mut self, actions: &mut Vec<Action>) -> bool {
        let cut = |(_, node): &(TaskRef, &NodeState)| node.status == NodeStatus::Cancelled;
        let limited = |(task, node): &(TaskRef, &NodeState)| {
            node.status == NodeStatus::Waiting && matches!(self.afford(*task), BudgetDecision::Later)
        };
        let waiting = self.held.first().copied();
        let first =
            waiting.or_else(|| self.facts.tasks().find(|one| cut(one) || limited(one)).map(|(task, _)| task));
        let Some(first) = first else { return false };
        let used_up = self.facts.all_used_up(&self.graph, BudgetOwner::Task(first));
        let whys: Vec<_> = used_up.iter().map(|used_up| self.over_budget(Some(used_up)).message).collect();
        let reason = if whys.is_empty() { self.over_budget(None).message } else { whys.join(", and ") };
        let budget = self.facts.limit_names(&self.graph, &used_up);
        let paused = self.paused(Some(reason), Some(PauseCause::Budget), budget);
        actions.push(emit(paused));
        actions.push(Action::Finish);
        true
    }

    /// The failure of an agent that a budget has cut.
    pub(super) fn cut_by_budget(&self, task: TaskRef) -> AgentError {
        self.over_budget(self.used_up_for(task).as_ref())
    }

    /// The error that a budget is used up; it may have been raised again when it is asked for.
    pub(super) fn over_budget(&self, used_up: Option<&UsedUp>) -> AgentError {
        let message = match used_up {
            Some(used_up) => {
                let owner = self.facts.budget_owner(&self.graph, used_up.owner);
                format!("the budget of {owner} is used up: {}", used_up.limit)
            }
            None => "a budget was used up".to_owned(),
        };
        AgentError::new(ErrorCode::BudgetExceeded, message)
    }
}

impl Reusable {
    /// The limits of the flow's budget, in words, if what was spent before has used it up: then no agent of a session that
    /// reuses this work starts.
    pub fn used_up(&self, graph: &Graph) -> Option<String> {
        let (_, spent, nodes) = self.spending();
        let mut facts = Facts::new(graph);
        facts.carry(graph, spent, nodes, self.raised());
        Some(facts.flow_used_up(graph)?.limit)
    }
}
