//! Listening: a bounded number of connections, each with a time to send its head and a time to read on, and an end that lets answers
//! finish.
//! When there is no room for one more, the oldest of those that have not shown the token is closed.

use std::{
    collections::BTreeMap,
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use axum::{Extension, Router};
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use tokio::{
    net::TcpListener,
    sync::{OwnedSemaphorePermit, Semaphore},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{App, ServerOptions, limits, unread::ReadInTime};

/// Serves until `end` is cancelled. Event streams and sockets end then at once, other answers within a few seconds.
/// Sessions are not affected: their processes keep running.
pub async fn serve(listener: TcpListener, options: ServerOptions, end: CancellationToken) -> io::Result<()> {
    let app = App::new(options, end.clone());
    let routes = app.router();
    accept(listener, app, routes, Bounds::default(), end).await
}

/// What bounds the connections.
#[derive(Clone, Copy)]
pub(crate) struct Bounds {
    /// How many there are at most.
    most: usize,
    /// How long one stays whose client reads nothing of what waits for it.
    unread: Duration,
}

impl Default for Bounds {
    fn default() -> Self {
        Self { most: limits::CONNECTIONS, unread: limits::UNREAD }
    }
}

/// Connections that have not shown the token, by the order in which they came.
#[derive(Default)]
struct Newcomers(Mutex<BTreeMap<u64, CancellationToken>>);

/// A connection that has not shown the token yet. Each of its requests has it as an extension.
#[derive(Clone)]
pub(crate) struct Newcomer(Arc<NewcomerPlace>);

struct NewcomerPlace {
    all: Arc<Newcomers>,
    number: u64,
}

impl Newcomers {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, CancellationToken>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One more, with what is cancelled when it must make room.
    fn add(self: &Arc<Self>, number: u64) -> (Newcomer, CancellationToken) {
        let dropped = CancellationToken::new();
        self.lock().insert(number, dropped.clone());
        (Newcomer(Arc::new(NewcomerPlace { all: Arc::clone(self), number })), dropped)
    }

    /// Room for one more connection. `None` if the server ends before there is any.
    async fn room(&self, permits: &Arc<Semaphore>, end: &CancellationToken) -> Option<OwnedSemaphorePermit> {
        if let Ok(permit) = Arc::clone(permits).try_acquire_owned() {
            return Some(permit);
        }
        if let Some((_, oldest)) = self.lock().pop_first() {
            oldest.cancel();
        }
        tokio::select! {
            permit = Arc::clone(permits).acquire_owned() => permit.ok(),
            () = end.cancelled() => None,
        }
    }
}

impl Newcomer {
    /// It has shown the token: it stays until it ends by itself.
    pub(crate) fn admit(&self) {
        self.0.all.lock().remove(&self.0.number);
    }
}

impl Drop for NewcomerPlace {
    fn drop(&mut self) {
        self.all.lock().remove(&self.number);
    }
}

/// Accepts connections within these bounds, and answers them by these routes until `end` is cancelled.
pub(crate) async fn accept(
    listener: TcpListener,
    app: App,
    routes: Router,
    bounds: Bounds,
    end: CancellationToken,
) -> io::Result<()> {
    let permits = Arc::new(Semaphore::new(bounds.most));
    let connections = TaskTracker::new();
    let newcomers = Arc::new(Newcomers::default());
    for number in 0.. {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = end.cancelled() => break,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) if is_of_connection(&error) => continue,
            // No descriptor is left, most likely: one may be soon.
            Err(_) => {
                tokio::time::sleep(limits::PAUSE).await;
                continue;
            }
        };
        let Some(permit) = newcomers.room(&permits, &end).await else { break };
        let (newcomer, dropped) = newcomers.add(number);
        let (routes, end, metrics) = (routes.clone().layer(Extension(newcomer)), end.clone(), app.clone());
        connections.spawn(async move {
            let _permit = permit;
            let _counted = metrics.metrics.connected();
            let mut http = http1::Builder::new();
            http.timer(TokioTimer::new()).header_read_timeout(limits::HEAD);
            let stream = TokioIo::new(ReadInTime::new(stream, bounds.unread));
            let connection = http.serve_connection(stream, TowerToHyperService::new(routes)).with_upgrades();
            tokio::pin!(connection);
            // A client that disconnects in the middle is not an error.
            tokio::select! {
                _ = connection.as_mut() => {}
                () = dropped.cancelled() => {}
                () = end.cancelled() => {
                    connection.as_mut().graceful_shutdown();
                    tokio::select! {
                        _ = tokio::time::timeout(limits::FAREWELL, connection) => {}
                        () = dropped.cancelled() => {}
                    }
                }
            }
        });
    }
    connections.close();
    // Nobody waits for who has sent half a request and no token.
    newcomers.lock().values().for_each(CancellationToken::cancel);
    let _ = tokio::time::timeout(limits::FAREWELL, connections.wait()).await;
    Ok(())
}

/// Errors of a connection that was lost before it was accepted.
fn is_of_connection(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionRefused | io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset
    )
}

#[cfg(test)]
mod tests {
    use inspan_flow::{Batch, FlowSource, Owner, SessionRecord};
    use inspan_protocol::{Envelope, Event, EventContext, RunId, SessionId, Timestamp};
    use serde_json::json;
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpStream,
        time::timeout,
    };

    use super::*;
    use crate::testing::{HOST, TOKEN, TestServer};

    /// Shorter than the time that a connection has for its head.
    const PATIENCE: Duration = Duration::from_secs(10);

    /// A connection on which these bytes were sent.
    async fn sent(address: std::net::SocketAddr, bytes: &str) -> TcpStream {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(bytes.as_bytes()).await.unwrap();
        stream
    }

    /// The first line of an answer; empty if the connection was closed.
    async fn answer(stream: &mut TcpStream) -> String {
        let mut bytes = [0; 4096];
        let read = timeout(PATIENCE, stream.read(&mut bytes)).await.expect("an answer in time");
        let text = String::from_utf8_lossy(&bytes[..read.unwrap_or(0)]).into_owned();
        text.lines().next().unwrap_or_default().to_owned()
    }

    #[tokio::test]
    async fn who_has_no_token_cannot_keep_out_who_has_it() {
        let server = TestServer::new();
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let (address, end) = (listener.local_addr().unwrap(), CancellationToken::new());
        let bounds = Bounds { most: 4, ..Bounds::default() };
        let serving = accept(listener, server.app.clone(), server.app.router(), bounds, end.clone());
        let serving = tokio::spawn(serving);
        let health = format!("GET /healthz HTTP/1.1\r\nhost: {HOST}\r\n");
        let authorized = format!("{health}authorization: Bearer {TOKEN}\r\n\r\n");
        let mut first = Vec::new();
        for head in ["GET / HT", "", &health, &format!("{health}\r\n")] {
            first.push(sent(address, head).await);
        }
        assert_eq!(answer(&mut first[3]).await, "HTTP/1.1 200 OK", "it is let in without a token");
        let mut admitted = sent(address, &authorized).await;
        assert_eq!(answer(&mut admitted).await, "HTTP/1.1 200 OK");
        assert_eq!(answer(&mut first[0]).await, "", "the oldest made room");
        let mut second = Vec::new();
        for _ in 0..6 {
            second.push(sent(address, "GET").await);
        }
        // There is room for three beside the one that has the token.
        for stream in first[1..].iter_mut().chain(&mut second[..3]) {
            assert_eq!(answer(stream).await, "");
        }
        admitted.write_all(authorized.as_bytes()).await.unwrap();
        assert_eq!(answer(&mut admitted).await, "HTTP/1.1 200 OK", "it stays");
        second[5].write_all(format!(" /healthz HTTP/1.1\r\nhost: {HOST}\r\n\r\n").as_bytes()).await.unwrap();
        assert_eq!(answer(&mut second[5]).await, "HTTP/1.1 200 OK", "the newest stay");
        drop((first, second, admitted));
        end.cancel();
        serving.await.unwrap().unwrap();
    }

    /// A session whose log has so many events of a megabyte.
    async fn with_log(server: &TestServer, events: u64) -> SessionId {
        let (id, now) = (SessionId::from("long"), Timestamp::from_millis(0));
        let flow = FlowSource { name: "oxen".to_owned(), text: "name: oxen\n".into(), ..Default::default() };
        let record = SessionRecord::new(id.clone(), flow, serde_json::Map::new(), now);
        let lease = server.app.sessions.store().create(&record, &Owner::of_process(), now).await.unwrap();
        let log: Vec<_> = (1..=events)
            .map(|seq| {
                let content = "x".repeat(1 << 20);
                let event = Event::AgentText { content, delta: true, run_id: RunId::from("run") };
                Arc::new(Envelope::new(EventContext::session(id.clone()), seq, now, event))
            })
            .collect();
        let batch = Batch { events: &log, answers: &[] };
        server.app.sessions.store().append(&lease, batch).await.unwrap();
        id
    }

    #[tokio::test]
    async fn a_viewer_that_reads_nothing_is_disconnected() {
        /// More than the buffers of both ends of a socket take.
        const MEGABYTES: u64 = 24;
        let server = TestServer::new();
        let id = with_log(&server, MEGABYTES).await;
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let (address, end) = (listener.local_addr().unwrap(), CancellationToken::new());
        let bounds = Bounds { unread: Duration::from_millis(300), ..Bounds::default() };
        let serving = accept(listener, server.app.clone(), server.app.router(), bounds, end.clone());
        let serving = tokio::spawn(serving);
        let get = |path: &str, headers: &str| {
            format!("GET {path} HTTP/1.1\r\nhost: {HOST}\r\nauthorization: Bearer {TOKEN}\r\n{headers}\r\n")
        };
        let events = format!("/api/v1/sessions/{id}/events");
        let upgrade = "connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n\
                       sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
        let wish = json!({ "subscribe": id, "events": true, "from": 1 }).to_string();
        // A frame of a short text, whose mask changes nothing.
        let mut frame = vec![0x81, 0x80 | wish.len() as u8, 0, 0, 0, 0];
        frame.extend(wish.bytes());
        for (request, begins, wish) in [
            (get(&events, ""), "HTTP/1.1 200 OK", &[][..]),
            (get(&events, "accept: application/x-ndjson\r\n"), "HTTP/1.1 200 OK", &[]),
            (get("/ws", upgrade), "HTTP/1.1 101 Switching Protocols", &frame),
        ] {
            let mut viewer = sent(address, &request).await;
            assert_eq!(answer(&mut viewer).await, begins);
            viewer.write_all(wish).await.unwrap();
            assert_eq!(server.app.streams.available_permits(), limits::STREAMS - 1);
            let all = Arc::clone(&server.app.streams).acquire_many_owned(limits::STREAMS as u32);
            drop(timeout(PATIENCE, all).await.expect("its place is free again").unwrap());
            let (mut read, mut bytes) = (0, vec![0; 1 << 16]);
            while let Ok(more @ 1..) = timeout(PATIENCE, viewer.read(&mut bytes)).await.expect("its end") {
                read += more as u64;
            }
            assert!(read > 1 << 16 && read < MEGABYTES << 20, "{read} bytes of {request}");
        }
        end.cancel();
        serving.await.unwrap().unwrap();
    }
}
