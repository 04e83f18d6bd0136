//! The version numbers of every format that is written down; a reader refuses what is newer than itself.

/// Version of [`crate::Envelope`], written as `v`.
pub const ENVELOPE_VERSION: u16 = 1;
/// Version of [`crate::RunSnapshot`].
pub const SNAPSHOT_VERSION: u16 = 1;
/// Version of [`crate::SessionState`].
pub const SESSION_STATE_VERSION: u16 = 1;
/// Version of a recorded provider call.
pub const RECORDING_VERSION: u16 = 2;
