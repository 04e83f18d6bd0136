//! What a flow costs: compiling and running chains and fan-outs of nodes that do nothing, and checking a file.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context as _, anyhow, ensure};
use inspan_engine::{Filter, ProviderRegistry};
use inspan_flow::{FlowRunner, Graph, Loaded, MemoryStore, NodeRegistry, builtin_nodes, compile};
use inspan_protocol::{Envelope, Outcome};
use serde_json::{Map, Value};
use serde_saphyr::granit_parser::Parser;
use tokio::runtime::Runtime;

use super::measure::{Goal, Row, Unit, median_of};

/// Nodes that are run in one measurement, in as many sessions as that takes.
const AT_LEAST: usize = 10_000;

/// Where the events of a session go.
#[derive(Clone, Copy)]
enum Kept {
    Nowhere,
    InMemory,
}

/// All rows.
pub(crate) fn rows() -> anyhow::Result<Vec<Row>> {
    let nodes = builtin_nodes(&ProviderRegistry::new());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let bench = Bench { nodes, runtime };
    let mut rows = Vec::new();
    // A flow file may have half a million values, and a node of this chain has twelve.
    let chains = [(10, None), (100, Some(2_000.0)), (1_000, None), (10_000, None), (40_000, Some(3_000.0))];
    bench.grow("chain", chain, Kept::Nowhere, &chains, &mut rows)?;
    rows.extend(bench.parts(1_000)?);
    bench.grow("chain, kept", chain, Kept::InMemory, &[(100, None), (10_000, None)], &mut rows)?;
    bench.grow(
        "fan-out",
        fan_out,
        Kept::Nowhere,
        &[(10, None), (100, None), (1_000, None), (10_000, None)],
        &mut rows,
    )?;
    rows.push(bench.check()?);
    Ok(rows)
}

struct Bench {
    nodes: NodeRegistry,
    runtime: Runtime,
}

impl Bench {
    /// A row for each size. Time per node must not grow, so each is held against the row of a hundred.
    fn grow(
        &self,
        name: &str,
        flow: fn(usize) -> String,
        kept: Kept,
        sizes: &[(usize, Option<f64>)],
        rows: &mut Vec<Row>,
    ) -> anyhow::Result<()> {
        let hundred = self.per_node(&flow(100), 100, kept)?;
        for &(size, goal) in sizes {
            let value = if size == 100 { hundred } else { self.per_node(&flow(size), size, kept)? };
            let goal = match goal {
                Some(limit) => Some(Goal::Within(limit)),
                None => (size > 100).then_some(Goal::Times(1.5)),
            };
            let reference = Some(("a node of a hundred", hundred));
            let work = format!("{name} of {size}, per node");
            rows.push(Row { work, value, reference, goal, unit: Unit::Nanoseconds });
        }
        Ok(())
    }

    /// What the parts of it cost, each beside something that it cannot do without.
    fn parts(&self, size: usize) -> anyhow::Result<Vec<Row>> {
        let text = chain(size);
        let mut failed = false;
        let operations = size as u64;
        let load = median_of(
            operations,
            9,
            || (),
            |()| {
                failed |= black_box(Loaded::from_text("flow.yaml", &text, BTreeMap::new())).text().is_empty()
            },
        );
        let yaml = median_of(
            operations,
            9,
            || (),
            |()| failed |= Parser::new_from_str(&text).any(|event| black_box(event).is_err()),
        );
        let loaded = Loaded::from_text("flow.yaml", &text, BTreeMap::new());
        let compiled = || compile(&loaded, &self.nodes).map_err(|problems| anyhow!("{problems}"));
        let compiling = median_of(operations, 9, || (), |()| failed |= black_box(compiled()).is_err());
        let (mut events, mut fault) = (0, None);
        let running = median_of(operations, 9, compiled, |compiled| {
            let run = compiled.and_then(|compiled| self.run(compiled.graph, size, Kept::Nowhere));
            match run {
                Ok(seen) => events = seen,
                Err(error) => fault = Some(error),
            }
        });
        if let Some(fault) = fault {
            return Err(fault);
        }
        ensure!(!failed, "the chain does not load and compile");
        let emitting = super::hub::emitting() * events as f64 / size as f64;
        let row = |part, value, reference| Row {
            work: format!("chain of {size}, {part}, per node"),
            value,
            reference: Some(reference),
            goal: None,
            unit: Unit::Nanoseconds,
        };
        Ok(vec![
            row("load", load, ("taking its YAML apart", yaml)),
            row("compile", compiling, ("its load", load)),
            row("run", running, ("emitting its events", emitting)),
        ])
    }

    /// Compiles and runs a flow whose text is read already.
    fn per_node(&self, text: &str, size: usize, kept: Kept) -> anyhow::Result<f64> {
        let loaded = Arc::new(Loaded::from_text("flow.yaml", text, BTreeMap::new()));
        let sessions = AT_LEAST.div_ceil(size);
        let mut failed = None;
        let value = median_of(
            (sessions * size) as u64,
            5,
            || (),
            |()| {
                let (loaded, nodes) = (Arc::clone(&loaded), self.nodes.clone());
                let all = async move {
                    for _ in 0..sessions {
                        let compiled = compile(&loaded, &nodes).map_err(|problems| anyhow!("{problems}"))?;
                        session(compiled.graph, &nodes, size, kept).await?;
                    }
                    Ok(())
                };
                failed = failed.take().or(self.drive(all).err());
            },
        );
        failed.map_or(Ok(value), Err)
    }

    /// Runs a flow, and says how many events it had.
    fn run(&self, graph: Graph, size: usize, kept: Kept) -> anyhow::Result<u64> {
        let nodes = self.nodes.clone();
        self.drive(async move { session(graph, &nodes, size, kept).await })
    }

    /// Drives all of it as one task, as a program does that has a runtime already. Driven from outside, each session and
    /// each step would cost a change of threads, many times what a node does.
    fn drive<T: Send + 'static>(
        &self,
        work: impl Future<Output = anyhow::Result<T>> + Send + 'static,
    ) -> anyhow::Result<T> {
        let driven = self.runtime.spawn(work);
        self.runtime.block_on(driven).context("the session broke down")?
    }

    /// Finding every problem of a file, beside reading its YAML and nothing else.
    fn check(&self) -> anyhow::Result<Row> {
        let text = chain(1_000);
        let mut failed = false;
        let value = median_of(
            1,
            15,
            || (),
            |()| {
                let loaded = Loaded::from_text("flow.yaml", &text, BTreeMap::new());
                failed |= black_box(compile(&loaded, &self.nodes)).is_err();
            },
        );
        let yaml = median_of(
            1,
            15,
            || (),
            |()| {
                failed |= black_box(serde_saphyr::from_str::<Value>(&text)).is_err();
            },
        );
        ensure!(!failed, "the flow of 1 000 nodes does not compile");
        let reference = Some(("reading its YAML", yaml));
        Ok(Row {
            work: "check of 1000 nodes".to_owned(),
            value,
            reference,
            goal: Some(Goal::Within(15e6)),
            unit: Unit::Nanoseconds,
        })
    }
}

/// Runs one session of a flow, and says how many events it had.
async fn session(graph: Graph, nodes: &NodeRegistry, size: usize, kept: Kept) -> anyhow::Result<u64> {
    let mut builder = FlowRunner::builder(Arc::new(graph), nodes.clone());
    if let Kept::InMemory = kept {
        builder = builder.store(Arc::new(MemoryStore::new()));
    }
    let runner = builder.build();
    let events = Arc::new(AtomicU64::new(0));
    let seen = Arc::clone(&events);
    let count = move |_: &Arc<Envelope>| {
        seen.fetch_add(1, Ordering::Relaxed);
    };
    let observer = runner.hub().observe(Filter::all(), Arc::new(count));
    let result = runner.run(Map::new()).await?;
    drop(observer);
    ensure!(result.outcome == Outcome::Success, "the flow failed: {:?}", result.error);
    let events = events.load(Ordering::Relaxed);
    ensure!(events as usize >= 3 * size, "{events} events of {size} nodes were seen");
    Ok(events)
}

/// Each node takes the text of the one before it.
pub(crate) fn chain(size: usize) -> String {
    let mut text =
        String::from("flow: { name: chain }\nnodes:\n  - { id: n0, type: echo, input: { text: start } }\n");
    for node in 1..size {
        let before = node - 1;
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "  - {{ id: n{node}, type: echo, dependsOn: [n{before}], input: {{ text: \"{{{{ n{before}.text }}}}\" }} }}"
        );
    }
    text
}

/// One node, and all others take its text.
fn fan_out(size: usize) -> String {
    let mut text =
        String::from("flow: { name: fan }\nnodes:\n  - { id: n0, type: echo, input: { text: start } }\n");
    for node in 1..size {
        let _ = writeln!(
            text,
            "  - {{ id: n{node}, type: echo, dependsOn: [n0], input: {{ text: \"{{{{ n0.text }}}}\" }} }}"
        );
    }
    text
}
