//! The arguments of the commands by which other programs and machines run sessions: `serve`, `mcp`, `acp`, `worker`.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::PathBuf,
    time::Duration,
};

use clap::{Args, ValueHint};
use inspan_server::Host;

use super::values;
use crate::{exit::Exit, failure::Failure, invocation::Invocation};

/// The port unless another is given.
const PORT: u16 = 4680;

pub(super) const SERVE_EXAMPLES: &str = "\
Examples:
  inspan serve                           the page and the API on http://127.0.0.1:4680
  inspan serve --port 0 --flows ~/flows  on a free port, with the flows of another folder
  curl -H \"Authorization: Bearer $(cat ~/.local/state/inspan/server-token)\" http://127.0.0.1:4680/api/v1/sessions
  inspan serve --listen 0.0.0.0 --allow-remote inspan.example.org
                                         behind a reverse proxy that speaks TLS

Ctrl-C stops the server. Sessions run in processes of their own and are not touched.";

#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    /// Address to listen on
    #[arg(long, value_name = "ADDRESS", default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST))]
    pub(crate) listen: IpAddr,
    /// Port to listen on; 0 is a free one
    #[arg(long, value_name = "N", default_value_t = PORT)]
    pub(crate) port: u16,
    /// Also accept requests for this host, for example a reverse proxy (repeatable); needed to listen beyond
    /// loopback
    #[arg(long, value_name = "HOST[:PORT]")]
    pub(crate) allow_remote: Vec<Host>,
    #[command(flatten)]
    pub(crate) flows: FlowFolderArgs,
}

impl ServeArgs {
    pub(crate) fn address(&self) -> SocketAddr {
        SocketAddr::new(self.listen, self.port)
    }
}
/// Which flows are offered.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct FlowFolderArgs {
    /// Folder of flows, or a flow file (repeatable); default: the working folder, with `acp` the open project
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
                Err(Failure::of_option("flows", format!("there is no {}", path.display())))
            }
        };
        self.flows.iter().map(folder).collect()
    }
}

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
    /// Also accept requests for this host, for example a reverse proxy (repeatable); needed to listen beyond
    /// loopback
    #[arg(long, value_name = "HOST[:PORT]", requires = "http")]
    pub(crate) allow_remote: Vec<Host>,
}

#[derive(Debug, Args)]
pub(crate) struct AcpArgs {
    #[command(flatten)]
    pub(crate) flows: FlowFolderArgs,
}

pub(crate) const WORKER_EXAMPLES: &str = "\
Examples:
  temporal server start-dev                                             a server for one machine
  inspan worker --engine 'temporal://localhost?sessions=/srv/inspan'    work for it
  inspan run flow.yaml --engine 'temporal://localhost?sessions=/srv/inspan'

`INSPAN_ENGINE` can hold the address. `SIGTERM` gives running attempts to other workers.";

#[derive(Debug, Args)]
pub(crate) struct WorkerArgs {
    /// How many attempts to run at once, of each pool
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=1_000))]
    pub(crate) slots: u16,
    /// Name of this machine; machines that share the home folders of agents may share one
    #[arg(long, value_name = "NAME", value_parser = machine)]
    pub(crate) machine: Option<String>,
    /// Pool whose nodes to run (repeatable); default: `default`, the pool of nodes without `pool`
    #[arg(long = "pool", value_name = "NAME", value_parser = pool)]
    pub(crate) pools: Vec<String>,
}

fn machine(name: &str) -> Result<String, String> {
    match name.trim() {
        "" => Err("the name of a machine cannot be empty".to_owned()),
        _ => Ok(name.to_owned()),
    }
}

fn pool(name: &str) -> Result<String, String> {
    inspan_flow::check_pool_name(name).map(|()| name.to_owned())
}
