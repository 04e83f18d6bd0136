//! `inspan mcp`: the flows of a folder as tools for MCP clients, over standard input and output.

use inspan_mcp_server::{FlowServer, ServerOptions, serve_stdio};

use super::sessions::block_on;
use crate::{
    args::McpArgs, exit::Exit, failure::Failure, invocation::Invocation, launcher::sessions, terminal,
};

pub(super) fn run(args: &McpArgs, invocation: &Invocation) -> Result<Exit, Failure> {
    let folders = args.flows.folders(invocation)?;
    block_on(async {
        let server = FlowServer::new(sessions(folders, invocation)?, ServerOptions { wait: args.wait });
        // Standard output belongs to the protocol.
        for warning in server.warnings().await? {
            terminal::progress(&format!("warning: {warning}\n"));
        }
        let served = serve_stdio(server, tokio::io::stdin(), tokio::io::stdout()).await;
        served.map_err(|why| Failure::usage(format!("no MCP client: {why}")))
    })?;
    Ok(Exit::Success)
}
