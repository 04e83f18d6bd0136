//! What has been spent of budgets, and what is laid aside for attempts that run.

use std::collections::BTreeMap;

use inspan_protocol::{BudgetLimits, NodeId, Spending};

use super::Facts;
use crate::graph::{Budget, Graph, NodeIx, OnUnknown};
use crate::node::NodeKind;

impl Facts {
    /// What an attempt of this node may cost, as far as can be told: its own budget's rest, else the most that
    /// one attempt of an agent has cost in this session.
    pub(crate) fn estimate(&self, graph: &Graph, ix: NodeIx) -> f64 {
        let node = graph.flow().node(ix);
        if node.kind != NodeKind::Agent || self.budget(graph).is_none_or(|budget| budget.usd.is_none()) {
            return 0.0;
        }
        match self.node_budget(graph, ix).and_then(|budget| budget.usd) {
            Some(own) => (own - self.spent_by(ix).cost_usd).max(0.0),
            None => self.dearest,
        }
    }

    /// What is laid aside for the attempts that run, and not yet spent by them.
    pub(crate) fn reserved(&self) -> f64 {
        let more = self.nodes.iter().filter_map(|node| node.more.as_ref());
        more.map(|more| (more.reserved - (more.cost_usd - more.cost_before)).max(0.0)).sum()
    }

    /// Whether something is laid aside that may be given back.
    pub(crate) fn lays_aside(&self) -> bool {
        self.nodes.iter().filter_map(|node| node.more.as_ref()).any(|more| more.reserved > 0.0)
    }

    /// Takes over what an earlier session had spent.
    pub(super) fn carry(&mut self, graph: &Graph, spent: Spending, nodes: &BTreeMap<NodeId, Spending>) {
        if self.carried.is_some() {
            return;
        }
        self.carried = Some(spent);
        for (id, spent) in nodes {
            if let Some(ix) = graph.flow().find(id.as_str()) {
                self.nodes[ix].more().carried = *spent;
            }
        }
    }

    /// What counts against the flow's budget: the earlier sessions that this one continues included.
    pub(crate) fn spent(&self) -> Spending {
        let mut spent = self.carried.unwrap_or_default();
        let super::SessionFacts { cost_usd, unpriced, usage, .. } = self.session;
        spent += Spending { cost_usd, tokens: usage.total(), unpriced };
        spent
    }

    /// What counts against a node's own budget.
    pub(crate) fn spent_by(&self, ix: NodeIx) -> Spending {
        let Some(more) = &self.nodes[ix].more else { return Spending::default() };
        let mut spent = more.carried;
        spent += Spending { cost_usd: more.cost_usd, tokens: more.tokens, unpriced: more.unpriced };
        spent
    }

    /// What each node has spent that has spent something.
    pub(crate) fn spending(&self, graph: &Graph) -> BTreeMap<NodeId, Spending> {
        let spent = self.nodes.places().map(|ix| (graph.flow().node(ix).id.clone(), self.spent_by(ix)));
        spent.filter(|(_, spent)| !spent.is_zero()).collect()
    }

    /// The flow's budget as it is now.
    pub(crate) fn budget(&self, graph: &Graph) -> Option<Budget> {
        raised(graph.flow().policy.budget, self.raised.flow)
    }

    /// A node's own budget as it is now.
    pub(crate) fn node_budget(&self, graph: &Graph, ix: NodeIx) -> Option<Budget> {
        let node = graph.flow().node(ix);
        raised(node.policy.budget, self.raised.nodes.get(&node.id).copied())
    }

    /// Which part of the flow's budget is used up, in words.
    pub(crate) fn exceeded(&self, graph: &Graph) -> Option<String> {
        exceeded(&self.budget(graph)?, self.spent())
    }

    /// Which part of a node's own budget is used up, in words.
    pub(crate) fn node_exceeded(&self, graph: &Graph, ix: NodeIx) -> Option<String> {
        exceeded(&self.node_budget(graph, ix)?, self.spent_by(ix))
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
