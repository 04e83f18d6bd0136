//! What a flow costs: running chains of nodes that do nothing, compiling them, and checking a file.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context as _, anyhow, ensure};
use inspan_engine::{Filter, ProviderRegistry};
use inspan_flow::{FlowRunner, Graph, Loaded, NodeRegistry, builtin_nodes, compile};
use inspan_protocol::{Envelope, Outcome};
use serde_json::{Map, Value};
use tokio::runtime::Runtime;

use super::measure::{Goal, Measurement, median, median_of};
use super::stored::chain;

/// Nodes that are run in one measurement, in as many sessions as that takes.
const AT_LEAST: usize = 10_000;

/// All rows.
pub(crate) fn rows() -> anyhow::Result<Vec<Measurement>> {
    let nodes = builtin_nodes(&ProviderRegistry::new());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let bench = Bench { nodes, runtime };
    // A flow file may have half a million values, and a node of this chain has twelve.
    let mut rows = Vec::new();
    for size in [100, 1_000, 10_000, 40_000] {
        let loaded = loaded(&chain("echo", size));
        let value = bench.per_node(&loaded, size)?;
        let compiling = bench.compiling(&loaded, size)?;
        rows.push(
            Measurement::time(format!("chain of {size}, per node"), value)
                .reference("compiling it", compiling)
                .goal(Goal::Within(3_000.0)),
        );
    }
    let items = 10_000;
    // The chain of as many nodes.
    let chain_per_node = rows[2].value;
    let work = format!("foreach over {items} items of two nodes, per node");
    rows.push(
        Measurement::time(work, bench.per_node(&loaded(&foreach(items)), 2 * items)?)
            .reference("a node of the chain", chain_per_node)
            .goal(Goal::Times(2.0)),
    );
    rows.push(bench.check("check of 1000 nodes", &chain("echo", 1_000))?);
    rows.push(bench.check("check of 1000 nodes with conditions", &branches(200))?);
    Ok(rows)
}

struct Bench {
    nodes: NodeRegistry,
    runtime: Runtime,
}

impl Bench {
    /// Runs a flow that is compiled already.
    fn per_node(&self, loaded: &Loaded, size: usize) -> anyhow::Result<f64> {
        let graph = compile(loaded, &self.nodes).map_err(|problems| anyhow!("{problems}"))?.graph;
        let graph = Arc::new(graph);
        let sessions = AT_LEAST.div_ceil(size);
        let mut failed = None;
        let value = median_of(
            (sessions * size) as u64,
            5,
            || (),
            |()| {
                let (graph, nodes) = (Arc::clone(&graph), self.nodes.clone());
                let all = async move {
                    for _ in 0..sessions {
                        session(Arc::clone(&graph), &nodes, size).await?;
                    }
                    Ok(())
                };
                failed = failed.take().or(self.drive(all).err());
            },
        );
        failed.map_or(Ok(value), Err)
    }

    /// Compiles a flow whose text is read already, per node.
    fn compiling(&self, loaded: &Loaded, size: usize) -> anyhow::Result<f64> {
        let times = AT_LEAST.div_ceil(size);
        let mut failed = false;
        let compile = || (0..times).for_each(|_| failed |= black_box(compile(loaded, &self.nodes)).is_err());
        let value = median((times * size) as u64, compile);
        ensure!(!failed, "a flow of {size} nodes does not compile");
        Ok(value)
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
    fn check(&self, work: &str, text: &str) -> anyhow::Result<Measurement> {
        let mut failed = false;
        let value = median_of(
            1,
            15,
            || (),
            |()| {
                let loaded = Loaded::from_text("flow.yaml", text, BTreeMap::new());
                failed |= black_box(compile(&loaded, &self.nodes)).is_err();
            },
        );
        let yaml = median_of(
            1,
            15,
            || (),
            |()| {
                failed |= black_box(serde_saphyr::from_str::<Value>(text)).is_err();
            },
        );
        ensure!(!failed, "the flow of 1 000 nodes does not compile");
        Ok(Measurement::time(work, value).reference("reading its YAML", yaml).goal(Goal::Within(20e6)))
    }
}

fn loaded(text: &str) -> Loaded {
    Loaded::from_text("flow.yaml", text, BTreeMap::new())
}

/// Runs one session of a flow; its events are counted by an observer.
async fn session(graph: Arc<Graph>, nodes: &NodeRegistry, size: usize) -> anyhow::Result<()> {
    let runner = FlowRunner::builder(graph, nodes.clone()).build();
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
    Ok(())
}

/// Groups of five nodes, each with a program, a switch, two branches and a node that reads whatever ran.
fn branches(groups: usize) -> String {
    let mut text = String::from("flow: { name: branches }\nnodes:\n");
    let mut edges = String::from("edges:\n");
    for at in 0..groups {
        let after =
            at.checked_sub(1).map_or_else(String::new, |before| format!(", dependsOn: [join{before}]"));
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "  - {{ id: run{at}, type: exec{after}, input: {{ argv: [test, \"{at}\"], parse: json, allowExit: [1] }} }}\n  \
             - {{ id: way{at}, type: control.switch, dependsOn: [run{at}], input: {{ value: \"{{{{ run{at}.value }}}}\", cases: \
             [{{ when: \"run{at}.exitCode == 0\", route: good }}], default: bad }} }}\n  \
             - {{ id: good{at}, type: echo, input: {{ text: \"{{{{ run{at}.stdout | upper }}}} of {{{{ way{at}.value.name }}}}\" }} }}\n  \
             - {{ id: bad{at}, type: echo, input: {{ text: \"{{% for line in run{at}.stderr | lines %}}{{{{ line }}}}{{% endfor %}}\" }} }}\n  \
             - {{ id: join{at}, type: echo, dependsOn: [good{at}, bad{at}], input: {{ text: \"{{{{ good{at}.text if good{at} else bad{at}.text }}}} {{{{ run{at}.exitCode }}}}\" }} }}"
        );
        let _ = writeln!(
            edges,
            "  - {{ from: way{at}, to: good{at}, when: \"way{at}.route == 'good'\" }}\n  \
             - {{ from: way{at}, to: bad{at}, when: \"way{at}.route == 'bad'\" }}"
        );
    }
    text + &edges
}

/// A foreach whose body has two nodes, the second of which takes the text of the first.
fn foreach(items: usize) -> String {
    format!(
        "flow: {{ name: foreach }}\nnodes:\n  - id: each\n    type: control.foreach\n    \
         input: {{ items: \"{{{{ range({items}) | list }}}}\" }}\n    body:\n      nodes:\n        \
         - {{ id: a, type: echo, input: {{ text: \"item {{{{ item }}}}\" }} }}\n        \
         - {{ id: b, type: echo, dependsOn: [a], input: {{ text: \"{{{{ a.text }}}}\" }} }}\n"
    )
}
