//! The arguments of the commands that let other programs run flows.

use std::{path::PathBuf, time::Duration};

use clap::{Args, ValueHint};

use super::values;
use crate::{exit::Exit, failure::Failure, invocation::Invocation};

pub(super) const MCP_EXAMPLES: &str = "\
Examples:
  claude mcp add inspan -- inspan mcp --flows ~/flows
  codex mcp add inspan -- inspan mcp --flows ~/flows

A client starts this program and speaks to it over standard input and output; see docs/mcp.md.";

pub(super) const ACP_EXAMPLES: &str = "\
An editor starts this program and speaks to it over standard input and output; see docs/acp.md for the settings of
Zed, JetBrains and others.";

/// Which flows are offered.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct FlowFolderArgs {
    /// Folder of flows, or a flow file (repeatable); the working folder if absent
    #[arg(long = "flows", value_name = "DIR", value_hint = ValueHint::AnyPath)]
    pub(crate) flows: Vec<PathBuf>,
}

impl FlowFolderArgs {
    /// The folders as absolute paths.
    pub(crate) fn folders(&self, invocation: &Invocation) -> Result<Vec<PathBuf>, Failure> {
        let cwd =
            invocation.cwd.clone().ok_or_else(|| Failure::new(Exit::Failed, "there is no working folder"))?;
        if self.flows.is_empty() {
            return Ok(vec![cwd]);
        }
        let folder = |path: &PathBuf| {
            let path = cwd.join(path);
            if path.exists() {
                Ok(path)
            } else {
                Err(Failure::usage(format!("--flows: there is no {}", path.display())))
            }
        };
        self.flows.iter().map(folder).collect()
    }
}

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
