//! What the benches of stored sessions share: flows, nodes of the bench's own, and a session that is written to a
//! store without being run there.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, anyhow};
use inspan_flow::{
    Batch, FlowRunner, Graph, Loaded, MemoryStore, NodeKind, NodeRegistry, NodeTypeInfo, Owner, RunStore,
    SqliteOptions, SqliteStore, compile,
};
use inspan_protocol::{Envelope, SessionId};
use serde_json::Map;

pub(super) fn open(path: &Path) -> anyhow::Result<SqliteStore> {
    Ok(SqliteStore::open(path, &SqliteOptions::default())?)
}

pub(super) fn compiled(text: &str, nodes: &NodeRegistry) -> anyhow::Result<Arc<Graph>> {
    let loaded = Loaded::from_text("flow.yaml", text, BTreeMap::new());
    Ok(Arc::new(compile(&loaded, nodes).map_err(|problems| anyhow!("{problems}"))?.graph))
}

/// Nodes of one type, each of which takes the text of the one before it.
pub(super) fn chain(node_type: &str, size: usize) -> String {
    let mut text = format!(
        "flow: {{ name: chain }}\nnodes:\n  - {{ id: n0, type: {node_type}, input: {{ text: start }} }}\n"
    );
    for node in 1..size {
        let before = node - 1;
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "  - {{ id: n{node}, type: {node_type}, dependsOn: [n{before}], input: {{ text: \"{{{{ n{before}.text }}}}\" }} }}"
        );
    }
    text
}

/// A node type of the bench, which takes and gives any object.
pub(super) fn node_type(name: &str, help: &str) -> NodeTypeInfo {
    NodeTypeInfo { help: help.to_owned(), ..NodeTypeInfo::with_open_schemas(name, "bench", NodeKind::Plain) }
}

/// Runs a flow in memory, and writes its session to the store at `path` with the events that `lengthen` makes of
/// those of the run; they are numbered anew.
pub(super) async fn write_session(
    path: &Path,
    graph: Arc<Graph>,
    nodes: &NodeRegistry,
    session: &SessionId,
    lengthen: impl FnOnce(&[Arc<Envelope>]) -> Vec<Envelope>,
) -> anyhow::Result<()> {
    let memory: Arc<dyn RunStore> = Arc::new(MemoryStore::new());
    let runner = FlowRunner::builder(graph, nodes.clone()).session_id(session.clone());
    let runner = runner.store(memory.clone()).with_events().build();
    let result = tokio::spawn(runner.run(Map::new())).await.context("the session broke down")??;
    let events = (1..).zip(lengthen(&result.events));
    let events: Vec<_> = events.map(|(seq, envelope)| Arc::new(Envelope { seq, ..envelope })).collect();
    let store = open(path)?;
    let record = memory.record(session).await?;
    let lease = store.create(&record, &Owner::of_process(), record.created_at).await?;
    for batch in events.chunks(250) {
        store.append(&lease, Batch { events: batch, answers: &[] }).await?;
    }
    Ok(store.release(&lease).await?)
}
