//! The arguments of the commands that let other programs run flows.

use std::{net::SocketAddr, time::Duration};

use clap::Args;
use inspan_server::Host;

use super::{serving::FlowFolderArgs, values};

pub(super) const MCP_EXAMPLES: &str = "\
Examples:
  claude mcp add inspan -- inspan mcp --flows ~/flows
  codex mcp add inspan -- inspan mcp --flows ~/flows
  inspan mcp --http                    for many clients, on http://127.0.0.1:4681/mcp

A client starts this program and speaks to it over standard input and output, or over HTTP with the token of the file
`server-token` beside the store; see docs/mcp.md.";

/// Where clients find the server unless another address is given.
const MCP_ADDRESS: &str = "127.0.0.1:4681";

pub(super) const ACP_EXAMPLES: &str = "\
An editor starts this program and speaks to it over standard input and output; see docs/acp.md for the settings of
Zed, JetBrains and others.";

#[derive(Debug, Args)]
pub(crate) struct McpArgs {
    #[command(flatten)]
    pub(crate) flows: FlowFolderArgs,
    /// How long a call waits for its session before it answers with the session's ID
    #[arg(long, value_name = "TIME", default_value = "45s", value_parser = values::time)]
    pub(crate) wait: Duration,
    /// Serve many clients over HTTP until it is stopped; port 0 is a free one
    #[arg(long, value_name = "ADDRESS:PORT", num_args = 0..=1, default_missing_value = MCP_ADDRESS)]
    pub(crate) http: Option<SocketAddr>,
    /// Answer also under this name, for example that of a reverse proxy (repeatable); needed to listen beyond the
    /// loopback
    #[arg(long, value_name = "HOST[:PORT]", requires = "http")]
    pub(crate) allow_remote: Vec<Host>,
}

#[derive(Debug, Args)]
pub(crate) struct AcpArgs {
    #[command(flatten)]
    pub(crate) flows: FlowFolderArgs,
}
