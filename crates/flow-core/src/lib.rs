//! The pure half of flows: the flow file, its compiler, the node catalogue, the scheduler and explanations. Nothing in
//! this crate reads a file, a clock or the network, and nothing waits; it also builds for wasm.

mod catalog;
mod compile;
mod diagnostic;
mod explain;
mod expr;
mod forecast;
mod graph;
mod ids;
mod node;
mod nodes;
mod overrides;
mod pilot;
mod record;
mod schedule;
mod source;
mod spec;
mod state;
#[cfg(test)]
mod testing;

pub use catalog::{Described, NodeCatalog};
pub use compile::{
    Compiled, InputError, check_input, check_packs, compile, is_text_by_default, takes_input, types_of,
};
pub use diagnostic::{Code, Diagnostic, Diagnostics, Position, Severity, closest};
pub use explain::{About, Explanation, Statement, StatementKind, explain, explain_taking_over};
pub use expr::{BindingError, Condition, Passes, Scope, StaticValue, Template, is_equal};
pub use forecast::{
    Basis, CountSource, Estimate, Expected, Forecast, FrameCount, FrameWord, History, NodeForecast, NotRun,
    forecast,
};
pub use graph::{
    Agents, Body, BodyIx, Budget, Cycle, Edge, EdgeIx, EdgeOn, Effects, FailFast, Fallback, FlowPolicy,
    FrameIx, Frames, FramesKind, Graph, Join, Node, NodeIx, NodePolicy, NodeSession, OnExhausted, OnFailure,
    OnItemError, OnLimit, OnUnknown, Retry, RetryOn, SessionMode, Subflow, TaskRef,
};
pub use node::{Computed, DescribeNode, NodeKind, NodeTypeInfo, Occupies};
pub use nodes::{
    Allowed, AnyAgent, AnyWord, ControlWait, Exec, ExecInput, ExecOutput, ExecParse, HttpInput, HttpMethod,
    HttpOutput, HttpRequest, HumanAnswer, HumanInput, HumanQuestion, McpCall, McpEntry, McpInput, McpOutput,
    ProviderAgent, QueryValue, WaitFor, WaitInput, WaitOutput, builtin_catalog, pointer_part, read_input,
    write_output,
};
pub use overrides::OverrideError;
pub use pilot::{
    AttemptDone, AttemptLoss, AttemptSpec, Carried, Instruction, Pilot, Received, UnknownNodeType,
};
pub use record::{Parent, ParentKind, SessionRecord};
pub use schedule::{
    Action, AttemptEnd, CancelCause, Interrupted, MessageError, Missing, Plan, Planned, Reusable,
    ReuseDecision, ReuseReason, Run, StartNode,
};
pub use source::{Change, FlowSource, IncludedFile, Loaded, NAMED_FLOWS};
pub use spec::{PROJECT_PACKS, check_pool_name, flow_name, flow_schema, parse_time};
pub use state::{
    CONTINUE, Conversation, EdgeState, Ending, FACTS, Facts, FramesProgress, NodeState, NotRaised,
    SessionFacts, SnapshotError, Waits, is_fact,
};
