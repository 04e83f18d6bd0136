//! Amounts of money and tokens: what was spent, and what may be spent.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{NodeId, NodePath};

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
