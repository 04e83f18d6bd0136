//! One adapter per vendor, and the transports they share.
//!
//! Everything here implements the provider contract of the protocol and knows nothing of hubs and flows.

mod claude;
mod ids;
mod output;
mod prompt;
mod transport;

pub use claude::{ClaudeDecoded, ClaudeDecoder, ClaudeTurnEnd};
pub use output::{PermissionDenial, TurnOutput};
