//! What has been spent of budgets, and what is laid aside for attempts that run.

use super::RunState;
use crate::graph::{Budget, Graph, NodeIx, OnUnknown};
use crate::node::NodeKind;

impl RunState {
    /// What an attempt of this node may cost, as far as can be told: its own budget's rest, else the most that
    /// one attempt of an agent has cost in this session.
    pub(crate) fn estimate(&self, graph: &Graph, ix: NodeIx) -> f64 {
        let node = graph.node(ix);
        if node.kind != NodeKind::Agent || graph.policy.budget.is_none_or(|budget| budget.usd.is_none()) {
            return 0.0;
        }
        let own = node.policy.budget.and_then(|budget| budget.usd);
        let spent = self.nodes[ix.0 as usize].more.as_ref().map_or(0.0, |more| more.cost_usd);
        match own {
            Some(own) => (own - spent).max(0.0),
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

    /// Which part of the flow's budget is used up, in words.
    pub(crate) fn exceeded(&self, budget: &Budget) -> Option<String> {
        exceeded(budget, self.cost_usd, self.usage.total(), self.unpriced)
    }

    /// Which part of a node's own budget is used up, in words.
    pub(crate) fn node_exceeded(&self, graph: &Graph, ix: NodeIx) -> Option<String> {
        let budget = graph.node(ix).policy.budget?;
        let more = self.nodes[ix.0 as usize].more.as_ref()?;
        exceeded(&budget, more.cost_usd, more.tokens, more.unpriced)
    }
}

fn exceeded(budget: &Budget, cost_usd: f64, tokens: u64, unpriced: bool) -> Option<String> {
    if let Some(usd) = budget.usd.filter(|_| unpriced && budget.on_unknown == OnUnknown::Stop) {
        return Some(format!("{usd} USD (the price of a turn is unknown, and `onUnknown` is `stop`)"));
    }
    if let Some(usd) = budget.usd.filter(|usd| cost_usd >= *usd) {
        return Some(format!("{usd} USD ({cost_usd:.4} spent)"));
    }
    budget.tokens.filter(|limit| tokens >= *limit).map(|limit| format!("{limit} tokens ({tokens} spent)"))
}
