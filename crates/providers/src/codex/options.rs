//! What a call of Codex takes.

use std::collections::BTreeMap;

use inspan_protocol::{Message, ProviderSessionId, ThinkingLevel, TurnId};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_with::skip_serializing_none;

use crate::input::provider_input_beside;

/// The input of one turn: exactly one of `prompt` and `messages`.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct CodexInput {
    /// What the user says.
    pub prompt: Option<String>,
    /// What the user says, in several messages or with pictures. Messages of the assistant are refused: resume a
    /// conversation with `sessionToken`.
    pub messages: Option<Vec<Message>>,
    /// The conversation to continue: the `sessionToken` of an earlier output. `options.resume` is the same, and
    /// only one of them may be given.
    pub session_token: Option<ProviderSessionId>,
    /// How it is run.
    pub options: Option<CodexOptions>,
}

/// How Codex is run. An absent option leaves the choice to the program and the user's own configuration of it.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct CodexOptions {
    /// The model, by its full name.
    pub model: Option<String>,
    /// Requests to the model that the call may take; at the limit the output says `maxTurns`. The tools of the last
    /// answer still run.
    #[schemars(range(min = 1))]
    pub max_turns: Option<u32>,
    /// The conversation to continue: the `sessionId` of an earlier output.
    pub resume: Option<ProviderSessionId>,
    /// Whether the conversation that `resume` names is branched: the turn knows it, and the conversation stays as it is.
    pub fork: Option<bool>,
    /// Where it is branched: the `turnId` of an earlier output; else after its last turn.
    pub fork_at: Option<TurnId>,
    /// The JSON Schema of the structured output. The vendor wants every object closed with
    /// `additionalProperties: false` and all its properties required.
    pub output_schema: Option<Value>,
    /// When the program asks before it does something.
    pub approval_policy: Option<ApprovalPolicy>,
    /// What its commands may reach without asking.
    pub sandbox: Option<SandboxMode>,
    /// Replaces the program's own instructions to the model.
    pub system_prompt: Option<String>,
    /// Is added to the instructions.
    pub append_system_prompt: Option<String>,
    /// How much the model may reason. Not every model takes every level.
    pub thinking: Option<ThinkingLevel>,
    /// The directory that the agent works in; relative to the caller's.
    #[schemars(length(min = 1))]
    pub cwd: Option<String>,
    /// MCP servers by name, in the form of Codex or of Claude Code, over standard input or HTTP.
    pub mcp_servers: Option<BTreeMap<String, Value>>,
    /// Overrides of the program's configuration, by dotted keys or nested: what `-c key=value` takes. They are
    /// in the program's arguments, where everybody can read them, so a secret belongs into the environment.
    pub config: Option<BTreeMap<String, Value>>,
    /// Whether the run waits for messages between turns.
    pub multi_turn: Option<bool>,
    /// How long it waits for one, in milliseconds.
    pub idle_timeout_ms: Option<u64>,
    /// How long the program may say nothing during a turn, in milliseconds, before the turn is interrupted with
    /// `TIMEOUT`; 300 000 unless given. The time stops while a person is asked, and while a tool runs it is
    /// half an hour at least.
    #[schemars(range(min = 1))]
    pub stall_timeout_ms: Option<u64>,
    /// The program, by path or by name; else the environment variable `INSPAN_CODEX`, else `codex`.
    pub executable: Option<String>,
}

/// When the program asks before it does something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum ApprovalPolicy {
    /// Before every command that is not known to only read.
    Untrusted,
    /// When the model wants to leave the sandbox.
    OnRequest,
    /// Never; what the sandbox forbids fails.
    Never,
}

/// What the program's commands may reach without asking.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum SandboxMode {
    /// They may read.
    ReadOnly,
    /// They may write in the working directory.
    WorkspaceWrite,
    /// Everything.
    DangerFullAccess,
}

provider_input_beside!(CodexInput, session_token);
