//! What it costs to run a flow whose every fact is on disk before its effects, and to continue a long session.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use anyhow::{Context as _, ensure};
use inspan_engine::ProviderRegistry;
use inspan_flow::{
    DescribeNode, FlowRunner, Graph, MemoryStore, NodeContext, NodeRegistry, NodeType, NodeTypeInfo,
    RunStore, builtin_nodes,
};
use inspan_protocol::{AgentError, Envelope, Event, Outcome, RunId, SessionId};
use inspan_testkit::Stopwatch;
use serde_json::{Map, Value};

use super::measure::{Goal, Measurement, middle};
use super::release_program;
use super::stored::{chain, compiled, node_type, open, write_session};

/// Nodes of the chain, sessions at once, rounds.
const NODES: usize = 200;
const SESSIONS: usize = 64;
const ROUNDS: usize = 5;
/// Writes that are synced in one measurement.
const SYNCS: u32 = 400;
/// Events of the long session.
const LONG: u64 = 100_000;

/// A node that could have external effects: everything before it is on disk before it begins.
struct Effect;

impl DescribeNode for Effect {
    fn describe(&self) -> NodeTypeInfo {
        node_type("bench.effect", "Does nothing, after a moment in which it could.")
    }
}

impl NodeType for Effect {
    async fn run(&self, _: NodeContext, input: Value) -> Result<Value, AgentError> {
        Ok(input)
    }
}

/// All rows. Time is what passes here, since the disk is waited for.
pub(crate) fn rows(root: &Path) -> anyhow::Result<Vec<Measurement>> {
    let folder = tempfile::tempdir_in(root).context("no folder on the disk of the tree")?;
    let runtime = tokio::runtime::Runtime::new()?;
    let mut nodes = builtin_nodes(&ProviderRegistry::new());
    nodes.register(Effect);
    let graph = compiled(&chain("bench.effect", NODES), &nodes)?;
    let (mut syncs, mut stored, mut free, mut many) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let store: Arc<dyn RunStore> = Arc::new(open(&folder.path().join("chain.db"))?);
    for _ in 0..ROUNDS {
        syncs.push(sync(&folder.path().join("sync"))?);
        stored.push(runtime.block_on(sessions(&graph, &nodes, &store, 1))?);
        let memory: Arc<dyn RunStore> = Arc::new(MemoryStore::new());
        free.push(runtime.block_on(sessions(&graph, &nodes, &memory, 1))?);
        many.push(runtime.block_on(sessions(&graph, &nodes, &store, SESSIONS))?);
    }
    let one = middle(stored);
    let at_once = format!("durable chain, {SESSIONS} sessions at once, per node");
    let mut rows = vec![
        Measurement::time("durable chain, per node", one)
            .reference("write and fdatasync", middle(syncs))
            .goal(Goal::Times(2.0)),
        Measurement::time("the same in memory, per node", middle(free)).reference("durable", one),
        Measurement::time(at_once, middle(many)).reference("one session", one).goal(Goal::Times(0.125)),
    ];
    rows.push(runtime.block_on(resume(&folder.path().join("sessions.db"), &nodes))?);
    let inspan = release_program("inspan")?;
    for arguments in [&["show", "long"][..], &["why", "long", "n0"], &["ps"]] {
        rows.push(command(&inspan, folder.path(), arguments)?);
    }
    Ok(rows)
}

/// Nanoseconds per node of so many sessions at once.
async fn sessions(
    graph: &Arc<Graph>,
    nodes: &NodeRegistry,
    store: &Arc<dyn RunStore>,
    count: usize,
) -> anyhow::Result<f64> {
    let watch = Stopwatch::start();
    let runs = (0..count).map(|_| {
        let builder = FlowRunner::builder(graph.clone(), nodes.clone()).store(store.clone());
        tokio::spawn(builder.build().run(Map::new()))
    });
    for run in runs.collect::<Vec<_>>() {
        let result = run.await.context("the session broke down")??;
        ensure!(result.outcome == Outcome::Success, "the flow failed: {:?}", result.error);
    }
    Ok(watch.elapsed().as_secs_f64() * 1e9 / (count * graph.flow().nodes.len()) as f64)
}

/// From the store's opening to the runner that could go on, for a session of many events.
async fn resume(path: &Path, nodes: &NodeRegistry) -> anyhow::Result<Measurement> {
    // Of nodes that `inspan` has: its commands read this session too.
    let graph = compiled(&chain("echo", NODES), nodes)?;
    let session = SessionId::from("long");
    // Half of the chain done, and then the text of a talkative agent.
    let lengthen = |events: &[Arc<Envelope>]| {
        let mut events: Vec<Envelope> =
            events[..events.len() / 2].iter().map(|event| (**event).clone()).collect();
        let text =
            Event::AgentText { content: "word ".repeat(60), delta: true, run_id: RunId::from("run-1") };
        let spoken = Envelope { event: text, ..events[events.len() - 1].clone() };
        events.resize(LONG as usize, spoken);
        events
    };
    write_session(path, Arc::clone(&graph), nodes, &session, lengthen).await?;
    let mut took = Vec::new();
    for _ in 0..ROUNDS {
        let watch = Stopwatch::start();
        let store: Arc<dyn RunStore> = Arc::new(open(path)?);
        let runner =
            FlowRunner::builder(graph.clone(), nodes.clone()).store(store.clone()).open(&session).await?;
        took.push(watch.elapsed().as_secs_f64() * 1e9);
        ensure!(runner.hub().last_seq() == LONG, "the log ends at {}", runner.hub().last_seq());
        // The lease is this process's own, and this process is alive.
        drop(runner);
        release(&store, &session).await?;
    }
    let work = format!("resume a session of {LONG} events");
    Ok(Measurement::time(work, middle(took)).goal(Goal::Within(150e6)))
}

/// A command on the store with the long session, from its start to its end.
fn command(inspan: &Path, home: &Path, arguments: &[&str]) -> anyhow::Result<Measurement> {
    let mut took = Vec::new();
    for _ in 0..ROUNDS {
        let watch = Stopwatch::start();
        let output = Command::new(inspan).args(arguments).env("INSPAN_HOME", home).output()?;
        took.push(watch.elapsed().as_secs_f64() * 1e9);
        let stderr = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "`inspan {}` failed: {stderr}", arguments.join(" "));
    }
    let work = format!("inspan {}, {LONG} events", arguments.join(" "));
    Ok(Measurement::time(work, middle(took)).goal(Goal::Within(150e6)))
}

/// Gives back the lease that the newest epoch holds.
async fn release(store: &Arc<dyn RunStore>, session: &SessionId) -> anyhow::Result<()> {
    for epoch in 1.. {
        let lease = inspan_flow::Lease { session: session.clone(), epoch };
        store.release(&lease).await?;
        if store.entry(session).await?.owner.is_none() {
            return Ok(());
        }
    }
    Ok(())
}

/// Nanoseconds to write a line and sync it.
fn sync(path: &Path) -> anyhow::Result<f64> {
    let mut file = File::options().create(true).append(true).open(path)?;
    let watch = Stopwatch::start();
    for _ in 0..SYNCS {
        file.write_all(&[b'x'; 512])?;
        file.sync_data()?;
    }
    Ok(watch.elapsed().as_secs_f64() * 1e9 / f64::from(SYNCS))
}
