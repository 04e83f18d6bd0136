//! A client that reads HTTP/1.1 byte by byte, so that a test sees what was on the wire and how it ended.
//! It only understands what the server sends.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::{Value, json};

use crate::ModelServer;

/// A test that waits longer than this has failed.
pub(super) const PATIENCE: Duration = Duration::from_secs(20);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ExchangeEnd {
    /// The body came to its regular end.
    Whole,
    /// The connection closed before.
    Cut,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct ClientResponse {
    pub(super) status: u16,
    pub(super) headers: BTreeMap<String, String>,
    pub(super) body: String,
    pub(super) end: ExchangeEnd,
}

/// One request under way.
pub(super) struct PendingExchange {
    stream: TcpStream,
    raw: Vec<u8>,
}

/// A main request with one user message.
pub(super) fn ask(message: &str) -> Value {
    json!({
        "model": "claude-test", "max_tokens": 64, "stream": true,
        "tools": [{"name": "Bash"}, {"name": "StructuredOutput"}],
        "messages": [{"role": "user", "content": message}]
    })
}

/// The same in the OpenAI Responses format.
pub(super) fn ask_responses(message: &str) -> Value {
    json!({
        "model": "gpt-test", "stream": true, "store": false,
        "tools": [
            {"type": "function", "name": "exec_command", "parameters": {}},
            {"type": "custom", "name": "apply_patch"}
        ],
        "input": [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": message}]}]
    })
}

/// The same in the OpenAI Chat Completions format.
pub(super) fn ask_chat(message: &str) -> Value {
    json!({
        "model": "gpt-test", "stream": true, "stream_options": {"include_usage": true},
        "tools": [{"type": "function", "function": {"name": "bash", "parameters": {}}}],
        "messages": [{"role": "user", "content": message}]
    })
}

/// The same for the Gemini API, whose path holds the rest.
pub(super) fn ask_gemini(message: &str) -> Value {
    json!({
        "tools": [{"functionDeclarations": [{"name": "run_shell_command", "parameters": {}}]}],
        "contents": [{"role": "user", "parts": [{"text": message}]}]
    })
}

pub(super) fn post(server: &ModelServer, body: &Value) -> ClientResponse {
    PendingExchange::post(server, body).finish().expect("an answer")
}

pub(super) fn request(server: &ModelServer, method: &str, path: &str, body: &str) -> ClientResponse {
    PendingExchange::start(server, method, path, "", body).finish().expect("an answer")
}

impl PendingExchange {
    pub(super) fn post(server: &ModelServer, body: &Value) -> Self {
        Self::start(server, "POST", "/v1/messages?beta=true", "", &body.to_string())
    }

    pub(super) fn start(server: &ModelServer, method: &str, path: &str, headers: &str, body: &str) -> Self {
        let mut stream = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let length = body.len();
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\n{headers}\r\n{body}"
        )
        .unwrap();
        Self { stream, raw: Vec::new() }
    }

    /// Reads until the body holds `part`.
    pub(super) fn read_until(&mut self, part: &str) {
        while !parse(&self.raw).is_some_and(|answer| answer.body.contains(part)) {
            assert!(self.read_more(), "the connection closed before {part:?} came");
        }
    }

    /// Reads to the end of the body or of the connection; nothing if not even a head came.
    pub(super) fn finish(mut self) -> Option<ClientResponse> {
        let head_only =
            |answer: &ClientResponse| answer.headers.get("content-length").is_some_and(|l| l == "0");
        loop {
            match parse(&self.raw) {
                Some(answer) if answer.end == ExchangeEnd::Whole || head_only(&answer) => {
                    return Some(ClientResponse { end: ExchangeEnd::Whole, ..answer });
                }
                _ => {}
            }
            if !self.read_more() {
                return parse(&self.raw);
            }
        }
    }

    fn read_more(&mut self) -> bool {
        let mut buffer = [0; 4096];
        match self.stream.read(&mut buffer) {
            Ok(0) => false,
            Ok(count) => {
                self.raw.extend_from_slice(&buffer[..count]);
                true
            }
            Err(error) if error.kind() == ErrorKind::ConnectionReset => false,
            Err(error) => panic!("nothing came within {PATIENCE:?}: {error}"),
        }
    }
}

/// What has come so far, once the head is complete.
fn parse(raw: &[u8]) -> Option<ClientResponse> {
    let text = std::str::from_utf8(raw).ok()?;
    let (head, rest) = text.split_once("\r\n\r\n")?;
    let mut lines = head.lines();
    let status = lines.next()?.split(' ').nth(1)?.parse().ok()?;
    let headers: BTreeMap<String, String> = lines
        .filter_map(|line| line.split_once(": "))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
    let (body, end) = match headers.get("content-length") {
        Some(length) if length.parse() == Ok(rest.len()) => (rest.to_owned(), ExchangeEnd::Whole),
        Some(_) => (rest.to_owned(), ExchangeEnd::Cut),
        None => chunks(rest),
    };
    Some(ClientResponse { status, headers, body, end })
}

fn chunks(mut rest: &str) -> (String, ExchangeEnd) {
    let mut body = String::new();
    while let Some((length, data)) = rest.split_once("\r\n") {
        let length = usize::from_str_radix(length, 16).expect("a chunk's length");
        if length == 0 {
            return (body, ExchangeEnd::Whole);
        }
        let Some(chunk) = data.get(..length) else { break };
        body.push_str(chunk);
        rest = data.get(length + 2..).unwrap_or_default();
    }
    (body, ExchangeEnd::Cut)
}
