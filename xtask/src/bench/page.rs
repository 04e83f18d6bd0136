//! What the server needs for its pages: opening a long session, moving in it, and how long an event takes from the
//! process that runs its session to a hundred viewers, one of which reads nothing.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use futures::future::try_join_all;
use futures::{SinkExt as _, StreamExt as _};
use inspan_engine::{ProviderRegistry, SystemClock};
use inspan_flow::{
    DescribeNode, FlowRunner, NodeContext, NodeRegistry, NodeType, NodeTypeInfo, RunStore, builtin_nodes,
};
use inspan_protocol::{AgentError, Envelope, Event, OutputStream, SessionId};
use inspan_server::{ServerOptions, Token, serve};
use inspan_sessions::Sessions;
use inspan_testkit::Stopwatch;
use serde_json::{Map, Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
use tokio_tungstenite::tungstenite::http::header::AUTHORIZATION;
use tokio_tungstenite::{WebSocketStream, client_async, tungstenite::Message};
use tokio_util::sync::CancellationToken;

use super::measure::{Goal, Measurement, middle};
use super::stored::{chain, compiled, node_type, open, write_session};

const NODES: usize = 10_000;
const EVENTS: usize = 100_000;
/// Moments that are asked for one after another.
const MOVES: usize = 100;
/// Viewers, of which the last reads nothing.
const VIEWERS: usize = 100;
/// Events that they are sent, and the time between two.
const SPOKEN: usize = 400;
const PAUSE: Duration = Duration::from_millis(20);
/// The time in which all viewers have come.
const ASSEMBLY: Duration = Duration::from_secs(3);
/// The longest that anything may take.
const LIMIT: Duration = Duration::from_secs(120);

/// All rows.
pub(crate) fn rows() -> anyhow::Result<Vec<Measurement>> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let rows = async { tokio::time::timeout(LIMIT, measure()).await.context("the server was too slow")? };
    runtime.block_on(rows)
}

async fn measure() -> anyhow::Result<Vec<Measurement>> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("sessions.db");
    let spoken = Arc::new(Spoken::default());
    let mut nodes = builtin_nodes(&ProviderRegistry::new());
    nodes.register(PrintNode(Arc::clone(&spoken)));
    let graph = compiled(&chain("echo", NODES), &nodes)?;
    write_session(&path, graph, &nodes, &SessionId::from("long"), lengthen).await?;
    let (server, end) = PageServer::start(&path, nodes.clone()).await?;
    let mut rows = server.long_session().await?;
    rows.extend(server.viewers(&path, &nodes, &spoken).await?);
    end.cancel();
    Ok(rows)
}

/// The events of a chain, in which every node printed something.
fn lengthen(events: &[Arc<Envelope>]) -> Vec<Envelope> {
    let missing = EVENTS.saturating_sub(events.len());
    let (mut all, mut printed) = (Vec::with_capacity(EVENTS), 0);
    for envelope in events {
        all.push((**envelope).clone());
        if matches!(envelope.event, Event::TaskStart { .. }) {
            for line in 0..missing.div_ceil(NODES).min(missing - printed) {
                let text = format!("line {line} of what the program prints\n");
                let event = Event::ExecOutput { stream: OutputStream::Stdout, text, truncated: false };
                all.push(Envelope { event, ..(**envelope).clone() });
                printed += 1;
            }
        }
    }
    all
}

/// When each event was emitted, in nanoseconds.
struct Spoken {
    clock: Stopwatch,
    at: Vec<AtomicU64>,
}

impl Default for Spoken {
    fn default() -> Self {
        let at = std::iter::repeat_with(AtomicU64::default).take(SPOKEN).collect();
        Self { clock: Stopwatch::start(), at }
    }
}

impl Spoken {
    fn now(&self) -> u64 {
        self.clock.elapsed().as_nanos().try_into().unwrap_or(u64::MAX)
    }
}

/// A node whose program prints a number now and then.
struct PrintNode(Arc<Spoken>);

impl DescribeNode for PrintNode {
    fn describe(&self) -> NodeTypeInfo {
        node_type("bench.talk", "Prints numbers.")
    }
}

impl NodeType for PrintNode {
    async fn run(&self, context: NodeContext, _: Value) -> Result<Value, AgentError> {
        tokio::time::sleep(ASSEMBLY).await;
        for (number, at) in self.0.at.iter().enumerate() {
            tokio::time::sleep(PAUSE).await;
            at.store(self.0.now(), Ordering::Release);
            let text = format!("{number}\n");
            context.hub.emit(Event::ExecOutput { stream: OutputStream::Stdout, text, truncated: false });
        }
        Ok(json!({}))
    }
}

/// A server on a free port.
struct PageServer {
    address: SocketAddr,
    token: String,
}

impl PageServer {
    async fn start(path: &Path, nodes: NodeRegistry) -> anyhow::Result<(Self, CancellationToken)> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let (address, token, end) = (listener.local_addr()?, Token::fresh()?, CancellationToken::new());
        let store: Arc<dyn RunStore> = Arc::new(open(path)?);
        let server = Self { address, token: token.reveal() };
        let options = ServerOptions {
            codes: Default::default(),
            sessions: Sessions::new(store, nodes, Arc::new(SystemClock)),
            address,
            hosts: Vec::new(),
            token,
            version: "bench",
            environment: Default::default(),
        };
        tokio::spawn(serve(listener, options, end.clone()));
        Ok((server, end))
    }

    /// The bytes of an answer.
    async fn get(&self, path: &str) -> anyhow::Result<usize> {
        let mut socket = TcpStream::connect(self.address).await?;
        socket.set_nodelay(true)?;
        let (address, token) = (self.address, &self.token);
        let head = format!("GET {path} HTTP/1.0\r\nhost: {address}\r\nauthorization: Bearer {token}\r\n\r\n");
        socket.write_all(head.as_bytes()).await?;
        let mut answer = Vec::new();
        socket.read_to_end(&mut answer).await?;
        ensure!(answer.starts_with(b"HTTP/1.0 200"), "{path}: {}", String::from_utf8_lossy(&answer));
        Ok(answer.len())
    }

    /// Opening the long session, and moving in it.
    async fn long_session(&self) -> anyhow::Result<Vec<Measurement>> {
        let opening = Stopwatch::start();
        futures::try_join!(self.get("/api/v1/sessions/long"), self.get("/api/v1/sessions/long/graph"))?;
        let opened = opening.elapsed().as_secs_f64() * 1e9;
        let (mut near, mut far) = (Vec::new(), Vec::new());
        let mut at = 1;
        for step in 0..MOVES {
            // A replay advances by a few events, and a person jumps anywhere.
            for (to, took) in [(at + 40, &mut near), ((step * 37_501 + 11) % EVENTS + 1, &mut far)] {
                let moving = Stopwatch::start();
                self.get(&format!("/api/v1/sessions/long/patch?from={at}&at={to}")).await?;
                took.push(moving.elapsed().as_secs_f64() * 1e9);
                at = to;
            }
        }
        let row = |work: &str, value, goal| Measurement::time(work, value).goal(Goal::Within(goal));
        Ok(vec![
            row("page: 10 000 nodes, 100 000 events, opened", opened, 1e9),
            row("page: the same, replayed, per move", middle(near), 20e6),
            row("page: the same, anywhere, per move", middle(far), 100e6),
        ])
    }

    /// From the process of a session to its viewers. The store is opened twice, so the server is notified of changes
    /// as it is of those of another process.
    async fn viewers(
        &self,
        path: &Path,
        nodes: &NodeRegistry,
        spoken: &Arc<Spoken>,
    ) -> anyhow::Result<Vec<Measurement>> {
        let flow = "flow: { name: talk }\nnodes:\n  - { id: talk, type: bench.talk }\n";
        let graph = compiled(flow, nodes)?;
        let store: Arc<dyn RunStore> = Arc::new(open(path)?);
        let runner = FlowRunner::builder(graph, nodes.clone()).session_id(SessionId::from("talk"));
        let running = tokio::spawn(runner.store(store).build().run(Map::new()));
        let mut viewers = Vec::new();
        for _ in 0..VIEWERS {
            viewers.push(self.viewer().await?);
        }
        let deaf = viewers.pop();
        let readers = viewers.into_iter().map(|viewer| late(viewer, Arc::clone(spoken)));
        let late: Vec<Vec<f64>> =
            try_join_all(readers.map(tokio::spawn)).await?.into_iter().collect::<Result<_, _>>()?;
        running.await??;
        drop(deaf);
        let mut late: Vec<f64> = late.into_iter().flatten().collect();
        late.sort_by(f64::total_cmp);
        let part = |share: f64| late[((late.len() - 1) as f64 * share) as usize];
        let row = Measurement::time(format!("event to {VIEWERS} viewers, p99"), part(0.99));
        Ok(vec![row.reference("at the median", part(0.5)).goal(Goal::Within(20e6))])
    }

    /// A socket that follows the session, once the session is there.
    async fn viewer(&self) -> anyhow::Result<WebSocketStream<TcpStream>> {
        while self.get("/api/v1/sessions/talk").await.is_err() {
            tokio::time::sleep(PAUSE).await;
        }
        let mut request = format!("ws://{}/ws", self.address).into_client_request()?;
        request.headers_mut().insert(AUTHORIZATION, format!("Bearer {}", self.token).parse()?);
        let (mut socket, _) = client_async(request, TcpStream::connect(self.address).await?).await?;
        socket.send(Message::text(r#"{"subscribe":"talk","state":true}"#)).await?;
        Ok(socket)
    }
}

/// How long each event took to a viewer, in nanoseconds. The last line that the program printed says up to which event
/// all have come.
async fn late(mut socket: WebSocketStream<TcpStream>, spoken: Arc<Spoken>) -> anyhow::Result<Vec<f64>> {
    let mut late = Vec::with_capacity(SPOKEN);
    while late.len() < SPOKEN {
        let message = socket.next().await.context("the socket was closed")??;
        let now = spoken.now();
        let Message::Text(text) = message else { continue };
        let Some((_, rest)) = text.split_once("\"output\":\"") else { continue };
        let Some(newest) = rest.split_once('"').and_then(|(line, _)| line.parse::<usize>().ok()) else {
            continue;
        };
        for at in &spoken.at[late.len()..(newest + 1).max(late.len())] {
            late.push(now.saturating_sub(at.load(Ordering::Acquire)) as f64);
        }
    }
    Ok(late)
}
