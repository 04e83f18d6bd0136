//! JSON-RPC 2.0 over lines: bounded lines in, one writer for all that goes out, and the answers to our own requests.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures::StreamExt;
use parking_lot::Mutex;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::sync::{mpsc, oneshot};
use tokio_util::bytes::BytesMut;
use tokio_util::codec::{Decoder, FramedRead, LinesCodec, LinesCodecError};

/// The longest line that is read, in bytes. A longer one is refused, and the next one is read.
pub(crate) const LONGEST_LINE: usize = 4 * 1024 * 1024;
/// Lines that may wait to be written; a client that does not read delays us and does not fill our memory.
const LINES_OUT: usize = 256;
/// How many of our requests may wait for the client's answer.
const OPEN_LIMIT: usize = 64;

/// A line is not JSON.
pub(crate) const PARSE_ERROR: i64 = -32700;
/// A message is no request, notification or answer, or comes at a wrong time.
pub(crate) const INVALID_REQUEST: i64 = -32600;
/// There is no such method.
pub(crate) const METHOD_NOT_FOUND: i64 = -32601;
/// The parameters do not fit the method.
pub(crate) const INVALID_PARAMS: i64 = -32602;
/// A request could not be executed.
pub(crate) const INTERNAL_ERROR: i64 = -32603;
/// The protocol's code for a session or another thing that does not exist.
pub(crate) const NOT_FOUND: i64 = -32002;

/// Why a request was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RpcError {
    pub(crate) code: i64,
    pub(crate) message: String,
}

impl RpcError {
    pub(crate) fn new(code: i64, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    pub(crate) fn params(message: impl Into<String>) -> Self {
        Self::new(INVALID_PARAMS, message)
    }
}

/// A message of the client.
#[derive(Debug, PartialEq)]
pub(crate) enum Incoming {
    /// It wants an answer.
    Request { id: Value, method: String, params: Value },
    /// It wants none.
    Notification { method: String, params: Value },
}

/// Our requests that wait for the client's answer, by their ids.
type OpenRequests = HashMap<u64, oneshot::Sender<Result<Value, RpcError>>>;

/// The client, as far as we send to it. Clones share one connection.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    lines: mpsc::Sender<String>,
    open: Arc<Mutex<OpenRequests>>,
    next: Arc<AtomicU64>,
}

impl Client {
    /// The client, and the lines that [`write_lines`] writes to it.
    pub(crate) fn new() -> (Self, mpsc::Receiver<String>) {
        let (lines, receiver) = mpsc::channel(LINES_OUT);
        (Self { lines, open: Arc::default(), next: Arc::default() }, receiver)
    }

    /// Sends a notification.
    pub(crate) async fn notify(&self, method: &str, params: Value) {
        self.send(&json!({ "jsonrpc": "2.0", "method": method, "params": params })).await;
    }

    /// Answers a request.
    pub(crate) async fn answer(&self, id: &Value, result: Result<Value, RpcError>) {
        let message = match result {
            Ok(result) => json!({ "jsonrpc": "2.0", "id": id, "result": result }),
            Err(RpcError { code, message }) => {
                json!({ "jsonrpc": "2.0", "id": id, "error": { "code": code, "message": message } })
            }
        };
        self.send(&message).await;
    }

    /// Makes a request and waits for its answer. If the caller stops waiting, the client is asked to drop the request.
    pub(crate) async fn call(&self, method: &str, params: Value) -> Result<Value, RpcError> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let (sender, answer) = oneshot::channel();
        {
            let mut open = self.open.lock();
            if open.len() >= OPEN_LIMIT {
                return Err(RpcError::new(INTERNAL_ERROR, "too many questions wait for an answer"));
            }
            open.insert(id, sender);
        }
        let mut withdrawn = Withdraw { client: self, id, is_open: true };
        self.send(&json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params })).await;
        let answer = answer.await;
        withdrawn.is_open = false;
        answer.unwrap_or_else(|_| Err(RpcError::new(INTERNAL_ERROR, "the client is gone")))
    }

    async fn send(&self, message: &Value) {
        // It fails only once the client reads no more; then no receiver is left.
        let _ = self.lines.send(message.to_string()).await;
    }

    fn answered(&self, id: &Value, result: Result<Value, RpcError>) {
        let waiting = id.as_u64().and_then(|id| self.open.lock().remove(&id));
        if let Some(waiting) = waiting {
            // The receiver may be gone.
            let _ = waiting.send(result);
        }
    }
}

/// Withdraws a request whose answer is no longer needed.
struct Withdraw<'a> {
    client: &'a Client,
    id: u64,
    is_open: bool,
}

impl Drop for Withdraw<'_> {
    fn drop(&mut self) {
        self.client.open.lock().remove(&self.id);
        if self.is_open {
            let params = json!({ "requestId": self.id });
            let message = json!({ "jsonrpc": "2.0", "method": "$/cancel_request", "params": params });
            // If the queue is full the client shows the question until it is answered, and the answer is ignored.
            let _ = self.client.lines.try_send(message.to_string());
        }
    }
}

/// Writes lines until there are no more or the client reads no more.
pub(crate) async fn write_lines(mut lines: mpsc::Receiver<String>, mut output: impl AsyncWrite + Unpin) {
    while let Some(mut line) = lines.recv().await {
        line.push('\n');
        let written = match output.write_all(line.as_bytes()).await {
            Ok(()) => output.flush().await,
            failed => failed,
        };
        if written.is_err() {
            break;
        }
    }
}

/// Lines, or why one cannot be read. An error of a decoder would also keep the lines behind it in the buffer until more comes.
struct CheckedLines(LinesCodec);

impl Decoder for CheckedLines {
    type Item = Result<String, LinesCodecError>;
    type Error = std::io::Error;

    fn decode(&mut self, buffer: &mut BytesMut) -> Result<Option<Self::Item>, Self::Error> {
        Ok(self.0.decode(buffer).transpose())
    }

    fn decode_eof(&mut self, buffer: &mut BytesMut) -> Result<Option<Self::Item>, Self::Error> {
        Ok(self.0.decode_eof(buffer).transpose())
    }
}

/// The id of a request that cannot be read, if that can be: half of a surrogate pair in a text is no reason that its sender
/// gets no answer.
fn id_of(line: &str) -> Value {
    #[derive(Deserialize)]
    struct RequestHead {
        id: Value,
        #[serde(rename = "method")]
        _method: IgnoredAny,
    }
    serde_json::from_str::<RequestHead>(line).map_or(Value::Null, |head| head.id)
}

/// The client's messages. Answers to our requests are delivered here; what is not a message is refused here.
pub(crate) struct Messages<R> {
    lines: FramedRead<R, CheckedLines>,
    client: Client,
}

impl<R: AsyncRead + Unpin> Messages<R> {
    pub(crate) fn new(input: R, client: Client) -> Self {
        Self {
            lines: FramedRead::new(input, CheckedLines(LinesCodec::new_with_max_length(LONGEST_LINE))),
            client,
        }
    }

    /// The next message that needs something to be done; none once the client is gone.
    pub(crate) async fn next(&mut self) -> Option<Incoming> {
        loop {
            // If reading fails, the client is gone.
            let line = match self.lines.next().await?.ok()? {
                Ok(line) => line,
                Err(error) => {
                    self.refuse(match error {
                        LinesCodecError::MaxLineLengthExceeded => {
                            format!("a line has more than {LONGEST_LINE} bytes")
                        }
                        LinesCodecError::Io(error) => format!("a line cannot be read: {error}"),
                    })
                    .await;
                    continue;
                }
            };
            if line.trim().is_empty() {
                continue;
            }
            match serde_json::from_str(&line) {
                Ok(message) => match self.sorted(message) {
                    Ok(None) => {}
                    Ok(Some(incoming)) => return Some(incoming),
                    Err((id, error)) => self.client.answer(&id, Err(error)).await,
                },
                Err(error) => {
                    let why = RpcError::new(PARSE_ERROR, format!("a line is not JSON: {error}"));
                    self.client.answer(&id_of(&line), Err(why)).await;
                }
            }
        }
    }

    async fn refuse(&self, why: String) {
        self.client.answer(&Value::Null, Err(RpcError::new(PARSE_ERROR, why))).await;
    }

    /// What a message is: for us to act on, an answer that was delivered, or none of the protocol's.
    fn sorted(&self, mut message: Value) -> Result<Option<Incoming>, (Value, RpcError)> {
        let invalid = |id: Value, why: &str| Err((id, RpcError::new(INVALID_REQUEST, why)));
        let Some(fields) = message.as_object_mut() else {
            return invalid(Value::Null, "a message must be one JSON object; batches are not taken");
        };
        let id = fields.remove("id");
        let params = fields.remove("params").unwrap_or(Value::Null);
        match (fields.remove("method"), id) {
            (Some(Value::String(method)), None) => Ok(Some(Incoming::Notification { method, params })),
            (Some(Value::String(method)), Some(id @ (Value::String(_) | Value::Number(_) | Value::Null))) => {
                Ok(Some(Incoming::Request { id, method, params }))
            }
            (None, Some(id)) => {
                let result = match (fields.remove("result"), fields.remove("error")) {
                    (Some(result), None) => Ok(result),
                    (_, Some(error)) => {
                        let message = error["message"].as_str().unwrap_or("the client refused it");
                        Err(RpcError::new(error["code"].as_i64().unwrap_or(INTERNAL_ERROR), message))
                    }
                    (None, None) => {
                        return invalid(id, "a message needs a `method`, a `result` or an `error`");
                    }
                };
                self.client.answered(&id, result);
                Ok(None)
            }
            (Some(_), _) => invalid(Value::Null, "a `method` is a text, and an `id` a text or a number"),
            (None, None) => invalid(Value::Null, "a message needs a `method`, or the `id` of a request"),
        }
    }
}

#[cfg(test)]
mod tests;
