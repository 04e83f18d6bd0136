//! A flow that is shown as `inspan run` shows it: `cargo run -p inspan-cli --example console`.

use std::{collections::BTreeMap, error::Error, sync::Arc};

use inspan_cli::ConsoleChannel;
use inspan_engine::ProviderRegistry;
use inspan_flow::{FlowRunner, Loaded, builtin_nodes, compile};
use serde_json::Map;

const FLOW: &str = "
flow: { name: yoke }
nodes:
  - { id: left, type: echo, input: { text: Bo } }
  - { id: right, type: echo, input: { text: Mo } }
  - { id: pair, type: echo, dependsOn: [left, right], input: { text: '{{ left.text }} and {{ right.text }}' } }
";

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let nodes = builtin_nodes(&ProviderRegistry::new());
    let compiled = compile(&Loaded::from_text("yoke.yaml", FLOW, BTreeMap::new()), &nodes)?;
    let graph = Arc::new(compiled.graph);
    let console = Arc::new(ConsoleChannel::new(&graph));
    FlowRunner::builder(graph, nodes).channel(console).build().run(Map::new()).await?;
    Ok(())
}
