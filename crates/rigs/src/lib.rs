//! How the conformance suite meets each provider: one rig per vendor, and the list of them.
//!
//! What is expected of a provider is left to the suite; here stands what is a vendor's own.

mod acp;
mod anthropic;
mod claude;
mod codex;
mod echo;
mod openai;
mod opencode;
mod rigs;
mod scripted;

pub use acp::AcpRig;
pub use anthropic::AnthropicRig;
pub use claude::ClaudeRig;
pub use codex::CodexRig;
pub use echo::EchoRig;
pub use openai::OpenAiRig;
pub use opencode::OpenCodeRig;
pub use rigs::{all, find, programs, services, unmet};
pub use scripted::ScriptedRig;
