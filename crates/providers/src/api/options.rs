//! The options of a turn that all vendors share.

use inspan_protocol::{ProviderSessionId, TurnId};

use crate::tools::ToolSettings;

/// The options of a turn that all vendors share.
pub(crate) struct TurnOptions<'a> {
    /// The conversation to continue.
    pub(crate) resume: Option<&'a ProviderSessionId>,
    /// Whether that one is branched.
    pub(crate) fork: bool,
    /// The end of the turn at which it is.
    pub(crate) fork_at: Option<&'a TurnId>,
    pub(crate) tools: ToolSettings<'a>,
    pub(crate) max_turns: Option<u32>,
    pub(crate) stall_timeout_ms: Option<u64>,
}

/// The options of a vendor: its own ones, which end with the conversation to continue, and those that all vendors share.
macro_rules! api_options {
    ($(#[$doc:meta])* pub struct $name:ident { $($(#[$own_doc:meta])* pub $own:ident: $type:ty,)* }) => {
        $(#[$doc])*
        #[::serde_with::skip_serializing_none]
        #[derive(Clone, Debug, Default, PartialEq, ::serde::Serialize, ::serde::Deserialize, ::schemars::JsonSchema)]
        #[serde(rename_all = "camelCase", deny_unknown_fields, default)]
        pub struct $name {
            $($(#[$own_doc])* pub $own: $type,)*
            /// Whether the conversation that `resume` names is branched: the turn knows it, and the conversation stays as it is.
            pub fork: Option<bool>,
            /// Where it is branched: the `turnId` of an earlier output; else after its last turn.
            pub fork_at: Option<::inspan_protocol::TurnId>,
            /// Tools that may be called without asking: names such as `mcp__SERVER__TOOL`, `mcp__SERVER` for all of a server, or
            /// patterns with `*`.
            pub allowed_tools: Option<Vec<String>>,
            /// Tools that do not exist for the model, in the same words; they go before `allowedTools`.
            pub disallowed_tools: Option<Vec<String>>,
            /// MCP servers by name, in the form that Claude Code has for them: programs by `command`, `args` and `env`, others by
            /// `url` and `headers`. `${VARIABLE}` is filled in.
            pub mcp_servers: Option<::std::collections::BTreeMap<String, ::serde_json::Value>>,
            /// How long an MCP server may take until it has listed its tools, in milliseconds; 30 000 unless given.
            pub mcp_timeout_ms: Option<u64>,
            /// How long one call of a tool may take, in milliseconds, the wait for permission aside; 600 000 unless given.
            pub tool_timeout_ms: Option<u64>,
            /// Requests to the model that the run may take in all, with those that answer its calls of tools; 100 a turn unless
            /// given. At the limit the output says `maxTurns`.
            #[schemars(range(min = 1))]
            pub max_turns: Option<u32>,
            /// Whether the run waits for messages between turns.
            pub multi_turn: Option<bool>,
            /// How long it waits for one, in milliseconds.
            pub idle_timeout_ms: Option<u64>,
            /// How long the server may send nothing during a turn, in milliseconds, before the turn fails with `TIMEOUT`;
            /// 300 000 unless given, and 1 800 000 while it sends signs of life and nothing else.
            #[schemars(range(min = 1))]
            pub stall_timeout_ms: Option<u64>,
        }

        impl $name {
            /// Those that all vendors share.
            pub(super) fn turn_options(&self) -> $crate::api::TurnOptions<'_> {
                $crate::api::TurnOptions {
                    resume: self.resume.as_ref(),
                    fork: self.fork == Some(true),
                    fork_at: self.fork_at.as_ref(),
                    tools: $crate::tools::ToolSettings {
                        allowed: self.allowed_tools.as_deref(),
                        disallowed: self.disallowed_tools.as_deref(),
                        mcp_servers: self.mcp_servers.as_ref(),
                        mcp_timeout_ms: self.mcp_timeout_ms,
                        tool_timeout_ms: self.tool_timeout_ms,
                    },
                    max_turns: self.max_turns,
                    stall_timeout_ms: self.stall_timeout_ms,
                }
            }
        }
    };
}

pub(crate) use api_options;
