//! How a message is sent: one implementation of [`Send`] for each type of channel. Each sends a message once; when and
//! how often is decided by the delivery.

mod command;
mod desktop;
mod ntfy;
mod slack;
mod smtp;
mod webhook;

use std::time::Duration;

use futures::future::BoxFuture;
use inspan_protocol::{Environment, ErrorKind, Redactor, Supervisor, plain_words};
use inspan_transport::{Answer, Broken, Clocks, Http, Request, is_found, retry_after};
use reqwest::{Method, StatusCode, Url, header::HeaderMap};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

pub(crate) use slack::{FaultReport, Listener, SlackApp};

use crate::{
    message::{Message, line},
    settings::{Address, ChannelSettings, ChannelTarget, Named},
};

/// How long one request may take in all, and how long nothing may come.
const REQUEST: Duration = Duration::from_secs(30);
const STALL: Duration = Duration::from_secs(15);
/// The most that is read of an answer, in bytes.
const ANSWER: usize = 256 * 1024;
/// The longest wait that a server can ask for.
const LONGEST_WAIT: Duration = Duration::from_secs(60 * 60);
/// How much of an error is repeated, and how much of one is read, in characters: secrets are taken out between.
const QUOTED: usize = 400;
const READ: usize = 4_000;
/// Shorter parts of a secret address are ordinary words.
const SHORTEST_PART: usize = 8;

/// Why a message was not sent, or not to all.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct SendError {
    /// Why, as words that follow the name of the channel.
    pub message: String,
    /// How long the receiver asks to wait.
    pub retry_after: Option<Duration>,
    /// Whether the same message will most likely be refused again: the receiver does not want it, or the channel is set
    /// up wrongly.
    pub is_refusal: bool,
    /// Whether only some receivers refused it: the others have it, so it is not sent again.
    pub is_partial: bool,
}

impl SendError {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), retry_after: None, is_refusal: false, is_partial: false }
    }

    pub(crate) fn refusal(message: impl Into<String>) -> Self {
        Self { is_refusal: true, ..Self::new(message) }
    }
}

/// One way to send.
pub(crate) trait Sender: Send + Sync {
    /// Sends a message once. What it sends has the id of the message, where the receiver has a place for it.
    fn send<'a>(&'a self, message: &'a Message) -> BoxFuture<'a, Result<(), SendError>>;

    /// What takes answers, where the receiver can give any.
    fn listener(&self) -> Option<&Listener> {
        None
    }
}

/// Sends nothing.
struct Closed;

impl Sender for Closed {
    fn send<'a>(&'a self, _: &'a Message) -> BoxFuture<'a, Result<(), SendError>> {
        Box::pin(async { Err(SendError::new("it cannot be used")) })
    }
}

/// A channel, ready to send.
pub struct NotificationChannel {
    /// Its name.
    pub name: String,
    /// The file that it is configured in.
    pub origin: String,
    /// Its settings.
    pub settings: ChannelSettings,
    sender: Box<dyn Sender>,
    redactor: Redactor,
}

impl NotificationChannel {
    /// A channel with the secrets of this environment. The supervisor is for channels that start programs.
    ///
    /// # Errors
    /// A variable is not set, or its value cannot be used.
    pub fn new(
        name: &str,
        origin: &str,
        settings: ChannelSettings,
        environment: &Environment,
        supervisor: Option<Supervisor>,
    ) -> Result<Self, SendError> {
        let environment = environment.clone().mark(settings.variables());
        let redactor = Redactor::new(&environment).with_values(secret_parts(&settings, &environment));
        let sender = sender(&settings, &environment, supervisor)?;
        Ok(Self { name: name.to_owned(), origin: origin.to_owned(), settings, sender, redactor })
    }

    /// A channel that cannot be used: its settings say what it would be sent.
    pub(crate) fn closed(name: &str, origin: &str, settings: ChannelSettings) -> Self {
        let (name, origin) = (name.to_owned(), origin.to_owned());
        Self { name, origin, settings, sender: Box::new(Closed), redactor: Redactor::default() }
    }

    /// Sends a message once, without any secret.
    ///
    /// # Errors
    /// It was not accepted, or not for all receivers.
    pub async fn send(&self, message: &Message) -> Result<(), SendError> {
        let message = message.redacted(&self.redactor)?;
        self.sender
            .send(&message)
            .await
            .map_err(|error| SendError { message: self.shown(&error.message), ..error })
    }

    /// The message of an error as it is shown.
    pub(crate) fn shown(&self, message: &str) -> String {
        line(&self.redactor.text(message), QUOTED)
    }

    /// What takes answers; nothing for a channel that has none.
    pub(crate) fn listener(&self) -> Option<&Listener> {
        self.sender.listener()
    }
}

impl std::fmt::Debug for NotificationChannel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "NotificationChannel({})", self.name)
    }
}

/// What keeps a channel from being used, as far as it shows without sending.
///
/// # Errors
/// Why it cannot be used.
pub fn check(settings: &ChannelSettings, environment: &Environment) -> Result<(), SendError> {
    sender(settings, environment, None)?;
    let program = match &settings.target {
        ChannelTarget::Desktop => desktop::PROGRAM,
        ChannelTarget::Command { argv, .. } => argv.first().map_or("", String::as_str),
        _ => return Ok(()),
    };
    match is_found(program, environment) {
        true => Ok(()),
        false => Err(SendError::refusal(format!("the program `{program}` is not there, or cannot be run"))),
    }
}

fn sender(
    settings: &ChannelSettings,
    environment: &Environment,
    supervisor: Option<Supervisor>,
) -> Result<Box<dyn Sender>, SendError> {
    let post = || Post::new(environment);
    Ok(match &settings.target {
        ChannelTarget::Webhook { url, secret_env } => {
            Box::new(webhook::Webhook::new(url, &variable(environment, secret_env)?, environment, post())?)
        }
        ChannelTarget::Slack { api, channel, token_env, app_token_env, allow } => {
            let app_token = app_token_env.as_ref().map(|name| variable(environment, name)).transpose()?;
            let token = variable(environment, token_env)?;
            Box::new(slack::Slack::new(api, channel, &token, app_token.as_deref(), allow, post())?)
        }
        ChannelTarget::Ntfy { server, topic, token_env } => {
            let topic = match topic {
                Named::Plain(topic) => topic.clone(),
                Named::Variable(name) => variable(environment, name)?,
            };
            let token = token_env.as_ref().map(|name| variable(environment, name)).transpose()?;
            Box::new(ntfy::Ntfy::new(server, topic, token.as_deref(), post())?)
        }
        ChannelTarget::Smtp { host, port, tls, from, to, username, password_env } => {
            let password = password_env.as_ref().map(|name| variable(environment, name)).transpose()?;
            let login = username.clone().zip(password);
            Box::new(smtp::Smtp::new(host, *port, *tls, from, to, login)?)
        }
        ChannelTarget::Desktop => Box::new(desktop::Desktop::new(environment, supervisor)),
        ChannelTarget::Command { argv, env, timeout } => {
            let named = env.iter().map(|name| Ok((name.clone(), variable(environment, name)?)));
            let named = named.collect::<Result<Vec<_>, SendError>>()?;
            Box::new(command::CommandSender::new(argv, named, environment, *timeout, supervisor))
        }
    })
}

/// The value of a variable that must be set.
fn variable(environment: &Environment, name: &str) -> Result<String, SendError> {
    let value = environment.get(name).map(str::to_owned);
    value.ok_or_else(|| SendError::new(format!("the environment variable {name} is not set")))
}

/// Sends requests with a body and reads bounded answers.
struct Post {
    http: Http,
    environment: Environment,
}

impl Post {
    fn new(environment: &Environment) -> Self {
        Self { http: Http::default(), environment: environment.clone() }
    }

    /// Sends what needs no answer but its status: one of success is a delivery, whatever follows it.
    async fn deliver(&self, url: &Url, headers: HeaderMap, body: Vec<u8>) -> Result<(), SendError> {
        self.open(url, headers, body).await.map(drop)
    }

    /// The body of an answer that is a success.
    async fn call(&self, url: &Url, headers: HeaderMap, body: Vec<u8>) -> Result<Vec<u8>, SendError> {
        self.open(url, headers, body).await?.body(ANSWER).await.map_err(failed)
    }

    /// An answer that is a success, before its body is read.
    async fn open(&self, url: &Url, headers: HeaderMap, body: Vec<u8>) -> Result<Answer, SendError> {
        let clocks = Clocks {
            cancel: CancellationToken::new(),
            began: Instant::now(),
            deadline: Some(REQUEST),
            stall: STALL,
        };
        let request = Request { method: Method::POST, url: url.clone(), headers, body };
        let answer = self.http.send(request, &self.environment, clocks).await.map_err(failed)?;
        let status = answer.status();
        if status.is_success() {
            return Ok(answer);
        }
        let header = |name: &str| answer.headers().get(name).and_then(|value| value.to_str().ok());
        let wait = retry_after(&header).map(|wait| wait.min(LONGEST_WAIT));
        let body = answer.error_body().await.unwrap_or_default();
        let said = line(&String::from_utf8_lossy(&body), READ);
        let said = if said.is_empty() { said } else { format!(": {said}") };
        let may_pass = [StatusCode::REQUEST_TIMEOUT, StatusCode::TOO_EARLY, StatusCode::TOO_MANY_REQUESTS];
        Err(SendError {
            message: format!("the server answered {status}{said}"),
            retry_after: wait,
            is_refusal: status.is_client_error() && !may_pass.contains(&status),
            is_partial: false,
        })
    }
}

fn failed(broken: Broken) -> SendError {
    match broken {
        Broken::Cancelled => SendError::new("the request was cancelled"),
        Broken::Failed(error) => SendError::new(match error.kind() {
            Some(ErrorKind::Stall) => format!("the server sent nothing for {} s", STALL.as_secs()),
            Some(ErrorKind::Deadline) => format!("the server took longer than {} s", REQUEST.as_secs()),
            _ => plain_words(&error.message),
        }),
    }
}

/// A text without what its receiver would read as markup.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// What is secret of an address, beside the whole of one that a variable holds: receivers repeat its path, or the end of
/// that. Of one that is in a file only what looks like a key is.
fn secret_parts(settings: &ChannelSettings, environment: &Environment) -> Vec<String> {
    let ChannelTarget::Webhook { url, .. } = &settings.target else { return Vec::new() };
    let (url, is_secret) = match url {
        Address::Plain(url) => (Some(url.clone()), false),
        Address::Variable(name, _) => (environment.get(name).and_then(|url| url.parse::<Url>().ok()), true),
    };
    let Some(url) = url else { return Vec::new() };
    let path = url.path();
    let whole = url.query().map_or_else(|| path.to_owned(), |query| format!("{path}?{query}"));
    // One step of a path alone may be an ordinary word.
    let is_long =
        |part: &&str| is_secret && part.len() >= SHORTEST_PART && part.trim_matches('/').contains('/');
    let ends = path
        .match_indices('/')
        .flat_map(|(at, _)| [&whole[at..], &path[at..], &whole[at + 1..], &path[at + 1..]]);
    let mut parts: Vec<String> = ends.filter(is_long).map(str::to_owned).collect();
    let is_key = |part: &str| {
        let is_name = part.chars().all(|c| c.is_ascii_lowercase() || c == '-' || c == '_');
        part.len() >= SHORTEST_PART && !is_name
    };
    let steps = path.split('/').map(str::to_owned);
    let values = url.query_pairs().map(|(_, value)| value.into_owned());
    parts.extend(steps.chain(values).filter(|part| is_key(part)));
    parts
}

/// A header that must not be shown.
fn secret_header(value: &str) -> Result<reqwest::header::HeaderValue, SendError> {
    let mut value = reqwest::header::HeaderValue::from_str(value)
        .map_err(|_| SendError::new("a token has characters that no header can have"))?;
    value.set_sensitive(true);
    Ok(value)
}

#[cfg(test)]
mod tests;
