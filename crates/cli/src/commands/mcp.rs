//! `inspan mcp`: the flows of a folder as tools for MCP clients, over standard input and output or over HTTP.

use std::net::SocketAddr;

use inspan_mcp_server::{FlowServer, ServerOptions, SessionLife, http_service, serve_stdio};
use inspan_process::is_guarded;
use inspan_server::serve_at;
use inspan_sessions::Sessions;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::{
    serve::Listening,
    session::{Signals, runtime},
};
use crate::{
    args::McpArgs,
    exit::Exit,
    failure::Failure,
    invocation::{Invocation, OutputForm},
    launcher::sessions,
    store, terminal,
};

/// Where the transport is, on the port that is served.
const PATH: &str = "/mcp";

pub(super) fn run(args: &McpArgs, invocation: &Invocation) -> Result<Exit, Failure> {
    let folders = args.flows.folders(invocation)?;
    match args.http {
        // A process that serves for long has more to do than one thread should.
        Some(address) => runtime()?.block_on(async {
            let sessions = sessions(folders, invocation)?;
            let server = flow_server(args, sessions.clone()).await?;
            serve_http(address, args, server, sessions, invocation).await
        })?,
        None => store::block_on(async {
            let server = flow_server(args, sessions(folders, invocation)?).await?;
            let served = serve_stdio(server, tokio::io::stdin(), tokio::io::stdout()).await;
            served.map_err(|why| Failure::usage(format!("no MCP client: {why}")))
        })?,
    }
    Ok(Exit::Success)
}

/// The server, once the user knows what of the flows it does not offer. Standard output belongs to the protocol.
async fn flow_server(args: &McpArgs, sessions: Sessions) -> Result<FlowServer, Failure> {
    // Nothing outlives the node or the agent that has started it, a detached session neither.
    let life = if is_guarded() { SessionLife::EndsWithCaller } else { SessionLife::OutlivesServer };
    let server = FlowServer::new(sessions, ServerOptions { wait: args.wait, life });
    for warning in server.warnings().await? {
        terminal::progress(&format!("warning: {warning}\n"));
    }
    Ok(server)
}

/// Serves many clients until a signal comes.
async fn serve_http(
    address: SocketAddr,
    args: &McpArgs,
    server: FlowServer,
    sessions: Sessions,
    invocation: &Invocation,
) -> Result<(), Failure> {
    let mut signals = Signals::listen();
    let listening = Listening::bind(address, args.allow_remote.clone(), sessions, invocation).await?;
    announce(&listening, invocation);
    let end = CancellationToken::new();
    let service = http_service(server, end.clone());
    let serving = serve_at(PATH, service, listening.listener, listening.options, end.clone());
    tokio::pin!(serving);
    let served = tokio::select! {
        served = &mut serving => served,
        _ = signals.next() => {
            end.cancel();
            serving.await
        }
    };
    served.map_err(|error| Failure::new(Exit::Failed, format!("the server failed: {error}")))
}

fn announce(listening: &Listening, invocation: &Invocation) {
    let [url, shared_url] =
        [listening.options.url(), listening.options.shared_url()].map(|url| format!("{url}{PATH}"));
    let token = listening.token_file.display();
    if invocation.form == OutputForm::Json {
        return invocation.json(&json!({ "url": url, "tokenFile": listening.token_file }));
    }
    terminal::data_line(&url);
    if shared_url != url {
        terminal::progress(&format!("From other machines: {shared_url}\n"));
    }
    terminal::progress(&format!(
        "Clients send `Authorization: Bearer TOKEN` with the token of {token}.\nPress Ctrl-C to stop the server; sessions \
         run on.\n"
    ));
}
