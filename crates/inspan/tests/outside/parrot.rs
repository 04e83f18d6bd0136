//! A provider from outside the workspace, in the program that uses it: a flow with a node `parrot.agent`.

use futures::{StreamExt, stream};
use inspan::node::builtin_nodes;
use inspan::prelude::*;
use inspan::provider::{
    Chunk, ExecutionContext, InputFacts, OutputFacts, Provider, ProviderCapabilities, ProviderDescriptor,
    ProviderInput, ProviderItem, ProviderOutput, ProviderStream, StreamEvent,
};
use inspan::providers::ProviderRegistry;
use inspan::{ProviderSessionId, StopReason, Usage};
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

    fn facts(&self) -> InputFacts {
        InputFacts::default()
    }
}

#[derive(Serialize, Deserialize, JsonSchema)]
struct Output {
    text: String,
}

impl ProviderOutput for Output {
    fn session_id(&self) -> Option<ProviderSessionId> {
        None
    }

    fn facts(&self) -> OutputFacts {
        OutputFacts {
            text: self.text.clone(),
            structured_output: None,
            session: None,
            stop_reason: StopReason::Complete,
            usage: Usage::default(),
            cost_usd: None,
            num_turns: 1,
        }
    }
}

struct Parrot;

impl Provider for Parrot {
    type Input = Input;
    type Output = Output;

    fn descriptor(&self) -> ProviderDescriptor {
        ProviderDescriptor {
            provider_type: "parrot".to_owned(),
            display_name: "Parrot".to_owned(),
            capabilities: ProviderCapabilities::default(),
        }
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
