//! What agents say over the Agent Client Protocol, version 1, as far as it is read here; and the values we send.
//!
//! Fields that are not read are skipped, and what an agent may leave out is optional: the protocol grows by
//! additions, and agents follow it differently.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::decode::or_default;

/// The version that is supported here.
pub(super) const VERSION: u64 = 1;

/// The answer to `initialize`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Initialized {
    pub(super) protocol_version: u64,
    #[serde(default)]
    pub(super) agent_capabilities: Option<AgentCapabilities>,
    #[serde(default)]
    pub(super) auth_methods: Option<Vec<AuthMethod>>,
    /// What program the agent is, for people.
    #[serde(default)]
    pub(super) agent_info: Value,
}

/// What an agent can do.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct AgentCapabilities {
    pub(super) load_session: bool,
    pub(super) prompt_capabilities: Option<PromptCapabilities>,
    pub(super) mcp_capabilities: Option<McpCapabilities>,
    pub(super) session_capabilities: Option<SessionCapabilities>,
}

impl AgentCapabilities {
    /// Whether a session outlives the process, so that another one can open it by its name.
    pub(super) fn keeps_sessions(&self) -> bool {
        let can = self.session_capabilities.as_ref();
        self.load_session || can.is_some_and(|can| can.resume.is_some() || can.fork.is_some())
    }
}

/// What a prompt may hold beside text.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct PromptCapabilities {
    pub(super) image: bool,
    pub(super) embedded_context: bool,
}

/// The kinds of MCP server that an agent connects to beside programs.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct McpCapabilities {
    pub(super) http: bool,
    pub(super) sse: bool,
}

/// What can be done with sessions; an object, even an empty one, says yes.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct SessionCapabilities {
    pub(super) resume: Option<Value>,
    pub(super) fork: Option<Value>,
}

/// A way to log in.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct AuthMethod {
    #[serde(default)]
    pub(super) id: String,
    #[serde(default)]
    pub(super) name: Option<String>,
    #[serde(default)]
    pub(super) description: Option<String>,
}

/// The answer to `session/new`, `session/resume` and `session/load`.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Opened {
    pub(super) session_id: Option<String>,
    pub(super) modes: Option<Modes>,
    pub(super) models: Option<Models>,
    pub(super) config_options: Option<Vec<ConfigOption>>,
}

/// The modes of a session.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Modes {
    pub(super) current_mode_id: Option<String>,
    pub(super) available_modes: Vec<Mode>,
}

/// One mode.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Mode {
    pub(super) id: String,
}

/// The models of a session, in the form that agents used before sessions had options.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Models {
    pub(super) current_model_id: Option<String>,
    pub(super) available_models: Vec<Model>,
}

/// One model.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Model {
    pub(super) model_id: String,
}

/// Something of a session that can be chosen.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ConfigOption {
    pub(super) id: String,
    #[serde(default)]
    pub(super) category: Option<String>,
    #[serde(default)]
    pub(super) current_value: Value,
    #[serde(default)]
    pub(super) options: Option<Vec<OptionValue>>,
}

/// A value of an option, or a group of values.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct OptionValue {
    #[serde(default)]
    pub(super) value: Option<String>,
    #[serde(default)]
    pub(super) options: Option<Vec<OptionValue>>,
}

impl ConfigOption {
    /// All values that can be chosen, out of their groups.
    pub(super) fn values(&self) -> Vec<String> {
        let choices = self.options.iter().flatten();
        choices
            .flat_map(|choice| {
                choice.value.iter().chain(choice.options.iter().flatten().filter_map(|c| c.value.as_ref()))
            })
            .cloned()
            .collect()
    }
}

/// The answer to `session/set_config_option`.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Configured {
    pub(super) config_options: Option<Vec<ConfigOption>>,
}

/// A `session/update`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Notice {
    #[serde(default)]
    pub(super) session_id: Option<String>,
    pub(super) update: Update,
}

/// What happened in a session. Which fields there are depends on `session_update`.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Update {
    pub(super) session_update: String,
    pub(super) message_id: Option<String>,
    #[serde(flatten)]
    pub(super) tool: AcpToolCall,
    #[serde(deserialize_with = "or_default")]
    pub(super) cost: Option<AcpCost>,
    /// Tokens of the context that are used.
    #[serde(deserialize_with = "or_default")]
    pub(super) used: Option<u64>,
    /// How many the model takes.
    #[serde(deserialize_with = "or_default")]
    pub(super) size: Option<u64>,
    pub(super) config_options: Option<Vec<ConfigOption>>,
}

/// A call of a tool, or what of it has changed.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct AcpToolCall {
    pub(super) tool_call_id: Option<String>,
    pub(super) title: Option<String>,
    pub(super) kind: Option<String>,
    pub(super) status: Option<String>,
    /// The content of a tool call is a list, that of a chunk of text one block.
    pub(super) content: Option<Value>,
    pub(super) locations: Option<Vec<Location>>,
    pub(super) raw_input: Option<Value>,
    pub(super) raw_output: Option<Value>,
    #[serde(rename = "_meta")]
    pub(super) meta: Option<Value>,
}

/// A place in a file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Location {
    pub(super) path: String,
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "Option::is_none")]
    pub(super) line: Option<u64>,
}

/// What a session cost so far.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct AcpCost {
    pub(super) amount: f64,
    pub(super) currency: String,
}

/// The state of the account's usage limit, which the Claude agent adds to a `usage_update`.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct RateLimit {
    pub(super) status: String,
    /// When it is lifted, in seconds since 1970.
    pub(super) resets_at: Option<i64>,
}

impl RateLimit {
    /// The one beside an update.
    pub(super) fn of(meta: &Value) -> Option<Self> {
        Self::deserialize(meta.get("_claude/rateLimit")?).ok()
    }
}

/// The answer to `session/prompt`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Prompted {
    pub(super) stop_reason: String,
    #[serde(default, deserialize_with = "or_default")]
    pub(super) usage: Option<TokenUsage>,
    /// What the agent adds to the protocol.
    #[serde(default, rename = "_meta")]
    pub(super) meta: Option<Value>,
}

/// Tokens of one prompt; an extension that most agents offer.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct TokenUsage {
    #[serde(deserialize_with = "or_default")]
    pub(super) total_tokens: u64,
    #[serde(deserialize_with = "or_default")]
    pub(super) input_tokens: u64,
    #[serde(deserialize_with = "or_default")]
    pub(super) output_tokens: u64,
    #[serde(deserialize_with = "or_default")]
    pub(super) thought_tokens: Option<u64>,
    #[serde(deserialize_with = "or_default")]
    pub(super) cached_read_tokens: Option<u64>,
    #[serde(deserialize_with = "or_default")]
    pub(super) cached_write_tokens: Option<u64>,
}

/// `session/request_permission`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct AskPermission {
    pub(super) tool_call: AcpToolCall,
    #[serde(default)]
    pub(super) options: Vec<PermissionOption>,
}

/// An answer that an agent offers to its question.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PermissionOption {
    pub(super) option_id: String,
    #[serde(default)]
    pub(super) kind: String,
    /// What it says to people.
    #[serde(default, skip_serializing)]
    pub(super) name: String,
}

/// `fs/read_text_file`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct ReadFile {
    pub(super) path: String,
    /// The first line that is wanted, from 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) line: Option<u64>,
    /// How many lines are wanted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) limit: Option<u64>,
}

/// `fs/write_text_file`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct WriteFile {
    pub(super) path: String,
    pub(super) content: String,
}

/// `terminal/create`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct CreateTerminal {
    pub(super) command: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) args: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) env: Vec<Variable>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) cwd: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) output_byte_limit: Option<u64>,
}

/// An environment variable.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Variable {
    pub(super) name: String,
    pub(super) value: String,
}

/// The other `terminal/*` requests.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct AboutTerminal {
    pub(super) terminal_id: String,
}

/// The parameters of `initialize`.
pub(super) fn initialize(reads_through_us: bool) -> Value {
    json!({
        "protocolVersion": VERSION,
        "clientCapabilities": {
            "fs": { "readTextFile": reads_through_us, "writeTextFile": true },
            "terminal": true,
        },
        "clientInfo": { "name": "inspan", "title": "Inspan", "version": env!("CARGO_PKG_VERSION") },
    })
}

/// The answer to a question for permission: an option, or that the turn was cancelled.
pub(super) fn permission(option: Option<&str>) -> Value {
    match option {
        Some(option) => json!({ "outcome": { "outcome": "selected", "optionId": option } }),
        None => json!({ "outcome": { "outcome": "cancelled" } }),
    }
}

/// The answers of a person beside it, by the numbers of their questions, as Qwen Code reads them.
pub(super) fn answered(option: &str, answers: &[Value]) -> Value {
    let joined = |answer: &Value| {
        let parts = answer.as_array().into_iter().flatten().filter_map(Value::as_str);
        json!(parts.collect::<Vec<_>>().join(", "))
    };
    let mut response = permission(Some(option));
    response["answers"] =
        answers.iter().map(joined).enumerate().map(|(at, text)| (at.to_string(), text)).collect();
    response
}
