//! An agent in one call: `cargo run -p inspan --example basic`. With options it is `options.rs`.
#![expect(clippy::print_stdout, reason = "an example shows what it got")]

use inspan::{AgentError, providers::EchoProvider, run_agent};

#[tokio::main]
async fn main() -> Result<(), AgentError> {
    let agent = EchoProvider;
    let result = run_agent(agent, "Say something about oxen.").await?;
    println!("{}", result.text);
    Ok(())
}
