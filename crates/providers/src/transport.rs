//! The transports that adapters share: a vendor's program as a child process, its lines and its JSON-RPC, and
//! requests over HTTP with their streams of events.

use std::time::Duration;

pub(crate) mod environment;
pub(crate) mod http;
pub(crate) mod json_rpc;
pub(crate) mod lines;
pub(crate) mod program;
pub(crate) mod sse;

/// How long a vendor may say nothing during a turn, unless the options say otherwise.
const STALL: Duration = Duration::from_secs(300);

/// How long a vendor may say nothing during a turn, by the option `stallTimeoutMs`.
pub(crate) fn stall(milliseconds: Option<u64>) -> Duration {
    milliseconds.map_or(STALL, Duration::from_millis)
}
