//! Your own agent: `cargo run -p inspan --example custom_provider`. Registered by name, it is also a node
//! `shouting.agent` of flows; see `custom_node.rs` for how a program runs one.
#![expect(clippy::print_stdout, reason = "an example shows what it got")]

use futures::{StreamExt, stream};
use inspan::{
    AgentError, AgentOptions, AgentSession, ProviderSessionId,
    provider::{
        Chunk, ExecutionContext, InputFacts, OutputFacts, Provider, ProviderDescriptor, ProviderInput,
        ProviderItem, ProviderOutput, ProviderStream, StreamEvent,
    },
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What it takes. Options that it does not name are refused before it is called.
#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Input {
    prompt: String,
    #[serde(default)]
    marks: usize,
    #[serde(default)]
    resume: Option<ProviderSessionId>,
}

impl ProviderInput for Input {
    fn resume(&mut self, session: &ProviderSessionId, message: &str) {
        self.prompt = message.to_owned();
        self.resume = Some(session.clone());
    }

    fn facts(&self) -> InputFacts {
        InputFacts { session: self.resume.clone(), ..InputFacts::default() }
    }
}

/// What it gives.
#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct Output {
    text: String,
    session_id: ProviderSessionId,
}

impl ProviderOutput for Output {
    fn facts(&self) -> OutputFacts {
        let session = Some(self.session_id.clone());
        OutputFacts { session, cost_usd: Some(0.0), ..OutputFacts::text(&self.text) }
    }
}

struct Shouting;

impl Provider for Shouting {
    type Input = Input;
    type Output = Output;

    fn descriptor(&self) -> ProviderDescriptor {
        ProviderDescriptor::new("shouting", "Shouting")
    }

    fn execute(&self, input: Input, _context: ExecutionContext) -> ProviderStream<Output> {
        let text = input.prompt.to_uppercase() + &"!".repeat(input.marks);
        let said = StreamEvent::Text { content: text.clone(), chunk: Chunk::Whole };
        let output = Output { text, session_id: "the-only-one".into() };
        stream::iter([Ok(ProviderItem::Event(said)), Ok(ProviderItem::Output(output))]).boxed()
    }
}

#[tokio::main]
async fn main() -> Result<(), AgentError> {
    let session = AgentSession::new(Shouting, AgentOptions::new().option("marks", 3))?;
    println!("{}", session.chat("the oxen are loose").await?.text);
    println!("{}", session.chat("catch them").await?.text);

    let refused = AgentSession::new(Shouting, AgentOptions::new().temperature(2.0));
    println!("{}", refused.err().map(|error| error.message).unwrap_or_default());
    Ok(())
}
