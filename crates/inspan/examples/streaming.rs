//! An agent's words as they come: `cargo run -p inspan --example streaming`. What else a stream reports is in
//! `docs/events.md`.
#![expect(clippy::print_stdout, reason = "an example shows what it got")]

use inspan::{AgentError, AgentItem, Event, providers::EchoProvider, run_agent_stream};

#[tokio::main]
async fn main() -> Result<(), AgentError> {
    let agent = EchoProvider;
    let mut stream = run_agent_stream(agent, "Word by word by word.")?;
    while let Some(item) = stream.next().await {
        match item? {
            AgentItem::Event(envelope) => {
                if let Event::AgentText { content, .. } = &envelope.event {
                    println!("{content}");
                }
            }
            AgentItem::Result(result) => println!("{} tokens", result.usage.total()),
            _ => {}
        }
    }
    Ok(())
}
