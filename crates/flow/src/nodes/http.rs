//! `http.request`: sends a request, follows redirects and gives the response, or the same from a recording. Secrets are
//! filled in when the request is sent, and nowhere before.

use std::{borrow::Cow, collections::BTreeMap, time::Duration};

use futures::{FutureExt, future::BoxFuture};
use inspan_flow_core::{HttpInput, HttpMethod, HttpOutput, pointer_part, read_input, write_output};
use inspan_protocol::{AgentError, Environment, ErrorCode, ErrorKind, Redactor, beginning, is_too_deep};
use inspan_transport::{
    Answer, Broken, Clocks, HeaderMap, HeaderName, HeaderValue, Http, Method, Request, StatusCode, Url,
    retry_after,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::node::{DynNodeType, NodeContext, secret_not_set};

/// The largest body of a response, in bytes.
const BODY_LIMIT: usize = 8 << 20;
/// How much of the body is in the error of a status that is a failure, in bytes.
const SHOWN_BODY: usize = 8 * 1024;
/// How long a server may send nothing.
const STALL: Duration = Duration::from_secs(120);
/// How long a request may take in all.
const DEADLINE: Duration = Duration::from_secs(15 * 60);
/// How many redirects are followed.
const REDIRECTS: u32 = 10;
/// Headers that go to the server that they were written for, and to no other.
const PRIVATE_HEADERS: [&str; 3] = ["authorization", "cookie", "proxy-authorization"];

/// `http.request`, with the connections of all such nodes.
#[derive(Default)]
pub(super) struct HttpNode(Http);

impl DynNodeType for HttpNode {
    fn run(&self, context: NodeContext, input: Value) -> BoxFuture<'_, Result<Value, AgentError>> {
        async move {
            let written: HttpInput = read_input(input.clone())?;
            // A test and a replay send nothing; what could not be sent fails there, too. Only an address with a secret is not known
            // before it is sent.
            if !written.secrets_in.iter().any(|place| place == "/url") {
                Outgoing::new(&written, written.clone()).map_err(|wrong| context.redactor.error(wrong))?;
            }
            let call = context.node_call("http.request", recorded(&written));
            let sent = async {
                let filled = fill_in(input, &written.secrets_in, &context.host.env)?;
                send(&self.0, &written, filled, &context).await
            };
            let (received, _) = context.call(call, sent, write_output).await?;
            write_output(&output(&written, received, &context.redactor)?)
        }
        .boxed()
    }
}

/// A response: the form in which it is recorded.
#[derive(Serialize, Deserialize)]
struct ReceivedResponse {
    status: u16,
    headers: BTreeMap<String, String>,
    text: String,
}

/// What of an input distinguishes one request from another. Secrets are not filled in.
fn recorded(input: &HttpInput) -> Value {
    let mut call = json!({ "method": input.method, "url": input.url });
    if !input.headers.is_empty() {
        call["headers"] = json!(input.headers);
    }
    if !input.query.is_empty() {
        call["query"] = json!(input.query);
    }
    if let Some(json) = &input.json {
        call["json"] = json.clone();
    }
    if let Some(body) = &input.body {
        call["body"] = Value::from(body.as_str());
    }
    call
}

/// The input with the secrets that the author named, at the places where the author named them.
fn fill_in(mut input: Value, places: &[String], env: &Environment) -> Result<HttpInput, AgentError> {
    for place in places {
        if let Some(Value::String(text)) = input.pointer_mut(place) {
            *text = filled(text, env)?;
        }
    }
    // The message of a reader could repeat a secret.
    read_input(input).map_err(|_| AgentError::new(ErrorCode::ConfigInvalid, "the input does not fit"))
}

fn filled(text: &str, env: &Environment) -> Result<String, AgentError> {
    let (mut filled, mut rest) = (String::new(), text);
    while let Some((before, after)) = rest.split_once("${") {
        filled.push_str(before);
        let named = after.split_once('}').filter(|(name, _)| env.is_marked(name));
        match named {
            Some((name, behind)) => {
                filled.push_str(env.get(name).ok_or_else(|| secret_not_set(name))?);
                rest = behind;
            }
            None => {
                filled.push_str("${");
                rest = after;
            }
        }
    }
    filled.push_str(rest);
    Ok(filled)
}

async fn send(
    http: &Http,
    written: &HttpInput,
    filled: HttpInput,
    context: &NodeContext,
) -> Result<ReceivedResponse, AgentError> {
    let clocks = Clocks {
        cancel: context.cancel.clone(),
        began: Instant::now(),
        deadline: Some(DEADLINE),
        stall: STALL,
    };
    let outgoing = Outgoing::new(written, filled)?;
    let received = async {
        let answer = outgoing.send(http, &context.host.env, &clocks).await?;
        let (status, headers) = (answer.status().as_u16(), headers_of(answer.headers()));
        let body = answer.body(BODY_LIMIT).await?;
        let text = String::from_utf8_lossy(&body);
        if let Cow::Owned(_) = text {
            let instead = "A program of an `exec` node with `stdoutFile` can save it as it is";
            context.warn_of_lost_bytes(&format!("{}: the body", name(written)), instead);
        }
        Ok(ReceivedResponse { status, headers, text: text.into_owned() })
    };
    received.await.map_err(|broken| match broken {
        Broken::Cancelled => context.aborted(),
        Broken::Failed(error) => {
            let error = match error.kind() {
                Some(ErrorKind::Deadline) => {
                    let message = format!("no whole response within {} minutes", DEADLINE.as_secs() / 60);
                    AgentError { message, ..error }
                }
                _ => error,
            };
            AgentError { message: format!("{}: {}", name(written), error.message), ..error }
        }
    })
}

/// A request without its parameters, for messages: they may be long.
fn name(input: &HttpInput) -> String {
    let url = input.url.split(['?', '#']).next().unwrap_or_default();
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    // What is before the host is a login.
    let host = rest.find('/').unwrap_or(rest.len());
    let rest = rest[..host].rfind('@').map_or(rest, |at| &rest[at + 1..]);
    let colon = if scheme.is_empty() { "" } else { "://" };
    format!("{} {scheme}{colon}{rest}", input.method.as_str())
}

/// A request that may be sent again to where it is redirected.
#[derive(Clone)]
struct Outgoing {
    method: Method,
    url: Url,
    headers: HeaderMap,
    body: Vec<u8>,
    /// Names of headers that hold a secret.
    private: Vec<HeaderName>,
    /// Whether the body holds a secret.
    has_private_body: bool,
    redirects: u32,
}

impl Outgoing {
    fn new(written: &HttpInput, filled: HttpInput) -> Result<Self, AgentError> {
        let wrong = |message: String| AgentError::new(ErrorCode::ConfigInvalid, message);
        if let Some(problem) = filled.problem() {
            return Err(wrong(problem.message));
        }
        let mut url =
            Url::parse(&filled.url).map_err(|why| wrong(format!("`url` is not an address: {why}")))?;
        add_query(&mut url, &filled);
        let is_secret = |pointer: &str| written.secrets_in.iter().any(|place| place.starts_with(pointer));
        let (mut headers, mut private) = (HeaderMap::new(), Vec::new());
        for (written, value) in &filled.headers {
            let name: HeaderName =
                written.parse().map_err(|_| wrong(format!("`{written}` cannot be the name of a header")))?;
            let mut value = HeaderValue::from_str(value)
                .map_err(|_| wrong(format!("the header `{written}` has a value that no header can have")))?;
            let pointer = format!("/headers/{}", pointer_part(written));
            if is_secret(&pointer) || PRIVATE_HEADERS.contains(&name.as_str()) {
                value.set_sensitive(true);
                private.push(name.clone());
            }
            headers.insert(name, value);
        }
        let (body, kind) = match (&filled.json, filled.body) {
            (Some(json), _) => (json.to_string().into_bytes(), Some("application/json")),
            (None, Some(text)) => (text.into_bytes(), Some("text/plain; charset=utf-8")),
            (None, None) => (Vec::new(), None),
        };
        if let Some(kind) = kind {
            headers.entry("content-type").or_insert(HeaderValue::from_static(kind));
        }
        Ok(Self {
            method: method(filled.method),
            url,
            headers,
            body,
            private,
            has_private_body: is_secret("/json") || is_secret("/body"),
            redirects: filled.max_redirects.unwrap_or(REDIRECTS),
        })
    }

    /// Sends it, and follows redirects.
    async fn send(mut self, http: &Http, env: &Environment, clocks: &Clocks) -> Result<Answer, Broken> {
        let limit = self.redirects;
        loop {
            let Self { method, url, headers, body, .. } = self.clone();
            let answer = http.send(Request { method, url, headers, body }, env, clocks.clone()).await?;
            let location = answer.headers().get("location").and_then(|value| value.to_str().ok());
            let is_redirect = matches!(answer.status().as_u16(), 301 | 302 | 303 | 307 | 308);
            let Some(location) = location.filter(|_| is_redirect && limit > 0) else { return Ok(answer) };
            let refused = |why: String| {
                Broken::Failed(AgentError::new(ErrorCode::Protocol, why).with_kind(ErrorKind::Redirect))
            };
            if self.redirects == 0 {
                return Err(refused(format!("the server redirects more than {limit} times")));
            }
            let next = self.url.join(location).ok().filter(|next| matches!(next.scheme(), "http" | "https"));
            let next =
                next.ok_or_else(|| refused("the server redirects to an invalid address".to_owned()))?;
            self.redirect(answer.status(), next).map_err(refused)?;
        }
    }

    /// The request that follows a redirect. What is secret goes to no other server.
    fn redirect(&mut self, status: StatusCode, next: Url) -> Result<(), String> {
        let to_get = match status.as_u16() {
            303 => self.method != Method::HEAD,
            301 | 302 => self.method == Method::POST,
            _ => false,
        };
        if to_get {
            self.method = Method::GET;
            self.body.clear();
            self.has_private_body = false;
            self.headers.remove("content-type");
        }
        if next.origin() != self.url.origin() {
            if self.has_private_body && !self.body.is_empty() {
                return Err("the server redirects to another one, which must not get the secret of the body"
                    .to_owned());
            }
            for name in self.private.drain(..) {
                self.headers.remove(name);
            }
        }
        self.url = next;
        self.redirects -= 1;
        Ok(())
    }
}

fn method(method: HttpMethod) -> Method {
    match method {
        HttpMethod::Get => Method::GET,
        HttpMethod::Head => Method::HEAD,
        HttpMethod::Options => Method::OPTIONS,
        HttpMethod::Post => Method::POST,
        HttpMethod::Put => Method::PUT,
        HttpMethod::Patch => Method::PATCH,
        HttpMethod::Delete => Method::DELETE,
    }
}

fn add_query(url: &mut Url, input: &HttpInput) {
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let pairs = input.query.iter().flat_map(|(name, value)| match &value.0 {
        Value::Array(items) => items.iter().map(|item| (name, text(item))).collect(),
        Value::Null => Vec::new(),
        value => vec![(name, text(value))],
    });
    let pairs: Vec<_> = pairs.collect();
    if !pairs.is_empty() {
        url.query_pairs_mut().extend_pairs(pairs);
    }
}

/// The headers for the output. A cookie is the key to a session, so its value is removed.
fn headers_of(headers: &HeaderMap) -> BTreeMap<String, String> {
    let mut all: BTreeMap<String, String> = BTreeMap::new();
    for (name, value) in headers {
        let value = match name.as_str() {
            "set-cookie" => "[redacted]".into(),
            _ => String::from_utf8_lossy(value.as_bytes()),
        };
        let known = all.entry(name.as_str().to_owned()).or_default();
        if !known.is_empty() {
            known.push_str(", ");
        }
        known.push_str(&value);
    }
    all
}

/// What the node gives, or why it has failed.
fn output(
    input: &HttpInput,
    received: ReceivedResponse,
    redactor: &Redactor,
) -> Result<HttpOutput, AgentError> {
    let ReceivedResponse { status, headers, text } = received;
    if status >= 400 && !input.allow_status.has(&status) {
        // What is cut off may be a part of a secret.
        return Err(refusal(input, status, &headers, &redactor.text(&text)));
    }
    let kind = headers.get("content-type").map(|kind| kind.to_ascii_lowercase()).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim();
    let is_json = kind == "application/json" || kind.ends_with("+json");
    let json = is_json.then(|| serde_json::from_str(&text).ok()).flatten();
    Ok(HttpOutput { status, headers, text, json: json.filter(|value| !is_too_deep(value)) })
}

/// The error for a status.
fn refusal(input: &HttpInput, status: u16, headers: &BTreeMap<String, String>, text: &str) -> AgentError {
    let code = match status {
        408 | 504 => ErrorCode::Timeout,
        429 => ErrorCode::RateLimited,
        500.. => ErrorCode::Overloaded,
        _ => ErrorCode::InvalidRequest,
    };
    let reason = StatusCode::from_u16(status).ok().and_then(|status| status.canonical_reason());
    let reason = reason.map(|reason| format!(" {reason}")).unwrap_or_default();
    let said = text.lines().map(str::trim).find(|line| !line.is_empty() && !line.starts_with('<'));
    let said = beginning(said.unwrap_or_default(), 200);
    let colon = if said.is_empty() { "" } else { ": " };
    let message = format!("{} was answered with {status}{reason}{colon}{said}", name(input));
    let shown = beginning(text, SHOWN_BODY);
    let error = AgentError::new(code, message).with_detail(json!({ "status": status, "text": shown }));
    if !error.is_retryable() {
        return error;
    }
    error.with_retry_after(retry_after(&|name| headers.get(name).map(String::as_str)))
}

#[cfg(test)]
mod tests;
