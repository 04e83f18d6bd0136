//! A conversation that is stored as JSON and resumed elsewhere: `cargo run -p inspan --example session`.
//! `SessionState` describes what a state has.
#![expect(clippy::print_stdout, reason = "an example shows what it got")]

use inspan::{AgentError, AgentOptions, AgentSession, providers::EchoProvider};

#[tokio::main]
async fn main() -> Result<(), AgentError> {
    let session = AgentSession::new(EchoProvider, AgentOptions::new())?;
    println!("{}", session.chat("My ox is called Bo.").await?.text);
    session.follow_up("He is brown.")?;
    let state = session.export()?;
    session.close();

    let json = serde_json::to_string(&state).unwrap_or_default();

    let state = AgentSession::read_state(&json)?;
    let session = AgentSession::restore(EchoProvider, state, AgentOptions::new())?;
    println!("{}", session.chat("Who is he?").await?.text);
    let snapshot = session.snapshot()?;
    println!("{} turns, {} messages", snapshot.turns, snapshot.messages.len());
    session.close();
    Ok(())
}
