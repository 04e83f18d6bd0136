//! One client over lines: the one that has started this program.

use rmcp::service::{QuitReason, RoleServer, ServerInitializeError, ServiceExt};
use rmcp::transport::async_rw::AsyncRwTransport;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::FlowServer;
use crate::server::LONGEST_MESSAGE;

/// Serves the client until it is gone. A message that is too long is dropped, and the next one is read. Sessions that it started continue.
///
/// # Errors
/// The client began with something else than the protocol; the text says with what.
pub async fn serve_stdio(
    server: FlowServer,
    input: impl AsyncRead + Send + Unpin + 'static,
    output: impl AsyncWrite + Send + Unpin + 'static,
) -> Result<(), String> {
    let transport =
        AsyncRwTransport::<RoleServer, _, _>::new(input, output).with_max_line_length(LONGEST_MESSAGE);
    let running = match server.serve(transport).await {
        Ok(running) => running,
        // A client that leaves before it has said anything wants nothing.
        Err(ServerInitializeError::ConnectionClosed(_)) => return Ok(()),
        Err(error) => return Err(error.to_string()),
    };
    match running.waiting().await {
        Ok(QuitReason::JoinError(error)) | Err(error) => Err(format!("the server failed: {error}")),
        Ok(_) => Ok(()),
    }
}
