//! How clients reach the server: the one that has started this program over lines, and many over HTTP, by MCP's
//! streamable transport as a service for a server that decides who may use it.
//!
//! Clients of the protocol before 2026-07-28 have a session of the transport, which is not a session of a flow: it is
//! dropped when its client sends nothing for long, and nothing of a flow depends on it.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures::Stream;
use rmcp::model::{ClientJsonRpcMessage, ServerJsonRpcMessage};
use rmcp::service::{QuitReason, ServerInitializeError, ServiceExt};
use rmcp::transport::streamable_http_server::session::local::{
    LocalSessionManager, LocalSessionManagerError, SessionError,
};
use rmcp::transport::streamable_http_server::session::{ServerSseMessage, SessionId, SessionManager};
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::sync::CancellationToken;

use crate::FlowServer;
use crate::lines::LineTransport;
use crate::server::{LONGEST_MESSAGE, LONGEST_WAIT};

/// How many clients may have a session at once.
const MOST_CLIENTS: usize = 1000;
/// How long a client may be silent beyond the longest wait of a call, until its session is forgotten.
const SILENCE: Duration = Duration::from_secs(5 * 60);

/// The service of the transport.
pub type HttpService = StreamableHttpService<FlowServer, ClientSessions>;

/// The service for one path of a server. It does not check who asks: the server that it is put in does. Its streams end
/// with `end`.
pub fn http_service(server: FlowServer, end: CancellationToken) -> HttpService {
    // The guard has checked the host already, and knows the names that the user allows.
    let config = StreamableHttpServerConfig::default()
        .disable_allowed_hosts()
        .with_max_request_body_bytes(LONGEST_MESSAGE)
        .with_cancellation_token(end);
    StreamableHttpService::new(move || Ok(server.clone()), Arc::new(ClientSessions::new()), config)
}

/// The sessions of the transport, of which there is a bounded number.
#[derive(Debug)]
pub struct ClientSessions(LocalSessionManager);

type Refused = LocalSessionManagerError;

impl ClientSessions {
    fn new() -> Self {
        let mut sessions = LocalSessionManager::default();
        sessions.session_config.keep_alive = Some(LONGEST_WAIT + SILENCE);
        Self(sessions)
    }
}

impl SessionManager for ClientSessions {
    type Error = Refused;
    type Transport = <LocalSessionManager as SessionManager>::Transport;

    async fn create_session(&self) -> Result<(SessionId, Self::Transport), Refused> {
        if self.0.sessions.read().await.len() >= MOST_CLIENTS {
            let why = format!("{MOST_CLIENTS} clients have a session; try again later");
            return Err(SessionError::from(io::Error::other(why)).into());
        }
        self.0.create_session().await
    }

    async fn initialize_session(
        &self,
        id: &SessionId,
        message: ClientJsonRpcMessage,
    ) -> Result<ServerJsonRpcMessage, Refused> {
        self.0.initialize_session(id, message).await
    }

    async fn has_session(&self, id: &SessionId) -> Result<bool, Refused> {
        self.0.has_session(id).await
    }

    async fn close_session(&self, id: &SessionId) -> Result<(), Refused> {
        self.0.close_session(id).await
    }

    async fn create_stream(
        &self,
        id: &SessionId,
        message: ClientJsonRpcMessage,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, Refused> {
        self.0.create_stream(id, message).await
    }

    async fn accept_message(&self, id: &SessionId, message: ClientJsonRpcMessage) -> Result<(), Refused> {
        self.0.accept_message(id, message).await
    }

    async fn create_standalone_stream(
        &self,
        id: &SessionId,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, Refused> {
        self.0.create_standalone_stream(id).await
    }

    async fn resume(
        &self,
        id: &SessionId,
        last_event_id: String,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, Refused> {
        self.0.resume(id, last_event_id).await
    }
}

/// Serves the client until it is gone. A message that is too long is dropped, and the next one is read. Sessions that it started continue.
///
/// # Errors
/// The client began with something else than the protocol; the text says with what.
pub async fn serve_stdio(
    server: FlowServer,
    input: impl AsyncRead + Send + Unpin + 'static,
    output: impl AsyncWrite + Send + Unpin + 'static,
) -> Result<(), String> {
    let running = match server.serve(LineTransport::new(input, output)).await {
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
