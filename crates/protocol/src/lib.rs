//! The vocabulary and the contracts of Inspan: what every other crate agrees on.
//!
//! This crate only has types: no runtime, no file, no clock, no other crate of ours. Wire names are
//! camelCase JSON; an absent optional is never written, and a null one is read as absent.

mod agent;
mod budget;
mod classify;
mod command;
mod denied;
mod envelope;
mod error;
mod event;
mod fitting;
mod form;
mod host;
mod id;
mod message;
mod prompt;
mod provider;
mod redact;
mod setup;
mod snapshot;
mod stream;
mod supervisor;
mod timestamp;
mod tool;
mod trace;

pub use agent::{
    ContextUse, DEFAULT_IDLE_TIMEOUT, InputFacts, MultiTurn, OutputFacts, StopReason, ThinkingLevel,
    TurnSpending, Usage, believable_cost,
};
pub use budget::{BudgetLimits, BudgetRaise, FrameSpending, Spending, UnpricedTurns};
pub use classify::{classify_status, classify_text};
pub use command::{Command, CommandKind, Rejection};
pub use denied::{DeniedCalls, denials, set_denials};
pub use envelope::{
    DEEPEST, ENVELOPE_VERSION, Envelope, EventContext, RECORDING_VERSION, SESSION_STATE_VERSION,
    SNAPSHOT_VERSION, flat, is_too_deep, oversized_number,
};
pub use error::{AgentError, ErrorCode, ErrorKind, ErrorTag, LONGEST_WAIT, plain_words, with_causes};
pub use event::{
    AgentReason, CancelReason, LogLevel, MessageMode, Outcome, OutputStream, PauseCause, PromptKind,
    SkipReason, SteerStrength, WaitingOn,
};
pub use event::{Event, UnknownEvent};
pub use fitting::BoundedValidator;
pub use form::{FieldKind, Form, FormField, yes_or_no};
pub use host::{Environment, Host, PermissionPolicy};
pub use id::{
    EventId, InvalidNodeId, InvalidSessionId, NodeId, NodePath, PathPart, PromptId, ProviderSessionId, RunId,
    SessionId, TurnId,
};
pub use message::{Content, ContentBlock, Message, Role};
pub use prompt::{Prompt, Reply, is_unsafe, spelled_out};
pub use provider::{
    AgentQuestion, AnswerOption, DynProvider, Erased, ExecutionContext, Handshake, InputProblem,
    IntoProvider, PermissionBroker, PermissionDecision, PermissionRequest, Provider, ProviderCapabilities,
    ProviderDescriptor, ProviderInput, ProviderItem, ProviderOutput, ProviderStream, ProviderWrapper,
    Steering, read_json, schema_of,
};
pub use redact::{Redactor, StreamRedactor, beginning, ending};
pub use setup::{
    ModelServerAddress, ModelSettings, Probe, ProgramSetup, ProgramStatus, ProgramVariables, ServiceStatus,
    Setup,
};
pub use snapshot::{
    AgentSessionRef, EdgeStatus, EndedFrameSnapshot, FrameSnapshot, FramesSnapshot, NodeSnapshot, NodeStatus,
    RunSnapshot, SessionSpending, SessionState, SessionStatus,
};
pub use stream::{Chunk, StreamEvent};
pub use supervisor::Supervisor;
pub use timestamp::{InvalidTimestamp, Timestamp};
pub use tool::{DynHostTool, FnTool, HostTool, HostTools, ToolError, ToolOutput, ToolSpec};
pub use trace::{SpanId, TRACE_VARIABLES, TraceId, trace_variables};
/// Any error, for functions that a program implements: `?` takes every error, and a text becomes one by `into`.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;
