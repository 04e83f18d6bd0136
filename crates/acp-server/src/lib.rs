//! Flows as an agent of editors that speak the Agent Client Protocol.
//!
//! A conversation of the editor is a series of sessions: each flow that it starts is one, which
//! runs in its own process and outlives the editor. Their ids begin with that of the conversation,
//! so that nothing has to be stored beside them.

mod chat;
mod input;
mod questions;
mod rpc;
mod server;
mod turn;
mod updates;
mod wire;

pub use server::{FreshId, OpenSessions, serve};
