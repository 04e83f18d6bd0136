//! What has been spent of budgets, and what is reserved for attempts that run.

use std::collections::BTreeMap;

use inspan_protocol::{BudgetLimits, FrameSpending, NodeId, Spending};

use super::{Facts, FrameState, NodeState};
use crate::graph::{Body, Budget, FrameIx, Graph, OnUnknown, TaskRef};
use crate::node::NodeKind;

impl Facts {
    /// What an attempt of this node may cost, as far as is known: what is left of its own budget, else the most that
    /// one attempt of an agent has cost in this session.
    pub(crate) fn estimate(&self, graph: &Graph, task: TaskRef) -> f64 {
        let node = self.spec(graph, task);
        if node.kind != NodeKind::Agent || self.budget(graph).is_none_or(|budget| budget.usd.is_none()) {
            return 0.0;
        }
        match self.node_budget(graph, task).and_then(|budget| budget.usd) {
            Some(own) => (own - self.spent_by(task).cost_usd).max(0.0),
            None => self.dearest,
        }
    }

    /// What is reserved for the attempts that run, and not yet spent by them, in US dollars.
    pub fn reserved(&self) -> f64 {
        let more = self.tasks().filter_map(|(_, node)| node.more.as_ref());
        more.map(|more| (more.reserved - (more.cost_usd - more.cost_before)).max(0.0)).sum()
    }

    /// Whether something is reserved that may be released.
    pub(crate) fn lays_aside(&self) -> bool {
        self.tasks().filter_map(|(_, node)| node.more.as_ref()).any(|more| more.reserved > 0.0)
    }

    /// Takes over what an earlier session had spent.
    pub(super) fn carry(&mut self, graph: &Graph, spent: Spending, nodes: &BTreeMap<NodeId, Spending>) {
        if self.carried.is_some() {
            return;
        }
        self.carried = Some(spent);
        self.frames[FrameIx::FLOW].carry_nodes(graph.flow(), nodes);
    }

    /// What counts against the flow's budget: the earlier sessions that this one continues included.
    pub fn spent(&self) -> Spending {
        let mut spent = self.carried.unwrap_or_default();
        let super::SessionFacts { cost_usd, unpriced, usage, .. } = self.session;
        spent += Spending { cost_usd, tokens: usage.total(), unpriced };
        spent
    }

    /// What counts against a node's own budget.
    pub(crate) fn spent_by(&self, task: TaskRef) -> Spending {
        self.node(task).spent()
    }

    /// The flow's budget as it is now.
    pub fn budget(&self, graph: &Graph) -> Option<Budget> {
        raised(graph.flow().policy.budget, self.raised.flow)
    }

    /// A node's own budget as it is now.
    pub(crate) fn node_budget(&self, graph: &Graph, task: TaskRef) -> Option<Budget> {
        let own = self.spec(graph, task).policy.budget;
        if self.raised.nodes.is_empty() {
            return own;
        }
        raised(own, self.raised.nodes.get(&self.path(graph, task).place()).copied())
    }

    /// Which part of the flow's budget is used up, in words.
    pub(crate) fn exceeded(&self, graph: &Graph) -> Option<String> {
        exceeded(&self.budget(graph)?, self.spent())
    }

    /// Which part of a node's own budget is used up, in words.
    pub(crate) fn node_exceeded(&self, graph: &Graph, task: TaskRef) -> Option<String> {
        exceeded(&self.node_budget(graph, task)?, self.spent_by(task))
    }
}

impl FrameState {
    /// What was spent in it, before it began too.
    pub(crate) fn spending(&self, body: &Body) -> FrameSpending {
        let nodes = body.nodes.iter().zip(self.nodes.iter()).map(|(node, state)| (node, state.spent()));
        let spenders = nodes.filter(|(_, spent)| !spent.is_zero());
        let nodes = spenders.map(|(node, spent)| (node.id.clone(), spent)).collect();
        FrameSpending { spent: self.spent, nodes }
    }

    /// Counts what was spent in it before it began.
    pub(super) fn carry(&mut self, body: &Body, before: &FrameSpending) {
        self.spent += before.spent;
        self.carry_nodes(body, &before.nodes);
    }

    fn carry_nodes(&mut self, body: &Body, before: &BTreeMap<NodeId, Spending>) {
        for (id, spent) in before {
            if let Some(node) = body.find(id.as_str()) {
                self.nodes[node].more().carried = *spent;
            }
        }
    }
}

impl NodeState {
    /// What counts against its own budget.
    fn spent(&self) -> Spending {
        let Some(more) = &self.more else { return Spending::default() };
        let mut spent = more.carried;
        spent += Spending { cost_usd: more.cost_usd, tokens: more.tokens, unpriced: more.unpriced };
        spent
    }
}

/// A budget around a task that is used up.
pub(crate) struct UsedUp {
    pub(crate) budget: Budget,
    /// Whose it is, in words: node `a`, item 2 of `scan`.
    pub(crate) owner: BudgetOwner,
    /// Which part of it, in words.
    pub(crate) limit: String,
}

/// Whose budget it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BudgetOwner {
    Task(TaskRef),
    Frame(FrameIx),
}

impl Facts {
    /// The budget that is used up and that counts for a task: its own, or that of a frame or a node around it.
    pub(crate) fn used_up_around(&self, graph: &Graph, task: TaskRef) -> Option<UsedUp> {
        let of_task = |task: TaskRef| {
            let (budget, owner) = (self.node_budget(graph, task)?, BudgetOwner::Task(task));
            Some(UsedUp { budget, owner, limit: exceeded(&budget, self.spent_by(task))? })
        };
        let of_frame = |frame: &FrameState| {
            let budget = graph.body(frame.body).policy.budget?;
            Some(UsedUp {
                budget,
                owner: BudgetOwner::Frame(frame.id),
                limit: exceeded(&budget, frame.spent)?,
            })
        };
        let nested = |frame: &FrameState| Some((of_frame(frame), of_task(frame.owner?)));
        let around = || self.around(task.frame).filter_map(nested).find_map(|(frame, owner)| frame.or(owner));
        of_task(task).or_else(around)
    }
}

/// A budget with the limits that were raised since.
fn raised(budget: Option<Budget>, raise: Option<BudgetLimits>) -> Option<Budget> {
    let Some(limits) = raise else { return budget };
    let budget = budget.unwrap_or_default();
    Some(Budget { usd: limits.usd.or(budget.usd), tokens: limits.tokens.or(budget.tokens), ..budget })
}

fn exceeded(budget: &Budget, spent: Spending) -> Option<String> {
    let Spending { cost_usd, tokens, unpriced } = spent;
    if let Some(usd) = budget.usd.filter(|_| unpriced && budget.on_unknown == OnUnknown::Stop) {
        return Some(format!("{usd} USD (the price of a turn is unknown, and `onUnknown` is `stop`)"));
    }
    if let Some(usd) = budget.usd.filter(|usd| cost_usd >= *usd) {
        return Some(format!("{usd} USD ({cost_usd:.4} spent)"));
    }
    budget.tokens.filter(|limit| tokens >= *limit).map(|limit| format!("{limit} tokens ({tokens} spent)"))
}
