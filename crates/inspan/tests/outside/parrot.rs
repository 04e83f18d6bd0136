//! A provider from outside the workspace, in the program that uses it: a flow with a node `parrot.agent`.

use futures::{StreamExt, stream};
use inspan::node::builtin_nodes;
use inspan::prelude::*;
use inspan::provider::{
    Chunk, ExecutionContext, OutputFacts, Provider, ProviderDescriptor, ProviderInput, ProviderItem,
    ProviderOutput, ProviderStream, StreamEvent,
};
use inspan::providers::ProviderRegistry;
use inspan::ProviderSessionId;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Input {
    prompt: String,
}

impl ProviderInput for Input {
    fn resume(&mut self, _session: &ProviderSessionId, message: &str) {
        self.prompt = message.to_owned();
    }
}

#[derive(Serialize, Deserialize, JsonSchema)]
struct Output {
    text: String,
}

impl ProviderOutput for Output {
    fn facts(&self) -> OutputFacts {
        OutputFacts::text(&self.text)
    }
}

struct Parrot;

impl Provider for Parrot {
    type Input = Input;
    type Output = Output;

    fn descriptor(&self) -> ProviderDescriptor {
        ProviderDescriptor::new("parrot", "Parrot")
    }

    fn execute(&self, input: Input, _context: ExecutionContext) -> ProviderStream<Output> {
        let text = format!("{0}, {0}!", input.prompt);
        let event = StreamEvent::Text { content: text.clone(), chunk: Chunk::Whole };
        stream::iter([Ok(ProviderItem::Event(event)), Ok(ProviderItem::Output(Output { text }))]).boxed()
    }
}

const FLOW: &str = "
name: perch
nodes:
  - { id: greet, type: parrot.agent, input: { prompt: hello } }
  - { id: answer, type: agent.run, dependsOn: [greet], input: { provider: parrot, prompt: '{{ greet.text }}' } }
";

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), BoxError> {
    let mut providers = ProviderRegistry::new();
    providers.register(Parrot);
    let flow = Flow::parse_with("perch.yaml", FLOW, builtin_nodes(&providers))?;
    let result = flow.run(json!({})).await?;
    for (node, output) in result.outputs.iter() {
        println!("{node}: {}", output["text"]);
    }
    Ok(())
}
