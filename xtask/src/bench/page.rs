//! What the server needs for its pages: opening a long session, moving in it, and how long an event takes from the
//! process that runs its session to a hundred viewers, one of which reads nothing.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail, ensure};
use futures::future::try_join_all;
use inspan_engine::{ProviderRegistry, SystemClock};
use inspan_flow::{
    Batch, DescribeNode, FlowRunner, Graph, Loaded, MemoryStore, NodeContext, NodeKind, NodeRegistry,
    NodeType, NodeTypeInfo, Occupies, Owner, RunStore, SqliteOptions, SqliteStore, builtin_nodes, compile,
};
use inspan_protocol::{AgentError, Envelope, Event, OutputStream, SessionId};
use inspan_server::{Commands, ServerOptions, Token, serve};
use inspan_sessions::Sessions;
use inspan_testkit::Stopwatch;
use serde_json::{Map, Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

use super::flow::chain;
use super::measure::{Goal, Measurement, Unit, middle};

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
    long(&path, &nodes).await?;
    let (server, end) = PageServer::start(&path, nodes.clone()).await?;
    let mut rows = server.long_session().await?;
    rows.extend(server.viewers(&path, &nodes, &spoken).await?);
    end.cancel();
    Ok(rows)
}

/// A chain that has run, and in which every node printed something.
async fn long(path: &Path, nodes: &NodeRegistry) -> anyhow::Result<()> {
    let memory: Arc<dyn RunStore> = Arc::new(MemoryStore::new());
    let (graph, session) = (Arc::new(compiled(&chain(NODES), nodes)?), SessionId::from("long"));
    let runner = FlowRunner::builder(graph, nodes.clone()).session_id(session.clone());
    let runner = runner.store(memory.clone()).with_events().build();
    let result = tokio::spawn(runner.run(Map::new())).await.context("the session broke down")??;
    let missing = EVENTS.saturating_sub(result.events.len());
    let (mut events, mut printed) = (Vec::with_capacity(EVENTS), 0);
    let mut push = |envelope: &Envelope, event: Event| {
        let seq = events.len() as u64 + 1;
        events.push(Arc::new(Envelope { seq, event, ..envelope.clone() }));
    };
    for envelope in &result.events {
        push(envelope, envelope.event.clone());
        if matches!(envelope.event, Event::TaskStart { .. }) {
            for line in 0..missing.div_ceil(NODES).min(missing - printed) {
                let text = format!("line {line} of what the program prints\n");
                push(envelope, Event::ExecOutput { stream: OutputStream::Stdout, text, truncated: false });
                printed += 1;
            }
        }
    }
    let store = open(path)?;
    let record = memory.record(&session).await?;
    let lease = store.create(&record, &Owner::of_process(), record.created_at).await?;
    for batch in events.chunks(250) {
        store.append(&lease, Batch { events: batch, answers: &[] }).await?;
    }
    Ok(store.release(&lease).await?)
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
        NodeTypeInfo {
            name: "bench.talk".into(),
            pack: "bench".into(),
            help: "Prints numbers.".to_owned(),
            input: json!({ "type": "object" }),
            output: json!({ "type": "object" }),
            kind: NodeKind::Plain,
            occupies: Occupies::Slot,
        }
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
            sessions: Sessions::new(store, nodes, Arc::new(SystemClock)),
            address,
            hosts: Vec::new(),
            token,
            version: "bench",
            commands: Commands::default(),
        };
        tokio::spawn(serve(listener, options, end.clone()));
        Ok((server, end))
    }

    async fn send(&self, line: &str, headers: &str) -> anyhow::Result<BufReader<TcpStream>> {
        let mut socket = TcpStream::connect(self.address).await?;
        socket.set_nodelay(true)?;
        let (address, token) = (self.address, &self.token);
        let head = format!("{line}\r\nhost: {address}\r\nauthorization: Bearer {token}\r\n{headers}\r\n");
        socket.write_all(head.as_bytes()).await?;
        Ok(BufReader::new(socket))
    }

    /// The bytes of an answer.
    async fn get(&self, path: &str) -> anyhow::Result<usize> {
        let mut socket = self.send(&format!("GET {path} HTTP/1.0"), "").await?;
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
        let row = |work: &str, value, goal| Measurement {
            work: work.to_owned(),
            value,
            reference: None,
            goal: Some(Goal::Within(goal)),
            unit: Unit::Nanoseconds,
        };
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
        let graph = Arc::new(compiled(flow, nodes)?);
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
        Ok(vec![Measurement {
            work: format!("event to {VIEWERS} viewers, p99"),
            value: part(0.99),
            reference: Some(("at the median", part(0.5))),
            goal: Some(Goal::Within(20e6)),
            unit: Unit::Nanoseconds,
        }])
    }

    /// A socket that follows the session, once the session is there.
    async fn viewer(&self) -> anyhow::Result<BufReader<TcpStream>> {
        let upgrade = "connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n\
                       sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
        while self.get("/api/v1/sessions/talk").await.is_err() {
            tokio::time::sleep(PAUSE).await;
        }
        let mut socket = self.send("GET /ws HTTP/1.1", upgrade).await?;
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(socket.read_u8().await?);
        }
        ensure!(head.starts_with(b"HTTP/1.1 101"), "{}", String::from_utf8_lossy(&head));
        let wish = br#"{"subscribe":"talk","state":true}"#;
        // A text, whole, masked with zeros.
        let mut frame = vec![0x81, 0x80 | wish.len() as u8, 0, 0, 0, 0];
        frame.extend(wish);
        socket.write_all(&frame).await?;
        Ok(socket)
    }
}

/// How long each event took to a viewer, in nanoseconds. The last line that the program printed says up to which event
/// all have come.
async fn late(mut socket: BufReader<TcpStream>, spoken: Arc<Spoken>) -> anyhow::Result<Vec<f64>> {
    let mut late = Vec::with_capacity(SPOKEN);
    while late.len() < SPOKEN {
        let message = message(&mut socket).await?;
        let now = spoken.now();
        let Some((_, rest)) = message.split_once("\"output\":\"") else { continue };
        let Some(newest) = rest.split_once('"').and_then(|(line, _)| line.parse::<usize>().ok()) else {
            continue;
        };
        for at in &spoken.at[late.len()..(newest + 1).max(late.len())] {
            late.push(now.saturating_sub(at.load(Ordering::Acquire)) as f64);
        }
    }
    Ok(late)
}

/// The next text of a socket.
async fn message(socket: &mut BufReader<TcpStream>) -> anyhow::Result<String> {
    loop {
        let (first, second) = (socket.read_u8().await?, socket.read_u8().await?);
        let length = match second & 0x7f {
            126 => u64::from(socket.read_u16().await?),
            127 => socket.read_u64().await?,
            short => u64::from(short),
        };
        let mut body = vec![0; usize::try_from(length)?];
        socket.read_exact(&mut body).await?;
        match first & 0x0f {
            1 => return Ok(String::from_utf8(body)?),
            8 => bail!("the socket was closed"),
            _ => {}
        }
    }
}

fn open(path: &Path) -> anyhow::Result<SqliteStore> {
    Ok(SqliteStore::open(path, &SqliteOptions::default())?)
}

fn compiled(text: &str, nodes: &NodeRegistry) -> anyhow::Result<Graph> {
    let loaded = Loaded::from_text("flow.yaml", text, BTreeMap::new());
    Ok(compile(&loaded, nodes).map_err(|problems| anyhow!("{problems}"))?.graph)
}
