//! What a call of Claude Code takes.

use std::collections::BTreeMap;

use inspan_protocol::{Message, ProviderSessionId, ThinkingLevel, TurnId};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_with::skip_serializing_none;

use crate::input::provider_input;

/// The input of one turn: exactly one of `prompt` and `messages`.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ClaudeInput {
    /// What the user says.
    pub prompt: Option<String>,
    /// What the user says, in several messages or with pictures. Messages of the assistant are refused: resume a
    /// conversation with `options.resume`.
    pub messages: Option<Vec<Message>>,
    /// How it is run.
    pub options: Option<ClaudeOptions>,
}

/// How Claude Code is run. An absent option leaves the choice to the program and the user's own settings of it.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ClaudeOptions {
    /// The model, by a full name or an alias such as `sonnet`.
    pub model: Option<String>,
    /// Model turns that the call may take; at the limit the output says `maxTurns`.
    #[schemars(range(min = 1))]
    pub max_turns: Option<u32>,
    /// The conversation to continue: the `sessionId` of an earlier output.
    pub resume: Option<ProviderSessionId>,
    /// Whether the conversation that `resume` names is branched: the turn knows it, and the conversation stays as it is.
    pub fork: Option<bool>,
    /// Where it is branched: the `turnId` of an earlier output; else after its last turn.
    pub fork_at: Option<TurnId>,
    /// The JSON Schema of the structured output.
    pub output_schema: Option<Value>,
    /// The built-in tools that exist for the agent; an empty list means none.
    pub tools: Option<Vec<String>>,
    /// Tools that may be used without asking, such as `Bash(git *)`.
    pub allowed_tools: Option<Vec<String>>,
    /// Tools that may not be used. `Workflow`, `CronCreate`, `ScheduleWakeup`, `Monitor` and `SendMessage` are always among
    /// them unless `tools` or `allowedTools` names them.
    pub disallowed_tools: Option<Vec<String>>,
    /// What is asked before a tool is used.
    pub permission_mode: Option<PermissionMode>,
    /// Replaces the program's own system prompt.
    pub system_prompt: Option<String>,
    /// Is added to the system prompt.
    pub append_system_prompt: Option<String>,
    /// How much the model may think.
    pub thinking: Option<ThinkingLevel>,
    /// Tokens that a model with a fixed thinking budget may think for.
    pub max_thinking_tokens: Option<u32>,
    /// What the call may cost in US dollars; beyond it the call fails with `BILLING`, kind `maxBudget`. Such a call has
    /// a separate process, because the program counts per process.
    #[schemars(extend("exclusiveMinimum" = 0))]
    pub max_budget_usd: Option<f64>,
    /// Tokens that one message of the model may have; 0 is unset.
    pub max_tokens: Option<u32>,
    /// The directory that the agent works in; relative to the caller's.
    #[schemars(length(min = 1))]
    pub cwd: Option<String>,
    /// Further directories that its tools may reach.
    pub add_dirs: Option<Vec<String>>,
    /// MCP servers by name, in the program's own form. Servers of type `sdk` are refused.
    pub mcp_servers: Option<BTreeMap<String, Value>>,
    /// The settings files that are read; an empty list means none.
    pub setting_sources: Option<Vec<SettingSource>>,
    /// Whether the run waits for messages between turns.
    pub multi_turn: Option<bool>,
    /// How long it waits for one, in milliseconds.
    pub idle_timeout_ms: Option<u64>,
    /// How long the program may say nothing during a turn, in milliseconds, before the turn is interrupted with
    /// `TIMEOUT`; 300 000 unless given. The time stops while a person is asked, and while a tool runs it is
    /// half an hour at least.
    #[schemars(range(min = 1))]
    pub stall_timeout_ms: Option<u64>,
    /// The program, by path or by name; else the environment variable `INSPAN_CLAUDE`, else `claude`.
    pub executable: Option<String>,
    /// Whether the program may take `/word` at the start of the prompt for one of its commands and `@path` for a file
    /// to include. Unless it may, the prompt reaches the model as it is written.
    pub expand_prompt: Option<bool>,
}

/// What is asked before a tool is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub enum PermissionMode {
    /// Everything that may do damage.
    Default,
    /// As the default, but edits of files are not asked about.
    AcceptEdits,
    /// Nothing is changed; the agent plans.
    Plan,
    /// Nothing is asked; what would be asked about is denied.
    DontAsk,
    /// Nothing is asked and everything is allowed. The program refuses this to root.
    BypassPermissions,
    /// The program judges by itself.
    Auto,
}

/// A settings file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub enum SettingSource {
    /// The user's, for all projects.
    User,
    /// The project's, shared.
    Project,
    /// The project's, of this user.
    Local,
}

provider_input!(ClaudeInput, |options| options.max_turns, fork_at);
