//! The options about tools, under the names that every adapter has for them.

use std::collections::BTreeMap;
use std::time::Duration;

use inspan_protocol::{AgentError, Environment};
use inspan_transport::McpServer;
use serde_json::Value;

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
    pub(super) fn connect(&self) -> Duration {
        self.mcp_timeout_ms.map_or(CONNECT, Duration::from_millis)
    }

    /// How long one call may take.
    pub(super) fn call(&self) -> Duration {
        self.tool_timeout_ms.map_or(CALL, Duration::from_millis)
    }

    /// The servers in the order of their names.
    pub(super) fn servers(&self, environment: &Environment) -> Result<Vec<McpServer>, AgentError> {
        self.mcp_servers.map_or(Ok(Vec::new()), |servers| McpServer::read_all(servers, environment))
    }
}
