//! Tests of the whole adapter: recorded transcripts, and programs that misbehave.

#[cfg(target_os = "linux")]
mod faults;
mod replay;
