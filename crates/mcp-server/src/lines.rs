//! The lines of a client that has started this program. The SDK ignores a line that it cannot parse. One that is JSON all the
//! same, such as one with half of a surrogate pair, is refused here: who has sent it waits for an answer.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures::future::BoxFuture;
use rmcp::model::{ErrorData, RequestId, ServerJsonRpcMessage};
use rmcp::service::{RoleServer, RxJsonRpcMessage, TxJsonRpcMessage};
use rmcp::transport::Transport;
use rmcp::transport::async_rw::AsyncRwTransport;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;
use tokio::io::{AsyncBufRead, AsyncRead, AsyncWrite, BufReader, ReadBuf};
use tokio::sync::mpsc::{Receiver, Sender, channel};

use crate::server::LONGEST_MESSAGE;

/// What the SDK reads: the lines but those that are refused.
struct ReadableLines<R> {
    input: BufReader<R>,
    /// What was read, up to the end of a line.
    line: Vec<u8>,
    /// How much of it the SDK has; none before the line is complete.
    given: Option<usize>,
    /// Whether the beginning of this line was given already, since it is too long: the SDK drops it.
    is_long: bool,
    refusals: Sender<ServerJsonRpcMessage>,
}

impl<R: AsyncRead + Unpin> AsyncRead for ReadableLines<R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        loop {
            if let Some(given) = this.given {
                let rest = &this.line[given..];
                let part = &rest[..rest.len().min(out.remaining())];
                out.put_slice(part);
                this.given = Some(given + part.len());
                if part.len() == rest.len() {
                    this.line.clear();
                    this.given = None;
                }
                return Poll::Ready(Ok(()));
            }
            let read = ready!(Pin::new(&mut this.input).poll_fill_buf(context))?;
            let end = read.iter().position(|byte| *byte == b'\n').map(|at| at + 1);
            let taken = end.unwrap_or(read.len());
            this.line.extend_from_slice(&read[..taken]);
            Pin::new(&mut this.input).consume(taken);
            let is_whole = end.is_some() && !this.is_long && this.line.len() <= LONGEST_MESSAGE;
            if let Some(refusal) = is_whole.then(|| refusal(&this.line)).flatten() {
                this.line.clear();
                // It is sent before more is read, so that there is a place for the next one.
                let _ = this.refusals.try_send(refusal);
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            // The end of the input is given as what is left, or as nothing.
            if end.is_some() || taken == 0 || this.line.len() > LONGEST_MESSAGE {
                this.is_long = end.is_none();
                this.given = Some(0);
            }
        }
    }
}

/// The refusal of a line that is JSON and cannot be read.
fn refusal(line: &[u8]) -> Option<ServerJsonRpcMessage> {
    #[derive(Deserialize)]
    struct RequestHead {
        id: RequestId,
        #[serde(rename = "method")]
        _method: IgnoredAny,
    }
    let why = serde_json::from_slice::<Value>(line).err()?;
    serde_json::from_slice::<IgnoredAny>(line).ok()?;
    // What has no method is no request: its id is one of ours.
    let id = serde_json::from_slice::<RequestHead>(line).ok().map(|head| head.id);
    let error = ErrorData::parse_error(format!("the message cannot be read: {why}"), None);
    Some(ServerJsonRpcMessage::error(error, id))
}

/// The SDK's transport over lines, which answers what it cannot read.
pub(crate) struct LineTransport<R: AsyncRead + Unpin, W: AsyncWrite> {
    inner: AsyncRwTransport<RoleServer, ReadableLines<R>, W>,
    refusals: Receiver<ServerJsonRpcMessage>,
    sending: Option<BoxFuture<'static, io::Result<()>>>,
}

impl<R, W> LineTransport<R, W>
where
    R: AsyncRead + Send + Unpin,
    W: AsyncWrite + Send + Unpin + 'static,
{
    pub(crate) fn new(input: R, output: W) -> Self {
        let (sender, refusals) = channel(1);
        let lines = ReadableLines {
            input: BufReader::new(input),
            line: Vec::new(),
            given: None,
            is_long: false,
            refusals: sender,
        };
        let inner = AsyncRwTransport::new(lines, output).with_max_line_length(LONGEST_MESSAGE);
        Self { inner, refusals, sending: None }
    }
}

impl<R, W> Transport<RoleServer> for LineTransport<R, W>
where
    R: AsyncRead + Send + Unpin,
    W: AsyncWrite + Send + Unpin + 'static,
{
    type Error = io::Error;

    fn send(
        &mut self,
        message: TxJsonRpcMessage<RoleServer>,
    ) -> impl Future<Output = io::Result<()>> + Send + 'static {
        self.inner.send(message)
    }

    /// May be dropped at any time: what it had begun goes on with the next call.
    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleServer>> {
        loop {
            if let Some(sending) = &mut self.sending {
                // If it fails the client is gone, which the input shows.
                let _ = sending.await;
                self.sending = None;
            }
            tokio::select! {
                biased;
                Some(refusal) = self.refusals.recv() => self.sending = Some(Box::pin(self.inner.send(refusal))),
                message = self.inner.receive() => return message,
            }
        }
    }

    async fn close(&mut self) -> io::Result<()> {
        self.inner.close().await
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tokio::io::{AsyncReadExt, duplex};

    use super::*;

    #[tokio::test]
    async fn what_is_json_and_cannot_be_read_is_refused_under_its_id() {
        let cut = r#""params":{"name":"greet","arguments":{"who":"cut \ud83d"}}}"#;
        let rows = [
            (r#"{"jsonrpc":"2.0","id":"a","method":"tools/call","#, json!("a")),
            (r#"{"jsonrpc":"2.0","id":77,"method":"tools/call","#, json!(77)),
            // What is no request has no id to answer under.
            (r#"{"jsonrpc":"2.0","id":78,"#, Value::Null),
            (r#"{"jsonrpc":"2.0","method":"notifications/progress","#, Value::Null),
        ];
        let mut input: String = rows.iter().map(|(begin, _)| format!("{begin}{cut}\n")).collect();
        // What is no JSON or too long is not answered, and what comes behind is read.
        let long = "x".repeat(LONGEST_MESSAGE);
        input += &format!("{{\n{{\"id\":9,\"method\":\"ping\",\"params\":{{\"x\":\"{long}\\ud83d\"}}}}\n");
        let pings = [5, 6].map(|id| format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"ping"}}"#));
        input += &format!("{}\n{}\n", pings[0], pings[1]);
        let (mut client, output) = duplex(1 << 16);
        let mut transport = LineTransport::new(input.as_bytes(), output);
        let mut read = Vec::new();
        while let Some(message) = transport.receive().await {
            read.push(serde_json::to_string(&message).unwrap());
        }
        transport.close().await.unwrap();
        let mut written = String::new();
        client.read_to_string(&mut written).await.unwrap();
        let refused: Vec<Value> = written.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let seen: Vec<_> = refused.iter().map(|one| (&one["id"], &one["error"]["code"])).collect();
        let code = json!(-32700);
        assert_eq!(seen, rows.iter().map(|(_, id)| (id, &code)).collect::<Vec<_>>());
        assert_eq!(read, pings);
    }
}
