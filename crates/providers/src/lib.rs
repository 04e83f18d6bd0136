//! One adapter per vendor, and the transports they share.
//!
//! Everything here implements the provider contract of the protocol and knows nothing of hubs and flows.

mod anthropic;
mod claude;
mod conversation;
mod echo;
mod ids;
mod kind;
mod output;
mod prompt;
mod registry;
mod scripted;
mod stage;
mod status;
mod tools;
mod transport;

pub use anthropic::{AnthropicInput, AnthropicOptions, AnthropicProvider, PromptCache, probe_anthropic};
pub use claude::{
    ClaudeDecoded, ClaudeDecoder, ClaudeInput, ClaudeOptions, ClaudeProvider, ClaudeSession, ClaudeTurnEnd,
    PermissionMode, SettingSource, find_claude, probe_claude,
};
pub use conversation::{Conversation, ConversationClaim, ConversationStore, FolderStore};
pub use echo::{EchoInput, EchoOptions, EchoProvider};
pub use output::{PermissionDenial, TurnOutput};
pub use registry::builtin;
pub use scripted::{ScriptedInput, ScriptedOptions, ScriptedProvider, Step};
pub use status::{ProgramStatus, ServiceStatus};
