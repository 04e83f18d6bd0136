//! The flow file, its compiler, the pure scheduler, the runtime and the node catalogue.

mod compile;
mod diagnostic;
mod error;
mod explain;
mod expr;
mod graph;
mod load;
mod node;
mod nodes;
mod overrides;
mod registry;
mod runtime;
mod schedule;
mod spec;
mod state;
mod store;
#[cfg(test)]
mod testing;

pub use compile::{Compiled, check_input, compile};
pub use diagnostic::{Code, Diagnostic, Diagnostics, Position, Severity};
pub use error::RunError;
pub use explain::{About, Explanation, Said, Statement, explain};
pub use expr::{BindingError, Condition, Part, Scope, Template};
pub use graph::{
    Budget, Cycle, Edge, EdgeIx, Effects, FailFast, FlowPolicy, Graph, Join, Node, NodeIx, NodePolicy,
    Occupies, OnExhausted, OnFailure, OnLimit, OnUnknown, Retry, RetryOn,
};
pub use load::{FlowError, Loaded, load};
pub use node::{Computed, NodeKind, NodeType, NodeTypeInfo};
pub use nodes::builtin_nodes;
pub use overrides::{Change, OverrideError};
pub use registry::NodeRegistry;
pub use runtime::{
    Changed, FlowRunResult, FlowRunner, FlowRunnerBuilder, NodeContext, NodeReport, Outputs, Reports, Resume,
    RunHandle, WhenWaiting,
};
pub use schedule::{
    Action, AttemptEnd, CancelReason, Fate, Interrupted, Plan, Planned, Reusable, Run, StartNode, Why,
};
pub use spec::flow_schema;
pub use state::{
    Conversation, EdgeState, Ending, FACTS, NodeState, RunState, SnapshotError, wait_before_retry,
};
pub use store::{
    Answered, Batch, Deleted, Digest, Exported, Finding, FlowSource, Gc, GcReport, Import, LEASE, Lease,
    Liveness, MemoryStore, Owner, Parent, ParentKind, PostedCommand, Problem, RunStore, Select, SessionEntry,
    SessionRecord, SqliteOptions, SqliteStore, StoreError, TransferError, Verdict, VerifyReport, Waits,
};
