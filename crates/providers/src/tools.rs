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

use std::collections::BTreeMap;
use std::time::Duration;

use inspan_protocol::{AgentError, Environment};
use inspan_transport::McpServer;
use serde_json::Value;

mod call;
mod result;
mod rules;
mod toolbox;

pub(crate) use call::{StopSignal, ToolCall, ToolUpdate};
pub(crate) use result::ToolResult;
pub(crate) use toolbox::Toolbox;

/// How long a server may take until it has listed its tools, unless the options say otherwise.
const CONNECT: Duration = Duration::from_secs(30);
/// How long one call of a tool may take, unless the options say otherwise.
const CALL: Duration = Duration::from_secs(600);

/// The options about tools, as every adapter has them.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ToolSettings<'a> {
    /// `allowedTools`
    pub(crate) allowed: Option<&'a [String]>,
    /// `disallowedTools`
    pub(crate) disallowed: Option<&'a [String]>,
    /// `mcpServers`
    pub(crate) mcp_servers: Option<&'a BTreeMap<String, Value>>,
    /// `mcpTimeoutMs`
    pub(crate) mcp_timeout_ms: Option<u64>,
    /// `toolTimeoutMs`
    pub(crate) tool_timeout_ms: Option<u64>,
}

impl ToolSettings<'_> {
    /// How long a server may take until it has listed its tools.
    fn connect(&self) -> Duration {
        self.mcp_timeout_ms.map_or(CONNECT, Duration::from_millis)
    }

    /// How long one call may take.
    fn call(&self) -> Duration {
        self.tool_timeout_ms.map_or(CALL, Duration::from_millis)
    }

    /// The servers in the order of their names.
    fn servers(&self, environment: &Environment) -> Result<Vec<McpServer>, AgentError> {
        self.mcp_servers.map_or(Ok(Vec::new()), |servers| McpServer::read_all(servers, environment))
    }
}

#[cfg(test)]
mod tests {
    mod harness;
    mod host;
    mod servers;
}
