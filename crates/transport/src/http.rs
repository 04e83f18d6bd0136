//! Requests over HTTP: one client for all calls of one user, one request and its answer piece by piece, within
//! the time limits of the call.
//!
//! Nothing is tried again here and no redirect is followed: the caller's policy counts attempts, and a key must not
//! be sent to another server. The proxies are those of the call's environment, and not of the process's.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

mod wait;

pub use wait::{duration, http_date, retry_after, wait_in};

use inspan_protocol::{AgentError, Environment, ErrorCode, ErrorKind, with_causes};
use reqwest::header::HeaderMap;
use reqwest::{Client, Method, NoProxy, Proxy, Response, StatusCode, Url, redirect, retry};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

/// How long a connection may take.
const CONNECT: Duration = Duration::from_secs(15);
/// How long a connection without a request stays open.
const IDLE: Duration = Duration::from_secs(60);
/// How long an answer is looked for once nothing has come for too long.
const LATE: Duration = Duration::from_millis(500);
/// The most that is read of the body of an error.
const ERROR_BODY: usize = 256 * 1024;
/// The most that one answer may have in all.
const ANSWER_LIMIT: usize = 64 * 1024 * 1024;
/// A moment that is later than the end of any call.
const FAR: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// A client, made when the first call needs it, and again when a call names other proxies.
#[derive(Debug, Default)]
pub struct Http {
    client: Mutex<Option<(Proxies, Client)>>,
}

/// The proxies of one environment. Their addresses may hold passwords and are never shown.
#[derive(Clone, Default, PartialEq)]
struct Proxies {
    http: Option<String>,
    https: Option<String>,
    except: Option<String>,
}

impl std::fmt::Debug for Proxies {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Proxies")
    }
}

/// What is asked of a server. A password in the address is sent as the request's login.
pub struct Request {
    /// GET, POST, ….
    pub method: Method,
    /// Where to.
    pub url: Url,
    /// With the secret ones marked as such.
    pub headers: HeaderMap,
    /// What is sent, perhaps nothing.
    pub body: Vec<u8>,
}

/// What a call runs against.
#[derive(Clone, Debug)]
pub struct Clocks {
    /// Ends the call.
    pub cancel: CancellationToken,
    /// When the call began.
    pub began: Instant,
    /// How long it may take in all.
    pub deadline: Option<Duration>,
    /// How long nothing may come.
    pub stall: Duration,
}

/// Why a call cannot continue.
#[derive(Debug)]
pub enum Broken {
    /// Its caller cancelled it.
    Cancelled,
    /// It failed.
    Failed(AgentError),
}

impl From<AgentError> for Broken {
    fn from(error: AgentError) -> Self {
        Self::Failed(error)
    }
}

/// An answer whose head is there. Dropping it closes its connection.
#[derive(Debug)]
pub struct Answer {
    response: Response,
    clocks: Clocks,
    read: usize,
    limit: usize,
}

impl Http {
    /// Sends a request, and waits for the head of its answer, whatever its status is.
    pub async fn send(
        &self,
        request: Request,
        environment: &Environment,
        clocks: Clocks,
    ) -> Result<Answer, Broken> {
        let client = self.client(environment).map_err(Broken::Failed)?;
        let sent = client.request(request.method, request.url).headers(request.headers).body(request.body);
        match clocks.within(sent.send()).await? {
            Ok(response) => Ok(Answer { response, clocks, read: 0, limit: ANSWER_LIMIT }),
            Err(error) => Err(Broken::Failed(failed(error))),
        }
    }

    /// The client for an environment, for a caller with its own protocol over HTTP.
    pub fn client(&self, environment: &Environment) -> Result<Client, AgentError> {
        let proxies = Proxies::of(environment);
        let mut stored = self.client.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((known, client)) = &*stored
            && *known == proxies
        {
            return Ok(client.clone());
        }
        let client = build(&proxies)?;
        *stored = Some((proxies, client.clone()));
        Ok(client)
    }
}

fn build(proxies: &Proxies) -> Result<Client, AgentError> {
    // It fails only if the program that embeds us has chosen one already, which is then the one to use.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut builder = Client::builder()
        .no_proxy()
        .redirect(redirect::Policy::none())
        .retry(retry::never())
        .connect_timeout(CONNECT)
        .pool_idle_timeout(IDLE)
        .tcp_nodelay(true)
        .user_agent(concat!("inspan/", env!("CARGO_PKG_VERSION")));
    let except = proxies.except.as_deref().and_then(NoProxy::from_string);
    for (proxy, name) in [
        (proxies.http.as_deref().map(Proxy::http), "http_proxy"),
        (proxies.https.as_deref().map(Proxy::https), "https_proxy"),
    ] {
        match proxy {
            None => {}
            Some(Ok(proxy)) => builder = builder.proxy(proxy.no_proxy(except.clone())),
            Some(Err(_)) => {
                let message =
                    format!("the environment variable {name} (or all_proxy) is not a proxy address");
                return Err(AgentError::new(ErrorCode::ConfigInvalid, message));
            }
        }
    }
    builder.build().map_err(|error| {
        let causes = with_causes(&error);
        if causes.contains("No CA certificates") {
            let message = "this system has no certificates to know servers by; install the package `ca-certificates`, \
                           or name a file of them in SSL_CERT_FILE";
            return AgentError::new(ErrorCode::ConfigMissing, message);
        }
        AgentError::new(ErrorCode::ConfigInvalid, format!("cannot set up HTTP: {causes}"))
    })
}

impl Proxies {
    fn of(environment: &Environment) -> Self {
        let get = |names: [&str; 4]| names.iter().find_map(|name| environment.get(name)).map(str::to_owned);
        Self {
            // The upper-case HTTP_PROXY is left out, as elsewhere: a web server may set it from a header.
            http: get(["http_proxy", "http_proxy", "all_proxy", "ALL_PROXY"]),
            https: get(["https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"]),
            except: get(["no_proxy", "NO_PROXY", "no_proxy", "NO_PROXY"]),
        }
    }
}

impl Clocks {
    /// Waits for something, as long as the call may. What is there already is taken before the stall limit counts: a machine
    /// that has slept finds its time up and an answer that nobody has read yet.
    async fn within<T>(&self, work: impl Future<Output = T>) -> Result<T, Broken> {
        let mut work = std::pin::pin!(work);
        let deadline = self.deadline.and_then(|limit| self.began.checked_add(limit));
        let deadline = deadline.unwrap_or_else(|| self.began + FAR);
        tokio::select! {
            biased;
            () = self.cancel.cancelled() => Err(Broken::Cancelled),
            () = sleep_until(deadline) => {
                let limit = self.deadline.unwrap_or_default().as_millis();
                let message = format!("the turn took longer than {limit} ms");
                Err(Broken::Failed(AgentError::new(ErrorCode::Timeout, message).with_kind(ErrorKind::Deadline)))
            }
            done = &mut work => Ok(done),
            () = sleep(self.stall) => {
                if let Ok(done) = timeout(LATE, work).await {
                    return Ok(done);
                }
                let message = format!("the server sent nothing for {} ms", self.stall.as_millis());
                Err(Broken::Failed(AgentError::new(ErrorCode::Timeout, message).with_kind(ErrorKind::Stall)))
            }
        }
    }
}

impl Answer {
    /// Its status.
    pub fn status(&self) -> StatusCode {
        self.response.status()
    }

    /// Its headers.
    pub fn headers(&self) -> &HeaderMap {
        self.response.headers()
    }

    /// The same answer, which may have any size in all: a stream whose reader bounds each event.
    pub fn endless(mut self) -> Self {
        self.limit = usize::MAX;
        self
    }

    /// The same answer, against other clocks from here on.
    pub fn watched_by(mut self, clocks: Clocks) -> Self {
        self.clocks = clocks;
        self
    }

    /// Its whole body, up to so many bytes.
    pub async fn body(mut self, limit: usize) -> Result<Vec<u8>, Broken> {
        self.limit = limit;
        let mut body = Vec::new();
        while let Some(chunk) = self.chunk().await? {
            body.extend_from_slice(chunk.as_ref());
        }
        Ok(body)
    }

    /// The next piece of its body; `None` at its regular end.
    pub async fn chunk(&mut self) -> Result<Option<impl AsRef<[u8]> + use<>>, Broken> {
        let chunk = self.clocks.within(self.response.chunk()).await?;
        let chunk = chunk.map_err(|error| Broken::Failed(failed(error)))?;
        self.read = self.read.saturating_add(chunk.as_ref().map_or(0, |chunk| chunk.len()));
        if self.read > self.limit {
            let message = format!("the answer is larger than {} bytes", self.limit);
            return Err(Broken::Failed(AgentError::new(ErrorCode::Protocol, message)));
        }
        Ok(chunk)
    }

    /// The beginning of its body, for an answer that is an error. A body that breaks off is as good as it is.
    pub async fn error_body(mut self) -> Result<Vec<u8>, Broken> {
        let mut body = Vec::new();
        while body.len() < ERROR_BODY {
            match self.chunk().await {
                Ok(Some(chunk)) => body.extend_from_slice(chunk.as_ref()),
                Ok(None) | Err(Broken::Failed(_)) => break,
                Err(Broken::Cancelled) => return Err(Broken::Cancelled),
            }
        }
        body.truncate(ERROR_BODY);
        Ok(body)
    }
}

/// The error for a request that got no answer, or only a part of one.
fn failed(error: reqwest::Error) -> AgentError {
    // An address may hold a password, and the caller knows it anyway.
    let error = error.without_url();
    let causes = with_causes(&error);
    // Only the words distinguish a server that does not speak HTTP from one that closed the connection.
    if causes.contains("invalid HTTP") || causes.contains("head is too large") {
        let message = format!("the server does not speak HTTP: {causes}");
        return AgentError::new(ErrorCode::Protocol, message).with_kind(ErrorKind::Http);
    }
    if causes.contains("invalid peer certificate") {
        let message = format!("the server's certificate is not trusted: {causes}");
        return AgentError::new(ErrorCode::ConfigInvalid, message).with_kind(ErrorKind::Certificate);
    }
    let (code, kind, lead) = match (error.is_connect(), error.is_timeout()) {
        // Only the connection has a time limit here, so nothing was sent.
        (_, true) => (ErrorCode::Network, ErrorKind::Connect, "no connection in time"),
        (true, false) => (ErrorCode::Network, ErrorKind::Connect, "the connection failed"),
        (false, false) => (ErrorCode::Network, ErrorKind::Broken, "the connection broke"),
    };
    AgentError::new(code, format!("{lead}: {causes}")).with_kind(kind)
}

/// The client's own rules: proxies come from the call's environment, and nothing shows their passwords.
#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use inspan_testkit::pause;

    use super::*;

    type Pairs<'a> = &'a [(&'a str, &'a str)];

    fn environment(pairs: Pairs<'_>) -> Environment {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn proxies_are_those_of_the_call() {
        let rows: [(Pairs<'_>, [Option<&str>; 3]); 5] = [
            (&[], [None, None, None]),
            (&[("HTTP_PROXY", "http://a")], [None, None, None]),
            (
                &[("http_proxy", "http://a"), ("HTTPS_PROXY", "http://b"), ("NO_PROXY", "c")],
                [Some("http://a"), Some("http://b"), Some("c")],
            ),
            (&[("ALL_PROXY", "http://a")], [Some("http://a"), Some("http://a"), None]),
            (
                &[("ALL_PROXY", "http://a"), ("https_proxy", "http://b"), ("HTTPS_PROXY", "http://c")],
                [Some("http://a"), Some("http://b"), None],
            ),
        ];
        for (pairs, expected) in rows {
            let proxies = Proxies::of(&environment(pairs));
            assert_eq!(
                [proxies.http.as_deref(), proxies.https.as_deref(), proxies.except.as_deref()],
                expected
            );
        }
    }

    #[test]
    fn a_client_is_kept_until_the_proxies_change_and_shows_no_password() {
        let http = Http::default();
        let secret = environment(&[("https_proxy", "http://user:planted-secret@127.0.0.1:1")]);
        for environment in [Environment::default(), Environment::default(), secret] {
            assert!(http.client(&environment).is_ok());
        }
        assert!(!format!("{http:?}").contains("planted-secret"));
        let error = http.client(&environment(&[("https_proxy", "http://planted-secret:x:y")])).unwrap_err();
        let expected =
            "the environment variable https_proxy (or all_proxy) is not a proxy address (CONFIG_INVALID)";
        assert_eq!(error.to_string(), expected);
    }

    #[tokio::test]
    async fn an_answer_that_came_while_the_program_was_stopped_is_taken() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
        let (received, is_received) = tokio::sync::oneshot::channel();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            assert!(stream.read(&mut [0; 4096]).unwrap() > 0);
            received.send(()).unwrap();
            pause(Duration::from_millis(50));
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi").unwrap();
        });
        // Nothing of this runtime runs meanwhile.
        tokio::spawn(async move {
            is_received.await.unwrap();
            pause(Duration::from_millis(600));
        });
        let clocks = Clocks {
            cancel: CancellationToken::new(),
            began: Instant::now(),
            deadline: None,
            stall: Duration::from_millis(300),
        };
        let request = Request { method: Method::GET, url, headers: HeaderMap::new(), body: Vec::new() };
        let answer = Http::default().send(request, &Environment::default(), clocks).await.unwrap();
        assert_eq!(answer.body(10).await.unwrap(), b"hi");
        server.join().unwrap();
    }
}
