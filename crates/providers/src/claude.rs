//! The provider `claude`: the real Claude Code program, driven over its stream of JSON lines.

mod decode;
mod error;
mod outcome;
#[cfg(test)]
mod replay;
mod wire;

pub use decode::{Decoded as ClaudeDecoded, Decoder as ClaudeDecoder, TurnEnd as ClaudeTurnEnd};
