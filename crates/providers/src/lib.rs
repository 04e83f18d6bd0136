//! One adapter per vendor, and the transports they share.
//!
//! Everything here implements the provider contract of the protocol and knows nothing of hubs and flows.

mod claude;
mod ids;
mod output;
mod prompt;
mod status;
mod transport;

pub use claude::{
    ClaudeDecoded, ClaudeDecoder, ClaudeInput, ClaudeOptions, ClaudeProvider, ClaudeSession, ClaudeTurnEnd,
    PermissionMode, SettingSource, probe_claude,
};
pub use output::{PermissionDenial, TurnOutput};
pub use status::ProgramStatus;
