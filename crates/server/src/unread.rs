//! A connection whose other end must read: a write that cannot go on for too long is an error, which closes the connection. So
//! every answer is bounded, whatever writes it.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::Sleep,
};

/// A connection on which nothing waits longer than this to be read by the other end.
pub(crate) struct ReadInTime<S> {
    connection: S,
    patience: Duration,
    /// Runs while a write cannot go on.
    limit: Option<Pin<Box<Sleep>>>,
}

impl<S> ReadInTime<S> {
    pub(crate) fn new(connection: S, patience: Duration) -> Self {
        Self { connection, patience, limit: None }
    }

    fn in_time<T>(&mut self, context: &mut Context<'_>, done: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if done.is_ready() {
            self.limit = None;
            return done;
        }
        let patience = self.patience;
        let limit = self.limit.get_or_insert_with(|| Box::pin(tokio::time::sleep(patience)));
        ready!(limit.as_mut().poll(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for ReadInTime<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.connection).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for ReadInTime<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let done = Pin::new(&mut self.connection).poll_write(context, bytes);
        self.in_time(context, done)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let done = Pin::new(&mut self.connection).poll_write_vectored(context, parts);
        self.in_time(context, done)
    }

    fn is_write_vectored(&self) -> bool {
        self.connection.is_write_vectored()
    }

    /// A socket has nothing to flush: what waits, waits in a write.
    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.connection).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.connection).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60);

    #[tokio::test(start_paused = true)]
    async fn who_reads_now_and_then_stays_and_who_reads_nothing_does_not() {
        let (connection, mut reader) = duplex(8);
        let mut connection = ReadInTime::new(connection, PATIENCE);
        let reads = async {
            for _ in 0..5 {
                tokio::time::sleep(PATIENCE - Duration::from_secs(1)).await;
                reader.read_exact(&mut [0; 8]).await.unwrap();
            }
        };
        let (written, ()) = tokio::join!(connection.write_all(&[1; 48]), reads);
        written.unwrap();
        // What is there to be read is no reason as long as nothing more is to be sent.
        tokio::time::sleep(2 * PATIENCE).await;
        let began = tokio::time::Instant::now();
        let refused = connection.write_all(&[1]).await.unwrap_err();
        assert_eq!(
            (refused.kind(), began.elapsed().as_secs()),
            (io::ErrorKind::TimedOut, PATIENCE.as_secs())
        );
    }
}
