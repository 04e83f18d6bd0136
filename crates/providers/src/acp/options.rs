//! What a call of an agent over the Agent Client Protocol takes.

use std::collections::BTreeMap;

use inspan_protocol::{Message, ProviderSessionId, ThinkingLevel};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_with::skip_serializing_none;

use crate::input::provider_input;

/// The input of one turn: exactly one of `prompt` and `messages`.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct AcpInput {
    /// What the user says.
    pub prompt: Option<String>,
    /// What the user says, in several messages, with pictures or documents. Messages of the assistant are refused:
    /// resume a conversation with `options.resume`.
    pub messages: Option<Vec<Message>>,
    /// How the agent is run.
    pub options: Option<AcpOptions>,
}

/// How the agent is run. An absent option leaves the choice to the agent and the user's own settings of it.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct AcpOptions {
    /// The program, by path or by name. The provider `acp` needs it; `droid` and `gemini` have their own, which the
    /// variables `INSPAN_DROID` and `INSPAN_GEMINI` may name.
    pub command: Option<String>,
    /// The program's arguments, in place of those that a provider has by itself.
    pub args: Option<Vec<String>>,
    /// Variables for the program, beside those it sees of the caller's environment.
    pub env: Option<BTreeMap<String, String>>,
    /// Variables of vendors, such as `OPENAI_API_KEY` or `ANTHROPIC_*`, that the program may see of the caller's
    /// environment. Variables that are no vendor's it sees in any case.
    pub pass_env: Option<Vec<String>>,
    /// The model, by the agent's own value for it; an agent that does not offer it fails the call beforehand.
    pub model: Option<String>,
    /// The mode of the session, by the agent's own value for it, such as `plan`; an agent that does not offer it fails
    /// the call beforehand.
    pub mode: Option<String>,
    /// How much the model may think. An agent that offers no choice of it is left as it is, with a warning.
    pub thinking: Option<ThinkingLevel>,
    /// The way to log in before the session begins, by the agent's own id for it. Only ways that need no person work.
    pub auth_method: Option<String>,
    /// The conversation to continue: the `sessionId` of an earlier output.
    pub resume: Option<ProviderSessionId>,
    /// Whether the conversation that `resume` names is branched: the turn knows it, and the conversation stays as it
    /// is.
    pub fork: Option<bool>,
    /// The JSON Schema of the structured output. The prompt has it; nobody checks it but the
    /// caller.
    pub output_schema: Option<Value>,
    /// Tools that are allowed when the agent asks, by their kind (`read`, `edit`, `delete`, `move`, `search`,
    /// `execute`, `think`, `fetch`, `switch_mode`, `other`) or by the name that the agent itself gives them.
    pub allowed_tools: Option<Vec<String>>,
    /// Tools that are denied when the agent asks, likewise. What the agent does without asking cannot be denied.
    pub disallowed_tools: Option<Vec<String>>,
    /// The directory that the agent works in; relative to the caller's.
    #[schemars(length(min = 1))]
    pub cwd: Option<String>,
    /// MCP servers by name: `{command, args, env}`, or `{type, url, headers}` with the type `http` or `sse`.
    pub mcp_servers: Option<BTreeMap<String, Value>>,
    /// Whether the run waits for messages between turns.
    pub multi_turn: Option<bool>,
    /// How long it waits for one, in milliseconds.
    pub idle_timeout_ms: Option<u64>,
    /// How long the agent may say nothing during a turn, in milliseconds, before the turn is cancelled with
    /// `TIMEOUT`; 300 000 unless given. The time stops while a person is asked, and while a tool runs it is
    /// half an hour at least.
    #[schemars(range(min = 1))]
    pub stall_timeout_ms: Option<u64>,
    /// Whether the agent may take `/word` at the start of the prompt for one of its commands. Unless it may, a few
    /// words are put before such a prompt.
    pub expand_prompt: Option<bool>,
}

provider_input!(AcpInput, |_options| None);
