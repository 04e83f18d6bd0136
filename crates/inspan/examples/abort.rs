//! Interrupting an agent: `cargo run -p inspan --example abort`. Steering one, which continues another message,
//! is `AgentSession::steer`.
#![expect(clippy::print_stdout, reason = "an example shows what it got")]

use inspan::{AgentError, AgentItem, AgentOptions, AgentSession, Event, providers::ScriptedProvider};
use serde_json::json;

#[tokio::main]
async fn main() -> Result<(), AgentError> {
    let turns = json!([[{ "text": "Counting: 1 2 3" }, "hang"], [{ "text": "As you wish." }]]);
    let options = AgentOptions::new().option("turns", turns);
    let session = AgentSession::new(ScriptedProvider, options)?;

    let mut stream = session.chat_stream("Count to a thousand.");
    while let Some(item) = stream.next().await {
        match item {
            Ok(AgentItem::Event(envelope)) => {
                if matches!(&envelope.event, Event::AgentText { content, .. } if content == "3") {
                    session.abort();
                }
            }
            Err(failed) => {
                let done = failed.partial.map(|done| done.text);
                println!("{}: {done:?}", failed.error.code);
            }
            _ => {}
        }
    }
    println!("{}", session.chat("Never mind.").await?.text);
    Ok(())
}
