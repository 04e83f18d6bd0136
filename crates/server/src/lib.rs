//! The HTTP API, the WebSocket and the web page of sessions, behind one guard; or the service of another protocol behind it.
//!
//! A server has no state of sessions: every answer is read from the store, so it can be killed and started again
//! at any time, and several can serve one store.

mod api;
mod file;
mod guard;
mod listen;
mod metrics;
mod mounted;
mod openapi;
mod page;
mod problem;
mod route;
#[cfg(test)]
mod testing;
mod token;
mod unread;
mod watch;
mod ws;

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
};

use axum::Router;
use inspan_protocol::Environment;
use inspan_sessions::Sessions;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

pub use file::{SESSION_FILE, session_file};
pub use guard::{Host, InvalidHost};
pub use listen::serve;
pub use mounted::serve_at;
pub use openapi::document as openapi_document;
pub use page::{Asset, CONTENT_SECURITY_POLICY, asset};
pub use problem::{Problem, problem_codes};
pub use token::{InvalidToken, LoginCodes, Token};

use guard::Guard;
use metrics::Metrics;
use watch::Watches;
use ws::ListReader;

/// How a server is set up.
pub struct ServerOptions {
    /// The sessions that it serves.
    pub sessions: Sessions,
    /// The address that it listens on.
    pub address: SocketAddr,
    /// Names under which it is reached beside those of the loopback, as a reverse proxy's.
    pub hosts: Vec<Host>,
    /// A client that has it may read and command every session.
    pub token: Token,
    /// What opens the page once without the token.
    pub codes: LoginCodes,
    /// The version of the program.
    pub version: &'static str,
    /// Its secrets are taken out of reports.
    pub environment: Environment,
}

impl ServerOptions {
    /// Where this machine reaches the server, by an address that the guard lets in: `http://127.0.0.1:4680`. If it listens
    /// on no address of the loopback, that is where others reach it.
    pub fn url(&self) -> String {
        let (ip, port) = (self.address.ip(), self.address.port());
        let loopback: IpAddr = match ip {
            IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
            ip if ip.is_loopback() || self.hosts.is_empty() => ip,
            _ => return self.shared_url(),
        };
        format!("http://{}", SocketAddr::new(loopback, port))
    }

    /// Where others reach the server: under the first of its names. One with the port that it listens on means the server
    /// itself, any other a reverse proxy that speaks TLS.
    pub fn shared_url(&self) -> String {
        let Some(host) = self.hosts.first().map(ToString::to_string) else { return self.url() };
        let scheme = if host.ends_with(&format!(":{}", self.address.port())) { "http" } else { "https" };
        format!("{scheme}://{host}")
    }
}

/// What bounds a server.
pub(crate) mod limits {
    use std::time::Duration;

    /// Connections at once.
    pub(crate) const CONNECTIONS: usize = 512;
    /// Event streams and WebSockets at once.
    pub(crate) const STREAMS: usize = 384;
    /// The bytes of a request's body.
    pub(crate) const BODY: usize = 4 << 20;
    /// The bytes of a login, which needs no token.
    pub(crate) const LOGIN: usize = 4 << 10;
    /// The bytes of a message on a WebSocket.
    pub(crate) const MESSAGE: usize = 1 << 20;
    /// How long a client may take to send the head of a request.
    pub(crate) const HEAD: Duration = Duration::from_secs(15);
    /// How long an answer may take to begin.
    pub(crate) const ANSWER: Duration = Duration::from_secs(60);
    /// How long an answer of another protocol may take to begin: its service has shorter limits.
    pub(crate) const LONG_ANSWER: Duration = Duration::from_secs(2 * 60 * 60);
    /// How long a client may read nothing of what waits for it.
    pub(crate) const UNREAD: Duration = Duration::from_secs(60);
    /// How long is waited when no connection can be accepted.
    pub(crate) const PAUSE: Duration = Duration::from_millis(200);
    /// How long connections may take to end once the server is asked to.
    pub(crate) const FAREWELL: Duration = Duration::from_secs(3);
}

/// What every handler has.
#[derive(Clone)]
pub(crate) struct App(Arc<AppState>);

pub(crate) struct AppState {
    pub(crate) sessions: Sessions,
    pub(crate) guard: Guard,
    pub(crate) metrics: Metrics,
    pub(crate) version: &'static str,
    pub(crate) environment: Environment,
    pub(crate) address: SocketAddr,
    /// The sessions that have viewers.
    pub(crate) watches: Watches,
    /// The lists of sessions and questions that somebody looks at.
    pub(crate) lists: ListReader,
    /// Permits for event streams and sockets.
    pub(crate) streams: Arc<Semaphore>,
    /// Cancelled when the server ends.
    pub(crate) end: CancellationToken,
}

impl std::ops::Deref for App {
    type Target = AppState;

    fn deref(&self) -> &AppState {
        &self.0
    }
}

impl App {
    pub(crate) fn new(options: ServerOptions, end: CancellationToken) -> Self {
        let ServerOptions { sessions, address, hosts, token, codes, version, environment } = options;
        Self(Arc::new(AppState {
            sessions,
            guard: Guard::new(address, hosts, token, codes),
            metrics: Metrics::default(),
            version,
            environment,
            address,
            watches: Watches::default(),
            lists: ListReader::default(),
            streams: Arc::new(Semaphore::new(limits::STREAMS)),
            end,
        }))
    }

    /// Room for one more event stream or socket.
    pub(crate) fn stream_permit(&self) -> Result<OwnedSemaphorePermit, Problem> {
        Arc::clone(&self.streams).try_acquire_owned().map_err(|_| {
            Problem::new("tooManyStreams", format!("{} event streams and sockets are open", limits::STREAMS))
        })
    }

    /// Everything that is served, behind the guard.
    pub(crate) fn router(&self) -> Router {
        let mut routes = Router::new();
        for route in api::routes() {
            routes = routes.route(route.path, route.handler());
        }
        let routes = routes
            .method_not_allowed_fallback(problem::method_not_allowed)
            .fallback(api::not_found)
            .with_state(self.clone());
        guard::before(self.clone(), routes, limits::ANSWER)
    }
}
