//! JSON-RPC 2.0 over the lines of a process: requests in both directions, distinguished by their ids.
//!
//! Nothing runs in the background: the owner of a [`Peer`] reads by [`Peer::next`], and all of it can be cancelled at
//! any wait without losing a message.

use std::collections::VecDeque;
use std::time::Duration;

use inspan_process::{Process, Start, Stdin};
use inspan_protocol::{AgentError, ErrorCode, ErrorKind, Redactor};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::time::{Instant, timeout_at};

use inspan_transport::{Line, LineSplitter};

/// The code for a method that is not offered.
pub(crate) const METHOD_NOT_FOUND: i64 = -32601;

/// The code of an [`RpcError`] that stands for one that cannot be read: JSON-RPC's for what is not a message of it.
pub(crate) const UNREADABLE: i64 = -32700;

/// The text for a line whose bytes are lost.
pub(crate) const LOST: &str = "a line was too long and is lost";

/// Messages that may wait while an answer is awaited; more are a fault of the program.
const BACKLOG: usize = 100_000;

/// The id of a request that the program made: a number or a string, given back as it came.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct RemoteId(Value);

/// The id of a request that was made here.
pub(crate) type LocalId = u64;

/// What the program answered instead of a result.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub(crate) struct RpcError {
    #[serde(default)]
    pub(crate) code: i64,
    #[serde(default)]
    pub(crate) message: String,
    pub(crate) data: Option<Value>,
}

/// One message of the program.
#[derive(Debug)]
pub(crate) enum Incoming {
    /// It answers a request.
    Answer { id: LocalId, result: Result<Box<RawValue>, RpcError> },
    /// It asks, and waits for [`respond`] or [`refuse`].
    Request { id: RemoteId, method: String, params: Box<RawValue> },
    /// A notification.
    Notification { method: String, params: Box<RawValue> },
    /// A line that is not a message, and is skipped: a sentence about it, without its content.
    Invalid(&'static str),
}

/// Why an answer did not come.
#[derive(Debug)]
pub(crate) enum CallError {
    /// The program refused.
    Refused(RpcError),
    /// The program ended first.
    Ended,
    /// It did not answer in time.
    Late,
    /// The request could not be written, or the answer could not be read.
    Failed(AgentError),
}

impl CallError {
    /// The error for the caller, where `refused` knows the vendor's words; `None` if the program ended.
    pub(crate) fn into_error(
        self,
        method: &str,
        refused: impl FnOnce(&RpcError) -> AgentError,
    ) -> Option<AgentError> {
        match self {
            Self::Refused(error) => Some(refused(&error)),
            Self::Ended => None,
            Self::Late => {
                let message = format!("the program did not answer `{method}` in time");
                Some(AgentError::new(ErrorCode::Timeout, message).with_kind(ErrorKind::Start))
            }
            Self::Failed(error) => Some(error),
        }
    }
}

/// Cuts the program's output into messages. Pure.
#[derive(Debug, Default)]
pub(crate) struct Codec {
    splitter: LineSplitter,
}

impl Codec {
    /// Takes the bytes of one read and passes on each message that they complete.
    pub(crate) fn push(&mut self, bytes: &[u8], mut each: impl FnMut(Incoming)) {
        self.splitter.push(bytes, |line| read(&line, &mut each));
    }

    /// The output ended: passes on the rest without a line end.
    pub(crate) fn finish(&mut self, mut each: impl FnMut(Incoming)) {
        self.splitter.finish(|line| read(&line, &mut each));
    }
}

fn read(line: &Line<'_>, each: &mut impl FnMut(Incoming)) {
    let text: &str = match line {
        Line::Text(text) => text,
        Line::Repaired(text) => {
            each(Incoming::Invalid("a line held what is not valid Unicode; it was replaced"));
            text
        }
        Line::TooLong => return each(Incoming::Invalid(LOST)),
    };
    each(message(text));
}

/// A message on the wire. A missing `jsonrpc` is tolerated: some agents leave it out.
#[derive(Deserialize)]
struct Frame {
    // A request may have the id null, which is not the same as none; no known program sends it.
    id: Option<Value>,
    method: Option<String>,
    params: Option<Box<RawValue>>,
    result: Option<Box<RawValue>>,
    error: Option<Box<RawValue>>,
}

fn message(line: &str) -> Incoming {
    const NONE: Incoming = Incoming::Invalid("a line is not a message of the protocol");
    // A list of values would be taken for the fields in their order.
    if !line.trim_start().starts_with('{') {
        return NONE;
    }
    let Ok(frame) = serde_json::from_str::<Frame>(line) else { return NONE };
    let params = frame.params.unwrap_or_else(|| RawValue::NULL.to_owned());
    match (frame.method, frame.id) {
        (Some(method), Some(id)) => Incoming::Request { id: RemoteId(id), method, params },
        (Some(method), None) => Incoming::Notification { method, params },
        (None, Some(id)) => match id.as_u64() {
            Some(id) => {
                let result = match frame.error {
                    Some(error) => Err(serde_json::from_str(error.get()).unwrap_or_else(|_| unreadable())),
                    None => Ok(frame.result.unwrap_or_else(|| RawValue::NULL.to_owned())),
                };
                Incoming::Answer { id, result }
            }
            None => Incoming::Invalid("an answer names a request that was never made"),
        },
        (None, None) => NONE,
    }
}

/// An answer whose error cannot be read is still the answer: its caller would wait for another one for ever.
fn unreadable() -> RpcError {
    let message = "the program answered with an error that cannot be read".to_owned();
    RpcError { code: UNREADABLE, message, data: None }
}

/// A program that is talked to. Dropping it kills the program.
#[derive(Debug)]
pub(crate) struct Peer {
    process: Process,
    codec: Codec,
    waiting: VecDeque<Incoming>,
    /// Came before the answer that is awaited, and is read after it.
    aside: VecDeque<Incoming>,
    last_id: LocalId,
}

impl Peer {
    /// Starts a program. Must be called within a tokio runtime.
    pub(crate) async fn start(start: Start, redactor: Redactor) -> Result<Self, AgentError> {
        let process = Process::start(start, redactor).await?;
        Ok(Self {
            process,
            codec: Codec::default(),
            waiting: VecDeque::new(),
            aside: VecDeque::new(),
            last_id: 0,
        })
    }

    /// The process behind it, to observe its end or to end it.
    pub(crate) fn process(&self) -> &Process {
        &self.process
    }

    /// A handle to write with while this one reads.
    pub(crate) fn stdin(&self) -> Stdin {
        self.process.stdin()
    }

    /// Makes a request; the answer comes by [`Peer::next`].
    pub(crate) fn request(&mut self, method: &str, params: impl Serialize) -> Result<LocalId, AgentError> {
        self.last_id += 1;
        let id = self.last_id;
        write(&self.stdin(), &json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }))?;
        Ok(id)
    }

    /// Sends the program a notification.
    pub(crate) fn notify(&self, method: &str, params: impl Serialize) -> Result<(), AgentError> {
        write(&self.stdin(), &json!({ "jsonrpc": "2.0", "method": method, "params": params }))
    }

    /// The next message; `None` once the program has ended and all its output was read. Can be cancelled.
    pub(crate) async fn next(&mut self) -> Option<Incoming> {
        self.put_back();
        self.read().await
    }

    /// What was set aside comes first again.
    fn put_back(&mut self) {
        if !self.aside.is_empty() {
            self.aside.append(&mut self.waiting);
            std::mem::swap(&mut self.aside, &mut self.waiting);
        }
    }

    async fn read(&mut self) -> Option<Incoming> {
        loop {
            if let Some(message) = self.waiting.pop_front() {
                return Some(message);
            }
            let waiting = &mut self.waiting;
            match self.process.read().await {
                Some(bytes) => self.codec.push(&bytes, |message| waiting.push_back(message)),
                None => {
                    self.codec.finish(|message| waiting.push_back(message));
                    return self.waiting.pop_front();
                }
            }
        }
    }

    /// A message that is there already.
    pub(crate) fn try_next(&mut self) -> Option<Incoming> {
        self.put_back();
        let waiting = &mut self.waiting;
        while waiting.is_empty() {
            let bytes = self.process.try_read()?;
            self.codec.push(&bytes, |message| waiting.push_back(message));
        }
        self.waiting.pop_front()
    }

    /// Makes a request and waits for its answer. Other messages meanwhile are passed to `each`, which may keep a
    /// message for [`Peer::next`] by handing it back.
    pub(crate) async fn call<T: DeserializeOwned>(
        &mut self,
        method: &str,
        params: impl Serialize,
        limit: Duration,
        mut each: impl FnMut(&Stdin, Incoming) -> Option<Incoming>,
    ) -> Result<T, CallError> {
        self.put_back();
        let until = Instant::now() + limit;
        let asked = self.request(method, params).map_err(CallError::Failed)?;
        let stdin = self.stdin();
        let answer = loop {
            match timeout_at(until, self.read()).await {
                Err(_) => break Err(CallError::Late),
                Ok(None) => break Err(CallError::Ended),
                Ok(Some(Incoming::Answer { id, result })) if id == asked => {
                    break result.map_err(CallError::Refused);
                }
                Ok(Some(message)) => {
                    self.aside.extend(each(&stdin, message));
                    if self.aside.len() > BACKLOG {
                        let message = format!("the program talks on and does not answer `{method}`");
                        break Err(CallError::Failed(AgentError::new(ErrorCode::Protocol, message)));
                    }
                }
            }
        };
        fitting(method, answer?.get()).map_err(CallError::Failed)
    }
}

/// Reads an answer. The words of the parser may quote it, and with it a secret, so only the place is reported.
fn fitting<T: DeserializeOwned>(method: &str, answer: &str) -> Result<T, AgentError> {
    serde_json::from_str(answer).map_err(|error| {
        let (length, column) = (answer.len(), error.column());
        let message = format!("the answer to `{method}` does not fit: at column {column} of {length} bytes");
        AgentError::new(ErrorCode::Protocol, message)
    })
}

/// Answers a request of the program.
pub(crate) fn respond(stdin: &Stdin, id: &RemoteId, result: impl Serialize) -> Result<(), AgentError> {
    write(stdin, &json!({ "jsonrpc": "2.0", "id": id, "result": result }))
}

/// Refuses a request of the program.
pub(crate) fn refuse(stdin: &Stdin, id: &RemoteId, code: i64, message: &str) -> Result<(), AgentError> {
    write(stdin, &json!({ "jsonrpc": "2.0", "id": id, "error": { "code": code, "message": message } }))
}

/// Writes one line.
pub(crate) fn write(stdin: &Stdin, message: &Value) -> Result<(), AgentError> {
    let mut bytes = message.to_string().into_bytes();
    bytes.push(b'\n');
    stdin.send(bytes)
}

#[cfg(test)]
mod tests;
