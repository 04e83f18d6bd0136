//! The guard: what every request must fulfil before it is routed, the page's files included. Any web page that a user
//! visits can send requests to a port of the loopback; these rules stop them.

use std::{fmt, net::SocketAddr, str::FromStr, time::Duration};

use axum::{
    Router,
    body::Body,
    extract::{DefaultBodyLimit, Request, State},
    http::{
        HeaderMap, HeaderName, HeaderValue, Method,
        header::{AUTHORIZATION, CACHE_CONTROL, CONTENT_TYPE, COOKIE, HOST, ORIGIN},
        request::Parts,
    },
    middleware::{self, Next},
    response::{IntoResponse, Response},
};

use crate::{
    App, CONTENT_SECURITY_POLICY, LoginCodes, Token, asset, limits, listen::Newcomer, problem::Problem,
};

/// Where the token is exchanged for a cookie.
pub(crate) const LOGIN: &str = "/api/v1/login";
/// Whether the server runs.
pub(crate) const HEALTH: &str = "/healthz";

/// A name under which a server is reached, as it is in the `Host` of requests: `inspan.example.org`, or with a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host(String);

/// A text is not a name of a host.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not a host: give a name or an address, if need be with a port, as in `inspan.example.org:8443`"
)]
pub struct InvalidHost(String);

impl FromStr for Host {
    type Err = InvalidHost;

    fn from_str(text: &str) -> Result<Self, InvalidHost> {
        let invalid = || InvalidHost(text.to_owned());
        let authority: axum::http::uri::Authority = text.parse().map_err(|_| invalid())?;
        let name = authority.host().to_ascii_lowercase();
        if name.is_empty() || text.contains(['@', '*']) {
            return Err(invalid());
        }
        match (authority.port_u16(), text.len() == name.len()) {
            (None, true) => Ok(Self(name)),
            (Some(port @ 1..), _) => Ok(Self(format!("{name}:{port}"))),
            // What follows the name is not a port.
            _ => Err(invalid()),
        }
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What requests are checked against.
pub(crate) struct Guard {
    /// The values of `Host` that are let in.
    hosts: Vec<String>,
    /// The values of `Origin` that are let in.
    origins: Vec<String>,
    token: Token,
    codes: LoginCodes,
    cookie: String,
}

impl Guard {
    /// A server on the loopback is reached by the names of the loopback with its port, any server by the given names.
    pub(crate) fn new(address: SocketAddr, named: Vec<Host>, token: Token, codes: LoginCodes) -> Self {
        let port = address.port();
        let mut hosts = Vec::new();
        let mut origins = Vec::new();
        let mut let_in = |scheme: &str, default_port: &str, name: &str| {
            // Clients leave out the port that a scheme has by default.
            for name in [name, name.strip_suffix(default_port).unwrap_or(name)] {
                origins.push(format!("{scheme}://{name}"));
                hosts.push(name.to_owned());
            }
        };
        for name in ["localhost", "127.0.0.1", "[::1]"] {
            let_in("http", ":80", &format!("{name}:{port}"));
        }
        // The loopback has more addresses than those.
        if address.ip().is_loopback() {
            let_in("http", ":80", &address.to_string());
        }
        for Host(name) in &named {
            let_in("http", ":80", name);
            let_in("https", ":443", name);
        }
        Self { hosts, origins, token, codes, cookie: format!("inspan-{port}") }
    }

    /// Whether a text is the token, or a code that opens the page once.
    pub(crate) fn lets_in(&self, text: &str) -> bool {
        self.token.is(text) || self.codes.take(text)
    }

    /// The header that gives a browser its cookie. A page that came by TLS gets one that is sent by TLS only.
    pub(crate) fn set_cookie(&self, headers: &HeaderMap) -> String {
        let is_https = one(headers, &ORIGIN)
            .is_ok_and(|origin| origin.is_some_and(|origin| origin.starts_with("https://")));
        let secure = if is_https { "; Secure" } else { "" };
        format!("{}={}; Path=/; HttpOnly; SameSite=Strict{secure}", self.cookie, self.token.cookie())
    }

    /// The header that removes the cookie.
    pub(crate) fn forget_cookie(&self) -> String {
        format!("{}=; Path=/; HttpOnly; SameSite=Strict; Max-Age=0", self.cookie)
    }

    /// Every rule, in order.
    fn check(&self, head: &Parts) -> Result<(), Problem> {
        self.check_host(head)?;
        self.check_origin(&head.headers)?;
        check_site(&head.headers)?;
        check_content(head)?;
        self.check_token(head)
    }

    /// The request names this server. A page whose name was bound to the loopback after it was loaded (DNS rebinding)
    /// sends its own name.
    fn check_host(&self, head: &Parts) -> Result<(), Problem> {
        let refused = |named: &str| {
            let detail = format!("this server does not answer for the host `{named}`");
            Problem::new("hostNotAllowed", detail).with_hint(
                "use the address that the server prints; its option `--allow-remote HOST` lets a name in",
            )
        };
        let Some(host) = one(&head.headers, &HOST)? else { return Err(refused("")) };
        let is_known = |name: &str| self.hosts.iter().any(|known| known.eq_ignore_ascii_case(name));
        // A request line may name a host too.
        let named = [Some(host), head.uri.authority().map(|authority| authority.as_str())];
        match named.into_iter().flatten().find(|name| !is_known(name)) {
            None => Ok(()),
            Some(stranger) => Err(refused(stranger)),
        }
    }

    /// A page of another origin gets nothing.
    fn check_origin(&self, headers: &HeaderMap) -> Result<(), Problem> {
        match one(headers, &ORIGIN)? {
            Some(origin) if !self.origins.iter().any(|known| known == origin) => Err(Problem::new(
                "originNotAllowed",
                format!("requests from pages of `{origin}` are refused"),
            )),
            _ => Ok(()),
        }
    }

    /// Reads need the token too: transcripts hold secrets. Only routes without data of a session need none: the files
    /// of the page, the health check, and the login.
    fn check_token(&self, head: &Parts) -> Result<(), Problem> {
        let path = head.uri.path();
        if path == HEALTH || path == LOGIN || asset(path).is_some() || self.has_token(&head.headers)? {
            return Ok(());
        }
        Err(Problem::new("tokenMissing", "the token of this server is missing or wrong").with_hint(
            "send `Authorization: Bearer TOKEN` with the token of the file that the server names; a browser opens the \
             address that `inspan serve` prints",
        ))
    }

    fn has_token(&self, headers: &HeaderMap) -> Result<bool, Problem> {
        if let Some(given) = one(headers, &AUTHORIZATION)? {
            let mut parts = given.splitn(2, ' ');
            let is_bearer = parts.next().is_some_and(|scheme| scheme.eq_ignore_ascii_case("bearer"));
            return Ok(is_bearer && parts.next().is_some_and(|token| self.token.is(token.trim())));
        }
        let cookies = headers.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok());
        let mut pairs =
            cookies.flat_map(|value| value.split(';')).filter_map(|pair| pair.trim().split_once('='));
        Ok(pairs.any(|(name, value)| name == self.cookie && self.token.is_cookie(value)))
    }
}

/// A browser says what sent a request. A page of another port of this machine is refused too.
fn check_site(headers: &HeaderMap) -> Result<(), Problem> {
    const SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
    match one(headers, &SITE)? {
        None | Some("same-origin" | "none") => Ok(()),
        Some(site) => Err(Problem::new(
            "crossSite",
            format!("requests that another page sends are refused (`Sec-Fetch-Site: {site}`)"),
        )
        .with_hint("type or paste the address instead of following a link to it")),
    }
}

/// What changes something is JSON: a form or a plain text can be sent by any page without asking. A DELETE cannot, and
/// needs no content.
fn check_content(head: &Parts) -> Result<(), Problem> {
    if matches!(head.method, Method::GET | Method::HEAD) {
        return Ok(());
    }
    let given = one(&head.headers, &CONTENT_TYPE)?;
    if head.method == Method::DELETE && given.is_none() {
        return Ok(());
    }
    let given = given.unwrap_or_default();
    let kind = given.split(';').next().unwrap_or_default().trim();
    if kind.eq_ignore_ascii_case("application/json") {
        return Ok(());
    }
    Err(Problem::new("notJson", format!("the content type is `{given}`, not `application/json`")))
}

/// The value of a header. One that comes twice or is no text could be read in two ways, and is refused.
fn one<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a str>, Problem> {
    let unclear = || Problem::new("invalidRequest", format!("the header `{name}` is unclear"));
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (None, _) => Ok(None),
        (Some(value), None) => value.to_str().map(Some).map_err(|_| unclear()),
        (Some(_), Some(_)) => Err(unclear()),
    }
}

/// Puts the guard before the routes, whose answers begin within the given time. The routes are a fallback of a router
/// without any, so nothing is routed before.
pub(crate) fn before(app: App, routes: Router, answer: Duration) -> Router {
    Router::new()
        .fallback_service(routes)
        .layer(DefaultBodyLimit::max(limits::BODY))
        .layer(middleware::from_fn_with_state((app, answer), watch))
}

async fn watch(State((app, limit)): State<(App, Duration)>, request: Request, next: Next) -> Response {
    let (head, body) = request.into_parts();
    let answer = match app.guard.check(&head) {
        Ok(()) => {
            if let Some(newcomer) = head.extensions.get::<Newcomer>()
                && app.guard.has_token(&head.headers) == Ok(true)
            {
                newcomer.admit();
            }
            let answer = next.run(Request::from_parts(head, body));
            tokio::time::timeout(limit, answer)
                .await
                .unwrap_or_else(|_| Problem::new("timeout", "the answer took too long").into_response())
        }
        Err(problem) => problem.into_response(),
    };
    app.metrics.answered(answer.status());
    with_headers(answer)
}

/// The headers of every answer for browsers. A handler that sets one of these itself overrides it.
fn with_headers(mut answer: Response<Body>) -> Response {
    let all = [
        ("content-security-policy", CONTENT_SECURITY_POLICY),
        ("x-content-type-options", "nosniff"),
        ("x-frame-options", "DENY"),
        ("referrer-policy", "no-referrer"),
        ("cross-origin-opener-policy", "same-origin"),
        ("cross-origin-resource-policy", "same-origin"),
        ("permissions-policy", "camera=(), geolocation=(), microphone=()"),
        (CACHE_CONTROL.as_str(), "no-store"),
    ];
    for (name, value) in all {
        answer.headers_mut().entry(HeaderName::from_static(name)).or_insert(HeaderValue::from_static(value));
    }
    answer
}

#[cfg(test)]
mod tests;
