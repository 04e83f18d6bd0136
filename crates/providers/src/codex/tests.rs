//! Tests of the adapter: recorded transcripts, and programs that misbehave.
//! The real program is tested beside the crate.

mod faults;
mod replay;
