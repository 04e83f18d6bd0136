//! The program from outside: its commands, its sessions, its examples.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod acp_server;
mod agents;
mod api_agents;
mod artifacts;
mod budgets;
mod commands;
mod damage;
mod documents;
mod editing;
mod embedding;
mod fuzz;
#[cfg(target_os = "linux")]
mod git_examples;
#[cfg(target_os = "linux")]
mod git_pull_requests;
mod json_rpc;
mod looking;
mod mcp_http;
mod mcp_server;
mod messages;
mod model_server;
mod notify;
#[cfg(target_os = "linux")]
mod old_stores;
mod orphans;
mod planning;
mod processes;
mod program;
mod pty;
mod resuming;
mod secrets;
mod serving;
mod sessions;
mod settings;
mod stored;
#[cfg(target_os = "linux")]
mod supervisor;
mod terminal;
mod testing;
mod tools;
mod traces;
mod working_folder;
