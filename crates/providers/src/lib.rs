//! One adapter per vendor, and the transports they share.
//!
//! Everything here implements the provider contract of the protocol and knows nothing of hubs and flows.

use std::sync::Arc;

use inspan_protocol::{DynProvider, IntoProvider, ProgramSetup};

mod acp;
mod anthropic;
mod api;
mod claude;
mod codex;
mod conversation;
mod decode;
mod echo;
mod environment;
mod error;
mod input;
mod instructed;
mod json_rpc;
mod moment;
mod openai;
mod opencode;
mod output;
mod program;
#[cfg(test)]
mod replay;
mod root;
mod scripted;
mod scripted_turn;
mod sse;
#[cfg(test)]
mod tests;
mod tools;

pub use acp::{AcpInput, AcpOptions, AcpProvider};
pub use anthropic::{AnthropicInput, AnthropicOptions, AnthropicProvider, PromptCache};
pub use claude::{
    ClaudeDecoded, ClaudeDecoder, ClaudeInput, ClaudeOptions, ClaudeProvider, ClaudeSession, ClaudeTurnEnd,
    PermissionMode, SettingSource,
};
pub use codex::{ApprovalPolicy, CodexInput, CodexOptions, CodexOutput, CodexProvider, SandboxMode};
pub use conversation::{Conversation, ConversationClaim, ConversationStore, FolderStore};
pub use echo::{EchoInput, EchoOptions, EchoProvider};
pub use environment::vendor_keys;
pub use openai::{OpenAiInput, OpenAiOptions, OpenAiOutput, OpenAiProvider, ThinkingSummary};
pub use opencode::{OpenCodeInput, OpenCodeOptions, OpenCodeProvider};
pub use output::{PermissionDenial, TurnOutput};
pub use scripted::{ScriptedInput, ScriptedOptions, ScriptedProvider, Step};

/// One of each provider. Nothing is started or looked up until one of them is called.
pub fn builtin() -> Vec<Arc<dyn DynProvider>> {
    vec![
        AcpProvider::new().into_provider(),
        AnthropicProvider::new().into_provider(),
        ClaudeProvider::new().into_provider(),
        CodexProvider::new().into_provider(),
        AcpProvider::droid().into_provider(),
        EchoProvider.into_provider(),
        AcpProvider::gemini().into_provider(),
        OpenAiProvider::new().into_provider(),
        OpenCodeProvider::new().into_provider(),
        AcpProvider::qwen().into_provider(),
        ScriptedProvider.into_provider(),
    ]
}

/// The agent CLIs that these providers run.
pub fn programs() -> Vec<ProgramSetup> {
    builtin().iter().filter_map(|provider| provider.setup().program()).collect()
}
