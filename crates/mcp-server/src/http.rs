//! Many clients over HTTP. Who may connect is checked before this service is reached.

use std::sync::Arc;

use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use tokio_util::sync::CancellationToken;

use crate::FlowServer;

/// The service for the one path of MCP.
pub type HttpService = StreamableHttpService<FlowServer, LocalSessionManager>;

/// The largest body that is read, in bytes.
const LARGEST_BODY: usize = 4 * 1024 * 1024;

/// A service for clients with these `Host` headers; it ends with `shutdown`.
pub fn http_service(server: FlowServer, hosts: Vec<String>, shutdown: CancellationToken) -> HttpService {
    let mut config =
        StreamableHttpServerConfig::default().with_allowed_hosts(hosts).enforce_origin_validation();
    config.cancellation_token = shutdown;
    config.max_request_body_bytes = LARGEST_BODY;
    StreamableHttpService::new(move || Ok(server.clone()), Arc::default(), config)
}
