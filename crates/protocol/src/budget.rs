//! Amounts of money and tokens: what was spent, and what may be spent.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Event, NodeId, NodePath, RunId, StopReason, Usage};

/// What was spent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Spending {
    /// The known cost in US dollars.
    pub cost_usd: f64,
    /// Tokens of all kinds.
    pub tokens: u64,
    /// Whether the price of some turn is unknown, so that the cost is more than `costUsd`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unpriced: bool,
    /// Whether nothing is known of the tokens of some turn, so that they are more than `tokens`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub uncounted: bool,
}

impl Spending {
    /// Whether nothing was spent.
    pub fn is_zero(&self) -> bool {
        *self == Self::default()
    }
}

impl std::ops::AddAssign for Spending {
    fn add_assign(&mut self, other: Self) {
        self.cost_usd += other.cost_usd;
        self.tokens = self.tokens.saturating_add(other.tokens);
        self.unpriced |= other.unpriced;
        self.uncounted |= other.uncounted;
    }
}

/// The agent runs in a turn that has no price yet. If such a run ends without ending its turn, because its process is gone,
/// the price stays unknown: the vendor may have been asked.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnpricedTurns(Vec<RunId>);

impl UnpricedTurns {
    /// The events of a log that [`UnpricedTurns::take`] needs; who sums up a part of a log reads these.
    pub const EVENTS: &'static [&'static str] =
        &["agent:start", "agent:turn", "agent:spent", "agent:usage", "agent:complete"];

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The runs.
    pub fn runs(&self) -> impl Iterator<Item = &RunId> {
        self.0.iter()
    }

    /// What the next event of a log adds to the sum of what agents spent; see [`Event::spent`].
    pub fn take(&mut self, event: &Event) -> Option<(Usage, Spending)> {
        match event {
            Event::AgentStart { run_id, listens: false, .. } | Event::AgentTurn { run_id, .. }
                if !self.0.contains(run_id) =>
            {
                self.0.push(run_id.clone());
            }
            Event::AgentUsage { run_id, .. } => self.0.retain(|open| open != run_id),
            Event::AgentComplete { run_id, stop_reason, unpriced, .. } => {
                let open = self.0.iter().position(|open| open == run_id);
                open.map(|at| self.0.swap_remove(at));
                // One that failed without a price was refused, unless its run says that the price is unknown.
                // Its tokens are those that it has told: a vendor that counts them drops connections too.
                // Of one whose process is gone, nobody has heard what it has told.
                let is_cut = open.is_some() && *stop_reason == StopReason::Aborted;
                let unpriced = *unpriced || is_cut;
                let spent = Spending { unpriced, uncounted: is_cut, ..Spending::default() };
                return unpriced.then(|| (Usage::default(), spent));
            }
            _ => {}
        }
        event.spent()
    }
}

/// What was spent in a frame before it began, by an earlier attempt of its node or by an earlier session.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FrameSpending {
    /// In all, the frames within it included.
    pub spent: Spending,
    /// By single nodes of it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub nodes: BTreeMap<NodeId, Spending>,
}

/// The limits of one budget; a limit that is absent stays as it was.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BudgetLimits {
    /// In US dollars.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usd: Option<f64>,
    /// Tokens of all kinds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
}

impl BudgetLimits {
    /// Takes over the limits that `newer` sets.
    pub fn merge(&mut self, newer: Self) {
        self.usd = newer.usd.or(self.usd);
        self.tokens = newer.tokens.or(self.tokens);
    }
}

/// New limits for the budgets of a session.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BudgetRaise {
    /// The flow's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flow: Option<BudgetLimits>,
    /// Those of single nodes, by their places in the flow's file: `review`, or `scan/review` for a node of a body.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub nodes: BTreeMap<NodePath, BudgetLimits>,
    /// Those of what single nodes run, by the places of these nodes: each item of a `foreach`, the flow of a subflow.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub bodies: BTreeMap<NodePath, BudgetLimits>,
}

impl BudgetRaise {
    /// Whether it changes nothing.
    pub fn is_empty(&self) -> bool {
        self.flow.is_none() && self.nodes.is_empty() && self.bodies.is_empty()
    }

    /// The limits by the names that options take: `usd`, `review.tokens`, `each/.tokens`.
    #[expect(clippy::cast_precision_loss, reason = "a limit is given as such a number")]
    pub fn by_name(&self) -> BTreeMap<String, f64> {
        let flow = self.flow.iter().map(|limits| (String::new(), limits));
        let nodes = self.nodes.iter().map(|(node, limits)| (format!("{node}."), limits));
        let bodies = self.bodies.iter().map(|(node, limits)| (format!("{node}/."), limits));
        let named = |(place, limits): (String, &BudgetLimits)| {
            let limits = [("usd", limits.usd), ("tokens", limits.tokens.map(|tokens| tokens as f64))];
            limits.map(|(name, limit)| Some((format!("{place}{name}"), limit?)))
        };
        flow.chain(nodes).chain(bodies).flat_map(named).flatten().collect()
    }

    /// Takes over the limits that `newer` sets.
    pub fn merge(&mut self, newer: &Self) {
        if let Some(limits) = newer.flow {
            self.flow.get_or_insert_default().merge(limits);
        }
        for (node, limits) in &newer.nodes {
            self.nodes.entry(node.clone()).or_default().merge(*limits);
        }
        for (node, limits) in &newer.bodies {
            self.bodies.entry(node.clone()).or_default().merge(*limits);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{StopReason, TurnSpending};

    #[test]
    fn everything_is_counted_once_and_what_is_lost_has_no_price() {
        let usage = |input_tokens| Usage { input_tokens, ..Usage::default() };
        let part = |input_tokens, cost_usd| Event::AgentSpent {
            usage: usage(input_tokens),
            cost_usd,
            run_id: "r".into(),
        };
        let end = |input_tokens, cost_usd, reported| Event::AgentUsage {
            usage: usage(input_tokens),
            cost_usd,
            context: None,
            turn_id: None,
            reported: Some(TurnSpending { usage: usage(reported), cost_usd: None }),
            uncounted: false,
            run_id: "r".into(),
        };
        let start = || Event::AgentTurn { run_id: "r".into(), turn: 1, messages: None };
        let ended = |stop_reason, unpriced| Event::AgentComplete {
            agent_name: "a".to_owned(),
            success: false,
            run_id: "r".into(),
            stop_reason,
            usage: Usage::default(),
            duration_ms: 1,
            unpriced,
        };
        let sum = |events: &[Event]| {
            let (mut turns, mut sum) = (UnpricedTurns::default(), Spending::default());
            for event in events {
                assert!(UnpricedTurns::EVENTS.contains(&event.name()));
                if let Some((_, spent)) = turns.take(event) {
                    sum += spent;
                }
            }
            (sum.tokens, sum.cost_usd, sum.unpriced, sum.uncounted)
        };
        let cut = || ended(StopReason::Aborted, false);
        let failed = || ended(StopReason::Error, false);
        let silent = || ended(StopReason::Error, true);
        let rows = [
            (vec![start(), part(3, None), part(4, None), end(9, Some(0.5), 7)], (9, 0.5, false, false)),
            (vec![start(), part(3, None), end(9, None, 3)], (9, 0.0, true, false)),
            // The agent counts no tokens.
            (vec![start(), end(0, None, 0)], (0, 0.0, true, true)),
            (vec![start(), end(0, Some(0.5), 0)], (0, 0.5, false, true)),
            (vec![start(), end(0, Some(0.0), 0)], (0, 0.0, false, false)),
            (vec![start(), part(3, None), end(3, None, 3)], (3, 0.0, true, false)),
            // The process is gone: the vendor may have been asked.
            (vec![start(), part(3, Some(0.25)), cut()], (3, 0.25, true, true)),
            (vec![start(), cut()], (0, 0.0, true, true)),
            // It was refused.
            (vec![start(), failed()], (0, 0.0, false, false)),
            // The prompt was sent, and nothing came.
            (vec![start(), silent()], (0, 0.0, true, false)),
            (vec![start(), end(2, Some(0.5), 0), silent()], (2, 0.5, true, false)),
            (vec![start(), end(2, Some(0.5), 0), cut()], (2, 0.5, false, false)),
            (vec![start(), part(3, None), end(9, Some(0.5), 3), failed()], (9, 0.5, false, false)),
            // A vendor that counts less at the end than before.
            (vec![start(), part(3, None), end(1, Some(0.125), 3)], (3, 0.125, false, false)),
        ];
        for (events, expected) in rows {
            assert_eq!(sum(&events), expected, "{events:?}");
        }
    }
}
