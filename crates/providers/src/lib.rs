//! One adapter per vendor, and the transports they share.
//!
//! Everything here implements the provider contract of the protocol and knows nothing of hubs and flows.

mod acp;
mod anthropic;
mod api;
mod claude;
mod codex;
mod conversation;
mod decode;
mod echo;
mod error;
mod input;
mod instructed;
mod openai;
mod opencode;
mod output;
mod program;
#[cfg(test)]
mod raw_server;
mod registry;
#[cfg(test)]
mod replay;
mod scripted;
mod scripted_turn;
mod tools;
mod transport;

pub use acp::{AcpInput, AcpOptions, AcpProvider};
pub use anthropic::{AnthropicInput, AnthropicOptions, AnthropicProvider, PromptCache};
pub use claude::{
    ClaudeDecoded, ClaudeDecoder, ClaudeInput, ClaudeOptions, ClaudeProvider, ClaudeSession, ClaudeTurnEnd,
    PermissionMode, SettingSource,
};
pub use codex::{ApprovalPolicy, CodexInput, CodexOptions, CodexOutput, CodexProvider, SandboxMode};
pub use conversation::{Conversation, ConversationClaim, ConversationStore, FolderStore};
pub use echo::{EchoInput, EchoOptions, EchoProvider};
pub use openai::{OpenAiInput, OpenAiOptions, OpenAiOutput, OpenAiProvider, ThinkingSummary};
pub use opencode::{OpenCodeInput, OpenCodeOptions, OpenCodeProvider};
pub use output::{PermissionDenial, TurnOutput};
pub use registry::builtin;
pub use scripted::{ScriptedInput, ScriptedOptions, ScriptedProvider, Step};
pub use transport::environment::vendor_keys;
