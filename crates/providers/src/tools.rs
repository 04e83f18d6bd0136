//! The tools of a turn, for adapters whose vendor calls none itself: those of the program and those of MCP servers,
//! with the rules for who may call what. What a call and its answer look like to a model is left to the adapters.
//!
//! A turn goes this way; `exchange.rs` is the example:
//!
//! 1. [`ToolSettings`] borrows the options `allowedTools`, `disallowedTools`, `mcpServers`, `mcpTimeoutMs` and
//!    `toolTimeoutMs`, which every such adapter has under these names.
//! 2. [`Toolbox::open`] checks them and connects the servers, once a turn. What it tolerates it gives as warnings.
//! 3. [`Toolbox::offered`] is what the model is told of: name, description and schema, always in the same order.
//! 4. [`Toolbox::run`] takes all [`Call`]s of one message of the model and gives a stream of [`Ran`]: events to pass
//!    on, denials for the output, and one [`Answer`] for each call. Before the stream is polled nothing runs, so what
//!    the model said can be kept first.
//! 5. A call that was stopped, by the token or at the deadline, is answered too, with [`Answer::interrupted`] for one
//!    of an earlier process.
//! 6. [`Toolbox::close`] ends the servers. Dropping the toolbox kills them.

mod answer;
mod call;
mod mcp;
mod rules;
mod server;
mod toolbox;

pub(crate) use answer::Answer;
pub(crate) use call::{Call, Ran, Until};
pub(crate) use server::ToolSettings;
pub(crate) use toolbox::{Close, Offered, Toolbox};

#[cfg(test)]
mod tests;
