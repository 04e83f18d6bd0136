//! The program from outside: its verbs, its sessions, its examples.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod commands;
mod examples;
mod program;
mod sessions;
