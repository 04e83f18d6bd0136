//! A flow with your own node, run from a program: `cargo run -p inspan --example custom_node`. The flow file
//! is described in `docs/flow.md`.
#![expect(clippy::print_stdout, reason = "an example shows what it got")]

use std::error::Error;

use inspan::{
    AgentError, Flow,
    node::{DescribeNode, NodeContext, NodeKind, NodeType, NodeTypeInfo, Occupies, builtin_nodes},
    providers,
};
use serde_json::{Value, json};

const FLOW: &str = "
flow: { name: herd, input: { name: bo } }
nodes:
  - { id: greet, type: echo.agent, input: { prompt: 'hello {{ flow.input.name }}' } }
  - { id: back, type: text.reverse, dependsOn: [greet], input: { text: '{{ greet.text }}' } }
";

struct Reverse;

impl DescribeNode for Reverse {
    fn describe(&self) -> NodeTypeInfo {
        let text =
            json!({ "type": "object", "required": ["text"], "properties": { "text": { "type": "string" } } });
        NodeTypeInfo {
            name: "text.reverse".into(),
            pack: "text".into(),
            help: "Turns a text round.".to_owned(),
            input: text.clone(),
            output: text,
            kind: NodeKind::Plain,
            occupies: Occupies::Slot,
        }
    }
}

impl NodeType for Reverse {
    async fn run(&self, _context: NodeContext, input: Value) -> Result<Value, AgentError> {
        let text: String = input["text"].as_str().unwrap_or_default().chars().rev().collect();
        Ok(json!({ "text": text }))
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut nodes = builtin_nodes(&providers::builtin());
    nodes.register(Reverse);
    let flow = Flow::parse_with("herd.yaml", FLOW, nodes)?;
    let result = flow.run(json!({})).await?;
    for (node, output) in result.outputs.iter() {
        println!("{node}: {}", output["text"]);
    }
    Ok(())
}
