//! The places of nodes and edges in a compiled flow.

/// The place of a node in [`Graph::nodes`](crate::Graph::nodes).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeIx(pub u32);

/// The place of an edge in [`Graph::edges`](crate::Graph::edges).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EdgeIx(pub u32);
