//! The arguments of the commands that let other programs run flows.

use std::time::Duration;

use clap::Args;

use super::{serving::FlowFolderArgs, values};

pub(super) const MCP_EXAMPLES: &str = "\
Examples:
  claude mcp add inspan -- inspan mcp --flows ~/flows
  codex mcp add inspan -- inspan mcp --flows ~/flows

A client starts this program and speaks to it over standard input and output; see docs/mcp.md.";

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
}

#[derive(Debug, Args)]
pub(crate) struct AcpArgs {
    #[command(flatten)]
    pub(crate) flows: FlowFolderArgs,
}
