//! For this crate's tests: a server without a socket, over a store in memory.

use std::sync::Arc;

use axum::{
    Router,
    body::Body,
    http::{HeaderMap, Method, Request, request},
    routing::any,
};
use http_body_util::BodyExt;
use inspan_engine::SystemClock;
use inspan_flow::{MemoryStore, NodeRegistry};
use inspan_protocol::Environment;
use inspan_sessions::Sessions;
use serde_json::Value;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use crate::{App, LoginCodes, ServerOptions, Token, mounted};

/// The token of the tests' server.
pub(crate) const TOKEN: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
/// The address at which it would listen.
pub(crate) const HOST: &str = "localhost:4680";

/// A server without a socket.
pub(crate) struct TestServer {
    pub(crate) app: App,
    router: Router,
}

/// What a server answered.
pub(crate) struct Answered {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) text: String,
}

impl TestServer {
    pub(crate) fn new() -> Self {
        Self::with(App::router)
    }

    /// The service of another protocol instead of the API: it answers `reached`.
    pub(crate) fn mounted(path: &'static str) -> Self {
        Self::with(|app| mounted::router(app, path, any(async |body: String| format!("reached {body}"))))
    }

    /// How it is set up.
    pub(crate) fn options() -> ServerOptions {
        let token: Token = TOKEN.parse().unwrap();
        let store = Arc::new(MemoryStore::new());
        ServerOptions {
            codes: LoginCodes::default(),
            sessions: Sessions::new(store, NodeRegistry::default(), Arc::new(SystemClock)),
            address: ([127, 0, 0, 1], 4680).into(),
            hosts: vec!["inspan.example.org".parse().unwrap()],
            token,
            version: "1.2.3",
            environment: Environment::default(),
        }
    }

    fn with(routes: impl FnOnce(&App) -> Router) -> Self {
        let app = App::new(Self::options(), CancellationToken::new());
        let router = routes(&app);
        Self { app, router }
    }

    pub(crate) async fn send(&self, request: Request<Body>) -> Answered {
        let answer = self.router.clone().oneshot(request).await.unwrap();
        let (status, headers) = (answer.status().as_u16(), answer.headers().clone());
        let bytes = answer.into_body().collect().await.unwrap().to_bytes();
        Answered { status, headers, text: String::from_utf8(bytes.to_vec()).unwrap() }
    }
}

impl Answered {
    /// The code of a problem document.
    pub(crate) fn code(&self) -> Option<String> {
        let value: Value = serde_json::from_str(&self.text).ok()?;
        Some(value.get("code")?.as_str()?.to_owned())
    }
}

/// A request as the page's own script sends it.
pub(crate) fn request(method: Method, path: &str) -> request::Builder {
    Request::builder().method(method).uri(path).header("host", HOST)
}

/// A request of a script that has the token.
pub(crate) fn authorized(method: Method, path: &str) -> request::Builder {
    request(method, path)
        .header("authorization", format!("Bearer {TOKEN}"))
        .header("content-type", "application/json")
}
