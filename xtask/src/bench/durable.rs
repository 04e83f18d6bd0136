//! What it costs to run a flow whose every fact is on disk before its effects, and to continue a long session.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use anyhow::{Context as _, anyhow, ensure};
use inspan_engine::ProviderRegistry;
use inspan_flow::{
    Batch, DescribeNode, FlowRunner, Graph, Loaded, MemoryStore, NodeContext, NodeKind, NodeRegistry,
    NodeType, NodeTypeInfo, Occupies, Owner, RunStore, SqliteOptions, SqliteStore, builtin_nodes, compile,
};
use inspan_protocol::{AgentError, Envelope, Event, Outcome, RunId, SessionId};
use inspan_testkit::Stopwatch;
use serde_json::{Map, Value, json};

use crate::cargo::release_program;

use super::measure::{Goal, Measurement, Unit, middle};

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
        NodeTypeInfo {
            name: "bench.effect".into(),
            pack: "bench".into(),
            help: "Does nothing, after a moment in which it could.".to_owned(),
            input: json!({ "type": "object" }),
            output: json!({ "type": "object" }),
            kind: NodeKind::Plain,
            occupies: Occupies::Slot,
        }
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
    let graph = Arc::new(compiled(&chain(NODES), &nodes)?);
    let mut rows = Vec::new();
    let (mut syncs, mut kept, mut free, mut many) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let store: Arc<dyn RunStore> = Arc::new(open(&folder.path().join("chain.db"))?);
    for _ in 0..ROUNDS {
        syncs.push(sync(&folder.path().join("sync"))?);
        kept.push(runtime.block_on(sessions(&graph, &nodes, &store, 1))?);
        let memory: Arc<dyn RunStore> = Arc::new(MemoryStore::new());
        free.push(runtime.block_on(sessions(&graph, &nodes, &memory, 1))?);
        many.push(runtime.block_on(sessions(&graph, &nodes, &store, SESSIONS))?);
    }
    let one = middle(kept);
    rows.push(Measurement {
        work: "durable chain, per node".to_owned(),
        value: one,
        reference: Some(("write and fdatasync", middle(syncs))),
        goal: Some(Goal::Times(2.0)),
        unit: Unit::Nanoseconds,
    });
    rows.push(Measurement {
        work: "the same in memory, per node".to_owned(),
        value: middle(free),
        reference: Some(("durable", one)),
        goal: None,
        unit: Unit::Nanoseconds,
    });
    rows.push(Measurement {
        work: format!("durable chain, {SESSIONS} sessions at once, per node"),
        value: middle(many),
        reference: Some(("one session", one)),
        goal: Some(Goal::Times(0.125)),
        unit: Unit::Nanoseconds,
    });
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
    let graph = Arc::new(compiled(&super::flow::chain(NODES), nodes)?);
    let session = SessionId::from("long");
    long(path, &graph, nodes, &session).await?;
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
    Ok(Measurement {
        work: format!("resume a session of {LONG} events"),
        value: middle(took),
        reference: None,
        goal: Some(Goal::Within(150e6)),
        unit: Unit::Nanoseconds,
    })
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
    Ok(Measurement {
        work: format!("inspan {}, {LONG} events", arguments.join(" ")),
        value: middle(took),
        reference: None,
        goal: Some(Goal::Within(150e6)),
        unit: Unit::Nanoseconds,
    })
}

/// Half of the chain done, and a talkative agent's text between.
async fn long(
    path: &Path,
    graph: &Arc<Graph>,
    nodes: &NodeRegistry,
    session: &SessionId,
) -> anyhow::Result<()> {
    let memory: Arc<dyn RunStore> = Arc::new(MemoryStore::new());
    let runner = FlowRunner::builder(graph.clone(), nodes.clone());
    let runner = runner.session_id(session.clone()).store(memory.clone()).with_events().build();
    let result = tokio::spawn(runner.run(Map::new())).await.context("the session broke down")??;
    let half = result.events.len() / 2;
    let mut events: Vec<Arc<Envelope>> = result.events[..half].to_vec();
    let last = events.last().context("the session had no events")?.clone();
    let text = Event::AgentText { content: "word ".repeat(60), delta: true, run_id: RunId::from("run-1") };
    for seq in half as u64 + 1..=LONG {
        events.push(Arc::new(Envelope { seq, event: text.clone(), ..(*last).clone() }));
    }
    let store = open(path)?;
    let record = memory.record(session).await?;
    let lease = store.create(&record, &Owner::of_process(), record.created_at).await?;
    for batch in events.chunks(250) {
        store.append(&lease, Batch { events: batch, answers: &[] }).await?;
    }
    Ok(store.release(&lease).await?)
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

fn open(path: &Path) -> anyhow::Result<SqliteStore> {
    Ok(SqliteStore::open(path, &SqliteOptions::default())?)
}

fn compiled(text: &str, nodes: &NodeRegistry) -> anyhow::Result<Graph> {
    let loaded = Loaded::from_text("flow.yaml", text, BTreeMap::new());
    Ok(compile(&loaded, nodes).map_err(|problems| anyhow!("{problems}"))?.graph)
}

fn chain(size: usize) -> String {
    let mut text = String::from(
        "flow: { name: chain }\nnodes:\n  - { id: n0, type: bench.effect, input: { text: start } }\n",
    );
    for node in 1..size {
        let before = node - 1;
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "  - {{ id: n{node}, type: bench.effect, dependsOn: [n{before}], input: {{ text: \"{{{{ n{before}.text }}}}\" }} }}"
        );
    }
    text
}
