//! What a call of OpenCode takes.

use std::collections::BTreeMap;

use inspan_protocol::{Message, ProviderSessionId, TurnId};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_with::skip_serializing_none;

use crate::input::provider_input;

/// The input of one turn: exactly one of `prompt` and `messages`.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct OpenCodeInput {
    /// What the user says.
    pub prompt: Option<String>,
    /// What the user says, in several messages or with pictures. Messages of the assistant are refused: resume a
    /// conversation with `options.resume`.
    pub messages: Option<Vec<Message>>,
    /// How it is run.
    pub options: Option<OpenCodeOptions>,
}

/// How OpenCode is run. An absent option leaves the choice to the program and the user's own settings of it, but for
/// what is asked before a tool is used.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct OpenCodeOptions {
    /// The model, written as `provider/model`, such as `anthropic/claude-sonnet-4-5`.
    #[schemars(regex(pattern = "^[^/]+/.+$"))]
    pub model: Option<String>,
    /// The variant of the model, by the name the program gives it, such as `high`: how much it may think. One that
    /// the model does not have changes nothing.
    pub variant: Option<String>,
    /// The agent of the program that answers, such as `build` or `plan`; `build` unless given.
    pub agent: Option<String>,
    /// Model turns that the call may take; at the limit the turn is ended and the output says `maxTurns`.
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
    /// The tools that exist for the agent, by the names of the program's permissions; an empty list means none.
    pub tools: Option<Vec<String>>,
    /// Tools that may be used without asking, such as `bash(git *)`.
    pub allowed_tools: Option<Vec<String>>,
    /// Tools that may not be used.
    pub disallowed_tools: Option<Vec<String>>,
    /// Replaces the program's own system prompt, but for what it says about its surroundings.
    pub system_prompt: Option<String>,
    /// Is added to the system prompt.
    pub append_system_prompt: Option<String>,
    /// The directory that the agent works in; relative to the caller's.
    #[schemars(length(min = 1))]
    pub cwd: Option<String>,
    /// MCP servers by name, in the program's own form or in that of Claude Code: programs by `command`, `args` and `env`,
    /// others by `url` and `headers`.
    pub mcp_servers: Option<BTreeMap<String, Value>>,
    /// Whether the run waits for messages between turns.
    pub multi_turn: Option<bool>,
    /// How long it waits for one, in milliseconds.
    pub idle_timeout_ms: Option<u64>,
    /// How long the program may say nothing during a turn, in milliseconds, before the turn is aborted with `TIMEOUT`;
    /// 300 000 unless given. The time stops while a person is asked, and while a tool runs it is half an hour
    /// at least.
    #[schemars(range(min = 1))]
    pub stall_timeout_ms: Option<u64>,
    /// The program, by path or by name; else the environment variable `INSPAN_OPENCODE`, else `opencode`.
    pub executable: Option<String>,
}

provider_input!(OpenCodeInput, |options| options.max_turns, fork_at);
