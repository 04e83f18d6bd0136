//! Tests of the whole adapter: recorded transcripts, and agents that misbehave.

#[cfg(target_os = "linux")]
mod agent;
#[cfg(target_os = "linux")]
mod faults;
mod replay;
#[cfg(target_os = "linux")]
mod requests;
#[cfg(target_os = "linux")]
mod sessions;
