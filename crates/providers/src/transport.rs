//! The transports that adapters share: a vendor's program as a child process, and its lines.
//! What the lines mean is left to the adapters.

pub(crate) mod environment;
pub(crate) mod lines;
pub(crate) mod process;
pub(crate) mod program;
pub(crate) mod redact;
