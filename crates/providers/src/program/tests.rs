//! What the tests of all agent CLIs share.

#[cfg(target_os = "linux")]
pub(crate) mod fake;
pub(crate) mod replay;
