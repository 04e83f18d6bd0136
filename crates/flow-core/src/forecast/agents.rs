//! What a node costs that several agents may work on: an expression names the first of them, and others take over.

use crate::graph::{BodyIx, Node};

use super::{Basis, Estimate, NodeRun, Work};

/// The agents that may work on a node, by their places in [`Agents::names`](crate::graph::Agents::names).
pub(super) struct PossibleAgents {
    /// Those of which one works first.
    first: Vec<u32>,
    /// Those that take over.
    later: Vec<u32>,
}

impl PossibleAgents {
    pub(super) fn all(&self) -> Vec<u32> {
        self.first.iter().chain(&self.later).copied().collect()
    }
}

impl Work<'_> {
    /// The agents that may work on a node, as far as the flow and its input say.
    pub(super) fn agents(&self, node: &Node, around: &[BodyIx]) -> PossibleAgents {
        let Some(agents) = &node.agents else { return PossibleAgents { first: vec![0], later: Vec::new() } };
        let later = agents.fallback.iter().map(|fallback| fallback.agent).collect();
        let Some(choice) = &agents.choice else { return PossibleAgents { first: vec![0], later } };
        let known = match self.is_in_subflow(around) {
            true => None,
            false => choice.known_whole(self.flow, self.state),
        };
        let named = known.as_ref().and_then(|name| agents.find(name.as_str()?));
        let first = named.map_or_else(|| (0..agents.chosen().len() as u32).collect(), |agent| vec![agent]);
        PossibleAgents { first, later }
    }

    /// What one run of an agent's node costs: at most what the most expensive way through its agents does. If one that may
    /// work first has never worked on the node, earlier runs do not say what is to be expected.
    pub(super) fn cost(&self, node: &Node, place: &str, agents: &PossibleAgents) -> Estimate {
        let (based_on, runs) = self.samples(node, place, &agents.all());
        let all = price(&runs);
        if agents.first.len() + agents.later.len() == 1 {
            return all;
        }
        let one = |agent: &u32| {
            let (based_on, runs) = self.samples(node, place, &[*agent]);
            (based_on == Basis::Node, price(&runs))
        };
        let first: Vec<(bool, Estimate)> = agents.first.iter().map(one).collect();
        let dearest = first.iter().try_fold(0.0, |most: f64, (_, cost)| Some(cost.high?.max(most)));
        // What an agent cost that took over on this node has the cost of those before it.
        let most = agents.later.iter().map(one).fold(dearest, |most, (has_worked, cost)| {
            let (most, high) = (most?, cost.high?);
            Some(if has_worked { high.max(most) } else { high + most })
        });
        let expected = match &first[..] {
            [(_, only)] if based_on != Basis::Node => only.expected,
            [_] => all.expected,
            several => all.expected.filter(|_| several.iter().all(|(has_worked, _)| *has_worked)),
        };
        let low = first.iter().fold(all.low, |low, (_, cost)| low.min(cost.low));
        Estimate { low, expected, high: all.high.zip(most).map(|(all, most)| all.max(most)) }
    }
}

/// What these runs cost each, if all prices are known.
fn price(runs: &[&NodeRun]) -> Estimate {
    match runs.iter().all(|run| !run.unpriced) {
        true => Estimate::of(runs.iter().map(|run| run.cost_usd)).unwrap_or(Estimate::UNKNOWN),
        false => Estimate::UNKNOWN,
    }
}
