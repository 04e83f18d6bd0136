//! Where sessions run: on this machine, or on a cluster if the program was built with one.

use std::collections::BTreeSet;

use inspan_flow::{Graph, Node, NodeKind, Occupies};
use serde::Serialize;

#[cfg(not(feature = "temporal"))]
mod absent;
#[cfg(feature = "temporal")]
mod temporal;

#[cfg(not(feature = "temporal"))]
pub(crate) use absent::Engine;
#[cfg(feature = "temporal")]
pub(crate) use temporal::Engine;

/// What was found of the place where sessions run.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct EngineReport {
    pub(crate) name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) version: Option<String>,
    /// The workers, each in words.
    pub(crate) workers: Vec<String>,
    /// Why no session can run there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) problem: Option<String>,
}

/// The pools of machines that a flow needs; absent is that of nodes without one.
pub(crate) fn pools(graph: &Graph) -> BTreeSet<Option<&str>> {
    let works = |node: &&Node| {
        matches!(node.kind, NodeKind::Plain | NodeKind::Agent) && node.occupies == Occupies::Slot
    };
    let nodes = graph.bodies.iter().flat_map(|body| &body.nodes).filter(works);
    nodes.map(|node| node.pool.as_deref()).collect()
}
