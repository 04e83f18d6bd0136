//! A signed HTTP request, as the Standard Webhooks specification defines it: the receiver checks it with any library
//! for that, or with a few lines.

use base64::{Engine, engine::general_purpose::STANDARD};
use futures::{FutureExt, future::BoxFuture};
use hmac::{Hmac, KeyInit, Mac};
use inspan_engine::{Clock, SystemClock};
use inspan_protocol::Environment;
use reqwest::{
    Url,
    header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue},
};
use sha2::Sha256;

use super::{Post, SendError, Sender, variable};
use crate::{
    message::Message,
    settings::{Address, address},
};

/// How a key begins that is written as base64.
const ENCODED: &str = "whsec_";

pub(super) struct Webhook {
    url: Url,
    key: Hmac<Sha256>,
    post: Post,
}

impl Webhook {
    pub(super) fn new(
        url: &Address,
        secret: &str,
        environment: &Environment,
        post: Post,
    ) -> Result<Self, SendError> {
        let url = match url {
            Address::Plain(url) => url.clone(),
            Address::Variable(name, allows_http) => address(&variable(environment, name)?, *allows_http)
                .map_err(|why| SendError::new(format!("{name}: {why}")))?,
        };
        let bytes = match secret.strip_prefix(ENCODED) {
            Some(encoded) => STANDARD
                .decode(encoded)
                .map_err(|_| SendError::new("what follows `whsec_` in the key is not base64"))?,
            None => secret.as_bytes().to_vec(),
        };
        // Anybody could sign with it.
        if bytes.is_empty() {
            return Err(SendError::new("nothing follows `whsec_` in the key that signs"));
        }
        let key = Hmac::new_from_slice(&bytes).map_err(|_| SendError::new("the key cannot sign"))?;
        Ok(Self { url, key, post })
    }

    /// The signature of a body that is sent at this second.
    fn signature(&self, id: &str, second: i64, body: &[u8]) -> String {
        let mut mac = self.key.clone();
        mac.update(format!("{id}.{second}.").as_bytes());
        mac.update(body);
        format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes()))
    }
}

impl Sender for Webhook {
    fn send<'a>(&'a self, message: &'a Message) -> BoxFuture<'a, Result<(), SendError>> {
        async move {
            let body = serde_json::to_vec(message).map_err(|error| SendError::new(error.to_string()))?;
            // The receiver compares it with its own clock.
            let second = SystemClock.wall().as_millis().div_euclid(1000);
            let mut headers = HeaderMap::new();
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
            let signature = self.signature(&message.id, second, &body);
            let own = [
                ("webhook-id", message.id.clone()),
                ("webhook-timestamp", second.to_string()),
                ("webhook-signature", signature),
            ];
            for (name, value) in own {
                let value =
                    HeaderValue::from_str(&value).map_err(|error| SendError::new(error.to_string()))?;
                headers.insert(HeaderName::from_static(name), value);
            }
            self.post.deliver(&self.url, headers, body).await
        }
        .boxed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of the specification.
    #[test]
    fn the_signature_is_that_of_the_specification() {
        let url = Address::Plain("https://example.com".parse().unwrap());
        let environment = Environment::default();
        let post = Post::new(&environment);
        let secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
        let webhook = Webhook::new(&url, secret, &environment, post).unwrap();
        let signed =
            webhook.signature("msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, br#"{"test": 2432232314}"#);
        assert_eq!(signed, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }

    #[test]
    fn a_key_without_a_byte_is_refused() {
        let url = Address::Plain("https://example.com".parse().unwrap());
        let environment = Environment::default();
        let refused = Webhook::new(&url, "whsec_", &environment, Post::new(&environment)).err();
        assert_eq!(refused, Some(SendError::new("nothing follows `whsec_` in the key that signs")));
    }
}
