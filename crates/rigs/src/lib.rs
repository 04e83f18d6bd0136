//! How the conformance suite meets each provider: one rig per vendor, and the list of them.

mod acp;
mod anthropic;
mod claude;
mod codex;
mod droid;
mod echo;
mod gemini;
mod named;
mod openai;
mod opencode;
mod qwen;
mod rigs;
mod scripted;

pub use acp::AcpRig;
pub use anthropic::AnthropicRig;
pub use claude::ClaudeRig;
pub use codex::CodexRig;
pub use droid::DroidRig;
pub use echo::EchoRig;
pub use gemini::GeminiRig;
pub use openai::OpenAiRig;
pub use opencode::OpenCodeRig;
pub use qwen::QwenRig;
pub use rigs::{all, find, programs, services};
pub use scripted::ScriptedRig;
