//! The transports that adapters share: a vendor's program as a child process, its lines and its JSON-RPC, and requests
//! over HTTP with their streams of events. What lines and events mean is left to the adapters.

pub(crate) mod environment;
pub(crate) mod http;
pub(crate) mod json_rpc;
pub(crate) mod lines;
pub(crate) mod process;
pub(crate) mod program;
pub(crate) mod redact;
pub(crate) mod sse;
pub(crate) mod version;
