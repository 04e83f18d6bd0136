//! What a server sends, as messages for `rmcp`, which drops what it cannot read: a call would wait for an answer that came.
//! The answer to a call that cannot be read is replaced by an error that says why.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use futures::StreamExt;
use reqwest::Client;
use reqwest::header::{HeaderName, HeaderValue};
use rmcp::model::{
    ClientJsonRpcMessage, ErrorCode, ErrorData, JsonRpcMessage, RequestId, ServerJsonRpcMessage,
};
use rmcp::transport::common::client_side_sse::BoxedSseResponse;
use rmcp::transport::streamable_http_client::{
    StreamableHttpClient, StreamableHttpError, StreamableHttpPostResponse,
};
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};

use crate::lines::whole_pairs;

/// The code of an error that stands for an answer that cannot be read. No server has it: the protocol gives codes of its own.
pub(super) const UNREADABLE: ErrorCode = ErrorCode(i32::MIN);

/// What stands for an answer that cannot be read: an error for the call that it names. Where nothing but the answer to `asked` can
/// come, that is the call also of what is no whole JSON object. Nothing stands for other texts.
pub(super) fn unreadable(
    text: &str,
    error: &serde_json::Error,
    asked: Option<&RequestId>,
) -> Option<ServerJsonRpcMessage> {
    let mut head = AnswerHead::default();
    // What was read before the fault counts.
    let _ = (&mut head).deserialize(&mut serde_json::Deserializer::from_str(text));
    let asked = asked.filter(|_| text.trim_start().starts_with('{') && !error.is_data());
    if head.is_request || !head.is_message && asked.is_none() {
        return None;
    }
    let id = head.id.as_ref().or(asked)?.clone();
    // The parser's other words may quote the answer.
    let why = if error.is_data() { "it has not the form of one".to_owned() } else { error.to_string() };
    Some(JsonRpcMessage::error(ErrorData::new(UNREADABLE, why, None), Some(id)))
}

/// What distinguishes an answer from other lines of JSON, however deep the answer is and whatever numbers it has.
#[derive(Default)]
struct AnswerHead {
    id: Option<RequestId>,
    is_message: bool,
    is_request: bool,
}

impl<'de> DeserializeSeed<'de> for &mut AnswerHead {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for &mut AnswerHead {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a message")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<Cow<'_, str>>()? {
            self.is_message |= key == "jsonrpc";
            self.is_request |= key == "method";
            if key == "id" {
                self.id = map.next_value()?;
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(())
    }
}

/// The client of a server over HTTP, for streams whose answers can all be read.
#[derive(Clone)]
pub(super) struct Remote(pub(super) Client);

type Failure = StreamableHttpError<reqwest::Error>;
type Headers = HashMap<HeaderName, HeaderValue>;

fn readable(stream: BoxedSseResponse, asked: Option<RequestId>) -> BoxedSseResponse {
    let read = move |data: String| {
        let data = whole_pairs(&data);
        let error = serde_json::from_str::<ServerJsonRpcMessage>(&data).err();
        let instead = error.and_then(|error| unreadable(&data, &error, asked.as_ref()));
        instead.and_then(|instead| serde_json::to_string(&instead).ok()).unwrap_or(data.into_owned())
    };
    stream
        .map(move |event| {
            event.map(|mut event| {
                event.data = event.data.map(&read);
                event
            })
        })
        .boxed()
}

impl StreamableHttpClient for Remote {
    type Error = reqwest::Error;

    async fn post_message(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session: Option<Arc<str>>,
        auth: Option<String>,
        headers: Headers,
    ) -> Result<StreamableHttpPostResponse, Failure> {
        let asked = match &message {
            JsonRpcMessage::Request(request) => Some(request.id.clone()),
            _ => None,
        };
        // Its own bound on an event is the default one of the transport.
        Ok(match self.0.post_message(uri, message, session, auth, headers).await? {
            StreamableHttpPostResponse::Sse(stream, session) => {
                StreamableHttpPostResponse::Sse(readable(stream, asked), session)
            }
            other => other,
        })
    }

    async fn delete_session(
        &self,
        uri: Arc<str>,
        session: Arc<str>,
        auth: Option<String>,
        headers: Headers,
    ) -> Result<(), Failure> {
        self.0.delete_session(uri, session, auth, headers).await
    }

    async fn get_stream(
        &self,
        uri: Arc<str>,
        session: Option<Arc<str>>,
        last: Option<String>,
        auth: Option<String>,
        headers: Headers,
    ) -> Result<BoxedSseResponse, Failure> {
        Ok(readable(self.0.get_stream(uri, session, last, auth, headers).await?, None))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_answer_has_something_in_its_place() {
        let deep = format!(r#"{{"result":{}{},"jsonrpc":"2.0","id":7}}"#, "[".repeat(300), "]".repeat(300));
        let number = "number out of range";
        let form = Some((7, "it has not the form of one"));
        let rows = [
            (deep.as_str(), Some((7, "recursion limit exceeded")), None),
            (r#"{"jsonrpc":"2.0","id":7,"result":[1e999]}"#, Some((7, number)), None),
            (r#"{"jsonrpc":"2.0","id":7}"#, form, None),
            (r#"{"jsonrpc":"2.0","id":7,"error":"planted"}"#, form, None),
            // Without an id it is for the only call that it can be for.
            (r#"{"result":1e999,"jsonrpc":"2.0"}"#, None, Some((9, number))),
            (r#"{"jsonrpc":"2.0","id":null,"result":{}"#, None, Some((9, "EOF while parsing an object"))),
            // Not answers.
            (r#"{"jsonrpc":"2.0","id":7,"method":"a","params":1e999}"#, None, None),
            (r#"{"level":"info","id":7,"result":3}"#, None, None),
            ("moo", None, None),
            ("", None, None),
        ];
        for (text, expected, expected_asked) in rows {
            let error = serde_json::from_str::<ServerJsonRpcMessage>(text).unwrap_err();
            let instead = |asked: Option<i64>| {
                let asked = asked.map(RequestId::Number);
                match unreadable(text, &error, asked.as_ref())? {
                    JsonRpcMessage::Error(instead) => {
                        assert_eq!(instead.error.code, UNREADABLE);
                        let why = instead.error.message.split(" at line ").next()?.to_owned();
                        Some((instead.id?, why))
                    }
                    other => panic!("{other:?}"),
                }
            };
            let row = |row: Option<(i64, &str)>| row.map(|(id, why)| (RequestId::Number(id), why.to_owned()));
            assert_eq!(instead(None), row(expected), "{text}");
            assert_eq!(instead(Some(9)), row(expected.or(expected_asked)), "{text}");
        }
    }
}
