//! The flow file, its compiler, the pure scheduler, the runtime and the node catalogue.

mod compile;
mod diagnostic;
mod expr;
mod graph;
mod load;
mod node;
mod overrides;
mod registry;
mod runtime;
mod spec;

pub use compile::{Compiled, check_input, compile};
pub use diagnostic::{Code, Diagnostic, Diagnostics, Position, Severity};
pub use expr::{BindingError, Condition, Scope, Template};
pub use graph::{
    Cycle, Edge, EdgeIx, Effects, FailFast, FlowPolicy, Graph, Join, Node, NodeIx, NodePolicy, Occupies,
    OnExhausted, OnFailure, Retry, RetryOn,
};
pub use load::{FlowError, Loaded, load};
pub use node::{Computed, NodeKind, NodeType, NodeTypeInfo};
pub use overrides::OverrideError;
pub use registry::NodeRegistry;
pub use runtime::NodeContext;
