//! How long a body takes whose nodes wait for each other.

use super::{Amount, Estimate};
use crate::graph::{Body, NodeIx};

/// The nodes, each after those whose edges lead to it; loop edges aside.
pub(super) fn order(body: &Body) -> Vec<NodeIx> {
    let mut waits: Vec<usize> = body.nodes.iter().map(|node| node.incoming.len()).collect();
    let all = (0..body.nodes.len() as u32).map(NodeIx);
    let mut order: Vec<NodeIx> = all.filter(|ix| body.node(*ix).incoming.is_empty()).collect();
    let mut next = 0;
    while let Some(ix) = order.get(next).copied() {
        next += 1;
        for edge in &body.node(ix).outgoing {
            let to = body.edge(*edge).to;
            waits[to.0 as usize] -= 1;
            if waits[to.0 as usize] == 0 {
                order.push(to);
            }
        }
    }
    order
}

/// The time of the longest chain of nodes, in an order in which each comes after those that it waits for.
pub(super) fn longest(body: &Body, order: &[NodeIx], amounts: &[Amount]) -> Estimate {
    let mut ends = vec![Estimate::ZERO; body.nodes.len()];
    for ix in order {
        let before = body.node(*ix).incoming.iter().map(|edge| ends[body.edge(*edge).from.0 as usize]);
        let begins = before.fold(Estimate::ZERO, |one, other| one.with(other, f64::max));
        ends[ix.0 as usize] = begins + amounts[ix.0 as usize].longest;
    }
    ends.into_iter().fold(Estimate::ZERO, |one, other| one.with(other, f64::max))
}
