//! One adapter per vendor, and the transports they share.
//!
//! Everything here implements the provider contract of the protocol and knows nothing of hubs and flows.

mod acp;
mod anthropic;
mod api;
mod claude;
mod codex;
mod conversation;
mod cost;
mod echo;
mod ids;
mod instructed;
mod nearest;
mod openai;
mod opencode;
mod output;
mod program;
mod prompt;
#[cfg(test)]
mod raw_server;
mod registry;
mod said;
mod scripted;
mod stage;
mod status;
mod tools;
mod transport;

pub use acp::{AcpInput, AcpOptions, AcpProvider, find_acp, probe_acp};
pub use anthropic::{AnthropicInput, AnthropicOptions, AnthropicProvider, PromptCache, probe_anthropic};
pub use claude::{
    ClaudeDecoded, ClaudeDecoder, ClaudeInput, ClaudeOptions, ClaudeProvider, ClaudeSession, ClaudeTurnEnd,
    PermissionMode, SettingSource, find_claude, probe_claude,
};
pub use codex::{
    ApprovalPolicy, CodexInput, CodexOptions, CodexOutput, CodexProvider, SandboxMode, find_codex,
    probe_codex,
};
pub use conversation::{Conversation, ConversationClaim, ConversationStore, FolderStore};
pub use echo::{EchoInput, EchoOptions, EchoProvider};
pub use openai::{OpenAiInput, OpenAiOptions, OpenAiOutput, OpenAiProvider, ThinkingSummary, probe_openai};
pub use opencode::{OpenCodeInput, OpenCodeOptions, OpenCodeProvider, find_opencode, probe_opencode};
pub use output::{PermissionDenial, TurnOutput};
pub use registry::builtin;
pub use scripted::{ScriptedInput, ScriptedOptions, ScriptedProvider, Step};
pub use status::{ProgramStatus, ServiceStatus};
pub use transport::environment::vendor_keys;
