//! Messages in Slack, with buttons for the questions, and the answers that come back through Socket Mode.

mod blocks;
mod interaction;
mod socket;

use std::sync::{Arc, Mutex, PoisonError};

use futures::{FutureExt, future::BoxFuture};
use reqwest::{
    Url,
    header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue},
};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::{Post, READ, SendError, Sender, escaped, secret_header};
use crate::{
    answers::Answers,
    message::{Message, line},
};

/// Errors of Slack that pass; with the others a message is refused again.
const PASSING: [&str; 5] =
    ["ratelimited", "internal_error", "fatal_error", "service_unavailable", "request_timeout"];

pub(super) struct Slack {
    api: Arc<Api>,
    channel: String,
    /// What receives answers.
    listener: Option<Listener>,
}

/// The side of a channel that takes answers.
#[derive(Clone)]
pub(crate) struct Listener {
    api: Arc<Api>,
    app: SlackApp,
    app_headers: HeaderMap,
    /// The users who may answer.
    allow: Arc<[String]>,
    /// Why there is no connection, if people are told.
    fault: Arc<Mutex<Option<String>>>,
}

/// Tells people why there is no connection, or that there is one again.
pub(crate) type FaultReport = Box<dyn Fn(Option<String>) -> BoxFuture<'static, ()> + Send + Sync>;

/// The app of Slack that answers come through. One connection serves all channels of an app.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SlackApp {
    api: Url,
    token: String,
}

impl Listener {
    pub(crate) fn app(&self) -> &SlackApp {
        &self.app
    }

    /// Receives answers until it is cancelled.
    pub(crate) async fn listen(self, answers: Arc<Answers>, report: FaultReport, cancel: CancellationToken) {
        socket::listen(self, answers, report, cancel).await;
    }

    /// Why no answers come, as far as people were told.
    pub(crate) fn fault(&self) -> Option<String> {
        self.fault.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sets it, and tells people if that changes whether answers come.
    async fn set_fault(&self, fault: Option<String>, report: &FaultReport) {
        let before =
            std::mem::replace(&mut *self.fault.lock().unwrap_or_else(PoisonError::into_inner), fault.clone());
        if before.is_some() != fault.is_some() {
            report(fault).await;
        }
    }
}

/// Slack's methods.
struct Api {
    base: Url,
    headers: HeaderMap,
    post: Post,
}

impl Slack {
    pub(super) fn new(
        api: &Url,
        channel: &str,
        token: &str,
        app_token: Option<&str>,
        allow: &[String],
        post: Post,
    ) -> Result<Self, SendError> {
        let app = |token: &str| SlackApp { api: api.clone(), token: token.to_owned() };
        let api = Arc::new(Api { base: api.clone(), headers: headers(token)?, post });
        let listener = match app_token {
            Some(token) => Some(Listener {
                api: Arc::clone(&api),
                app: app(token),
                app_headers: headers(token)?,
                allow: allow.into(),
                fault: Arc::default(),
            }),
            None => None,
        };
        Ok(Self { api, channel: channel.to_owned(), listener })
    }
}

fn headers(token: &str) -> Result<HeaderMap, SendError> {
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json; charset=utf-8"));
    headers.insert(AUTHORIZATION, secret_header(&format!("Bearer {token}"))?);
    Ok(headers)
}

impl Api {
    /// Calls a method; its answer if it says that it worked.
    async fn call(&self, method: &str, body: &Value) -> Result<Value, SendError> {
        self.call_as(method, &self.headers, body).await
    }

    async fn call_as(&self, method: &str, headers: &HeaderMap, body: &Value) -> Result<Value, SendError> {
        let mut url = self.base.clone();
        url.path_segments_mut()
            .map_err(|()| SendError::new("the address of the API has no path"))?
            .pop_if_empty()
            .push(method);
        let answer = self.post.call(&url, headers.clone(), body.to_string().into_bytes()).await?;
        let answer: Value = serde_json::from_slice(&answer)
            .map_err(|error| SendError::new(format!("Slack's answer to {method} is not JSON: {error}")))?;
        if answer["ok"] == json!(true) {
            return Ok(answer);
        }
        let why = answer["error"].as_str().map_or("no reason given".to_owned(), |why| line(why, READ));
        let message = format!("Slack refused {method}: {why}");
        Err(if PASSING.contains(&why.as_str()) {
            SendError::new(message)
        } else {
            SendError::refusal(message)
        })
    }
}

impl Sender for Slack {
    fn send<'a>(&'a self, message: &'a Message) -> BoxFuture<'a, Result<(), SendError>> {
        async move {
            let body = json!({
                "channel": self.channel,
                "text": escaped(&message.title),
                "blocks": blocks::of(message, self.listener.is_some()),
                "metadata": { "event_type": "inspan_notification", "event_payload": { "id": message.id } },
                "unfurl_links": false,
                "unfurl_media": false,
            });
            self.api.call("chat.postMessage", &body).await.map(drop)
        }
        .boxed()
    }

    fn listener(&self) -> Option<&Listener> {
        self.listener.as_ref()
    }
}
