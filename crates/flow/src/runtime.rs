//! Placeholder: the runtime is written on another branch.

/// What surrounds one attempt of a node.
pub struct NodeContext {}
