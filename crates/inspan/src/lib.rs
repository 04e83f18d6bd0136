//! Run coding agents, and flows of agents, commands and people, from Rust.
//!
//! ```
//! use inspan::prelude::*;
//!
//! #[tokio::main]
//! async fn main() -> Result<(), BoxError> {
//!     let result = run_agent(EchoProvider, "Say something about oxen.").await?;
//!     println!("{}", result.text);
//!     Ok(())
//! }
//! ```
//!
//! [`EchoProvider`](providers::EchoProvider) needs no program and no key. Instead of it,
//! [`ClaudeProvider::new()`](providers::ClaudeProvider) is Claude Code, and the other [`providers`]
//! are further agent CLIs, every agent that speaks ACP, and the services of Anthropic and OpenAI. A
//! provider sees only the environment variables that it is given:
//! `AgentOptions::new().env(std::env::vars().collect())`.
//!
//! A flow, which is a YAML file or a text:
//!
//! ```
//! use inspan::prelude::*;
//!
//! #[tokio::main]
//! async fn main() -> Result<(), BoxError> {
//!     let flow = Flow::parse(
//!         "hello.yaml",
//!         "
//!         name: hello
//!         nodes:
//!           - { id: greet, type: echo.agent, input: { prompt: 'Hello, {{ flow.input.name }}!' } }
//!         ",
//!     )?;
//!     let result = flow.run(json!({ "name": "Ada" })).await?;
//!     assert_eq!(result.outputs.get("greet").map(|greet| &greet["text"]), Some(&json!("Hello, Ada!")));
//!     Ok(())
//! }
//! ```
//!
//! | For | Start at |
//! |---|---|
//! | one answer of an agent; a conversation | [`run_agent`], [`AgentSession`] |
//! | a flow; a flow that is stored, paused and resumed | [`Flow`], [`Flow::runner`] |
//! | events, messages, questions | [`Hub`], [`Event`] |
//! | an interface such as a console | [`Channel`] |
//! | an agent in code; your own provider | [`AgentDefinition`], [`provider`] |
//! | your own node type | [`node`] |
//! | programs that end with yours | [`guard`] |
//! | tests of flows | [`testing`] |

mod flow;

pub use flow::{Error, Flow};
pub use inspan_engine::{
    AgentContext, AgentDefinition, AgentHooks, AgentItem, AgentOptions, AgentResult, AgentSession,
    AgentSessionStatus, AgentSnapshot, AgentStream, Attachment, Channel, ChannelLimits, Channels, Chat,
    ChatError, ExecutableAgent, HookResult, Mailbox, ProviderAgent, RetryOptions, RunAgentOptions, ToolCall,
    run_agent, run_agent_stream,
};
pub use inspan_engine::{
    BoundedSubscription, Clock, CountingIds, Filter, Hub, IdSource, Lagged, Observer, PendingReply,
    RandomIds, Subscription, SystemClock, Unanswered, VirtualClock,
};
pub use inspan_engine::{NodeCalls, Pace, Recorder, Replayer};
pub use inspan_flow::{
    Changed, Diagnostic, Diagnostics, FlowError, FlowRunResult, FlowRunner, FlowRunnerBuilder, InputError,
    MessageError, NodeReport, NotRaised, Outputs, OverrideError, Resume, RunError, RunHandle, SnapshotError,
    WhenWaiting,
};
pub use inspan_process::{guard, run_as_guard};
pub use inspan_protocol::{
    AgentError, BoxError, BudgetLimits, BudgetRaise, Command, Content, ContentBlock, ContextUse, Envelope,
    Environment, ErrorCode, ErrorKind, Event, EventContext, FnTool, Host, HostTool, HostTools, LogLevel,
    Message, MessageMode, NodeId, NodePath, NodeStatus, Outcome, PermissionPolicy, Prompt, PromptId,
    PromptKind, ProviderSessionId, Rejection, Reply, Role, RunId, RunSnapshot, SessionId, SessionState,
    SessionStatus, StopReason, ThinkingLevel, Timestamp, ToolError, ToolOutput, ToolSpec, Usage,
};

/// Ends what an agent, a node or a provider does.
pub use tokio_util::sync::CancellationToken;

/// The agents that come with Inspan, and the registry that flows find them in.
pub mod providers {
    pub use inspan_engine::ProviderRegistry;
    pub use inspan_providers::{
        AcpProvider, AnthropicProvider, ClaudeProvider, CodexProvider, EchoProvider, OpenAiProvider,
        OpenCodeProvider, ScriptedProvider,
    };

    /// All of them, each under its type, such as `claude`.
    pub fn builtin() -> ProviderRegistry {
        inspan_providers::builtin().into_iter().collect()
    }
}

/// What it takes to write a provider: an adapter to one kind of agent.
pub mod provider {
    pub use inspan_protocol::{
        Chunk, ExecutionContext, Handshake, InputFacts, InputProblem, IntoProvider, ModelServerAddress,
        ModelSettings, MultiTurn, OutputFacts, PermissionBroker, PermissionDecision, PermissionRequest,
        Probe, ProgramSetup, ProgramStatus, ProgramVariables, Provider, ProviderCapabilities,
        ProviderDescriptor, ProviderInput, ProviderItem, ProviderOutput, ProviderStream, ServiceStatus,
        Setup, Steering, StreamEvent, Supervisor,
    };
}

/// What it takes to write a node type for flows.
pub mod node {
    pub use inspan_flow::{
        Computed, DescribeNode, Effects, NodeContext, NodeKind, NodeRegistry, NodeType, NodeTypeInfo,
        Occupies, builtin_nodes,
    };
}

/// Tests of flows: cases with written or recorded answers, run without agents, programs or a network.
pub mod testing {
    pub use inspan_flow_test::{
        AddError, CaseReport, ComparedSession, Comparison, Coverage, Covered, FailedExpectation, FileProblem,
        FileReport, MadeCase, NodeComparison, NodeSide, NodeTrace, Options, Report, SessionSide,
        SnapshotMode, Suite, Trace, add_case, find, test_file_schema,
    };
}

/// Where sessions are stored, and what it takes to write a store.
pub mod store {
    pub use inspan_flow::{
        Batch, CommandAnswer, Deleted, FlowSource, Gc, GcReport, LEASE, Lease, Liveness, MemoryStore, Owner,
        Parent, ParentKind, PostedCommand, RunStore, Select, SessionEntry, SessionFacts, SessionRecord,
        SqliteOptions, SqliteStore, StoreError, StoreProblem, Verdict, VerifyReport, Waits, async_trait,
    };
}

/// What most programs use.
pub mod prelude {
    pub use serde_json::json;

    pub use crate::providers::{
        AcpProvider, AnthropicProvider, ClaudeProvider, CodexProvider, EchoProvider, OpenAiProvider,
        OpenCodeProvider,
    };
    pub use crate::{
        AgentHooks, AgentItem, AgentOptions, AgentResult, AgentSession, BoxError, Channel, Chat, ChatError,
        Event, Filter, Flow, Hub, PermissionPolicy, RetryOptions, run_agent, run_agent_stream,
    };
}
