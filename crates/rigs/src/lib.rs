//! How the conformance suite meets each provider: one rig per vendor, and the list of them.
//!
//! What is expected of a provider is left to the suite; here stands what is a vendor's own.

mod anthropic;
mod claude;
mod echo;
mod rigs;
mod scripted;

pub use anthropic::AnthropicRig;
pub use claude::ClaudeRig;
pub use echo::EchoRig;
pub use rigs::{all, find, programs, services};
pub use scripted::ScriptedRig;
