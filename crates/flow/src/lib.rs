//! Runs flows: the runtime, what its nodes do, and the reader of flow files. The pure half is `inspan-flow-core`, and
//! sessions are stored by `inspan-store`; what users of all three need is exported here too.

mod error;
mod load;
mod node;
mod nodes;
mod runtime;
#[cfg(test)]
mod testing;

pub use error::RunError;
pub use inspan_flow_core::{
    About, Action, Agents, AttemptEnd, Basis, BindingError, Body, BodyIx, Budget, CancelCause, Change, Code,
    Compiled, Computed, Condition, Conversation, CountSource, Cycle, DescribeNode, Diagnostic, Diagnostics,
    Edge, EdgeIx, EdgeOn, EdgeState, Effects, Ending, Estimate, Expected, Explanation, FACTS, Facts,
    FailFast, Fallback, FlowPolicy, FlowSource, Forecast, FrameCount, FrameIx, FrameWord, Frames, FramesKind,
    FramesProgress, Graph, History, InputError, Interrupted, Join, Loaded, MessageError, Missing, Node,
    NodeCatalog, NodeForecast, NodeIx, NodeKind, NodePolicy, NodeSession, NodeState, NodeTypeInfo, NotRaised,
    NotRun, Occupies, OnExhausted, OnFailure, OnItemError, OnLimit, OnUnknown, OverrideError, Parent,
    ParentKind, Plan, Planned, Position, Retry, RetryOn, Reusable, ReuseDecision, ReuseReason, Run, Scope,
    SessionMode, SessionRecord, Severity, SnapshotError, StartNode, Statement, StatementKind, StaticValue,
    TaskRef, Template, check_input, check_packs, check_pool_name, closest, compile, explain,
    explain_taking_over, flow_name, flow_schema, forecast, is_equal, is_text_by_default, parse_time,
    takes_input, types_of,
};
pub use inspan_store::{
    Batch, CommandAnswer, Deleted, Exported, Finding, Gc, GcReport, Import, LEASE, Lease, Liveness,
    MemoryStore, Owner, PostedCommand, RunStore, Select, SessionEntry, SessionFacts, SqliteOptions,
    SqliteStore, StoreError, StoreProblem, TransferError, Verdict, VerifyReport, Waits, async_trait,
};
pub use load::{FlowError, load, load_pack};
pub use node::{DynNodeType, NodeContext, NodeRegistry, NodeType};
pub use nodes::builtin_nodes;
pub use runtime::{
    Artifacts, AttemptBackend, AttemptContext, Changed, FlowRunResult, FlowRunner, FlowRunnerBuilder,
    LocalBackend, Mail, NodeReport, Outputs, Progress, Reports, Resume, RunHandle, WhenWaiting, graph_of,
    lineage, run_attempt,
};

#[cfg(test)]
mod tests {
    mod explain;
}
