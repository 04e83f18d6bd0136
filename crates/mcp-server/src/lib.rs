//! Flows as tools of an MCP server, and the sessions that its clients start.
//!
//! A [`FlowServer`] has no state: a call starts a session in its own process, and all answers come
//! from the store. So a session outlives the client and the server, and a new server finds it. Only where the
//! server itself is a program of a node or an agent does all end with that.

mod call;
mod lines;
mod names;
mod questions;
mod resources;
mod result;
mod server;
mod tasks;
mod tools;
mod transport;

pub use server::{FlowServer, ServerOptions, SessionLife};
pub use transport::{ClientSessions, HttpService, http_service, serve_stdio};
