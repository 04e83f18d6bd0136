//! The transports that adapters share: a vendor's program as a child process and its lines, and requests over HTTP
//! with their streams of events. What lines and events mean is left to the adapters.

pub(crate) mod environment;
pub(crate) mod http;
pub(crate) mod lines;
pub(crate) mod process;
pub(crate) mod program;
pub(crate) mod redact;
pub(crate) mod sse;
