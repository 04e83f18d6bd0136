//! Money: what may still be spent is looked at before an agent starts and after each of its turns.

use inspan_protocol::{AgentError, ErrorCode, Event, LogLevel, NodeStatus, Outcome};
use serde_json::Map;

use super::{Action, CancelReason, Planning, Run, emit};
use crate::{
    graph::{Budget, NodeIx, OnUnknown},
    node::NodeKind,
    state::Ending,
};

/// Whether an agent may start, as far as money goes.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Afford {
    Yes,
    /// What is laid aside for others may be given back: ask again when one of them ends.
    Later,
    No,
}

impl Run {
    /// Says what was spent, and cancels what would spend more than there is.
    pub(super) fn look_at_money(&mut self, actions: &mut Vec<Action>) {
        if let Some(budget) = self.graph.policy.budget {
            let unpriced = self.state.unpriced && !self.state.unpriced_before;
            if unpriced && self.warn(None, budget, actions) {
                return;
            }
            let tokens = self.state.usage.total();
            if tokens != self.state.told_tokens {
                let cost_usd = (!self.state.unpriced).then_some(self.state.cost_usd);
                actions.push(emit(Event::BudgetSpent { cost_usd, tokens }));
                return;
            }
            if self.is_used_up() && self.state.ending.is_none() && self.is_mid_turn() {
                return self.refuse_to_spend(actions);
            }
        }
        if self.has_node_budgets && self.state.ending.is_none() {
            self.cancel_over_budget(actions);
        }
    }

    fn cancel_over_budget(&mut self, actions: &mut Vec<Action>) {
        for ix in 0..self.state.nodes.len() {
            let state = &self.state.nodes[ix];
            let spends = state.status == NodeStatus::Running && state.spends();
            let unpriced = state.more.as_ref().is_some_and(|more| more.unpriced && !more.unpriced_before);
            let ix = NodeIx(ix as u32);
            if let Some(budget) = self.graph.node(ix).policy.budget.filter(|_| unpriced) {
                self.warn(Some(ix), budget, actions);
            }
            if spends && self.state.node_exceeded(&self.graph, ix).is_some() {
                self.cancel(ix, CancelReason::OverBudget, actions);
            }
        }
    }

    /// Says once that a budget in money cannot be kept; gives whether it was said now.
    fn warn(&mut self, node: Option<NodeIx>, budget: Budget, actions: &mut Vec<Action>) -> bool {
        let Some(usd) = budget.usd.filter(|_| budget.on_unknown == OnUnknown::Warn) else { return false };
        if self.warned.contains(&node) {
            return false;
        }
        self.warned.push(node);
        let whose = match node {
            Some(ix) => format!("node `{}`", self.graph.node(ix).id),
            None => format!("flow `{}`", self.graph.name),
        };
        let message = format!(
            "the price of a turn is unknown and counts as nothing in the budget of {whose}: {usd} USD"
        );
        let event = Event::Log { level: LogLevel::Warn, message, fields: Map::new() };
        actions.push(Action::Emit { task: node.map(|ix| self.state.path(&self.graph, ix)), event });
        true
    }

    /// Whether an agent is in the middle of a turn; one that has just ended its last may finish.
    fn is_mid_turn(&self) -> bool {
        self.state.nodes.iter().any(|node| node.status == NodeStatus::Running && node.spends())
    }

    fn is_used_up(&self) -> bool {
        self.graph.policy.budget.is_some_and(|budget| self.state.exceeded(&budget).is_some())
    }

    fn bankrupt(&self) -> Ending {
        Ending { outcome: Outcome::BudgetExceeded, error: Some(self.flow_over_budget()) }
    }

    /// Whether there is enough left for this node.
    pub(super) fn afford(&self, ix: NodeIx) -> Afford {
        if self.graph.node(ix).kind != NodeKind::Agent {
            return Afford::Yes;
        }
        let Some(budget) = self.graph.policy.budget else { return Afford::Yes };
        if self.planning == Planning::On {
            return Afford::Yes;
        }
        if self.is_used_up() {
            return Afford::No;
        }
        let Some(usd) = budget.usd else { return Afford::Yes };
        let laid_aside = self.state.reserved();
        let needs = self.state.estimate(&self.graph, ix);
        if self.state.lays_aside() && self.state.cost_usd + laid_aside + needs > usd {
            return Afford::Later;
        }
        Afford::Yes
    }

    /// An agent that cannot be paid for ends the run, with `budget:exceeded` in the log.
    pub(super) fn refuse_to_spend(&mut self, actions: &mut Vec<Action>) {
        if self.state.budget_told {
            let ending = self.bankrupt();
            self.state.end_early(ending);
        } else {
            actions.push(emit(Event::BudgetExceeded { limit: self.limit() }));
        }
    }

    fn limit(&self) -> String {
        let budget = self.graph.policy.budget.unwrap_or_default();
        self.state.exceeded(&budget).unwrap_or_default()
    }

    pub(super) fn flow_over_budget(&self) -> AgentError {
        let message = format!("the budget of flow `{}` is used up: {}", self.graph.name, self.limit());
        AgentError::new(ErrorCode::BudgetExceeded, message)
    }

    pub(super) fn over_budget(&self, node: NodeIx) -> AgentError {
        let limit = self.state.node_exceeded(&self.graph, node).unwrap_or_default();
        let message = format!("the budget of node `{}` is used up: {limit}", self.graph.node(node).id);
        AgentError::new(ErrorCode::BudgetExceeded, message)
    }
}
