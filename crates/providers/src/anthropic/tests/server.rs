//! What the tests of the adapter share: a provider in a folder of its own, one turn against some server, and servers
//! of raw bytes. What is expected of a turn is left to the tests.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use futures::StreamExt;
use inspan_protocol::{
    AgentError, Environment, ErrorCode, ExecutionContext, Provider, ProviderItem, StreamEvent,
};
use serde_json::Value;
use tempfile::TempDir;

use super::super::{AnthropicInput, AnthropicProvider};
use crate::output::TurnOutput;

/// A key that may stand nowhere but in the head of a request.
pub(super) const PLANTED: &str = "sk-ant-planted-0123456789";

pub(super) type Turn = (Vec<StreamEvent>, Result<TurnOutput, AgentError>);

/// A provider whose conversations lie in a folder that goes away.
pub(super) struct World {
    pub(super) folder: TempDir,
    pub(super) provider: AnthropicProvider,
    pub(super) env: Environment,
}

impl World {
    /// One that asks the server at this address.
    pub(super) fn new(address: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let home = folder.path().display().to_string();
        let pairs =
            [("ANTHROPIC_API_KEY", PLANTED), ("ANTHROPIC_BASE_URL", address), ("INSPAN_HOME", home.as_str())];
        let env = pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).into_iter().collect();
        Self { folder, provider: AnthropicProvider::new(), env }
    }

    pub(super) fn context(&self) -> ExecutionContext {
        ExecutionContext { env: self.env.clone(), ..ExecutionContext::default() }
    }

    /// One turn to its end.
    pub(super) async fn turn(&self, input: Value) -> Turn {
        self.turn_in(input, self.context(), |_, _| {}).await
    }

    /// One turn to its end, with a look at each event as it comes.
    pub(super) async fn turn_in(
        &self,
        input: Value,
        context: ExecutionContext,
        mut look: impl FnMut(&StreamEvent, &ExecutionContext),
    ) -> Turn {
        let input: AnthropicInput = serde_json::from_value(input).unwrap();
        let mut stream = self.provider.execute(input, context.clone());
        let mut events = Vec::new();
        while let Some(item) = stream.next().await {
            match item {
                Ok(ProviderItem::Event(event)) => {
                    look(&event, &context);
                    events.push(event);
                }
                Ok(ProviderItem::Output(output)) => {
                    assert!(stream.next().await.is_none());
                    return (events, Ok(output));
                }
                Err(error) => {
                    assert!(stream.next().await.is_none());
                    return (events, Err(error));
                }
            }
        }
        panic!("the stream ended without its end");
    }

    /// All that lies in the folder, as one text.
    pub(super) fn kept(&self) -> String {
        let mut kept = String::new();
        for entry in std::fs::read_dir(self.folder.path().join("conversations")).into_iter().flatten() {
            kept.push_str(&std::fs::read_to_string(entry.unwrap().path()).unwrap());
        }
        kept
    }
}

/// The code of an error, the word in its detail, and the text that was streamed before it.
pub(super) fn told(turn: &Turn) -> (ErrorCode, String, String) {
    let error = turn.1.as_ref().unwrap_err();
    assert_eq!(error.provider.as_deref(), Some("anthropic"));
    let kind = error.detail.as_ref().and_then(|detail| detail["kind"].as_str()).unwrap_or_default();
    (error.code, kind.to_owned(), text(&turn.0))
}

/// The text of the events.
pub(super) fn text(events: &[StreamEvent]) -> String {
    let texts = events.iter().filter_map(|event| match event {
        StreamEvent::Text { content, .. } => Some(content.as_str()),
        _ => None,
    });
    texts.collect()
}

/// A server on loopback that reads the head and body of one request, and then does as it is told; its address.
pub(super) fn raw(serve: impl FnOnce(TcpStream) + Send + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        let Ok((mut stream, _)) = listener.accept() else { return };
        drop(listener);
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let mut seen = Vec::new();
        let mut buffer = [0; 4096];
        while !whole(&seen) {
            match stream.read(&mut buffer) {
                Ok(length @ 1..) => seen.extend_from_slice(&buffer[..length]),
                _ => return,
            }
        }
        serve(stream);
    });
    address
}

fn whole(seen: &[u8]) -> bool {
    let text = String::from_utf8_lossy(seen).to_lowercase();
    let Some((head, body)) = text.split_once("\r\n\r\n") else { return false };
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse::<usize>().ok());
    body.len() >= length.unwrap_or(0)
}

/// The head of a stream that ends when the connection does.
pub(super) const STREAM: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n\r\n";
/// The beginning of an answer that has said a little.
pub(super) const BEGUN: &str = concat!(
    "data: {\"type\":\"message_start\",\"message\":{\"model\":\"m\",\"usage\":{\"input_tokens\":3}}}\n\n",
    "data: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"text\",\"text\":\"\"}}\n\n",
    "data: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"so far\"}}\n\n",
);

/// Writes, as far as the client still listens.
pub(super) fn say(stream: &mut TcpStream, text: &str) {
    let _ = stream.write_all(text.as_bytes());
    let _ = stream.flush();
}

/// Holds the connection open until the client closes it.
pub(super) fn hold(mut stream: TcpStream) {
    let mut buffer = [0; 64];
    while matches!(stream.read(&mut buffer), Ok(1..)) {}
}
