//! The tools of a turn for adapters whose vendor runs none itself: tools of the program and of MCP servers, with the
//! rules for which calls are allowed. `api/turn.rs` uses them this way:
//!
//! 1. [`ToolSettings`] borrows the options `allowedTools`, `disallowedTools`, `mcpServers`, `mcpTimeoutMs` and
//!    `toolTimeoutMs`, which every such adapter has under these names.
//! 2. [`Toolbox::open`] checks them and connects the servers, once a turn. It returns warnings for what it can do without.
//! 3. [`Toolbox::specs`] is offered to the model: name, description and schema, always in the same order.
//! 4. [`Toolbox::run`] takes all [`ToolCall`]s of one message of the model and returns a stream of [`ToolUpdate`]s: events
//!    to pass on, denials for the output, and one [`ToolResult`] for each call. Nothing runs before the stream is polled,
//!    so the message can be stored first.
//! 5. A call that was stopped, by the token or at the deadline, has a result too; [`ToolResult::interrupted`] is for a
//!    call of an earlier process.
//! 6. [`Toolbox::close`] ends the servers. Dropping the toolbox kills them.

mod call;
mod result;
mod rules;
mod settings;
mod toolbox;

pub(crate) use call::{StopSignal, ToolCall, ToolUpdate};
pub(crate) use result::ToolResult;
pub(crate) use settings::ToolSettings;
pub(crate) use toolbox::Toolbox;

#[cfg(test)]
mod tests {
    mod harness;
    mod host;
    mod servers;
}
