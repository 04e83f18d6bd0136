//! The flow file, its compiler, the pure scheduler, the runtime and the node catalogue.

mod expr;
mod graph;
mod node;
mod registry;
mod runtime;

pub use expr::{Condition, Scope, Template};
pub use graph::{
    Cycle, Edge, EdgeIx, Effects, FailFast, FlowPolicy, Graph, Join, Node, NodeIx, NodePolicy, Occupies,
    OnExhausted, OnFailure, Retry, RetryOn,
};
pub use node::{Computed, NodeKind, NodeType, NodeTypeInfo};
pub use registry::NodeRegistry;
pub use runtime::NodeContext;
