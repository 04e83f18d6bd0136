//! What the adapters share above the transports of `inspan-transport`: JSON-RPC, streams of events, and what a program
//! sees of the environment.

use std::time::Duration;

pub(crate) mod environment;
pub(crate) mod json_rpc;
pub(crate) mod sse;

/// How long a vendor may say nothing during a turn, unless the options say otherwise.
const STALL: Duration = Duration::from_secs(300);

/// How long a vendor may say nothing during a turn, by the option `stallTimeoutMs`.
pub(crate) fn stall(milliseconds: Option<u64>) -> Duration {
    milliseconds.map_or(STALL, Duration::from_millis)
}
