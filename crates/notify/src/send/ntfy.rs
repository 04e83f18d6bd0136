//! A message to a topic of an ntfy server, published as JSON.

use futures::{FutureExt, future::BoxFuture};
use reqwest::{
    Url,
    header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue},
};
use serde_json::json;

use super::{Post, SendError, Sender, secret_header};
use crate::{message::Message, notice::NoticeKind};
use inspan_view::format::cut;

/// What a server takes of a message, and of all of the JSON, in bytes; a longer message would be an attachment, which many
/// servers refuse. It is shortened until both fit.
const TEXT: [usize; 5] = [4_096, 3_000, 2_000, 1_000, 500];
const ALL: usize = 8_192;
/// The longest title, in characters.
const TITLE: usize = 200;

pub(super) struct Ntfy {
    server: Url,
    topic: String,
    headers: HeaderMap,
    post: Post,
}

impl Ntfy {
    pub(super) fn new(
        server: &Url,
        topic: String,
        token: Option<&str>,
        post: Post,
    ) -> Result<Self, SendError> {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(token) = token {
            headers.insert(AUTHORIZATION, secret_header(&format!("Bearer {token}"))?);
        }
        Ok(Self { server: server.clone(), topic, headers, post })
    }
}

impl Sender for Ntfy {
    fn send<'a>(&'a self, message: &'a Message) -> BoxFuture<'a, Result<(), SendError>> {
        async move {
            let kind = message.notices.first().map_or(NoticeKind::End, |notice| notice.kind);
            let (priority, tag) = match kind {
                NoticeKind::Question => (4, "question"),
                NoticeKind::Failure => (4, "x"),
                NoticeKind::Budget => (4, "moneybag"),
                NoticeKind::Limit => (3, "hourglass"),
                NoticeKind::End | NoticeKind::Digest | NoticeKind::Test => (3, "ox"),
            };
            let mut body = json!({
                "topic": self.topic,
                "title": cut(&message.title, TITLE),
                "priority": priority,
                "tags": [tag],
                // A server that knows it shows the same message once.
                "sequence_id": message.id,
            });
            // Without `inspan serve` there is nothing that a button could open.
            if let Some(url) = &message.url {
                body["click"] = json!(url);
                let label = if kind == NoticeKind::Question { "Answer" } else { "Open" };
                body["actions"] = json!([{ "action": "view", "label": label, "url": url }]);
            }
            let mut json = String::new();
            for most in TEXT {
                body["message"] = json!(message.text_within(most));
                json = body.to_string();
                if json.len() <= ALL {
                    break;
                }
            }
            self.post.deliver(&self.server, self.headers.clone(), json.into_bytes()).await
        }
        .boxed()
    }
}
